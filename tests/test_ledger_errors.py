"""Misuse of the seam: one clear error, and nothing has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference.binding import CoreLedger
from reference.scenario import Scenario, tokens

from tandemkv import _core
from tandemkv.errors import LedgerError

# An array of the wrong type or shape is refused where Python hands it over.
BUFFER_ERRORS = (LedgerError, TypeError, ValueError, BufferError)

VALID = {"tokens_per_block": 4, "num_pages": [9], "max_sequences": 2, "max_seq_len": 32}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens_per_block", 0),
        ("num_pages", []),
        ("num_pages", [1]),
        ("num_pages", [9, 0]),
        ("max_sequences", 0),
        ("max_seq_len", 0),
    ],
)
def test_contradictory_arguments_are_refused(name: str, value: Any) -> None:
    with pytest.raises(LedgerError, match=name) as caught:
        _core.Ledger(**{**VALID, name: value})
    assert caught.value.code


@pytest.mark.parametrize("name", ["tokens_per_block", "max_sequences", "max_seq_len"])
def test_negative_sizes_are_refused(name: str) -> None:
    with pytest.raises(LedgerError, match=f"{name} is -1, must be in 1..=2147483647"):
        _core.Ledger(**{**VALID, name: -1})


def _admit(core: Any, step: int, **changed: Any) -> None:
    arrays = {
        "prompts": [np.arange(6, dtype=np.int32), np.arange(6, dtype=np.int32)],
        "scope": np.zeros(2, np.int32),
        "first": np.full(2, 6, np.int32),
        "max_total": np.full(2, 8, np.int64),
        "draft_from": None,
        "handle": np.zeros(2, np.int64),
        "hit": np.zeros(2, np.int32),
    }
    core.admit(step, **{**arrays, **changed})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompts", [np.arange(6, dtype=np.int32)]),
        ("prompts", [np.arange(6, dtype=np.float32)] * 2),
        ("prompts", [np.arange(12, dtype=np.int32)[::2]] * 2),
        ("prompts", (np.arange(12, dtype=np.int32), np.array([0, 6], np.int64))),
        ("prompts", (np.arange(12, dtype=np.int32), np.array([0, 6, 13], np.int64))),
        ("prompts", (np.arange(12, dtype=np.int32), np.array([0, 8, 6], np.int64))),
        ("prompts", (np.arange(12, dtype=np.int32), np.array([-1, 6, 12], np.int64))),
        ("scope", np.zeros(3, np.int32)),
        ("scope", np.zeros(2, np.int64)),
        ("first", np.full(1, 6, np.int32)),
        ("first", np.full((2, 1), 6, np.int32)),
        ("max_total", np.full(2, 8, np.int32)),
        ("max_total", np.full(4, 8, np.int64)[::2]),
        ("draft_from", np.zeros(1, np.int32)),
        ("draft_from", np.zeros(2, np.int32)),  # there is no draft here
        ("handle", np.zeros(1, np.int64)),
        ("handle", np.zeros(2, np.int32)),
        ("hit", np.zeros(3, np.int32)),
    ],
)
def test_admit_refuses_wrong_arrays(name: str, value: Any) -> None:
    core = _core.Ledger(**VALID)
    step = core.begin_step(0.0)
    before = core.digest()
    with pytest.raises(BUFFER_ERRORS):
        _admit(core, step, **{name: value})
    assert core.digest() == before
    _admit(core, step)
    assert core.stats()["open_sequences"] == 2


def test_output_buffers_must_be_writable() -> None:
    core = _core.Ledger(**VALID)
    step = core.begin_step(0.0)
    handle = np.zeros(2, np.int64)
    handle.flags.writeable = False
    with pytest.raises(BUFFER_ERRORS):
        _admit(core, step, handle=handle)
    assert core.stats()["open_sequences"] == 0


@pytest.fixture
def running() -> tuple[Scenario, int]:
    """Return a ledger with one sequence of 6 tokens and a width of one for step 2."""
    s = Scenario("core")
    handle = s.prefill(tokens(6), 6)
    assert s.grow(s.begin(), handle, 1)
    return s, handle


CALLS: list[tuple[str, Callable[[Any, int], Any]]] = [
    ("width int64", lambda c, h: c.grow(2, _i64(h), np.ones(1, np.int64), np.zeros(1, np.uint8))),
    ("ok int32", lambda c, h: c.grow(2, _i64(h), np.ones(1, np.int32), np.zeros(1, np.int32))),
    ("short ok", lambda c, h: c.grow(2, _i64(h), np.ones(1, np.int32), np.zeros(0, np.uint8))),
    ("long width", lambda c, h: c.grow(2, _i64(h), np.ones(2, np.int32), np.zeros(1, np.uint8))),
    ("packed", lambda c, h: c.advance(2, _i64(h), np.ones(2, np.int32), np.ones(1, np.int32))),
    ("3-D tokens", lambda c, h: c.advance(2, _i64(h), np.ones((1, 1, 1), np.int32), _used(1)[0])),
    ("float tokens", lambda c, h: c.advance(2, _i64(h), np.ones((1, 1)), np.ones(1, np.int32))),
    ("valid 1-D", lambda c, h: c.advance(2, _i64(h), *_one_token(), np.full(1, 7, np.int32))),
    ("two roles", lambda c, h: c.advance(2, _i64(h), *_one_token(), np.full((1, 2), 7, np.int32))),
    ("long count", lambda c, h: c.advance(2, _i64(h), _one_token()[0], np.ones(2, np.int32))),
    ("publish int32", lambda c, h: c.release(_i64(h), np.ones(1, np.int32))),
    ("long publish", lambda c, h: c.release(_i64(h), np.ones(2, np.uint8))),
    ("handle int32", lambda c, h: c.release(np.ones(1, np.int32), np.ones(1, np.uint8))),
    ("match float", lambda c, h: c.match(np.ones(3))),
    ("match draft", lambda c, h: c.match(np.ones(3, np.int32), 0, 0)),
    ("match scope", lambda c, h: c.match(np.ones(3, np.int32), -2)),
    ("moves 3 columns", lambda c, h: c.moves(np.zeros((4, 3), np.int32))),
    ("updates 1-D", lambda c, h: c.updates(np.zeros(4, np.int32))),
    ("updates int64", lambda c, h: c.updates(np.zeros((400, 4), np.int64))),
    ("table classes", lambda c, h: c.table(_i64(h), np.zeros((2, 1, 8), np.int32), _used(1))),
    ("table rows", lambda c, h: c.table(_i64(h), np.zeros((1, 2, 8), np.int32), _used(1))),
    ("used rows", lambda c, h: c.table(_i64(h), np.zeros((1, 1, 8), np.int32), _used(2))),
    ("sequence", lambda c, h: c.sequence(h + 1)),
    ("step -1", lambda c, h: c.complete_step(-1)),
    ("now is NaN", lambda c, h: c.begin_step(float("nan"))),
]


def _i64(handle: int) -> np.ndarray:
    return np.array([handle], np.int64)


def _used(count: int) -> np.ndarray:
    return np.zeros((1, count), np.int32)


def _one_token() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((1, 1), np.int32), np.ones(1, np.int32)


@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_calls_refuse_wrong_arguments(
    running: tuple[Scenario, int], call: Callable[[Any, int], Any]
) -> None:
    s, handle = running
    core = s.ledger.core
    before = core.digest()
    with pytest.raises(BUFFER_ERRORS):
        call(core, handle)
    assert core.digest() == before
    s.advance(2, handle, 7)
    core.validate()


def test_errors_carry_their_numbers(running: tuple[Scenario, int]) -> None:
    s, handle = running
    with pytest.raises(LedgerError) as caught:
        s.release(handle + (1 << 32))
    assert caught.value.code
    assert caught.value.details
    assert all(isinstance(value, int) for value in caught.value.details.values())


def test_moves_need_room_and_are_not_lost() -> None:
    s = Scenario("core", num_pages=(33, 33))
    s.serve(tokens(6))
    handle = s.admit(s.begin(), tokens(6))
    with pytest.raises(LedgerError):
        s.ledger.core.moves(np.zeros((1, 4), np.int32))
    moves = s.ledger.moves()
    assert [(cls, count) for cls, _, _, count in moves] == [(0, 1), (1, 1)]
    assert [move[2] for move in moves] == [s.pages(handle, cls)[1] for cls in range(2)]


def test_two_ledgers_with_equal_calls_are_equal() -> None:
    """Decisions depend on the calls alone; the digest says so."""
    pair = [Scenario("core", num_pages=(9,)) for _ in range(2)]
    for i in range(12):
        for s in pair:
            s.serve(tokens(10, 7 * (i % 5)))
        assert pair[0].ledger.digest() == pair[1].ledger.digest()
    assert pair[0].stats() == pair[1].stats()
    pair[0].begin()
    assert pair[0].ledger.digest() != pair[1].ledger.digest()


def test_recency_is_part_of_the_digest() -> None:
    def used_in_order(*starts: int) -> CoreLedger:
        s = Scenario("core")
        for start in (0, 50):
            s.serve(tokens(4, start))
        for start in starts:
            s.release(s.prefill((*tokens(4, start), 99)), publish=0)
        return s.ledger

    assert used_in_order(0, 50).digest() != used_in_order(50, 0).digest()


# Integers: every argument that is one, with everything that is no number of its range.

NO_NUMBERS = [-(2**200), -(2**63) - 1, 2**63, 2**200, 10**5000, 1.5, None, "1", float("nan")]

INTEGER_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "sequence: handle": lambda core, number: core.sequence(number),
    "match: scope": lambda core, number: core.match(np.arange(3), number),
    "match: draft_from": lambda core, number: core.match(
        np.arange(3), 0, -(2**63) if number is None else number
    ),
    **{
        f"Ledger: {name}": lambda _, number, name=name: _core.Ledger(**{**VALID, name: number})
        for name in (
            *("tokens_per_block", "max_sequences", "max_seq_len"),
            *("extra_tokens", "reserve_tokens", "lookahead"),
        )
    },
    "Ledger: num_pages": lambda _, number: _core.Ledger(**{**VALID, "num_pages": [9, number]}),
}


@pytest.mark.parametrize("number", NO_NUMBERS, ids=[str(at) for at in range(len(NO_NUMBERS))])
@pytest.mark.parametrize("name", INTEGER_CALLS)
def test_a_number_out_of_range_is_named(
    running: tuple[Scenario, int], name: str, number: Any
) -> None:
    core = running[0].ledger.core
    before = core.digest()
    with pytest.raises(LedgerError, match=f"{name.partition(': ')[2]} is .*, must be "):
        INTEGER_CALLS[name](core, number)
    assert core.digest() == before


def test_prompts_may_come_from_an_iterator_that_keeps_none_of_them() -> None:
    """The ledger reads the arrays after the iterator has let go of them."""
    core = _core.Ledger(tokens_per_block=4, num_pages=[2000], max_sequences=4, max_seq_len=2000)
    step, handle = core.begin_step(), np.zeros(4, np.int64)
    each = np.full(4, 1000)
    core.admit(
        step,
        (np.full(1000, 7 + item, np.int32) for item in range(4)),
        np.zeros(4, np.int32),
        each.astype(np.int32),
        each,
        None,
        handle,
        np.zeros(4, np.int32),
    )
    core.advance(step, handle, np.zeros((4, 0), np.int32), np.zeros(4, np.int32))
    assert [core.match(np.full(1000, 7 + item)) for item in range(4)] == [1000] * 4


def test_prompts_of_another_type_are_named() -> None:
    core = _core.Ledger(**VALID)
    for prompts in (None, 5):
        with pytest.raises(LedgerError, match=f"prompts is {type(prompts).__name__}, must be"):
            _admit(core, core.begin_step(), prompts=prompts)

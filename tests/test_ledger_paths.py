"""`path_moves`: which tokens of a draft tree go where; see "Draft trees" in docs/ledger.md."""

from __future__ import annotations

import numpy as np
import pytest
from reference.binding import CoreLedger
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv import _core
from tandemkv.errors import BufferTooSmallError, LedgerError

ERRORS = (LedgerError, Misuse)


def running_tree(engine: str, width: int, **options: object) -> tuple[Scenario, int, int]:
    """Return a ledger, a sequence of 6 known tokens whose tree of `width` nodes runs, and the step.

    Blocks hold 4 tokens: node 0 stands at position 5, offset 1 of block 1.
    """
    s = Scenario(engine, reserve_tokens=15, **options)
    handle = s.prefill(tokens(5), 5)
    step = s.begin()
    assert s.grow(step, handle, width)
    return s, handle, step


@pytest.mark.parametrize("engine", ENGINES)
def test_kept_nodes_go_to_the_positions_after_each_other(engine: str) -> None:
    s, handle, step = running_tree(engine, 8)
    b0, b1, b2, b3 = s.pages(handle)
    assert len({b0, b1, b2, b3}) == 4
    moves = s.ledger.path_moves(step, [(handle, (0, 2, 3, 7))], 0)
    # Positions 5, 7, 8, 12 become 5, 6, 7, 8.
    assert moves == [(0, b1, 3, b1, 2), (0, b2, 0, b1, 3), (0, b3, 0, b2, 0)]
    s.advance(step, handle, 12, 13, 17, 99)
    assert s.sequence(handle)["history"] == 9
    assert s.pages(handle) == [b0, b1, b2]


@pytest.mark.parametrize("engine", ENGINES)
def test_nodes_that_stand_where_they_belong_have_no_row(engine: str) -> None:
    s, handle, step = running_tree(engine, 6)
    for path in ((), (0,), (0, 1, 2), tuple(range(6))):
        assert s.ledger.path_moves(step, [(handle, path)], 0) == []
    assert len(s.ledger.path_moves(step, [(handle, (0, 1, 3))], 0)) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_every_class_with_a_column_per_block_has_the_rows(engine: str) -> None:
    rules = (
        *(("cross_attention", 4, 0), ("full_attention", 0, 0), ("recurrent_state", 0, 0)),
        ("sliding_window", 4, 0),
    )
    s, handle, step = running_tree(engine, 4, lifetimes=rules, num_pages=(33,) * 4)
    moves = s.ledger.path_moves(step, [(handle, (0, 3))], 0)
    full, window = s.pages(handle, 1), s.pages(handle, 3)
    assert moves == [(1, full[2], 0, full[1], 2), (3, window[2], 0, window[1], 2)]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_role_starts_at_its_own_end(engine: str) -> None:
    s = Scenario(engine, reserve_tokens=7, has_draft=True)
    handle = s.prefill(tokens(5))
    step = s.begin()
    assert s.grow(step, handle, 1)
    s.complete(step)
    s.advance(step, handle, 5)
    step = s.begin()
    assert s.grow(step, handle, 2)
    s.complete(step)
    s.advance(step, handle, 6, 7, valid=[7, 5])
    step = s.begin()
    assert s.grow(step, handle, 4)
    pages = s.pages(handle)
    [target] = s.ledger.path_moves(step, [(handle, (0, 2))], 0)
    [draft] = s.ledger.path_moves(step, [(handle, (0, 2))], 1)
    assert target == (0, pages[2], 1, pages[2], 0)
    assert draft == (0, pages[1], 3, pages[1], 2)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "path", [(1,), (1, 2), (0, 0), (0, 2, 1), (0, 4), (0, -1), (0, 1, 2, 3, 4), (0, 2**31 - 1)]
)
def test_what_is_no_path_is_refused(engine: str, path: tuple[int, ...]) -> None:
    s, handle, step = running_tree(engine, 4)
    with pytest.raises(ERRORS):
        s.ledger.path_moves(step, [(handle, path)], 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_path_is_of_the_only_step_that_runs(engine: str) -> None:
    s, handle, step = running_tree(engine, 4)
    for wrong in (step - 1, step + 1, 0):
        with pytest.raises(ERRORS):
            s.ledger.path_moves(wrong, [(handle, (0, 2))], 0)
    later = s.begin()
    assert s.grow(later, handle, 4)
    with pytest.raises(ERRORS):
        s.ledger.path_moves(step, [(handle, (0, 2))], 0)
    assert s.ledger.path_moves(step, [(handle, ())], 0) == []
    with pytest.raises(ERRORS):
        s.ledger.path_moves(step, [(handle, ()), (handle, ())], 0)


def test_errors_name_what_is_wrong_and_write_nothing() -> None:
    s, handle, step = running_tree("core", 4)
    assert isinstance(s.ledger, CoreLedger)
    core, before = s.ledger.core, s.ledger.digest()
    handles, out = np.array([handle]), np.full((2, 5), -7, np.int32)

    def ask(path: list[int], count: int, role: int = 0, into: np.ndarray = out) -> int:
        nodes = np.array(path, np.int32)
        return _core.path_moves(core, step, handles, nodes, np.array([count], np.int32), into, role)

    message = r"path\[0\] has node 1 at 2, must be in 3\.\.=3: node 0 first, then ascending"
    with pytest.raises(LedgerError, match=r"path\[0\] has node 2 at 0, must be in 0\.\.=0"):
        ask([2], 1)
    with pytest.raises(LedgerError, match=message) as caught:
        ask([0, 2, 1], 3)
    assert caught.value.code == "path_node"
    assert caught.value.details == {"item": 0, "position": 2, "node": 1, "min": 3, "max": 3}
    with pytest.raises(LedgerError, match=r"role\[0\] is 1, must be in 0\.\.=0"):
        ask([0], 1, 1)
    with pytest.raises(LedgerError, match="path holds 2, but the counts add up to 1"):
        ask([0, 1], 1)
    with pytest.raises(LedgerError, match="out has 4 columns, must have 5"):
        ask([0], 1, 0, np.zeros((2, 4), np.int32))
    with pytest.raises(BufferTooSmallError) as small:
        ask([0, 2, 3], 3, 0, out[:1])
    assert small.value.details["required"] == 2
    assert (out == -7).all()
    assert s.ledger.digest() == before

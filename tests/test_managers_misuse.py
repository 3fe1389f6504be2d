"""Misuse of the managers: one clear error, and nothing has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from managers_setup import (
    assert_drained,
    chunk,
    decode,
    new,
    run,
    small_managers,
)

from tandemkv.errors import (
    BatchError,
    LedgerError,
    RequestError,
    SequencesOpenError,
    StepError,
)
from tandemkv.managers import Batch

PROMPT = list(range(100, 110))  # 10 tokens


# --- misuse ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.prepare_resources(decode(["x"])), "'x' is not open"),
        (lambda m: m.prepare_resources(decode(["a", "x", "y"])), "'x', 'y' are not open"),
        (lambda m: m.prepare_resources(chunk("x", 1)), "'x' is not open"),
        (lambda m: m.prepare_resources(new("a", PROMPT)), "'a' is already open"),
        (lambda m: m.free_resources("x"), "'x' is not open"),
        (lambda m: m.free_many(["a", "x"]), "'x' is not open"),
        (lambda m: m.sequence("x"), "'x' is not open"),
        (lambda m: m.handles(["x"]), "'x' is not open"),
        (lambda m: m.hit_lengths(["a", "x"]), "'x' is not open"),
        (lambda m: m.block_tables(["x"]), "'x' is not open"),
        (
            lambda m: m.prepare_resources(
                Batch(
                    ["x", "y"],
                    chunk_lens=[1, 0],
                    prompts=[[1], []],
                    max_total_tokens=[9, 9],
                )
            ),
            "'y' is not open",
        ),
    ],
)
def test_unknown_and_open_ids_are_errors_everywhere(call: Any, message: str) -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    before = managers.ledger.digest()
    with pytest.raises(RequestError, match=message):
        call(managers)
    assert managers.ledger.digest() == before
    assert managers.request_ids == ("a",)
    assert managers.step is None


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (decode(["a"], 5), BatchError, r"draft_lens\[0\] is 5 .* room for 4 draft"),
        (new("b", [1] * 60, max_total=65), BatchError, "65 .* max_seq_len 64"),
    ],
)
def test_what_exceeds_the_plan_is_an_error(
    batch: Batch, error: type[Exception], message: str
) -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    before = managers.ledger.digest()
    with pytest.raises(error, match=message):
        managers.prepare_resources(batch)
    assert managers.ledger.digest() == before


def test_a_draft_where_the_plan_has_none_is_an_error() -> None:
    managers = small_managers(draft=False)
    with pytest.raises(BatchError, match=r"'a'.*the plan has no draft"):
        managers.prepare_resources(new("a", PROMPT, draft_from=0))
    run(managers, new("a", PROMPT, draft_from=-1), [[1]])
    with pytest.raises(BatchError, match="room for 0 draft"):
        managers.prepare_resources(decode(["a"], 1))


def test_a_freed_id_is_stale_and_can_be_used_anew() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    ids = decode(["a"]).request_ids
    managers.handles(ids)  # looked up and kept
    managers.free_resources("a")
    with pytest.raises(RequestError, match="'a' is not open"):
        managers.free_resources("a")
    with pytest.raises(RequestError, match="'a' is not open"):
        managers.prepare_resources(Batch(ids))
    run(managers, new("a", [5, 6, 7]), [[1]])
    assert managers.sequence("a")["known"] == 4
    run(managers, Batch(ids), [[1]])
    assert managers.sequence("a")["known"] == 5


def test_an_error_after_the_step_began_closes_it_again() -> None:
    managers = small_managers(max_seq_len=16)
    run(managers, new("a", [1] * 15, max_total=16), [[2]])
    batch = decode(["a"], 4)
    step = managers.begin_step()
    managers.prepare_resources(batch, step)
    with pytest.raises(LedgerError, match=r"width\[0\] is 5") as caught:
        managers.prepare_resources(batch)  # a second width of 5 is beyond 16 + 4 + 1
    assert "item 0 is request 'a'" in caught.value.__notes__
    assert managers.step is None
    assert managers.ledger.stats()["open_steps"] == 1
    managers.complete_step(step)
    managers.skip_step(step)


def test_a_wrong_result_leaves_the_step_open_for_the_right_one() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    batch = decode(["a"], 2)
    managers.prepare_resources(batch)
    before = managers.ledger.digest()
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([[1, 2, 3, 4]], LedgerError, r"count\[0\] is 4"),  # more than ran
        ([[-1]], BatchError, "-1"),
        (([-1], [0, 1]), LedgerError, "token"),
        ([[]], BatchError, "ran a decode step"),
        ([[1], [2]], BatchError, "2 items, expected 1"),
    ]
    for accepted, error, message in wrong:
        with pytest.raises(error, match=message):
            managers.update_resources(batch, accepted)
        assert managers.ledger.digest() == before
    with pytest.raises(RequestError, match="'b' is not prepared in step"):
        managers.update_resources(decode(["a", "b"]), [[1], [1]])
    with pytest.raises(RequestError, match=r"'a' is running in step .*left out"):
        managers.update_resources(decode([]), [])
    assert managers.ledger.digest() == before
    managers.update_resources(batch, [[1, 2, 3]])
    assert managers.sequence("a")["known"] == 14
    with pytest.raises(StepError, match="no step is prepared"):
        managers.update_resources(batch, [[1]])


def test_valid_ends_are_taken_where_the_engine_gives_them() -> None:
    managers = small_managers()
    batch = new("a", PROMPT)
    managers.prepare_resources(batch)
    managers.update_resources(batch, [[]], valid=np.array([[10, 7]], np.int32))
    assert managers.sequence("a")["valid"] == [10, 7]
    assert managers.sequence("a")["history"] == 7


def test_a_decode_step_within_a_prompt_is_refused_until_the_prompt_is_scheduled() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    run(managers, new("b", list(range(200, 220)), chunk=8), [[]])
    for left in (12, 4):
        before = managers.ledger.digest()
        for batch in (
            decode(["b"], 4),
            decode(["a", "b"]),
            Batch(["a", "b"], chunk_lens=[0, 0]),
            Batch(["b", "c"], chunk_lens=[0, 3], prompts=[[], [7] * 3], max_total_tokens=[9, 9]),
        ):
            with pytest.raises(
                BatchError,
                match=rf"chunk_lens of request 'b' is 0 \(a decode step\), but {left} of its 20 "
                rf"prompt tokens are left to run; chunk_lens must be 1 to {left}",
            ):
                managers.prepare_resources(batch)
        assert managers.ledger.digest() == before
        assert managers.step is None
        run(managers, decode(["a"], 2), [[1, 2]])  # others decode meanwhile
        run(managers, chunk("b", min(left, 8)), [[]] if left == 12 else [[5]])
    run(managers, decode(["a", "b"]), [[1], [6]])


def test_a_skipped_last_chunk_leaves_the_request_within_its_prompt() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT, chunk=4), [[]])
    managers.prepare_resources(chunk("a", 6))
    managers.skip_step()
    with pytest.raises(BatchError, match=r"'a' is 0 .* 6 of its 10 prompt tokens are left"):
        managers.prepare_resources(decode(["a"]))
    run(managers, chunk("a", 6), [[1]])
    run(managers, decode(["a"]), [[2]])


def test_a_request_freed_within_its_prompt_holds_back_nobody_else() -> None:
    managers = small_managers()
    for request_id in ("a", "b"):
        run(managers, new(request_id, [*PROMPT, ord(request_id)], chunk=1), [[]])
    managers.free_many(["a", "b"])
    run(managers, new("c", PROMPT, chunk=10, scope=-1), [[1]])  # in a row of theirs
    assert managers._registry.num_mid_prompt == 0
    run(managers, decode(["c"], 4), [[1, 2, 3]])


def test_tokens_for_a_dummy_name_it() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    managers.add_dummy_requests(["pad"], [6])
    batch = decode(["a", "pad"])
    assert managers.prepare_resources(batch).all()
    before = managers.ledger.digest()
    with pytest.raises(BatchError, match="1 tokens for 'pad', which is a dummy request"):
        managers.update_resources(batch, [[5], [6]])
    assert managers.ledger.digest() == before
    managers.update_resources(batch, [[5], []])


def test_reset_is_refused_while_requests_are_open() -> None:
    managers = small_managers()
    for request_id in ("a", "b", "c"):
        run(managers, new(request_id, [*PROMPT, ord(request_id)]), [[1]])
    managers.free_resources("b")
    before = managers.ledger.digest()
    with pytest.raises(SequencesOpenError) as caught:
        managers.reset_reuse_state()
    assert caught.value.details["open_sequences"] == 2
    assert managers.ledger.digest() == before
    managers.free_many(["a", "c"])
    managers.reset_reuse_state()
    run(managers, new("d", PROMPT), [[1]])
    assert managers.hit_lengths(["d"]).tolist() == [0]


def test_many_are_freed_together_or_not_at_all() -> None:
    managers = small_managers()
    for request_id in ("a", "b"):
        run(managers, new(request_id, [*PROMPT, ord(request_id)]), [[1]])
    for publish, message in (([True], "2 bools"), ([1, 0], "dtype int"), ("no", "dtype")):
        with pytest.raises(BatchError, match=message):
            managers.free_many(["a", "b"], publish)  # type: ignore[arg-type]
    managers.free_many(["a", "b"], [False, True])
    assert managers.request_ids == ()
    assert_drained(managers)

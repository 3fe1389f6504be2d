"""What the managers refuse: pages, rows and dummies that do not fit leave no trace."""

from __future__ import annotations

from typing import Any

import pytest
from managers_setup import (
    TPB,
    assert_drained,
    chunk,
    decode,
    new,
    pages,
    run,
    small_managers,
)

from tandemkv.errors import (
    BatchError,
    RequestError,
    StepError,
)
from tandemkv.managers import Batch, Refusal

PROMPT = list(range(100, 110))  # 10 tokens


# --- refusals ----------------------------------------------------------------------------------


def test_a_refused_request_leaves_no_trace_and_can_come_again() -> None:
    managers = small_managers(num_pages=9, draft=False)
    run(managers, new("a", [1] * 20, max_total=24), [[1]])
    step = managers.begin_step()
    before = managers.ledger.digest()
    late = new("b", [2] * 16)
    assert managers.prepare_resources(late, step).tolist() == [False]
    assert managers.refusals == {"b": Refusal("no_pages_now", 8, 8)}
    refused = managers.stats().ledger["refused_now"]
    assert refused == 1
    assert managers.request_ids == ("a",)
    assert managers.ledger.digest() == before
    with pytest.raises(RequestError, match="'b' is not open"):
        managers.sequence("b")
    managers.complete_step(step)
    managers.free_resources("a")
    run(managers, late, [[3]])
    assert managers.refusals == {}
    managers.free_resources("b")
    assert_drained(managers)


def test_a_request_that_can_never_fit_is_told_so_with_the_numbers() -> None:
    managers = small_managers(num_pages=9, draft=False)
    batch = Batch(
        ["small", "large"],
        chunk_lens=[4, 4],
        prompts=[[1] * 4, [2] * 4],
        max_total_tokens=[8, 34],
    )
    assert managers.prepare_resources(batch).tolist() == [True, False]
    # 33 tokens are written at most: the 34th is never run.
    assert managers.refusals == {"large": Refusal("never_fits", 9, 8)}
    assert str(managers.refusals["large"]) == "needs 9 pages, the pool has 8 usable"
    managers.update_resources(batch, [[5], []])
    assert managers.request_ids == ("small",)


def test_a_refused_decode_step_runs_after_a_preemption() -> None:
    managers = small_managers(num_pages=9, draft=False)
    run(managers, new("a", [1] * 16, max_total=30), [[1]])
    run(managers, new("b", [2] * 16, max_total=30), [[1]])
    assert pages(managers)["free"] == 0
    both = decode(["a", "b"])
    assert managers.prepare_resources(both).tolist() == [False, False]
    assert {r.reason for r in managers.refusals.values()} == {"no_pages_now"}
    managers.free_resources("b")  # its pages wait for the step that is open
    step = managers.step
    assert step is not None
    with pytest.raises(StepError, match=f"step {step} is prepared and not updated"):
        managers.prepare_resources(decode(["a"]))
    assert managers.prepare_resources(decode(["a"]), step).tolist() == [False]
    managers.skip_step()
    run(managers, decode(["a"]), [[9]])
    managers.free_resources("a")
    assert_drained(managers)


def test_a_preemption_frees_at_once_where_one_stream_orders_all_steps() -> None:
    managers = small_managers(num_pages=9, draft=False, same_stream=True)
    run(managers, new("a", [1] * 16, max_total=30), [[1]])
    run(managers, new("b", [2] * 16, max_total=30), [[1]])
    both = decode(["a", "b"])
    assert managers.prepare_resources(both).tolist() == [False, False]
    managers.free_resources("b")
    assert managers.prepare_resources(decode(["a"]), managers.step).tolist() == [True]
    managers.update_resources(both, [[5], []])
    assert managers.sequence("a")["known"] == 18


def test_tokens_for_a_refused_request_are_an_error() -> None:
    managers = small_managers(num_pages=9, draft=False)
    run(managers, new("a", [1] * 16, max_total=30), [[1]])
    run(managers, new("b", [2] * 16, max_total=30), [[1]])
    both = decode(["a", "b"])
    managers.prepare_resources(both)
    with pytest.raises(BatchError, match=r"accepted\[1\] has 1 tokens, but .*'b' was refused"):
        managers.update_resources(both, [[], [3]])
    managers.update_resources(both, [[], []])


def test_nothing_is_tried_after_the_first_refusal_if_asked() -> None:
    managers = small_managers(num_pages=9, draft=False)
    batch = Batch(
        ["a", "b", "c"],
        chunk_lens=[16, 20, 4],
        prompts=[[1] * 16, [2] * 20, [3] * 4],
        max_total_tokens=[20, 24, 8],
    )
    assert managers.prepare_resources(batch, stop_at_first=True).tolist() == [True, False, False]
    assert [r.reason for r in managers.refusals.values()] == ["no_pages_now", "not_tried"]
    managers.update_resources(batch, [[1], [], []])
    managers.free_resources("a")
    assert managers.prepare_resources(batch).tolist() == [True, False, True]
    assert [r.reason for r in managers.refusals.values()] == ["no_pages_now"]


# --- rows --------------------------------------------------------------------------------------


def test_the_extra_tokens_widen_the_row_and_not_the_visible_length() -> None:
    # 1,024 tokens, one extra token, 2 draft slots and the token itself: ceil(1,028 / 32) = 33
    # blocks on both roles, and 1,024 tokens stay usable.
    managers = small_managers(
        num_pages=40, tokens_per_block=32, max_seq_len=1024, draft_len=2, max_batch_size=1
    )
    assert managers.ledger.row_width == 36  # 33, rounded up to a multiple of 4
    run(managers, new("a", list(range(1021)), max_total=1024), [[1]])
    batch = decode(["a"], 2)
    assert managers.prepare_resources(batch).all()
    tables, used = managers.block_tables(["a"])
    assert tables.shape == (1, 1, 36)
    assert used.tolist() == [[33]]  # 1,021 + 3 + 1 tokens
    managers.update_resources(batch, [[2, 3]])
    assert managers.sequence("a")["known"] == 1024
    with pytest.raises(BatchError, match=r"1025 .* max_seq_len 1024"):
        managers.prepare_resources(new("b", [1], max_total=1025))


def test_both_roles_have_the_same_rows_dummies_included() -> None:
    # 16 sequences, two engines, 2 dummies: 34 rows (TensorRT-LLM#19006 had 33 for the draft).
    managers = small_managers(
        num_pages=200, max_batch_size=16, disaggregated=True, num_dummy_requests=2
    )
    assert managers.ledger.max_sequences == 34
    for item in range(32):
        run(managers, new(item, [item + 1]), [[1]])
    batch = new("one too many", [99])
    assert managers.prepare_resources(batch).tolist() == [False]
    assert managers.refusals["one too many"].reason == "no_row"
    assert managers.stats().ledger["refused_rows"] == 1
    managers.update_resources(batch, [[]])
    assert managers.add_dummy_requests(["x", "y"], [5, 5]) == ["x", "y"]
    assert managers.add_dummy_requests(["z"], [1]) is None
    assert len(managers.request_ids) == 34
    managers.free_many(managers.request_ids)
    assert_drained(managers)


# --- dummies -----------------------------------------------------------------------------------


def test_dummies_hold_room_and_share_nothing() -> None:
    managers = small_managers()
    run(managers, new("a", [1] * 9), [[1]])
    counters = managers.stats().ledger
    live = pages(managers)["live"]
    assert managers.add_dummy_requests(["pad", "warm-up"], [5, 9]) == ["pad", "warm-up"]
    assert pages(managers)["live"] - live == 2 + 3  # ceil((5 + 3) / 4) and ceil((9 + 3) / 4)
    assert managers.hit_lengths(["pad", "warm-up"]).tolist() == [0, 0]
    stats = managers.stats()
    assert (stats.open_requests, stats.open_dummies) == (1, 2)
    for name in ("admitted", "prompt_tokens", "hit_tokens", "accepted_tokens", "published_blocks"):
        assert stats.ledger[name] == counters[name], name

    batch = decode(["a", "pad"], 4)  # a padded step: the dummy yields nothing
    assert managers.prepare_resources(batch).all()
    managers.update_resources(batch, [[1, 1], []])
    assert managers.sequence("pad")["known"] == 5
    managers.free_many(["pad", "warm-up", "a"])
    assert managers.stats().ledger["released"] == 1
    assert_drained(managers)


@pytest.mark.parametrize(
    ("lens", "options"),
    [
        ([20, 6], {}),  # 6 and 3 blocks of 8
        ([1, 1, 1, 1, 1], {"num_dummy_requests": 0}),  # 5 of 4 rows
        ([28], {}),  # 8 blocks, but a decode step needs a ninth
    ],
)
def test_dummies_that_do_not_fit_leave_no_trace(lens: list[int], options: dict[str, Any]) -> None:
    managers = small_managers(num_pages=9, draft_len=4, max_seq_len=64, **options)
    ids = [f"dummy {item}" for item in range(len(lens))]
    before = managers.ledger.digest()
    assert managers.add_dummy_requests(ids, lens) is None
    assert managers.ledger.digest() == before
    assert managers.request_ids == ()


def test_dummies_take_cached_pages_but_not_promised_ones() -> None:
    managers = small_managers(num_pages=9, draft=False)
    run(managers, new("a", PROMPT), [[1]])
    managers.free_resources("a")
    assert pages(managers)["cached"] == 3
    assert managers.add_dummy_requests(["pad"], [32]) == ["pad"]  # all 8 pages
    managers.free_resources("pad")
    run(managers, new("b", [5] * 20, chunk=4, max_total=21), [[]])  # 1 block of 5, 4 are promised
    assert managers.add_dummy_requests(["pad"], [13]) is None
    assert managers.add_dummy_requests(["pad"], [12]) == ["pad"]
    run(managers, chunk("b", 16), [[1]])


@pytest.mark.parametrize(
    ("ids", "lens", "error", "message"),
    [
        (["a"], [1], RequestError, "'a' is already open"),
        (["x", "x"], [1, 1], BatchError, "'x' a second time"),
        (["x"], [1, 1], BatchError, "2 items, expected 1"),
        (["x"], [0], BatchError, r"token_nums\[0\] is 0"),
        (["x"], [65], BatchError, r"is 65; it must be in 1..=64"),
        (["x"], [1.5], BatchError, "not integers"),
    ],
)
def test_malformed_dummies_are_errors(
    ids: list[str], lens: Any, error: type[Exception], message: str
) -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    before = managers.ledger.digest()
    with pytest.raises(error, match=message):
        managers.add_dummy_requests(ids, lens)
    assert managers.ledger.digest() == before


def test_no_dummies_is_an_answer() -> None:
    assert small_managers().add_dummy_requests([], []) == []


def test_a_refused_step_of_a_running_request_says_what_it_needs() -> None:
    managers = small_managers(9, draft=False, max_seq_len=32)
    run(managers, new("a", range(15), max_total=32), [[1]])
    run(managers, new("b", range(50, 63), max_total=16), [[1]])
    batch = decode(["a"])
    while managers.prepare_resources(batch).all():
        managers.update_resources(batch, [[1]])
    managers.skip_step()
    refusal = managers.refusals["a"]
    history = managers.sequence("a")["reach"]
    assert (refusal.required_blocks, refusal.usable_pages) == (history // TPB + 1, 8)


def test_floors_of_others_are_named_where_they_refuse() -> None:
    managers = small_managers(9, draft=False, max_seq_len=32)
    managers.retention.set_quota(5, cache_salt="other")
    batch = new("a", range(15), max_total=20)
    assert not managers.prepare_resources(batch).any()
    managers.skip_step()
    shown = str(managers.refusals["a"])
    assert shown == "needs 5 pages beside others' floors, the pool has 8 usable"

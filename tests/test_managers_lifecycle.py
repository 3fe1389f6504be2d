"""`fork`, `suspend`, `resume` and a reset under open requests, through the managers."""

from __future__ import annotations

import pytest
from managers_setup import assert_drained, chunk, decode, new, pages, run, small_managers

from tandemkv import Batch
from tandemkv.errors import BatchError, LedgerError, RequestError, StepError


def test_beams_share_full_blocks_and_end_in_any_order() -> None:
    managers = small_managers()
    run(managers, new("a", range(10)), [[99]])
    step = managers.begin_step()
    assert managers.fork("a", ["b", "c"], step).tolist() == [True, True]
    tables, _ = managers.block_tables(["a", "b", "c"])
    assert (tables[0, :, :2] == tables[0, 0, :2]).all()
    assert len(set(tables[0, :, 2].tolist())) == 3
    assert managers.hit_lengths(["b"]).tolist() == managers.hit_lengths(["a"]).tolist()
    batch = decode(["a", "b", "c"], 2)
    assert managers.prepare_resources(batch, step).all()
    assert len(managers.moves()) == 2
    managers.complete_step(step)
    managers.update_resources(batch, [[1], [2, 3], [4]], step)
    managers.free_resources("a")
    run(managers, decode(["b", "c"]), [[5], [6]])
    assert managers.sequence("b")["known"] == 14
    managers.free_many(["c", "b"])
    assert_drained(managers)


def test_forks_keep_the_rows_of_dummies_free() -> None:
    managers = small_managers(max_batch_size=2, num_dummy_requests=1)
    run(managers, new("a", range(6)), [[99]])
    assert managers.fork("a", ["b", "c"], managers.begin_step()).tolist() == [True, False]
    assert set(managers.request_ids) == {"a", "b"}
    assert managers.add_dummy_requests(["d"], [4]) == ["d"]


def test_a_fork_that_is_not_possible_changes_nothing() -> None:
    managers = small_managers()
    run(managers, new("a", range(6)), [[99]])
    managers.add_dummy_requests(["d"], [4])
    before = managers.ledger.digest()
    step = managers.begin_step()
    with pytest.raises(RequestError, match="'a' is already open"):
        managers.fork("a", ["a"], step)
    with pytest.raises(RequestError, match="'x' is not open"):
        managers.fork("x", ["b"], step)
    with pytest.raises(BatchError, match="dummy"):
        managers.fork("d", ["b"], step)
    with pytest.raises(StepError, match="begin_step"):
        managers.fork("a", ["b"])
    managers.complete_step(step)
    assert managers.prepare_resources(decode(["a"])).all()
    with pytest.raises(LedgerError, match="runs step") as caught:
        managers.fork("a", ["b"])
    assert "'a'" in caught.value.__notes__[0]
    managers.skip_step()
    assert "b" not in managers.request_ids
    assert managers.ledger.digest() != before, "only the steps have moved"


@pytest.mark.parametrize("scope", [0, -1])
def test_a_suspended_request_goes_on_where_it_was(scope: int) -> None:
    managers = small_managers()
    run(managers, new("a", range(10), scope=scope), [[99]])
    managers.suspend(["a"])
    assert pages(managers)["live"] == 0
    with pytest.raises(LedgerError, match="suspended") as caught:
        managers.prepare_resources(decode(["a"]))
    assert "'a'" in caught.value.__notes__[0]
    step = managers.begin_step()
    assert managers.resume(["a"], [3], step).tolist() == [True]
    hit = int(managers.hit_lengths(["a"])[0])
    # The sampled token is the lookahead of the ten before it, and has to run.
    assert hit == (10 if scope == 0 else 0)
    managers.moves()
    managers.complete_step(step)
    ran = min(3, 11 - hit)
    managers.update_resources(chunk("a", ran), [[98] if hit + ran == 11 else []], step)
    while managers.sequence("a")["history"] < 11:
        left = min(11 - managers.sequence("a")["history"], 4)
        ends = managers.sequence("a")["history"] + left == 11
        run(managers, chunk("a", left), [[98] if ends else []])
    run(managers, decode(["a"]), [[97]])
    assert managers.sequence("a")["known"] == 13
    stats = managers.stats()
    assert (stats.hit_rate_tokens, stats.ledger["resumed_hit_tokens"]) == (0.0, hit)
    managers.free_resources("a")
    assert_drained(managers)


def test_a_resume_waits_for_pages() -> None:
    managers = small_managers(num_pages=9)
    run(managers, new("a", range(14), max_total=16), [[99]])
    managers.suspend(["a"], publish=False)
    run(managers, new("b", range(100, 120), max_total=22), [[99]])
    step = managers.begin_step()
    assert managers.resume(["a"], [20], step).tolist() == [False]
    managers.complete_step(step)
    managers.free_many(["a", "b"])
    assert_drained(managers)


def test_misuse_of_suspension_names_the_request() -> None:
    managers = small_managers()
    run(managers, new("a", range(6)), [[99]])
    managers.add_dummy_requests(["d"], [4])
    with pytest.raises(BatchError, match="dummy"):
        managers.suspend(["d"])
    step = managers.begin_step()
    with pytest.raises(LedgerError, match="not suspended") as caught:
        managers.resume(["a"], [1], step)
    assert "'a'" in caught.value.__notes__[0]
    with pytest.raises(BatchError, match="chunk_lens has 2 items"):
        managers.resume(["a"], [1, 1], step)
    managers.suspend(["a"])
    with pytest.raises(LedgerError, match="suspended"):
        managers.suspend(["a"])


def test_a_reset_under_open_requests_forgets_everything() -> None:
    managers = small_managers()
    run(managers, new("a", range(10)), [[99]])
    managers.reset_reuse_state(detach_live=True)
    run(managers, decode(["a"]), [[98]])
    run(managers, new("b", range(10)), [[99]])
    assert managers.hit_lengths(["b"]).tolist() == [0]
    managers.free_many(["a", "b"])
    assert_drained(managers)


@pytest.mark.parametrize("end", ["freed", "skipped"])
def test_a_request_resumed_in_a_step_it_already_ran_in_belongs_to_it_once(end: str) -> None:
    managers = small_managers(33, draft=False)
    step = managers.begin_step()
    for name in ("a", "b"):
        managers.prepare_resources(new(name, range(8), max_total=30), step=step)
    managers.moves()
    managers.update_resources(Batch(["a"], chunk_lens=[8]), [[1]], step=step)
    managers.suspend(["a"])
    assert managers.resume(["a"], [3], step).tolist() == [True]
    managers.moves()
    if end == "freed":
        managers.free_resources("a")
        # A result that was under way when its request was freed is passed over.
        managers.update_resources(Batch(["a", "b"], chunk_lens=[3, 8]), [[2], [2]], step=step)
    else:
        managers.skip_step(step)
        # Nothing is under way any more: both can be taken away.
        managers.suspend(["a", "b"])
    managers.complete_step(step)
    for name in {"freed": "b", "skipped": "ab"}[end]:
        managers.free_resources(name)
    assert_drained(managers)

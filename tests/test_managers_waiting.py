"""Requests that wait for pages from a lower tier: what the engine may do with their ids."""

from __future__ import annotations

from typing import Any

import pytest
from managers_setup import decode, new
from test_managers_tiers import SlowExecutor, ask, prompt, serve, slow

from tandemkv.errors import BatchError, RequestError
from tandemkv.managers import Batch, Managers


def waiting() -> tuple[Managers, SlowExecutor]:
    """Return managers in which `w` waits for 5 blocks from the host."""
    managers, executor = slow()
    assert not managers.prepare_resources(ask("w", prompt(100))).any()
    assert managers.refusals["w"].reason == "loading"
    managers.moves()
    managers.skip_step()
    return managers, executor


def arrive(managers: Managers, executor: SlowExecutor) -> None:
    executor.finish()
    assert managers.tiers is not None
    managers.tiers.collect()


@pytest.mark.parametrize("call", ["dummy", "fork"])
def test_nothing_else_takes_the_id_of_a_request_that_waits(call: str) -> None:
    managers, executor = waiting()
    short = new("p", prompt(500, 5), max_total=8)
    step = managers.begin_step()
    assert managers.prepare_resources(short, step).all()
    managers.moves()
    managers.update_resources(short, [[1]], step)
    before = managers.ledger.digest()
    calls = {
        "dummy": lambda: managers.add_dummy_requests(["d", "w"], [4, 4]),
        "fork": lambda: managers.fork("p", ["q", "w"], step),
    }
    with pytest.raises(RequestError, match="'w' is waiting for pages") as raised:
        calls[call]()
    assert raised.value.request_ids == ("w",)
    assert managers.ledger.digest() == before
    assert managers.request_ids == ("p",)
    managers.complete_step(step)
    managers.free_resources("p")
    arrive(managers, executor)
    assert managers.prepare_resources(ask("w", prompt(100))).all()
    assert managers.hit_lengths(["w"]).tolist() == [20]


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({"max_total": 26}, {"max_total": 26, "history": 20}),
        ({"draft_from": -1}, {"draft_from": -1}),
        ({"scope": -1}, {"scope": -1, "history": 0}),
    ],
    ids=["max_total", "draft_from", "scope"],
)
def test_a_request_that_comes_again_on_other_terms_is_a_new_one(
    terms: dict[str, Any], expected: dict[str, Any]
) -> None:
    managers, executor = waiting()
    executor.finish()
    batch = new("w", prompt(100), **{"max_total": 23, **terms})
    for _ in range(4):
        if managers.prepare_resources(batch).all():
            break
        managers.moves()
        managers.skip_step()
        arrive(managers, executor)
    sequence = managers.sequence("w")
    assert {name: sequence[name] for name in expected} == expected
    managers.moves()
    managers.update_resources(batch, [[7]])
    managers.free_resources("w")
    arrive(managers, executor)
    managers.ledger.validate()
    assert managers.ledger.stats()["classes"][0]["live"] == 0


def test_after_a_reset_nothing_old_reaches_a_request_that_waited() -> None:
    """New weights: it has not run, so nothing of the old ones may be under it."""
    managers, executor = waiting()
    managers.reset_reuse_state(detach_live=True)
    arrive(managers, executor)
    assert managers.prepare_resources(ask("w", prompt(100))).all(), managers.refusals
    assert managers.hit_lengths(["w"]).tolist() == [0]
    managers.ledger.validate()


def test_a_preempted_request_that_is_freed_while_it_waits_does_not_come_back() -> None:
    managers, executor = waiting()
    arrive(managers, executor)
    assert managers.prepare_resources(ask("w", prompt(100))).all()
    managers.moves()
    managers.update_resources(ask("w", prompt(100)), [[7]])
    managers.preempt(["w"])
    for number, start in enumerate((400, 500, 600)):
        serve(managers, f"x{number}", prompt(start), fill=False)
        arrive(managers, executor)
    assert not managers.prepare_resources(ask("w", prompt(100))).any()
    assert managers.refusals["w"].reason == "loading"
    managers.moves()
    managers.skip_step()
    managers.free_resources("w")
    arrive(managers, executor)
    with pytest.raises(RequestError, match="'w' is not open"):
        managers.free_resources("w")
    serve(managers, "w", prompt(700), fill=False)
    assert (managers.stats().preempted, managers.stats().readmitted) == (1, 0)


def suspended() -> tuple[Managers, SlowExecutor]:
    """Return managers with two suspended requests of 9 tokens whose blocks are on the host."""
    managers, executor = slow()
    for request_id, start in (("a", 700), ("b", 800)):
        batch = ask(request_id, prompt(start, 9))
        assert managers.prepare_resources(batch).all()
        managers.moves()
        managers.update_resources(batch, [[7]])
    managers.suspend(["a", "b"])
    for number, start in enumerate((400, 500, 600)):
        serve(managers, f"x{number}", prompt(start), fill=False)
        arrive(managers, executor)
    return managers, executor


@pytest.mark.parametrize("lens", [[0, 4], [4, 0], [-1, 4], [4, -(2**31)]])
@pytest.mark.parametrize("arrived", [False, True])
def test_a_chunk_that_cannot_run_resumes_nobody(lens: list[int], arrived: bool) -> None:
    managers, executor = suspended()
    managers.prepare_resources(Batch([]))
    assert managers.resume(["a"], [4]).tolist() == [False]
    managers.moves()
    managers.skip_step()
    if arrived:
        arrive(managers, executor)
    managers.prepare_resources(Batch([]))
    before = managers.ledger.digest()
    with pytest.raises(BatchError, match=r"chunk_lens of request '[ab]' is .*, must be at least 1"):
        managers.resume(["a", "b"], lens)
    assert managers.ledger.digest() == before
    left = ["a", "b"]
    while left:
        resumed = managers.resume(left, [4] * len(left))
        left = [name for name, runs in zip(left, resumed.tolist(), strict=True) if not runs]
        managers.moves()
        managers.skip_step()
        arrive(managers, executor)
        managers.prepare_resources(Batch([]))
    sequences = [managers.sequence(name) for name in ("a", "b")]
    assert [item["suspended"] for item in sequences] == [False, False]
    assert [item["history"] for item in sequences] == [8, 8]


@pytest.mark.parametrize("arrived", [False, True])
@pytest.mark.parametrize("call", ["decode", "mixed", "fork"])
def test_a_request_runs_only_when_it_was_resumed(call: str, arrived: bool) -> None:
    """Its blocks are there, but the rest of what it knows has to run before it decodes."""
    managers, executor = suspended()
    managers.prepare_resources(Batch([]))
    assert managers.resume(["a"], [4]).tolist() == [False]
    managers.moves()
    managers.skip_step()
    if arrived:
        arrive(managers, executor)
    step = managers.begin_step()
    before = managers.ledger.digest()
    mixed = Batch(["a", "n"], chunk_lens=[0, 2], prompts=[[], [1, 2]], max_total_tokens=[0, 4])
    calls = {
        "decode": lambda: managers.prepare_resources(decode(["a"]), step),
        "mixed": lambda: managers.prepare_resources(mixed, step),
        "fork": lambda: managers.fork("a", ["c"], step),
    }
    with pytest.raises(RequestError, match="'a' is not resumed yet") as raised:
        calls[call]()
    assert raised.value.request_ids == ("a",)
    assert managers.ledger.digest() == before
    arrive(managers, executor)
    assert managers.resume(["a"], [4], step).tolist() == [True]
    assert managers.sequence("a")["outstanding"] == [(step, 2)]


def test_there_are_tiers_also_while_nobody_waits() -> None:
    managers, _ = slow()
    assert managers.tiers is not None
    assert len(managers.tiers) == 0
    assert bool(managers.tiers)

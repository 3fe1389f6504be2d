"""Steps that overlap, are skipped, lose their requests, or run on several ranks and threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
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
    small_plan,
)

from tandemkv.errors import LedgerError, RequestError, StepError
from tandemkv.managers import Batch, Managers, build_managers

PROMPT = list(range(100, 110))  # 10 tokens


# --- overlapped steps --------------------------------------------------------------------------


def test_a_step_is_scheduled_while_the_one_before_runs() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    batch = decode(["a"], 4)
    first = managers.begin_step()
    assert managers.prepare_resources(batch, first).all()
    second = managers.begin_step()
    assert managers.prepare_resources(batch, second).all()
    # Both steps may write all they run: 10 + 5 + 5 + 3 tokens.
    assert managers.sequence("a")["capacity"] == -(-23 // TPB) * TPB

    with pytest.raises(LedgerError, match="oldest step"):
        managers.update_resources(batch, [[7, 7]], second)
    managers.complete_step(first)
    managers.update_resources(batch, [[2, 3]], first)
    assert managers.sequence("a")["history"] == 12
    assert managers.sequence("a")["capacity"] == -(-(12 + 5 + 3) // TPB) * TPB
    managers.update_resources(batch, [[4]], second)  # before the step completes: also fine
    managers.complete_step(second)
    assert managers.sequence("a")["known"] == 14
    with pytest.raises(StepError, match=f"step {second} has nothing prepared"):
        managers.update_resources(batch, [[4]], second)
    managers.free_resources("a")
    assert_drained(managers)


def test_a_step_may_be_prepared_and_updated_in_parts() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    step = managers.begin_step()
    assert managers.prepare_resources(decode(["a"]), step).all()
    assert managers.prepare_resources(new("b", [5, 6]), step).all()
    with pytest.raises(RequestError, match="'c' is not prepared in step"):
        managers.update_resources(decode(["c"]), [[1]], step)
    managers.update_resources(new("b", [5, 6]), [[7]], step)
    managers.update_resources(decode(["a"]), [[2]], step)
    managers.complete_step(step)
    assert managers.sequence("a")["known"] == 12
    assert managers.sequence("b")["known"] == 3


def test_freed_pages_wait_for_the_steps_that_may_touch_them() -> None:
    managers = small_managers(reuse=False)
    run(managers, new("a", PROMPT), [[1]])
    first, second = managers.begin_step(), managers.begin_step()
    managers.free_resources("a")
    assert pages(managers)["fenced"] == 4
    managers.complete_step(second)
    assert pages(managers)["fenced"] == 4
    managers.complete_step(first)
    assert pages(managers)["fenced"] == 0
    assert_drained(managers)


def test_only_one_step_is_begun_for_the_caller_at_a_time() -> None:
    managers = small_managers()
    batch = new("a", PROMPT)
    managers.prepare_resources(batch)
    step = managers.step
    with pytest.raises(StepError, match=f"step {step} is prepared and not updated"):
        managers.prepare_resources(decode(["a"]))
    managers.complete_step(step or 0)  # the caller may complete it as well
    assert managers.step is None
    managers.update_resources(batch, [[1]], step)
    run(managers, decode(["a"]), [[2]])


def test_a_step_in_which_nothing_runs_is_updated_like_any_other() -> None:
    managers = small_managers(num_pages=5, draft=False)
    run(managers, new("a", [1] * 16, max_total=16), [[]])
    batch = new("b", [2] * 4, max_total=4)
    assert not managers.prepare_resources(batch).any()
    managers.update_resources(batch, [[]])
    assert managers.prepare_resources(Batch([])).tolist() == []
    managers.update_resources(Batch([]), [])
    managers.free_resources("a")
    assert_drained(managers)


def test_the_clock_of_the_engine_goes_on() -> None:
    managers = small_managers()
    managers.complete_step(managers.begin_step(12.5))
    run(managers, new("a", PROMPT), [[1]])  # begins a step at 12.5
    assert managers.add_dummy_requests(["pad"], [1]) == ["pad"]
    with pytest.raises(LedgerError, match=r"now is 12, must be .* not below 12.5"):
        managers.begin_step(12.0)
    managers.complete_step(managers.begin_step(13.0))


# --- steps that do not run ---------------------------------------------------------------------


def test_skipped_steps_leave_lengths_and_pages_as_they_were() -> None:
    # TensorRT-LLM#13104: capacity grew with every skipped step until the row overflowed.
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    run(managers, new("b", [3] * 12, chunk=5), [[]])
    mixed = Batch(["a", "b"], chunk_lens=[0, 7], draft_lens=[4, 0])
    # What is promised to the rest of a prompt shrinks when a chunk has taken it, for good.
    assert managers.prepare_resources(mixed).all()
    managers.skip_step()
    before = {name: managers.sequence(name) for name in ("a", "b")}
    assert [before[name]["history"] for name in ("a", "b")] == [10, 5]
    held = pages(managers)
    for _ in range(200):
        assert managers.prepare_resources(mixed).all()
        managers.skip_step()
        assert {name: managers.sequence(name) for name in ("a", "b")} == before
        assert pages(managers) == held
    run(managers, mixed, [[2, 3], [4]])
    assert [managers.sequence(name)["known"] for name in ("a", "b")] == [13, 13]


def test_a_request_admitted_for_a_skipped_step_starts_over() -> None:
    managers = small_managers()
    run(managers, new("a", PROMPT), [[1]])
    managers.prepare_resources(new("b", [*PROMPT, 5]))
    managers.moves()
    managers.skip_step()
    assert managers.sequence("b")["history"] == managers.hit_lengths(["b"])[0] == 8
    run(managers, chunk("b", 3), [[6]])
    assert managers.sequence("b")["known"] == 12


def test_one_of_two_overlapped_steps_is_skipped() -> None:
    managers = small_managers()
    run(managers, new("a", [3] * 12, chunk=4), [[]])
    first, second = managers.begin_step(), managers.begin_step()
    managers.prepare_resources(chunk("a", 3), first)
    managers.prepare_resources(chunk("a", 3), second)
    with pytest.raises(LedgerError, match="oldest step"):
        managers.skip_step(second)
    managers.update_resources(chunk("a", 3), [[]], first)
    managers.skip_step(second)
    managers.complete_step(first)
    managers.complete_step(second)
    assert managers.sequence("a")["history"] == 7
    run(managers, chunk("a", 5), [[1]])


# --- aborts ------------------------------------------------------------------------------------


def _steps_of_a_request() -> list[tuple[Batch, list[list[int]]]]:
    """Return a prompt of 10 tokens in three chunks, then two speculative steps."""
    return [
        (new("a", PROMPT, chunk=4), [[]]),
        (chunk("a", 4), [[]]),
        (chunk("a", 2), [[1]]),
        (decode(["a"], 4), [[2, 3]]),
        (decode(["a"], 4), [[4]]),
    ]


@pytest.mark.parametrize("point", ["before", "during", "after"])
@pytest.mark.parametrize("aborted", range(5))
@pytest.mark.parametrize("publish", [True, False])
def test_an_abort_at_any_point_frees_once_and_leaves_nothing(
    aborted: int, point: str, publish: bool
) -> None:
    managers = small_managers()
    run(managers, new("other", [1, 2, 3]), [[4]])
    for number, (batch, accepted) in enumerate(_steps_of_a_request()):
        if number == aborted and point == "before" and number > 0:
            managers.free_resources("a", publish)
            break
        assert managers.prepare_resources(batch).all()
        if number == aborted and point == "during":
            managers.free_resources("a", publish)
            managers.update_resources(batch, accepted)  # the result comes all the same
            break
        managers.update_resources(batch, accepted)
        if number == aborted and point == "after":
            managers.free_resources("a", publish)
            break
    if "a" in managers.request_ids:
        assert (aborted, point) == (0, "before")
        managers.free_resources("a", publish)
    with pytest.raises(RequestError, match="'a' is not open"):
        managers.free_resources("a")
    managers.ledger.validate()
    managers.free_resources("other")
    assert_drained(managers)


@pytest.mark.parametrize("freed_before", ["first", "second"])
def test_an_abort_between_overlapped_chunks(freed_before: str) -> None:
    # sglang#36926: a cancel between overlapped chunks lost the owner of 16,384 tokens.
    managers = small_managers()
    first, second = managers.begin_step(), managers.begin_step()
    one, two = new("a", PROMPT, chunk=4), chunk("a", 6)
    managers.prepare_resources(one, first)
    managers.prepare_resources(two, second)
    if freed_before == "first":
        managers.free_resources("a")
    managers.complete_step(first)
    managers.update_resources(one, [[]], first)
    if freed_before == "second":
        managers.free_resources("a")
    managers.complete_step(second)
    managers.update_resources(two, [[1]], second)
    assert_drained(managers)


def test_a_request_that_comes_back_under_its_id_gets_no_old_results() -> None:
    managers = small_managers()
    first = managers.begin_step()
    old = new("a", PROMPT)
    managers.prepare_resources(old, first)
    managers.free_resources("a")
    second = managers.begin_step()
    again = new("a", [5, 6, 7])
    managers.prepare_resources(again, second)
    managers.complete_step(first)
    managers.update_resources(old, [[99]], first)  # of the request that is gone
    assert managers.sequence("a")["known"] == 3
    managers.complete_step(second)
    managers.update_resources(again, [[8]], second)
    assert managers.sequence("a")["known"] == 4
    managers.free_resources("a")
    assert_drained(managers)


def test_some_requests_of_a_step_are_freed_before_its_result() -> None:
    managers = small_managers()
    for request_id in ("a", "b", "c"):
        run(managers, new(request_id, [*PROMPT, ord(request_id)]), [[1]])
    batch = decode(["a", "b", "c"], 2)
    managers.prepare_resources(batch)
    managers.free_resources("b")
    managers.update_resources(
        batch, (np.array([[1, 2], [3, 4], [5, 6]]), np.array([2, 2, 1], np.int32))
    )
    assert managers.sequence("a")["known"] == 14
    assert managers.sequence("c")["known"] == 13
    managers.free_many(["a", "c"])
    assert_drained(managers)


def test_steps_whose_requests_are_all_gone_are_forgotten() -> None:
    managers = small_managers()
    abandoned = []
    for number in range(50):
        step = managers.begin_step()
        managers.prepare_resources(new("a", [number + 1]), step)
        managers.free_resources("a")
        managers.complete_step(step)
        abandoned.append(step)
    step = managers.begin_step()
    managers.prepare_resources(new("a", PROMPT), step)
    managers.complete_step(step)
    managers.update_resources(new("a", PROMPT), [[1]], step)
    for old in abandoned:
        with pytest.raises(StepError, match="nothing prepared"):
            managers.update_resources(Batch([]), [], old)


# --- ranks -------------------------------------------------------------------------------------


def test_a_rank_without_draft_layers_decides_like_the_others() -> None:
    plan = small_plan(33, pp_size=2)
    ranks = [build_managers(plan, rank) for rank in (0, 1)]
    assert ranks[0].draft is None
    assert ranks[1].draft is not None
    assert ranks[1].draft.device_bytes > 0
    assert ranks[0].target.num_pages == ranks[1].draft.num_pages
    assert [view.role for view in ranks[0].views] == ["target"]
    assert set(ranks[0].stats().role_bytes) == {"target"}
    drive = [Drive(managers, seed=5) for managers in ranks]
    for _ in range(150):
        assert drive[0].step() == drive[1].step()
        assert ranks[0].ledger.digest() == ranks[1].ledger.digest()
    for managers in ranks:
        managers.free_many(managers.request_ids)
        assert_drained(managers)


# --- many random steps -------------------------------------------------------------------------


class Drive:
    """A scheduler that makes random, valid decisions and checks every length on the way.

    It knows each request's tokens and how many of them are written, nothing about pages.
    """

    def __init__(self, managers: Managers, seed: int) -> None:
        self.managers = managers
        self.random = random.Random(seed)
        self.tokens: dict[str, list[int]] = {}
        self.prompt_lens: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.started = 0

    def _waiting(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _ in range(self.random.randrange(3)):
            stem = [self.random.randrange(2)] * self.random.randrange(1, 20)
            tail = [self.random.randrange(9) for _ in range(self.random.randrange(1, 6))]
            found[f"request {self.started}"] = stem + tail
            self.started += 1
        return found

    def step(self) -> list[Any]:
        """Run one step; return the ids and what was granted and hit."""
        choose, managers = self.random, self.managers
        for name in [name for name in self.tokens if choose.random() < 0.08]:
            managers.free_resources(name, choose.random() < 0.7)
            self.forget(name)
        waiting = self._waiting()
        names = [*self.tokens, *waiting]
        choose.shuffle(names)
        chunks, drafts = [], []
        for name in names:
            if name in waiting:
                left = len(waiting[name])
            else:
                left = self.prompt_lens[name] - self.written[name]
            chunks.append(choose.randrange(1, left + 1) if left > 0 else 0)
            drafts.append(choose.randrange(5) if left <= 0 else 0)
        batch = Batch(
            names,
            chunk_lens=chunks,
            draft_lens=drafts,
            prompts=[waiting.get(name, []) for name in names],
            max_total_tokens=[50 if name in waiting else 0 for name in names],
        )
        granted = managers.prepare_resources(batch).tolist()
        managers.run_moves()
        admitted = [n for n, ok in zip(names, granted, strict=True) if ok and n in waiting]
        hits = dict(zip(admitted, managers.hit_lengths(admitted).tolist(), strict=True))
        if choose.random() < 0.1:
            managers.skip_step()
            for name in admitted:
                self.remember(name, waiting[name], hits[name])
            return [names, granted, hits]
        accepted: list[list[int]] = []
        for name, ok, width, draft in zip(names, granted, chunks, drafts, strict=True):
            if ok and name in waiting:
                self.remember(name, waiting[name], hits[name])
            accepted.append(self.result(name, width, draft) if ok else [])
        for name in [n for n in self.tokens if choose.random() < 0.03]:
            managers.free_resources(name)
            self.forget(name)
        managers.update_resources(batch, accepted)
        self.check()
        return [names, granted, hits]

    def remember(self, name: str, prompt: list[int], hit: int) -> None:
        self.tokens[name] = list(prompt)
        self.prompt_lens[name] = len(prompt)
        self.written[name] = hit

    def forget(self, name: str) -> None:
        for known in (self.tokens, self.prompt_lens, self.written):
            del known[name]

    def result(self, name: str, chunk_len: int, draft_len: int) -> list[int]:
        if chunk_len:
            self.written[name] = min(self.written[name] + chunk_len, self.prompt_lens[name])
            count = int(self.written[name] == self.prompt_lens[name])
        else:
            count = self.random.randrange(1, draft_len + 2)
            count = min(count, 50 - len(self.tokens[name]))
            self.written[name] += count
        new_tokens = [self.random.randrange(9) for _ in range(count)]
        self.tokens[name] += new_tokens
        return new_tokens

    def check(self) -> None:
        self.managers.ledger.validate()
        for name in [name for name, tokens in self.tokens.items() if len(tokens) >= 45]:
            self.managers.free_resources(name)
            self.forget(name)
        assert set(self.managers.request_ids) == set(self.tokens)
        for name, tokens in self.tokens.items():
            state = self.managers.sequence(name)
            assert state["known"] == len(tokens)
            assert state["history"] == self.written[name]
            assert state["capacity"] >= state["history"]
            assert state["outstanding"] == []
        states = pages(self.managers)
        parts = ("free", "fenced", "live", "cached", "reserved")
        assert sum(states[part] for part in parts) == states["total"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_pages", [17, 60])
def test_random_steps_keep_every_length_and_leave_nothing(seed: int, num_pages: int) -> None:
    managers = small_managers(num_pages, max_batch_size=6)
    drive = Drive(managers, seed)
    for _ in range(120):
        drive.step()
    stats = managers.stats().ledger
    for counter in ("admitted", "hit_tokens", "rewound_tokens", "accepted_tokens"):
        assert stats[counter] > 0, counter
    if num_pages == 17:
        assert stats["refused_now"] > 0
        assert stats["evicted_blocks"] > 0
    managers.free_many(managers.request_ids)
    assert_drained(managers)


# --- threads -----------------------------------------------------------------------------------


def test_calls_from_several_threads_follow_one_another() -> None:
    managers = small_managers(num_pages=200, max_batch_size=8)
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def go() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        return go

    def requests(name: str) -> Callable[[], None]:
        def work() -> None:
            for number in range(60):
                step = managers.begin_step()
                batch = new(name, [number % 7 + 1] * 9)
                assert managers.prepare_resources(batch, step).all()
                managers.moves()
                managers.update_resources(batch, [[1]], step)
                managers.complete_step(step)
                managers.free_resources(name)

        return work

    def reading() -> None:
        for _ in range(200):
            stats = managers.stats()
            assert 0 <= stats.usage[0] <= 1
            managers.block_tables(())

    threads = [threading.Thread(target=guarded(requests(name))) for name in ("a", "b", "c")]
    threads.append(threading.Thread(target=guarded(reading)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert errors == []
    assert_drained(managers)


def test_a_step_that_was_completed_by_its_number_is_updated_by_it() -> None:
    managers = small_managers()
    batch = new("a", range(5))
    managers.prepare_resources(batch)
    managers.complete_step(managers.step)
    with pytest.raises(StepError, match=r"step 1 was completed by complete_step.*step=1"):
        managers.update_resources(batch, [[5]])
    managers.update_resources(batch, [[5]], step=1)
    with pytest.raises(StepError, match="no step is prepared"):
        managers.update_resources(batch, [[5]])


def test_more_tokens_than_a_request_was_admitted_for() -> None:
    managers = small_managers()
    run(managers, new("a", range(5), max_total=6), [[5]])
    batch = decode(["a"], 2)
    managers.prepare_resources(batch)
    message = r"count\[0\] is 2, but that sequence knows 6 tokens of the 6 it was admitted for"
    with pytest.raises(LedgerError, match=message) as caught:
        managers.update_resources(batch, [[5, 6]])
    assert caught.value.code == "beyond_max_total"

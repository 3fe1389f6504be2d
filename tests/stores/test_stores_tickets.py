"""Deadlines, leases, queues and closing, with a clock and an executor that the tests drive."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from store_faults import (
    LAYOUT,
    FakeClock,
    FaultyBackend,
    ManualExecutor,
    faulty_store,
    keys,
    payloads,
    put_all,
    read,
)

from tandemkv.stores import Outcome, QueuedStore, ThreadExecutor, Ticket


class Bench:
    """A store with one value, whose calls run when a test says so."""

    def __init__(self, **options: object) -> None:
        self.backend, self.clock, self.executor = FaultyBackend(), FakeClock(), ManualExecutor()
        self.store = faulty_store(self.backend, self.executor, self.clock, **options)
        put = self.store.put(LAYOUT, keys("a"), payloads(1), timeout_s=1)
        self.executor.run()
        assert put.poll().all()
        self.out = np.full((1, 1000), 0xEE, np.uint8)

    def get(self, timeout_s: float = 1.0):
        return self.store.get(LAYOUT, keys("a"), self.out, timeout_s=timeout_s)

    def pass_in_call(self, seconds: float) -> None:
        """Let time pass whenever the backend is called."""

        def pass_time() -> None:
            self.clock.now += seconds

        self.backend.before = pass_time

    def untouched(self) -> bool:
        return bool((self.out == 0xEE).all())


def test_a_ticket_is_polled_until_it_is_done():
    bench = Bench()
    ticket = bench.get()
    assert ticket.poll() is None
    assert ticket.outcomes.tolist() == [Outcome.PENDING]
    assert bench.store.stats().outcomes["get"] == {"pending": 1}
    bench.executor.run()
    assert ticket.poll().tolist() == [True]
    assert bench.store.stats().outcomes["get"] == {"ok": 1}
    # It stays done, however late it is asked.
    bench.clock.now += 1000
    assert ticket.poll().tolist() == ticket.wait().tolist() == [True]
    assert len(ticket) == 1


def test_no_answer_until_the_deadline_is_a_miss_and_a_later_one_touches_nothing():
    bench = Bench()
    ticket = bench.get(timeout_s=2.0)
    bench.clock.now += 2.0
    assert ticket.poll() is None
    bench.clock.now += 0.1
    assert ticket.poll().tolist() == [False]
    assert ticket.outcomes.tolist() == [Outcome.TIMED_OUT]
    bench.executor.run()
    assert bench.untouched()
    # A call whose ticket is done is not made at all.
    assert bench.backend.calls == [("put", 1)]
    assert bench.store.stats().outcomes["get"] == {"timed_out": 1}


def test_a_ticket_that_expires_while_its_call_runs_is_done_with_it():
    bench = Bench()
    ticket = bench.get(timeout_s=2.0)
    bench.pass_in_call(3.0)
    polled = []
    passing = bench.backend.before
    bench.backend.before = lambda: (passing(), polled.append(ticket.poll().tolist()))
    bench.executor.run()
    assert polled == [[False]]
    assert ticket.outcomes.tolist() == [Outcome.TIMED_OUT]
    assert bench.untouched()


def test_a_read_that_ends_after_its_lease_is_rejected():
    # Mooncake#850, #3076: a lease of 30 s, a read that was done at 31 s.
    for seconds, outcome in ((30.0, Outcome.OK), (31.0, Outcome.LATE)):
        bench = Bench()
        bench.backend.lease_s = 30.0
        bench.pass_in_call(seconds)
        ticket = bench.get(timeout_s=60.0)
        bench.executor.run()
        assert ticket.outcomes.tolist() == [outcome]
        assert ticket.poll().tolist() == [outcome == Outcome.OK]
        # What a late read found says nothing about the value.
        assert bench.store.stats().dropped == 0


def test_what_a_late_read_found_broken_is_not_dropped():
    bench = Bench()
    bench.backend.lease_s = 30.0
    bench.backend.edits[LAYOUT.name(keys("a")[0].tobytes())] = np.zeros_like
    bench.pass_in_call(31.0)
    ticket = bench.get(timeout_s=60.0)
    bench.executor.run()
    assert ticket.outcomes.tolist() == [Outcome.LATE]
    assert bench.store.stats().dropped == 0
    bench.backend.before = lambda: None
    bench.backend.edits.clear()
    ticket = bench.get()
    bench.executor.run()
    assert ticket.poll().all()


def test_a_copy_that_ends_after_the_deadline_is_rejected():
    clock, recorded = FakeClock(), []
    ticket = Ticket(1, deadline=102.0, clock=clock, record=recorded.append)
    assert ticket.begin_write()
    clock.now = 103.0
    # While it is copied nobody may think that the memory is free again.
    assert ticket.poll() is None
    ticket.cancel()
    assert ticket.poll() is None
    ticket.settle(slice(0, 1), np.array([Outcome.OK], np.uint8), in_time=True)
    assert ticket.poll().tolist() == [False]
    assert ticket.outcomes.tolist() == [Outcome.LATE]
    assert [item.tolist() for item in recorded] == [[Outcome.LATE]]


def test_parts_that_came_in_time_count():
    backend, clock, executor = FaultyBackend(), FakeClock(), ManualExecutor()
    store = faulty_store(backend, executor, clock, batch_values=2)
    store.put(LAYOUT, keys(*range(6)), payloads(*range(6)), timeout_s=1)
    executor.run()
    out = np.zeros((6, 1000), np.uint8)
    ticket = store.get(LAYOUT, keys(*range(6)), out, timeout_s=5.0)

    def pass_time() -> None:
        clock.now += 3.0

    backend.before = pass_time
    executor.run()
    assert ticket.poll().tolist() == [True, True, False, False, False, False]
    assert np.array_equal(out[:2], payloads(0, 1))
    assert not out[2:].any()
    assert store.stats().outcomes["get"] == {"ok": 2, "timed_out": 4}
    assert backend.calls[3:] == [("get", 2), ("get", 2)]


def test_a_put_may_be_stored_though_its_ticket_timed_out():
    bench = Bench()
    ticket = bench.store.put(LAYOUT, keys("b"), payloads(2), timeout_s=1.0)
    seen = []

    def pass_time() -> None:
        bench.clock.now += 2.0
        seen.append(ticket.poll())

    bench.backend.before = pass_time
    bench.executor.run()
    assert seen[0].tolist() == ticket.poll().tolist() == [False]
    assert ticket.outcomes.tolist() == [Outcome.TIMED_OUT]
    bench.backend.before = lambda: None
    found = bench.store.exists(LAYOUT, keys("b"), timeout_s=1.0)
    bench.executor.run()
    assert found.poll().all()


def test_a_cancelled_ticket_is_done_and_its_call_is_not_made():
    bench = Bench()
    ticket = bench.get()
    ticket.cancel()
    assert ticket.poll().tolist() == [False]
    bench.executor.run()
    assert bench.untouched()
    assert bench.backend.calls == [("put", 1)]
    assert bench.store.stats().outcomes["get"] == {"cancelled": 1}
    ticket.cancel()
    assert bench.store.stats().outcomes["get"] == {"cancelled": 1}


def test_tickets_of_one_key_are_independent():
    # vllm#46014: a request came back while the transfers of its first life were under way.
    bench = Bench()
    first = bench.get(timeout_s=1.0)
    bench.clock.now += 2.0
    again = np.zeros((1, 1000), np.uint8)
    second = bench.store.get(LAYOUT, keys("a"), again, timeout_s=1.0)
    assert first.poll().tolist() == [False]
    bench.executor.run(1)
    bench.executor.run(0)
    assert second.poll().tolist() == [True]
    assert np.array_equal(again, payloads(1))
    assert bench.untouched()


def test_timeouts_suspend_a_store_though_its_calls_hang():
    bench = Bench(max_failures=2, retry_after_s=10.0)
    for _ in range(2):
        ticket = bench.get(timeout_s=1.0)
        bench.clock.now += 1.5
        assert ticket.poll().tolist() == [False]
    assert bench.store.stats().suspended
    assert bench.get().outcomes.tolist() == [Outcome.BUSY]
    assert len(bench.executor.jobs) == 2


def test_full_queues_are_busy():
    bench = Bench(max_pending_bytes=2 * 1128)
    bench.executor.room = 2
    first = bench.store.put(LAYOUT, keys("b", "c"), payloads(2, 3), timeout_s=1)
    assert first.poll() is None
    more = bench.store.put(LAYOUT, keys("d"), payloads(4), timeout_s=1)
    assert more.outcomes.tolist() == [Outcome.BUSY]
    assert bench.get().poll() is None
    assert bench.get().outcomes.tolist() == [Outcome.BUSY]  # the third job
    while bench.executor.jobs:
        bench.executor.run()
    assert first.poll().all()
    again = bench.store.put(LAYOUT, keys("d", "e"), payloads(4, 5), timeout_s=1)
    bench.executor.run()
    assert again.poll().all()
    assert bench.store.stats().outcomes["put"] == {"ok": 5, "busy": 1}


def test_memory_of_a_hanging_put_stays_counted():
    bench = Bench(max_pending_bytes=1128)
    ticket = bench.store.put(LAYOUT, keys("b"), payloads(2), timeout_s=1)
    bench.clock.now += 2
    assert ticket.poll() is not None
    refused = bench.store.put(LAYOUT, keys("c"), payloads(3), timeout_s=1)
    assert refused.outcomes.tolist() == [Outcome.BUSY]
    bench.executor.run()
    taken = bench.store.put(LAYOUT, keys("c"), payloads(3), timeout_s=1)
    bench.executor.run()
    assert taken.poll().all()


def test_close_cancels_what_waits_and_later_calls_are_busy():
    bench = Bench()
    ticket = bench.get()
    assert bench.store.close()
    assert ticket.outcomes.tolist() == [Outcome.CANCELLED]
    assert bench.backend.closed
    assert bench.get().outcomes.tolist() == [Outcome.BUSY]
    assert bench.store.put(LAYOUT, keys("b"), payloads(2), timeout_s=1).outcomes == [Outcome.BUSY]
    assert bench.store.close()
    assert bench.untouched()


def test_calls_without_keys_are_done_at_once():
    bench = Bench()
    none = keys("a")[:0]
    for ticket in (
        bench.store.put(LAYOUT, none, payloads(), timeout_s=1),
        bench.store.get(LAYOUT, none, bench.out[:0], timeout_s=1),
        bench.store.exists(LAYOUT, none, timeout_s=1),
    ):
        assert ticket.poll().shape == (0,)
    assert not bench.executor.jobs


@pytest.mark.parametrize("num_threads", [1, 4])
def test_threads_read_what_threads_stored(num_threads: int):
    backend = FaultyBackend(1 << 24)
    store = QueuedStore(backend, ThreadExecutor(num_threads, 10_000), batch_values=2)
    puts = [
        store.put(LAYOUT, keys(*range(n, n + 5)), payloads(*range(n, n + 5)), timeout_s=60)
        for n in range(0, 200, 5)
    ]
    assert all(ticket.wait().all() for ticket in puts)
    outs = [np.zeros((5, 1000), np.uint8) for _ in puts]
    gets = [
        store.get(LAYOUT, keys(*range(n, n + 5)), out, timeout_s=60)
        for n, out in zip(range(0, 200, 5), outs, strict=True)
    ]
    assert all(ticket.wait().all() for ticket in gets)
    assert np.array_equal(np.concatenate(outs), payloads(*range(200)))
    assert store.close(60)
    assert store.stats().outcomes == {"put": {"ok": 200}, "get": {"ok": 200}, "exists": {}}


def test_a_hanging_call_does_not_keep_close_or_wait_from_ending():
    backend, hang, entered = FaultyBackend(), threading.Event(), threading.Event()
    store = QueuedStore(backend, ThreadExecutor(1, 10))
    put_ticket = store.put(LAYOUT, keys("a"), payloads(1), timeout_s=60)
    assert put_ticket.wait().all()

    def wait() -> None:
        entered.set()
        hang.wait()

    backend.before = wait
    out = np.full((1, 1000), 0xEE, np.uint8)
    ticket = store.get(LAYOUT, keys("a"), out, timeout_s=0.01)
    assert ticket.wait().tolist() == [False]
    assert ticket.outcomes.tolist() == [Outcome.TIMED_OUT]
    queued = store.get(LAYOUT, keys("a"), out, timeout_s=60)
    entered.wait()
    assert store.close(0.01) is False
    assert queued.outcomes.tolist() == [Outcome.CANCELLED]
    hang.set()
    for thread in threading.enumerate():
        if thread.name.startswith("tandemkv-store"):
            thread.join()
    assert backend.closed
    assert (out == 0xEE).all()


def test_reads_and_puts_of_one_store_agree():
    store = faulty_store(FaultyBackend())
    put_all(store, LAYOUT, ["a"], [1])
    put_all(store, LAYOUT, ["a"], [2])  # there already: it stays
    assert np.array_equal(read(store, LAYOUT, "a", "a")[1], payloads(1, 1))
    assert store.stats().stored_bytes == 2000
    assert store.stats().loaded_bytes == 2000

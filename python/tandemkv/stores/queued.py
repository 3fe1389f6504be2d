"""Turns the blocking calls of a store into tickets: queue, deadlines, checks and counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np

from tandemkv.errors import ArrayError
from tandemkv.stores.breaker import Breaker
from tandemkv.stores.executors import Executor
from tandemkv.stores.outcomes import ANSWERS, INVALID, TROUBLE, Outcome
from tandemkv.stores.protocol import Fill, StoreBackend
from tandemkv.stores.statistics import Counters, StoreStats
from tandemkv.stores.tickets import Outcomes, Ticket
from tandemkv.stores.values import HEADER_BYTES, KEY_BYTES, Bytes, ValueLayout, check_timeout

Call = Literal["put", "get", "exists"]
_T = TypeVar("_T")


class QueuedStore:
    """An `OuterStore` on a `StoreBackend`.

    Args:
        backend: the blocking calls.
        executor: where they run.
        batch_values: values per call of the backend, >= 1; deadlines are looked at in between.
        max_pending_bytes: bytes of values that are on their way to the store, copies of the
            caller's; puts beyond are `BUSY`.
        max_failures: failed calls in a row after which the store is left alone.
        retry_after_s: for how many seconds; calls are `BUSY` meanwhile.
        clock: seconds, monotonic; deadlines are by it.
    """

    def __init__(
        self,
        backend: StoreBackend,
        executor: Executor,
        *,
        batch_values: int = 32,
        max_pending_bytes: int = 1 << 30,
        max_failures: int = 3,
        retry_after_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._executor = executor
        self._batch_values = batch_values
        self._max_pending_bytes = max_pending_bytes
        self._clock = clock
        self._breaker = Breaker(max_failures, retry_after_s, clock)
        self._counters = Counters()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._open: set[Ticket] = set()
        self._closed = False
        self._ended = False

    @property
    def probe_extends_lease(self) -> bool:
        """See `OuterStore.probe_extends_lease`."""
        return self._backend.probe_extends_lease

    def put(
        self, layout: ValueLayout, keys: Bytes, payloads: Bytes | Fill, *, timeout_s: float
    ) -> Ticket:
        """See `OuterStore.put`."""
        names = _read_keys(keys)
        if not callable(payloads):
            _check_rows("payloads", payloads, len(names), layout)
        ticket = self._ticket("put", layout, len(names), timeout_s)
        num_bytes = len(names) * layout.value_bytes
        if not self._reserve(ticket, num_bytes):
            return ticket
        values = np.empty((len(names), layout.value_bytes), np.uint8)
        try:
            if callable(payloads):
                payloads(values[:, HEADER_BYTES:])
            else:
                values[:, HEADER_BYTES:] = payloads
        except BaseException:
            ticket.cancel()
            self._forget(ticket, num_bytes)
            raise

        def work(part: slice) -> None:
            for key, value in zip(names[part], values[part], strict=True):
                layout.seal(value, key)
            answer = self._ask(
                lambda: self._backend.put(_named(layout, names[part]), list(values[part])),
                len(names[part]),
            )
            ticket.settle(part, _outcomes(answer))

        self._submit(ticket, work, num_bytes)
        return ticket

    def get(self, layout: ValueLayout, keys: Bytes, out: Bytes, *, timeout_s: float) -> Ticket:
        """See `OuterStore.get`."""
        names = _read_keys(keys)
        _check_rows("out", out, len(names), layout)
        if not out.flags.writeable or (out.shape[0] and not out[0].flags.c_contiguous):
            raise ArrayError("out", "it must be writable, each row in one piece")
        ticket = self._ticket("get", layout, len(names), timeout_s)

        def work(part: slice) -> None:
            started = self._clock()
            found = self._ask(
                lambda: self._backend.get(_named(layout, names[part]), layout.value_bytes),
                len(names[part]),
            )
            if not ticket.begin_write():
                return
            outcomes = np.array(
                [
                    _why_none(value) if isinstance(value, Outcome) else layout.open(value, key, row)
                    for value, key, row in zip(found, names[part], out[part], strict=True)
                ],
                np.uint8,
            )
            self._judge_late(outcomes, started)
            ticket.settle(part, outcomes, in_time=True)
            invalid = [
                name
                for name, code in zip(_named(layout, names[part]), outcomes, strict=True)
                if code in INVALID
            ]
            self._drop(invalid)

        self._submit(ticket, work, 0)
        return ticket

    def exists(self, layout: ValueLayout, keys: Bytes, *, timeout_s: float) -> Ticket:
        """See `OuterStore.exists`."""
        names = _read_keys(keys)
        ticket = self._ticket("exists", layout, len(names), timeout_s)

        def work(part: slice) -> None:
            answer = self._ask(
                lambda: self._backend.exists(_named(layout, names[part])), len(names[part])
            )
            ticket.settle(part, _outcomes(answer))

        self._submit(ticket, work, 0)
        return ticket

    def stats(self) -> StoreStats:
        """See `OuterStore.stats`."""
        return self._counters.snapshot(
            below=self._backend.errors(), suspended=self._breaker.suspended
        )

    def close(self, timeout_s: float = 10.0) -> bool:
        """See `OuterStore.close`."""
        timeout_s = check_timeout("timeout_s", timeout_s)
        with self._lock:
            if self._closed:
                return self._ended
            self._closed = True
            tickets = list(self._open)
        for ticket in tickets:
            ticket.cancel()
        self._ended = self._executor.close(self._close_backend, timeout_s)
        return self._ended

    # --- calls on their way -------------------------------------------------------------------

    def _ticket(self, call: Call, layout: ValueLayout, num_keys: int, timeout_s: float) -> Ticket:
        deadline = self._clock() + check_timeout("timeout_s", timeout_s)
        count = self._counters.ask(call, num_keys, layout.payload_bytes)

        def record(outcomes: Outcomes) -> None:
            count(outcomes)
            if np.isin(outcomes, ANSWERS).any():
                self._breaker.note(failed=False)
            elif np.isin(outcomes, TROUBLE).any():
                self._breaker.note(failed=True)

        return Ticket(num_keys, deadline=deadline, clock=self._clock, record=record)

    def _reserve(self, ticket: Ticket, num_bytes: int) -> bool:
        with self._lock:
            if self._pending_bytes + num_bytes <= self._max_pending_bytes:
                self._pending_bytes += num_bytes
                return True
        ticket.give_up(Outcome.BUSY)
        return False

    def _submit(self, ticket: Ticket, work: Callable[[slice], None], num_bytes: int) -> None:
        """Queue the work of a ticket, `num_bytes` of which are reserved."""

        def job() -> None:
            try:
                for start in range(0, len(ticket), self._batch_values):
                    if not ticket.is_open():
                        break
                    work(slice(start, min(start + self._batch_values, len(ticket))))
            except Exception as error:
                self._counters.error(type(error).__name__)
            finally:
                ticket.settle(slice(None), np.full(len(ticket), Outcome.FAILED, np.uint8))
                self._forget(ticket, num_bytes)

        with self._lock:
            refused = self._closed
            if not refused:
                self._open.add(ticket)
        if refused or not len(ticket) or self._breaker.suspended or not self._executor.submit(job):
            ticket.give_up(Outcome.BUSY)
            self._forget(ticket, num_bytes)

    def _forget(self, ticket: Ticket, num_bytes: int) -> None:
        with self._lock:
            self._open.discard(ticket)
            self._pending_bytes -= num_bytes

    def _ask(self, call: Callable[[], Sequence[_T]], num_keys: int) -> Sequence[_T | Outcome]:
        """Return what the backend answers; `FAILED` for each key where it does not."""
        try:
            answer = call()
        except Exception as error:
            self._counters.error(type(error).__name__)
        else:
            if len(answer) == num_keys:
                return answer
            self._counters.error(f"{len(answer)} answers for {num_keys} keys")
        return [Outcome.FAILED] * num_keys

    def _judge_late(self, outcomes: Outcomes, started: float) -> None:
        """Reject what was read when the store had stopped to keep its memory for the reader."""
        lease_s = self._backend.lease_s
        if lease_s is not None and self._clock() - started > lease_s:
            outcomes[(outcomes == Outcome.OK) | np.isin(outcomes, INVALID)] = Outcome.LATE

    def _drop(self, names: Sequence[str]) -> None:
        if names:
            try:
                self._counters.drop(self._backend.drop(names))
            except Exception as error:
                self._counters.error(type(error).__name__)

    def _close_backend(self) -> None:
        try:
            self._backend.close()
        except Exception as error:
            self._counters.error(type(error).__name__)


def _named(layout: ValueLayout, keys: Sequence[bytes]) -> list[str]:
    return [layout.name(key) for key in keys]


def _why_none(outcome: Outcome) -> Outcome:
    """Return the outcome of a value without bytes, which is never a hit."""
    return Outcome.FAILED if outcome == Outcome.OK else outcome


def _outcomes(answer: Sequence[Outcome]) -> Outcomes:
    return np.array(answer, np.uint8)


def _read_keys(keys: Bytes) -> list[bytes]:
    if not isinstance(keys, np.ndarray) or keys.dtype != np.uint8:
        found = getattr(keys, "dtype", type(keys).__name__)
        raise ArrayError("keys", f"dtype uint8 is needed, not {found}")
    if keys.ndim != 2 or keys.shape[1] != KEY_BYTES:
        raise ArrayError("keys", f"shape (any, {KEY_BYTES}) is needed, not {keys.shape}")
    return [row.tobytes() for row in keys]


def _check_rows(name: str, rows: Bytes, num_keys: int, layout: ValueLayout) -> None:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8:
        found = getattr(rows, "dtype", type(rows).__name__)
        raise ArrayError(name, f"dtype uint8 is needed, not {found}")
    if rows.shape != (num_keys, layout.payload_bytes):
        raise ArrayError(
            name, f"shape {(num_keys, layout.payload_bytes)} is needed, not {rows.shape}"
        )

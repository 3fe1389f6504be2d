"""Helpers of the stores' tests: keys, payloads, a clock, an executor, and a store that fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from tandemkv.stores import MemoryBackend, Outcome, QueuedStore, ValueLayout
from tandemkv.stores.executors import InlineExecutor, Job

LAYOUT = ValueLayout(hashlib.sha256(b"layout").digest(), 1000)
OTHER_LAYOUT = ValueLayout(hashlib.sha256(b"another rank").digest(), 1000)
SHORT_LAYOUT = ValueLayout(LAYOUT.fingerprint, 999)
VALUE_BYTES = 128 + 1000


def keys(*names: object) -> np.ndarray:
    """Return a key per name, uint8 `[n, 32]`."""
    digests = [hashlib.sha256(repr(name).encode()).digest() for name in names]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def payloads(*seeds: int, num_bytes: int = 1000) -> np.ndarray:
    rows = [np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8) for seed in seeds]
    return np.array(rows, np.uint8).reshape(-1, num_bytes)


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ManualExecutor:
    """Keeps jobs until a test runs them; refuses more than `room`."""

    def __init__(self, room: int = 1000) -> None:
        self.jobs: list[Job] = []
        self.room = room

    def submit(self, job: Job) -> bool:
        if len(self.jobs) >= self.room:
            return False
        self.jobs.append(job)
        return True

    def run(self, index: int = 0) -> None:
        self.jobs.pop(index)()

    def close(self, last: Job, timeout_s: float) -> bool:
        del timeout_s
        while self.jobs:
            self.run()
        last()
        return True


Edit = Callable[[np.ndarray], np.ndarray | Outcome]


class FaultyBackend(MemoryBackend):
    """A store in memory that fails as told: `edits` change what a get returns, by name."""

    def __init__(self, max_bytes: int = 1 << 20, *, evict: bool = True) -> None:
        super().__init__(max_bytes, evict=evict)
        self.edits: dict[str, Edit] = {}
        self.raises: Exception | None = None
        self.before: Callable[[], None] = lambda: None
        self.answers_cut = 0
        self.lease_s: float | None = None
        self.calls: list[tuple[str, int]] = []
        self.counted: dict[str, int] = {}
        self.closed = False

    def _note(self, call: str, names: Sequence[str]) -> None:
        self.calls.append((call, len(names)))
        self.before()
        if self.raises is not None:
            raise self.raises

    def put(self, names, values):
        self._note("put", names)
        return super().put(names, values)[: len(names) - self.answers_cut]

    def get(self, names, value_bytes):
        self._note("get", names)
        found = super().get(names, value_bytes)
        answers = [
            self.edits[name](value)
            if name in self.edits and not isinstance(value, Outcome)
            else value
            for name, value in zip(names, found, strict=True)
        ]
        return answers[: len(names) - self.answers_cut]

    def exists(self, names):
        self._note("exists", names)
        return super().exists(names)[: len(names) - self.answers_cut]

    def errors(self):
        return self.counted

    def close(self):
        self.closed = True
        self._note("close", [])


def faulty_store(
    backend: FaultyBackend, executor=None, clock=None, **options: object
) -> QueuedStore:
    return QueuedStore(backend, executor or InlineExecutor(), clock=clock or FakeClock(), **options)


def put_all(store, layout: ValueLayout, names: Sequence[object], seeds: Sequence[int]) -> None:
    assert store.put(layout, keys(*names), payloads(*seeds), timeout_s=1.0).poll().all()


def read(store, layout: ValueLayout, *names: object) -> tuple[list[Outcome], np.ndarray]:
    """Return the outcomes and the rows of a get that is done at once."""
    out = np.full((len(names), layout.payload_bytes), 0xEE, np.uint8)
    ticket = store.get(layout, keys(*names), out, timeout_s=1.0)
    assert ticket.poll() is not None
    return [Outcome(code) for code in ticket.outcomes], out

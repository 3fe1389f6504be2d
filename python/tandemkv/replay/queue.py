"""Requests that wait for admission, in order; those whose pages are on their way are passed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import ReplayError
from tandemkv.managers import Batch, Managers, RequestIds
from tandemkv.replay.tally import Tally
from tandemkv.replay.tier_report import LoadedBlocks
from tandemkv.replay.trace import Trace
from tandemkv.replay.transfers import ModelledExecutor


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that runs for the first time, or again after a preemption.

    Attributes:
        request: its index.
        hit: prompt tokens found cached.
        width: prompt tokens that it runs now.
        batch: what it was admitted with.
    """

    request: int
    hit: int
    width: int
    batch: Batch


@dataclass(slots=True)
class _Load:
    """A request whose pages are on their way: for itself, or for another one that it waits for."""

    since_ms: float
    seen: int
    found: LoadedBlocks = field(default_factory=LoadedBlocks)


class Queue:
    """Admits from the head until one request does not fit.

    Args:
        trace: the requests.
        managers: what admits them.
        prompts: i64[n], prompt tokens of each request now; the caller changes it.
        tally: counts.
        refuse: told of a request that can never be served, and why.

    Attributes:
        executor: what models the copies of their pages; None without lower tiers.

    Raises:
        ReplayError: the managers have lower tiers and another executor.
    """

    def __init__(
        self,
        trace: Trace,
        managers: Managers,
        prompts: NDArray[np.int64],
        tally: Tally,
        refuse: Callable[[int, str], None],
    ) -> None:
        self._trace = trace
        self._managers = managers
        self._prompts = prompts
        self._tally = tally
        self._refuse = refuse
        self.executor = _executor(managers)
        self._arrival: list[float] = trace.arrival_ms().tolist()
        self._waiting: deque[int] = deque()
        self._loading: dict[int, _Load] = {}
        self._head: tuple[int, int, Batch] | None = None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._loading)

    @property
    def next_load_ms(self) -> float | None:
        """When the next transfer is complete; None if none runs."""
        return None if self.executor is None else self.executor.next_done_ms

    def append(self, request: int) -> None:
        """Put a request that arrived at the end."""
        self._waiting.append(request)

    def put_back(self, request: int) -> None:
        """Put a preempted request at the head."""
        self._waiting.appendleft(request)

    def admit(self, step: int, tokens_left: int, rows: int, now_ms: float) -> list[Admitted]:
        """Admit what fits: first those whose pages may have come, then from the head.

        Args:
            step: an open step.
            tokens_left: most tokens that they run.
            rows: most requests, those whose pages are on their way included.
            now_ms: the clock.
        """
        admitted: list[Admitted] = []
        for request in [name for name in self._loading if self._may_have_come(name)]:
            if tokens_left == 0:
                return admitted
            answer = self._try(step, request, tokens_left, now_ms)
            if isinstance(answer, Admitted):
                admitted.append(answer)
                tokens_left -= answer.width
            elif answer != "loading":
                return admitted
        rows -= len(admitted) + len(self._loading)
        while self._waiting and tokens_left > 0 and rows > 0:
            answer = self._try(step, self._waiting[0], tokens_left, now_ms)
            if isinstance(answer, Admitted):
                admitted.append(answer)
                tokens_left -= answer.width
            elif answer not in ("loading", "never_fits"):
                break
            rows -= answer != "never_fits"
        return admitted

    def give_up_a_load(self, *, keep: int = 0) -> bool:
        """Put the last request whose pages are on their way back into the queue.

        Its own pages come back when the transfers are complete.

        Args:
            keep: how many such requests are left alone.

        Returns:
            Whether there was one.
        """
        tiers = self._managers.tiers
        opened = [request for request in self._loading if tiers is not None and request in tiers]
        if len(opened) <= keep:
            return False
        self._managers.free_resources(opened[-1])
        del self._loading[opened[-1]]
        self._waiting.appendleft(opened[-1])
        return True

    def _may_have_come(self, request: int) -> bool:
        """Tell whether some transfer was completed since the request was tried."""
        return self.executor is not None and self._loading[request].seen < self.executor.completed

    def _try(self, step: int, request: int, tokens_left: int, now_ms: float) -> Admitted | str:
        """Ask for a request: it is admitted, or why it is not."""
        tally, before = self._tally, self._sent()
        begin = perf_counter_ns()
        batch = self._batch(request, tokens_left)
        granted = self._managers.prepare_resources(batch, step)[0]
        hit = int(self._managers.hit_lengths(batch.request_ids)[0]) if granted else 0
        tally.ledger_ns += perf_counter_ns() - begin
        found = self._sent() - before
        if granted:
            self._leave(request, found, hit, now_ms)
            return Admitted(
                request,
                hit,
                min(int(batch.chunk_lens[0]), int(self._prompts[request]) - hit),
                batch,
            )
        refusal = self._managers.refusals[request]
        if refusal.reason == "loading":
            self._note_load(request, found, now_ms)
        elif refusal.reason == "never_fits":
            self._waiting.popleft()
            self._refuse(request, str(refusal))
        else:
            tally.note_refused_admission(now_ms)
        return refusal.reason

    def _leave(self, request: int, found: LoadedBlocks, hit: int, now_ms: float) -> None:
        """Count a request that runs now; its pages may have been sent in an earlier step."""
        load = self._loading.pop(request, None)
        if load is None:
            self._waiting.popleft()
            self._head = None
        else:
            found += load.found
            self._tally.note_load_wait(now_ms - load.since_ms)
        self._tally.note_admission(request, hit, now_ms - self._arrival[request], found)

    def _note_load(self, request: int, found: LoadedBlocks, now_ms: float) -> None:
        """Keep a request that has to wait for pages on their way."""
        assert self.executor is not None, "nothing is on its way without lower tiers"
        load = self._loading.get(request)
        if load is None:
            self._waiting.popleft()
            load = self._loading[request] = _Load(now_ms, self.executor.completed)
        load.seen = self.executor.completed
        load.found += found

    def _sent(self) -> LoadedBlocks:
        return LoadedBlocks() if self.executor is None else LoadedBlocks.sent(self.executor)

    def _batch(self, request: int, tokens_left: int) -> Batch:
        """Make the batch that admits one request; the last one is kept for the next try."""
        length = int(self._prompts[request])
        first = min(tokens_left, length)
        if self._head is None or self._head[:2] != (request, first):
            total = int(self._trace.input_tokens[request] + self._trace.output_tokens[request])
            batch = Batch(
                RequestIds((request,)),
                chunk_lens=np.array([first], dtype=np.int32),
                prompts=(self._trace.text(request, 0, length), np.array([0, length])),
                max_total_tokens=np.array([total]),
            )
            self._head = (request, first, batch)
        return self._head[2]


def _executor(managers: Managers) -> ModelledExecutor | None:
    """Return what models the transfers of managers with lower tiers.

    Raises:
        ReplayError: they have another executor.
    """
    if managers.tiers is None:
        return None
    executor = managers.tiers.executor
    if not isinstance(executor, ModelledExecutor):
        raise ReplayError(
            f"the executor of the managers is a {type(executor).__name__}; a replay needs "
            "build_managers(executor=ModelledExecutor(...))"
        )
    return executor

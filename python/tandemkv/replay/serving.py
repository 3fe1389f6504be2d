"""Serving a trace under a virtual clock, every page through the managers.

One step of `step_ms` is what a scheduler with chunked prefill does: running requests grow first
(decodes, then prompt chunks, oldest first, at most `max_num_tokens` tokens together), then waiting
requests are admitted in order of arrival until one does not fit. After the step, tokens are
accepted, finished requests are freed, and if a running request got no page, the request admitted
last is preempted: freed with its partial block published, put back at the head of the queue, and
recomputed from what is still cached when it fits again. A request whose pages are on their way from
a lower tier is passed by those behind it, and runs when they are there. Nothing else is decided by
the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import ReplayError
from tandemkv.managers import Batch, Managers, RequestIds
from tandemkv.replay.acceptance import Acceptance
from tandemkv.replay.queue import Admitted, Queue
from tandemkv.replay.report import PageSeries, PromptCounts, ReplayReport
from tandemkv.replay.tally import Tally
from tandemkv.replay.trace import Trace

_I32 = NDArray[np.int32]
_I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How the engine of the simulation runs.

    Attributes:
        max_num_tokens: most tokens in one step, >= 1 + draft_slots.
        draft_len: longest chain of draft tokens that a decode pass can accept, >= 0.
        draft_slots: tokens that a decode pass runs beyond one, >= draft_len: more than the chain
            where a mode runs masks (PARD) or a tree.
        acceptance: probability of each draft token, up to the first rejection.
        seed: of the draws.
        step_ms: virtual time of one step, > 0.
    """

    max_num_tokens: int = 8192
    draft_len: int = 0
    draft_slots: int = 0
    acceptance: float = 0.7
    seed: int = 0
    step_ms: float = 20.0


def serve(
    trace: Trace,
    managers: Managers,
    options: ServingOptions,
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Serve every request of the trace.

    Args:
        trace: requests and their arrivals.
        managers: fresh managers; afterwards no request is open. Those with lower tiers have a
            `ModelledExecutor`, which the clock drives.
        options: the engine.
        progress: called with the number of requests finished or refused for good.

    Raises:
        ReplayError: an option is out of range, or does not fit the managers' plan.
    """
    return _Simulation(trace, managers, options, progress).run()


class _Simulation:
    """The requests as arrays by index, the running ones as an array of indexes."""

    def __init__(
        self,
        trace: Trace,
        managers: Managers,
        options: ServingOptions,
        progress: Callable[[int], None] | None,
    ) -> None:
        limits = managers.limits
        trace.check_block(limits.tokens_per_block)
        _check(options, limits.reserve_tokens)
        self._trace = trace
        self._managers = managers
        self._options = options
        self._progress = progress
        self._acceptance = Acceptance(options.acceptance, options.draft_len, options.seed)
        self._arrival: list[float] = trace.arrival_ms().tolist()
        self._next_arrival = 0
        self._now = 0.0
        self._running: _I64 = np.zeros(0, dtype=np.int64)
        self._ids = RequestIds()
        count = len(trace)
        self._prompt: _I64 = trace.input_tokens.copy()  # grows by what a preempted one generated
        self._done: _I64 = np.zeros(count, dtype=np.int64)  # prompt tokens that have run
        self._left: _I64 = trace.output_tokens.copy()  # output tokens still to come
        self._ahead: _I64 = np.arange(1 + options.draft_len)
        self._decodes: Batch | None = None
        self._tally = Tally(PageSeries("ms"), count)
        self._queue = Queue(trace, managers, self._prompt, self._tally, self._refuse)

    # --- the clock ----------------------------------------------------------------------------

    def run(self) -> ReplayReport:
        """Run until every request was served or refused for good."""
        while self._arrivals_left() or len(self._queue) or len(self._running):
            if not len(self._queue) and not len(self._running):
                self._now = max(self._now, self._arrival[self._next_arrival])
            self._enqueue_arrivals()
            if self._queue.executor is not None:
                self._queue.executor.advance(self._now)
            self._step()
        if self._managers.tiers is not None:
            self._managers.tiers.drain()
        return self._report()

    def _arrivals_left(self) -> bool:
        return self._next_arrival < len(self._trace)

    def _enqueue_arrivals(self) -> None:
        while self._arrivals_left() and self._arrival[self._next_arrival] <= self._now:
            index = self._next_arrival
            self._next_arrival += 1
            total = int(self._trace.input_tokens[index] + self._trace.output_tokens[index])
            longest = self._managers.limits.max_seq_len
            if total > longest:
                self._refuse(index, f"has {total} tokens, max_seq_len is {longest}")
            else:
                self._queue.append(index)

    def _step(self) -> None:
        """Run one step; the clock stands still when nothing could run."""
        managers, tally = self._managers, self._tally
        begin = perf_counter_ns()
        step = managers.begin_step(self._now / 1000.0)
        tally.ledger_ns += perf_counter_ns() - begin
        batch, index, granted, tokens_left = self._grow(step)
        shortage = int(np.count_nonzero(granted)) < len(index)
        admitted = [] if shortage else self._admit(step, tokens_left)
        self._sample(len(index) + len(admitted))
        begin = perf_counter_ns()
        if managers.ledger.pending_moves:  # of admissions, and snapshots of states
            managers.moves()  # the pools are bookkeeping only: there is nothing to copy
        managers.complete_step(step)
        tally.ledger_ns += perf_counter_ns() - begin
        if batch is not None:
            self._advance_running(step, batch, index, granted, shortage)
        for item in admitted:
            self._advance_admitted(step, item.request, item.width, item.batch)
        if not len(index) and not admitted:
            self._wait()
            return
        tally.steps += 1
        self._now += self._options.step_ms
        if not self._free_finished() and shortage:
            self._make_room()

    def _wait(self) -> None:
        """Let the clock go on to what ends the wait of requests that cannot run yet.

        Where nothing is under way, requests whose pages have come may stand in each other's way. An
        empty pool takes every request that can ever fit, so anything else is a fault of the
        managers, and waiting would never end.
        """
        next_ms = self._queue.next_load_ms
        if not len(self._queue):
            return
        if next_ms is not None:
            if self._arrivals_left():
                next_ms = min(next_ms, self._arrival[self._next_arrival])
            self._now = max(self._now, next_ms)
        elif not self._queue.give_up_a_load(keep=1):
            raise RuntimeError("every request was refused for now by managers that run none")

    # --- what runs ----------------------------------------------------------------------------

    def _grow(self, step: int) -> tuple[Batch | None, _I64, NDArray[np.bool_], int]:
        """Grow running requests: the batch, its requests, which were granted, tokens left."""
        budget = self._options.max_num_tokens
        index, chunks, width = self._choose(budget)
        if not len(index):
            return None, index, np.ones(0, dtype=np.bool_), budget
        begin = perf_counter_ns()
        batch = self._batch(index, chunks)
        granted = self._managers.prepare_resources(batch, step)
        self._tally.ledger_ns += perf_counter_ns() - begin
        self._tally.note_growth(granted, self._now)
        return batch, index, granted, budget - int(width[granted].sum())

    def _batch(self, index: _I64, chunks: _I64) -> Batch:
        """Make the batch of running requests; one of decodes alone serves until they change."""
        whole = len(index) == len(self._running)
        decodes = whole and not chunks.any()
        if decodes and self._decodes is not None:
            return self._decodes
        ids = self._ids if whole else RequestIds(index.tolist())
        drafts = np.where(chunks > 0, 0, self._options.draft_slots).astype(np.int32)
        batch = Batch(ids, chunk_lens=chunks.astype(np.int32), draft_lens=drafts)
        if decodes:
            self._decodes = batch
        return batch

    def _choose(self, budget: int) -> tuple[_I64, _I64, _I64]:
        """Choose requests in admission order, their chunk (0: decode) and tokens to run.

        Decodes come first in the budget; a decode runs whole or not at all.
        """
        running = self._running
        rest = self._prompt[running] - self._done[running]
        decode = rest == 0
        unit = 1 + self._options.draft_slots
        if decode.all() and unit * len(running) <= budget:
            return running, rest, np.full(len(running), unit, dtype=np.int64)
        whole = np.cumsum(decode) * unit <= budget
        width = np.where(decode & whole, unit, 0)
        left = budget - int(width.sum())
        before = np.cumsum(np.where(decode, 0, rest))
        chunk = np.where(decode, 0, np.clip(left - (before - rest), 0, rest))
        width += chunk
        keep = width > 0
        return running[keep], chunk[keep], width[keep]

    def _admit(self, step: int, tokens_left: int) -> list[Admitted]:
        """Admit from the queue what fits."""
        rows = self._managers.limits.max_requests - len(self._running)
        admitted = self._queue.admit(step, tokens_left, rows, self._now)
        for item in admitted:
            self._done[item.request] = item.hit
        self._set_running([*self._running.tolist(), *(item.request for item in admitted)])
        return admitted

    # --- what comes out -----------------------------------------------------------------------

    def _advance_running(
        self, step: int, batch: Batch, index: _I64, granted: NDArray[np.bool_], shortage: bool
    ) -> None:
        """Accept tokens of the requests that ran; those that were refused stay as they are."""
        left = self._left[index]
        if batch.num_chunks == 0 and not shortage:
            drawn = self._acceptance.draw(len(index))
            self._tally.note_decodes(drawn, left)
            self._update(step, batch, index, np.minimum(drawn + 1, left))
            return
        chunks = np.where(granted, batch.chunk_lens, 0)
        self._done[index] += chunks
        ended = (chunks > 0) & (self._done[index] == self._prompt[index])
        decoded = granted & (batch.chunk_lens == 0)
        counts = np.where(ended, np.minimum(left, 1), 0)
        if decoded.any():
            drawn = self._acceptance.draw(int(decoded.sum()))
            counts[decoded] = np.minimum(drawn + 1, left[decoded])
            self._tally.note_decodes(drawn, left[decoded])
        self._update(step, batch, index, counts)

    def _advance_admitted(self, step: int, request: int, width: int, batch: Batch) -> None:
        """Accept the first token if the whole prompt ran in its first step."""
        self._done[request] += width
        ended = self._done[request] == self._prompt[request]
        count = min(int(self._left[request]), 1) if ended else 0
        self._update(step, batch, np.array([request]), np.array([count]))

    def _update(self, step: int, batch: Batch, index: _I64, counts: _I64) -> None:
        trace = self._trace
        start = trace.input_tokens[index] + trace.output_tokens[index] - self._left[index]
        tokens = trace.tokens_at(index, start[:, None] + self._ahead)
        self._left[index] -= counts
        begin = perf_counter_ns()
        self._managers.update_resources(batch, (tokens, counts.astype(np.int32)), step)
        self._tally.ledger_ns += perf_counter_ns() - begin

    def _free_finished(self) -> bool:
        """Free what has all its output; tell whether there was any."""
        running = self._running
        finished = (self._left[running] == 0) & (self._done[running] == self._prompt[running])
        if not finished.any():
            return False
        begin = perf_counter_ns()
        self._managers.free_many(RequestIds(running[finished].tolist()))
        self._tally.ledger_ns += perf_counter_ns() - begin
        self._tally.served += int(finished.sum())
        self._set_running(running[~finished].tolist())
        self._report_progress()
        return True

    def _make_room(self) -> None:
        """Take pages from those that do not run yet, or else from the one admitted last."""
        if self._queue.give_up_a_load():
            return
        if len(self._running) > 1:
            self._preempt_last()
        elif self._queue.next_load_ms is None:  # else pages come back when transfers are complete
            raise RuntimeError(f"request {self._running[0]} got no page although it runs alone")

    def _preempt_last(self) -> None:
        """Put the request admitted last back into the queue, so that older ones can go on."""
        request = int(self._running[-1])
        begin = perf_counter_ns()
        self._managers.preempt(RequestIds((request,)))
        self._tally.ledger_ns += perf_counter_ns() - begin
        ran = int(self._done[request])
        if ran == self._prompt[request]:
            trace = self._trace
            length = int(trace.input_tokens[request] + trace.output_tokens[request])
            length -= int(self._left[request])
            ran = length - 1  # the newest token has not run
            self._prompt[request] = length
        self._tally.note_preemption(request, ran)
        self._set_running(self._running[:-1].tolist())
        self._queue.put_back(request)

    # --- bookkeeping --------------------------------------------------------------------------

    def _set_running(self, running: list[int]) -> None:
        if len(running) == len(self._running):
            return
        self._decodes = None
        self._running = np.array(running, dtype=np.int64)
        self._ids = RequestIds(running)

    def _refuse(self, request: int, reason: str) -> None:
        self._tally.note_unservable(request, reason)
        self._report_progress()

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._tally.served + self._tally.refused)

    def _sample(self, running: int) -> None:
        pages = self._managers.ledger.stats()["classes"][0]
        used = pages["total"] - pages["reserved"] - pages["free"] - pages["evictable"]
        self._tally.sample(self._now, used, pages["cached"], running, len(self._queue))

    def _report(self) -> ReplayReport:
        limits = self._managers.limits
        return self._tally.report(
            trace=str(self._trace.path),
            tokens_per_block=limits.tokens_per_block,
            usable_pages=limits.usable_pages,
            policy=self._managers.ledger.policy,
            prompts=PromptCounts.of(self._trace, limits.tokens_per_block),
            ledger=self._managers.ledger,
            executor=self._queue.executor,
            duration_ms=self._now,
            generated_tokens=int((self._trace.output_tokens - self._left).sum()),
        )


def _check(options: ServingOptions, reserve_tokens: int) -> None:
    if not 0 <= options.draft_len <= options.draft_slots <= reserve_tokens:
        raise ReplayError(
            f"draft_len is {options.draft_len} and draft_slots {options.draft_slots}; the plan "
            f"keeps room for {reserve_tokens} draft tokens per step"
        )
    if options.max_num_tokens < 1 + options.draft_slots:
        raise ReplayError(
            f"max_num_tokens is {options.max_num_tokens}; a decode pass runs "
            f"{1 + options.draft_slots} tokens"
        )
    if not 0 < options.step_ms < float("inf"):
        raise ReplayError(f"step_ms is {options.step_ms}; must be above 0")

"""Requests one after the other through the prefix cache: the setting of published hit ratios.

A request of `f` full blocks is fed as `f * tokens_per_block` tokens and a few tokens of its own
(one, or as many as the lookahead asks for), so that all its full blocks can be published and the
last token can run. Its tail lies in pages beyond the capacity and is never published: the tree has
exactly `usable_pages` pages for full blocks, and evicts leaf by leaf, in the order of its policy.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np

from tandemkv import _core
from tandemkv.config import EvictionPolicy
from tandemkv.errors import ReplayError
from tandemkv.managers.transfers import Transfers
from tandemkv.replay.report import PageSeries, PromptCounts, ReplayReport
from tandemkv.replay.tier_report import LoadedBlocks, TierReport
from tandemkv.replay.trace import UNIQUE_BASE, Trace
from tandemkv.replay.transfers import Links, ModelledExecutor


def replay_cache(
    trace: Trace,
    *,
    tokens_per_block: int,
    usable_pages: int | None,
    has_draft: bool = False,
    lookahead: int = 0,
    extra_tokens: int = 0,
    policy: EvictionPolicy = "lru",
    host_pages: int = 0,
    disk_pages: int = 0,
    links: Links | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Feed every request through admit, commit and release, without publishing its tail.

    Args:
        trace: the requests, in order of arrival; times do not matter.
        tokens_per_block: the ledger's block; divides the trace's hash block.
        usable_pages: pages for full blocks; None takes as many as the trace can fill.
        has_draft: whether requests carry draft KV.
        lookahead: later tokens that draft KV depends on.
        extra_tokens: room kept beyond what is written.
        policy: in which order cached blocks are evicted.
        host_pages: pages of a host tier, >= 0.
        disk_pages: pages of a disk tier, >= 0.
        links: bytes of a page, for the report of tiers; copies take no time here. None: unknown.
        progress: called with the number of requests done, every few requests.

    Raises:
        ReplayError: a size is out of range, or the blocks do not fit each other.
    """
    trace.check_block(tokens_per_block)
    if usable_pages is None:
        usable_pages = max(1, _most_pages(trace, tokens_per_block, lookahead))
    if usable_pages < 1:
        raise ReplayError(f"usable pages are {usable_pages}; must be at least 1")
    for name, pages in (("host", host_pages), ("disk", disk_pages)):
        if pages < 0:
            raise ReplayError(f"{name} pages are {pages}; must be at least 0")
    tail_tokens = max(1, lookahead)
    tail_pages = -(-(tail_tokens + extra_tokens) // tokens_per_block)
    lengths = trace.input_tokens // tokens_per_block * tokens_per_block
    ledger = _core.Ledger(
        tokens_per_block=tokens_per_block,
        num_pages=[usable_pages + tail_pages + 1],
        max_sequences=1,
        max_seq_len=int(lengths.max()) + tail_tokens,
        has_draft=has_draft,
        extra_tokens=extra_tokens,
        lookahead=lookahead,
        partial_reuse=False,
        policy=policy,
        host_pages=[host_pages] if host_pages else None,
        disk_pages=[disk_pages] if disk_pages else None,
    )
    executor = ModelledExecutor(links)
    transfers = Transfers(ledger, executor) if host_pages or disk_pages else None
    feed = _Feed(ledger, has_draft, transfers)
    series = PageSeries("request")
    hit_tokens = peak_used = peak_cached = 0
    refused: list[tuple[int, str]] = []
    refused_requests = 0
    for index in range(len(trace)):
        length = int(lengths[index])
        prompt = np.full(length + tail_tokens, UNIQUE_BASE + index, dtype=np.int32)
        prompt[:length] = trace.text(index, 0, length)
        blocks = length // tokens_per_block
        if not feed.admit(prompt):
            refused_requests += 1
            if len(refused) < 16:
                refused.append((index, f"needs {blocks} pages, the pool has {usable_pages}"))
            continue
        hit_tokens += int(feed.hit[0])
        feed.commit()
        cached = ledger.stats()["classes"][0]["cached"]
        peak_used, peak_cached = max(peak_used, blocks), max(peak_cached, cached)
        series.add(index, blocks, cached, 1, 0)
        feed.release()
        if progress is not None and index % 64 == 0:
            progress(index + 1)
    if progress is not None:
        progress(len(trace))
    return ReplayReport(
        mode="cache-only",
        trace=str(trace.path),
        tokens_per_block=tokens_per_block,
        usable_pages=usable_pages,
        policy=ledger.policy,
        prompts=PromptCounts.of(trace, tokens_per_block),
        hit_blocks=hit_tokens // tokens_per_block,
        hit_tokens=hit_tokens,
        evicted_blocks=ledger.stats()["evicted_blocks"],
        refused_requests=refused_requests,
        unservable=tuple(refused),
        peak_used_pages=peak_used,
        peak_cached_pages=peak_cached,
        ledger_us_per_step=feed.ledger_ns / 1000 / len(trace),
        pages=series,
        tiers=None
        if transfers is None
        else TierReport.of(
            ledger,
            executor,
            tokens_per_block=tokens_per_block,
            hit_tokens=hit_tokens,
            found=LoadedBlocks.sent(executor),
        ),
    )


def _most_pages(trace: Trace, tokens_per_block: int, lookahead: int) -> int:
    """Pages that hold every full block of the trace at once.

    With a lookahead a block counts once per continuation, so every block is counted.
    """
    if lookahead == 0:
        return trace.distinct_blocks(tokens_per_block)
    return int((trace.input_tokens // tokens_per_block).sum())


class _Feed:
    """The calls of one request, timed, on arrays that are made once."""

    def __init__(
        self, ledger: _core.Ledger, has_draft: bool, transfers: Transfers | None = None
    ) -> None:
        self._ledger = ledger
        self._transfers = transfers
        self._scope = np.zeros(1, dtype=np.int32)
        self._first = np.zeros(1, dtype=np.int32)
        self._max_total = np.zeros(1, dtype=np.int64)
        self._draft_from = np.zeros(1, dtype=np.int32) if has_draft else None
        self._handle = np.zeros(1, dtype=np.int64)
        self._no_tokens = np.zeros((1, 0), dtype=np.int32)
        self._count = np.zeros(1, dtype=np.int32)
        self._granted = np.zeros(1, dtype=np.uint8)
        self._keep_tail = np.zeros(1, dtype=np.uint8)
        self._step = 0
        self.hit = np.zeros(1, dtype=np.int32)
        self.ledger_ns = 0

    def admit(self, prompt: np.ndarray[tuple[int], np.dtype[np.int32]]) -> bool:
        """Admit the whole prompt in one step; False when it can never fit."""
        begin = perf_counter_ns()
        self._first[0] = self._max_total[0] = len(prompt)
        self._step = self._ledger.begin_step()
        admitted = self._ledger.admit(
            self._step,
            [prompt],
            self._scope,
            self._first,
            self._max_total,
            self._draft_from,
            self._handle,
            self.hit,
        )
        if self._transfers is not None and self._ledger.pending_transfers():
            self._load(len(prompt), admitted == 1)
        self._ledger.complete_step(self._step)
        self.ledger_ns += perf_counter_ns() - begin
        return admitted == 1

    def _load(self, length: int, admitted: bool) -> None:
        """Run what the admission planned; what it loads is there at once, and the rest runs."""
        assert self._transfers is not None
        loads = admitted and bool(self._transfers.states(self._handle)[0])
        self._transfers.run()
        if loads:
            self._count[0] = length - self.hit[0]
            self._ledger.grow(self._step, self._handle, self._count, self._granted)
            assert self._granted[0], "an admission has room for its first tokens"
            self._count[0] = 0

    def commit(self) -> None:
        """Say that the prompt has run, which publishes its full blocks."""
        begin = perf_counter_ns()
        self._ledger.advance(self._step, self._handle, self._no_tokens, self._count)
        self.ledger_ns += perf_counter_ns() - begin

    def release(self) -> None:
        """Close the request; its tail is not published."""
        begin = perf_counter_ns()
        self._ledger.release(self._handle, self._keep_tail)
        self.ledger_ns += perf_counter_ns() - begin

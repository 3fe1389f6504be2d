"""Counting while a trace is served."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.replay.report import PageSeries, PromptCounts, ReplayReport, ServingReport
from tandemkv.replay.tier_report import LoadedBlocks, TierReport
from tandemkv.replay.transfers import ModelledExecutor

_MOST_NAMED = 16


@dataclass
class Tally:
    """The counters of one serving run; `ServingReport` and `ReplayReport` say what they mean.

    Args:
        series: takes the samples.
        requests: requests of the trace.
    """

    series: PageSeries
    requests: int
    ledger_ns: int = 0
    steps: int = 0
    served: int = 0
    refused: int = 0
    _unservable: list[tuple[int, str]] = field(default_factory=list)
    _hits: dict[int, int] = field(default_factory=dict)
    _waits_ms: list[float] = field(default_factory=list)
    _ran_before: dict[int, int] = field(default_factory=dict)
    _preemptions: int = 0
    _resumed_hit_tokens: int = 0
    _recomputed_tokens: int = 0
    _refused_admissions: int = 0
    _refused_grows: int = 0
    _first_shortage_ms: float | None = None
    _decode_passes: int = 0
    _accepted_tokens: int = 0
    _drawn_tokens: int = 0
    _found: LoadedBlocks = field(default_factory=LoadedBlocks)
    _load_waits_ms: list[float] = field(default_factory=list)
    _peak_used: int = 0
    _peak_cached: int = 0
    _peak_running: int = 0

    def note_growth(self, granted: NDArray[np.bool_], now_ms: float) -> None:
        """Count running requests that got no page."""
        refused = len(granted) - int(np.count_nonzero(granted))
        if refused:
            self._refused_grows += refused
            self._note_shortage(now_ms)

    def note_refused_admission(self, now_ms: float) -> None:
        """Count a waiting request that did not fit now."""
        self._refused_admissions += 1
        self._note_shortage(now_ms)

    def note_load_wait(self, wait_ms: float) -> None:
        """Count a request that runs now and waited for its pages."""
        self._load_waits_ms.append(wait_ms)

    def note_admission(
        self, request: int, hit: int, wait_ms: float, found: LoadedBlocks | None = None
    ) -> None:
        """Count what a request found cached: its first time, or again after a preemption.

        Args:
            request: its index.
            hit: tokens found.
            wait_ms: since it arrived.
            found: blocks of them that came from lower tiers.
        """
        if request in self._ran_before:
            self._resumed_hit_tokens += hit
            self._recomputed_tokens += max(self._ran_before[request] - hit, 0)
        else:
            self._hits[request] = hit
            self._waits_ms.append(wait_ms)
            self._found += found or LoadedBlocks()

    def note_preemption(self, request: int, ran: int) -> None:
        """Count a preemption of a request of which `ran` tokens had run."""
        self._preemptions += 1
        self._ran_before[request] = ran

    def note_decodes(self, drawn: NDArray[np.int64], left: NDArray[np.int64]) -> None:
        """Count decode passes that accept `drawn` drafts where `left` tokens were still wanted."""
        self._decode_passes += len(drawn)
        self._drawn_tokens += int(drawn.sum())
        self._accepted_tokens += int(np.minimum(drawn, left).sum())

    def note_unservable(self, request: int, reason: str) -> None:
        """Count a request that can never be served; the first few are named."""
        self.refused += 1
        if len(self._unservable) < _MOST_NAMED:
            self._unservable.append((request, reason))

    def sample(self, now_ms: float, used: int, cached: int, running: int, waiting: int) -> None:
        """Take the pages of one step."""
        self._peak_used = max(self._peak_used, used)
        self._peak_cached = max(self._peak_cached, cached)
        self._peak_running = max(self._peak_running, running)
        self.series.add(now_ms, used, cached, running, waiting)

    def _note_shortage(self, now_ms: float) -> None:
        if self._first_shortage_ms is None:
            self._first_shortage_ms = now_ms

    def report(
        self,
        *,
        trace: str,
        tokens_per_block: int,
        usable_pages: int,
        policy: str,
        prompts: PromptCounts,
        ledger: Ledger,
        executor: ModelledExecutor | None,
        duration_ms: float,
        generated_tokens: int,
    ) -> ReplayReport:
        """Close the books with the ledger's own counters, and those of its lower tiers if any."""
        stats = ledger.stats()
        hit_tokens = sum(self._hits.values())
        waits = np.array(self._waits_ms)
        passes = self._decode_passes
        return ReplayReport(
            mode="serving",
            trace=trace,
            tokens_per_block=tokens_per_block,
            usable_pages=usable_pages,
            policy=policy,
            prompts=prompts,
            hit_blocks=sum(hit // tokens_per_block for hit in self._hits.values()),
            hit_tokens=hit_tokens,
            evicted_blocks=stats["evicted_blocks"],
            refused_requests=self.refused,
            unservable=tuple(self._unservable),
            accepted_tokens=self._accepted_tokens,
            rewound_tokens=stats["rewound_tokens"],
            peak_used_pages=self._peak_used,
            peak_cached_pages=self._peak_cached,
            ledger_us_per_step=self.ledger_ns / 1000 / max(self.steps, 1),
            pages=self.series,
            tiers=None
            if executor is None
            else TierReport.of(
                ledger,
                executor,
                tokens_per_block=tokens_per_block,
                hit_tokens=hit_tokens,
                found=self._found,
                waits_ms=self._load_waits_ms,
            ),
            serving=ServingReport(
                served_requests=self.served,
                steps=self.steps,
                duration_ms=duration_ms,
                preemptions=self._preemptions,
                refused_admissions=self._refused_admissions,
                refused_grows=self._refused_grows,
                first_shortage_ms=self._first_shortage_ms,
                recomputed_tokens=self._recomputed_tokens,
                resumed_hit_tokens=self._resumed_hit_tokens,
                decode_passes=passes,
                mean_accept_length=1 + self._drawn_tokens / passes if passes else None,
                generated_tokens=generated_tokens,
                queue_ms_p50=float(np.percentile(waits, 50)) if len(waits) else None,
                queue_ms_p95=float(np.percentile(waits, 95)) if len(waits) else None,
                peak_running_requests=self._peak_running,
            ),
        )

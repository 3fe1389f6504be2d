"""What a replay found: counts, rates with their definitions, and pages over time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tandemkv.replay.tier_report import TIER_DEFINITIONS, TierReport
from tandemkv.replay.trace import Trace

DEFINITIONS = {
    "hit_ratio_full_blocks": "prefix-hit blocks / floor(input / block), over all requests",
    "hit_ratio_blocks": "prefix-hit blocks / ceil(input / block), over all requests",
    "hit_ratio_tokens": "prefix-hit tokens / prompt tokens, over all requests",
    "hit_blocks": "whole blocks found cached when a request was first admitted",
    "resumed_hit_tokens": "tokens found cached when a preempted request was admitted again; not "
    "part of any hit ratio",
    "evicted_blocks": "cached blocks given up for new ones",
    "refused_requests": "requests that can never be served: longer than the pool or, in serving "
    "mode only, than max_seq_len",
    "accepted_tokens": "draft tokens accepted and kept; the target's own token is not one",
    "rewound_tokens": "positions that ran and were given back with their rejected tokens",
    "mean_accept_length": "tokens per decode pass, 1 + accepted drafts, not cut by the output's "
    "end; prefill not counted",
    "used_pages": "pages that running requests hold or share, so neither free nor evictable",
    "cached_pages": "pages of the prefix tree, in use or not",
    "ledger_us_per_step": "wall time inside the managers / steps; measured, never decided upon",
}
"""What each figure of a report means."""


@dataclass
class PageSeries:
    """Pages over time in a bounded number of points.

    Samples are put into buckets of equal width, `stride` samples each; when there are twice
    `limit` buckets, neighbours are merged. A bucket keeps its first time and its largest values.

    Attributes:
        unit: what times count: `ms` of the virtual clock, or `request`.
        limit: most points in `to_dict`.
        stride: samples per bucket now.
    """

    unit: Literal["ms", "request"]
    limit: int = 256
    stride: int = 1
    _buckets: list[list[float]] = field(default_factory=list)
    _in_last: int = 0

    def add(self, time: float, used: int, cached: int, running: int, waiting: int) -> None:
        """Take a sample."""
        if self._buckets and self._in_last < self.stride:
            last = self._buckets[-1]
            last[1] = max(last[1], used)
            last[2] = max(last[2], cached)
            last[3] = max(last[3], running)
            last[4] = max(last[4], waiting)
            self._in_last += 1
            return
        if len(self._buckets) == 2 * self.limit:
            self._buckets = _merge_pairs(self._buckets)
            self.stride *= 2
        self._buckets.append([time, used, cached, running, waiting])
        self._in_last = 1

    def to_dict(self) -> dict[str, Any]:
        """Give `unit` and the columns, each of at most `limit` values."""
        buckets = self._buckets
        if len(buckets) > self.limit:
            buckets = _merge_pairs(buckets)
        columns: list[tuple[float, ...]] = list(zip(*buckets, strict=True)) or [()] * 5
        times, used, cached, running, waiting = columns
        return {
            "unit": self.unit,
            "time": [round(time, 3) for time in times],
            "used_pages": [int(value) for value in used],
            "cached_pages": [int(value) for value in cached],
            "running_requests": [int(value) for value in running],
            "waiting_requests": [int(value) for value in waiting],
        }


def _merge_pairs(buckets: list[list[float]]) -> list[list[float]]:
    """Merge neighbours: the first time, the largest of everything else."""
    merged = [
        [first[0], *map(max, first[1:], second[1:])]
        for first, second in zip(buckets[0::2], buckets[1::2], strict=False)
    ]
    return merged if len(buckets) % 2 == 0 else [*merged, list(buckets[-1])]


@dataclass(frozen=True)
class PromptCounts:
    """What follows from the trace and the block size alone.

    Attributes:
        requests: requests of the trace.
        full_blocks: sum of floor(input / block).
        prompt_blocks: sum of ceil(input / block).
        prompt_tokens: sum of inputs.
    """

    requests: int
    full_blocks: int
    prompt_blocks: int
    prompt_tokens: int

    @classmethod
    def of(cls, trace: Trace, tokens_per_block: int) -> PromptCounts:
        """Count a trace."""
        lengths = trace.input_tokens
        return cls(
            requests=len(trace),
            full_blocks=int((lengths // tokens_per_block).sum()),
            prompt_blocks=int((-(-lengths // tokens_per_block)).sum()),
            prompt_tokens=int(lengths.sum()),
        )


@dataclass(frozen=True, kw_only=True)
class ServingReport:
    """What only the serving simulation has.

    Attributes:
        served_requests: requests that ran to their end.
        steps: steps of the virtual clock that ran something.
        duration_ms: virtual time at the end.
        preemptions: times a running request was put back into the queue.
        refused_admissions: times a waiting request did not fit and waited on.
        refused_grows: times a running request got no page for its next tokens.
        first_shortage_ms: when demand first exceeded the pool; None if it never did.
        recomputed_tokens: tokens run a second time after a preemption.
        resumed_hit_tokens: tokens found cached on admission after a preemption.
        decode_passes: decode passes, one per request and step.
        mean_accept_length: see DEFINITIONS; None without decode passes.
        generated_tokens: output tokens.
        queue_ms_p50: median wait from arrival to first admission.
        queue_ms_p95: its 95th percentile.
        peak_running_requests: most requests in one step.
    """

    served_requests: int
    steps: int
    duration_ms: float
    preemptions: int
    refused_admissions: int
    refused_grows: int
    first_shortage_ms: float | None
    recomputed_tokens: int
    resumed_hit_tokens: int
    decode_passes: int
    mean_accept_length: float | None
    generated_tokens: int
    queue_ms_p50: float | None
    queue_ms_p95: float | None
    peak_running_requests: int


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """The result of a replay.

    Attributes:
        mode: `cache-only` or `serving`.
        trace: the file.
        tokens_per_block: the ledger's block.
        usable_pages: pages that hold tokens: all but page 0, and in `cache-only` but the tail's.
        policy: in which order cached blocks were evicted.
        prompts: what the trace asks for.
        hit_blocks: whole blocks found cached at first admissions.
        hit_tokens: tokens found cached at first admissions.
        evicted_blocks: cached blocks given up for new ones.
        refused_requests: requests that can never be served.
        unservable: index and reason of the first of them, at most 16.
        accepted_tokens: accepted draft tokens.
        rewound_tokens: positions run and given back.
        peak_used_pages: largest `used_pages`.
        peak_cached_pages: largest `cached_pages`.
        ledger_us_per_step: microseconds inside the managers per step (`cache-only`: per request).
        pages: pages over time.
        tiers: what host and disk did; None without such tiers.
        serving: the rest of the serving simulation; None in `cache-only`.
    """

    mode: Literal["cache-only", "serving"]
    trace: str
    tokens_per_block: int
    usable_pages: int
    policy: str
    prompts: PromptCounts
    hit_blocks: int
    hit_tokens: int
    evicted_blocks: int
    refused_requests: int
    unservable: tuple[tuple[int, str], ...] = ()
    accepted_tokens: int = 0
    rewound_tokens: int = 0
    peak_used_pages: int
    peak_cached_pages: int
    ledger_us_per_step: float
    pages: PageSeries
    tiers: TierReport | None = None
    serving: ServingReport | None = None

    @property
    def hit_ratio_full_blocks(self) -> float:
        """Prefix-hit blocks / full prompt blocks; 0 without full blocks."""
        return _ratio(self.hit_blocks, self.prompts.full_blocks)

    @property
    def hit_ratio_blocks(self) -> float:
        """Prefix-hit blocks / started prompt blocks."""
        return _ratio(self.hit_blocks, self.prompts.prompt_blocks)

    @property
    def hit_ratio_tokens(self) -> float:
        """Prefix-hit tokens / prompt tokens."""
        return _ratio(self.hit_tokens, self.prompts.prompt_tokens)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values; the keys stay."""
        nested = ("prompts", "pages", "tiers", "serving", "unservable")
        result = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in nested
        }
        result |= asdict(self.prompts)
        result |= {
            "hit_ratio_full_blocks": self.hit_ratio_full_blocks,
            "hit_ratio_blocks": self.hit_ratio_blocks,
            "hit_ratio_tokens": self.hit_ratio_tokens,
            "unservable": [
                {"request": index, "reason": reason} for index, reason in self.unservable
            ],
            "pages_over_time": self.pages.to_dict(),
            "tiers": None if self.tiers is None else self.tiers.to_dict(),
            "definitions": DEFINITIONS | ({} if self.tiers is None else TIER_DEFINITIONS),
        }
        if self.serving is not None:
            result |= asdict(self.serving)
        return result


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

"""A replay's report on a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from tandemkv.replay.report import DEFINITIONS, ReplayReport, ServingReport
from tandemkv.replay.tier_report import TIER_DEFINITIONS, TierReport
from tandemkv.sizes import format_size
from tandemkv.tiers.transfers import TIER_NAMES

_BARS = " ▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 56

Line = tuple[str, str, str]


def print_report(report: ReplayReport, console: Console) -> None:
    """Print figures with their definitions, and pages over time."""
    console.print(f"Replay of {report.trace} ({report.mode})", style="bold", soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold", style="dim")
    for name, value, meaning in report_lines(report):
        table.add_row(name, value, meaning)
    console.print(table)
    console.print(_pages_text(report), highlight=False, soft_wrap=True)
    for request, reason in report.unservable:
        console.print(f"request {request} can never be served: {reason}", highlight=False)
    more = report.refused_requests - len(report.unservable)
    if more > 0:
        console.print(f"and {more} more", highlight=False)


def report_lines(report: ReplayReport) -> list[Line]:
    """Return (name, value, meaning) of every figure, in the order they are shown."""
    prompts = report.prompts
    lines: list[Line] = [
        ("requests", f"{prompts.requests:,}", f"{prompts.prompt_tokens:,} prompt tokens"),
        (
            "usable pages",
            f"{report.usable_pages:,}",
            f"{report.tokens_per_block} tokens each, "
            f"{report.usable_pages * report.tokens_per_block:,} tokens in all",
        ),
        ("eviction policy", report.policy, "order in which cached blocks are given up"),
        _ratio("hit_ratio_full_blocks", report.hit_ratio_full_blocks),
        _ratio("hit_ratio_blocks", report.hit_ratio_blocks),
        _ratio("hit_ratio_tokens", report.hit_ratio_tokens),
        _count("hit_blocks", report.hit_blocks),
        _count("evicted_blocks", report.evicted_blocks),
        _count("refused_requests", report.refused_requests),
    ]
    if report.serving is not None:
        lines += _serving_lines(report, report.serving)
    if report.tiers is not None:
        lines += _tier_lines(report.tiers)
    share = report.peak_used_pages / report.usable_pages
    per = "request" if report.mode == "cache-only" else "step"
    return [
        *lines,
        (
            "peak used pages",
            f"{report.peak_used_pages:,}",
            f"{share:.1%} of the pool; {DEFINITIONS['used_pages']}",
        ),
        ("peak cached pages", f"{report.peak_cached_pages:,}", DEFINITIONS["cached_pages"]),
        (
            f"ledger, µs per {per}",
            f"{report.ledger_us_per_step:.1f}",
            DEFINITIONS["ledger_us_per_step"],
        ),
    ]


def _serving_lines(report: ReplayReport, serving: ServingReport) -> list[Line]:
    shortage = (
        "demand never exceeded the pool"
        if serving.first_shortage_ms is None
        else f"demand first exceeded the pool at {serving.first_shortage_ms / 1000:,.1f} s"
    )
    lines: list[Line] = [
        (
            "served requests",
            f"{serving.served_requests:,}",
            f"in {serving.steps:,} steps, {serving.duration_ms / 1000:,.1f} s of virtual time",
        ),
        ("refused admissions", f"{serving.refused_admissions:,}", shortage),
        ("refused growths", f"{serving.refused_grows:,}", "of running requests, per step"),
        (
            "preemptions",
            f"{serving.preemptions:,}",
            f"{serving.recomputed_tokens:,} tokens run again, "
            f"{serving.resumed_hit_tokens:,} found cached again",
        ),
        (
            "running at once",
            f"{serving.peak_running_requests:,}",
            f"at most; {serving.generated_tokens:,} tokens generated",
        ),
    ]
    if serving.queue_ms_p50 is not None and serving.queue_ms_p95 is not None:
        lines.append(
            (
                "queue, s",
                f"{serving.queue_ms_p50 / 1000:.2f}",
                f"median from arrival to admission; 95th percentile "
                f"{serving.queue_ms_p95 / 1000:.2f}",
            )
        )
    drafted = report.accepted_tokens + report.rewound_tokens > 0
    if drafted and serving.mean_accept_length is not None:
        lines += [
            (
                "mean accept length",
                f"{serving.mean_accept_length:.2f}",
                DEFINITIONS["mean_accept_length"],
            ),
            _count("accepted_tokens", report.accepted_tokens),
            _count("rewound_tokens", report.rewound_tokens),
        ]
    return lines


def _tier_lines(tiers: TierReport) -> list[Line]:
    hits = tiers.hit_tokens_by_tier
    lines: list[Line] = [
        ("host pages", f"{tiers.host_pages:,}", "of blocks, beside the usable pages"),
        ("disk pages", f"{tiers.disk_pages:,}", "likewise"),
        (
            "hit tokens by tier",
            " + ".join(f"{hits[tier]:,}" for tier in TIER_NAMES),
            f"{' + '.join(TIER_NAMES)}; {TIER_DEFINITIONS['hit_tokens_by_tier']}",
        ),
    ]
    for name in ("loaded_blocks", "offloaded_blocks", "rejected", "lost"):
        meaning = TIER_DEFINITIONS[name]
        lines.append((name.replace("_", " "), f"{getattr(tiers, name):,}", meaning))
    for direction, blocks in tiers.moved_blocks.items():
        if blocks:
            size = tiers.moved_bytes and format_size(tiers.moved_bytes[direction])
            meaning = "blocks" if size is None else f"blocks; {size} with all that goes with them"
            lines.append((direction.replace("_", " "), f"{blocks:,}", meaning))
    if tiers.loading_ms_p50 is not None and tiers.loading_ms_p95 is not None:
        lines.append(
            (
                "loading requests",
                f"{tiers.loading_requests:,}",
                f"waited for their pages, the median {tiers.loading_ms_p50:,.1f} ms, the 95th "
                f"percentile {tiers.loading_ms_p95:,.1f} ms",
            )
        )
    return lines


def _ratio(name: str, value: float) -> Line:
    return name.replace("_", " "), f"{value:.4f}", DEFINITIONS[name]


def _count(name: str, value: int) -> Line:
    return name.replace("_", " "), f"{value:,}", DEFINITIONS[name]


def _pages_text(report: ReplayReport) -> str:
    series = report.pages.to_dict()
    if not series["time"]:
        return "pages over time: nothing ran"
    last = series["time"][-1]
    end = f"{last / 1000:,.0f} s" if series["unit"] == "ms" else f"request {last:,.0f}"
    lines = [f"pages over time, 0 to {end}; a bar shows its largest value, full height is the pool"]
    for name in ("used_pages", "cached_pages"):
        bars = sparkline(series[name], report.usable_pages)
        lines.append(f"{name.split('_', maxsplit=1)[0]:<8} {bars} {max(series[name]):,}")
    most = max(series["waiting_requests"])
    if most > 0:
        lines.append(f"waiting  {sparkline(series['waiting_requests'], most)} {most:,} requests")
    return "\n".join(lines)


def sparkline(values: list[int], full: int) -> str:
    """Return at most 56 bars for `values`, `full` at full height; a bar shows its largest value."""
    count = min(len(values), _SPARK_WIDTH)
    bars = []
    for bar in range(count):
        begin, end = bar * len(values) // count, (bar + 1) * len(values) // count
        share = min(max(values[begin:end]) / full, 1.0)
        bars.append(_BARS[math.ceil(share * (len(_BARS) - 1))])
    return "".join(bars)

"""A replay's report as one HTML page that needs nothing else: no script, font or image."""

from __future__ import annotations

from html import escape
from typing import Any

from tandemkv.replay.render import report_lines
from tandemkv.replay.report import ReplayReport
from tandemkv.tiers.transfers import TIER_NAMES

_WIDTH, _HEIGHT = 960, 160
# Told apart in grey as well: device dark, host lighter, disk lightest; misses nearly white.
_TIER_COLOURS = {"device": "#1b4f8a", "host": "#5b8ec9", "disk": "#a9c6e8", "missed": "#eeeeee"}
_LINE_COLOURS = {"cached_pages": "#5b8ec9", "used_pages": "#b3541e"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em;
       color: #222; background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; } td.meaning { color: #666; }
.bar { display: flex; height: 1.6em; border: 1px solid #999; margin-bottom: .6em; }
.bar span { display: block; min-width: 0; }
.key span { display: inline-block; width: 1em; height: 1em; margin: 0 .3em 0 1em;
            vertical-align: -.15em; border: 1px solid #999; }
svg { width: 100%; height: auto; border: 1px solid #999; }
"""


def report_html(report: ReplayReport) -> str:
    """Return the page: where the prompt tokens were found, every figure, pages over time."""
    title = escape(f"Replay of {report.trace} ({report.mode})")
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="number">{escape(value)}</td>'
        f'<td class="meaning">{escape(meaning)}</td></tr>'
        for name, value, meaning in report_lines(report)
    )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        "<h2>Prompt tokens by where they were found</h2>",
        *_found(report),
        f"<h2>Figures</h2><table>{rows}</table>",
        "<h2>Pages over time</h2>",
        *_chart(report.pages.to_dict(), report.usable_pages),
        *_refused(report),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _found(report: ReplayReport) -> list[str]:
    """Return a key and a bar of all prompt tokens: found on each tier, or not at all."""
    hits = {"device": report.hit_tokens}
    if report.tiers is not None:
        hits = {tier: report.tiers.hit_tokens_by_tier[tier] for tier in TIER_NAMES}
    total = report.prompts.prompt_tokens
    shares = hits | {"missed": total - report.hit_tokens}
    key = "".join(
        f'<span style="background:{_TIER_COLOURS[name]}"></span>{name}: {tokens:,}'
        for name, tokens in shares.items()
    )
    bar = "".join(
        f'<span style="width:{100 * tokens / total:.3f}%;background:{_TIER_COLOURS[name]}"></span>'
        for name, tokens in shares.items()
    )
    return [f'<p class="key">{key}</p>', f'<div class="bar">{bar}</div>']


def _chart(series: dict[str, Any], usable_pages: int) -> list[str]:
    """Return lines of used and cached pages; full height is the pool."""
    times = series["time"]
    if not times:
        return ["<p>Nothing ran.</p>"]
    first, span = times[0], (times[-1] - times[0]) or 1
    key = "".join(
        f'<span style="background:{colour}"></span>{name.replace("_", " ")}, at most '
        f"{max(series[name]):,}"
        for name, colour in _LINE_COLOURS.items()
    )
    lines = []
    for name, colour in _LINE_COLOURS.items():
        points = " ".join(
            f"{_WIDTH * (time - first) / span:.1f},"
            f"{_HEIGHT * (1 - min(pages / usable_pages, 1)):.1f}"
            for time, pages in zip(times, series[name], strict=True)
        )
        lines.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
        )
    unit = "s" if series["unit"] == "ms" else ""
    end = f"{times[-1] / 1000:,.1f} {unit}" if unit else f"request {times[-1]:,.0f}"
    return [
        f'<p class="key">{key}; full height is the pool, the right edge {end}</p>',
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(lines)}</svg>',
    ]


def _refused(report: ReplayReport) -> list[str]:
    if not report.unservable:
        return []
    items = "".join(
        f"<li>request {request}: {escape(reason)}</li>" for request, reason in report.unservable
    )
    return [f"<h2>{report.refused_requests:,} requests can never be served</h2><ul>{items}</ul>"]

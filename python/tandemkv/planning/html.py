"""A plan as one self-contained HTML page: no script, no font, no image from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from tandemkv.planning.explain import Term, explain, explain_table
from tandemkv.planning.report import capacity_lines, rank_groups, role_table, title
from tandemkv.planning.split import TIERS
from tandemkv.sizes import format_size

if TYPE_CHECKING:
    from tandemkv.planning.result import Plan

# Told apart in grey as well: target dark, draft lighter, slack nearly white.
_COLOURS = {
    ("target", True): "#1b4f8a",
    ("target", False): "#5b8ec9",
    ("draft", True): "#b3541e",
    ("draft", False): "#e39a6b",
    ("", False): "#e4e4e4",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em;
       color: #222; background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2em .8em .2em 0; text-align: right; vertical-align: top; }
td.name, th.name { text-align: left; }
thead th { border-bottom: 1px solid #999; }
.bar { display: flex; height: 1.6em; border: 1px solid #999; margin-bottom: .6em; }
.bar span { display: block; min-width: 0; }
.key span { display: inline-block; width: 1em; height: 1em; margin: 0 .3em 0 1em;
            vertical-align: -.15em; border: 1px solid #999; }
.scroll { overflow-x: auto; }
"""


def plan_html(plan: Plan) -> str:
    """Return the page: what fits, a stacked bar of the memory per run of like ranks, every term."""
    facts = "".join(
        f'<tr><th class="name">{escape(name)}</th><td class="name">{escape(text)}</td></tr>'
        for name, text in capacity_lines(plan)
    )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>KV cache plan: {escape(title(plan))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>KV cache plan: {escape(title(plan))}</h1>",
        f"<table>{facts}</table>",
        "<h2>Memory per rank</h2>",
        _key(),
        *_bars(plan),
        "<h2>Ranks and roles</h2>",
        _table(*role_table(plan), names=2),
        "<h2>Every term</h2>",
        _table(*explain_table(plan), names=5),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _key() -> str:
    names = {
        ("target", True): "target, fixed",
        ("target", False): "target, per token",
        ("draft", True): "draft, fixed",
        ("draft", False): "draft, per token",
        ("", False): "slack",
    }
    items = (
        f'<span style="background:{_COLOURS[kind]}"></span>{name}' for kind, name in names.items()
    )
    return f'<p class="key">{"".join(items)}</p>'


def _bars(plan: Plan) -> list[str]:
    """Return a heading and a bar per run of like ranks and tier."""
    terms = explain(plan)
    bars = []
    for ranks, rank in rank_groups(plan):
        for tier in TIERS:
            budget = rank.tiers[tier].budget_bytes
            if budget == 0:
                continue
            own = [term for term in terms if (term.ranks, term.tier) == (ranks, tier)]
            label = f"{'rank' if ranks.isdigit() else 'ranks'} {ranks}, {tier}"
            bars.append(f"<div>{label}: {format_size(budget)}</div>")
            bars.append(f'<div class="bar">{"".join(_segment(t, budget) for t in own)}</div>')
    return bars


def _segment(term: Term, budget: int) -> str:
    fixed = bool(term.group) and not term.group.startswith("full_attention")
    text = f"{term.role} {term.group} {term.term}: {format_size(term.bytes)}".strip()
    share = 100 * term.bytes / budget
    return (
        f'<span style="width:{share:.6f}%;background:{_COLOURS[(term.role, fixed)]}" '
        f'title="{escape(" ".join(text.split()))}"></span>'
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, names: int) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return (
            "<tr>"
            + "".join(
                f"<{tag}{' class=name' if index < names else ''}>{escape(cell)}</{tag}>"
                for index, cell in enumerate(cells)
            )
            + "</tr>"
        )

    body = "".join(line(row, "td") for row in rows)
    return (
        f'<div class="scroll"><table><thead>{line(heads, "th")}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )

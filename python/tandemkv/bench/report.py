"""Results as rows, Markdown and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tandemkv.bench.catalog import FIGURES, NS_PER_UNIT, Figure
from tandemkv.bench.measure import Summary

COLUMNS = ("", "workload", "unit", "target", "p99", "pair", "p99", "goal", "floor", "x of floor")
"""Headings of the table. `target` and `pair` are the figures without and with a draft."""


@dataclass(frozen=True)
class Results:
    """What one run measured.

    Attributes:
        machine: date, CPU, load and versions.
        quick: whether it was a short run.
        figures: name -> role (`target`, `pair`) -> samples in the figure's unit.
        floor: entries of the floor program, in nanoseconds; empty if it did not run.
        requests: prompt, hit and output blocks of each request of W6.
    """

    machine: dict[str, Any]
    quick: bool
    figures: dict[str, dict[str, Summary]]
    floor: dict[str, float] = field(default_factory=dict)
    requests: list[tuple[int, int, int]] = field(default_factory=list)

    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table, one per measured figure, with the cells of `COLUMNS`."""
        return [
            self._row(FIGURES[name], roles)
            for name, roles in sorted(self.figures.items(), key=lambda item: _ORDER[item[0]])
        ]

    def _row(self, figure: Figure, roles: dict[str, Summary]) -> tuple[str, ...]:
        cells = [figure.workload, figure.label, figure.unit]
        for role in ("target", "pair"):
            summary = roles.get(role)
            cells += (
                ["-", "-"]
                if summary is None
                else [number(getattr(summary, figure.statistic)), number(summary.p99)]
            )
        cells.append("-" if figure.goal is None else number(figure.goal))
        floor = self.floor.get(figure.floor) if figure.floor else None
        if floor is None or "target" not in roles:
            return (*cells, "-", "-")
        bound = floor / NS_PER_UNIT[figure.unit]
        times = getattr(roles["target"], figure.statistic) / bound
        return (*cells, number(bound), f"{times:.1f}x")

    def heading(self) -> str:
        """One line that says when, where and how it was measured."""
        return heading(self.machine) + (", quick run" if self.quick else "")

    def markdown(self) -> str:
        """Return the table, with its heading below it."""
        lines = [
            "|" + "|".join(COLUMNS) + "|",
            "|---|---|---|" + "---:|" * (len(COLUMNS) - 3),
            *("|" + "|".join(row) + "|" for row in self.rows()),
        ]
        return "\n".join(lines) + f"\n\nMeasured {self.heading()}.\n"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, ready for JSON."""
        return {
            "machine": self.machine,
            "quick": self.quick,
            "figures": {
                name: {
                    "workload": FIGURES[name].workload,
                    "label": FIGURES[name].label,
                    "unit": FIGURES[name].unit,
                    "goal": FIGURES[name].goal,
                    **{role: summary.to_dict() for role, summary in roles.items()},
                }
                for name, roles in self.figures.items()
            },
            "floor_ns": self.floor,
        }


def heading(machine: dict[str, Any]) -> str:
    """Return when, where and with what something was measured, in one line."""
    cores = ",".join(str(core) for core in machine["pinned_to"])
    return (
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, on core {cores}"
        f"{' at realtime priority' if machine['realtime'] else ''}, load average "
        f"{machine['load_average']}, Linux {machine['kernel']}, Python {machine['python']}, "
        f"NumPy {machine['numpy']}, tandemkv {machine['tandemkv']}"
    )


def number(value: float) -> str:
    """Three significant digits, thousands separated: 0.124, 4.51, 18.2, 1,250."""
    if value >= 100:
        return f"{value:,.0f}"
    for limit, digits in ((10, 1), (1, 2)):
        if value >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.3f}"


_ORDER = {name: place for place, name in enumerate(FIGURES)}

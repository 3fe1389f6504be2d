"""Lines on logarithmic axes as SVG text; nothing but the standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 210, 40, 50
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#7f7f7f", "#9467bd", "#ff7f0e")


@dataclass(frozen=True)
class Line:
    """One line: its label and its points, both coordinates positive."""

    label: str
    points: Sequence[tuple[float, float]]


class Axis:
    """A logarithmic axis from one position to another."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = max(math.ceil(math.log10(max(values)) - 1e-9), self.low + 1)
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def text(x: float, y: float, what: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(what)}</text>'


def plot(title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
    """Return an SVG document with a grid line per power of ten and a legend."""
    points = [point for line in lines for point in line.points]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    x = Axis([point[0] for point in points], LEFT, right)
    y = Axis([point[1] for point in points], bottom, TOP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text((LEFT + right) / 2, 22, title, more=' font-size="15"'),
        text((LEFT + right) / 2, HEIGHT - 12, x_label),
        text(LEFT - 8, TOP - 10, y_label, "end"),
    ]
    for value in x.ticks():
        out.append(_rule(x.at(value), TOP, x.at(value), bottom))
        out.append(text(x.at(value), bottom + 18, f"{value:,.0f}"))
    for value in y.ticks():
        out.append(_rule(LEFT, y.at(value), right, y.at(value)))
        out.append(text(LEFT - 8, y.at(value) + 4, f"{value:,g}", "end"))
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in line.points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for a, b in line.points:
            value = f"<title>{escape(line.label)}: {a:,.0f}, {b:,.1f}</title>"
            at = f'cx="{x.at(a):.1f}" cy="{y.at(b):.1f}"'
            out.append(f'<circle {at} r="3" fill="{colour}">{value}</circle>')
        level = TOP + 14 + 20 * index
        out.append(
            f'<rect x="{right + 14}" y="{level - 9}" width="12" height="4" fill="{colour}"/>'
        )
        out.append(text(right + 32, level, line.label, "start"))
    return "\n".join([*out, "</svg>"]) + "\n"


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="#ddd"/>'

"""Every figure: what it counts, what is aimed at, and what bounds it.

Blocks hold 16 tokens. Goals are for one core, a release build, at the Python seam; a figure without
a goal is reported for information. The floor of a figure is the entry of the floor program
(`benchmarks/floor`) that moves the same bytes without any bookkeeping.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["ns/block", "us/step", "us", "ms", "s", "bytes/block"]

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
"""Pool sizes of W7, in blocks."""

WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8")

NS_PER_UNIT: dict[str, float] = {
    "ns/block": 1,
    "us/step": 1e3,
    "us": 1e3,
    "ms": 1e6,
    "s": 1e9,
}
"""Nanoseconds in one unit of time; bytes have none."""


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        workload: `W1` .. `W8`.
        label: what is counted.
        unit: unit of the samples, the goal and the floor as shown.
        goal: largest value aimed at, in `unit`; None where none is set.
        statistic: the value that is compared with the goal. A decode step is a mean, since a
            sixteenth of the sequences cross a block boundary in each.
        floor: name in the floor program's output; None where nothing bounds it.
    """

    workload: str
    label: str
    unit: Unit
    goal: float | None = None
    statistic: Literal["median", "mean"] = "median"
    floor: str | None = None


FIGURES: dict[str, Figure] = {
    "w1": Figure(
        "W1", "allocate + free 256 x 2,048 tokens", "ns/block", 8, floor="w1_allocate_free"
    ),
    "w2": Figure(
        "W2", "admit + publish 256 x 8,192 tokens", "ns/block", 12, floor="w2_admit_publish"
    ),
    "w2_release": Figure("W2", "release them, blocks stay cached", "ns/block"),
    "w3": Figure(
        "W3", "admit them again, pages in order", "ns/block", 10, floor="w3_again_in_order"
    ),
    "w3_scattered": Figure(
        "W3", "admit them again, pages scattered", "ns/block", 20, floor="w3_again_scattered"
    ),
    "w4": Figure("W4", "decode step, 256 sequences", "us/step", 6, "mean", "w4_decode_step"),
    "w4_speculative": Figure(
        "W4", "speculative step, 1 + 4 tokens", "us/step", 12, "mean", "w4_speculative_step"
    ),
    "w5": Figure("W5", "admit 4,096 tokens into a full cache", "ns/block", 20, floor="w5_evict"),
    "w6": Figure("W6", "replay of a request trace, 131,072 blocks", "s", 0.15, floor="w6_replay"),
    **{
        f"w7_evict_{size}": Figure(
            "W7", f"evict, {size:,} cached blocks", "ns/block", 50, floor=f"w7_evict_{size}"
        )
        for size in SIZES
    },
    **{
        f"w7_hit_{size}": Figure("W7", f"hit, {size:,} cached blocks", "ns/block") for size in SIZES
    },
    **{
        f"w7_bytes_{size}": Figure("W7", f"memory at {size:,} cached blocks", "bytes/block", 96)
        for size in SIZES
    },
    **{
        f"w7_start_{size}": Figure("W7", f"start-up with {size:,} blocks", "ms", 1000)
        for size in SIZES
    },
    "w8": Figure("W8", "table of 256 x 2,046 entries", "us", 150, floor="w8_table"),
    "w8_updates": Figure("W8", "updates after every row changed", "us", 6, floor="w8_updates"),
}
"""In the order of the table."""

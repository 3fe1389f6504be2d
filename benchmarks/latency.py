"""Latencies of single calls, counted in buckets: nothing is kept or sorted while they are taken."""

from __future__ import annotations

import time
from dataclasses import dataclass

wall = time.perf_counter_ns
cpu = time.thread_time_ns

SUB_BITS = 5
"""Each power of two has 2^5 buckets, so a value is known to 3 %."""


def bucket(value: int) -> int:
    """Bucket of a value in nanoseconds."""
    shift = max(value.bit_length() - SUB_BITS - 1, 0)
    return (shift << SUB_BITS) + (value >> shift)


def upper(index: int) -> int:
    """Largest value of a bucket."""
    shift = max((index >> SUB_BITS) - 1, 0)
    return (((index - (shift << SUB_BITS)) + 1) << shift) - 1


BUCKETS = bucket((1 << 40) - 1) + 1


@dataclass(frozen=True)
class Worst:
    """The slowest call of a kind: nanoseconds of CPU and of the clock, what it did, and when."""

    cpu: int = 0
    wall: int = 0
    size: str = ""
    second: float = 0.0


class Histogram:
    """Calls of one kind by their time on the clock and their time on the CPU.

    The clock includes what the machine does meanwhile; the CPU's time does not include other
    processes, so a stall of the ledger shows in both and a stall of the machine in the first.
    """

    def __init__(self) -> None:
        self.wall = [0] * BUCKETS
        self.cpu = [0] * BUCKETS
        self.calls = 0
        self.wall_max = 0
        self.worst = Worst()

    def add(self, wall_ns: int, cpu_ns: int) -> bool:
        """Count one call; whether it used more CPU than any before."""
        self.wall[bucket(wall_ns)] += 1
        self.cpu[bucket(cpu_ns)] += 1
        self.calls += 1
        self.wall_max = max(self.wall_max, wall_ns)
        return cpu_ns > self.worst.cpu

    def quantile(self, share: float, *, clock: str = "wall") -> int:
        """Smallest bucket end, in nanoseconds, below which at least `share` of the calls lie."""
        counts = self.wall if clock == "wall" else self.cpu
        wanted, seen = share * self.calls, 0
        for index, count in enumerate(counts):
            seen += count
            if seen >= wanted and seen > 0:
                return upper(index)
        return 0

    def to_dict(self) -> dict[str, object]:
        """Quantiles in microseconds, and the worst call."""
        names = {"median": 0.5, "p99": 0.99, "p99_9": 0.999}
        us = {
            f"{clock}_{name}_us": self.quantile(share, clock=clock) / 1e3
            for clock in ("wall", "cpu")
            for name, share in names.items()
        }
        return {
            "calls": self.calls,
            **us,
            "wall_max_us": self.wall_max / 1e3,
            "cpu_max_us": self.worst.cpu / 1e3,
            "worst_size": self.worst.size,
            "worst_second": round(self.worst.second, 1),
        }

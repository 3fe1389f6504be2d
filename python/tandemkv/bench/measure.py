"""Timing, statistics, and the machine that a measurement belongs to."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tandemkv import _core
from tandemkv.errors import TandemkvError

now = time.perf_counter_ns


class BenchmarkError(TandemkvError, RuntimeError):
    """A workload that did not do what it was to measure, or a build that is not worth measuring."""


@dataclass(frozen=True)
class Summary:
    """Samples of one figure, in the figure's unit."""

    count: int
    median: float
    mean: float
    p99: float
    min: float
    max: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Summarise at least one sample; p99 is the largest below 100 of them."""
        ordered = sorted(samples)
        return cls(
            count=len(ordered),
            median=statistics.median(ordered),
            mean=statistics.fmean(ordered),
            p99=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            min=ordered[0],
            max=ordered[-1],
        )

    def to_dict(self) -> dict[str, float]:
        """Return the numbers by name."""
        return asdict(self)


def verify(what: str, found: object, expected: object) -> None:
    """Raise `BenchmarkError` unless a workload did what it is meant to measure."""
    if found != expected:
        raise BenchmarkError(f"{what}: found {found}, expected {expected}")


def refuse_debug_build() -> None:
    """Raise `BenchmarkError` for a debug build, whose figures mean nothing."""
    if _core.DEBUG_BUILD:
        raise BenchmarkError(
            "tandemkv._core is a debug build, whose figures mean nothing; build with `make build` "
            "or `maturin develop --release`"
        )


def settle() -> None:
    """Collect garbage, so that one timed region does not pay for another."""
    gc.collect()


def resident_bytes() -> int:
    """Bytes of this process in memory, after handing free ones back (Linux)."""
    with contextlib.suppress(OSError):  # another libc: its free memory stays in the count
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def describe_machine() -> dict[str, Any]:
    """Return what a reader needs to place a figure: date, CPU, load and versions."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "pinned_to": sorted(os.sched_getaffinity(0)),
        "realtime": os.sched_getscheduler(0) in {os.SCHED_FIFO, os.SCHED_RR},
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tandemkv": _core.__version__,
        "byte_order": sys.byteorder,
    }


def _cpu() -> str:
    """Name of the CPU as the kernel reports it; some architectures give none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

"""Runs workloads and collects their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tandemkv.bench.catalog import WORKLOADS
from tandemkv.bench.measure import Summary, describe_machine, refuse_debug_build
from tandemkv.bench.report import Results
from tandemkv.bench.scale import Counts, read_requests, w6, w7
from tandemkv.bench.workloads import Samples, w1, w2_w3, w4, w5, w8
from tandemkv.errors import ConfigError


def run(
    *,
    quick: bool = False,
    workloads: Sequence[str] = WORKLOADS,
    trace: str | Path | None = None,
    on_start: Callable[[str], None] = lambda _: None,
) -> Results:
    """Measure workloads, each for a target alone and for a target with a draft beside it.

    Args:
        quick: fewer samples, and pools of at most 10^5 blocks in W7.
        workloads: which of W1 to W8; W2 and W3 run together.
        trace: request trace for W6, which does not run without one.
        on_start: called with the name of a workload and role before it runs.

    Raises:
        BenchmarkError: a debug build, or a workload that did not do what it measures.
        ConfigError: an unknown workload.
        ReplayError, TraceError: a trace that cannot be read.
    """
    refuse_debug_build()
    for name in workloads:
        if name not in WORKLOADS:
            raise ConfigError(
                f"workload {name!r} is not known; the workloads are {', '.join(WORKLOADS)}",
                field="workloads",
                value=name,
            )
    requests = read_requests(Path(trace)) if trace is not None and "W6" in workloads else None
    counts: list[Counts] = []
    machine = describe_machine()
    figures: dict[str, dict[str, Summary]] = {}
    sources: dict[str, Callable[[bool, bool], Samples]] = {
        "W1": w1,
        "W2": w2_w3,
        "W4": w4,
        "W5": w5,
        "W7": w7,
        "W8": w8,
        **({} if requests is None else {"W6": partial(w6, requests, counts)}),
    }
    wanted = {"W2" if name == "W3" else name for name in workloads}
    for role, pair in (("target", False), ("pair", True)):
        for name in sorted(wanted & sources.keys()):
            on_start(f"{'W2 and W3' if name == 'W2' else name}, {role}")
            for figure, samples in sources[name](pair, quick):
                figures.setdefault(figure, {})[role] = Summary.of(samples)
    return Results(machine=machine, quick=quick, figures=figures, requests=counts)

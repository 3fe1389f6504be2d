"""Cost against batch size, and plots of it and of cost against pool size.

    .venv/bin/python benchmarks/scaling.py --json --update-docs

Batches of 1 to 1,024 sequences are measured here. The figures against pool size are those of W7 in
the newest file that `workloads.py --json` kept. The plots are `docs/cost-by-batch.svg` and
`docs/cost-by-pool.svg`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import numpy as np
from plot import Line, plot
from results import ROOT, keep

from tandemkv.bench.catalog import SIZES
from tandemkv.bench.measure import describe_machine, now, refuse_debug_build, settle
from tandemkv.bench.seam import TOKENS_PER_BLOCK, Decode, Seam
from tandemkv.bench.workloads import random_tokens
from tandemkv.cli.bench import pin

BATCHES = tuple(2**power for power in range(11))
LENGTH = 1024
SERIES = ("decode step", "speculative step, 1 + 4", "admit + publish 1,024 tokens", "release")


def measure(size: int, steps: int) -> dict[str, float]:
    """Medians of one batch size, target and draft, in nanoseconds per sequence."""
    room = 2 * steps * 5 + 2 * TOKENS_PER_BLOCK
    seam = Seam(
        blocks=size * ((LENGTH + room) // TOKENS_PER_BLOCK + 3) * 2,
        max_sequences=size,
        max_seq_len=LENGTH + room,
        pair=True,
    )
    admitted, released = [], []
    batch = seam.admission(size)
    for run in range(5):
        prompts = list(random_tokens(run * 10_000 + size, size, LENGTH))
        prompts = [p[: LENGTH - at * 7 % TOKENS_PER_BLOCK] for at, p in enumerate(prompts)]
        settle()
        start = now()
        seam.place(batch, prompts)
        admitted.append(now() - start)
        if run < 4:
            start = now()
            seam.release(batch)
            released.append(now() - start)
    found = {SERIES[2]: admitted, SERIES[3]: released}
    rng = np.random.default_rng(3)
    for name, width in ((SERIES[0], 1), (SERIES[1], 5)):
        decode = Decode(batch.handle, width)
        tokens = rng.integers(0, 2**31 - 1, size=(steps, size, width), dtype=np.int32)
        counts = rng.integers(1, width + 1, size=(steps, size), dtype=np.int32)
        settle()
        samples = found[name] = []
        for at in range(steps):
            start = now()
            seam.step(decode, tokens[at], counts[at])
            samples.append(now() - start)
    return {name: statistics.median(samples) / size for name, samples in found.items()}


def plot_batches(found: dict[int, dict[str, float]]) -> None:
    lines = [Line(name, [(size, times[name]) for size, times in found.items()]) for name in SERIES]
    text = plot("Cost per sequence by batch size", "sequences in the batch", "ns", lines)
    (ROOT / "docs/cost-by-batch.svg").write_text(text)


def plot_pools() -> None:
    """Plot W7 from the newest kept measurement of the workloads."""
    kept = sorted((ROOT / "benchmarks/results").glob("????-??-??-*.json"))
    runs = [json.loads(path.read_text()) for path in kept]
    runs = [run for run in runs if f"w7_evict_{SIZES[-1]}" in run.get("figures", {})]
    if not runs:
        sys.exit("error: no kept measurement has W7; run benchmarks/workloads.py --json first")
    run: dict[str, Any] = max(runs, key=lambda run: run["machine"]["date"])

    def line(label: str, figure: str, role: str, statistic: str) -> Line:
        figures = run["figures"]
        sizes = [size for size in SIZES if f"{figure}_{size}" in figures]
        return Line(label, [(size, figures[f"{figure}_{size}"][role][statistic]) for size in sizes])

    floor = [(size, run["floor_ns"].get(f"w7_evict_{size}")) for size in SIZES]
    lines = [
        line("evict, target", "w7_evict", "target", "median"),
        line("evict, pair", "w7_evict", "pair", "median"),
        line("hit, target", "w7_hit", "target", "median"),
        Line("floor of evict", [(size, value) for size, value in floor if value]),
    ]
    text = plot("Cost per block by pool size (W7)", "blocks in the pool", "ns", lines)
    (ROOT / "docs/cost-by-pool.svg").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--core", type=int, help="core to run on; default: the last one")
    parser.add_argument("--json", action="store_true", help="keep the figures in results/")
    parser.add_argument("--update-docs", action="store_true", help="rewrite the plots in docs/")
    arguments = parser.parse_args()
    refuse_debug_build()
    pin(arguments.core)
    machine = describe_machine()
    found = {size: measure(size, arguments.steps) for size in BATCHES}
    for size, times in found.items():
        print(f"{size:5}  " + "  ".join(f"{name} {ns:.1f}" for name, ns in times.items()))
    if arguments.json:
        content = {"machine": machine, "ns_per_sequence": found}
        path = keep("batch", machine, json.dumps(content, indent=1))
        print(f"kept in {path.relative_to(ROOT)}", file=sys.stderr)
    if arguments.update_docs:
        plot_batches(found)
        plot_pools()


if __name__ == "__main__":
    main()

"""Time of one plan: the largest bundled config on 4,096 ranks, and with a budget per rank.

    .venv/bin/python benchmarks/plan_ranks.py [--json]

The layout is 64 tensor-parallel ranks times 64 stages for a model with a layer per stage or more.
Medians of 21 runs after 3 that do not count.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import tandemkv as tkv
from tandemkv import _core

CONFIGS = Path(__file__).resolve().parents[1] / "tests" / "data" / "configs"
TARGET = "meta-llama__Meta-Llama-3.1-405B.json"
DRAFT = "DRAFT__SpecForge__llama3-8B-eagle3.json"
TP_SIZE, PP_SIZE = 64, 64
WARM_UPS, RUNS = 3, 21


def main() -> None:
    """Measure and print a line per variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    as_json = parser.parse_args().json
    if _core.DEBUG_BUILD:
        raise SystemExit("this is a debug build; build with `make build`")
    target = tkv.ModelGeometry.from_hf(CONFIGS / TARGET)
    draft = tkv.ModelGeometry.from_hf(CONFIGS / DRAFT, role="draft")
    arguments: dict[str, Any] = {
        "config": tkv.KvCacheConfig(
            max_gpu_total_bytes="40GiB", host_cache_size="64GiB", max_seq_len=131072
        ),
        "mapping": tkv.Mapping(tp_size=TP_SIZE, pp_size=PP_SIZE),
        "speculative": tkv.SpeculativeConfig(mode="eagle3", max_draft_len=4),
    }
    ranks = TP_SIZE * PP_SIZE
    uneven = [40 * 2**30 - 4096 * rank for rank in range(ranks)]
    figures = {
        "equal_budgets_ms": median_ms(lambda: tkv.plan(target, draft, **arguments)),
        "budget_per_rank_ms": median_ms(
            lambda: tkv.plan(target, draft, **arguments, device_bytes=uneven)
        ),
    }
    if as_json:
        print(json.dumps({"ranks": ranks, "layers": target.num_layers, **figures}))
        return
    print(f"{target.name}, {target.num_layers} layers + {draft.num_layers} draft, {ranks:,} ranks")
    for name, milliseconds in figures.items():
        print(f"{name:<20}{milliseconds:8.1f}")


def median_ms(call: Any) -> float:
    """Return the median time of `call` in milliseconds, the collector's pauses included."""
    for _ in range(WARM_UPS):
        call()
    gc.collect()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()

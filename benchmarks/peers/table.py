"""Run ours beside other libraries in one harness, and write the table of docs/performance.md.

    .venv/bin/python benchmarks/peers/table.py --harness $HARNESS --python $PYTHON --update-docs

`benchmarks/README.md` says what a harness is. Its `run.py` measures each (library, workload) in a
process of its own on one core; libraries are found through its environment variables, under the
interpreter given, which needs what they import.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import ROOT, keep, replace_part

from tandemkv.bench.measure import describe_machine, refuse_debug_build
from tandemkv.bench.report import heading, number

ADAPTER = ROOT / "benchmarks/peers/tandemkv_peer.py"
TRACE = ROOT / "tests/data/traces/mooncake_fast25_synthetic_trace.jsonl"
LONGEST = 140_000 - 16
"""Tokens of the longest sequence in the harness's W6."""
OURS = {"tandemkv": "Tandemkv", "tandemkv-pair": "TandemkvPair"}
PEERS = ("tandemkv", "tandemkv-pair", "vllm", "sglang-rust-p1", "lmdeploy", "transformers")
WORKLOADS = ("W1", "W2W3", "W4", "W5", "W6", "W7", "W8")

# Label, workload, path in the harness's result, and what its unit is divided by.
ROWS: tuple[tuple[str, str, tuple[str, ...], float], ...] = (
    ("W1 allocate 256 x 2,048 tokens, ns/block", "W1", ("alloc_ns_per_block",), 1),
    ("W1 free them, ns/block", "W1", ("free_ns_per_block",), 1),
    ("W2 admit + publish 8,192-token prompts, ns/block", "W2W3", ("miss_ns_per_block",), 1),
    ("W3 admit them again, ns/block", "W2W3", ("hit_ns_per_block",), 1),
    ("W4 decode step, 256 sequences, us", "W4", ("step_us",), 1),
    ("W4 speculative step, 1 + 4 tokens, us", "W4", ("spec_step_us",), 1),
    ("W5 admit under eviction, ns per evicted block", "W5", ("admit_us",), 256e-3),
    ("W6 replay of the bundled trace, s", "W6", ("total_s",), 1),
    ("W6 one admission, us", "W6", ("admit_us",), 1),
    *(
        (f"W7 {label}, {size:,} cached blocks, {unit}", "W7", (str(size), name), 1)
        for size in (10_000, 100_000, 1_000_000)
        for label, name, unit in (
            ("evict", "evict_ns_per_block", "ns/block"),
            ("hit", "hit_ns_per_block", "ns/block"),
            ("memory", "rss_cached_bytes_per_block", "bytes/block"),
        )
    ),
    ("W8 padded table of 256 x 2,046 entries, us", "W8", ("full_us",), 1),
    ("W8 update after every row changed, us", "W8", ("step_all_rows_new_us",), 1),
)


def cell(result: dict[str, Any] | None, path: tuple[str, ...], unit: float) -> str:
    """Return median and p99, or one number where there is one; `-` where there is none."""
    value: Any = (result or {}).get("result")
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, dict):
        return f"{number(value['median'] / unit)} ({number(value['p99'] / unit)})"
    return "-" if value is None else number(value / unit)


def markdown(results: list[dict[str, Any]], peers: list[str]) -> str:
    by = {(result["peer"], result["work"]): result for result in results}
    lines = ["|workload, median (p99)|" + "|".join(peers) + "|", "|---|" + "---:|" * len(peers)]
    for label, work, path, unit in ROWS:
        cells = [cell(by.get((peer, work)), path, unit) for peer in peers]
        lines.append("|" + "|".join([label, *cells]) + "|")
    infos = [result["info"] for result in results if "info" in result]
    versions = {info["name"]: str(info["version"]) for info in infos}
    named = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return "\n".join(lines) + f"\n\nVersions: {named}.\n"


def write_trace(path: Path) -> tuple[int, int]:
    """Write the requests of W6 that fit the harness's longest sequence; how many of how many."""
    lines = TRACE.read_text().splitlines(keepends=True)
    requests = [json.loads(line) for line in lines]
    lengths = [request["input_length"] + request["output_length"] for request in requests]
    kept = [line for line, length in zip(lines, lengths, strict=True) if length < LONGEST]
    path.write_text("".join(kept))
    return len(kept), len(lines)


def run(arguments: argparse.Namespace, out: Path, trace: Path) -> None:
    """Let the harness measure everything; it keeps what it has after each process."""
    command = [arguments.python, str(arguments.harness / "run.py"), "--out", str(out)]
    command += ["--peers", arguments.peers, "--work", arguments.only]
    command += ["--core", str(arguments.core), "--timeout", "3600"]
    for name, kind in OURS.items():
        command += ["--extra", f"{name}={ADAPTER}:{kind}"]
    places = {"PYTHONPATH": str(ROOT / "python"), "PEERBENCH_TRACE": str(trace)}
    subprocess.run(command, check=True, env={**os.environ, **places})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--harness", type=Path, required=True, help="folder with its run.py")
    parser.add_argument("--python", default=sys.executable, help="interpreter for all libraries")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--core", type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument("--json", action="store_true", help="keep the figures in results/")
    parser.add_argument("--update-docs", action="store_true", help="rewrite docs/performance.md")
    arguments = parser.parse_args()
    refuse_debug_build()
    with tempfile.TemporaryDirectory() as folder:
        out, trace = Path(folder) / "results.json", Path(folder) / "trace.jsonl"
        kept, requests = write_trace(trace)
        run(arguments, out, trace)
        results = json.loads(out.read_text())
    for result in results:
        if "error" in result:
            print(f"{result['peer']} {result['work']}: {result['error']}", file=sys.stderr)
    machine = {**describe_machine(), "pinned_to": [arguments.core]}
    page = (
        markdown(results, arguments.peers.split(","))
        + f"\n{kept:,} of the trace's {requests:,} requests in W6. Measured {heading(machine)}.\n"
    )
    print(page, end="")
    if arguments.json:
        content = {"machine": machine, "results": results}
        path = keep("peers", machine, json.dumps(content, indent=1))
        print(f"kept in {path.relative_to(ROOT)}", file=sys.stderr)
    if arguments.update_docs:
        replace_part("peers", page)


if __name__ == "__main__":
    main()

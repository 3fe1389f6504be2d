"""Measure the workloads and their floor, and print the table of docs/performance.md.

    .venv/bin/python benchmarks/workloads.py                 # print the table
    .venv/bin/python benchmarks/workloads.py --json          # and keep it in benchmarks/results
    .venv/bin/python benchmarks/workloads.py --update-docs   # and put it into docs/performance.md

The workloads live in `tandemkv.bench`, so that `tandemkv bench` runs them too; what this adds is
the bundled trace (W6) and the floor program, which cargo builds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from results import ROOT, keep, replace_part

from tandemkv.bench import WORKLOADS, Results, run
from tandemkv.cli.bench import pin

TRACE = ROOT / "tests/data/traces/mooncake_fast25_synthetic_trace.jsonl"


def build_floor() -> Path:
    """Build the floor program and return its path."""
    command = ["cargo", "build", "--release", "--locked", "-p", "tandemkv-floor"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target/release/tandemkv-floor"


def run_floor(program: Path, results: Results) -> dict[str, float]:
    """Run the floor program on this process's core; W6 gets the requests that were replayed."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{prompt} {hit} {output}\n" for prompt, hit, output in results.requests)
        file.flush()
        command = [str(program), *(["--quick"] if results.quick else [])]
        if results.requests:
            command += ["--requests", file.name]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    floor: dict[str, float] = json.loads(output)
    return floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples and smaller pools")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, W1,W4 for example")
    parser.add_argument("--trace", type=Path, default=TRACE, help="request trace of W6")
    parser.add_argument("--core", type=int, help="core to run on; default: the last one")
    parser.add_argument("--json", action="store_true", help="keep all statistics in results/")
    parser.add_argument("--update-docs", action="store_true", help="rewrite docs/performance.md")
    arguments = parser.parse_args()

    program = build_floor()  # on all cores, before this process keeps to one
    pin(arguments.core)
    results = run(
        quick=arguments.quick,
        workloads=arguments.only.split(","),
        trace=arguments.trace,
        on_start=lambda name: print(f"measuring {name}", file=sys.stderr),
    )
    results = replace(results, floor=run_floor(program, results))
    table = results.markdown()
    print(table, end="")
    if arguments.json:
        path = keep("", results.machine, json.dumps(results.to_dict(), indent=1))
        print(f"kept in {path.relative_to(ROOT)}", file=sys.stderr)
    if arguments.update_docs:
        replace_part("measured", table)


if __name__ == "__main__":
    main()

"""Measure all that docs/performance.md shows, and rewrite it: one command for a quiet machine.

    .venv/bin/python benchmarks/measure_all.py [--harness $HARNESS --peer-python $PYTHON]

In turn: the workloads and their floor, the step with everything on, cost against batch size and the
plots, ten minutes of churn, and, with a harness, ours beside other libraries.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="length of the churn")
    parser.add_argument("--harness", help="folder of a harness, see benchmarks/README.md")
    parser.add_argument("--peer-python", default=sys.executable, help="its interpreter")
    arguments = parser.parse_args()
    commands = [
        ["workloads.py", "--json", "--update-docs"],
        ["step_profile.py", "--update-docs"],
        ["scaling.py", "--json", "--update-docs"],
        ["churn.py", "--json", "--update-docs", "--seconds", str(arguments.seconds)],
    ]
    if arguments.harness:
        place = ["--harness", arguments.harness, "--python", arguments.peer_python]
        commands.append(["peers/table.py", "--json", "--update-docs", *place])
    for script, *options in commands:
        start = time.monotonic()
        subprocess.run([sys.executable, str(HERE / script), *options], check=True)
        print(f"{script}: {time.monotonic() - start:,.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

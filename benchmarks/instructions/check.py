"""Count the instructions of the core's operations and compare them with the committed baseline.

    python3 benchmarks/instructions/check.py            # exit status 1 if one grew too much
    python3 benchmarks/instructions/check.py --update   # write baseline.json

valgrind counts what runs inside one function of `tandemkv_benchmarks`; unlike time, the count does
not depend on the machine's load. It depends a little on the compiler and on the C library's copy
routines, hence the tolerance. Needs cargo and valgrind (Debian: `apt install valgrind`).
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BASELINE = Path(__file__).with_name("baseline.json")

# Operation -> (the function whose instructions count, the unit they are divided by).
OPERATIONS = {
    "admit_publish": ("*instructions::place_last*", "block"),
    "admit_again": ("*instructions::place_last*", "block"),
    "admit_again_scattered": ("*instructions::place_last*", "block"),
    "decode_step": ("*measured::step*", "sequence and step"),
    "speculative_step": ("*measured::step*", "sequence and step"),
    "release": ("*measured::release*", "sequence"),
    "evict": ("*instructions::place_last*", "evicted block"),
    "updates": ("*measured::updates*", "changed entry"),
}
ROLES = ("target", "pair")


def build() -> Path:
    command = ["cargo", "build", "--release", "--locked", "-p", "tandemkv-benchmarks"]
    subprocess.run(command, cwd=ROOT, check=True)
    return ROOT / "target/release/instructions"


def count(program: Path, operation: str, role: str) -> float:
    """Instructions per unit of one operation."""
    function, _ = OPERATIONS[operation]
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        f"--toggle-collect={function}",
        str(program),
        operation,
        role,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    collected = re.search(r"Collected : (\d+)", result.stderr)
    if result.returncode != 0 or collected is None or collected.group(1) == "0":
        sys.exit(f"error: {' '.join(command)} counted nothing:\n{result.stderr}")
    return int(collected.group(1)) / int(result.stdout)


def compare(found: dict[str, float], tolerance: float) -> bool:
    """Print each operation beside its baseline; whether none grew beyond the tolerance."""
    baseline = json.loads(BASELINE.read_text())["instructions"]
    fine = True
    for name, value in found.items():
        unit = OPERATIONS[name.partition("/")[0]][1]
        if name not in baseline:
            sys.exit(f"error: {BASELINE}: no entry {name!r}; write it with --update")
        change = value / baseline[name] - 1
        verdict = "more" if change > tolerance else "fewer" if change < -tolerance else "same"
        fine &= verdict != "more"
        print(
            f"{name:30} {value:10.1f} per {unit:18} baseline {baseline[name]:10.1f} "
            f"{change:+7.1%}  {verdict}"
        )
    return fine


def compiler() -> str:
    command = ["rustc", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--tolerance", type=float, default=0.1, help="share of the baseline")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("error: valgrind not found: install it (Debian: apt install valgrind) and retry")
    program = build()
    found = {
        f"{operation}/{role}": round(count(program, operation, role), 1)
        for operation in OPERATIONS
        for role in ROLES
    }
    if arguments.update:
        content = {
            "compiler": compiler(),
            "machine": platform.machine(),
            "instructions": found,
        }
        BASELINE.write_text(json.dumps(content, indent=1) + "\n")
        print(f"wrote {BASELINE.relative_to(ROOT)}")
    elif not compare(found, arguments.tolerance):
        sys.exit(1)


if __name__ == "__main__":
    main()

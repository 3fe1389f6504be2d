"""Where measurements are kept: files named after the day and the CPU, and parts of a page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/performance.md"


def keep(name: str, machine: dict[str, Any], content: str) -> Path:
    """Write a measurement to `benchmarks/results/<date>-<cpu>[-<name>].json`."""
    cpu = re.sub(r"[^a-z0-9]+", "-", machine["cpu"].lower()).strip("-")
    end = f"-{name}" if name else ""
    path = ROOT / f"benchmarks/results/{machine['date'][:10]}-{cpu}{end}.json"
    path.write_text(content + "\n")
    return path


def replace_part(name: str, text: str) -> None:
    """Replace what stands between the markers of a part of docs/performance.md."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, found, rest = PAGE.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"error: {PAGE}: the markers of the part {name!r} are missing")
    PAGE.write_text(f"{before}{begin}{text}{end}{after}")

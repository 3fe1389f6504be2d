"""What a scheduler step costs at the seam: the workloads W1 to W8 on this machine.

| module | holds |
|---|---|
| `catalog` | every figure: its name, unit, goal and the row of the floor program that bounds it |
| `seam` | the ledger called as an engine calls it: arrays made once, one call per kind and step |
| `workloads` | W1 to W5 and W8; each verifies what it measured |
| `scale` | W6, a request trace, and W7, pools of 10^4 to 10^7 blocks |
| `measure` | timing, statistics, and what machine it ran on |
| `report` | results as a table, Markdown or JSON |

`tandemkv bench` and `python -m tandemkv.bench` run them; `docs/performance.md` has figures.
"""

from __future__ import annotations

from tandemkv.bench.catalog import FIGURES, WORKLOADS, Figure
from tandemkv.bench.measure import BenchmarkError, Summary
from tandemkv.bench.report import Results
from tandemkv.bench.run import run

__all__ = ["FIGURES", "WORKLOADS", "BenchmarkError", "Figure", "Results", "Summary", "run"]

"""`tandemkv bench`: what the ledger costs a scheduler on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tandemkv.bench import WORKLOADS, Results, run
from tandemkv.bench.report import COLUMNS


@click.command("bench")
@click.option("--quick", is_flag=True, help="Fewer samples, and pools of at most 10^5 blocks.")
@click.option("--only", default=",".join(WORKLOADS), help="Workloads, W1,W4 for example.")
@click.option(
    "--trace", type=click.Path(), metavar="FILE", help="Request trace for W6; without one: no W6."
)
@click.option("--core", type=int, help="Pin the process to this core. Default: the last one.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print all statistics as JSON.")
def bench(
    *,
    quick: bool,
    only: str,
    trace: str | None,
    core: int | None,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Measure the workloads W1 to W8 at the batch seam, for a target alone and with a draft.

    docs/performance.md says what each row means.
    """
    pin(core)
    results = run(
        quick=quick,
        workloads=only.split(","),
        trace=None if trace is None else Path(trace),
        on_start=lambda name: print(f"measuring {name}", file=sys.stderr),
    )
    if as_json:
        click.echo(json.dumps(results.to_dict(), indent=2))
    elif as_markdown:
        click.echo(results.markdown(), nl=False)
    else:
        _print_table(results)


def pin(core: int | None) -> None:
    """Keep the process on one core, so that its caches stay warm.

    Raises:
        click.BadParameter: a core that this process may not use.
    """
    allowed = os.sched_getaffinity(0)
    chosen = max(allowed) if core is None else core
    if chosen not in allowed:
        names = ", ".join(str(name) for name in sorted(allowed))
        raise click.BadParameter(f"core {chosen} is not among those allowed: {names}")
    os.sched_setaffinity(0, {chosen})


def _print_table(results: Results) -> None:
    table = Table(box=None, pad_edge=False)
    # What bounds a figure is known to the project's own benchmarks, not to an installed package.
    shown = len(COLUMNS) if results.floor else len(COLUMNS) - 2
    for place, name in enumerate(COLUMNS[:shown]):
        table.add_column(name, justify="left" if place < 3 else "right", no_wrap=True)
    for row in results.rows():
        table.add_row(*row[:shown])
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # a file or a pipe has no width to fit into
        console.width = 160
    console.print(table)
    console.print(results.heading(), soft_wrap=True)

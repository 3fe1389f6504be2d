"""How `tandemkv plan` shows a plan on a terminal or in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

from tandemkv.planning import Plan
from tandemkv.planning.explain import explain_table
from tandemkv.planning.report import NAME_COLUMNS, capacity_lines, role_table, title

PIPE_COLUMNS = 160
"""Width of the output where there is no terminal."""

_EXPLAIN_NAMES = 5
"""The first columns of `explain_table` are names."""


def make_console() -> Console:
    """Return a console; into a pipe or a file, lines are as long as they need to be."""
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, width=PIPE_COLUMNS)


def print_plan(result: Plan, request_len: int | None, *, explains: bool) -> None:
    """Print what fits, the table of ranks and roles, and on request every term."""
    console = make_console()
    console.print(f"KV cache plan: {title(result)}", style="bold")
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    for name, text in capacity_lines(result, request_len):
        facts.add_row(name, text)
    console.print(facts)
    print_table(console, *role_table(result), names=NAME_COLUMNS)
    if explains:
        print_table(console, *explain_table(result), names=_EXPLAIN_NAMES)


def print_table(
    console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], *, names: int
) -> None:
    """Print an empty line and a table whose first `names` columns are names, the rest numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, heading in enumerate(heads):
        # Folded where a terminal is too narrow: no digit is ever cut off.
        justify: Literal["left", "right"] = "left" if index < names else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)

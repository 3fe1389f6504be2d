"""`tandemkv cache`: what lies in the folder of a disk tier."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tandemkv.errors import TierError
from tandemkv.sizes import format_size
from tandemkv.tiers.disk import DiskStore, StoreReport, remove_store
from tandemkv.tiers.disk.header import HEADER

OK, DAMAGED = 0, 1

_path = click.argument("path", type=click.Path(file_okay=False))
_json = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")


@click.group("cache", invoke_without_command=True)
@click.pass_context
def cache(ctx: click.Context) -> None:
    """Examine or clear the pages that a disk tier keeps in a folder."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cache.command("inspect")
@_path
@_json
def inspect(path: str, as_json: bool) -> int:
    """Show what PATH holds, by what its pages say about themselves."""
    _check_is_of_a_rank(path)
    _print(_report(path, contents=False), as_json)
    return OK


@cache.command("verify")
@_path
@_json
def verify(path: str, as_json: bool) -> int:
    """Read and check every page in PATH.

    Exit status 1: some are damaged. They are misses, and will be written over.
    """
    _check_is_of_a_rank(path)
    report = _report(path, contents=True)
    _print(report, as_json)
    return DAMAGED if report.damaged else OK


@cache.command("clear")
@_path
@_json
def clear(path: str, as_json: bool) -> int:
    """Remove the pages in PATH, damaged or not."""
    _check_is_of_a_rank(path)
    size = remove_store(path)
    if as_json:
        click.echo(json.dumps({"path": path, "removed_bytes": size}, indent=2))
    else:
        click.echo(f"{path}: {format_size(size)} removed")
    return OK


def _check_is_of_a_rank(path: str) -> None:
    """Refuse the folder in which each rank has one of its own.

    Raises:
        TierError: names those of the ranks.
    """
    ranks = sorted(folder.name for folder in Path(path).glob("rank*") if folder.is_dir())
    if ranks and not (Path(path) / HEADER).exists():
        raise TierError(
            f"{path} holds the folders of ranks: name one of them, {', '.join(ranks)}", tier="disk"
        )


def _report(path: str, *, contents: bool) -> StoreReport:
    with DiskStore.reopen(path) as store:
        return store.report(contents=contents)


def _print(report: StoreReport, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
        return
    console = Console(highlight=False, markup=False)
    console.print(f"{report.path}: {format_size(report.file_bytes)}", soft_wrap=True)
    console.print(f"fingerprint {report.fingerprint}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("class", "page", "pages", "entries", "older", "empty", "damaged")
    for name in columns:
        table.add_column(name, justify="right")
    for number, counts in enumerate(report.classes):
        cells = [str(counts[name]) for name in columns[2:]]
        table.add_row(str(number), format_size(counts["page_bytes"]), *cells)
    console.print(table)
    for item in report.damaged:
        console.print(f"class {item.class_index}, page {item.page}: {item.problem}", soft_wrap=True)

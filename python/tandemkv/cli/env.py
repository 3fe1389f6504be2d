"""`tandemkv env`: versions, build kind and devices; meant to be pasted into a bug report."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tandemkv.environment import collect_environment


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def env(as_json: bool) -> None:
    """Show versions, the kind of build and the CUDA devices of this machine."""
    report = collect_environment()
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in report_rows(report):
        table.add_row(name, value)
    Console(highlight=False, markup=False).print(table)


def report_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the report as (name, text) rows, in the order they are shown."""
    rows: list[tuple[str, str]] = []
    for section in ("tandemkv", "python", "platform"):
        rows += [
            (section if name == "version" else f"{section} {name}", str(value))
            for name, value in report[section].items()
        ]
    rows += [(module, _package_text(facts)) for module, facts in report["packages"].items()]
    cuda = report["cuda"]
    rows.append(("CUDA driver", cuda.get("driver_version") or f"none ({cuda['error']})"))
    rows += [
        (f"CUDA device {index}", _device_text(device))
        for index, device in enumerate(cuda.get("devices", []))
    ]
    return rows


def _package_text(facts: dict[str, Any]) -> str:
    error = facts.get("error")
    if facts.get("version") is None:
        return f"unknown ({error})" if error else "not installed"
    text = f"{facts['version']} ({facts['distribution']})"
    return f"{text}, does not import: {error}" if error else text


def _device_text(device: dict[str, Any]) -> str:
    if "error" in device:
        return f"unknown ({device['error']})"
    memory = device["memory_bytes"] / 2**30
    return f"{device['name']}, compute capability {device['compute_capability']}, {memory:.1f} GiB"

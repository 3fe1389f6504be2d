"""`tandemkv plan --sweep`: the same plan for several values of one option."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from tandemkv.cli.plan_output import make_console, print_table
from tandemkv.errors import BudgetError, ConfigError
from tandemkv.planning import Plan
from tandemkv.sizes import format_size

SWEEPABLE = (
    *("tokens_per_block", "max_batch_size", "max_seq_len", "max_num_tokens", "cached_endpoints"),
    *("tp", "pp", "cp", "draft_tp", "kv_dtype", "draft_kv_dtype", "spec"),
    *("gpu_memory", "host_memory"),
)
"""Options that can take several values, as they are shown."""

_OK, _DOES_NOT_FIT = 0, 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """One option and the values it takes: their text, and what the command makes of it."""

    name: str
    parameter: str
    values: tuple[tuple[str, Any], ...]


def read_sweep(ctx: click.Context, text: str) -> Sweep:
    """Read `tokens_per_block=16,32,64`; dashes in the name do as well.

    Raises:
        ConfigError: no such option, or no value.
        click.BadParameter: a value that the option does not take.
    """
    given, _, listed = text.partition("=")
    name = given.strip().removeprefix("--").replace("-", "_")
    values = [value.strip() for value in listed.split(",")]
    if name not in SWEEPABLE or not all(values):
        raise ConfigError(
            f"--sweep is {text!r}; OPTION=A,B,... is needed, OPTION one of {', '.join(SWEEPABLE)}",
            field="--sweep",
            value=text,
        )
    flag = "--" + name.replace("_", "-")
    [option] = [param for param in ctx.command.params if flag in param.opts]
    assert option.name is not None, "click names every option"
    return Sweep(
        name, option.name, tuple((value, option.process_value(ctx, value)) for value in values)
    )


def run_sweep(
    sweep: Sweep,
    given: dict[str, Any],
    make_plan: Callable[[dict[str, Any]], Plan],
    request_len: int | None,
    as_json: bool,
) -> int:
    """Print one row per value and return the exit status: 1 if none of them fits."""
    answers: list[tuple[str, Plan | BudgetError]] = []
    for text, value in sweep.values:
        try:
            answers.append((text, make_plan(given | {sweep.parameter: value})))
        except BudgetError as error:
            answers.append((text, error))
    if as_json:
        results = [_entry(text, answer, request_len) for text, answer in answers]
        click.echo(json.dumps({"sweep": sweep.name, "results": results}, indent=2))
    else:
        heads = (sweep.name, "blocks", "tokens", "concurrent requests", "slack, all ranks")
        rows = [_row(text, answer, request_len) for text, answer in answers]
        print_table(make_console(), heads, rows, names=1)
    fits = any(isinstance(answer, Plan) for _, answer in answers)
    return _OK if fits else _DOES_NOT_FIT


def _entry(text: str, answer: Plan | BudgetError, request_len: int | None) -> dict[str, Any]:
    if isinstance(answer, BudgetError):
        return {"value": text, "plan": None, "error": str(answer)}
    entry: dict[str, Any] = {"value": text, "plan": answer.to_dict(), "error": None}
    return entry | requests_at(answer, request_len)


def requests_at(plan: Plan, request_len: int | None) -> dict[str, int]:
    """Return what JSON says of `--request-len`: how many fit, and how many run; {} without it."""
    if request_len is None:
        return {}
    return {
        "request_len": request_len,
        "concurrency_at_request_len": plan.concurrency(request_len),
        "running_requests_at_request_len": plan.running_requests(request_len),
    }


def _row(text: str, answer: Plan | BudgetError, request_len: int | None) -> tuple[str, ...]:
    if isinstance(answer, BudgetError):
        return text, "does not fit", "", "", ""
    length = answer.max_seq_len if request_len is None else request_len
    slack = sum(rank.slack_bytes for rank in answer.ranks)
    return (
        text,
        f"{answer.num_blocks:,}",
        "no limit" if answer.max_tokens is None else f"{answer.max_tokens:,}",
        f"{answer.running_requests(length):,} of {length:,}",
        format_size(slack),
    )

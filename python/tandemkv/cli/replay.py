"""`tandemkv replay`: how well a budget serves a request trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tandemkv.cli import options
from tandemkv.cli.plan import read_draft
from tandemkv.cli.replay_options import check_options, check_tiers, whole_pages
from tandemkv.config import EVICTION_POLICIES, KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import ReplayError
from tandemkv.geometry.layers import ModelGeometry
from tandemkv.managers import build_managers
from tandemkv.planning import Plan
from tandemkv.planning import plan as make_plan
from tandemkv.planning.groups import FULL
from tandemkv.replay import (
    Links,
    ModelledExecutor,
    ReplayReport,
    ServingOptions,
    Trace,
    read_trace,
    replay_cache,
    serve,
)
from tandemkv.replay.html import report_html
from tandemkv.replay.render import print_report
from tandemkv.tiers import tier_pages

OK, DOES_NOT_FIT = 0, 1

_MAX_NUM_TOKENS = 8192
"""Tokens of a step where nothing was given; the chunk of common engines."""

_PER_SECOND = "Bytes per second, rank and direction"
_AT_ONCE = "default: copies take no time"

_TOKENS_PER_BLOCK = 32
"""The ledger's block in serving where nothing was given, as in `KvCacheConfig`."""


@click.command("replay")
@click.option("--trace", "path", required=True, metavar="FILE", help="The trace, any known format.")
@click.option("--trace-block-size", type=int, help="Tokens per hash block of the trace.")
@click.option(
    "--hash-ids",
    type=click.Choice(["full", "ceil"]),
    help="One id per full or per started block; default: what the rows say.",
)
@click.option(
    "--time-unit", type=click.Choice(["ms", "s"]), help="Unit of the trace's times, if it has none."
)
@click.option(
    "--tokens-per-block",
    type=int,
    help="The ledger's block. Default: the trace's with --cache-only, else 32; needed for an Azure "
    "trace, which has no block. Also the trace's block if that is not known.",
)
@click.option("--model", help="config.json of the target, or its folder.")
@click.option("--draft", help="config.json of the draft; MTP modes read it from --model.")
@options.speculation("--spec", help=options.SPEC_HELP)
@options.size("--gpu-memory", help="Device bytes per rank.")
@options.size("--host-memory", help="Host bytes per rank; default: no host tier.")
@options.size("--disk-memory", help="Disk bytes per rank; default: no disk tier.")
@options.size("--host-bandwidth", help=f"{_PER_SECOND} between device and host; {_AT_ONCE}.")
@options.size("--disk-bandwidth", help=f"{_PER_SECOND} from and to disk; {_AT_ONCE}.")
@click.option("--kv-dtype", help="bf16, fp16, fp32, fp8 or nvfp4; default: the config's.")
@click.option("--draft-kv-dtype", help="The same for the draft; never inherited from the target.")
@click.option("--tp", "tp_size", type=int, default=1, show_default=True, help="Tensor ranks.")
@click.option("--pp", "pp_size", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--max-batch-size", type=int, default=256, show_default=True)
@click.option("--max-seq-len", type=int, help="Default: what the config declares.")
@click.option("--max-num-tokens", type=int, default=_MAX_NUM_TOKENS, show_default=True)
@click.option("--cached-endpoints", type=int, help="Windows and states kept for cached prefixes.")
@click.option("--state-snapshot-interval", type=int, help="Tokens between snapshots of a state.")
@click.option("--acceptance", type=float, default=0.7, show_default=True, help="Per draft token.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the acceptance draws.")
@click.option("--step-ms", type=float, default=20.0, show_default=True, help="Virtual step time.")
@click.option(
    "--policy",
    type=click.Choice(EVICTION_POLICIES),
    default="lru",
    show_default=True,
    help="Order of eviction.",
)
@click.option("--cache-only", is_flag=True, help="Requests one after the other, prompts only.")
@click.option(
    "--capacity-tokens", metavar="N|unlimited", help="With --cache-only: size of the cache."
)
@click.option("--host-tokens", metavar="N", help="Beside --capacity-tokens: size of a host tier.")
@click.option("--disk-tokens", metavar="N", help="Beside --capacity-tokens: size of a disk tier.")
@click.option("--html", "html_path", metavar="FILE", help="Also write the report as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def replay(
    *,
    path: str,
    trace_block_size: int | None,
    tokens_per_block: int | None,
    hash_ids: Any,
    time_unit: Any,
    cache_only: bool,
    capacity_tokens: str | None,
    html_path: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Replay a request trace through the managers of target and draft, on the CPU.

    Requests arrive by the trace's times and are served under a virtual clock: chunked prefill,
    decode steps with draft and acceptance, refusal, preemption. --cache-only feeds the prompts one
    after the other instead, the setting of published hit ratios.

    Exit status 1: the budget does not fit, or no request of the trace can be served.
    """
    trace = read_trace(
        path,
        trace_block_tokens=trace_block_size,
        tokens_per_block=tokens_per_block,
        hash_rule=hash_ids,
        time_unit=time_unit,
    )
    check_options(cache_only, capacity_tokens, given)
    if html_path is not None:
        Path(html_path).touch()  # a place that cannot be written is found before the work
    tokens_per_block = tokens_per_block or _default_block(trace, cache_only)
    plan = None if given["model"] is None else _plan(tokens_per_block, given)
    with _progress_bar(len(trace), shown=not as_json) as progress:
        if cache_only:
            report = replay_cache(
                trace,
                tokens_per_block=tokens_per_block,
                policy=given["policy"],
                progress=progress,
                **_cache_size(plan, capacity_tokens, tokens_per_block, given),
            )
        else:
            assert plan is not None
            report = _run_serving(trace, plan, given, progress)
    if html_path is not None:
        Path(html_path).write_text(report_html(report), encoding="utf-8")
    if as_json:
        answer = report.to_dict()
        if plan is not None:
            answer["plan"] = plan.to_dict()
        click.echo(json.dumps(answer, indent=2))
    else:
        print_report(report, Console(highlight=False, markup=False))
    return DOES_NOT_FIT if report.refused_requests == len(trace) else OK


def _default_block(trace: Trace, cache_only: bool) -> int:
    """Choose the ledger's block where none was given and the trace has one."""
    if trace.block_tokens is None:
        raise ReplayError(
            f"{trace.path}: the {trace.format_name} trace has no block; pass --tokens-per-block"
        )
    if cache_only:
        return trace.block_tokens
    trace.check_block(_TOKENS_PER_BLOCK)
    return _TOKENS_PER_BLOCK


def _plan(tokens_per_block: int, given: dict[str, Any]) -> Plan:
    spec: SpeculativeConfig | None = given["spec"]
    plan = make_plan(
        ModelGeometry.from_hf(given["model"], kv_dtype=given["kv_dtype"]),
        read_draft(given["model"], given["draft"], given["draft_kv_dtype"], spec),
        config=KvCacheConfig(
            max_gpu_total_bytes=given["gpu_memory"],
            host_cache_size=given["host_memory"] or 0,
            disk_cache_size=given["disk_memory"] or 0,
            tokens_per_block=tokens_per_block,
            max_batch_size=given["max_batch_size"],
            max_seq_len=given["max_seq_len"],
            max_num_tokens=given["max_num_tokens"],
            cached_endpoints=given["cached_endpoints"] or 0,
            state_snapshot_interval=given["state_snapshot_interval"],
            eviction_policy=given["policy"],
        ),
        mapping=Mapping(tp_size=given["tp_size"], pp_size=given["pp_size"]),
        speculative=spec,
    )
    check_tiers(plan, given)
    return plan


def _cache_size(
    plan: Plan | None, capacity_tokens: str | None, tokens_per_block: int, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `replay_cache` that the plan or the given capacity decides."""
    if plan is None:
        assert capacity_tokens is not None
        return {
            "usable_pages": None
            if capacity_tokens == "unlimited"
            else whole_pages("--capacity-tokens", capacity_tokens, tokens_per_block),
            **{
                f"{tier}_pages": whole_pages(option, given[f"{tier}_tokens"], tokens_per_block)
                for tier, option in (("host", "--host-tokens"), ("disk", "--disk-tokens"))
                if given[f"{tier}_tokens"] is not None
            },
        }
    for group in plan.groups():
        if group.rule != FULL:
            raise ReplayError(
                f"--cache-only counts blocks that keep every token; the model has a "
                f"{group.lifetime} group: leave --cache-only out to replay it"
            )
    spec, pages = plan.speculative, tier_pages(plan)
    return {
        "usable_pages": plan.num_blocks - 1,
        "has_draft": plan.draft_name is not None,
        "lookahead": spec.lookahead if spec is not None else 0,
        "extra_tokens": spec.extra_tokens if spec is not None else 0,
        "host_pages": pages.host[0],
        "disk_pages": pages.disk[0],
        "links": Links.of(plan),
    }


def _run_serving(
    trace: Trace, plan: Plan, given: dict[str, Any], progress: Callable[[int], None]
) -> ReplayReport:
    spec = plan.speculative
    serving = ServingOptions(
        max_num_tokens=given["max_num_tokens"],
        draft_len=spec.max_draft_len if spec is not None else 0,
        draft_slots=spec.reserve_tokens if spec is not None else 0,
        acceptance=given["acceptance"],
        seed=given["seed"],
        step_ms=given["step_ms"],
    )
    executor = None
    if plan.num_host_blocks or plan.num_disk_blocks:
        executor = ModelledExecutor(
            Links.of(plan, given["host_bandwidth"], given["disk_bandwidth"])
        )
    managers = build_managers(plan, rank=0, device="cpu", materialize=False, executor=executor)
    return serve(trace, managers, serving, progress)


@contextmanager
def _progress_bar(requests: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar of requests done on stderr, if that is a terminal."""
    columns = (
        TextColumn("replay"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    disable = not shown or not sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task("replay", total=requests)
        yield lambda done: bar.update(task, completed=done)

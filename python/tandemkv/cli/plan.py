"""`tandemkv plan`: how many tokens fit, and who gets which bytes."""

from __future__ import annotations

import json
from typing import Any, Literal

import click
from rich.console import Console
from rich.table import Table

from tandemkv.cli import options
from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import ConfigError
from tandemkv.geometry.layers import ModelGeometry
from tandemkv.planning import Plan
from tandemkv.planning import plan as make_plan
from tandemkv.planning.report import NAME_COLUMNS, capacity_lines, role_table, title

PIPE_COLUMNS = 160
"""Width of the output where there is no terminal."""


@click.command("plan")
@click.option("--model", required=True, help="config.json of the target, or its folder.")
@click.option("--draft", help="config.json of the draft; MTP modes read it from --model.")
@options.size("--gpu-memory", required=True, help="Device bytes per rank.")
@options.size("--host-memory", default="0", help="Host bytes per rank; default: no host tier.")
@options.size("--disk-memory", default="0", help="Disk bytes per rank; default: no disk tier.")
@click.option("--tp", "tp_size", type=int, default=1, show_default=True, help="Tensor ranks.")
@click.option("--pp", "pp_size", type=int, default=1, show_default=True, help="Pipeline stages.")
@options.partition("--pp-partition", help="Target layers of each stage; default: even.")
@click.option("--attention-dp", is_flag=True, help="Each tensor rank serves its own requests.")
@click.option("--draft-tp", type=int, help="Width of the draft's attention; default: the target's.")
@click.option("--kv-dtype", help="bf16, fp16, fp32, fp8 or nvfp4; default: the config's.")
@click.option("--draft-kv-dtype", help="The same for the draft; never inherited from the target.")
@options.speculation("--spec", help="Speculative mode and draft length, such as eagle3:4.")
@click.option("--tokens-per-block", type=int, default=32, show_default=True)
@click.option("--max-batch-size", type=int, default=256, show_default=True)
@click.option("--max-seq-len", type=int, help="Default: what the config declares.")
@click.option("--max-num-tokens", type=int, help="Most tokens that one step runs.")
@click.option("--request-len", type=int, help="Also say how many requests of this length fit.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    *,
    model: str,
    draft: str | None,
    kv_dtype: str | None,
    draft_kv_dtype: str | None,
    spec: SpeculativeConfig | None,
    request_len: int | None,
    as_json: bool,
    **sizes: Any,
) -> None:
    """Divide each rank's KV memory between a model and its draft.

    Sizes are bytes or carry a unit, 40GiB or 64GB, and are per rank for both roles together.
    """
    target = ModelGeometry.from_hf(model, kv_dtype=kv_dtype)
    result = make_plan(
        target,
        read_draft(model, draft, draft_kv_dtype, spec),
        config=KvCacheConfig(
            max_gpu_total_bytes=sizes["gpu_memory"],
            host_cache_size=sizes["host_memory"],
            disk_cache_size=sizes["disk_memory"],
            tokens_per_block=sizes["tokens_per_block"],
            max_batch_size=sizes["max_batch_size"],
            max_seq_len=sizes["max_seq_len"],
            max_num_tokens=sizes["max_num_tokens"],
        ),
        mapping=Mapping(
            tp_size=sizes["tp_size"],
            pp_size=sizes["pp_size"],
            pp_partition=sizes["pp_partition"],
            enable_attention_dp=sizes["attention_dp"],
            draft_tp_size=sizes["draft_tp"],
        ),
        speculative=spec,
    )
    fits = None if request_len is None else result.concurrency(request_len)
    if as_json:
        answer = result.to_dict()
        if fits is not None:
            answer |= {"request_len": request_len, "concurrency_at_request_len": fits}
        click.echo(json.dumps(answer, indent=2))
        return
    _print(result, request_len, fits)


def read_draft(
    model: str, draft: str | None, kv_dtype: str | None, spec: SpeculativeConfig | None
) -> ModelGeometry | None:
    """Read the draft's layers; those of an MTP mode are a module of the target's checkpoint."""
    mtp = spec is not None and spec.traits.from_target_config
    if mtp and draft is None:
        # One replayed head, or a chain of the modules that the config counts.
        num_layers = 1 if spec is not None and spec.mode == "mtp_one_model" else None
        return ModelGeometry.mtp_from_hf(model, kv_dtype=kv_dtype, num_layers=num_layers)
    if draft is None:
        if kv_dtype is not None:
            raise ConfigError(
                f"--draft-kv-dtype is {kv_dtype!r}, but there is no draft",
                field="--draft-kv-dtype",
                value=kv_dtype,
            )
        return None
    return ModelGeometry.from_hf(draft, kv_dtype=kv_dtype, role="draft")


def _print(result: Plan, request_len: int | None, fits: int | None) -> None:
    # Into a pipe or a file, lines are as long as they need to be.
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=PIPE_COLUMNS)
    console.print(f"KV cache plan: {title(result)}", style="bold")
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    lines = capacity_lines(result)
    if request_len is not None:
        lines.insert(3, ("at --request-len", f"{fits:,} of {request_len:,} tokens"))
    for name, text in lines:
        facts.add_row(name, text)
    console.print(facts)
    heads, rows = role_table(result)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, heading in enumerate(heads):
        # Folded where a terminal is too narrow: no digit is ever cut off.
        justify: Literal["left", "right"] = "left" if index < NAME_COLUMNS else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)

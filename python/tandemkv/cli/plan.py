"""`tandemkv plan`: how many tokens fit, and who gets which bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tandemkv.cli import options
from tandemkv.cli.plan_output import print_plan
from tandemkv.cli.sweep import Sweep, read_sweep, requests_at, run_sweep
from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import ConfigError
from tandemkv.geometry.layers import ModelGeometry
from tandemkv.planning import Plan
from tandemkv.planning import plan as make_plan
from tandemkv.planning.explain import explain
from tandemkv.planning.html import plan_html


@click.command("plan")
@click.option("--model", required=True, help="config.json of the target, or its folder.")
@click.option("--draft", help="config.json of the draft; MTP modes read it from --model.")
@options.sizes("--gpu-memory", required=True, help="Device bytes per rank, or of each rank.")
@options.sizes("--host-memory", default="0", help="Host bytes likewise; default: no host tier.")
@options.size("--disk-memory", default="0", help="Disk bytes per rank; default: no disk tier.")
@click.option("--tp", "tp_size", type=int, default=1, show_default=True, help="Tensor ranks.")
@click.option("--pp", "pp_size", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--cp", "cp_size", type=int, default=1, show_default=True, help="Context ranks.")
@options.partition("--pp-partition", help="Target layers of each stage; default: even.")
@click.option("--attention-dp", is_flag=True, help="Each tensor rank serves its own requests.")
@click.option("--draft-tp", type=int, help="Width of the draft's attention; default: the target's.")
@click.option("--kv-dtype", help="bf16, fp16, fp32, fp8 or nvfp4; default: the config's.")
@click.option("--draft-kv-dtype", help="The same for the draft; never inherited from the target.")
@options.speculation("--spec", help=options.SPEC_HELP)
@click.option("--tokens-per-block", type=int, default=32, show_default=True)
@click.option("--max-batch-size", type=int, default=256, show_default=True)
@options.length("--max-seq-len", help="Default: what the config declares; auto: what fits.")
@click.option("--max-num-tokens", type=int, help="Most tokens that one step runs.")
@click.option("--max-tokens", type=int, help="Most tokens that sequences may use.")
@click.option("--max-encoder-len", type=int, help="Most encoder tokens of a sequence.")
@click.option(
    "--cached-endpoints",
    type=int,
    default=0,
    show_default=True,
    help="Cached prefixes whose windows and states have room, on each tier.",
)
@click.option("--state-snapshot-interval", type=int, help="Tokens between snapshots of a state.")
@click.option("--max-util-for-resume", help="How full fixed pools may be, such as 0.95.")
@click.option("--request-len", type=int, help="Also say how many requests of this length fit.")
@click.option("--sweep", "sweep_text", metavar="OPTION=A,B,...", help="One plan per value.")
@click.option("--explain", "explains", is_flag=True, help="Show every term of every byte.")
@click.option("--html", "html_path", metavar="FILE", help="Also write the plan as a page.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    *,
    request_len: int | None,
    sweep_text: str | None,
    explains: bool,
    html_path: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Divide each rank's KV memory between a model and its draft.

    Sizes are bytes or carry a unit, 40GiB or 64GB, and are per rank for both roles together.
    """
    if sweep_text is not None:
        sweep = read_sweep(ctx, sweep_text)
        _check_sweep_alone(sweep, explains, html_path)
        ctx.exit(run_sweep(sweep, given, plan_from_options, request_len, as_json))
    result = plan_from_options(given)
    at_length = requests_at(result, request_len)
    if html_path is not None:
        Path(html_path).write_text(plan_html(result), encoding="utf-8")
    if not as_json:
        print_plan(result, request_len, explains=explains)
        return
    answer = result.to_dict() | at_length
    if explains:
        answer["explain"] = [term.to_dict() for term in explain(result)]
    click.echo(json.dumps(answer, indent=2))


def plan_from_options(given: dict[str, Any]) -> Plan:
    """Return the plan that the options of the command ask for."""
    spec: SpeculativeConfig | None = given["spec"]
    device, host = given["gpu_memory"], given["host_memory"]
    return make_plan(
        ModelGeometry.from_hf(given["model"], kv_dtype=given["kv_dtype"]),
        read_draft(given["model"], given["draft"], given["draft_kv_dtype"], spec),
        config=KvCacheConfig(
            max_gpu_total_bytes=max(device),
            host_cache_size=max(host),
            disk_cache_size=given["disk_memory"],
            tokens_per_block=given["tokens_per_block"],
            max_batch_size=given["max_batch_size"],
            max_seq_len=given["max_seq_len"],
            max_num_tokens=given["max_num_tokens"],
            max_tokens=given["max_tokens"],
            max_encoder_len=given["max_encoder_len"],
            cached_endpoints=given["cached_endpoints"],
            state_snapshot_interval=given["state_snapshot_interval"],
            max_util_for_resume=given["max_util_for_resume"],
        ),
        mapping=Mapping(
            tp_size=given["tp_size"],
            pp_size=given["pp_size"],
            cp_size=given["cp_size"],
            pp_partition=given["pp_partition"],
            enable_attention_dp=given["attention_dp"],
            draft_tp_size=given["draft_tp"],
        ),
        speculative=spec,
        # One size is every rank's; several are one per rank.
        device_bytes=device if len(device) > 1 else None,
        host_bytes=host if len(host) > 1 else None,
    )


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


def _check_sweep_alone(sweep: Sweep, explains: bool, html_path: str | None) -> None:
    for option, asked in (("--explain", explains), ("--html", html_path is not None)):
        if asked:
            raise ConfigError(
                f"{option} shows one plan, but --sweep {sweep.name} makes several", field=option
            )

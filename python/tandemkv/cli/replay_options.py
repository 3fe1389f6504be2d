"""Options of `tandemkv replay` that contradict each other, are missing or are too small."""

from __future__ import annotations

from typing import Any

from tandemkv.cli import options
from tandemkv.config import MAX_INT32
from tandemkv.errors import ReplayError
from tandemkv.planning import Plan
from tandemkv.planning.groups import FULL
from tandemkv.tiers import tier_pages

_MODEL_OPTIONS = {
    "draft": "--draft",
    "spec": "--spec",
    "gpu_memory": "--gpu-memory",
    "host_memory": "--host-memory",
    "disk_memory": "--disk-memory",
    "kv_dtype": "--kv-dtype",
    "draft_kv_dtype": "--draft-kv-dtype",
    "cached_endpoints": "--cached-endpoints",
    "state_snapshot_interval": "--state-snapshot-interval",
}


def check_options(cache_only: bool, capacity_tokens: str | None, given: dict[str, Any]) -> None:
    """Refuse options that contradict each other or are missing, before anything is built.

    Raises:
        ReplayError: it names the option.
    """
    if capacity_tokens is not None and not cache_only:
        raise ReplayError(f"--capacity-tokens is {capacity_tokens!r}, which needs --cache-only")
    for name, option in (("host_tokens", "--host-tokens"), ("disk_tokens", "--disk-tokens")):
        if given[name] is not None and capacity_tokens is None:
            raise ReplayError(f"{option} is {given[name]!r}, which needs --capacity-tokens")
    _check_bandwidths(cache_only, given)
    if given["model"] is None:
        for name, option in _MODEL_OPTIONS.items():
            if given[name] is not None:
                raise ReplayError(f"{option} is given without --model")
        if capacity_tokens is None:
            raise ReplayError(
                "--cache-only needs --capacity-tokens, or --model and --gpu-memory"
                if cache_only
                else "serving needs --model and --gpu-memory; --cache-only does not"
            )
        return
    if capacity_tokens is not None:
        raise ReplayError(
            f"--capacity-tokens is {capacity_tokens!r}, but --model and --gpu-memory give the size"
        )
    if given["gpu_memory"] is None:
        raise ReplayError("--model needs --gpu-memory")


def _check_bandwidths(cache_only: bool, given: dict[str, Any]) -> None:
    for tier in ("host", "disk"):
        value, option = given[f"{tier}_bandwidth"], f"--{tier}-bandwidth"
        if value is None:
            continue
        if cache_only:
            raise ReplayError(f"{option} is {value}; --cache-only has no clock")
        if value < 1:
            raise ReplayError(f"{option} is {value}; must be at least 1 byte per second")
        if not given[f"{tier}_memory"]:
            raise ReplayError(f"{option} is {value}, which needs --{tier}-memory")


def check_tiers(plan: Plan, given: dict[str, Any]) -> None:
    """Refuse lower tiers that hold no page, or in which nothing could be found.

    Raises:
        ReplayError: it names option and value.
    """
    pages = tier_pages(plan)
    tiers = (
        ("--host-memory", given["host_memory"], pages.host),
        ("--disk-memory", given["disk_memory"], pages.disk),
    )
    for option, size, counts in tiers:
        if not size:
            continue
        if all(group.rule != FULL for group in plan.groups()):
            raise ReplayError(
                f"{option} is {size}; lower tiers need a cache group that keeps every token, and "
                "the model has none"
            )
        if not any(counts):
            raise ReplayError(f"{option} is {size} bytes, which hold no page")


def whole_pages(option: str, text: str, tokens_per_block: int) -> int:
    """Return the whole pages of a capacity in tokens.

    Raises:
        ReplayError: less than one block, or more than pages can be numbered.
    """
    tokens = options.whole_number(text.replace("_", "").replace(",", ""))
    if tokens is None or tokens < tokens_per_block:
        unlimited = ", or 'unlimited'," if option == "--capacity-tokens" else ""
        raise ReplayError(
            f"{option} is {text!r}; tokens of at least one block of "
            f"{tokens_per_block}{unlimited} are needed"
        )
    pages = tokens // tokens_per_block
    if pages >= MAX_INT32:
        raise ReplayError(
            f"{option} is {text!r}; at most {MAX_INT32 - 1} blocks of "
            f"{tokens_per_block} tokens are supported"
        )
    return pages

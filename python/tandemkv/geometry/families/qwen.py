"""Qwen 1 to 3, dense, MoE and the language models inside Qwen-VL."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import (
    HEADS,
    HIDDEN,
    attention_layers,
    grouped_query,
    refuse_window,
)
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family("Qwen 1", "qwen")
def qwen(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen 1: every head is kept, its size is `kv_channels`."""
    num_heads = config.size(*HEADS)
    head_dim = config.optional_size("kv_channels")
    if head_dim is None:
        head_dim = config.split_evenly(config.size(*HIDDEN), num_heads, "kv_channels")
    return attention_layers(config, num_heads, head_dim)


@family(
    "Qwen 1.5, 2 and 2.5", "qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"
)
def qwen2(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen2; its window is off unless `use_sliding_window` and starts at a later layer."""
    refuse_window(config, use_by_default=False, full_below="max_window_layers")
    return grouped_query(config)


@family("Qwen 1.5 and 2 MoE", "qwen2_moe")
def qwen2_moe(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen2-MoE; its class alternates windows below `max_window_layers`, so any is refused."""
    refuse_window(config, use_by_default=False)
    return grouped_query(config)


@family("Qwen 3", "qwen3")
def qwen3(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen3, whose head size is not `hidden_size // heads` (0.6B: 16 heads of 128, 1,024)."""
    refuse_window(config, use_by_default=False, full_below="max_window_layers")
    return grouped_query(config, head_dim_required=True)


@family("Qwen 3 MoE", "qwen3_moe")
def qwen3_moe(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen3-MoE; a window would hold for every layer."""
    refuse_window(config, use_by_default=False)
    return grouped_query(config, head_dim_required=True)


@family("Qwen 3 VL", "qwen3_vl_text", "qwen3_vl_moe_text")
def qwen3_vl(config: ConfigView) -> tuple[Layer, ...]:
    """Read the language model of Qwen3-VL, dense and MoE."""
    refuse_window(config, use_by_default=False)
    return grouped_query(config, head_dim_required=True)

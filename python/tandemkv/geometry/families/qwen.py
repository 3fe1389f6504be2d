"""Qwen 1 to 3, dense, MoE and the language models inside Qwen-VL and Omni; MiMo."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import (
    HEADS,
    HIDDEN,
    MTP_LAYERS,
    attention_layers,
    grouped_query_layer,
    window_of,
)
from tandemkv.geometry.families.patterns import (
    FULL,
    SLIDING,
    layer_kinds,
    need_window,
    switched_window,
    window_everywhere,
    windowed,
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


_READS = ("layer_types", "sliding_window")


@family(
    "Qwen 1.5, 2 and 2.5",
    "qwen2",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen2_5_omni_text",
    reads=_READS,
)
def qwen2(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen2; its window is off unless `use_sliding_window` and starts at a later layer."""
    return switched_window(config, grouped_query_layer(config))


@family("Qwen 1.5 and 2 MoE", "qwen2_moe", reads=_READS)
def qwen2_moe(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen2-MoE, whose class has windows in even layers below `max_window_layers`."""
    layer = grouped_query_layer(config)
    used = config.flag("use_sliding_window", default=False)
    below = 0
    if used and window_of(config) is not None and config.data.get("layer_types") is None:
        below = config.size("max_window_layers")

    def rule(index: int) -> str:
        return SLIDING if index % 2 == 0 and index < below else FULL

    kinds = layer_kinds(config, (FULL, SLIDING), rule)
    return windowed(layer, kinds, need_window(config, kinds) if used else None)


@family("Qwen 3 and its DFlash and DSpark drafts", "qwen3", reads=_READS)
def qwen3(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen3, whose head size is not `hidden_size // heads` (0.6B: 16 heads of 128, 1,024).

    Block drafts are such layers too; they keep keys and values of the target's features.
    """
    return switched_window(config, grouped_query_layer(config, head_dim_required=True))


@family(
    "Qwen 3 MoE and Qwen 3 VL",
    "qwen3_moe",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "qwen3_omni_moe_text",
    reads=_READS,
)
def qwen3_moe(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen3-MoE and VL; a window is off unless switched on, and holds for every layer."""
    layer = grouped_query_layer(config, head_dim_required=True)
    if not config.flag("use_sliding_window", default=False):
        return windowed(layer, layer_kinds(config, (FULL, SLIDING), lambda _: FULL), None)
    return window_everywhere(config, layer)


def _mimo_mtp(config: ConfigView) -> tuple[Layer, ...]:
    # Its module is one more decoder layer of the same attention.
    return (grouped_query_layer(config),) * config.layer_count(*MTP_LAYERS)


@family("MiMo", "mimo", mtp_layers=_mimo_mtp, reads=_READS)
def mimo(config: ConfigView) -> tuple[Layer, ...]:
    """Read MiMo, which is Qwen2 with a multi-token-prediction module."""
    return switched_window(config, grouped_query_layer(config))

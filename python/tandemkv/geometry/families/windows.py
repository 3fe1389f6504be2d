"""Families whose layers alternate between windows or chunks and full attention."""

from __future__ import annotations

from dataclasses import replace

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import (
    LAYERS,
    MTP_LAYERS,
    grouped_query_layer,
    window_of,
)
from tandemkv.geometry.families.patterns import (
    CHUNKED,
    FULL,
    SLIDING,
    every,
    layer_kinds,
    need_window,
    window_everywhere,
    windowed,
)
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer

_READS = ("layer_types", "sliding_window")


def _alternating(config: ConfigView, layer: Layer, period: int) -> tuple[Layer, ...]:
    """Return layers of which every `period`-th is full, unless `layer_types` says otherwise."""
    kinds = layer_kinds(config, (FULL, SLIDING), every(period, FULL, SLIDING))
    return windowed(layer, kinds, need_window(config, kinds))


@family("Ministral", "ministral", "ministral3", reads=_READS)
def ministral(config: ConfigView) -> tuple[Layer, ...]:
    """Read Ministral, whose `layer_types` say which layers have the window."""
    need_window(config, (SLIDING,))
    return window_everywhere(config, grouped_query_layer(config))


@family("gpt-oss", "gpt_oss", reads=_READS)
def gpt_oss(config: ConfigView) -> tuple[Layer, ...]:
    """Read gpt-oss: windows on even layers. Its attention sinks are learned biases, no tokens."""
    return _alternating(config, grouped_query_layer(config, head_dim_required=True), 2)


@family("Command R and Aya 23", "cohere")
def cohere(config: ConfigView) -> tuple[Layer, ...]:
    """Read Cohere's first generation, which keeps every token."""
    layer = grouped_query_layer(config)
    return (layer,) * config.layer_count(*LAYERS)


@family("Command R7B and Command A", "cohere2", reads=_READS)
def cohere2(config: ConfigView) -> tuple[Layer, ...]:
    """Read Cohere 2: every `sliding_window_pattern`-th layer is full, the fourth by default."""
    period = config.switch("sliding_window_pattern", "_sliding_window_pattern", default=4)
    return _alternating(config, grouped_query_layer(config), period)


@family("OLMo 3", "olmo3", reads=_READS)
def olmo3(config: ConfigView) -> tuple[Layer, ...]:
    """Read OLMo 3, whose every fourth layer is full."""
    return _alternating(config, grouped_query_layer(config), 4)


@family("EXAONE 4", "exaone4", reads=_READS)
def exaone4(config: ConfigView) -> tuple[Layer, ...]:
    """Read EXAONE 4; `sliding_window_pattern` is a period where `layer_types` is absent."""
    if config.data.get("sliding_window") is None and config.data.get("layer_types") is None:
        return (grouped_query_layer(config),) * config.layer_count(*LAYERS)
    period = 4
    if config.data.get("layer_types") is None:
        period = config.switch("sliding_window_pattern", default=4)
    return _alternating(config, grouped_query_layer(config), period)


@family("SmolLM 3", "smollm3", reads=_READS)
def smollm3(config: ConfigView) -> tuple[Layer, ...]:
    """Read SmolLM 3; windows only with `use_sliding_window`, where `layer_types` says."""
    used = config.flag("use_sliding_window", default=False)
    rule = None if used and window_of(config) is not None else (lambda _: FULL)
    kinds = layer_kinds(config, (FULL, SLIDING), rule)
    window = need_window(config, kinds) if used else None
    return windowed(grouped_query_layer(config), kinds, window)


@family("Llama 4", "llama4_text", reads=("layer_types", "attention_chunk_size"))
def llama4(config: ConfigView) -> tuple[Layer, ...]:
    """Read Llama 4: layers with rotary positions attend inside chunks, the others to everything.

    `no_rope_layers` has a 1 for each layer with rotary positions, whatever its name says; empty or
    absent, every `no_rope_layer_interval`-th layer (4) has none.
    """
    layer = grouped_query_layer(config, head_dim_required=True)
    if "attention_chunk_size" not in config.data:
        raise config.error("attention_chunk_size", "the tokens of a chunk, or null, are needed")
    size = config.optional_size("attention_chunk_size")
    rotary = config.items("no_rope_layers", int)
    period = config.switch("no_rope_layer_interval", default=4)
    rule = every(period, FULL, CHUNKED)
    if rotary:
        if len(rotary) < config.layer_count(*LAYERS):
            raise config.error("no_rope_layers", "an entry per layer is needed")
        rule = lambda index: CHUNKED if rotary[index] else FULL  # noqa: E731
    kinds = layer_kinds(config, (FULL, CHUNKED), rule)
    chunked = layer if size is None else replace(layer, chunk=size)
    return tuple(chunked if kind == CHUNKED else layer for kind in kinds)


def _mimo_v2_mtp(config: ConfigView) -> tuple[Layer, ...]:
    # The modules are layers with the window (MiMo-V2-Flash technical report, section 2.3).
    layer = _mimo_v2_layer(config, "swa_")
    return (replace(layer, window=_mimo_v2_window(config)),) * config.layer_count(*MTP_LAYERS)


def _mimo_v2_layer(config: ConfigView, prefix: str = "") -> Layer:
    """Return the layer whose fields begin with `prefix`, or with nothing where there is none.

    Without `swa_num_key_value_heads` the class has twice the KV heads in layers with a window.
    """

    def size(field: str, factor: int = 1) -> int:
        prefixed = prefix + field
        if config.data.get(prefixed) is not None:
            return config.size(prefixed)
        return config.size(field) * factor

    return Layer(
        kind="attention",
        kv_dtype=config.kv_dtype,
        num_kv_heads=size("num_key_value_heads", 2 if prefix else 1),
        head_dim=size("head_dim"),
        v_head_dim=size("v_head_dim"),
    )


def _mimo_v2_window(config: ConfigView) -> int | None:
    # `sliding_window_size` counts the tokens before the one in flight.
    if config.data.get("sliding_window_size") is not None:
        return config.size("sliding_window_size") + 1
    return need_window(config, (SLIDING,))


@family("MiMo V2 Flash", "mimo_v2_flash", mtp_layers=_mimo_v2_mtp, reads=_READS)
def mimo_v2(config: ConfigView) -> tuple[Layer, ...]:
    """Read MiMo V2: window layers have KV heads and sizes of their own (`swa_` fields).

    `hybrid_layer_pattern` has a 1 for each layer with the window. Without it the first and every
    sixth layer is full.
    """
    pattern = config.items("hybrid_layer_pattern", int)
    rule = lambda index: FULL if index == 0 else every(6, FULL, SLIDING)(index)  # noqa: E731
    if pattern is not None:
        if len(pattern) < config.layer_count(*LAYERS):
            raise config.error("hybrid_layer_pattern", "an entry per layer is needed")
        rule = lambda index: SLIDING if pattern[index] else FULL  # noqa: E731
    kinds = layer_kinds(config, (FULL, SLIDING), rule)
    full = _mimo_v2_layer(config)
    sliding = replace(_mimo_v2_layer(config, "swa_"), window=_mimo_v2_window(config))
    return tuple(sliding if kind == SLIDING else full for kind in kinds)

"""Gemma 1 to 4: windows, full layers of another shape, and layers that read another's KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import grouped_query, grouped_query_layer, window_of
from tandemkv.geometry.families.patterns import (
    FULL,
    SLIDING,
    every,
    layer_kinds,
    need_window,
    windowed,
)
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family("Gemma 1", "gemma")
def gemma(config: ConfigView) -> tuple[Layer, ...]:
    """Read Gemma 1; heads of 256 elements whatever the hidden size (7B: 16 heads, 3,072)."""
    return grouped_query(config, head_dim_required=True)


def _kinds(config: ConfigView, period: int) -> list[str]:
    kinds = layer_kinds(config, (FULL, SLIDING), every(period, FULL, SLIDING))
    need_window(config, kinds)
    return kinds


@family("Gemma 2", "gemma2", reads=("layer_types", "sliding_window"))
def gemma2(config: ConfigView) -> tuple[Layer, ...]:
    """Read Gemma 2: windows on even layers."""
    layer = grouped_query_layer(config, head_dim_required=True)
    return windowed(layer, _kinds(config, 2), window_of(config))


@family("Gemma 3", "gemma3_text", reads=("layer_types", "sliding_window"))
def gemma3(config: ConfigView) -> tuple[Layer, ...]:
    """Read Gemma 3: every `sliding_window_pattern`-th layer is full, the sixth by default."""
    layer = grouped_query_layer(config, head_dim_required=True)
    period = config.switch("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return windowed(layer, _kinds(config, period), window_of(config))


def _share(config: ConfigView, layers: Sequence[Layer], kinds: Sequence[str]) -> tuple[Layer, ...]:
    """Replace the last `num_kv_shared_layers`: each reads the last layer of its kind before them.

    Raises:
        GeometryError: the count is missing, or no layer of a kind is left to read.
    """
    if config.data.get("num_kv_shared_layers") is None:
        raise config.error("num_kv_shared_layers", "the number of layers that share KV is needed")
    first = len(layers) - config.switch("num_kv_shared_layers", default=0)
    if first < 0:
        raise config.error("num_kv_shared_layers", f"there are {len(layers)} layers")
    shared: list[Layer] = []
    for kind in kinds[first:]:
        if kind not in kinds[:first]:
            raise config.error("num_kv_shared_layers", f"no layer of {kind} is left to read")
        source = max(index for index in range(first) if kinds[index] == kind)
        shared.append(Layer(kind="none", reads_layer=source))
    return (*layers[:first], *shared)


_READS = ("layer_types", "sliding_window", "num_kv_shared_layers")


@family("Gemma 3n", "gemma3n_text", reads=_READS)
def gemma3n(config: ConfigView) -> tuple[Layer, ...]:
    """Read Gemma 3n: every fifth layer is full, and the last ones read the KV of others."""
    layer = grouped_query_layer(config, head_dim_required=True)
    kinds = _kinds(config, 5)
    return _share(config, windowed(layer, kinds, window_of(config)), kinds)


_GEMMA4_READS = (
    *_READS,
    "attention_k_eq_v",
    "use_bidirectional_attention",
)


@family("Gemma 4", "gemma4_text", reads=_GEMMA4_READS)
def gemma4(config: ConfigView) -> tuple[Layer, ...]:
    """Read Gemma 4: full layers have heads of `global_head_dim`.

    With `attention_k_eq_v` they have `num_global_key_value_heads` and their values come from the
    projection of the keys. Only the keys are normalised with a weight and rotated after it, so
    both are cached, and a full layer costs keys and values.

    Raises:
        UnsupportedModelError: text that attends to later tokens.
    """
    if config.data.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise config.unsupported("use_bidirectional_attention", "attention to later tokens")
    sliding = grouped_query_layer(config, head_dim_required=True)
    full = replace(sliding, head_dim=config.size("global_head_dim"))
    if config.flag("attention_k_eq_v", default=False):
        heads = config.optional_size("num_global_key_value_heads")
        full = replace(full, num_kv_heads=heads or full.num_kv_heads)
    kinds = _kinds(config, 6)
    # The class makes the last layer full, whatever the pattern says.
    if config.num_layers is None:
        kinds[-1] = FULL
    window = window_of(config)
    windows = replace(sliding, window=window)
    layers = [windows if kind == SLIDING else full for kind in kinds]
    return _share(config, layers, kinds)

"""Models that mix attention with Mamba layers, or have nothing but Mamba."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import (
    HEADS,
    HIDDEN,
    LAYERS,
    MTP_LAYERS,
    attention_layers,
    grouped_query_layer,
)
from tandemkv.geometry.families.patterns import FULL, HYBRID, STATE, layer_kinds
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.families.states import mamba1, mamba2
from tandemkv.geometry.layers import Layer

_BLOCKS = "layers_block_type"


def _mamba1(config: ConfigView) -> Layer:
    """Return the Mamba 1 layer of a hybrid with `mamba_` fields."""
    return mamba1(
        config,
        channels=config.size("mamba_expand") * config.size(*HIDDEN),
        state_size=config.size("mamba_d_state"),
        kernel=config.size("mamba_d_conv"),
    )


def _mamba2(config: ConfigView, *, heads_field: str = "mamba_n_heads") -> Layer:
    """Return the Mamba 2 layer of a hybrid with `mamba_` fields."""
    heads = config.size(heads_field)
    head_dim = None
    if config.data.get("mamba_d_head") != "auto":
        head_dim = config.optional_size("mamba_d_head", "mamba_headdim")
    if head_dim is None:
        inner = config.optional_size("mamba_d_ssm")
        if inner is None:
            inner = config.size("mamba_expand") * config.size(*HIDDEN)
        head_dim = config.split_evenly(inner, heads, heads_field)
    return mamba2(
        config,
        heads=heads,
        head_dim=head_dim,
        groups=config.size("mamba_n_groups", "mamba_ngroups"),
        state_size=config.size("mamba_d_state"),
        kernel=config.size("mamba_d_conv"),
    )


def _placed(config: ConfigView, places: dict[str, Layer], kinds: list[str]) -> tuple[Layer, ...]:
    return tuple(places[kind] for kind in kinds)


@family("Mamba 1", "mamba", "falcon_mamba")
def mamba(config: ConfigView) -> tuple[Layer, ...]:
    """Read Mamba 1; `intermediate_size` is there in files written before `expand` was."""
    channels = config.optional_size("intermediate_size")
    if channels is None:
        channels = config.size("expand") * config.size(*HIDDEN)
    layer = mamba1(
        config,
        channels=channels,
        state_size=config.size("state_size"),
        kernel=config.size("conv_kernel"),
    )
    return (layer,) * config.layer_count(*LAYERS)


@family("Mamba 2", "mamba2")
def mamba_2(config: ConfigView) -> tuple[Layer, ...]:
    """Read Mamba 2."""
    layer = mamba2(
        config,
        heads=config.size("num_heads"),
        head_dim=config.size("head_dim"),
        groups=config.size("n_groups"),
        state_size=config.size("state_size"),
        kernel=config.size("conv_kernel"),
    )
    return (layer,) * config.layer_count(*LAYERS)


def _periodic(config: ConfigView, kind: str) -> Callable[[int], str]:
    """Return the rule of `attn_layer_period` and `attn_layer_offset`."""
    period, offset = config.size("attn_layer_period"), config.switch("attn_layer_offset", default=0)
    return lambda index: kind if index % period == offset else STATE


@family("Jamba", "jamba", reads=(_BLOCKS, "layer_types"))
def jamba(config: ConfigView) -> tuple[Layer, ...]:
    """Read Jamba: attention in every `attn_layer_period`-th layer, Mamba 1 in the others."""
    kinds = layer_kinds(config, (FULL, STATE), _periodic(config, FULL), _BLOCKS)
    return _placed(config, {FULL: grouped_query_layer(config), STATE: _mamba1(config)}, kinds)


def _zamba_attention(config: ConfigView) -> Layer:
    """Return the shared attention of Zamba, whose input is twice the hidden size."""
    num_heads = config.size(*HEADS)
    head_dim = config.optional_size("attention_head_dim")
    if head_dim is None:
        twice = 2 * config.size(*HIDDEN)
        head_dim = config.split_evenly(twice, num_heads, "attention_head_dim")
    num_kv_heads = config.kv_heads(num_heads, "num_key_value_heads")
    return attention_layers(config, num_kv_heads, head_dim, count=1)[0]


@family("Zamba 1", "zamba", reads=(_BLOCKS, "layer_types"))
def zamba(config: ConfigView) -> tuple[Layer, ...]:
    """Read Zamba: a hybrid layer calls the shared attention, with KV of its own, then Mamba 1."""
    rule = None
    if config.data.get(_BLOCKS) is None:
        rule = _periodic(config, HYBRID)
    kinds = layer_kinds(config, (STATE, HYBRID), rule, _BLOCKS)
    state = _mamba1(config)
    both = replace(_zamba_attention(config), beside=(state,))
    return _placed(config, {STATE: state, HYBRID: both}, kinds)


@family("Zamba 2", "zamba2", reads=(_BLOCKS, "layer_types"))
def zamba2(config: ConfigView) -> tuple[Layer, ...]:
    """Read Zamba 2, as Zamba with Mamba 2; the list of layers is needed."""
    kinds = layer_kinds(config, (STATE, HYBRID), None, _BLOCKS)
    state = _mamba2(config, heads_field="n_mamba_heads")
    both = replace(_zamba_attention(config), beside=(state,))
    return _placed(config, {STATE: state, HYBRID: both}, kinds)


@family("Bamba", "bamba", reads=(_BLOCKS, "layer_types"))
def bamba(config: ConfigView) -> tuple[Layer, ...]:
    """Read Bamba: attention in `attn_layer_indices`, Mamba 2 in the others."""
    indices = config.items("attn_layer_indices", int) or []
    kinds = layer_kinds(
        config, (FULL, STATE), lambda index: FULL if index in indices else STATE, _BLOCKS
    )
    return _placed(config, {FULL: grouped_query_layer(config), STATE: _mamba2(config)}, kinds)


@family("Falcon-H1", "falcon_h1", reads=(_BLOCKS, "layer_types"))
def falcon_h1(config: ConfigView) -> tuple[Layer, ...]:
    """Read Falcon-H1, whose layers all have attention and Mamba 2 in parallel."""
    both = replace(grouped_query_layer(config), beside=(_mamba2(config),))
    return (both,) * config.layer_count(*LAYERS)


@family("Granite 4", "granitemoehybrid", reads=("layer_types", _BLOCKS))
def granite4(config: ConfigView) -> tuple[Layer, ...]:
    """Read Granite 4; the small dense ones have attention only."""
    kinds = layer_kinds(config, (FULL, STATE), None)
    places = {FULL: grouped_query_layer(config)}
    if STATE in kinds:
        places[STATE] = _mamba2(config)
    return _placed(config, places, kinds)


# Mamba 2, attention, and the feed-forward layers, which keep nothing: dense and experts.
_NEMOTRON_KINDS = {"M": STATE, "*": FULL, "-": "mlp", "E": "moe"}
_NEMOTRON_READS = ("hybrid_override_pattern", "ssm_state_size", _BLOCKS, "layer_types")


def _nemotron_layers(config: ConfigView, pattern_field: str, blocks_field: str) -> list[Layer]:
    """Return a layer per letter of the pattern, or per entry of the list that replaced it."""
    pattern = config.data.get(pattern_field)
    kinds = config.items(blocks_field, str)
    if isinstance(pattern, str) and set(pattern) <= _NEMOTRON_KINDS.keys() and pattern:
        kinds = [_NEMOTRON_KINDS[letter] for letter in pattern]
    elif not kinds:
        raise config.error(pattern_field, "a string of M, *, - and E is needed")
    attention = grouped_query_layer(config)
    head_dim = config.optional_size("head_dim", "attention_head_dim")
    if head_dim is not None:
        attention = replace(attention, head_dim=head_dim)
    state = mamba2(
        config,
        heads=config.size("mamba_num_heads"),
        head_dim=config.size("mamba_head_dim"),
        groups=config.size("n_groups", "mamba_n_groups"),
        state_size=config.size("ssm_state_size"),
        kernel=config.size("conv_kernel", "mamba_d_conv"),
    )
    nothing = Layer(kind="none")
    places = {FULL: attention, "attention": attention, STATE: state, "mamba": state}
    places |= {"mlp": nothing, "moe": nothing}
    for kind in kinds:
        if kind not in places:
            raise config.unsupported(blocks_field, f"layers of kind {kind!r}")
    return [places[kind] for kind in kinds]


def _nemotron_mtp(config: ConfigView) -> tuple[Layer, ...]:
    # A module is the layers of `mtp_hybrid_override_pattern`, of which attention keeps KV.
    module = _nemotron_layers(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    return tuple(module) * config.layer_count(*MTP_LAYERS)


@family("Nemotron-H and Nemotron 3", "nemotron_h", mtp_layers=_nemotron_mtp, reads=_NEMOTRON_READS)
def nemotron_h(config: ConfigView) -> tuple[Layer, ...]:
    """Read Nemotron-H: one letter per layer, and a layer has one mixer."""
    layers = _nemotron_layers(config, "hybrid_override_pattern", _BLOCKS)
    count = config.layer_count(*LAYERS) if config.data.get(LAYERS[0]) else len(layers)
    if len(layers) != count and (config.num_layers is None or len(layers) < count):
        field = "hybrid_override_pattern"
        raise config.error(field, f"it has {len(layers)} letters for {count} layers")
    return tuple(layers[:count])

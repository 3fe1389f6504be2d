"""Models with linear attention or short convolutions beside attention."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import (
    HEADS,
    HIDDEN,
    LAYERS,
    MTP_LAYERS,
    grouped_query,
    grouped_query_layer,
    latent_layer,
)
from tandemkv.geometry.families.patterns import FULL, STATE, every, layer_kinds
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.families.states import (
    gated_delta_net,
    kimi_delta_attention,
    lightning_attention,
    short_convolution,
)
from tandemkv.geometry.layers import Layer


def _qwen_mtp(config: ConfigView) -> tuple[Layer, ...]:
    # Its module is one more decoder layer, with full attention.
    count = config.layer_count(*MTP_LAYERS)
    return grouped_query(config, head_dim_required=True, count=count)


@family(
    "Qwen 3-Next and 3.5",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    mtp_layers=_qwen_mtp,
    reads=("layer_types", "full_attention_interval"),
)
def qwen3_next(config: ConfigView) -> tuple[Layer, ...]:
    """Read Qwen3-Next and 3.5: gated delta nets, and full attention in every fourth layer."""
    period = config.switch("full_attention_interval", default=4)
    kinds = layer_kinds(config, (FULL, STATE), every(period, FULL, STATE))
    attention = grouped_query_layer(config, head_dim_required=True)
    state = gated_delta_net(
        config,
        key_heads=config.size("linear_num_key_heads"),
        key_dim=config.size("linear_key_head_dim"),
        value_heads=config.size("linear_num_value_heads"),
        value_dim=config.size("linear_value_head_dim"),
        kernel=config.size("linear_conv_kernel_dim"),
    )
    return tuple(attention if kind == FULL else state for kind in kinds)


@family("Kimi Linear and K3", "kimi_linear", "kimi_k3", reads=("layer_types", "linear_attn_config"))
def kimi_linear(config: ConfigView) -> tuple[Layer, ...]:
    """Read Kimi Linear: Kimi Delta Attention, and a latent in the full layers.

    `linear_attn_config` of the released files numbers layers from 1; newer ones have
    `layer_types` and `linear_` fields.
    """
    if config.data.get("linear_attn_config") is not None:
        linear = config.object("linear_attn_config")
        full = linear.items("full_attn_layers", int)
        states = linear.items("kda_layers", int)
        if full is None or states is None:
            raise config.error("linear_attn_config", "kda_layers and full_attn_layers are needed")
        count = config.layer_count(*LAYERS)
        if config.num_layers is None and sorted(full + states) != list(range(1, count + 1)):
            raise config.error(
                "linear_attn_config",
                f"kda_layers and full_attn_layers are not each layer from 1 to {count} once",
            )
        kinds = [FULL if index + 1 in full else STATE for index in range(count)]
        fields = ("num_heads", "head_dim", "short_conv_kernel_size")
    else:
        linear = config
        kinds = layer_kinds(config, (FULL, STATE), None)
        fields = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads, head_dim, kernel = (linear.size(field) for field in fields)
    state = kimi_delta_attention(config, heads=heads, head_dim=head_dim, kernel=kernel)
    attention = latent_layer(config)
    return tuple(attention if kind == FULL else state for kind in kinds)


@family(
    "MiniMax 01 and M1",
    "minimax_m1",
    "minimax_text_01",
    "minimax",
    reads=("attn_type_list", "layer_types"),
)
def minimax_m1(config: ConfigView) -> tuple[Layer, ...]:
    """Read MiniMax M1: `attn_type_list` has a 0 for lightning attention and a 1 for softmax."""
    types = config.items("attn_type_list", int)
    rule = None
    if types is not None:
        if len(types) < config.layer_count(*LAYERS):
            raise config.error("attn_type_list", "an entry per layer is needed")
        rule = lambda index: FULL if types[index] else STATE  # noqa: E731
    kinds = layer_kinds(config, (FULL, STATE), rule)
    attention = grouped_query_layer(config)
    assert attention.head_dim is not None
    state = lightning_attention(config, heads=config.size(*HEADS), head_dim=attention.head_dim)
    return tuple(attention if kind == FULL else state for kind in kinds)


@family("LFM2", "lfm2", "lfm2_moe", reads=("layer_types",))
def lfm2(config: ConfigView) -> tuple[Layer, ...]:
    """Read LFM2: short convolutions, and attention where `layer_types` or `full_attn_idxs` says."""
    indices = config.items("full_attn_idxs", int)
    rule = None if indices is None else (lambda index: FULL if index in indices else STATE)
    kinds = layer_kinds(config, (FULL, STATE), rule)
    attention = grouped_query_layer(config)
    state = short_convolution(
        config, channels=config.size(*HIDDEN), kernel=config.size("conv_L_cache")
    )
    return tuple(attention if kind == FULL else state for kind in kinds)

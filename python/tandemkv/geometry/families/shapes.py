"""Models whose layers differ in shape, or of which some read the KV of others."""

from __future__ import annotations

from dataclasses import replace

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import HEADS, HIDDEN, LAYERS, attention_layers
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family("Nemotron Super and Ultra (NAS)", "nemotron-nas", reads=("block_configs",))
def nemotron_nas(config: ConfigView) -> tuple[Layer, ...]:
    """Read a model found by architecture search: `block_configs` describes every layer.

    A layer may have no attention (`no_op`) or a linear layer in its place (`replace_with_linear`);
    `n_heads_in_group` are the query heads per KV head.
    """
    blocks = config.items("block_configs", dict)
    if blocks is None:
        raise config.error("block_configs", "an object per layer is needed")
    count = config.layer_count(*LAYERS)
    if len(blocks) != count and (config.num_layers is None or len(blocks) < count):
        raise config.error("block_configs", f"it has {len(blocks)} entries for {count} layers")
    views = (config.nested(f"block_configs[{index}]", block) for index, block in enumerate(blocks))
    return tuple(_block(config, view.object("attention")) for view in list(views)[:count])


def _block(config: ConfigView, attention: ConfigView) -> Layer:
    if attention.flag("no_op", default=False) or attention.flag(
        "replace_with_linear", default=False
    ):
        return Layer(kind="none")
    num_heads = config.size(*HEADS)
    head_dim = config.optional_size("head_dim")
    if head_dim is None:
        head_dim = config.split_evenly(config.size(*HIDDEN), num_heads, "head_dim")
    num_kv_heads = attention.optional_size("num_key_value_heads")
    if num_kv_heads is None:
        group = attention.size("n_heads_in_group")
        if num_heads % group:
            raise attention.error(
                "n_heads_in_group", f"{num_heads} attention heads are not a multiple of it"
            )
        num_kv_heads = num_heads // group
    layer = attention_layers(config, num_kv_heads, head_dim, count=1)[0]
    window = attention.optional_size("window_length")
    if window is None:
        return layer
    sinks = attention.switch("num_sink_tokens", default=0)
    return replace(layer, window=window, sink_tokens=sinks)


@family(
    "Hunyuan",
    "hunyuan",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    reads=("use_cla",),
)
def hunyuan(config: ConfigView) -> tuple[Layer, ...]:
    """Read Hunyuan; with `use_cla` the layers of a group read the KV of its first.

    Cross-layer attention (Brandon et al., 2024); groups are of `cla_share_factor` layers.
    """
    num_heads = config.size(*HEADS)
    head_dim = config.optional_size("head_dim", "attention_head_dim")
    if head_dim is None:
        head_dim = config.split_evenly(config.size(*HIDDEN), num_heads, "head_dim")
    num_kv_heads = config.kv_heads(num_heads, "num_key_value_heads")
    layers = list(attention_layers(config, num_kv_heads, head_dim))
    if config.flag("use_cla", default=False):
        group = config.size("cla_share_factor")
        for index in range(len(layers)):
            if index % group:
                layers[index] = Layer(kind="none", reads_layer=index - index % group)
    return tuple(layers)

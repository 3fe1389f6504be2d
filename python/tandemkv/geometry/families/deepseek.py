"""Models with multi-head latent attention: one latent per token, shared by all heads."""

from __future__ import annotations

from dataclasses import replace

from tandemkv.geometry.buffers import SideBuffer
from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import LAYERS, MTP_LAYERS, latent, latent_layer
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family("DeepSeek V2", "deepseek_v2")
def deepseek_v2(config: ConfigView) -> tuple[Layer, ...]:
    """Read DeepSeek-V2 and V2-Lite."""
    return latent(config)


def _mtp(config: ConfigView) -> tuple[Layer, ...]:
    # The module is one decoder layer with the target's attention per predicted token
    # (DeepSeek-V3 technical report, section 2.2).
    return latent(config, count=config.layer_count(*MTP_LAYERS))


@family(
    "DeepSeek V3 and R1, Kimi K2, GLM 4.7 Flash",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe_lite",
    mtp_layers=_mtp,
)
def deepseek_v3(config: ConfigView) -> tuple[Layer, ...]:
    """Read DeepSeek-V3, R1, Kimi K2 and GLM 4.7 Flash."""
    return latent(config)


@family("LongCat Flash", "longcat_flash")
def longcat_flash(config: ConfigView) -> tuple[Layer, ...]:
    """Read LongCat Flash, whose layers have two latent attentions each, both with KV.

    `num_layers` counts layers; `num_hidden_layers`, where it is there, counts attentions.
    """
    layer = latent_layer(config)
    return (replace(layer, beside=(layer,)),) * config.layer_count("num_layers")


# Elements that share one fp32 scale in the cache of an indexer's fp8 keys.
_INDEXER_SCALE_GROUP = 128


def _with_indexer(config: ConfigView) -> Layer:
    """Return a layer that owns an indexer: fp8 keys and a 4-byte scale per 128 elements.

    DeepSeek-V3.2: 132 bytes per token whatever the dtype of the latent is.
    """
    size = config.size("index_head_dim")
    if size % _INDEXER_SCALE_GROUP:
        raise config.error("index_head_dim", f"a multiple of {_INDEXER_SCALE_GROUP} is needed")
    side = SideBuffer(name="indexer_k", bytes_per_token=size + size // _INDEXER_SCALE_GROUP * 4)
    return replace(latent_layer(config), side_buffers=(side,))


def _owners(config: ConfigView, count: int) -> list[bool]:
    """Return which layers own an indexer; the others use what the one before them selected.

    `indexer_types` lists them, or `index_topk_pattern` (F or S per layer). Else the schedule of
    the class: `index_topk_freq` layers per indexer after `index_skip_topk_offset`.
    """
    types = config.items("indexer_types", str)
    field = "indexer_types"
    if types is None and isinstance(config.data.get("index_topk_pattern"), str):
        field = "index_topk_pattern"
        types = [{"F": "full", "S": "shared"}.get(one, one) for one in config.data[field]]
    if types is None:
        period = max(config.switch("index_topk_freq", default=1), 1)
        offset = config.switch("index_skip_topk_offset", default=2)
        return [max(index - offset + 1, 0) % period == 0 for index in range(count)]
    if len(types) < count or not set(types) <= {"full", "shared"}:
        raise config.error(field, f"full or shared for each of {count} layers is needed")
    return [one == "full" for one in types[:count]]


def _sparse_mtp(config: ConfigView) -> tuple[Layer, ...]:
    return (_with_indexer(config),) * config.layer_count(*MTP_LAYERS)


@family(
    "DeepSeek V3.2 and GLM 5",
    "deepseek_v32",
    "glm_moe_dsa",
    mtp_layers=_sparse_mtp,
    reads=("index_head_dim", "index_topk", "layer_types"),
)
def sparse(config: ConfigView) -> tuple[Layer, ...]:
    """Read models with a sparse indexer: only the layers that own one keep its keys."""
    count = config.layer_count(*LAYERS)
    own, other = _with_indexer(config), latent_layer(config)
    return tuple(own if owner else other for owner in _owners(config, count))

"""ChatGLM and GLM-4 to 4.5."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import (
    HEADS,
    HIDDEN,
    MTP_LAYERS,
    attention_layers,
    grouped_query,
)
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family("ChatGLM 1-3 and GLM-4-9B", "chatglm")
def chatglm(config: ConfigView) -> tuple[Layer, ...]:
    """Read ChatGLM: `multi_query_group_num` counts KV heads only with `multi_query_attention`."""
    num_heads = config.size(*HEADS)
    num_kv_heads = num_heads
    if config.flag("multi_query_attention", default=False):
        config.size("multi_query_group_num")
        num_kv_heads = config.kv_heads(num_heads, "multi_query_group_num")
    head_dim = config.optional_size("kv_channels")
    if head_dim is None:
        head_dim = config.split_evenly(config.size(*HIDDEN), num_heads, "kv_channels")
    return attention_layers(config, num_kv_heads, head_dim)


@family("GLM-4", "glm", "glm4", "glm4v_text")
def glm4(config: ConfigView) -> tuple[Layer, ...]:
    """Read GLM-4, whose class default is heads of 128 elements."""
    return grouped_query(config, head_dim_required=True)


def _mtp(config: ConfigView) -> tuple[Layer, ...]:
    # Its module is one more decoder layer of the same attention.
    count = config.layer_count(*MTP_LAYERS)
    return grouped_query(config, head_dim_required=True, count=count)


@family("GLM-4.5", "glm4_moe", "glm4v_moe_text", mtp_layers=_mtp)
def glm4_moe(config: ConfigView) -> tuple[Layer, ...]:
    """Read GLM-4.5; 96 heads of 128 elements do not divide its hidden size of 4,096."""
    return grouped_query(config, head_dim_required=True)

"""GPT-2 and its relatives, OPT, Falcon and MPT: older spellings, MHA or MQA."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import HEADS, HIDDEN, attention_layers
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


def _head_dim(config: ConfigView, num_heads: int) -> int:
    """Return the size of a head, which these families always take from the hidden size."""
    hidden = next((name for name in HIDDEN if config.data.get(name) is not None), HIDDEN[0])
    return config.split_evenly(config.size(*HIDDEN), num_heads, hidden)


@family("GPT-2, GPT-J, GPT-NeoX and BLOOM", "gpt2", "gptj", "gpt_neox", "bloom")
def gpt2(config: ConfigView) -> tuple[Layer, ...]:
    """Read GPT-2 and its relatives, which keep every head."""
    num_heads = config.size(*HEADS)
    return attention_layers(config, num_heads, _head_dim(config, num_heads))


@family("GPT-BigCode (StarCoder 1)", "gpt_bigcode")
def gpt_bigcode(config: ConfigView) -> tuple[Layer, ...]:
    """Read GPT-BigCode; `multi_query` is on where it is absent, and keeps one head."""
    num_heads = config.size(*HEADS)
    num_kv_heads = 1 if config.flag("multi_query", default=True) else num_heads
    return attention_layers(config, num_kv_heads, _head_dim(config, num_heads))


@family("OPT", "opt")
def opt(config: ConfigView) -> tuple[Layer, ...]:
    """Read OPT, which keeps every head."""
    num_heads = config.size(*HEADS)
    return attention_layers(config, num_heads, _head_dim(config, num_heads))


@family("Falcon", "falcon")
def falcon(config: ConfigView) -> tuple[Layer, ...]:
    """Read Falcon: the new decoder counts KV heads, the old one has one unless it is not MQA.

    transformers, `FalconAttention`: `num_kv_heads if new_decoder_architecture or not multi_query
    else 1`, where an absent `num_kv_heads` means all heads. The engines cache those heads, not the
    copies that the reference code broadcasts them to.
    """
    num_heads = config.size(*HEADS)
    num_kv_heads = config.kv_heads(num_heads, "num_kv_heads", "n_head_kv")
    is_new = config.flag("new_decoder_architecture", default=False)
    if not is_new and config.flag("multi_query", default=True):
        num_kv_heads = 1
    return attention_layers(config, num_kv_heads, _head_dim(config, num_heads))


@family("MPT", "mpt")
def mpt(config: ConfigView) -> tuple[Layer, ...]:
    """Read MPT, whose `attn_config` says how many heads are kept."""
    num_heads = config.size(*HEADS)
    attn_config = config.data.get("attn_config")
    if attn_config is None:
        attn_config = {}
    if not isinstance(attn_config, dict):
        raise config.error("attn_config", "an object is needed")
    attention = config.nested("attn_config", attn_config)
    kind = attn_config.get("attn_type", "multihead_attention")
    if kind == "multihead_attention":
        num_kv_heads = num_heads
    elif kind == "multiquery_attention":
        num_kv_heads = 1
    elif kind == "grouped_query_attention":
        attention.size("kv_n_heads")
        num_kv_heads = attention.kv_heads(num_heads, "kv_n_heads")
    else:
        raise attention.error(
            "attn_type",
            "supported: multihead_attention, multiquery_attention, grouped_query_attention",
        )
    return attention_layers(config, num_kv_heads, _head_dim(config, num_heads))

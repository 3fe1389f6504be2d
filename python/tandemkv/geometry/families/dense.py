"""Decoder families with the usual names: grouped-query attention and nothing beside it."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import grouped_query, refuse_window
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family("Llama 1-3, Yi, CodeLlama, Vicuna and EAGLE heads", "llama")
def llama(config: ConfigView) -> tuple[Layer, ...]:
    """Read Llama and the many models and draft heads that use its config."""
    refuse_window(config)
    return grouped_query(config)


@family("Mistral without window", "mistral")
def mistral(config: ConfigView) -> tuple[Layer, ...]:
    """Read Mistral; an absent `sliding_window` means 4,096 to its class, null means none."""
    if "sliding_window" not in config.data:
        raise config.unsupported("sliding_window", "the class default is a window of 4096 tokens")
    refuse_window(config)
    return grouped_query(config)


@family("Mixtral", "mixtral")
def mixtral(config: ConfigView) -> tuple[Layer, ...]:
    """Read Mixtral, whose experts do not touch the KV."""
    refuse_window(config)
    return grouped_query(config)


@family("Phi-3, Phi-3.5-MoE and Phi-4", "phi3", "phimoe")
def phi3(config: ConfigView) -> tuple[Layer, ...]:
    """Read Phi-3/4: the 4k models have an active window, the long ones one never reached."""
    refuse_window(config)
    return grouped_query(config)


@family("Gemma 1", "gemma")
def gemma(config: ConfigView) -> tuple[Layer, ...]:
    """Read Gemma 1; heads of 256 elements whatever the hidden size (7B: 16 heads, 3,072)."""
    refuse_window(config)
    return grouped_query(config, head_dim_required=True)


@family("Granite 3", "granite", "granitemoe", "granitemoeshared")
def granite(config: ConfigView) -> tuple[Layer, ...]:
    """Read Granite 3, dense and MoE."""
    refuse_window(config)
    return grouped_query(config)


@family("OLMo 1-2 and OLMoE", "olmo", "olmo2", "olmoe")
def olmo(config: ConfigView) -> tuple[Layer, ...]:
    """Read OLMo."""
    refuse_window(config)
    return grouped_query(config)


@family("InternLM 1-2", "internlm", "internlm2")
def internlm(config: ConfigView) -> tuple[Layer, ...]:
    """Read InternLM; version 1 has no `num_key_value_heads` and keeps every head."""
    refuse_window(config)
    return grouped_query(config)


@family("InternLM 3", "internlm3")
def internlm3(config: ConfigView) -> tuple[Layer, ...]:
    """Read InternLM 3, whose class default is heads of 128 elements."""
    refuse_window(config)
    return grouped_query(config, head_dim_required=True)


@family("Baichuan 1-2", "baichuan")
def baichuan(config: ConfigView) -> tuple[Layer, ...]:
    """Read Baichuan, which keeps every head."""
    refuse_window(config)
    return grouped_query(config)

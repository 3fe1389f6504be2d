"""Decoder families with the usual names: equal layers of grouped-query attention."""

from __future__ import annotations

from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.families.common import MTP_LAYERS, grouped_query, grouped_query_layer
from tandemkv.geometry.families.patterns import SLIDING, need_window, window_everywhere
from tandemkv.geometry.families.registry import family
from tandemkv.geometry.layers import Layer


@family(
    "Llama 1-3, Yi, CodeLlama, Vicuna and EAGLE heads",
    "llama",
    reads=("layer_types", "sliding_window"),
)
def llama(config: ConfigView) -> tuple[Layer, ...]:
    """Read Llama and the many models and draft heads that use its config.

    Its class has no window, but draft heads are served with the one that their config names.
    """
    return window_everywhere(config, grouped_query_layer(config))


@family("Mistral", "mistral", reads=("layer_types", "sliding_window"))
def mistral(config: ConfigView) -> tuple[Layer, ...]:
    """Read Mistral: a `sliding_window` holds for every layer, null means none."""
    need_window(config, (SLIDING,))
    return window_everywhere(config, grouped_query_layer(config))


@family(
    "Mixtral, Phi-3, Phi-3.5-MoE, Phi-4 and StarCoder 2",
    "mixtral",
    "phi3",
    "phimoe",
    "starcoder2",
    reads=("layer_types", "sliding_window"),
)
def mixtral(config: ConfigView) -> tuple[Layer, ...]:
    """Read decoders whose class has a window for every layer, off unless the config names one."""
    return window_everywhere(config, grouped_query_layer(config))


@family("Granite 3", "granite", "granitemoe", "granitemoeshared")
def granite(config: ConfigView) -> tuple[Layer, ...]:
    """Read Granite 3, dense and MoE."""
    return grouped_query(config)


@family("OLMo 1-2 and OLMoE", "olmo", "olmo2", "olmoe")
def olmo(config: ConfigView) -> tuple[Layer, ...]:
    """Read OLMo."""
    return grouped_query(config)


@family("InternLM 1-2", "internlm", "internlm2")
def internlm(config: ConfigView) -> tuple[Layer, ...]:
    """Read InternLM; version 1 has no `num_key_value_heads` and keeps every head."""
    return grouped_query(config)


@family("InternLM 3", "internlm3")
def internlm3(config: ConfigView) -> tuple[Layer, ...]:
    """Read InternLM 3, whose class default is heads of 128 elements."""
    return grouped_query(config, head_dim_required=True)


@family("Baichuan 1-2", "baichuan")
def baichuan(config: ConfigView) -> tuple[Layer, ...]:
    """Read Baichuan, which keeps every head."""
    return grouped_query(config)


@family("Phi 1-2", "phi", "phi-msft")
def phi(config: ConfigView) -> tuple[Layer, ...]:
    """Read Phi 1 to 2; the first files have the spellings of GPT-2."""
    return grouped_query(config)


@family("DeepSeek 1 MoE", "deepseek")
def deepseek(config: ConfigView) -> tuple[Layer, ...]:
    """Read DeepSeek-MoE 16B, which still keeps keys and values per head."""
    return grouped_query(config)


@family("ERNIE 4.5", "ernie4_5")
def ernie(config: ConfigView) -> tuple[Layer, ...]:
    """Read ERNIE 4.5; heads of 128 elements whatever the hidden size (0.3B: 16 heads, 1,024)."""
    return grouped_query(config, head_dim_required=True)


@family("ERNIE 4.5 MoE", "ernie4_5_moe")
def ernie_moe(config: ConfigView) -> tuple[Layer, ...]:
    """Read ERNIE 4.5 with experts, whose class has no head size of its own."""
    return grouped_query(config)


def _minimax_mtp(config: ConfigView) -> tuple[Layer, ...]:
    # Each of `num_mtp_modules` modules is `mtp_transformer_layers` layers of the model's kind.
    per_module = config.size("mtp_transformer_layers")
    count = config.layer_count(*MTP_LAYERS) * per_module
    return grouped_query(config, head_dim_required=True, count=count)


@family("MiniMax M2", "minimax_m2", mtp_layers=_minimax_mtp, reads=("attn_type_list",))
def minimax_m2(config: ConfigView) -> tuple[Layer, ...]:
    """Read MiniMax M2: `attn_type_list` is left from M1, and every layer has softmax attention."""
    if set(config.items("attn_type_list", int) or ()) - {1}:
        raise config.unsupported("attn_type_list", "lightning attention")
    return grouped_query(config, head_dim_required=True)


@family("Nemotron 4, StableLM, Apertus and Arcee", "nemotron", "stablelm", "apertus", "arcee")
def usual(config: ConfigView) -> tuple[Layer, ...]:
    """Read decoders whose fields are those of Llama."""
    return grouped_query(config)


@family("Seed-OSS", "seed_oss")
def seed_oss(config: ConfigView) -> tuple[Layer, ...]:
    """Read Seed-OSS, whose heads of 128 elements do not follow from its hidden size."""
    return grouped_query(config, head_dim_required=True)

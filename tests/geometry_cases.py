"""What the bundled configs keep per token, written by hand from the models' published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import tandemkv as tkv

CONFIGS = Path(__file__).parent / "data" / "configs"

GQA = {"kind": "attention", "num_kv_heads": 8, "head_dim": 128}
MLA = {"kind": "mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def layer(**fields: Any) -> tkv.Layer:
    """Return a layer, of bf16 unless it says otherwise."""
    return tkv.Layer(**{"kv_dtype": "bf16", **fields})


class Expected(NamedTuple):
    """Equal layers: `heads` KV heads of `dim` elements, or a latent of `heads` + `dim`."""

    model_type: str
    num_layers: int
    kind: str
    heads: int
    dim: int
    kv_dtype: str
    bytes_per_token: int
    positions: int | None


def gqa(model_type: str, *numbers: Any) -> Expected:
    layers, heads, dim, kv_dtype, bytes_per_token, positions = numbers
    return Expected(
        model_type, layers, "attention", heads, dim, kv_dtype, bytes_per_token, positions
    )


def mla(model_type: str, *numbers: Any) -> Expected:
    layers, rank, rope, kv_dtype, bytes_per_token, positions = numbers
    return Expected(model_type, layers, "mla", rank, rope, kv_dtype, bytes_per_token, positions)


# Bytes per token of the whole model on one rank: layers * 2 * heads * dim * 2 bytes for bf16, and
# layers * 576 * 2 for a latent. "k" in the comments is 1,024.
READ: dict[str, Expected] = {
    "01-ai__Yi-34B.json": gqa("llama", 60, 8, 128, "bf16", 245_760, 4096),  # 240k
    "DRAFT__EAGLE1__Mixtral_8x7B.json": gqa("mixtral", 1, 32, 128, "fp16", 16_384, 4096),
    "DRAFT__EAGLE1__llama_2_chat_70B.json": gqa("llama", 1, 8, 128, "fp16", 4096, 4096),
    "DRAFT__EAGLE1__vicuna_33B.json": gqa("llama", 1, 13, 128, "fp16", 6656, 2048),
    "DRAFT__EAGLE1__vicuna_7B.json": gqa("llama", 1, 32, 128, "fp16", 16_384, 2048),
    "DRAFT__SpecForge__gemma3-1b-eagle3.json": gqa("llama", 1, 1, 256, "bf16", 1024, 32_768),
    "DRAFT__SpecForge__gpt-oss-120B-eagle3.json": gqa("llama", 1, 8, 64, "bf16", 2048, 4096),
    "DRAFT__SpecForge__llama3-8B-eagle3.json": gqa("llama", 1, 8, 128, "fp16", 4096, 2048),
    "DRAFT__SpecForge__phi4-eagle3.json": gqa("phi3", 1, 10, 128, "bf16", 5120, 16_384),
    "DRAFT__SpecForge__qwen3-235B-A22B-eagle3.json": gqa("llama", 1, 4, 128, "bf16", 2048, 40_960),
    "Qwen__Qwen1.5-MoE-A2.7B.json": gqa("qwen2_moe", 24, 16, 128, "bf16", 196_608, 32_768),
    "Qwen__Qwen2-VL-2B-Instruct.json": gqa("qwen2_vl", 28, 2, 128, "fp16", 28_672, 32_768),
    "Qwen__Qwen2.5-7B-Instruct.json": gqa("qwen2", 28, 4, 128, "bf16", 57_344, 32_768),
    "Qwen__Qwen2.5-VL-3B-Instruct.json": gqa("qwen2_5_vl", 36, 2, 128, "bf16", 36_864, 8192),
    "Qwen__Qwen3-0.6B.json": gqa("qwen3", 28, 8, 128, "bf16", 114_688, 40_960),  # 112k
    "Qwen__Qwen3-235B-A22B-FP8.json": gqa("qwen3_moe", 94, 4, 128, "bf16", 192_512, 40_960),
    "Qwen__Qwen3-8B.json": gqa("qwen3", 36, 8, 128, "bf16", 147_456, 40_960),
    "Qwen__Qwen3-VL-8B-Instruct.json": gqa("qwen3_vl_text", 36, 8, 128, "bf16", 147_456, 262_144),
    "THUDM__chatglm3-6b.json": gqa("chatglm", 28, 2, 128, "fp16", 28_672, 8192),
    "WizardLM__WizardCoder-15B-V1.0.json": gqa("gpt_bigcode", 40, 1, 128, "fp16", 20_480, 8192),
    "allenai__OLMo-2-1124-7B.json": gqa("olmo2", 32, 32, 128, "fp32", 1_048_576, 4096),
    "baichuan-inc__Baichuan2-7B-Chat.json": gqa("baichuan", 32, 32, 128, "bf16", 524_288, 4096),
    "codellama__CodeLlama-34b-Instruct-hf.json": gqa("llama", 48, 8, 128, "bf16", 196_608, 16_384),
    "deepseek-ai__DeepSeek-R1.json": mla("deepseek_v3", 61, 512, 64, "bf16", 70_272, 163_840),
    "deepseek-ai__DeepSeek-V2-Lite.json": mla("deepseek_v2", 27, 512, 64, "bf16", 31_104, 163_840),
    "deepseek-ai__DeepSeek-V3.json": mla("deepseek_v3", 61, 512, 64, "bf16", 70_272, 163_840),
    "facebook__opt-6.7b.json": gqa("opt", 32, 32, 128, "fp16", 524_288, 2048),
    "google__gemma-2b.json": gqa("gemma", 18, 1, 256, "bf16", 18_432, 8192),
    "ibm-granite__granite-3.3-8b-instruct.json": gqa(
        "granite", 40, 8, 128, "bf16", 163_840, 131_072
    ),
    "internlm__internlm2_5-7b-chat.json": gqa("internlm2", 32, 8, 128, "bf16", 131_072, 32_768),
    "meta-llama__Llama-2-70b-hf.json": gqa("llama", 80, 8, 128, "fp16", 327_680, 2048),
    "meta-llama__Llama-3.2-1B-Instruct.json": gqa("llama", 16, 8, 64, "bf16", 32_768, 131_072),
    "meta-llama__Meta-Llama-3.1-405B.json": gqa("llama", 126, 8, 128, "bf16", 516_096, 131_072),
    "meta-llama__Meta-Llama-3.1-8B.json": gqa("llama", 32, 8, 128, "bf16", 131_072, 131_072),
    "microsoft__Phi-4-mini-instruct.json": gqa("phi3", 32, 8, 128, "bf16", 131_072, 131_072),
    "mistralai__Mistral-Nemo-Instruct-2407.json": gqa(
        "mistral", 40, 8, 128, "bf16", 163_840, 131_072
    ),
    "mistralai__Mixtral-8x22B-v0.1.json": gqa("mixtral", 56, 8, 128, "bf16", 229_376, 65_536),
    "moonshotai__Kimi-K2-Instruct.json": mla("kimi_k2", 61, 512, 64, "bf16", 70_272, 131_072),
    "moonshotai__Kimi-K2.5.json": mla("kimi_k2", 61, 512, 64, "bf16", 70_272, 262_144),
    "mosaicml__mpt-7b.json": gqa("mpt", 32, 32, 128, "bf16", 524_288, 2048),
    # Its 4-bit weights come with an fp8 KV algorithm: half of Kimi-K2.5 in bf16.
    "nvidia__Kimi-K2.6-NVFP4.json": mla("deepseek_v3", 61, 512, 64, "fp8", 35_136, 262_144),
    "tiiuae__falcon-40b.json": gqa("falcon", 60, 8, 64, "bf16", 122_880, None),
    "tiiuae__falcon-7b.json": gqa("falcon", 32, 1, 64, "bf16", 8192, None),
    "zai-org__GLM-4-9B-0414.json": gqa("glm4", 40, 2, 128, "bf16", 40_960, 32_768),
    "zai-org__GLM-4.5-Air.json": gqa("glm4_moe", 46, 8, 128, "bf16", 188_416, 131_072),
    "CohereForAI__aya-23-8B.json": gqa("cohere", 32, 8, 128, "fp16", 131_072, 8_192),
    "DRAFT__AngelSlim__hunyuan-7b-eagle3.json": gqa("llama", 1, 8, 128, "bf16", 4_096, 32_768),
    "DRAFT__AngelSlim__qwen2-audio-7b-eagle3.json": gqa("llama", 1, 4, 128, "bf16", 2_048, 8_192),
    "DRAFT__AngelSlim__qwen3_dflash.json": gqa("qwen3", 5, 8, 128, "bf16", 20_480, 40_960),
    "DRAFT__EAGLE1__llama_2_chat_7B.json": gqa("llama", 1, 32, 128, "fp16", 16_384, 4_096),
    "DRAFT__PARD__amd__PARD-Llama-3.2-1B.json": gqa("llama", 16, 8, 64, "bf16", 32_768, 131_072),
    "DRAFT__PARD__amd__PARD-Qwen3-0.6B.json": gqa("qwen3", 28, 8, 128, "bf16", 114_688, 40_960),
    "DRAFT__SpecForge__deepseek-v2-lite-eagle3.json": gqa(
        "llama", 1, 16, 128, "bf16", 8_192, 163_840
    ),
    "DRAFT__SpecForge__inkling-dspark.json": gqa("qwen3", 5, 16, 64, "bf16", 20_480, 1_048_576),
    "DRAFT__SpecForge__kimi-k3-dspark.json": gqa("qwen3", 5, 16, 64, "bf16", 20_480, 65_536),
    "DRAFT__SpecForge__ling-flash-2.0-eagle3.json": gqa("llama", 1, 8, 128, "bf16", 4_096, 32_768),
    "DRAFT__SpecForge__llama4-scout-17B-16E-eagle3.json": gqa(
        "llama", 1, 8, 128, "bf16", 4_096, 2_048
    ),
    "DRAFT__SpecForge__longcat-flash-dflash.json": gqa("qwen3", 5, 8, 128, "bf16", 20_480, 40_960),
    "DRAFT__SpecForge__longcat-flash-eagle3.json": gqa("llama", 1, 16, 128, "bf16", 8_192, 131_072),
    "DRAFT__SpecForge__qwen3-30B-A3B-eagle3.1.json": gqa("llama", 1, 4, 128, "bf16", 2_048, 2_048),
    "DRAFT__SpecForge__qwen3-32b-eagle3.json": gqa("llama", 1, 8, 128, "bf16", 4_096, 40_960),
    "DRAFT__SpecForge__qwen3-8b-dspark.json": gqa("qwen3", 5, 8, 128, "bf16", 20_480, 40_960),
    "DRAFT__SpecForge__qwen3-8b-eagle3.json": gqa("llama", 1, 8, 128, "bf16", 4_096, 40_960),
    "DRAFT__SpecForge__qwen3-coder-next-eagle3.json": gqa("llama", 1, 4, 128, "bf16", 2_048, 4_096),
    "DRAFT__SpecForge__qwen3-next-80b-a3b-eagle3.json": gqa(
        "llama", 1, 2, 256, "bf16", 2_048, 262_144
    ),
    "DRAFT__SpecForge__qwen3.5-35b-a3b-dflash.json": gqa(
        "qwen3", 8, 4, 128, "bf16", 16_384, 262_144
    ),
    "DRAFT__SpecForge__qwen3.6-27b-dspark.json": gqa("qwen3", 5, 8, 128, "bf16", 20_480, 262_144),
    "Qwen__Qwen2-72B-Instruct.json": gqa("qwen2", 80, 8, 128, "bf16", 327_680, 32_768),
    "Qwen__Qwen3-14B.json": gqa("qwen3", 40, 8, 128, "bf16", 163_840, 40_960),
    "Qwen__Qwen3-30B-A3B-FP8.json": gqa("qwen3_moe", 48, 4, 128, "bf16", 98_304, 40_960),
    "Qwen__Qwen3-32B-FP8.json": gqa("qwen3", 64, 8, 128, "bf16", 262_144, 40_960),
    "Qwen__Qwen3-Coder-480B-A35B-Instruct.json": gqa(
        "qwen3_moe", 62, 8, 128, "bf16", 253_952, 262_144
    ),
    "Qwen__Qwen3-VL-235B-A22B-Instruct.json": gqa(
        "qwen3_vl_moe_text", 94, 4, 128, "bf16", 192_512, 262_144
    ),
    "Qwen__Qwen3-VL-2B-Instruct.json": gqa("qwen3_vl_text", 28, 8, 128, "bf16", 114_688, 262_144),
    "Qwen__Qwen3-VL-32B-Thinking.json": gqa("qwen3_vl_text", 64, 8, 128, "bf16", 262_144, 262_144),
    "THUDM__chatglm-mlc-preset.json": gqa("chatglm", 28, 2, 128, "fp16", 28_672, 8_192),
    "XiaomiMiMo__MiMo-7B-Base.json": gqa("mimo", 36, 8, 128, "bf16", 147_456, 32_768),
    "baidu__ERNIE-4.5-0.3B-PT.json": gqa("ernie4_5", 18, 2, 128, "bf16", 18_432, 131_072),
    "deepseek-ai__deepseek-moe-16b.json": gqa("deepseek", 28, 16, 128, "bf16", 229_376, 4_096),
    "meta-llama__Llama-3.1-70B-Instruct.json": gqa("llama", 80, 8, 128, "bf16", 327_680, 131_072),
    "meta-llama__Meta-Llama-3-70B.json": gqa("llama", 80, 8, 128, "bf16", 327_680, 8_192),
    "microsoft__phi-2.json": gqa("phi-msft", 32, 32, 80, "fp16", 327_680, 2_048),
    "nvidia__MiniMax-M2.5-NVFP4.json": gqa("minimax_m2", 62, 8, 128, "fp8", 126_976, 196_608),
    "ibm-granite__granite-4-8b-dense-hybrid.json": gqa(
        "granitemoehybrid", 40, 8, 128, "bf16", 163_840, 131_072
    ),
    "DRAFT__SpecForge__qwen3-8b-dflash.json": gqa("qwen3", 5, 8, 128, "bf16", 20_480, 40_960),
}

# Their configs name no dtype at all, so the caller must.
READ_WITH_DTYPE: dict[str, Expected] = {
    "EleutherAI__gpt-j-6b.json": gqa("gptj", 28, 16, 256, "fp16", 458_752, 2048),
    "Qwen__Qwen-72B-Chat.json": gqa("qwen", 80, 64, 128, "fp16", 2_621_440, 32_768),
    "openai-community__gpt2.json": gqa("gpt2", 12, 12, 64, "fp16", 36_864, 1024),
    "MiniMaxAI__MiniMax-M2.5.json": gqa("minimax_m2", 62, 8, 128, "bf16", 253_952, 196_608),
}

# file -> (field, what the message must say)
REFUSED: dict[str, tuple[str, str]] = {
    # Heads of a draft that keep no KV, and a file of another loader: neither is a config.
    "DRAFT__Medusa__FasterDecoding__medusa-vicuna-7b-v1.3.json": ("model_type", "is missing"),
    "deepseek-ai__DeepSeek-V3.2-Exp__inference_native.json": ("model_type", "is missing"),
    "llava-hf__llava-1.5-7b-hf.json": ("text_config.num_attention_heads", "is missing"),
}

# Model types of other architectures, with the nearest type that can be read.
UNSUPPORTED_TYPES: dict[str, str | None] = {
    "blt": None,
    "deepseek_v4": "deepseek_v3",
    "dbrx": None,
    "gemma5_text": "gemma",
    "gpt_neo": "gpt_neox",
    "jetmoe": None,
    "llama5": "llama",
    "olmo_hybrid": "olmo",
    "recurrent_gemma": None,
    "rwkv": None,
    "xlstm": None,
}

_SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "torch_dtype": "bfloat16",
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}

# One config per model type that no bundled file covers: (config, KV heads, head_dim).
INLINE: dict[str, tuple[dict[str, Any], int, int]] = {
    "glm": ({**_GROUPED, "head_dim": 128}, 2, 128),
    "granitemoe": (_GROUPED, 2, 64),
    "granitemoeshared": (_GROUPED, 2, 64),
    "internlm": (_SMALL, 8, 64),
    "internlm3": ({**_GROUPED, "head_dim": 128}, 2, 128),
    "olmo": (_SMALL, 8, 64),
    "olmoe": (_GROUPED, 2, 64),
    "apertus": (_GROUPED, 2, 64),
    "arcee": (_GROUPED, 2, 64),
    "bloom": ({"n_layer": 3, "n_embd": 512, "n_head": 8, "torch_dtype": "bfloat16"}, 8, 64),
    "ernie4_5_moe": (_GROUPED, 2, 64),
    "glm4v_moe_text": ({**_GROUPED, "head_dim": 128}, 2, 128),
    "glm4v_text": ({**_GROUPED, "head_dim": 128}, 2, 128),
    "gpt_neox": (_SMALL, 8, 64),
    "hunyuan_v1_dense": ({**_GROUPED, "head_dim": 128}, 2, 128),
    "hunyuan_v1_moe": ({**_GROUPED, "attention_head_dim": 128}, 2, 128),
    "nemotron": (_GROUPED, 2, 64),
    "phi": (_SMALL, 8, 64),
    "qwen2_5_omni_text": (_GROUPED, 2, 64),
    "qwen3_omni_moe_text": ({**_GROUPED, "head_dim": 128}, 2, 128),
    "seed_oss": ({**_GROUPED, "head_dim": 128}, 2, 128),
    "stablelm": (_GROUPED, 2, 64),
    "starcoder2": (_GROUPED, 2, 64),
    "phimoe": ({**_GROUPED, "sliding_window": 4096, "max_position_embeddings": 4096}, 2, 64),
    "qwen2_vl_text": (_GROUPED, 2, 64),
    "qwen2_5_vl_text": (_GROUPED, 2, 64),
    "qwen3_vl_moe_text": ({**_GROUPED, "head_dim": 128}, 2, 128),
}

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def read(**changes: Any) -> tkv.ModelGeometry:
    """Read the Llama-like config with some fields changed; `...` removes one."""
    config = {**LLAMA, **changes}
    return tkv.ModelGeometry.from_hf(
        {field: value for field, value in config.items() if value is not ...}
    )

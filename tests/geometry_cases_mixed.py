"""What configs with layers of several kinds keep, written by hand from the published models.

A pattern has one letter per layer, in order: F full attention, S a sliding window, C a chunk, M a
recurrent state, H attention beside a state, X cross attention, D a decoder layer of both kinds of
attention, N nothing. States are given in bytes of the whole model, as the published shapes say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from geometry_cases import MLA, layer

import tandemkv as tkv


class Mixed(NamedTuple):
    """What a config must be read as."""

    model_type: str
    pattern: str
    layers: dict[str, tkv.Layer]
    bytes_per_token: int
    state_bytes: int = 0
    kv_dtype: str | None = None


def heads(num_kv_heads: int, head_dim: int, **fields: Any) -> tkv.Layer:
    return layer(kind="attention", num_kv_heads=num_kv_heads, head_dim=head_dim, **fields)


def sliding(num_kv_heads: int, head_dim: int, window: int, **fields: Any) -> dict[str, tkv.Layer]:
    """Return layers of one shape, full (F) and with a window (S)."""
    full = heads(num_kv_heads, head_dim, **fields)
    return {"F": full, "S": replace(full, window=window)}


def chunked(num_kv_heads: int, head_dim: int, chunk: int) -> dict[str, tkv.Layer]:
    full = heads(num_kv_heads, head_dim)
    return {"F": full, "C": replace(full, chunk=chunk)}


def decoder(num_heads: int, head_dim: int, limit: int | None, dtype: str) -> dict[str, tkv.Layer]:
    own = heads(num_heads, head_dim, kv_dtype=dtype)
    cross = replace(own, kind="cross_attention", max_cross_tokens=limit)
    return {"D": replace(own, beside=(cross,))}


def indexed(pattern: str, model_type: str, kv_dtype: str, bytes_per_token: int) -> Mixed:
    """Return a model of latents, of which those of an F own a 132-byte indexer."""
    latent = layer(**MLA, kv_dtype=kv_dtype)
    side = tkv.SideBuffer(name="indexer_k", bytes_per_token=132)
    layers = {"F": replace(latent, side_buffers=(side,)), "S": latent}
    return Mixed(model_type, pattern, layers, bytes_per_token)


def gdn(value_heads: int) -> int:
    """Return the state of a gated delta net of 16 key heads of 128, all in bf16.

    The convolution of 4 keeps 3 inputs of v, q and k; a value head keeps a 128 x 128 matrix.
    """
    return (value_heads * 128 + 2 * 16 * 128) * 3 * 2 + value_heads * 128 * 128 * 2


def mamba2(heads_x_dim: int, groups: int, state: int, item_bytes: int = 2) -> int:
    """Return the state of a Mamba 2 layer: bf16 inputs of x, B and C, and the state itself."""
    return (heads_x_dim + 2 * groups * state) * 3 * 2 + heads_x_dim * state * item_bytes


_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_SUPER = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
_H56 = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"
_LETTERS = str.maketrans("M*-E", "MFNN")
_GEMMA3N = "SSSSF" * 4 + "RRRRQ" * 3
_LLAMA4 = Mixed("llama4_text", "CCCF" * 12, chunked(8, 128, 8192), 12 * 4096)
_GEMMA4 = {"S": heads(8, 256, window=1024), "F": heads(2, 512)}
_GEMMA4_FP8 = {letter: replace(one, kv_dtype="fp8") for letter, one in _GEMMA4.items()}
# GLM 5.2: the first three layers own an indexer, then every fourth: 21 of 78.
_GLM52 = "FFF" + "SSSF" * 18 + "SSS"
_ULTRA = (
    "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*"
    "EMEMEM*EMEMEMEM*EMEMEMEME"
)
_ULTRA_CASE = Mixed(
    "nemotron_h",
    _ULTRA.translate(_LETTERS),
    {"F": heads(2, 128)},
    12 * 1024,
    48 * mamba2(256 * 64, 8, 128, item_bytes=4),
)
# Nemotron Super 49B: 31 of 80 layers have no attention; the rest have 8 KV heads of 128.
_SUPER_49B = "FFFFFFNNFFFN" + "F" * 30 + "NNNNNNNNNNFNNNNNNNNNNNNNNNNNN" + "F" * 9

MIXED: dict[str, Mixed] = {
    "MiniMaxAI__MiniMax-M1-80k.json": Mixed(
        "minimax_m1", "MMMMMMMF" * 10, {"F": heads(8, 128)}, 10 * 4096, 70 * 64 * 128 * 128 * 2
    ),
    "Qwen__Qwen3-Next-80B-A3B-Instruct.json": Mixed(
        "qwen3_next", "MMMF" * 12, {"F": heads(2, 256)}, 12 * 2048, 36 * gdn(32)
    ),
    "Qwen__Qwen3.5-0.8B.json": Mixed(
        "qwen3_5_text", "MMMF" * 6, {"F": heads(2, 256)}, 6 * 2048, 18 * gdn(16)
    ),
    "Qwen__Qwen3.5-122B-A10B.json": Mixed(
        "qwen3_5_moe_text", "MMMF" * 12, {"F": heads(2, 256)}, 12 * 2048, 36 * gdn(64)
    ),
    "Qwen__Qwen3.5-27B.json": Mixed(
        "qwen3_5_text", "MMMF" * 16, {"F": heads(4, 256)}, 16 * 4096, 48 * gdn(48)
    ),
    "Qwen__Qwen3.5-397B-A17B.json": Mixed(
        "qwen3_5_moe_text", "MMMF" * 15, {"F": heads(2, 256)}, 15 * 2048, 45 * gdn(64)
    ),
    "nvidia__Qwen3.5-397B-A17B-NVFP4.json": Mixed(
        "qwen3_5_moe_text",
        "MMMF" * 15,
        {"F": heads(2, 256, kv_dtype="fp8")},
        15 * 1024,
        45 * gdn(64),
    ),
    "RedHatAI__Llama-4-Scout-17B-16E-Instruct-FP8-dynamic.json": _LLAMA4,
    "meta-llama__Llama-4-Scout-17B-16E-Instruct.json": _LLAMA4,
    # 76 Mamba layers of 2 * 3,712 channels and 16 states; 13 of them call the shared attention,
    # whose 16 heads of 464 elements make up twice the hidden size.
    "Zyphra__Zamba-7B-v1.json": Mixed(
        "zamba",
        "MMH" + "MMMMH" + "MMMMMH" * 11 + "MM",
        {"H": heads(16, 464)},
        13 * 2 * 16 * 464 * 2,
        76 * 7424 * (3 + 16) * 2,
    ),
    "Zyphra__Zamba2-2.7B.json": Mixed(
        "zamba2",
        "".join(
            "H" if index in (6, 12, 18, 24, 30, 36, 42, 47, 51) else "M" for index in range(54)
        ),
        {"H": heads(32, 160)},
        9 * 2 * 32 * 160 * 2,
        54 * mamba2(5120, 1, 64),
    ),
    "ai21labs__Jamba-v0.1.json": Mixed(
        "jamba", "MMMMFMMM" * 4, {"F": heads(8, 128)}, 4 * 4096, 28 * 8192 * (3 + 16) * 2
    ),
    "deepseek-ai__DeepSeek-V3.2.json": indexed("F" * 61, "deepseek_v32", "bf16", 61 * 1284),
    "google-t5__t5-small.json": Mixed("t5", "D" * 6, decoder(8, 64, None, "fp32"), 6 * 4096),
    "google__gemma-2-27b-it.json": Mixed("gemma2", "SF" * 23, sliding(16, 128, 4096), 23 * 8192),
    "google__gemma-2-9b-it.json": Mixed("gemma2", "SF" * 21, sliding(8, 256, 4096), 21 * 8192),
    "google__gemma-3-1b-it.json": Mixed(
        "gemma3_text", "SSSSSF" * 4 + "SS", sliding(1, 256, 512), 4 * 1024
    ),
    "google__gemma-3-27b-it.json": Mixed(
        "gemma3_text", "SSSSSF" * 10 + "SS", sliding(16, 128, 1024), 10 * 8192
    ),
    # The last 15 layers read layer 18 (windows) or 19 (full), the last of their kind before them.
    "google__gemma-3n-E4B-it__text_config.json": Mixed(
        "gemma3n_text",
        _GEMMA3N,
        {
            **sliding(2, 256, 512),
            "R": tkv.Layer(kind="none", reads_layer=18),
            "Q": tkv.Layer(kind="none", reads_layer=19),
        },
        4 * 2048,
    ),
    # Full layers keep keys and values of 2 heads of 512, though values come from the keys.
    "google__gemma-4-26B-A4B.json": Mixed("gemma4_text", "SSSSSF" * 5, _GEMMA4, 5 * 4096),
    "nvidia__Gemma-4-26B-A4B-NVFP4.json": Mixed("gemma4_text", "SSSSSF" * 5, _GEMMA4_FP8, 5 * 2048),
    "ibm-ai-platform__Bamba-9B-v2.json": Mixed(
        "bamba",
        "MMMMMMMMMF" + "MMMMMMMMF" * 2 + "MMMM",
        {"F": heads(8, 128)},
        3 * 4096,
        29 * mamba2(8192, 1, 128),
    ),
    "meta-llama__Llama-3.2-11B-Vision-Instruct.json": Mixed(
        "mllama_text_model",
        "FFFX" + "FFFFX" * 7 + "F",
        {
            "F": heads(8, 128),
            "X": layer(kind="cross_attention", num_kv_heads=8, head_dim=128),
        },
        32 * 4096,
    ),
    "microsoft__Phi-3-mini-4k-instruct.json": Mixed("phi3", "S" * 32, sliding(32, 96, 2047), 0),
    "mistralai__Mistral-7B-v0.1.json": Mixed("mistral", "S" * 32, sliding(8, 128, 4096), 0),
    # 3 inputs of q, k and v of 32 heads, and an fp32 matrix of 128 x 128 per head.
    "moonshotai__Kimi-Linear-48B-A3B-Instruct.json": Mixed(
        "kimi_linear",
        "MMMMF" + "MMMF" * 5 + "MM",
        {"F": layer(**MLA)},
        6 * 1152,
        21 * (3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4),
    ),
    "nvidia__GLM-5-NVFP4.json": indexed("F" * 78, "glm_moe_dsa", "bf16", 78 * 1284),
    "nvidia__GLM-5.2-NVFP4.json": indexed(_GLM52, "glm_moe_dsa", "fp8", 78 * 576 + 21 * 132),
    "zai-org__GLM-5.1-FP8.json": indexed("F" * 78, "glm_moe_dsa", "bf16", 78 * 1284),
    "zai-org__GLM-5.2-FP8.json": indexed(_GLM52, "glm_moe_dsa", "bf16", 78 * 1152 + 21 * 132),
    "zai-org__GLM-5.json": indexed("F" * 78, "glm_moe_dsa", "bf16", 78 * 1284),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json": Mixed(
        "nemotron_h",
        _NANO.translate(_LETTERS),
        {"F": heads(2, 128)},
        6 * 1024,
        23 * mamba2(64 * 64, 8, 128, item_bytes=4),
    ),
    "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8.json": Mixed(
        "nemotron_h",
        _SUPER.translate(_LETTERS),
        {"F": heads(2, 128)},
        8 * 1024,
        40 * mamba2(128 * 64, 8, 128, item_bytes=4),
    ),
    "nvidia__Nemotron-H-56B-Base-8K.json": Mixed(
        "nemotron_h",
        _H56.translate(_LETTERS),
        {"F": heads(8, 128)},
        10 * 4096,
        54 * mamba2(256 * 64, 8, 256),
    ),
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16.json": _ULTRA_CASE,
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4.json": _ULTRA_CASE,
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1.json": Mixed(
        "nemotron-nas", _SUPER_49B, {"F": heads(8, 128)}, 49 * 4096
    ),
    "openai__gpt-oss-120b.json": Mixed(
        "gpt_oss", "SF" * 18, sliding(8, 64, 128), 18 * 2048, kv_dtype="bf16"
    ),
    "openai__whisper-tiny.json": Mixed("whisper", "D" * 4, decoder(6, 64, 1500, "fp32"), 4 * 3072),
    "tiiuae__Falcon-H1-0.5B-Instruct.json": Mixed(
        "falcon_h1", "H" * 36, {"H": heads(2, 64)}, 36 * 512, 36 * mamba2(24 * 64, 1, 128)
    ),
}

# One small config per model type that no bundled file covers, with its class default patterns.
_BASE: dict[str, Any] = {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}
_WINDOW = {**_BASE, "sliding_window": 99, "max_position_embeddings": 4096}
_MLA_BASE = {**_BASE, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
_BART = {
    "d_model": 512,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "encoder_attention_heads": 4,
    "encoder_layers": 2,
    "is_encoder_decoder": True,
    "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16",
}
_T5 = {
    "num_layers": 2,
    "num_decoder_layers": 6,
    "num_heads": 8,
    "d_kv": 64,
    "d_model": 384,
    "n_positions": 512,
    "torch_dtype": "bfloat16",
}
_MAMBA = {"num_hidden_layers": 6, "hidden_size": 512, "torch_dtype": "bfloat16", "conv_kernel": 4}
_MAMBA1 = {**_MAMBA, "expand": 2, "state_size": 16}
_FULL = {"F": heads(2, 64)}
_LATENT = layer(**MLA)
_KIMI = {
    **_MLA_BASE,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3, 5, 6],
        "full_attn_layers": [4],
        "num_heads": 8,
        "head_dim": 64,
        "short_conv_kernel_size": 4,
    },
}
_LFM2 = {**_BASE, "conv_L_cache": 3}
_MIMO_V2 = {
    **_BASE,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 160,
    "swa_v_head_dim": 96,
    "sliding_window_size": 128,
    "max_position_embeddings": 4096,
}
_MIMO_V2_LAYERS = {
    "F": heads(2, 192, v_head_dim=128),
    "S": heads(4, 160, v_head_dim=96, window=129),
}
_MINIMAX = {**_BASE, "attn_type_list": [0, 0, 1, 0, 0, 1]}
_READS_BEFORE = {str(index): tkv.Layer(kind="none", reads_layer=index) for index in range(6)}

INLINE_MIXED: dict[str, tuple[dict[str, Any], Mixed]] = {
    name: (config, Mixed(name.partition(":")[0], *expected))
    for name, config, *expected in (
        ("cohere2", _WINDOW, "SSSFSS", sliding(2, 64, 99), 512),
        ("cohere2:2", {**_WINDOW, "sliding_window_pattern": 2}, "SFSFSF", sliding(2, 64, 99), 1536),
        ("olmo3", _WINDOW, "SSSFSS", sliding(2, 64, 99), 512),
        ("exaone4", _WINDOW, "SSSFSS", sliding(2, 64, 99), 512),
        ("exaone4:full", {**_BASE, "sliding_window": None}, "FFFFFF", _FULL, 3072),
        ("smollm3", _BASE, "FFFFFF", _FULL, 3072),
        ("ministral", _WINDOW, "SSSSSS", sliding(2, 64, 99), 0),
        (
            "ministral3",
            {**_WINDOW, "layer_types": ["full_attention", "sliding_attention"] * 3},
            "FSFSFS",
            sliding(2, 64, 99),
            1536,
        ),
        ("mimo_v2_flash", _MIMO_V2, "FSSSSF", _MIMO_V2_LAYERS, 2 * 2 * 320 * 2),
        (
            "mimo_v2_flash:list",
            {**_MIMO_V2, "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1]},
            "FSSFSS",
            _MIMO_V2_LAYERS,
            2 * 2 * 320 * 2,
        ),
        (
            "hunyuan",
            {**_BASE, "use_cla": True, "cla_share_factor": 2},
            "F0F2F4",
            {**_FULL, **_READS_BEFORE},
            1536,
        ),
        ("glm4_moe_lite", _MLA_BASE, "LLLLLL", {"L": _LATENT}, 6 * 1152),
        (
            "longcat_flash",
            {**_MLA_BASE, "num_hidden_layers": 12, "num_layers": 6},
            "LLLLLL",
            {"L": replace(_LATENT, beside=(_LATENT,))},
            12 * 1152,
        ),
        ("mamba", _MAMBA1, "MMMMMM", {}, 0, 6 * 1024 * (3 + 16) * 2),
        ("falcon_mamba", _MAMBA1, "MMMMMM", {}, 0, 6 * 1024 * (3 + 16) * 2),
        (
            "mamba2",
            {**_MAMBA, "num_heads": 16, "head_dim": 64, "n_groups": 2, "state_size": 128},
            "MMMMMM",
            {},
            0,
            6 * mamba2(1024, 2, 128),
        ),
        ("minimax_text_01", _MINIMAX, "MMFMMF", _FULL, 1024, 4 * 8 * 64 * 64 * 2),
        (
            "minimax",
            {**_BASE, "layer_types": ["full_attention", "linear_attention"] * 3},
            "FMFMFM",
            _FULL,
            1536,
            3 * 8 * 64 * 64 * 2,
        ),
        (
            "kimi_k3",
            _KIMI,
            "MMMLMM",
            {"L": _LATENT},
            1152,
            5 * (3 * 8 * 64 * 3 * 2 + 8 * 64 * 64 * 4),
        ),
        # A convolution of 3 keeps 2 inputs of the hidden size.
        ("lfm2", {**_LFM2, "full_attn_idxs": [2, 5]}, "MMFMMF", _FULL, 1024, 4 * 512 * 2 * 2),
        (
            "lfm2_moe",
            {**_LFM2, "layer_types": ["conv", "conv", "full_attention"] * 2},
            "MMFMMF",
            _FULL,
            1024,
            4 * 512 * 2 * 2,
        ),
        (
            "granitemoehybrid",
            {
                **_BASE,
                "layer_types": ["mamba", "mamba", "attention"] * 2,
                "mamba_n_heads": 16,
                "mamba_d_head": "auto",
                "mamba_expand": 2,
                "mamba_n_groups": 1,
                "mamba_d_state": 128,
                "mamba_d_conv": 4,
            },
            "MMFMMF",
            _FULL,
            1024,
            4 * mamba2(1024, 1, 128),
        ),
        *((name, _T5, "DDDDDD", decoder(8, 64, 512, "bf16"), 12_288) for name in ("mt5", "umt5")),
        *(
            (name, _BART, "DDDDDD", decoder(8, 64, 1024, "bf16"), 12_288)
            for name in ("bart", "mbart", "marian", "pegasus", "m2m_100")
        ),
    )
}

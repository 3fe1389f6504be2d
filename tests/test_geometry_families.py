"""Families whose layers are of several kinds, or keep something other than every token."""

from __future__ import annotations

import json
from typing import Any

import pytest
from geometry_cases import CONFIGS, LLAMA, READ, READ_WITH_DTYPE, REFUSED, layer, read
from geometry_cases_mixed import INLINE_MIXED, MIXED, Mixed, heads, sliding

import tandemkv as tkv


def assert_reads(geometry: tkv.ModelGeometry, expected: Mixed) -> None:
    assert geometry.model_type == expected.model_type
    assert geometry.num_layers == len(expected.pattern)
    for index, (letter, found) in enumerate(zip(expected.pattern, geometry.layers, strict=True)):
        what = (index, letter, found)
        if letter == "M":
            assert found.kind == "state", what
            assert not found.beside, what
        elif letter == "N":
            assert found == tkv.Layer(kind="none"), what
        elif letter == "H":
            attention, state = found.parts
            assert attention == expected.layers["H"], what
            assert state.kind == "state", what
        else:
            assert found == expected.layers[letter], what
    assert geometry.bytes_per_token() == expected.bytes_per_token
    assert geometry.state_bytes() == expected.state_bytes


@pytest.mark.parametrize("name", MIXED)
def test_bundled_config_is_read_layer_by_layer(name: str) -> None:
    expected = MIXED[name]
    geometry = tkv.ModelGeometry.from_hf(CONFIGS / name, kv_dtype=expected.kv_dtype)
    assert_reads(geometry, expected)


@pytest.mark.parametrize("name", INLINE_MIXED)
def test_model_type_without_a_bundled_file(name: str) -> None:
    config, expected = INLINE_MIXED[name]
    assert_reads(tkv.ModelGeometry.from_hf({**config, "model_type": expected.model_type}), expected)


def bundled(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    return found


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "changes", "pattern"),
    [
        ("llama", {"sliding_window": 4096}, "SSSS"),
        ("mistral", {"sliding_window": 4096}, "SSSS"),
        ("phi3", {"sliding_window": 2047}, "SSSS"),
        ("mixtral", {"sliding_window": 4096}, "SSSS"),
        (
            "qwen2",
            {"sliding_window": 99, "use_sliding_window": True, "max_window_layers": 3},
            "FFFS",
        ),
        (
            "qwen2",
            {"sliding_window": 99, "use_sliding_window": True, "max_window_layers": 0},
            "SSSS",
        ),
        ("qwen2", {"sliding_window": 99, "max_window_layers": 0}, "FFFF"),  # off by default
        (
            "mimo",
            {"sliding_window": 99, "use_sliding_window": True, "max_window_layers": 2},
            "FFSS",
        ),
        # The class of Qwen2-MoE has windows in even layers below the number.
        (
            "qwen2_moe",
            {"sliding_window": 99, "use_sliding_window": True, "max_window_layers": 2},
            "SFFF",
        ),
        ("qwen3_moe", {"sliding_window": 99, "use_sliding_window": True, "head_dim": 128}, "SSSS"),
        (
            "qwen3",
            {
                "sliding_window": 99,
                "use_sliding_window": True,
                "head_dim": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            "SFSF",
        ),
        # Windows that are switched off stay off, whatever the list says.
        (
            "qwen3",
            {
                "sliding_window": 99,
                "head_dim": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            "FFFF",
        ),
    ],
)
def test_windows_are_where_the_class_has_them(
    model_type: str, changes: dict[str, Any], pattern: str
) -> None:
    geometry = read(model_type=model_type, num_hidden_layers=4, **changes)
    kinds = sliding(8, 128, changes["sliding_window"])
    assert geometry.layers == tuple(kinds[letter] for letter in pattern)


def test_pattern_belongs_to_the_number_of_the_layer_in_the_model() -> None:
    """The first layers of a pattern keep their place where only some are asked for."""
    geometry = tkv.ModelGeometry.from_hf(CONFIGS / "google__gemma-3-27b-it.json", num_layers=7)
    windows = [one.window for one in geometry.layers]
    assert windows == [1024, 1024, 1024, 1024, 1024, None, 1024]


def test_chunks_are_off_where_the_config_says_so() -> None:
    config = bundled("meta-llama__Llama-4-Scout-17B-16E-Instruct")
    config["text_config"]["attention_chunk_size"] = None
    assert tkv.ModelGeometry.from_hf(config).bytes_per_token() == 48 * 4096
    config["text_config"]["attention_chunk_size"] = 4096
    config["text_config"]["no_rope_layers"] = [1, 0] * 24
    geometry = tkv.ModelGeometry.from_hf(config)
    assert [one.chunk for one in geometry.layers] == [4096, None] * 24


def test_sinks_are_kept_beside_a_window() -> None:
    config = bundled("nvidia__Llama-3_3-Nemotron-Super-49B-v1")
    config["block_configs"][0]["attention"] |= {"window_length": 8192, "num_sink_tokens": 128}
    config["block_configs"][1]["attention"] |= {"n_heads_in_group": 16}
    config["block_configs"][2]["attention"] = {"no_op": False, "replace_with_linear": True}
    first, second, third = tkv.ModelGeometry.from_hf(config).layers[:3]
    assert first == heads(8, 128, window=8192, sink_tokens=128)
    assert second == heads(4, 128)
    assert third == tkv.Layer(kind="none")


# --- what is refused ------------------------------------------------------------------------------

_GEMMA3N = bundled("google__gemma-3n-E4B-it__text_config")
_GEMMA4 = bundled("google__gemma-4-26B-A4B")["text_config"]
_GPT_OSS = {**bundled("openai__gpt-oss-120b"), "torch_dtype": "bfloat16"}
_KIMI = bundled("moonshotai__Kimi-Linear-48B-A3B-Instruct")
_LLAMA4 = bundled("meta-llama__Llama-4-Scout-17B-16E-Instruct")["text_config"]
_NANO = bundled("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
_NAS = bundled("nvidia__Llama-3_3-Nemotron-Super-49B-v1")
_GLM52 = bundled("zai-org__GLM-5.2-FP8")
_M1 = bundled("MiniMaxAI__MiniMax-M1-80k")
_WINDOWS = {**LLAMA, "sliding_window": 99, "use_sliding_window": True}
_KDA = {"kda_layers": [1, 2], "full_attn_layers": [2], "num_heads": 2, "head_dim": 2}


@pytest.mark.parametrize(
    ("config", "change", "field"),
    [
        (_GPT_OSS, {"layer_types": ["full_attention"]}, "layer_types"),
        (_GPT_OSS, {"layer_types": ["full_attention", "linear_attention"] * 18}, "layer_types"),
        (_GPT_OSS, {"layer_types": [1] * 36}, "layer_types"),
        (_GPT_OSS, {"sliding_window": 128.0}, "sliding_window"),
        (_GPT_OSS, {"sliding_window": True}, "sliding_window"),
        (_GPT_OSS, {"sliding_window": ...}, "sliding_window"),
        ({**LLAMA, "model_type": "mistral"}, {}, "sliding_window"),
        ({**_WINDOWS, "model_type": "qwen2"}, {}, "max_window_layers"),
        ({**_WINDOWS, "model_type": "qwen2"}, {"max_window_layers": -1}, "max_window_layers"),
        ({**_WINDOWS, "model_type": "smollm3"}, {}, "layer_types"),
        (
            {**_WINDOWS, "model_type": "exaone4"},
            {"sliding_window_pattern": "LLLG"},
            "sliding_window_pattern",
        ),
        (_LLAMA4, {"attention_chunk_size": ...}, "attention_chunk_size"),
        (_LLAMA4, {"attention_chunk_size": 0}, "attention_chunk_size"),
        (_LLAMA4, {"no_rope_layers": [1, 1]}, "no_rope_layers"),
        (_LLAMA4, {"no_rope_layers": "all"}, "no_rope_layers"),
        (_GEMMA3N, {"num_kv_shared_layers": ...}, "num_kv_shared_layers"),
        (_GEMMA3N, {"num_kv_shared_layers": 36}, "num_kv_shared_layers"),
        (_GEMMA3N, {"num_kv_shared_layers": 31}, "num_kv_shared_layers"),  # no full layer is left
        (_GEMMA4, {"global_head_dim": ...}, "global_head_dim"),
        (_GEMMA4, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        (_NAS, {"block_configs": ...}, "block_configs"),
        (_NAS, {"block_configs": _NAS["block_configs"][:79]}, "block_configs"),
        (_NAS, {"block_configs": [{}] * 80}, "block_configs[0].attention"),
        (
            _NAS,
            {"block_configs": [{"attention": {"n_heads_in_group": 7}}] * 80},
            "block_configs[0].attention.n_heads_in_group",
        ),
        (_GLM52, {"indexer_types": ["full"]}, "indexer_types"),
        (_GLM52, {"indexer_types": ["both"] * 78}, "indexer_types"),
        (_GLM52, {"index_head_dim": 100}, "index_head_dim"),
        (_M1, {"attn_type_list": [0]}, "attn_type_list"),
        (_M1, {"attn_type_list": [False] * 80}, "attn_type_list"),
        (_M1, {"model_type": "minimax_m2"}, "attn_type_list"),
        (_KIMI, {"linear_attn_config": {}}, "linear_attn_config"),
        (_KIMI, {"linear_attn_config": _KDA}, "linear_attn_config"),
        (_KIMI, {"linear_attn_config": 3}, "linear_attn_config"),
        (_KIMI, {"layer_types": ...}, "layer_types"),
        (_NANO, {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        (_NANO, {"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
        (_NANO, {"hybrid_override_pattern": "M*"}, "hybrid_override_pattern"),
        (_NANO, {"mamba_ssm_cache_dtype": "int3"}, "mamba_ssm_cache_dtype"),
        (_NANO, {"mamba_num_heads": 0}, "mamba_num_heads"),
        (
            bundled("meta-llama__Llama-3.2-11B-Vision-Instruct")["text_config"],
            {"cross_attention_layers": [40]},
            "cross_attention_layers",
        ),
        ({**LLAMA, "model_type": "hunyuan", "use_cla": True}, {}, "cla_share_factor"),
    ],
)
def test_bad_field_of_a_family_is_named(
    config: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    changed = {**config, **change}
    changed = {name: value for name, value in changed.items() if value is not ...}
    with pytest.raises(tkv.GeometryError) as error:
        tkv.ModelGeometry.from_hf(changed)
    assert error.value.field == field
    assert field in str(error.value)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_no_config_says_how_to_go_on(name: str) -> None:
    if REFUSED[name][0] != "model_type":
        return
    with pytest.raises(tkv.UnsupportedModelError, match="describe the layers by hand"):
        tkv.ModelGeometry.from_hf(CONFIGS / name)


# --- the dtype of states --------------------------------------------------------------------------


def test_state_has_its_own_dtype() -> None:
    """fp8 KV changes no state; fp32 doubles the matrix and not what the convolution keeps."""
    path = CONFIGS / "Qwen__Qwen3-Next-80B-A3B-Instruct.json"
    convolution, matrix = 49_152, 1_048_576
    for kv_dtype in (None, "fp8", "nvfp4"):
        geometry = tkv.ModelGeometry.from_hf(path, kv_dtype=kv_dtype)
        assert geometry.state_bytes() == 36 * (convolution + matrix)
    geometry = tkv.ModelGeometry.from_hf(path, state_dtype="float32")
    assert geometry.state_bytes() == 36 * (convolution + 2 * matrix)
    assert geometry.state_bytes(tp_size=4) == 36 * (convolution + 2 * matrix) // 4
    with pytest.raises(tkv.GeometryError, match="state_dtype is 'nvfp4'; supported: bf16, fp16"):
        tkv.ModelGeometry.from_hf(path, state_dtype="nvfp4")


def test_dtype_in_which_a_state_was_trained_does_not_count() -> None:
    """Qwen3.5 says `mamba_ssm_dtype` float32; only `mamba_ssm_cache_dtype` says how it is kept."""
    config = bundled("Qwen__Qwen3.5-27B")
    assert config["text_config"]["mamba_ssm_dtype"] == "float32"
    as_declared = tkv.ModelGeometry.from_hf(config).state_bytes()
    config["text_config"]["mamba_ssm_cache_dtype"] = "float32"
    assert tkv.ModelGeometry.from_hf(config).state_bytes() == as_declared + 48 * 48 * 128 * 128 * 2
    config["text_config"]["mamba_ssm_cache_dtype"] = "auto"
    assert tkv.ModelGeometry.from_hf(config).state_bytes() == as_declared


def test_state_of_a_config_without_a_dtype_needs_one() -> None:
    config = {**_KIMI, "torch_dtype": None, "dtype": None}
    with pytest.raises(tkv.GeometryError, match=r"torch_dtype is missing.*pass state_dtype"):
        tkv.ModelGeometry.from_hf(config, kv_dtype="fp8")
    geometry = tkv.ModelGeometry.from_hf(config, kv_dtype="fp8", state_dtype="bf16")
    assert geometry.bytes_per_token() == 6 * 576


# --- modules that draft ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Qwen__Qwen3.5-27B", [heads(4, 256)]),
        ("XiaomiMiMo__MiMo-7B-Base", [heads(8, 128)]),
        # A module of attention and experts: one layer with KV, and one without.
        (
            "nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
            [heads(2, 128), tkv.Layer(kind="none")],
        ),
        (
            "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
            [heads(2, 128), tkv.Layer(kind="none")],
        ),
    ],
)
def test_mtp_module_has_its_own_layers(name: str, layers: list[tkv.Layer]) -> None:
    assert tkv.ModelGeometry.mtp_from_hf(CONFIGS / f"{name}.json").layers == tuple(layers)


def test_mtp_module_of_a_sparse_model_owns_an_indexer() -> None:
    module = tkv.ModelGeometry.mtp_from_hf(CONFIGS / "zai-org__GLM-5.2-FP8.json")
    assert module.bytes_per_token() == 1152 + 132


def test_mtp_modules_of_minimax_m2() -> None:
    """Three modules of one layer each."""
    module = tkv.ModelGeometry.mtp_from_hf(CONFIGS / "MiniMaxAI__MiniMax-M2.5.json", "bf16")
    assert module.layers == (heads(8, 128),) * 3


@pytest.mark.parametrize("drafter", ["dflash", "dspark"])
def test_block_drafts_are_decoders_with_layers_of_their_own(drafter: str) -> None:
    """The draft for Qwen3-8B has 5 layers of 8 KV heads: 20,480 B per token, not 36 layers."""
    path = CONFIGS / f"DRAFT__SpecForge__qwen3-8b-{drafter}.json"
    geometry = tkv.ModelGeometry.from_hf(path, role="draft")
    assert geometry.layers == (heads(8, 128),) * 5
    assert geometry.bytes_per_token() == 20_480


# --- language models inside others ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrapper", "path"),
    [
        ("internvl_chat", ("llm_config",)),
        ("h2ovl_chat", ("llm_config",)),
        ("deepseek_vl_v2", ("language_config",)),
        ("qwen2_5_omni", ("thinker_config", "text_config")),
        ("qwen3_omni_moe_thinker", ("text_config",)),
        ("gemma3", ("text_config",)),
        ("llava_onevision", ("text_config",)),
    ],
)
def test_language_model_is_found_in_its_nest(wrapper: str, path: tuple[str, ...]) -> None:
    config: dict[str, Any] = LLAMA
    for name in reversed(path):
        config = {name: config}
    config = {**config, "model_type": wrapper, "num_hidden_layers": 99}
    geometry = tkv.ModelGeometry.from_hf(config)
    assert geometry.layers == (layer(kind="attention", num_kv_heads=8, head_dim=128),) * 32
    config[path[0]] = [] if len(path) == 1 else {path[1]: []}
    with pytest.raises(tkv.GeometryError) as error:
        tkv.ModelGeometry.from_hf(config)
    assert error.value.field == ".".join(path)


def test_every_config_is_read_or_refused() -> None:
    cases = READ.keys() | READ_WITH_DTYPE.keys() | MIXED.keys() | REFUSED.keys()
    assert {path.name for path in CONFIGS.glob("*.json")} - {"MANIFEST.json"} == cases

"""What is read from the configs of the supported families, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from geometry_cases import (
    CONFIGS,
    GQA,
    INLINE,
    LLAMA,
    READ,
    READ_WITH_DTYPE,
    REFUSED,
    UNSUPPORTED_TYPES,
    Expected,
    layer,
    read,
)
from geometry_cases_mixed import INLINE_MIXED, MIXED
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv
from tandemkv.geometry import supported_model_types
from tandemkv.geometry.families import WRAPPERS

# --- the bundled configs ------------------------------------------------------------------------


def assert_matches(geometry: tkv.ModelGeometry, expected: Expected) -> None:
    assert geometry.model_type == expected.model_type
    assert geometry.num_layers == len(geometry.layers) == expected.num_layers
    if expected.kind == "mla":
        only = layer(
            kind="mla",
            kv_dtype=expected.kv_dtype,
            kv_lora_rank=expected.heads,
            qk_rope_head_dim=expected.dim,
        )
    else:
        only = layer(
            kind="attention",
            kv_dtype=expected.kv_dtype,
            num_kv_heads=expected.heads,
            head_dim=expected.dim,
        )
    assert set(geometry.layers) == {only}
    assert geometry.bytes_per_token() == expected.bytes_per_token
    assert geometry.max_position_embeddings == expected.positions


@pytest.mark.parametrize("name", READ)
def test_bundled_config_is_read_to_the_published_numbers(name: str) -> None:
    role = "draft" if name.startswith("DRAFT__") else "target"
    geometry = tkv.ModelGeometry.from_hf(CONFIGS / name, role=role, num_layers=None)
    assert_matches(geometry, READ[name])
    assert geometry.role == role
    assert geometry.name == name.removesuffix(".json")


@pytest.mark.parametrize("name", READ_WITH_DTYPE)
def test_config_without_a_dtype_needs_one_from_the_caller(name: str) -> None:
    with pytest.raises(tkv.GeometryError, match=r"torch_dtype is missing.*pass kv_dtype") as error:
        tkv.ModelGeometry.from_hf(CONFIGS / name)
    assert error.value.field == "torch_dtype"
    assert name in error.value.source
    expected = READ_WITH_DTYPE[name]
    assert_matches(tkv.ModelGeometry.from_hf(CONFIGS / name, kv_dtype=expected.kv_dtype), expected)


@pytest.mark.parametrize("name", REFUSED)
def test_bundled_config_is_refused_by_name(name: str) -> None:
    field, words = REFUSED[name]
    with pytest.raises(tkv.GeometryError) as error:
        tkv.ModelGeometry.from_hf(CONFIGS / name, kv_dtype="bf16")
    assert error.value.field == field
    assert words in str(error.value)
    assert str(error.value).startswith(f"{CONFIGS / name}: ")


def test_every_bundled_config_has_a_case_a_source_and_a_free_licence() -> None:
    manifest = json.loads((CONFIGS / "MANIFEST.json").read_text(encoding="utf-8"))
    files = {path.name for path in CONFIGS.glob("*.json")} - {"MANIFEST.json"}
    assert files == {entry["file"] for entry in manifest}
    assert files == READ.keys() | READ_WITH_DTYPE.keys() | MIXED.keys() | REFUSED.keys()
    for entry in manifest:
        assert entry["source"]
        assert entry["licence"] in {"Apache-2.0", "MIT"}
        content = (CONFIGS / entry["file"]).read_bytes()
        if entry["kind"] == "copy":
            assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        else:
            assert json.loads(content)["_source"] == entry["source"]


def test_every_model_type_that_can_be_read_is_read_by_a_test() -> None:
    read_here = {expected.model_type for expected in (READ | READ_WITH_DTYPE).values()}
    read_here |= {expected.model_type for expected in MIXED.values()}
    read_here |= {expected.model_type for _, expected in INLINE_MIXED.values()}
    assert read_here | INLINE.keys() | WRAPPERS.keys() == set(supported_model_types())


@pytest.mark.parametrize("model_type", INLINE)
def test_model_type_without_a_bundled_file(model_type: str) -> None:
    config, num_kv_heads, head_dim = INLINE[model_type]
    geometry = tkv.ModelGeometry.from_hf({**config, "model_type": model_type})
    only = layer(kind="attention", num_kv_heads=num_kv_heads, head_dim=head_dim)
    assert geometry.layers == (only,) * 3


@pytest.mark.parametrize(
    ("wrapper", "inner"),
    [
        (wrapper, {"mistral3": "mistral", "qwen2_vl": "qwen2_vl_text"}.get(wrapper, "llama"))
        for wrapper, path in WRAPPERS.items()
        if path == ("text_config",)
    ],
)
def test_language_model_inside_a_wrapper(wrapper: str, inner: str) -> None:
    text = {field: value for field, value in LLAMA.items() if field != "torch_dtype"}
    text |= {"model_type": inner, "sliding_window": None}
    # The wrapper's own numbers are the vision tower's; only its dtype counts for the text.
    outer = {"model_type": wrapper, "torch_dtype": "float16", "num_hidden_layers": 99}
    geometry = tkv.ModelGeometry.from_hf({**outer, "text_config": text})
    assert geometry.model_type == inner
    assert geometry.layers == (layer(**GQA, kv_dtype="fp16"),) * 32
    text["torch_dtype"] = "bfloat16"
    geometry = tkv.ModelGeometry.from_hf({**outer, "text_config": text})
    assert geometry.layers[0].kv_dtype == "bf16"


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", UNSUPPORTED_TYPES)
def test_unsupported_type_is_one_error_that_helps(model_type: str) -> None:
    with pytest.raises(tkv.UnsupportedModelError) as error:
        read(model_type=model_type)
    message = str(error.value)
    assert f"model_type is {model_type!r}" in message
    assert error.value.model_type == error.value.value == model_type
    assert error.value.supported == supported_model_types()
    assert ", ".join(supported_model_types()) in message
    assert error.value.nearest == UNSUPPORTED_TYPES[model_type]
    assert (f"nearest known: {error.value.nearest!r}" in message) == bool(error.value.nearest)
    assert "ModelGeometry(layers=[Layer(" in message
    assert "\n" not in message


def test_the_layers_by_hand_of_the_message_are_accepted_as_printed() -> None:
    with pytest.raises(tkv.UnsupportedModelError) as error:
        read(model_type="rwkv")
    expression = str(error.value).partition("describe the layers by hand: ")[2]
    geometry = eval(expression, {"ModelGeometry": tkv.ModelGeometry, "Layer": tkv.Layer})
    assert geometry.bytes_per_token() == 32 * 2 * 8 * 128 * 2


def test_unknown_type_inside_a_known_wrapper_and_the_reverse() -> None:
    with pytest.raises(tkv.UnsupportedModelError, match=r"text_config\.model_type is 'rwkv'"):
        read(model_type="llava", text_config={"model_type": "rwkv"})
    with pytest.raises(tkv.UnsupportedModelError, match="model_type is 'fuyu'"):
        read(model_type="fuyu", text_config=LLAMA)


@pytest.mark.parametrize("model_type", ["granite", "olmo2", "stablelm", "phi", "cohere"])
def test_window_of_a_class_without_one_is_never_priced_as_full(model_type: str) -> None:
    with pytest.raises(tkv.UnsupportedModelError, match="a window of 512 tokens") as error:
        read(model_type=model_type, sliding_window=512)
    assert error.value.field == "sliding_window"
    assert read(model_type=model_type, sliding_window=512, use_sliding_window=False).num_layers


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_listed_windows_of_unknown_size_are_refused(model_type: str) -> None:
    changes = {"layer_types": ["sliding_attention"] * 32, "use_sliding_window": True}
    with pytest.raises(tkv.GeometryError, match="sliding_window is missing"):
        read(model_type=model_type, **changes)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"sliding_window": None}),
        ("llama", {"sliding_window": 512, "use_sliding_window": False}),
        ("llama", {"sliding_window": 8192}),  # as long as the positions: never drops a token
        ("llama", {"sliding_window": 0}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 8192}),
        ("phi3", {"sliding_window": 262_144, "max_position_embeddings": 131_072}),
        ("qwen2", {"sliding_window": 4096}),  # off unless switched on
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 32}),
        ("llama", {"layer_types": ["full_attention"] * 32}),
    ],
)
def test_window_that_never_drops_a_token_is_full(model_type: str, changes: dict[str, Any]) -> None:
    assert read(model_type=model_type, **changes).layers == (layer(**GQA),) * 32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["linear_attention"] * 32),
        ("attention_chunk_size", 8192),
        ("block_configs", [{"attention": {"no_op": True}}]),
        ("cross_attention_layers", [3, 8]),
        ("full_attention_interval", 4),
        ("hybrid_override_pattern", "M-M*"),
        ("index_topk", 2048),
        ("is_encoder_decoder", True),
        ("num_kv_shared_layers", 15),
        ("use_cla", True),
        ("use_bidirectional_attention", True),
    ],
)
def test_field_that_changes_what_layers_keep_is_refused(field: str, value: object) -> None:
    with pytest.raises(tkv.UnsupportedModelError, match="not supported for model_type") as error:
        read(**{field: value})
    assert error.value.field == field
    assert error.value.value == value


def test_indexer_on_a_latent_model_is_refused() -> None:
    config = json.loads((CONFIGS / "deepseek-ai__DeepSeek-V3.json").read_text(encoding="utf-8"))
    with pytest.raises(tkv.UnsupportedModelError, match="indexer"):
        tkv.ModelGeometry.from_hf({**config, "index_head_dim": 128})


# --- fields that are missing, wrong or contradict each other --------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_hidden_layers": ...}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 32.0}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 65_537}, "num_hidden_layers"),
        ({"num_attention_heads": ...}, "num_attention_heads"),
        ({"num_attention_heads": 2**31}, "num_attention_heads"),
        ({"num_key_value_heads": [8] * 32}, "num_key_value_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),  # 32 heads are no multiple of 5
        ({"hidden_size": ...}, "hidden_size"),
        ({"hidden_size": 4100}, "head_dim"),  # 32 heads do not divide it
        ({"head_dim": 0}, "head_dim"),
        ({"n_layer": 31}, "n_layer"),  # num_hidden_layers says 32
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"use_sliding_window": "no"}, "use_sliding_window"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"model_type": "qwen3"}, "head_dim"),  # not hidden_size // heads in this family
    ],
)
def test_bad_field_is_named_with_its_value(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(tkv.GeometryError) as error:
        read(**changes)
    assert error.value.field == field
    assert field in str(error.value)
    value = changes.get(field, ...)
    if value is not ... and not isinstance(value, list):
        assert repr(value) in str(error.value)


@pytest.mark.parametrize("model_type", [..., None, "", 7])
def test_config_without_a_model_type_is_refused(model_type: object) -> None:
    with pytest.raises(tkv.UnsupportedModelError, match="model_type is"):
        read(model_type=model_type)


def test_two_spellings_of_one_size_may_agree() -> None:
    assert read(n_layer=32, n_head=32).num_layers == 32


def test_files_that_are_no_configs_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "config.json"
    with pytest.raises(tkv.GeometryError, match="cannot be read: No such file") as error:
        tkv.ModelGeometry.from_hf(missing)
    assert error.value.source == str(missing)
    with pytest.raises(tkv.GeometryError, match="cannot be read"):
        tkv.ModelGeometry.from_hf(tmp_path)
    for text, words in (("{", "is not JSON"), ("[1]", "holds a JSON list"), ("\xff", "not JSON")):
        missing.write_text(text, encoding="latin-1")
        with pytest.raises(tkv.GeometryError, match=words):
            tkv.ModelGeometry.from_hf(missing)
    with pytest.raises(tkv.GeometryError, match="source is 7; a path or a config object"):
        tkv.ModelGeometry.from_hf(7)  # type: ignore[arg-type]


def test_a_directory_is_named_after_itself(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-Test"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for source in (folder, folder / "config.json", str(folder)):
        geometry = tkv.ModelGeometry.from_hf(source)
        assert geometry.name == "Llama-Test"
        assert geometry.num_layers == 32


def test_a_role_and_a_count_are_checked() -> None:
    with pytest.raises(tkv.GeometryError, match="role is 'drafter'; supported: target, draft"):
        tkv.ModelGeometry.from_hf(LLAMA, role="drafter")  # type: ignore[arg-type]
    for count in (0, -1, True, 1.0, 65_537):
        with pytest.raises(tkv.GeometryError, match="num_layers is"):
            tkv.ModelGeometry.from_hf(LLAMA, num_layers=count)  # type: ignore[arg-type]


# --- old spellings and switches -------------------------------------------------------------------

_OLD = {"n_layer": 2, "n_head": 8, "n_embd": 512, "torch_dtype": "float16"}
_FALCON = {"model_type": "falcon", **_OLD, "hidden_size": 512}
_MPT = {"model_type": "mpt", "n_layers": 2, "n_heads": 8, "d_model": 512, "torch_dtype": "float16"}
_CHATGLM = {"model_type": "chatglm", "num_layers": 2, "num_attention_heads": 8, "hidden_size": 512}
_CHATGLM["torch_dtype"] = "float16"


@pytest.mark.parametrize(
    ("config", "num_kv_heads", "head_dim"),
    [
        ({"model_type": "gpt2", **_OLD}, 8, 64),
        ({"model_type": "gpt_bigcode", **_OLD}, 1, 64),  # multi_query is on where it is absent
        ({"model_type": "gpt_bigcode", **_OLD, "multi_query": False}, 8, 64),
        (_FALCON, 1, 64),  # old decoder, multi_query on where it is absent
        ({**_FALCON, "num_kv_heads": 8}, 1, 64),  # what the old decoder ignores
        ({**_FALCON, "multi_query": False}, 8, 64),
        ({**_FALCON, "multi_query": False, "n_head_kv": 4}, 4, 64),
        ({**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, 2, 64),
        ({**_FALCON, "new_decoder_architecture": True}, 8, 64),
        (_MPT, 8, 64),
        ({**_MPT, "attn_config": {"attn_type": "multiquery_attention"}}, 1, 64),
        ({**_MPT, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 4}}, 4, 64),
        (_CHATGLM, 8, 64),
        ({**_CHATGLM, "multi_query_group_num": 2}, 8, 64),  # does not count without the switch
        ({**_CHATGLM, "multi_query_attention": True, "multi_query_group_num": 2}, 2, 64),
        ({"model_type": "qwen", **_OLD}, 8, 64),
        ({"model_type": "qwen", **_OLD, "kv_channels": 128}, 8, 128),
    ],
)
def test_switches_of_older_families(
    config: dict[str, Any], num_kv_heads: int, head_dim: int
) -> None:
    only = layer(kind="attention", kv_dtype="fp16", num_kv_heads=num_kv_heads, head_dim=head_dim)
    assert tkv.ModelGeometry.from_hf(config).layers == (only,) * 2


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**_MPT, "attn_config": {"attn_type": "linear"}}, "attn_config.attn_type"),
        (
            {**_MPT, "attn_config": {"attn_type": "grouped_query_attention"}},
            "attn_config.kv_n_heads",
        ),
        ({**_MPT, "attn_config": "torch"}, "attn_config"),
        ({**_CHATGLM, "multi_query_attention": True}, "multi_query_group_num"),
        ({**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 3}, "num_kv_heads"),
        ({**_FALCON, "hidden_size": 500, "n_embd": 500}, "hidden_size"),
    ],
)
def test_bad_switch_of_an_older_family(config: dict[str, Any], field: str) -> None:
    with pytest.raises(tkv.GeometryError) as error:
        tkv.ModelGeometry.from_hf(config)
    assert error.value.field == field


# --- anything at all ------------------------------------------------------------------------------

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**40)
    | st.floats()
    | st.sampled_from(["", "auto", "bfloat16", "llama", "mpt", "full_attention", "\u2028"])
)
_JSON = (
    _SCALARS
    | st.lists(_SCALARS, max_size=3)
    | st.dictionaries(
        st.sampled_from(["kv_cache_scheme", "model_type", "attn_type", "num_bits"]), _SCALARS
    )
)
_FIELDS = sorted(
    {
        field
        for name in READ | MIXED
        for field in json.loads((CONFIGS / name).read_text(encoding="utf-8"))
    }
)


@given(
    name=st.sampled_from(sorted(READ | MIXED)),
    changes=st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=3),
)
def test_any_value_in_any_field_is_read_or_refused_by_the_one_error(
    name: str, changes: dict[str, Any]
) -> None:
    config = json.loads((CONFIGS / name).read_text(encoding="utf-8"))
    config.update(changes)
    try:
        problem = ""
        assert tkv.ModelGeometry.from_hf(config).num_layers >= 1
    except tkv.GeometryError as error:
        problem = str(error)
    assert problem.startswith("config: ") or not problem


def test_fields_whose_product_is_too_large_name_the_config() -> None:
    """46,341 squared is above 2^31 - 1, though the field alone is a size."""
    config = json.loads((CONFIGS / "moonshotai__Kimi-Linear-48B-A3B-Instruct.json").read_text())
    config["linear_head_dim"] = 46_341
    with pytest.raises(
        tkv.GeometryError, match="config: StateBuffer 'recurrent': unit_elements is 2147488281"
    ):
        tkv.ModelGeometry.from_hf(config)

"""The price of a layer on one rank, and geometries described by hand."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from geometry_cases import CONFIGS, GQA, LLAMA, MLA, layer
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv
from tandemkv.geometry import supported_model_types


def expected_bytes(elements: int, kv_dtype: str) -> int:
    if kv_dtype == "nvfp4":  # half a byte each, and one scale byte per 16
        assert elements % 16 == 0
        return elements // 2 + elements // 16
    return elements * {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}[kv_dtype]


@pytest.mark.parametrize(
    ("fields", "kv_dtype", "bytes_per_token"),
    [
        (GQA, "bf16", 4096),
        (GQA, "fp8", 2048),
        (GQA, "nvfp4", 1152),
        (GQA, "fp32", 8192),
        (MLA, "bf16", 1152),
        (MLA, "fp8", 576),
        (MLA, "nvfp4", 324),
        ({**GQA, "v_head_dim": 64}, "bf16", 3072),
    ],
)
def test_published_layer_costs(fields: dict[str, Any], kv_dtype: str, bytes_per_token: int) -> None:
    assert layer(**fields, kv_dtype=kv_dtype).bytes_per_token() == bytes_per_token


@given(
    heads=st.integers(1, 128),
    head_dim=st.integers(1, 40).map(lambda n: 8 * n),
    v_head_dim=st.none() | st.integers(1, 40).map(lambda n: 8 * n),
    tp_size=st.integers(1, 256),
    kv_dtype=st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    side_bytes=st.lists(st.integers(1, 500), max_size=3),
)
def test_attention_keeps_whole_heads_on_each_rank(
    *,
    heads: int,
    head_dim: int,
    v_head_dim: int | None,
    tp_size: int,
    kv_dtype: str,
    side_bytes: list[int],
) -> None:
    one = layer(
        kind="attention",
        kv_dtype=kv_dtype,
        num_kv_heads=heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        side_buffers=[
            tkv.SideBuffer(name=f"side{index}", bytes_per_token=size)
            for index, size in enumerate(side_bytes)
        ],
    )
    if heads < tp_size and tp_size % heads:
        with pytest.raises(tkv.GeometryError, match=rf"\b{heads}\b.*\b{tp_size}\b"):
            one.bytes_per_token(tp_size)
        return
    heads_on_rank = -(-heads // tp_size) if heads >= tp_size else 1
    elements = heads_on_rank * (head_dim + (v_head_dim or head_dim))
    assert one.bytes_per_token(tp_size) == expected_bytes(elements, kv_dtype) + sum(side_bytes)


@given(
    rank=st.integers(1, 64).map(lambda n: 16 * n),
    rope=st.integers(1, 16).map(lambda n: 16 * n),
    tp_size=st.integers(1, 64),
    kv_dtype=st.sampled_from(["bf16", "fp16", "fp32", "fp8", "nvfp4"]),
)
def test_latent_is_never_divided(rank: int, rope: int, tp_size: int, kv_dtype: str) -> None:
    """Every tp is allowed and each rank keeps the whole latent, once and not as K and V."""
    one = layer(kind="mla", kv_dtype=kv_dtype, kv_lora_rank=rank, qk_rope_head_dim=rope)
    assert one.bytes_per_token(tp_size) == expected_bytes(rank + rope, kv_dtype)


@pytest.mark.parametrize(
    ("heads", "tp_size", "heads_on_rank"),
    [
        (8, 32, 1),  # more devices than heads: one each, replicated four times, not none
        (4, 8, 1),
        (1, 2, 1),
        (10, 4, 3),  # the widest rank holds three, not two and a half
        (10, 8, 2),
        (8, 16, 1),
    ],
)
def test_heads_on_a_rank(heads: int, tp_size: int, heads_on_rank: int) -> None:
    one = layer(kind="attention", num_kv_heads=heads, head_dim=128)
    assert one.bytes_per_token(tp_size) == heads_on_rank * 2 * 128 * 2


def test_heads_that_do_not_fit_the_ranks_are_refused_with_both_numbers() -> None:
    one = layer(kind="attention", num_kv_heads=6, head_dim=128)
    with pytest.raises(tkv.GeometryError, match=r"6 KV heads.*tp_size 8"):
        one.bytes_per_token(8)
    for tp_size in (0, -1, True, 2.0):
        with pytest.raises(tkv.GeometryError, match="tp_size"):
            one.bytes_per_token(tp_size)  # type: ignore[arg-type]


def test_query_heads_do_not_enter_the_price() -> None:
    """32 layers, 32 query heads, 8 KV heads of 128: 131,072 B, and not four times that."""
    assert tkv.ModelGeometry.from_hf(LLAMA).bytes_per_token() == 131_072


def test_latent_model_is_not_priced_by_its_heads() -> None:
    """128 heads of 128 would be 56.9 times the latent of DeepSeek-V3."""
    config = json.loads((CONFIGS / "deepseek-ai__DeepSeek-V3.json").read_text(encoding="utf-8"))
    per_head = 61 * 2 * config["num_key_value_heads"] * 128 * 2
    assert tkv.ModelGeometry.from_hf(config).bytes_per_token() == 61 * 576 * 2 < per_head // 56


def test_side_buffers_are_raw_bytes() -> None:
    """The main dtype halves from bf16 to fp8; the 132 bytes beside it stay."""
    side = (tkv.SideBuffer(name="indexer_k", bytes_per_token=132),)
    assert layer(**MLA, side_buffers=side).bytes_per_token() == 1152 + 132
    assert layer(**MLA, kv_dtype="fp8", side_buffers=side).bytes_per_token(8) == 576 + 132


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({**GQA, "kind": "gqa"}, "kind"),
        ({**GQA, "num_kv_heads": 0}, "num_kv_heads"),
        ({**GQA, "num_kv_heads": True}, "num_kv_heads"),
        ({**GQA, "head_dim": None}, "head_dim"),
        ({**GQA, "head_dim": 2**31}, "head_dim"),
        ({**GQA, "v_head_dim": -1}, "v_head_dim"),
        ({**GQA, "kv_lora_rank": 512}, "kv_lora_rank"),
        ({**MLA, "qk_rope_head_dim": None}, "qk_rope_head_dim"),
        ({**MLA, "v_head_dim": 128}, "v_head_dim"),
        ({**MLA, "side_buffers": ["indexer"]}, "side_buffers"),
    ],
)
def test_bad_layer_names_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(tkv.GeometryError) as error:
        layer(**fields)
    assert error.value.field == field
    assert field in str(error.value)


def test_bad_side_buffer_names_the_field() -> None:
    with pytest.raises(tkv.GeometryError, match="bytes_per_token is 0"):
        tkv.SideBuffer(name="indexer_k", bytes_per_token=0)
    with pytest.raises(tkv.GeometryError, match="name is ''"):
        tkv.SideBuffer(name="", bytes_per_token=1)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"layers": []}, "layers"),
        ({"layers": None}, "layers"),
        ({"layers": [{"kind": "mla"}]}, "layers[0]"),
        ({"layers": "abc"}, "layers"),
        ({"role": "both"}, "role"),
        ({"name": ""}, "name"),
        ({"model_type": 3}, "model_type"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
    ],
)
def test_bad_geometry_names_the_field(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(tkv.GeometryError) as error:
        tkv.ModelGeometry(**{"layers": [layer(**GQA)], **arguments})
    assert error.value.field == field


def test_geometry_by_hand() -> None:
    layers = [layer(**GQA)] * 3 + [layer(**MLA, kv_dtype="fp8")]
    geometry = tkv.ModelGeometry(layers=layers)
    assert geometry.bytes_per_token(tp_size=2) == 3 * 2048 + 576
    assert (geometry.name, geometry.model_type, geometry.role) == ("custom", "custom", "target")
    assert hash(geometry) == hash(tkv.ModelGeometry(layers=tuple(layers)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        geometry.role = "draft"  # type: ignore[misc]
    layers.clear()
    assert geometry.num_layers == 4


def test_geometry_as_plain_values() -> None:
    geometry = tkv.ModelGeometry.from_hf(
        CONFIGS / "DRAFT__SpecForge__llama3-8B-eagle3.json", role="draft"
    )
    assert json.loads(json.dumps(geometry.to_dict())) == {
        "name": "DRAFT__SpecForge__llama3-8B-eagle3",
        "model_type": "llama",
        "role": "draft",
        "max_position_embeddings": 2048,
        "layers": [
            {
                "kind": "attention",
                "kv_dtype": "fp16",
                "num_kv_heads": 8,
                "head_dim": 128,
                "v_head_dim": None,
                "shared_kv": False,
                "window": None,
                "sink_tokens": 0,
                "chunk": None,
                "side_buffers": [],
                "beside": [],
            }
        ],
    }


def test_the_tables_of_the_models_page_are_up_to_date() -> None:
    """The script rewrites them; what it writes now is what the page says."""
    root = Path(__file__).parents[1]
    command = [sys.executable, str(root / "scripts" / "models_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = (root / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in supported_model_types() if f"`{name}`" not in page] == []

"""The dtype of the KV: what the caller says, else what the model's own config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from geometry_cases import GQA, LLAMA, layer, read

import tandemkv as tkv

FP8_SCHEME = {"num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("changes", "kv_dtype"),
    [
        ({"torch_dtype": "float16"}, "fp16"),
        ({"torch_dtype": "torch.float32"}, "fp32"),
        ({"torch_dtype": ..., "dtype": "bfloat16"}, "bf16"),
        ({"dtype": "bfloat16"}, "bf16"),
        # fp8 weights alone say nothing about the KV (capacity report 23 is such a model).
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}, "bf16"),
        ({"quantization_config": {"kv_cache_scheme": None}}, "bf16"),
        ({"quantization_config": {"kv_cache_scheme": FP8_SCHEME}}, "fp8"),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quantization_config": {"kv_cache_quant_algo": "NVFP4"}, "torch_dtype": ...}, "nvfp4"),
        (
            {
                "quantization_config": {
                    "kv_cache_scheme": {"num_bits": 4, "type": "float", "group_size": 16}
                }
            },
            "nvfp4",
        ),
    ],
)
def test_kv_dtype_of_a_config(changes: dict[str, Any], kv_dtype: str) -> None:
    assert {entry.kv_dtype for entry in read(**changes).layers} == {kv_dtype}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"torch_dtype": ...}, "torch_dtype"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
        ({"torch_dtype": "auto"}, "torch_dtype"),
        ({"dtype": "float16"}, "torch_dtype"),  # torch_dtype says bfloat16
        (
            {"quantization_config": {"kv_cache_quant_algo": "INT8"}},
            "quantization_config.kv_cache_quant_algo",
        ),
        (
            {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}},
            "quantization_config.kv_cache_scheme",
        ),
        (
            {"quantization_config": {"kv_cache_new_field": {"bits": 3}}},
            "quantization_config.kv_cache_new_field",
        ),
        (
            {
                "quantization_config": {
                    "kv_cache_quant_algo": "NVFP4",
                    "kv_cache_scheme": FP8_SCHEME,
                }
            },
            "quantization_config.kv_cache_scheme",
        ),
    ],
)
def test_kv_dtype_that_is_not_known_is_an_error(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(tkv.GeometryError, match="pass kv_dtype") as error:
        read(**changes)
    assert error.value.field == field
    config = {name: value for name, value in {**LLAMA, **changes}.items() if value is not ...}
    explicit = tkv.ModelGeometry.from_hf(config, kv_dtype="fp8")
    assert explicit.layers[0].kv_dtype == "fp8"


def test_quantisation_that_is_no_object_is_an_error() -> None:
    with pytest.raises(tkv.GeometryError, match="quantization_config is 'fp8'; an object"):
        read(quantization_config="fp8")


def test_quantisation_beside_the_config_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text('{"quantization": {"kv_cache_quant_algo": "FP8"}}', encoding="utf-8")
    assert tkv.ModelGeometry.from_hf(tmp_path).layers[0].kv_dtype == "fp8"
    assert tkv.ModelGeometry.from_hf(tmp_path, kv_dtype="bf16").layers[0].kv_dtype == "bf16"
    beside.write_text('{"quantization": {"kv_cache_quant_algo": null}}', encoding="utf-8")
    assert tkv.ModelGeometry.from_hf(tmp_path).layers[0].kv_dtype == "bf16"


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [("bf16", "bf16"), ("half", "fp16"), ("float8_e4m3fn", "fp8"), ("fp8_e5m2", "fp8")],
)
def test_names_of_engines_are_understood(name: str, kv_dtype: str) -> None:
    assert tkv.ModelGeometry.from_hf(LLAMA, kv_dtype=name).layers[0].kv_dtype == kv_dtype


@pytest.mark.parametrize("name", ["int8", "auto", "", "FP8", 8])
def test_unknown_dtype_name_never_costs_zero_bytes(name: Any) -> None:
    with pytest.raises(tkv.GeometryError, match=r"kv_dtype is .*; supported: bf16, fp16, fp32"):
        tkv.ModelGeometry.from_hf(LLAMA, kv_dtype=name)
    with pytest.raises(tkv.GeometryError, match="kv_dtype is"):
        layer(**GQA, kv_dtype=name)

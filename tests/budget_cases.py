"""Helpers of the budget tests: reference cases, and geometries written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tandemkv as tkv

CASES_FILE = Path(__file__).parent / "data" / "cases" / "budget.json"
GIB = 2**30

Case = dict[str, Any]


def load_cases() -> list[Case]:
    cases: list[Case] = json.loads(CASES_FILE.read_text())
    return cases


def gqa(
    num_layers: int,
    kv_heads: int = 8,
    head_dim: int = 128,
    kv_dtype: str = "bf16",
    **lifetime: int | None,
) -> tuple[tkv.Layer, ...]:
    layer = tkv.Layer(
        kind="attention",
        kv_dtype=kv_dtype,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        **lifetime,
    )
    return (layer,) * num_layers


def byte_layer(bytes_per_token: int, **lifetime: int | None) -> tkv.Layer:
    """Return an attention layer of that many bytes per token: one head, keys and values in fp8."""
    assert bytes_per_token % 2 == 0
    return gqa(1, 1, bytes_per_token // 2, "fp8", **lifetime)[0]


def state(num_layers: int, state_bytes: int) -> tuple[tkv.Layer, ...]:
    """Return layers whose state takes that many bytes per sequence."""
    buffer = tkv.StateBuffer(name="ssm", split_units=1, unit_elements=state_bytes, dtype="fp8")
    return (tkv.Layer(kind="state", state_buffers=(buffer,)),) * num_layers


def mla(num_layers: int, kv_dtype: str = "bf16", **side_bytes: int) -> tuple[tkv.Layer, ...]:
    layer = tkv.Layer(
        kind="mla",
        kv_dtype=kv_dtype,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        side_buffers=tuple(
            tkv.SideBuffer(name=name, bytes_per_token=size) for name, size in side_bytes.items()
        ),
    )
    return (layer,) * num_layers


def model(
    layers: tuple[tkv.Layer, ...], role: str = "target", positions: int | None = None
) -> tkv.ModelGeometry:
    return tkv.ModelGeometry(layers=layers, role=role, max_position_embeddings=positions, name=role)


def described(spec: Case, role: str = "target") -> tkv.ModelGeometry:
    """Return the geometry that a case describes with its own field names."""
    known = {
        *("attention", "layers", "kv_heads", "head_dim", "kv_dtype"),
        *("kv_lora_rank", "qk_rope_head_dim"),
        *("indexer_bytes_per_token_layer", "residual_bytes_per_token_layer"),
    }
    assert set(spec) <= known, f"a case describes a layer by {set(spec) - known}"
    if spec["attention"] == "gqa":
        layers = gqa(spec["layers"], spec["kv_heads"], spec["head_dim"], spec["kv_dtype"])
    else:
        assert spec["attention"] == "mla"
        assert (spec["kv_lora_rank"], spec["qk_rope_head_dim"]) == (512, 64)
        suffix = "_bytes_per_token_layer"
        side = {k.removesuffix(suffix): v for k, v in spec.items() if k.endswith(suffix)}
        layers = mla(spec["layers"], spec["kv_dtype"], **side)
    return model(layers, role)


def pair(cost: Case) -> tuple[int, int]:
    return cost["slope"], cost["intercept"]

"""Layers that do not keep every token: windows, chunks, states, cross attention, nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from geometry_cases import GQA, MLA, layer
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv

CROSS = {"kind": "cross_attention", "num_kv_heads": 8, "head_dim": 64, "max_cross_tokens": 1500}


def gated_delta_net(dtype: str = "bf16") -> tkv.Layer:
    """Qwen3-Next: 32 value and 16 key heads of 128, a convolution of 4 keeps 3 inputs."""
    return tkv.Layer(
        kind="state",
        state_buffers=[
            tkv.StateBuffer(name="conv_v", split_units=32, unit_elements=128 * 3, dtype="bf16"),
            tkv.StateBuffer(
                name="conv_qk", split_units=16, unit_elements=2 * 128 * 3, dtype="bf16"
            ),
            tkv.StateBuffer(
                name="recurrent",
                split_units=32,
                unit_elements=128 * 128,
                dtype=dtype,  # type: ignore[arg-type]
            ),
        ],
    )


def test_only_layers_that_keep_every_token_grow_with_tokens() -> None:
    """Two full layers of 4,096 B and a latent of 1,152 B; the other five have other lifetimes."""
    geometry = tkv.ModelGeometry(
        layers=[
            layer(**GQA),
            layer(**GQA, window=4096, sink_tokens=4),
            layer(**GQA, chunk=8192),
            gated_delta_net(),
            layer(**CROSS),
            tkv.Layer(kind="none"),
            tkv.Layer(kind="none", reads_layer=0),
            layer(**MLA),
            layer(**GQA, beside=[gated_delta_net("fp32")]),
        ]
    )
    assert geometry.num_layers == 9
    assert geometry.bytes_per_token() == 2 * 4096 + 1152
    assert geometry.bytes_per_token(tp_size=4) == 2 * 1024 + 1152
    assert geometry.state_bytes() == 1_097_728 + 2_146_304
    assert [one.bytes_per_token() for one in geometry.layers[1:7]] == [4096, 4096, 0, 2048, 0, 0]
    assert [part.kind for part in geometry.layers[8].parts] == ["attention", "state"]
    assert geometry.layers[8].parts[0] == layer(**GQA)


@pytest.mark.parametrize("window", [None, 0, -1, -2_147_483_647])
def test_window_that_is_none_or_not_positive_is_full_attention(window: int | None) -> None:
    one = layer(**GQA, window=window)
    assert one == layer(**GQA)
    assert one.keeps_all_tokens


def test_values_that_are_the_keys_are_kept_once() -> None:
    """2 heads of 512 elements in bf16 take 2,048 B and not 4,096; 4 ranks keep a head each."""
    one = layer(kind="attention", num_kv_heads=2, head_dim=512, shared_kv=True)
    assert one.bytes_per_token() == 2048
    assert one.bytes_per_token(tp_size=4) == 1024


@given(
    units=st.integers(1, 200),
    elements=st.integers(1, 10_000),
    replicated=st.integers(0, 10_000),
    tp_size=st.integers(1, 128),
    dtype=st.sampled_from([("bf16", 2), ("fp16", 2), ("fp32", 4), ("fp8", 1)]),
)
def test_states_are_divided_in_whole_units(
    units: int, elements: int, replicated: int, tp_size: int, dtype: tuple[Any, int]
) -> None:
    buffer = tkv.StateBuffer(
        name="ssm",
        split_units=units,
        unit_elements=elements,
        replicated_elements=replicated,
        dtype=dtype[0],
    )
    one = tkv.Layer(kind="state", state_buffers=[buffer])
    if units < tp_size and tp_size % units:
        with pytest.raises(tkv.GeometryError, match=rf"{units} units .*ssm.*tp_size {tp_size}"):
            one.state_bytes(tp_size)
        return
    on_rank = -(-units // tp_size)
    assert one.state_bytes(tp_size) == (on_rank * elements + replicated) * dtype[1]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({**GQA, "window": 2**31}, "window"),
        ({**GQA, "window": True}, "window"),
        ({**GQA, "window": 4096.0}, "window"),
        ({**GQA, "sink_tokens": 4}, "sink_tokens"),
        ({**GQA, "window": 9, "sink_tokens": -1}, "sink_tokens"),
        ({**GQA, "chunk": 0}, "chunk"),
        ({**GQA, "chunk": 8, "window": 8}, "chunk"),
        ({**GQA, "shared_kv": 1}, "shared_kv"),
        ({**GQA, "shared_kv": True, "v_head_dim": 64}, "v_head_dim"),
        ({**GQA, "max_cross_tokens": 4}, "max_cross_tokens"),
        ({**GQA, "kv_dtype": None}, "kv_dtype"),
        ({**GQA, "reads_layer": 1}, "reads_layer"),
        ({**GQA, "beside": [tkv.Layer(kind="none")]}, "beside"),
        ({**GQA, "beside": layer(**GQA)}, "beside"),
        ({**GQA, "state_buffers": [1]}, "state_buffers"),
        ({**CROSS, "window": 4}, "window"),
        ({**CROSS, "max_cross_tokens": 0}, "max_cross_tokens"),
        ({**MLA, "shared_kv": True}, "shared_kv"),
        ({"kind": "state", "kv_dtype": None}, "state_buffers"),
        ({"kind": "none"}, "kv_dtype"),
        ({"kind": "none", "kv_dtype": None, "reads_layer": -1}, "reads_layer"),
    ],
)
def test_bad_lifetime_names_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(tkv.GeometryError) as error:
        layer(**fields)
    assert error.value.field == field
    assert field in str(error.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"split_units": 0}, "split_units"),
        ({"unit_elements": 0}, "unit_elements"),
        ({"replicated_elements": -1}, "replicated_elements"),
        ({"dtype": "nvfp4"}, "dtype"),
    ],
)
def test_bad_state_buffer_names_the_field(change: dict[str, Any], field: str) -> None:
    good = {"name": "ssm", "split_units": 2, "unit_elements": 3, "dtype": "fp32"}
    with pytest.raises(tkv.GeometryError) as error:
        tkv.StateBuffer(**{**good, **change})
    assert error.value.field == field


def test_a_model_that_keeps_nothing_and_reads_from_nowhere_are_refused() -> None:
    with pytest.raises(tkv.GeometryError, match="keeps nothing"):
        tkv.ModelGeometry(layers=[tkv.Layer(kind="none")])
    reader = tkv.Layer(kind="none", reads_layer=1)
    for layers in ([layer(**GQA), reader], [layer(**GQA), tkv.Layer(kind="none"), reader]):
        with pytest.raises(tkv.GeometryError, match="reads layer 1"):
            tkv.ModelGeometry(layers=layers)


def test_every_kind_as_plain_values() -> None:
    for one in (layer(**GQA, window=5), layer(**CROSS), gated_delta_net(), tkv.Layer(kind="none")):
        plain = json.loads(json.dumps(one.to_dict()))
        assert plain["kind"] == one.kind
    assert gated_delta_net().to_dict()["state_buffers"][2] == {
        "name": "recurrent",
        "split_units": 32,
        "unit_elements": 16_384,
        "replicated_elements": 0,
        "dtype": "bf16",
    }

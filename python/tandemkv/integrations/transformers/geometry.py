"""From a loaded model to the geometry that a plan is made of, and back to check it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tandemkv.errors import GeometryError
from tandemkv.geometry import ModelGeometry
from tandemkv.geometry.layers import Layer, Role
from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.managers.views import RoleView

KV_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""The dtypes in which a model may hand its keys and values to a pool."""

STATE_DTYPE = "fp32"
"""The dtype of recurrent states in transformers, whatever a model computes in."""


def geometry_of(
    model: Any, *, role: Role = "target", keep_all_tokens: bool = False
) -> ModelGeometry:
    """Return the layers of a loaded model, with the KV in the dtype that the model computes in.

    Args:
        model: a `PreTrainedModel` for causal language modelling.
        role: what the model is to the pair: `target` or `draft`.
        keep_all_tokens: layers with a sliding window are to keep every token, as layers of full
            attention do. They still read their window only; the plan charges what is kept.

    Raises:
        GeometryError: the model's dtype is none of fp32, fp16 and bf16, or its config cannot be
            read; the message names the field.
        UnsupportedModelError: a model type that is not known.
    """
    config = model.config.get_text_config(decoder=True)
    if model.dtype not in KV_DTYPES:
        raise GeometryError(
            f"the model computes in {model.dtype}; supported: "
            f"{', '.join(str(dtype) for dtype in KV_DTYPES)}",
            field="dtype",
            value=str(model.dtype),
        )
    dtype = KV_DTYPES[model.dtype]
    data = {**config.to_dict(), "dtype": str(model.dtype).removeprefix("torch.")}
    geometry = ModelGeometry.from_hf(data, kv_dtype=dtype, state_dtype=STATE_DTYPE)
    layers = geometry.layers
    if keep_all_tokens:
        layers = tuple(_without_window(layer) for layer in layers)
    # The role is set afterwards: read as a draft, some configs mean their MTP module instead.
    return replace(geometry, role=role, layers=layers)


def windows_of(model: Any) -> tuple[int | None, ...]:
    """Return how many tokens each layer reads, the one in flight included; None: all."""
    return tuple(layer.window for layer in geometry_of(model).layers)


def _without_window(layer: Layer) -> Layer:
    return layer if layer.window is None else replace(layer, window=None, sink_tokens=0)


def check_model(model: Any, view: RoleView) -> None:
    """Refuse a model whose layers are not those that the pools were built for.

    A plan made with `geometry_of(..., keep_all_tokens=True)` keeps more than such a model reads.

    Raises:
        PagedCacheError: names the first layer that differs.
        GeometryError: see `geometry_of`.
    """
    own = geometry_of(model).layers
    planned = view.layers
    if len(own) != len(planned):
        raise PagedCacheError(
            f"the model has {len(own)} layers, the {view.role} of the plan {len(planned)}"
        )
    for index, (layer, other) in enumerate(zip(own, planned, strict=True)):
        if other not in (layer, _without_window(layer)):
            raise PagedCacheError(
                f"layer {index} of the model is {_describe(layer)}; the {view.role} of the plan "
                f"has {_describe(other)}"
            )


def check_rewinds(model: Any) -> None:
    """Refuse a model for assisted generation that cannot take back tokens.

    Raises:
        PagedCacheError: names the model type.
    """
    config = model.config.get_text_config(decoder=True)
    if any(part.kind == "state" for layer in geometry_of(model).layers for part in layer.parts):
        raise PagedCacheError(
            f"assisted generation with {config.model_type!r}: generate cannot take back tokens of "
            "recurrent states, in transformers' own cache neither; generate without an assistant, "
            "or see the example engine"
        )


def _describe(layer: Layer) -> str:
    fields = ("num_kv_heads", "head_dim", "kv_lora_rank", "qk_rope_head_dim", "window", "kv_dtype")
    values = [(name, getattr(layer, name)) for name in fields]
    values += [
        (item.name, f"{item.split_units} * {item.unit_elements} {item.dtype}")
        for item in layer.state_buffers
    ]
    text = f"{layer.kind} with " + ", ".join(f"{n} {v}" for n, v in values if v is not None)
    return " beside ".join((text, *map(_describe, layer.beside)))

"""What each layer of a model keeps, and for how long."""

from __future__ import annotations

from tandemkv.geometry.buffers import SideBuffer, StateBuffer, StateDtype
from tandemkv.geometry.families import supported_families, supported_model_types
from tandemkv.geometry.layers import KvDtype, Layer, LayerKind, ModelGeometry, Role

__all__ = [
    "KvDtype",
    "Layer",
    "LayerKind",
    "ModelGeometry",
    "Role",
    "SideBuffer",
    "StateBuffer",
    "StateDtype",
    "supported_families",
    "supported_model_types",
]

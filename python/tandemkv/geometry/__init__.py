"""What each layer of a model keeps per token."""

from __future__ import annotations

from tandemkv.geometry.families import supported_families, supported_model_types
from tandemkv.geometry.layers import KvDtype, Layer, LayerKind, ModelGeometry, Role, SideBuffer

__all__ = [
    "KvDtype",
    "Layer",
    "LayerKind",
    "ModelGeometry",
    "Role",
    "SideBuffer",
    "supported_families",
    "supported_model_types",
]

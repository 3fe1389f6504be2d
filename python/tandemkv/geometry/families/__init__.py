"""The model families that can be read, one small function each.

To add one: write an adapter that turns a `ConfigView` into layers, decorate it with `@family`, and
import its module here. `docs/models.md` says what a reviewer looks for.
"""

from __future__ import annotations

from tandemkv.geometry.families import (
    deepseek,
    dense,
    encoder_decoder,
    gemma,
    glm,
    gpt,
    hybrid,
    linear,
    qwen,
    shapes,
    windows,
)
from tandemkv.geometry.families.registry import (
    WRAPPERS,
    Family,
    find_family,
    supported_families,
    supported_model_types,
)

__all__ = [
    "WRAPPERS",
    "Family",
    "deepseek",
    "dense",
    "encoder_decoder",
    "find_family",
    "gemma",
    "glm",
    "gpt",
    "hybrid",
    "linear",
    "qwen",
    "shapes",
    "supported_families",
    "supported_model_types",
    "windows",
]

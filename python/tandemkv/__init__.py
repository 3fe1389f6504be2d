"""KV-cache memory manager for a target model and its speculative draft."""

import warnings as _warnings

from tandemkv import _core
from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import BudgetError, ConfigError, GeometryError, UnsupportedModelError
from tandemkv.geometry import Layer, ModelGeometry, SideBuffer
from tandemkv.planning import ByteSplit, Plan, plan, split_budget

__version__: str = _core.__version__
__all__ = [
    "BudgetError",
    "ByteSplit",
    "ConfigError",
    "GeometryError",
    "KvCacheConfig",
    "Layer",
    "Mapping",
    "ModelGeometry",
    "Plan",
    "SideBuffer",
    "SpeculativeConfig",
    "UnsupportedModelError",
    "__version__",
    "plan",
    "split_budget",
]

if _core.DEBUG_BUILD:
    _warnings.warn(
        "tandemkv._core is a debug build and many times slower than a release build; "
        "build with `make build` or `maturin develop --release`",
        RuntimeWarning,
        stacklevel=2,
    )

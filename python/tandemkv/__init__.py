"""KV-cache memory manager for a target model and its speculative draft."""

import warnings as _warnings

from tandemkv import _core
from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import (
    BatchError,
    BudgetError,
    ConfigError,
    DeviceUnavailableError,
    GeometryError,
    LedgerError,
    PoolError,
    RequestError,
    SequencesOpenError,
    StepError,
    TandemkvError,
    UnsupportedModelError,
)
from tandemkv.geometry import Layer, ModelGeometry, SideBuffer, StateBuffer
from tandemkv.managers import Batch, Managers, Refusal, RequestIds, build_managers
from tandemkv.planning import ByteSplit, Plan, plan, split_budget

__version__: str = _core.__version__
__all__ = [
    "Batch",
    "BatchError",
    "BudgetError",
    "ByteSplit",
    "ConfigError",
    "DeviceUnavailableError",
    "GeometryError",
    "KvCacheConfig",
    "Layer",
    "LedgerError",
    "Managers",
    "Mapping",
    "ModelGeometry",
    "Plan",
    "PoolError",
    "Refusal",
    "RequestError",
    "RequestIds",
    "SequencesOpenError",
    "SideBuffer",
    "SpeculativeConfig",
    "StateBuffer",
    "StepError",
    "TandemkvError",
    "UnsupportedModelError",
    "__version__",
    "build_managers",
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

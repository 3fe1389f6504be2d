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
    PlanMismatchError,
    PoolError,
    RequestError,
    SequencesOpenError,
    StepError,
    TandemkvError,
    TierError,
    UnsupportedModelError,
)
from tandemkv.geometry import Layer, ModelGeometry, SideBuffer, StateBuffer
from tandemkv.managers import Batch, Managers, Refusal, RequestIds, build_managers
from tandemkv.planning import (
    ByteSplit,
    MemoryEstimate,
    Plan,
    TokenCost,
    estimate_budget,
    estimate_host_bytes,
    plan,
    plan_distributed,
    split_budget,
)

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
    "MemoryEstimate",
    "ModelGeometry",
    "Plan",
    "PlanMismatchError",
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
    "TierError",
    "TokenCost",
    "UnsupportedModelError",
    "__version__",
    "build_managers",
    "estimate_budget",
    "estimate_host_bytes",
    "plan",
    "plan_distributed",
    "split_budget",
]

if _core.DEBUG_BUILD:
    _warnings.warn(
        "tandemkv._core is a debug build and many times slower than a release build; "
        "build with `make build` or `maturin develop --release`",
        RuntimeWarning,
        stacklevel=2,
    )

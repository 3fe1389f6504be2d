"""KV-cache memory manager for a target model and its speculative draft."""

import warnings as _warnings

from tandemkv import _core
from tandemkv.errors import GeometryError, UnsupportedModelError
from tandemkv.geometry import Layer, ModelGeometry, SideBuffer

__version__: str = _core.__version__
__all__ = [
    "GeometryError",
    "Layer",
    "ModelGeometry",
    "SideBuffer",
    "UnsupportedModelError",
    "__version__",
]

if _core.DEBUG_BUILD:
    _warnings.warn(
        "tandemkv._core is a debug build and many times slower than a release build; "
        "build with `make build` or `maturin develop --release`",
        RuntimeWarning,
        stacklevel=2,
    )

"""KV-cache memory manager for a target model and its speculative draft."""

from tandemkv import _core

__version__: str = _core.__version__
__all__ = ["__version__"]

"""Hugging Face transformers on tandemkv pools: the extra `hf`.

`PagedGenerator.generate` is `model.generate` with the KV of model and assistant in the pools of
`build_managers`; `PagedBatch` gives the caches themselves, for calling a model directly.
`docs/transformers.md` shows both.
"""

from tandemkv.integrations.transformers.batch import PagedBatch
from tandemkv.integrations.transformers.cache import PagedCache
from tandemkv.integrations.transformers.errors import OutOfPagesError, PagedCacheError
from tandemkv.integrations.transformers.generate import GenerationReport, PagedGenerator
from tandemkv.integrations.transformers.geometry import check_model, geometry_of, windows_of
from tandemkv.integrations.transformers.layers import PagedLayer
from tandemkv.integrations.transformers.states import StateStore
from tandemkv.integrations.transformers.store import KvStore

__all__ = [
    "GenerationReport",
    "KvStore",
    "OutOfPagesError",
    "PagedBatch",
    "PagedCache",
    "PagedCacheError",
    "PagedGenerator",
    "PagedLayer",
    "StateStore",
    "check_model",
    "geometry_of",
    "windows_of",
]

"""The layers of a `PagedCache`: attention in pages of tokens, states in pages of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.integrations.transformers.states import States

if TYPE_CHECKING:
    from tandemkv.integrations.transformers.cache import PagedCache


class _PartOfACache:
    """Refuses what only the whole cache can do: its rows are shared by all layers."""

    def reset(self) -> None:
        """Refuse: a cache serves one generation.

        Raises:
            PagedCacheError: always.
        """
        raise PagedCacheError(
            "a paged cache cannot be reset: open a PagedBatch for each generation"
        )

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: rows are shared by all layers.

        Raises:
            PagedCacheError: always.
        """
        raise PagedCacheError("crop, reorder and select a PagedCache as a whole, not one layer")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refuse, as `crop` does."""
        self.crop(0)

    def offload(self) -> None:
        """Refuse: the ledger decides what lies where.

        Raises:
            PagedCacheError: always.
        """
        raise PagedCacheError("a paged cache is not offloaded by transformers")


class PagedLayer(_PartOfACache, CacheLayerMixin):
    """Attention: writes what a forward computes, and gathers what it reads.

    Args:
        cache: the cache that it belongs to, which knows the rows.
        index: its number in the model.
        window: tokens that it reads, the one in flight included; None: all.
    """

    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: PagedCache, index: int, window: int | None) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self._window = window
        self.is_sliding = window is not None
        self.is_initialized = True  # the pool is there before the first token

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the pool holds the memory."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the tokens of this forward and return all keys and values of the rows.

        Args:
            key_states: `[rows, heads, tokens, head size]`.
            value_states: the same.

        Returns:
            `[rows, heads, columns, head size]` each; with a window, of the columns that any of
            the tokens sees.

        Raises:
            PagedCacheError: no forward was announced, or it runs other tokens.
        """
        span = self._cache.span
        if key_states.shape[0] != self._cache.batch_size or (
            key_states.shape[2] != span.stop - span.start
        ):
            raise PagedCacheError(
                f"layer {self._index} is given {key_states.shape[2]} tokens of "
                f"{key_states.shape[0]} rows; the forward runs {span.stop - span.start} of "
                f"{self._cache.batch_size}"
            )
        first = self.first_column(span.start)
        return self._cache.exchange(self._index, key_states, value_states, first)

    def first_column(self, start: int) -> int:
        """Return the first column that is read by a forward that begins at `start`."""
        return 0 if self._window is None else max(0, start + 1 - self._window)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many columns a forward of `query_length` tokens reads, and the first one."""
        start = self.get_seq_length()
        first = self.first_column(start)
        return start + query_length - first, first

    def get_seq_length(self) -> int:
        """Return the columns whose KV is there, padding included."""
        return self._cache.length

    def get_max_length(self) -> int:
        """Return -1: the pool limits all sequences together."""
        return -1


class PagedStateLayer(_PartOfACache, LinearAttentionLayer):
    """A recurrent state: a layer of transformers, filled from the pages for one forward."""

    is_compileable = False

    def load(self, states: States | None) -> None:
        """Begin a forward with `states`, or None where no row has run a token."""
        self.conv_states[0], self.recurrent_states[0] = states or (None, None)
        known = states is not None
        self.has_previous_state[0] = known
        self.is_conv_states_initialized[0] = self.is_recurrent_states_initialized[0] = known
        if states is not None:
            self.conv_kernel_size[0] = states.conv.shape[-1]

    def save(self) -> States:
        """Return the states after a forward."""
        conv, recurrent = self.conv_states[0], self.recurrent_states[0]
        assert conv is not None
        assert recurrent is not None
        return States(conv, recurrent)


class PagedHybridLayer(PagedStateLayer, PagedLayer):
    """Attention and a recurrent state in one layer, as in Falcon-H1."""

    def __init__(self, cache: PagedCache, index: int, window: int | None) -> None:
        PagedLayer.__init__(self, cache, index, window)
        LinearAttentionLayer.__init__(self)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Initialize the state; see `PagedLayer` for the KV."""
        LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)

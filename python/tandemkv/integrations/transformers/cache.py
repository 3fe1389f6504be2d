"""The caches that transformers' models write to: one layer per layer of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.integrations.transformers.rows import PagedRows, Span
from tandemkv.integrations.transformers.store import KvStore, Slots


class PagedLayer(CacheLayerMixin):
    """One layer of a `PagedCache`: writes what a forward computes, and gathers what it reads.

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


class PagedCache(Cache):
    """The KV of one role of a `PagedBatch`, as transformers' models take it (`cache=`).

    A forward must be announced before its layers write: `attach` makes a model do that.

    Args:
        rows: the sequences.
        store: the role's pool.
        windows: tokens that each layer reads; None: all. See `windows_of`.
    """

    def __init__(self, rows: PagedRows, store: KvStore, windows: Sequence[int | None]) -> None:
        self._rows = rows
        self._store = store
        self._span: Span | None = None
        self._read: dict[int, Slots] = {}
        self._write: dict[int, Slots] = {}
        self._written: tuple[torch.Tensor, torch.Tensor] | None = None
        self.forwards = 0
        self.computed_tokens = 0
        super().__init__(
            layers=[PagedLayer(self, index, window) for index, window in enumerate(windows)]
        )

    def __repr__(self) -> str:
        return f"PagedCache({self._store.role}, {self.batch_size} rows, {self.length} columns)"

    @property
    def batch_size(self) -> int:
        """Sequences."""
        return self._rows.num_rows

    @property
    def length(self) -> int:
        """Columns whose KV is there, padding included."""
        return self._rows.end(self._store.role)

    @property
    def span(self) -> Span:
        """The forward under way.

        Raises:
            PagedCacheError: none was announced.
        """
        if self._span is None:
            raise PagedCacheError(
                "a layer writes to a PagedCache outside a forward of an attached model; see "
                "PagedBatch.attach"
            )
        return self._span

    # --- forwards -----------------------------------------------------------------------------

    def begin_forward(self, tokens: torch.Tensor) -> None:
        """Announce a forward of `tokens`, int `[rows, tokens]`; see `PagedRows.begin`."""
        self._span = None
        span = self._rows.begin(self._store.role, tokens.cpu().numpy().astype(np.int64))
        for number, copies in enumerate(self._rows.take_copies()):
            source, destination = (self._store.slots(torch.from_numpy(one)) for one in copies)
            self._store.copy(number, source, destination)
        rows, columns = (torch.from_numpy(axis) for axis in np.nonzero(span.writes))
        self._written = rows, columns
        for number in self._store.classes:
            slots = torch.from_numpy(span.slots[number])
            self._read[number] = self._store.slots(slots)
            self._write[number] = self._store.slots(slots[rows, columns + span.start])
        self._span = span
        self.forwards += 1
        self.computed_tokens += span.writes.size

    def end_forward(self) -> None:
        """Say that the forward is through."""
        self._rows.finish_forward(self._store.role, self.span.stop)
        self._span = None

    def exchange(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, first: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer and gather the columns from `first` on; see `PagedLayer.update`."""
        assert self._written is not None
        rows, columns = self._written
        number = self._store.class_of(layer)
        slots = self._write[number]
        self._store.write(layer, slots, keys[rows, :, columns], values[rows, :, columns])
        pages, offsets = self._read[number]
        all_keys, all_values = self._store.gather(layer, (pages[:, first:], offsets[:, first:]))
        return (
            all_keys.transpose(1, 2).contiguous(),
            all_values.transpose(1, 2).contiguous(),
        )

    # --- what generate does between forwards ------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last `-tokens_to_remove` columns: a rewind of the ledger.

        Raises:
            PagedCacheError: a positive number, or columns that are committed.
        """
        if tokens_to_remove > 0:
            raise PagedCacheError(f"crop({tokens_to_remove}): a number of at most 0 is needed")
        self._rows.crop(self._store.role, -tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let row j go on from what row `beam_idx[j]` is now."""
        self._rows.select(beam_idx.cpu().numpy().astype(np.int64))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows `indices`, in that order."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row `repeats` times in place."""
        rows = torch.arange(self._rows.num_selected)
        self.reorder_cache(rows.repeat_interleave(repeats))

    def reset(self) -> None:
        """Refuse; see `PagedLayer.reset`."""
        self.layers[0].reset()

    def activate_past_recording(self) -> None:
        """Nothing to do: what was written stays until it is rewound."""

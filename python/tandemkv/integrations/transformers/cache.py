"""The caches that transformers' models write to: one layer per layer of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DummyLayer

from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.integrations.transformers.layers import (
    PagedHybridLayer,
    PagedLayer,
    PagedStateLayer,
)
from tandemkv.integrations.transformers.rows import PagedRows
from tandemkv.integrations.transformers.slots import Span
from tandemkv.integrations.transformers.states import StateStore
from tandemkv.integrations.transformers.store import KvStore, Slots


class PagedCache(Cache):
    """The KV of one role of a `PagedBatch`, as transformers' models take it (`cache=`).

    A forward must be announced before its layers write: `PagedBatch` makes its
    models do that.

    Args:
        rows: the sequences.
        store: the role's KV.
        states: the role's recurrent states.
        windows: tokens that each layer reads; None: all. See `windows_of`.
    """

    def __init__(
        self,
        rows: PagedRows,
        store: KvStore,
        states: StateStore,
        windows: Sequence[int | None],
    ) -> None:
        self._rows = rows
        self._store = store
        self._states = states
        self._span: Span | None = None
        self._read: dict[int, Slots] = {}
        self._write: dict[int, Slots] = {}
        self._written: tuple[torch.Tensor, torch.Tensor] | None = None
        self.forwards = 0
        self.computed_tokens = 0
        super().__init__(layers=[self._layer(*item) for item in enumerate(windows)])

    def _layer(self, index: int, window: int | None) -> Any:
        has_kv, has_state = index in self._store.layers, index in self._states.layers
        if has_kv and has_state:
            return PagedHybridLayer(self, index, window)
        if has_state:
            return PagedStateLayer()
        return PagedLayer(self, index, window) if has_kv else DummyLayer()

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
                "a layer writes to a PagedCache outside a forward of a model of its PagedBatch"
            )
        return self._span

    # --- forwards -----------------------------------------------------------------------------

    def begin_forward(self, tokens: torch.Tensor) -> None:
        """Announce a forward of `tokens`, int `[rows, tokens]`; see `PagedRows.begin`."""
        self._span = None
        span = self._rows.begin(self._store.role, tokens.cpu().numpy().astype(np.int64))
        for number, *copies in self._rows.take_copies():
            source, destination = (torch.from_numpy(one) for one in copies)
            if number == self._states.class_index:
                self._states.copy(source, destination)
            else:
                self._store.copy(number, self._store.slots(source), self._store.slots(destination))
        rows, columns = (torch.from_numpy(axis) for axis in np.nonzero(span.writes))
        self._written = rows, columns
        for number in self._store.classes:
            slots = torch.from_numpy(span.slots[number])
            self._read[number] = self._store.slots(slots)
            self._write[number] = self._store.slots(slots[rows, columns + span.start])
        self._load_states(span)
        self._span = span
        self.forwards += 1
        self.computed_tokens += span.writes.size

    def end_forward(self) -> None:
        """Say that the forward is through."""
        for layer in self._states.layers:
            self._states.write(layer, self._state_pages, self.layers[layer].save())
        self._rows.finish_forward(self._store.role, self.span.stop)
        self._span = None

    def _load_states(self, span: Span) -> None:
        """Give the layers the states of the rows; those of new rows are 0, as page 0 is."""
        if self._states.class_index is None:
            return
        self._state_pages = torch.from_numpy(span.slots[self._states.class_index])
        pages = torch.where(torch.from_numpy(span.new), 0, self._state_pages)
        for layer in self._states.layers:
            self.layers[layer].load(self._states.read(layer, pages) if pages.any() else None)

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

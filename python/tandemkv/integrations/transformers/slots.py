"""Where the rows of a `PagedBatch` keep their tokens and states: slots, and pages of states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.managers import Managers


class Copies(NamedTuple):
    """What to copy within one cache class: slots of tokens, or pages of states.

    Attributes:
        class_index: the class.
        source: int64 `[n]`.
        destination: int64 `[n]`.
    """

    class_index: int
    source: NDArray[np.int64]
    destination: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """The columns that one forward of one model runs.

    Attributes:
        start: the first one; KV of earlier ones is there already.
        stop: the one after the last.
        slots: per cache class int64 `[rows, stop]`, where each column's KV is; a slot of page 0 for
            padding, and for what is behind the class's window. Of a class of states int64
            `[rows]`, the page of each row.
        writes: bool `[rows, stop - start]`, the columns that are written. Padding is not, and
            neither is what a prefix hit brought.
        new: bool `[rows]`, the rows that no column before `start` belongs to.
    """

    start: int
    stop: int
    slots: tuple[NDArray[np.int64], ...]
    writes: NDArray[np.bool_]
    new: NDArray[np.bool_]


class RowSlots:
    """Reads the block tables of rows.

    Args:
        managers: whose tables.
    """

    def __init__(self, managers: Managers) -> None:
        self._managers = managers
        self._keeps_states = [
            item.lifetime[0] == "recurrent_state" for item in managers.limits.classes
        ]

    @property
    def has_states(self) -> bool:
        """Whether any class keeps recurrent states."""
        return any(self._keeps_states)

    def span(
        self,
        ids: Sequence[Hashable],
        start: int,
        stop: int,
        *,
        pads: NDArray[np.int64],
        hits: NDArray[np.int64],
    ) -> Span:
        """Return where a forward of the columns `start` to `stop` reads and writes.

        Args:
            ids: the rows.
            start: first column.
            stop: the one after the last.
            pads: columns of padding before each row, int64 `[rows]`.
            hits: tokens of each row that are not written, int64 `[rows]`.

        Raises:
            PagedCacheError: a token that runs has no page.
        """
        writes = np.arange(start, stop) >= (pads + hits)[:, None]
        slots = []
        for number, keeps_states in enumerate(self._keeps_states):
            if keeps_states:
                own = state_pages(self._managers, ids, number)
            else:
                own = self._columns(ids, number, pads, stop)
                if (own[:, start:][writes] < self._managers.limits.tokens_per_block).any():
                    raise PagedCacheError(f"class {number} has no page for a token that runs")
            slots.append(own)
        return Span(start, stop, tuple(slots), writes, pads >= start)

    def copies(
        self,
        sources: Sequence[Hashable],
        ids: Sequence[Hashable],
        lens: NDArray[np.int32],
    ) -> list[Copies]:
        """Return what to copy so that the rows `ids` hold what `sources` hold.

        Args:
            sources: a row for each of `ids`.
            ids: new rows of the same texts, which share what they were admitted with.
            lens: tokens of each, int32 `[rows]`.
        """
        hits = self._managers.hit_lengths(ids)
        copies = []
        for number, keeps_states in enumerate(self._keeps_states):
            if keeps_states:
                pages = [state_pages(self._managers, [row], number) for row in sources]
                new_pages = state_pages(self._managers, ids, number)
                copies.append(Copies(number, np.concatenate(pages), new_pages))
                continue
            to = self._token_rows(ids, lens, number)
            source_slots, target_slots = [], []
            for item, source in enumerate(sources):
                rows = self._token_rows([source], lens[item : item + 1], number)
                own = slice(hits[item], lens[item])
                source_slots.append(rows[0, own])
                target_slots.append(to[item, own])
            came_from, went_to = np.concatenate(source_slots), np.concatenate(target_slots)
            # Behind a window there is nothing to copy from.
            there = came_from >= self._managers.limits.tokens_per_block
            copies.append(Copies(number, came_from[there], went_to[there]))
        return copies

    def _columns(
        self,
        ids: Sequence[Hashable],
        number: int,
        pads: NDArray[np.int64],
        stop: int,
    ) -> NDArray[np.int64]:
        """Return the slots of all columns before `stop`, int64 `[rows, stop]`; 0 for padding."""
        lens = np.maximum(stop - pads, 0).astype(np.int32)
        rows = self._token_rows(ids, lens, number)
        own = np.zeros((len(ids), stop), np.int64)
        for row, (pad, length) in enumerate(zip(pads.tolist(), lens.tolist(), strict=True)):
            own[row, pad : pad + length] = rows[row, :length]
        return own

    def _token_rows(
        self, ids: Sequence[Hashable], lens: NDArray[np.int32], number: int
    ) -> NDArray[np.int64]:
        tables = self._managers.tables
        rows: NDArray[np.int32] = tables.token_rows(ids, kv_lens=lens, class_index=number)
        return rows.astype(np.int64)


def state_pages(managers: Managers, ids: Sequence[Hashable], number: int) -> NDArray[np.int64]:
    """Return the page that holds the state of each request, int64 `[n]`.

    Args:
        managers: whose requests.
        ids: open requests.
        number: the class of the states.
    """
    rows: NDArray[np.int32] = managers.tables.block_table(ids, class_index=number)
    return rows[:, 0].astype(np.int64)

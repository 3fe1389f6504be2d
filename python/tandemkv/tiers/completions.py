"""Which transfers are on their way: a transfer is complete when all its rows are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Completions:
    """Counts rows per transfer; used by one thread."""

    def __init__(self) -> None:
        self._rows_left: dict[int, int] = {}
        self._failed: set[int] = set()
        self._done: list[tuple[int, bool]] = []

    def __contains__(self, number: int) -> bool:
        return number in self._rows_left

    @property
    def outstanding(self) -> int:
        """Transfers of which a row is on its way."""
        return len(self._rows_left)

    @property
    def ready(self) -> bool:
        """Whether `take` has something to hand out."""
        return bool(self._done)

    def open(self, ids: NDArray[np.int64]) -> None:
        """Note new transfers: one entry of `ids` per row."""
        for number in ids.tolist():
            self._rows_left[number] = self._rows_left.get(number, 0) + 1

    def finish(self, number: int, ok: bool) -> None:
        """Note that one row of a transfer is done."""
        if not ok:
            self._failed.add(number)
        left = self._rows_left[number] - 1
        if left:
            self._rows_left[number] = left
            return
        del self._rows_left[number]
        self._done.append((number, number not in self._failed))
        self._failed.discard(number)

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Hand out the transfers that were completed since the last call: ids and whether ok."""
        done, self._done = self._done, []
        ids = np.array([number for number, _ in done], np.int64)
        return ids, np.array([ok for _, ok in done], np.uint8)

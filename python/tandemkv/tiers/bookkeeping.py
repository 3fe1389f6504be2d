"""The executor of managers without memory: every transfer succeeds at once, and nothing moves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import TierError
from tandemkv.tiers.completions import Completions
from tandemkv.tiers.transfers import TransferPlan


class BookkeepingExecutor:
    """Reports every transfer as done, for replays and for engines that copy themselves."""

    def __init__(self) -> None:
        self._book = Completions()
        self._closed = False

    def submit(self, plan: TransferPlan, stream: object | None = None) -> None:
        """Complete every transfer of the plan.

        Raises:
            TierError: the executor is closed.
        """
        if self._closed:
            raise TierError("the executor is closed")
        self._book.open(plan.ids)
        for number in plan.ids.tolist():
            self._book.finish(number, ok=True)

    def poll(self, wait: bool = False) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return what was submitted since the last call: ids and ones."""
        return self._book.take()

    def close(self) -> None:
        """Take no more transfers."""
        self._closed = True

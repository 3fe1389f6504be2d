"""What an executor is, and what it needs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandemkv.tiers.transfers import TransferPlan

Part = NDArray[np.uint8]
"""The bytes of one cache group in a page, uint8 `[page_bytes]`."""


class Executor(Protocol):
    """Copies what a ledger planned; see `tandemkv.tiers`."""

    def submit(self, plan: TransferPlan, stream: object | None = None) -> None:
        """Start transfers; what reads or writes the device does so in the order of the rows."""

    def poll(self, wait: bool = False) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return ids int64 `[n]` completed since the last call, and uint8 `[n]` whether ok."""

    def close(self) -> None:
        """Wait for what runs, and give everything up."""


class TransferObserver(Protocol):
    """Hears of transfers, to copy pages elsewhere while they stay where they are."""

    def planned(self, plan: TransferPlan) -> None:
        """Hear of transfers before they are submitted."""

    def completed(self, ids: NDArray[np.int64], ok: NDArray[np.uint8]) -> None:
        """Hear what became of transfers before the ledger does."""


class PageStore(Protocol):
    """The disk tier, used by several threads at once, on different pages."""

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages of each class."""

    def write(self, class_index: int, page: int, key: bytes, parts: Sequence[Part]) -> None:
        """Store a page; any error means that it is not there."""

    def read(self, class_index: int, page: int, key: bytes, parts: Sequence[Part]) -> None:
        """Read the page that is stored under `key`, checked; any error means that it is not."""

    def describe(self) -> str:
        """Return one line about the store."""

    def clear(self) -> None:
        """Forget every page."""

    def close(self) -> None:
        """Give the store up."""

"""Publishes a batch's block tables: ledger -> staging slot -> kernel indices, in one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tandemkv.device.block_offsets import copy_batch_block_offsets
from tandemkv.device.groups import OffsetGroups
from tandemkv.device.ring import CudaDevice, StagingRing, StagingSlot, WhenFull
from tandemkv.errors import TandemkvError

WriteTable = Callable[[NDArray[np.int32], NDArray[np.int32]], object]
"""Fills int32 [classes, n, width] pages and int32 [classes, n] used counts: `Ledger.table`."""


class TablePublisher:
    """Owns the staging ring of one manager.

    Args:
        groups: the groups of the destination, of one role or of both.
        max_sequences: most sequences of a batch.
        width: columns of a row.
        device: "cpu", or "cuda:N".
        num_slots: steps that may be in flight at once.
        when_full: see `StagingRing`.

    Raises:
        ValueError: `device` is neither.
        DeviceUnavailableError: a GPU was asked for and there is none.
    """

    def __init__(
        self,
        groups: OffsetGroups,
        *,
        max_sequences: int,
        width: int,
        device: str = "cpu",
        num_slots: int = 3,
        when_full: WhenFull = "block",
    ) -> None:
        name, _, number = device.partition(":")
        if name not in ("cpu", "cuda") or (number and not number.isdecimal()):
            raise ValueError(f"device must be 'cpu' or 'cuda:N', not {device!r}")
        self._groups = groups
        self._width = width
        self._max_sequences = max_sequences
        self._on_gpu = name == "cuda"
        self._lock = threading.Lock()  # a ring belongs to one thread at a time
        num_tables = len(groups.num_pages)
        self._ring = StagingRing(
            num_slots,
            {
                "pages": (num_tables * max_sequences * width,),
                "used": (num_tables * max_sequences,),
                "index": (max_sequences,),
            },
            device=CudaDevice(int(number or 0)) if self._on_gpu else None,
            when_full=when_full,
        )

    @property
    def groups(self) -> OffsetGroups:
        """The groups of the destination."""
        return self._groups

    def publish(
        self,
        write_table: WriteTable,
        num_sequences: int,
        destination: object,
        *,
        num_padding_rows: int = 0,
        stream: object | None = None,
    ) -> None:
        """Write the kernel indices of a batch into `destination`.

        Args:
            write_table: fills the pages and used counts of the batch.
            num_sequences: sequences of the batch.
            destination: int32 [groups, num_sequences + num_padding_rows or more, 2, width].
            num_padding_rows: rows of zeros after them, for a captured graph's larger batch.
            stream: the engine's stream; needed when `destination` is on a GPU.

        Raises:
            ArrayError, DeviceUnavailableError: see `copy_batch_block_offsets`.
            RingFullError: see `StagingRing.acquire`.
            ValueError: more rows than `max_sequences`, or a negative number of padding rows.
        """
        num_rows = num_sequences + num_padding_rows
        if num_rows > self._max_sequences:
            raise ValueError(
                f"{num_rows} rows exceed the {self._max_sequences} that the publisher was built for"
            )
        if num_padding_rows < 0:
            raise ValueError(f"num_padding_rows must be at least 0, not {num_padding_rows}")
        with self._lock:
            self._publish(write_table, num_sequences, num_rows, destination, stream)

    def _publish(
        self,
        write_table: WriteTable,
        num_sequences: int,
        num_rows: int,
        destination: object,
        stream: object | None,
    ) -> None:
        slot = self._ring.acquire()
        try:
            pages, lengths, index = self._fill(slot, write_table, num_sequences, num_rows)
        except BaseException:
            slot.cancel()  # nothing reads it yet
            raise
        try:
            copy_batch_block_offsets(
                pages,
                index,
                self._groups,
                destination,
                used=lengths,
                backend="cuda" if self._on_gpu else "cpu",
                stream=stream,
            )
        except TandemkvError:
            slot.cancel()  # refused before the launch: nothing reads it
            raise
        except BaseException:
            # Whether the launch was queued is not known, so the slot waits for the stream.
            slot.publish(self._ring.device, stream)
            raise
        slot.publish(self._ring.device, stream)

    def _fill(
        self, slot: StagingSlot, write_table: WriteTable, num_sequences: int, num_rows: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Write a batch into the slot: pages, used lengths and row numbers, padding last."""
        num_tables = len(self._groups.num_pages)
        pages = slot["pages"][: num_tables * num_sequences * self._width]
        pages = pages.reshape(num_tables, num_sequences, self._width)
        used = np.zeros((num_tables, num_sequences), np.int32)
        write_table(pages, used)
        lengths = slot["used"][: num_tables * num_rows].reshape(num_tables, num_rows)
        lengths[:, :num_sequences] = used
        lengths[:, num_sequences:] = 0
        index = slot["index"][:num_rows]
        index[:num_sequences] = np.arange(num_sequences)
        index[num_sequences:] = -1
        return pages, lengths, index

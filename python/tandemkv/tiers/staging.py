"""Host memory through which pages pass between device and disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandemkv.tiers.host import Pinner, Unpin, aligned_bytes
from tandemkv.tiers.pages import DeviceGroup, class_page_bytes

_ALIGNMENT = 4096


class Staging:
    """A fixed number of slots, each with room for one page of any class.

    Args:
        groups: the groups of a rank.
        num_classes: classes of the ledger.
        num_slots: slots; 0 for none.
        pin: locks the memory for copies by the device; None leaves it pageable.

    Raises:
        TierError: the memory cannot be had.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        num_classes: int,
        num_slots: int,
        *,
        pin: Pinner | None = None,
    ) -> None:
        self._groups = tuple(groups)
        largest = max(class_page_bytes(groups, num_classes), default=0)
        self._slot_bytes = -(-largest // _ALIGNMENT) * _ALIGNMENT
        self._memory = aligned_bytes(self._slot_bytes * num_slots)
        self._unpin: Unpin | None = None
        if pin is not None and self._memory.nbytes:
            self._unpin = pin(self._memory)
        self._free = list(range(num_slots))

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self._memory.nbytes

    def acquire(self) -> int | None:
        """Return a free slot, or None."""
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def parts(self, slot: int, class_index: int) -> list[tuple[DeviceGroup, NDArray[np.uint8]]]:
        """Return the groups of a class with the bytes of each in a slot, side by side."""
        start, parts = slot * self._slot_bytes, []
        for group in self._groups:
            if group.class_index == class_index:
                parts.append((group, self._memory[start : start + group.page_bytes]))
                start += group.page_bytes
        return parts

    def close(self) -> None:
        """Unlock and give up the memory; no copy may be running."""
        if self._unpin is not None:
            self._unpin()
            self._unpin = None
        self._memory = np.empty(0, np.uint8)
        self._free = []

"""The host tier: the pages of every cache group in host memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tandemkv.config import check_count
from tandemkv.errors import TierError
from tandemkv.sizes import format_size
from tandemkv.tiers.limits import HostLimits, check_host_memory
from tandemkv.tiers.pages import DeviceGroup

Unpin = Callable[[], None]
Pinner = Callable[[NDArray[np.uint8]], Unpin]
"""Locks an array for copies by the device, and returns what unlocks it."""


def aligned_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return zeroed memory that starts at a page of the system and is really there.

    It is written once, so that memory that the system promised and does not have shows here.

    Raises:
        TierError: the system refuses it.
    """
    if num_bytes == 0:
        return np.empty(0, np.uint8)
    try:
        memory = mmap.mmap(-1, num_bytes)
    except (OSError, OverflowError, ValueError) as error:
        raise TierError(f"host tier: {num_bytes} bytes of memory: {error}", tier="host") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them: small pages serve as well
            memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[...] = 0
    return array


class HostTier:
    """Host memory for the pages of all groups of a rank: one buffer per group.

    A page of a group is one piece of `page_bytes` in its buffer; no page is reserved.

    Args:
        groups: the groups, the target's and the draft's.
        num_pages: pages of each class.
        pin: locks a buffer for copies by the device; None leaves the memory pageable.
        local_ranks: ranks on this host that have a tier of this size.
        reserved_bytes: see `check_host_memory`.
        limits: what the machine leaves; None: what it says now.

    Raises:
        TierError: the memory cannot be had, or not be pinned; nothing is kept.
        ConfigError: a number of pages that is no count.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        num_pages: Sequence[int],
        *,
        pin: Pinner | None = None,
        local_ranks: int = 1,
        reserved_bytes: int = 0,
        limits: HostLimits | None = None,
    ) -> None:
        self._groups = tuple(groups)
        self._num_pages = tuple(check_count("num_pages", count, least=0) for count in num_pages)
        sizes = [self._num_pages[group.class_index] * group.page_bytes for group in groups]
        check_host_memory(
            sum(sizes),
            pinned=pin is not None,
            local_ranks=local_ranks,
            reserved_bytes=reserved_bytes,
            limits=limits,
        )
        self._pinned = pin is not None
        self._buffers: list[NDArray[np.uint8]] = []
        self._unpin: list[Unpin] = []
        try:
            for size in sizes:
                self._buffers.append(aligned_bytes(size))
                if pin is not None and size:
                    self._unpin.append(pin(self._buffers[-1]))
        except BaseException:
            self.close()
            raise

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages of each class."""
        return self._num_pages

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def buffer(self, group: int) -> NDArray[np.uint8]:
        """Return the memory of a group by its place in `groups`, uint8 `[pages * page_bytes]`."""
        return self._buffers[group]

    def buffers(self) -> Iterator[tuple[DeviceGroup, NDArray[np.uint8]]]:
        """Yield each group, in order, with its memory, uint8 `[pages * page_bytes]`."""
        yield from zip(self._groups, self._buffers, strict=True)

    def parts(self, class_index: int, page: int) -> list[NDArray[np.uint8]]:
        """Return one page of a class: the bytes of each of its groups, in order, without a copy."""
        return [
            buffer[page * group.page_bytes : (page + 1) * group.page_bytes]
            for group, buffer in zip(self._groups, self._buffers, strict=True)
            if group.class_index == class_index
        ]

    def describe(self) -> str:
        """Return one line about the tier."""
        kind = "pinned" if self._pinned else "pageable"
        pages = ", ".join(map(str, self._num_pages))
        return f"host: {format_size(self.num_bytes)} {kind}, pages per class: {pages}"

    def close(self) -> None:
        """Unlock and give up the memory; no copy may be running."""
        for unpin in self._unpin:
            unpin()
        self._unpin = []
        self._buffers = []

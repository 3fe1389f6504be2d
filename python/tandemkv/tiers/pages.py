"""What a page is made of: the memory of cache groups on the device, and its order on lower tiers.

On host and disk a page of a group is one piece: its buffers in the order of `PageLayout`, whatever
the arrangement of the pool. So both arrangements read what the other one stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import PageSegment
from tandemkv.device.arrays import ArrayView, view
from tandemkv.errors import ArrayError
from tandemkv.managers.pools import Pool


@dataclass(frozen=True, eq=False)
class DeviceGroup:
    """The pages of one cache group on the device.

    Attributes:
        memory: the pool's bytes.
        class_index: class whose pages these are.
        num_pages: pages, the reserved page 0 included.
        page_bytes: bytes of a page, all pieces together.
        pieces: int64 `[n, 5]` for copies to the host: bytes of a piece, start and stride on the
            device, start and stride on the host.
    """

    memory: ArrayView
    class_index: int
    num_pages: int
    page_bytes: int
    pieces: NDArray[np.int64]

    @cached_property
    def pieces_up(self) -> NDArray[np.int64]:
        """The pieces for copies from the host to the device."""
        return np.ascontiguousarray(self.pieces[:, (0, 3, 4, 1, 2)])


def device_group(pool: Pool) -> DeviceGroup:
    """Return the pages of a pool.

    Raises:
        PoolError: the pool holds no memory.
    """
    return group_of_segments(pool.segments())


def group_of_segments(segments: Sequence[PageSegment]) -> DeviceGroup:
    """Return the pages that segments of one pool describe, in the order in which they are stored.

    Args:
        segments: every buffer of the group, as `Pool.segments` lists them; all of one memory, one
            class and as many pages.

    Raises:
        ArrayError: no segments, segments of different pools, or one with gaps between its rows.
    """
    if not segments:
        raise ArrayError("segments", "at least one is needed")
    first = segments[0]
    runs: list[list[int]] = []  # bytes, start and stride of each piece
    for number, item in enumerate(segments):
        name = f"segments[{number}]"
        if (item.memory is not first.memory) or (item.class_index, item.num_pages) != (
            first.class_index,
            first.num_pages,
        ):
            raise ArrayError(name, "it belongs to another pool than segments[0]")
        if item.num_rows > 1 and item.row_stride_bytes != item.row_bytes:
            raise ArrayError(
                name,
                f"rows of {item.row_bytes} bytes lie {item.row_stride_bytes} bytes apart; a page "
                "moves without gaps",
            )
        size = item.num_rows * item.row_bytes
        if (
            runs
            and item.page_stride_bytes == runs[-1][2]
            and item.offset_bytes == sum(runs[-1][:2])
        ):
            runs[-1][0] += size
        else:
            runs.append([size, item.offset_bytes, item.page_stride_bytes])
    page_bytes = sum(size for size, _, _ in runs)
    pieces, offset = [], 0
    for size, start, stride in runs:
        pieces.append([size, start, stride, offset, page_bytes])
        offset += size
    memory = view("segments[0].memory", first.memory)
    return DeviceGroup(
        memory=memory,
        class_index=first.class_index,
        num_pages=first.num_pages,
        page_bytes=page_bytes,
        pieces=np.array(pieces, np.int64),
    )


def class_page_bytes(groups: Sequence[DeviceGroup], num_classes: int) -> tuple[int, ...]:
    """Return the bytes of a page of each class: those of all its groups."""
    sizes = [0] * num_classes
    for group in groups:
        sizes[group.class_index] += group.page_bytes
    return tuple(sizes)

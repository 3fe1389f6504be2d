"""Checks with offsets beyond 2**31 elements, on memory that is reserved but hardly used."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import (
    OffsetGroups,
    PageSegment,
    PageSegments,
    apply_block_table_updates,
    apply_page_moves,
    copy_batch_block_offsets,
)

MAP_NORESERVE = 0x4000
"""Linux's value; the `mmap` module has the name from Python 3.13 on."""


def sparse(shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Return a zeroed array of which only the pages that are touched take memory."""
    size = 4 * int(np.prod(shape, dtype=np.int64))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.int32).reshape(shape)


def check_large_strides() -> None:
    """Copy and update at the far end of tables, of rows and of a destination of over 2**31.

    A row of 2**16 columns holds a million tokens in blocks of 16.
    """
    width, num_rows = 2**16, 33_000  # 2.16e9 elements in a table, and before its last row
    groups = OffsetGroups([0, 1, 1], [3, 5, 7], [1, 2, 0], [1000, 1000])
    source = sparse((2, num_rows, width))
    index = np.array([num_rows - 1, 0], np.int32)
    used = np.array([[3, 2], [6, 1]], np.int32)
    destination = sparse((len(groups), 8192, 2, width))  # 3.2e9 elements, group 2 from 2.1e9
    source[0, -1, :3] = 7, 8, 9
    source[0, 0, :2] = 1, 2
    source[1, -1, :6] = 11, 12, 13, 14, 15, 16
    source[1, 0, 0] = 3
    copy_batch_block_offsets(source, index, groups, destination, used=used)
    for group, (table, scale, offset) in enumerate([(0, 3, 1), (1, 5, 2), (1, 7, 0)]):
        for sequence, row in enumerate((num_rows - 1, 0)):
            for column in range(8):
                page = int(source[table, row, column]) if column < used[table, sequence] else 0
                want = [scale * page, scale * page + offset] if page else [0, 0]
                assert destination[group, sequence, :, column].tolist() == want
    records = np.array([[num_rows - 1, 1, width - 1, 500], [8191, 1, width - 1, 600]], np.int32)
    position = np.full(num_rows, -1, np.int32)
    position[8191] = 8191
    apply_block_table_updates(
        records, table=source, groups=groups, destination=destination, row_position=position
    )
    assert source[1, -1, -1] == 500
    assert source[1, 8191, -1] == 600
    assert destination[1, 8191, :, -1].tolist() == [3000, 3002]
    assert destination[2, 8191, :, -1].tolist() == [4200, 4200]


def check_large_moves() -> None:
    """Move between pages 4.6 GB apart, in rows 42 MB apart: no offset may be cut to 32 bits."""
    row, num_rows, page = 40 * 2**20, 110, 4400 * 2**20
    pool = sparse((3 * page // 4,)).view(np.uint8)
    segment = PageSegment(
        memory=pool,
        offset_bytes=0,
        page_stride_bytes=page,
        num_rows=num_rows,
        row_stride_bytes=row,
        token_bytes=24,
        tokens_per_block=2,
        num_pages=3,
    )
    for number in (0, 55, 109):  # beyond 2**31 and, as page 1, beyond 2**32
        pool[page + number * row :][:48] = np.arange(48) + number
    apply_page_moves(np.array([[0, 1, 2, 1]], np.int32), PageSegments([segment]))
    for number in (0, 55, 109):
        moved = pool[2 * page + number * row :][:48]
        assert moved.tolist() == [*(np.arange(24) + number), *[0] * 24]

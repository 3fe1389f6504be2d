"""NumPy backend, for tables and pools that live in CPU memory.

It checks what the GPU cannot check cheaply (every page against its pool) before it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.device.arrays import ArrayView
from tandemkv.device.groups import OffsetGroups
from tandemkv.device.launches import (
    CopyArguments,
    MoveArguments,
    TokenMoveArguments,
    UpdateArguments,
)
from tandemkv.errors import ArrayError

if TYPE_CHECKING:
    from tandemkv.device.page_moves import PageSegments


def copy_batch_block_offsets(arguments: CopyArguments, groups: OffsetGroups) -> None:
    """Write the kernel indices of a batch; see `block_offsets.copy_batch_block_offsets`."""
    count = _valid_count(arguments.count, arguments.num_copied)
    tables = {
        int(table): _batch_pages(arguments, int(table), groups.num_pages[table], count)
        for table in np.unique(groups.descriptors[:, 0])
    }
    destination = _host(arguments.destination)
    for group, (table, scale, kv_offset, _) in enumerate(groups.descriptors):
        pages, missing = tables[int(table)]
        num_columns = pages.shape[1]
        keys, values = destination[group, :count, 0], destination[group, :count, 1]
        np.multiply(pages, scale, out=keys[:, :num_columns])
        np.add(keys[:, :num_columns], kv_offset, out=values[:, :num_columns])
        for plane in (keys, values):
            plane[:, num_columns:] = arguments.empty
        np.copyto(values[:, :num_columns], arguments.empty, where=missing)
        if arguments.empty != 0:  # without a page, K is 0 already
            np.copyto(keys[:, :num_columns], arguments.empty, where=missing)


def apply_block_table_updates(arguments: UpdateArguments, groups: OffsetGroups | None) -> None:
    """Scatter records into tables; see `block_offsets.apply_block_table_updates`."""
    count = _valid_count(arguments.count, arguments.num_records)
    rows, tables, columns, pages = _host(arguments.records)[:count].T
    if arguments.table is not None:
        _host(arguments.table)[tables, rows, columns] = pages
    if arguments.destination is None or groups is None:
        return
    destination = _host(arguments.destination)
    positions = rows if arguments.row_position is None else _host(arguments.row_position)[rows]
    placed = (positions >= 0) & (positions < destination.shape[1])
    owned = pages >= arguments.first_page
    for group, (table, scale, kv_offset, _) in enumerate(groups.descriptors):
        mine = placed & (tables == table)
        keys = np.where(owned[mine], scale * pages[mine], arguments.empty)
        values = np.where(owned[mine], scale * pages[mine] + kv_offset, arguments.empty)
        destination[group, positions[mine], 0, columns[mine]] = keys
        destination[group, positions[mine], 1, columns[mine]] = values


def apply_page_moves(arguments: MoveArguments, segments: PageSegments) -> None:
    """Copy the first tokens of pages; see `page_moves.apply_page_moves`."""
    first = arguments.first_move
    count = _valid_count(arguments.count, arguments.num_moves)
    moves = _host(arguments.moves)[first : first + count]
    for segment, rows in zip(segments, segments.host_rows, strict=True):
        mine = moves[moves[:, 0] == segment.class_index]
        # Moves of equal length at once: most lists have few lengths, or few moves.
        for tokens in np.unique(mine[:, 3]).tolist():
            _, sources, destinations, _ = mine[mine[:, 3] == tokens].T
            run = rows[:, :, : tokens * segment.token_bytes]
            run[destinations] = run[sources]


def apply_token_moves(arguments: TokenMoveArguments, segments: PageSegments) -> None:
    """Copy tokens one after the other; see `token_moves.apply_token_moves`."""
    moves = _host(arguments.moves)
    for segment, rows in zip(segments, segments.host_rows, strict=True):
        tokens = rows.reshape(*rows.shape[:2], segment.tokens_per_block, segment.token_bytes)
        for _, source, at, destination, to in moves[moves[:, 0] == segment.class_index].tolist():
            tokens[destination, :, to] = tokens[source, :, at]


def _batch_pages(
    arguments: CopyArguments, table: int, num_pages: int, count: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the pages of a class in batch order, [count, columns in use], and where there is none.

    There the page reads 0, so that scaling it cannot overflow.
    """
    source = _host(arguments.source)
    by_row = source[table] if source.ndim == 3 else source[table, :, 0]
    index = _host(arguments.copy_index)[:count]
    lengths = np.full(count, source.shape[-1], np.int32)
    if arguments.used is not None:
        lengths[:] = _host(arguments.used)[table, :count]
    lengths[index < 0] = 0
    num_columns = int(lengths.max(initial=0))
    if num_columns == 0:  # padding only; the source may then have no row at all
        return np.empty((count, 0), np.int32), np.empty((count, 0), np.bool_)
    pages = by_row[np.maximum(index, 0), :num_columns]
    missing = pages < arguments.first_page
    for row in np.flatnonzero(lengths < num_columns):
        missing[row, lengths[row] :] = True
    np.copyto(pages, 0, where=missing)
    largest = int(pages.max(initial=0))
    if largest >= num_pages:
        raise ArrayError("source", f"page {largest} of class {table} is outside [0, {num_pages})")
    return pages, missing


def _valid_count(count: ArrayView | None, most: int) -> int:
    """Return the number that a one-element array holds, or `most` without one."""
    if count is None:
        return most
    value = int(_host(count)[0])
    if not 0 <= value <= most:
        raise ArrayError("count", f"{value} is outside [0, {most}]")
    return value


def _host(array: ArrayView) -> NDArray[Any]:
    if array.host is None:
        raise ArrayError(array.name, "the cpu backend cannot read memory of a GPU")
    return array.host

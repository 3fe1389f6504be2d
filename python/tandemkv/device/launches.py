"""Grids and parameters of the kernels: plain data, the same for the GPU and for the tests' shim.

Every scalar is a NumPy scalar of the kernel's parameter type. A Python int would reach the kernel
as 64 bits, whatever the parameter's type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tandemkv.device.arrays import ArrayView
from tandemkv.errors import ArrayError

COLUMNS_PER_THREAD = 4
UNIT_BYTES = 16
UNITS_PER_THREAD = 4
THREADS_MAX = 128
GRID_YZ_MAX = 65535
WIDTH_MAX = 2**30
"""Keeps every column number inside an int in the kernel."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: `grid` and `block` as (x, y, z), `args` in the kernel's order."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[np.generic, ...]


@dataclass(frozen=True, slots=True)
class CopyArguments:
    """Checked arguments of `copy_batch_block_offsets`.

    Attributes:
        source: int32 [tables, rows, width] or [tables, rows, 2, width].
        copy_index: int32 [sequences].
        used: int32 [tables, sequences or more], or None.
        count: int32 [1], or None when `num_copied` says it.
        destination: int32 [groups, sequences or more, 2, width].
        num_copied: sequences to write, or the most there can be when `count` is given.
        first_page: the smallest page; entries below it hold none.
        empty: what an entry without a page becomes, in both planes.
    """

    source: ArrayView
    copy_index: ArrayView
    used: ArrayView | None
    count: ArrayView | None
    destination: ArrayView
    num_copied: int
    first_page: int
    empty: int


@dataclass(frozen=True, slots=True)
class UpdateArguments:
    """Checked arguments of `apply_block_table_updates`.

    Attributes:
        records: int32 [records, 4]: row, class, column, page.
        count: int32 [1], or None when `num_records` says it.
        table: int32 [tables, rows, width], or None.
        row_position: int32 [rows], or None.
        destination: int32 [groups, sequences, 2, width], or None.
        num_records: records to apply, or the most there can be when `count` is given.
        num_tables: classes that a record may name.
        num_rows: rows that a record may name.
        width: columns that a record may name.
        first_page: the smallest page; entries below it hold none.
        empty: what an entry without a page becomes in the destination, in both planes.
    """

    records: ArrayView
    count: ArrayView | None
    table: ArrayView | None
    row_position: ArrayView | None
    destination: ArrayView | None
    num_records: int
    num_tables: int
    num_rows: int
    width: int
    first_page: int
    empty: int


@dataclass(frozen=True, slots=True)
class MoveArguments:
    """Checked arguments of `apply_page_moves`.

    Attributes:
        moves: int32 [moves, 4]: class, source page, destination page, tokens.
        count: int32 [1], or None when `num_moves` says it.
        first_move: the first move to run; 0 with `count`.
        num_moves: moves to run from there on, or the most there can be when `count` is given.
    """

    moves: ArrayView
    count: ArrayView | None
    first_move: int
    num_moves: int


@dataclass(frozen=True, slots=True)
class TokenMoveArguments:
    """Checked arguments of `apply_token_moves`.

    Attributes:
        moves: int32 [moves, 5]: class, source page and offset, destination page and offset.
        chains: int32 [chains + 1]: where each chain's moves begin, and where the last one's end.
    """

    moves: ArrayView
    chains: ArrayView


def copy_launch(arguments: CopyArguments, groups_pointer: int, num_groups: int) -> Launch:
    """Return the launch of `copy_batch_block_offsets`.

    Raises:
        ArrayError: a dimension exceeds what the grid can hold.
    """
    source, destination = arguments.source, arguments.destination
    width = source.shape[-1]
    row_stride = width if len(source.shape) == 3 else source.shape[2] * width
    threads = _threads(-(-width // COLUMNS_PER_THREAD))
    tiles = -(-width // (COLUMNS_PER_THREAD * threads))
    if width > WIDTH_MAX:
        raise ArrayError("source", f"at most {WIDTH_MAX} columns are supported, not {width}")
    if num_groups > GRID_YZ_MAX:
        raise ArrayError("groups", f"at most {GRID_YZ_MAX} are supported, not {num_groups}")
    used_stride = 0 if arguments.used is None else arguments.used.shape[1]
    return Launch(
        kernel="copy_batch_block_offsets",
        grid=(arguments.num_copied, num_groups, tiles),
        block=(threads, 1, 1),
        args=(
            _pointer(source),
            _pointer(arguments.copy_index),
            _pointer(arguments.used),
            _pointer(arguments.count),
            np.uint64(groups_pointer),
            _pointer(destination),
            np.int64(source.shape[1] * row_stride),
            np.int64(row_stride),
            np.int64(used_stride),
            np.int32(source.shape[1]),
            np.int32(destination.shape[1]),
            np.int32(width),
            np.int32(arguments.first_page),
            np.int32(arguments.empty),
        ),
    )


def update_launch(arguments: UpdateArguments, groups_pointer: int, num_groups: int) -> Launch:
    """Return the launch of `apply_block_table_updates`."""
    threads = _threads(arguments.num_records)
    destination = arguments.destination
    return Launch(
        kernel="apply_block_table_updates",
        grid=(-(-arguments.num_records // threads), 1, 1),
        block=(threads, 1, 1),
        args=(
            _pointer(arguments.records),
            _pointer(arguments.count),
            _pointer(arguments.table),
            _pointer(arguments.row_position),
            np.uint64(groups_pointer),
            _pointer(destination),
            np.int32(arguments.num_records),
            np.int32(arguments.num_tables),
            np.int32(arguments.num_rows),
            np.int32(num_groups),
            np.int32(0 if destination is None else destination.shape[1]),
            np.int32(arguments.width),
            np.int32(arguments.first_page),
            np.int32(arguments.empty),
        ),
    )


def move_launch(
    arguments: MoveArguments, segments_pointer: int, num_segments: int, units_max: int
) -> Launch:
    """Return the launch of `apply_page_moves`.

    Args:
        arguments: what to run.
        segments_pointer: address of the segments' descriptors.
        num_segments: how many there are.
        units_max: most units of 16 bytes that one segment has in a page.

    Raises:
        ArrayError: a dimension exceeds what the grid can hold.
    """
    threads = _threads(-(-units_max // UNITS_PER_THREAD))
    tiles = -(-units_max // (threads * UNITS_PER_THREAD))
    _check_grid(num_segments, tiles, "tiles of a segment")
    return Launch(
        kernel="apply_page_moves",
        grid=(arguments.num_moves, num_segments, tiles),
        block=(threads, 1, 1),
        args=(
            np.uint64(arguments.moves.pointer + 16 * arguments.first_move),
            _pointer(arguments.count),
            np.uint64(segments_pointer),
            np.int32(arguments.num_moves),
            np.int32(num_segments),
        ),
    )


def token_move_launch(
    arguments: TokenMoveArguments, segments_pointer: int, num_segments: int, units_max: int
) -> Launch:
    """Return the launch of `apply_token_moves`.

    Args:
        arguments: what to run.
        segments_pointer: address of the segments' descriptors.
        num_segments: how many there are.
        units_max: most units of 16 bytes that one token has in a segment.

    Raises:
        ArrayError: a dimension exceeds what the grid can hold.
    """
    threads = _threads(units_max)
    tiles = -(-units_max // threads)
    _check_grid(num_segments, tiles, "tiles of a token")
    num_chains = arguments.chains.shape[0] - 1
    return Launch(
        kernel="apply_token_moves",
        grid=(num_chains, num_segments, tiles),
        block=(threads, 1, 1),
        args=(
            _pointer(arguments.moves),
            _pointer(arguments.chains),
            np.uint64(segments_pointer),
            np.int32(arguments.moves.shape[0]),
            np.int32(num_chains),
            np.int32(num_segments),
        ),
    )


def _check_grid(num_segments: int, tiles: int, tiles_of: str) -> None:
    """Refuse more than the grid's second and third dimensions can hold.

    Raises:
        ArrayError: names what is too much.
    """
    for what, size in (("segments", num_segments), (tiles_of, tiles)):
        if size > GRID_YZ_MAX:
            raise ArrayError("segments", f"at most {GRID_YZ_MAX} {what} are supported, not {size}")


def _threads(work: int) -> int:
    """Threads per block: whole warps, no more than the work needs."""
    return min(THREADS_MAX, max(32, -(-work // 32) * 32))


def _pointer(array: ArrayView | None) -> np.generic[Any]:
    return np.uint64(0 if array is None else array.pointer)

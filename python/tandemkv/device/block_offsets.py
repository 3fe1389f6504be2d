"""Block tables for attention kernels: the full copy of a batch and the update of what changed.

Both calls check everything that can be checked on the host before anything is written or queued.
"""

from __future__ import annotations

import numpy as np

from tandemkv.device import cpu_backend, cuda_backend
from tandemkv.device.arguments import Backend, as_count, check_range, choose_backend
from tandemkv.device.arrays import ArrayView, int32_view, view
from tandemkv.device.groups import INDEX_LIMIT, OffsetGroups
from tandemkv.device.launches import CopyArguments, UpdateArguments
from tandemkv.errors import ArrayError


def copy_batch_block_offsets(
    source: object,
    copy_index: object,
    groups: OffsetGroups,
    destination: object,
    *,
    used: object | None = None,
    count: object | int | None = None,
    first_page: int = 1,
    empty: int = 0,
    backend: Backend = "auto",
    stream: object | None = None,
) -> None:
    """Write the kernel indices of a batch for all groups, target and draft, in one launch.

    For group g with table t, sequence s below `count` and column b:
    `v = source[t, copy_index[s], b]`, `destination[g, s, 0, b] = scale[g] * v` and
    `destination[g, s, 1, b] = scale[g] * v + kv_offset[g]`. Where the entry holds no page
    (`v < first_page`), where `b >= used[t, s]` and where `copy_index[s]` is -1 (a padding row),
    both planes get `empty`. All columns of those rows are written, so a row that shrank leaves no
    tail; rows from `count` on stay untouched. Rows of the source may repeat.

    Args:
        source: int32 [tables, rows, width], as `Ledger.table` writes it, or
            [tables, rows, 2, width], of which plane 0 is read.
        copy_index: int32 [n], the source row of each sequence, or -1.
        groups: class, scale and K/V offset per group.
        destination: int32 [groups, n or more, 2, width].
        used: int32 [tables, n or more], entries in use per class and sequence (batch order);
            columns past them are not read. None: all columns.
        count: sequences to write: an int, or an int32 array [1] that the kernel reads when it runs
            (for CUDA graphs); None means n. 0 returns before a launch.
        first_page: the smallest page that can be owned: 1 in the ledger's tables, where page 0 is
            reserved; 0 in tables that mark a missing page with -1.
        empty: 0, or -1 for an engine that skips negative indices.
        backend: "cpu", "cuda", or "auto" for that of the destination's memory.
        stream: the engine's stream; needed for, and only used by, the cuda backend. Arrays in host
            memory must be pinned and unchanged until the stream has passed this call.

    Raises:
        ArrayError: an argument does not have this form, an index is out of range (checked where
            the host can see it; on the GPU such a row becomes padding), or no stream was given.
        DeviceUnavailableError: the cuda backend without CuPy or without a GPU.
    """
    _check_entry_rules(first_page, empty)
    pages = _source_view(source)
    num_tables, num_rows, width = pages.shape[0], pages.shape[1], pages.shape[-1]
    written = int32_view(
        "destination", destination, shape=(len(groups), None, 2, width), writable=True
    )
    index = int32_view("copy_index", copy_index, shape=(None,))
    num_copied, device_count = as_count(count, index.shape[0])
    if num_copied > written.shape[1]:
        raise ArrayError(
            "destination", f"{written.shape[1]} rows cannot hold {num_copied} sequences"
        )
    if len(groups.num_pages) != num_tables:
        raise ArrayError(
            "source", f"{len(groups.num_pages)} tables are needed, one per class, not {num_tables}"
        )
    lengths = None if used is None else int32_view("used", used, shape=(num_tables, None))
    if lengths is not None and lengths.shape[1] < num_copied:
        raise ArrayError("used", f"{lengths.shape[1]} columns cannot hold {num_copied} sequences")
    if index.host is not None:
        check_range("copy_index", index.host[:num_copied], -1, num_rows - 1)
    if lengths is not None and lengths.host is not None:
        check_range("used", lengths.host[:, :num_copied], 0, width)
    chosen = choose_backend(backend, written)
    if num_copied == 0 or width == 0:
        return
    arguments = CopyArguments(
        source=pages,
        copy_index=index,
        used=lengths,
        count=device_count,
        destination=written,
        num_copied=num_copied,
        first_page=first_page,
        empty=empty,
    )
    if chosen == "cpu":
        cpu_backend.copy_batch_block_offsets(arguments, groups)
    else:
        cuda_backend.copy_batch_block_offsets(arguments, groups, stream)


def apply_block_table_updates(
    records: object,
    *,
    table: object | None = None,
    groups: OffsetGroups | None = None,
    destination: object | None = None,
    row_position: object | None = None,
    count: object | int | None = None,
    first_page: int = 1,
    empty: int = 0,
    backend: Backend = "auto",
    stream: object | None = None,
) -> None:
    """Scatter the ledger's changed entries into resident tables, a destination, or both.

    A record (row, class, column, page) sets `table[class, row, column] = page` and, for every
    group of that class, K and V of `destination[group, row_position[row], :, column]` by the rule
    of `copy_batch_block_offsets`. Applied after every change, the destination equals the full copy.

    Args:
        records: int32 [n, 4], as `Ledger.updates` writes them: each entry at most once.
        table: int32 [classes, rows, width], or None.
        groups: class, scale and K/V offset per group; needed with `destination`.
        destination: int32 [groups, positions, 2, width], or None.
        row_position: int32 [rows]: where a row stands in the destination, -1 for nowhere; None:
            at its own number. Positions are fixed while records are applied: a batch whose order
            changed is written by the full copy.
        count: records to apply: an int, or an int32 array [1] that the kernel reads when it runs;
            None means n. 0 returns before a launch.
        first_page: as in `copy_batch_block_offsets`.
        empty: as in `copy_batch_block_offsets`.
        backend: "cpu", "cuda", or "auto" for that of the written memory.
        stream: the engine's stream; needed for, and only used by, the cuda backend.

    Raises:
        ArrayError: an argument does not have this form, a record is out of range (checked where
            the host can see it; the GPU skips such a record), or no stream was given.
        DeviceUnavailableError: the cuda backend without CuPy or without a GPU.
    """
    _check_entry_rules(first_page, empty)
    changed = int32_view("records", records, shape=(None, 4))
    if changed.pointer % 16:
        raise ArrayError("records", "16-byte alignment is needed")
    tables = None if table is None else int32_view("table", table, shape=(None,) * 3, writable=True)
    written = _update_destination(destination, groups, tables)
    target = written if tables is None else tables
    if target is None:
        raise ArrayError("destination", "a table or a destination is needed")
    positions = None
    if row_position is not None:
        num_rows = None if tables is None else tables.shape[1]
        positions = int32_view("row_position", row_position, shape=(num_rows,))
    num_records, device_count = as_count(count, changed.shape[0])
    arguments = UpdateArguments(
        records=changed,
        count=device_count,
        table=tables,
        row_position=positions,
        destination=written,
        num_records=num_records,
        num_tables=_num_tables(tables, groups),
        num_rows=_num_rows(tables, positions, written),
        width=target.shape[-1],
        first_page=first_page,
        empty=empty,
    )
    _check_records(arguments, groups)
    chosen = choose_backend(backend, target)
    if num_records == 0:
        return
    if chosen == "cpu":
        cpu_backend.apply_block_table_updates(arguments, groups)
    else:
        cuda_backend.apply_block_table_updates(arguments, groups, stream)


def _source_view(source: object) -> ArrayView:
    result = view("source", source)
    if len(result.shape) == 4:
        return int32_view("source", source, shape=(None, None, 2, None))
    return int32_view("source", source, shape=(None, None, None))


def _update_destination(
    destination: object | None, groups: OffsetGroups | None, tables: ArrayView | None
) -> ArrayView | None:
    if destination is None:
        return None
    if groups is None:
        raise ArrayError("groups", "they are needed to write a destination")
    width = None if tables is None else tables.shape[2]
    return int32_view(
        "destination", destination, shape=(len(groups), None, 2, width), writable=True
    )


def _num_tables(tables: ArrayView | None, groups: OffsetGroups | None) -> int:
    if tables is None:
        return 0 if groups is None else len(groups.num_pages)
    if groups is not None and len(groups.num_pages) != tables.shape[0]:
        raise ArrayError(
            "table",
            f"{len(groups.num_pages)} tables are needed, one per class, not {tables.shape[0]}",
        )
    return tables.shape[0]


def _num_rows(
    tables: ArrayView | None, positions: ArrayView | None, destination: ArrayView | None
) -> int:
    """Rows that a record may name: those of the table, of the positions, or of the destination."""
    if tables is not None:
        return tables.shape[1]
    if positions is not None:
        return positions.shape[0]
    return 0 if destination is None else destination.shape[1]


def _check_records(arguments: UpdateArguments, groups: OffsetGroups | None) -> None:
    host = arguments.records.host
    if host is None:
        return
    num_valid = arguments.num_records
    if arguments.count is not None:
        if arguments.count.host is None:
            return  # how many records are valid is known on the device only
        num_valid = int(arguments.count.host[0])
        if not 0 <= num_valid <= arguments.num_records:
            raise ArrayError("count", f"{num_valid} is outside [0, {arguments.num_records}]")
    rows, classes, columns, pages = host[:num_valid].T
    check_range("records (row)", rows, 0, arguments.num_rows - 1)
    check_range("records (class)", classes, 0, arguments.num_tables - 1)
    check_range("records (column)", columns, 0, arguments.width - 1)
    if groups is not None:
        last_page = np.asarray(groups.num_pages, np.int64)[classes] - 1
        beyond = np.flatnonzero(pages > last_page)
        if beyond.size:
            first = int(beyond[0])
            raise ArrayError(
                "records (page)",
                f"{pages[first]} at {first} is outside [0, {last_page[first]}] "
                f"of class {classes[first]}",
            )


def _check_entry_rules(first_page: int, empty: int) -> None:
    if not 0 <= first_page <= INDEX_LIMIT:
        raise ArrayError("first_page", f"{first_page} is outside [0, {INDEX_LIMIT}]")
    if empty not in (0, -1):
        raise ArrayError("empty", f"0 or -1 is needed, not {empty}")

"""Random cases for the two calls, with the results that the contract asks for.

The expected values come from plain loops over Python ints, written from the contract and not from
any backend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import OffsetGroups

UNTOUCHED = 0x5A5A5A5A
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 12, 31, 32, 33, 64, 127, 128, 132, 511, 513, 516, 1020, 1200)


@dataclass
class Case:
    """Arguments of one call, the arrays it writes, and what they must hold afterwards.

    Attributes:
        arguments: keyword arguments of the call.
        expected: argument name -> content after the call.
        unread: views of memory that the call must not read.
    """

    arguments: dict[str, Any]
    expected: dict[str, NDArray[np.int32]]
    unread: list[NDArray[np.int32]] = field(default_factory=list)

    def check(self) -> None:
        """Compare the written arrays with what they must hold."""
        for name, expected in self.expected.items():
            np.testing.assert_array_equal(self.arguments[name], expected, err_msg=name)


def int32_array(
    rng: np.random.Generator, shape: tuple[int, ...], *, aligned: bool
) -> NDArray[np.int32]:
    """Return an exactly sized array whose address is, or is not, a multiple of 16."""
    shift = 0 if aligned else int(rng.integers(1, 4))
    memory = np.empty(int(np.prod(shape)) + shift, np.int32)
    assert memory.ctypes.data % 16 == 0  # the allocator's promise; the shift decides alone
    return memory[shift:].reshape(shape)


def random_groups(rng: np.random.Generator, num_tables: int, num_pages: int) -> OffsetGroups:
    """Return one to six groups over the tables; every third has no V plane."""
    count = int(rng.integers(1, 7))
    scale = [int(rng.integers(1, 130)) for _ in range(count)]
    offset = [0 if group % 3 == 2 else int(rng.integers(0, factor + 1))
              for group, factor in enumerate(scale)]  # fmt: skip
    tables = [int(rng.integers(0, num_tables)) for _ in range(count)]
    return OffsetGroups(tables, scale, offset, [num_pages] * num_tables)


def entry(groups: OffsetGroups, group: int, page: int, first_page: int, empty: int) -> list[int]:
    """Return K and V of one entry, as the contract has it."""
    _, scale, kv_offset, _ = (int(value) for value in groups.descriptors[group])
    return [empty, empty] if page < first_page else [scale * page, scale * page + kv_offset]


def random_copy(rng: np.random.Generator) -> Case:
    """Return a case of `copy_batch_block_offsets`."""
    num_tables, num_rows = int(rng.integers(1, 4)), int(rng.integers(1, 8))
    width, num_pages = int(rng.choice(WIDTHS)), int(rng.integers(2, 100_000))
    reference_form = bool(rng.integers(2))
    first_page, empty = int(rng.integers(2)), -int(rng.integers(2))
    groups = random_groups(rng, num_tables, num_pages)
    shape = (num_tables, num_rows, 2, width) if reference_form else (num_tables, num_rows, width)
    source = int32_array(rng, shape, aligned=rng.random() < 0.7)
    source[...] = rng.integers(-1, num_pages, shape)
    planes = source[:, :, 0] if reference_form else source
    planes[rng.random(planes.shape) < 0.2] = -1
    planes[rng.random(planes.shape) < 0.1] = 0

    num_given = int(rng.integers(0, 10))
    num_written = int(rng.integers(0, num_given + 1))
    index = rng.integers(-1, num_rows, num_given).astype(np.int32)
    used = None
    if rng.random() < 0.7:
        used = rng.integers(0, width + 1, (num_tables, num_given)).astype(np.int32)
        used[rng.random(used.shape) < 0.3] = width
    num_sequences = num_given + int(rng.integers(0, 3))
    destination = int32_array(
        rng, (len(groups), num_sequences, 2, width), aligned=rng.random() < 0.7
    )
    destination[...] = UNTOUCHED
    count: Any = num_written if rng.integers(2) else np.array([num_written], np.int32)

    expected = destination.copy()
    read = np.zeros(planes.shape, bool)
    for group in range(len(groups)):
        table = int(groups.descriptors[group, 0])
        for sequence in range(num_written):
            row = int(index[sequence])
            length = 0 if row < 0 else width if used is None else int(used[table, sequence])
            read[table, row, :length] = True
            for column in range(width):
                page = int(planes[table, row, column]) if column < length else -1
                expected[group, sequence, :, column] = entry(groups, group, page, first_page, empty)
    return Case(
        arguments={
            "source": source,
            "copy_index": index,
            "groups": groups,
            "destination": destination,
            "used": used,
            "count": count,
            "first_page": first_page,
            "empty": empty,
        },
        expected={"destination": expected, "source": source.copy()},
        unread=_unread(source, read),
    )


def _unread(source: NDArray[np.int32], read: NDArray[np.bool_]) -> list[NDArray[np.int32]]:
    """Return the parts of the source that no entry needs: row ends, whole rows and plane 1."""
    planes = source[:, :, 0] if source.ndim == 4 else source
    parts = [] if source.ndim == 3 else [row[1] for table in source for row in table]
    for pages, needed in zip(planes, read, strict=True):
        for row, columns in zip(pages, needed, strict=True):
            past = np.flatnonzero(columns)
            parts.append(row[(past[-1] + 1 if past.size else 0) :])
    return [part for part in parts if part.size]


def random_update(rng: np.random.Generator) -> Case:
    """Return a case of `apply_block_table_updates`."""
    num_tables, num_rows = int(rng.integers(1, 4)), int(rng.integers(1, 9))
    width, num_pages = int(rng.choice(WIDTHS)), int(rng.integers(2, 100_000))
    first_page, empty = int(rng.integers(2)), -int(rng.integers(2))
    groups = random_groups(rng, num_tables, num_pages)
    num_given = int(rng.integers(0, min(300, num_tables * num_rows * width) + 1))
    num_applied = int(rng.integers(0, num_given + 1))
    where = rng.choice(num_tables * num_rows * width, num_given, replace=False)
    tables, rows, columns = np.unravel_index(where, (num_tables, num_rows, width))
    pages = np.where(rng.random(num_given) < 0.2, 0, rng.integers(0, num_pages, num_given))
    records = int32_array(rng, (num_given, 4), aligned=True)
    records[...] = np.stack([rows, tables, columns, pages], axis=1)

    with_table, with_destination = [(True, True), (True, False), (False, True)][rng.integers(3)]
    arguments: dict[str, Any] = {
        "records": records,
        "count": num_applied if rng.integers(2) else np.array([num_applied], np.int32),
        "first_page": first_page,
        "empty": empty,
    }
    expected = {}
    if with_table:
        arguments["table"] = np.full((num_tables, num_rows, width), UNTOUCHED, np.int32)
        expected["table"] = arguments["table"].copy()
    if with_destination:
        num_sequences = num_rows + int(rng.integers(0, 3))
        position = None
        if rng.integers(2):
            position = np.full(num_rows, -1, np.int32)
            placed = rng.permutation(num_sequences)[:num_rows]
            position[: len(placed)] = np.where(rng.random(len(placed)) < 0.3, -1, placed)
        shape = (len(groups), num_sequences, 2, width)
        arguments["row_position"] = position
        arguments["groups"] = groups
        arguments["destination"] = np.full(shape, UNTOUCHED, np.int32)
        expected["destination"] = arguments["destination"].copy()
    for row, table, column, page in records[:num_applied].tolist():
        if with_table:
            expected["table"][table, row, column] = page
        if not with_destination:
            continue
        stands = row if position is None else int(position[row])
        for group in range(len(groups)):
            if stands >= 0 and int(groups.descriptors[group, 0]) == table:
                expected["destination"][group, stands, :, column] = entry(
                    groups, group, page, first_page, empty
                )
    return Case(arguments=arguments, expected=expected)

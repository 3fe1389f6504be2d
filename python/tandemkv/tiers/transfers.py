"""The transfers that a ledger planned, as arrays: what is copied where."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import ArrayError

DEVICE, HOST, DISK = 0, 1, 2
"""Tiers by number, as the ledger gives them."""

TIER_NAMES: tuple[str, ...] = ("device", "host", "disk")

KEY_BYTES = 32
"""Bytes of a tier key."""

Direction = tuple[int, int]
"""`(source tier, destination tier)`."""

DIRECTIONS: tuple[Direction, ...] = (
    (DEVICE, HOST),
    (HOST, DEVICE),
    (DEVICE, DISK),
    (DISK, DEVICE),
    (HOST, DISK),
    (DISK, HOST),
)
"""Every direction in which pages move between tiers."""


@dataclass(frozen=True, eq=False, slots=True)
class TransferPlan:
    """Transfers in the order in which the ledger planned them.

    A transfer of several classes is several rows with one id. The arrays are copied when the plan
    is made, so that the caller may reuse its own.

    Attributes:
        rows: int64 `[k, 6]`, read-only: id, class, source tier, source page, destination tier,
            destination page.
        keys: uint8 `[k, 32]`, read-only: the tier key of each row's entry.

    Raises:
        ArrayError: an array of another dtype or shape.
    """

    rows: NDArray[np.int64]
    keys: NDArray[np.uint8]

    def __post_init__(self) -> None:
        for name, array, dtype, width in (
            ("rows", self.rows, np.int64, 6),
            ("keys", self.keys, np.uint8, KEY_BYTES),
        ):
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                found = getattr(array, "dtype", type(array).__name__)
                raise ArrayError(name, f"dtype {np.dtype(dtype)} is needed, not {found}")
            if array.ndim != 2 or array.shape[1] != width:
                raise ArrayError(name, f"shape (any, {width}) is needed, not {array.shape}")
            kept = array.copy()
            kept.setflags(write=False)
            object.__setattr__(self, name, kept)
        if len(self.rows) != len(self.keys):
            raise ArrayError("keys", f"{len(self.keys)} keys for {len(self.rows)} rows")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Id of each row's transfer, int64 `[k]`."""
        return self.rows[:, 0]

    @property
    def classes(self) -> NDArray[np.int64]:
        """Class of each row, int64 `[k]`."""
        return self.rows[:, 1]

    @property
    def source_pages(self) -> NDArray[np.int64]:
        """Page that each row reads, int64 `[k]`."""
        return self.rows[:, 3]

    @property
    def destination_pages(self) -> NDArray[np.int64]:
        """Page that each row writes, int64 `[k]`."""
        return self.rows[:, 5]

    def directions(self) -> list[Direction]:
        """Return `(source tier, destination tier)` of each row."""
        return [(source, target) for source, target in self.rows[:, (2, 4)].tolist()]

    def select(self, which: NDArray[np.bool_] | NDArray[np.intp] | slice) -> TransferPlan:
        """Return some of the rows, in their order: a mask, positions or a slice."""
        return TransferPlan(self.rows[which], self.keys[which])

    def split(self) -> dict[Direction, TransferPlan]:
        """Return the rows of each direction that occurs, in their order."""
        found = self.rows[:, (2, 4)]
        return {
            direction: self.select(mask)
            for direction in DIRECTIONS
            if (mask := (found == direction).all(axis=1)).any()
        }

    def stretches(self) -> Iterator[tuple[Direction, TransferPlan]]:
        """Yield runs of rows that follow each other and go in one direction."""
        found = self.rows[:, (2, 4)]
        cuts = np.flatnonzero((found[1:] != found[:-1]).any(axis=1)) + 1
        bounds = [0, *cuts.tolist(), len(self.rows)]
        for first, end in itertools.pairwise(bounds):
            if first < end:
                source, target = found[first].tolist()
                yield (source, target), self.select(slice(first, end))

    def num_bytes(self, page_bytes: Sequence[int]) -> int:
        """Return the bytes that all rows move.

        Args:
            page_bytes: bytes of a page of each class, both roles together.
        """
        return sum(page_bytes[number] for number in self.classes.tolist())

    def to_dict(self, page_bytes: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the rows as plain values, keys in hex, and the bytes where sizes are given."""
        answer: dict[str, Any] = {
            "transfers": [
                {
                    "id": number,
                    "class": class_index,
                    "source": [_tier_name(source), source_page],
                    "destination": [_tier_name(target), target_page],
                    "key": key.tobytes().hex(),
                }
                for (number, class_index, source, source_page, target, target_page), key in zip(
                    self.rows.tolist(), self.keys, strict=True
                )
            ]
        }
        if page_bytes is not None:
            answer["bytes"] = self.num_bytes(page_bytes)
        return answer


def _tier_name(tier: int) -> str | int:
    return TIER_NAMES[tier] if 0 <= tier < len(TIER_NAMES) else tier

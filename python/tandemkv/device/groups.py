"""How a page of a class becomes the kernel index of a cache group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.device.kernels import require_cupy
from tandemkv.errors import OffsetRangeError

INDEX_LIMIT = 2**31 - 1
"""The largest kernel index: attention kernels read int32."""


def check_offset_range(num_pages: int, scale: int, kv_offset: int, name: str = "pool") -> int:
    """Check that every kernel index of a pool fits into int32, and returns the largest.

    Args:
        num_pages: pages of the pool, the reserved page 0 included, >= 1.
        scale: buffers per page, >= 1: the K index of page p is `scale * p`.
        kv_offset: distance from a K index to its V index, `(V base - K base) / K stride`, >= 0;
            0 where there is no V.
        name: what the message calls the pool.

    Raises:
        OffsetRangeError: `scale * (num_pages - 1) + kv_offset` exceeds 2**31 - 1.
        ValueError: an argument is out of range.
    """
    if num_pages < 1:
        raise ValueError(f"{name}: num_pages must be at least 1, not {num_pages}")
    if scale < 1:
        raise ValueError(f"{name}: scale must be at least 1, not {scale}")
    if kv_offset < 0:
        raise ValueError(f"{name}: kv_offset must be at least 0, not {kv_offset}")
    largest = scale * (num_pages - 1) + kv_offset
    if largest > INDEX_LIMIT:
        raise OffsetRangeError(
            f"{name}: {num_pages} pages with scale {scale} and kv_offset {kv_offset} need kernel "
            f"index {largest}, above the int32 limit {INDEX_LIMIT}",
            largest=largest,
            limit=INDEX_LIMIT,
        )
    return largest


class OffsetGroups:
    """The cache groups of one destination: per group its class, scale and K/V offset.

    Groups of target and draft may stand in one object: one launch then writes both, and
    `destination[:num_target_groups]` and the rest are the two roles' contiguous tables.

    Args:
        class_index: class (table) of each group.
        scale: buffers per page of each group, see `check_offset_range`.
        kv_offset: distance from K index to V index of each group.
        num_pages: pages of each class, the reserved page included.

    Raises:
        OffsetRangeError: an index of a group would not fit into int32.
        ValueError: lengths differ, there is no group, or a value is out of range.
    """

    def __init__(
        self,
        class_index: Sequence[int],
        scale: Sequence[int],
        kv_offset: Sequence[int],
        num_pages: Sequence[int],
    ) -> None:
        if not len(class_index) == len(scale) == len(kv_offset):
            raise ValueError(
                f"class_index, scale and kv_offset need equal lengths, not {len(class_index)}, "
                f"{len(scale)} and {len(kv_offset)}"
            )
        if not class_index:
            raise ValueError("at least one group is needed")
        descriptors = np.zeros((len(class_index), 4), np.int32)
        for group, (table, factor, offset) in enumerate(
            zip(class_index, scale, kv_offset, strict=True)
        ):
            if not 0 <= table < len(num_pages):
                raise ValueError(
                    f"group {group}: class_index must be in [0, {len(num_pages)}), not {table}"
                )
            check_offset_range(num_pages[table], factor, offset, f"group {group}")
            descriptors[group, :3] = table, factor, offset
        descriptors.setflags(write=False)
        self._descriptors = descriptors
        self._num_pages = tuple(num_pages)
        self._on_device: dict[int, Any] = {}

    @property
    def descriptors(self) -> NDArray[np.int32]:
        """int32 [groups, 4]: class, scale, kv_offset, 0; read-only."""
        return self._descriptors

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages of each class."""
        return self._num_pages

    def __len__(self) -> int:
        return len(self._descriptors)

    def on_device(self, device: int) -> Any:
        """Return the descriptors as a CuPy array on a GPU; uploaded once, before this returns."""
        if device not in self._on_device:
            cupy = require_cupy()
            with cupy.cuda.Device(device):
                uploaded = cupy.asarray(self._descriptors)
                cupy.cuda.get_current_stream().synchronize()
            self._on_device[device] = uploaded
        return self._on_device[device]

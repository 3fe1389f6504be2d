"""Kernel indices: how attention kernels address the pools, and the copy of a batch's tables.

A kernel reads a layer's K at `base + index * buffer_bytes`, where `base` is the address of that
layer's key buffer in page 0 and `index` comes from the destination of the copy. So layers whose
buffers have equal size and whose V lies equally far from K share their indices: a kernel group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.device import OffsetGroups
from tandemkv.device.publisher import TablePublisher
from tandemkv.errors import PoolError
from tandemkv.managers.layout import PageLayout
from tandemkv.managers.pools import Pool

BlockTables = Callable[[Iterable[Hashable], NDArray[np.int32], NDArray[np.int32]], object]
"""Writes pages int32 [classes, n, width] and used counts int32 [classes, n] of requests."""


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Layers that read the same kernel indices.

    Attributes:
        layers: their numbers on this rank, from 0.
        buffer_bytes: bytes of one K (or latent) buffer, the unit of the indices.
        scale: buffers per page: page p has K index `scale * p`.
        kv_offset: from a K index to its V index; 0 for a latent, which has no V.
        class_index: the ledger's class whose pages these are.
    """

    layers: tuple[int, ...]
    buffer_bytes: int
    scale: int
    kv_offset: int
    class_index: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "layers": list(self.layers),
            "buffer_bytes": self.buffer_bytes,
            "scale": self.scale,
            "kv_offset": self.kv_offset,
            "class_index": self.class_index,
        }


def kernel_groups(layout: PageLayout, class_index: int = 0) -> tuple[KernelGroup, ...]:
    """Return the kernel groups of a page, in the order of their first layers; a state has none.

    Raises:
        PoolError: a layer that no whole index reaches, because a page is not a whole number of its
            K buffers, or V does not lie a whole number of them after K (nvfp4 scales in between).
    """
    members: dict[tuple[int, int, int], list[int]] = {}
    for layer in () if layout.holds_states else layout.layers:
        names = layout.names(layer)
        key = layout.find(layer, names[0])
        distance = layout.find(layer, "value").offset_bytes - key.offset_bytes if (
            "value" in names
        ) else 0  # fmt: skip
        stride = layout.page_stride_bytes(layer)
        for what, size in (("a page", stride), ("the distance from K to V", distance)):
            if size % key.num_bytes:
                raise PoolError(
                    f"layer {layer} cannot be reached by kernel indices: {what} is {size} bytes, "
                    f"not a multiple of the {key.num_bytes} bytes of {key.name!r}; "
                    "use block_tables()"
                )
        scale, kv_offset = stride // key.num_bytes, distance // key.num_bytes
        members.setdefault((key.num_bytes, scale, kv_offset), []).append(layer)
    return tuple(KernelGroup(tuple(layers), *key, class_index) for key, layers in members.items())


class BlockOffsets:
    """Writes the kernel indices of batches, for the pools of one role or of both.

    Args:
        pools: the pools whose groups are written, one after the other.
        ledger: the ledger whose pages they hold.
        block_tables: reads the tables of requests.
        device: where destinations are: `cpu`, or `cuda:N`.

    Raises:
        PoolError: see `kernel_groups`; or there is no group, since all pools hold states.
        OffsetRangeError: an index of a pool does not fit into 32 bits.
        DeviceUnavailableError: `cuda:N` without CuPy or without a GPU.
    """

    def __init__(
        self, pools: Sequence[Pool], ledger: Ledger, block_tables: BlockTables, device: str
    ) -> None:
        self._groups = tuple(
            group for pool in pools for group in kernel_groups(pool.layout, pool.class_index)
        )
        if not self._groups:
            raise PoolError("the pools hold states only, which kernels reach by their page numbers")
        self._block_tables = block_tables
        self._publisher = TablePublisher(
            OffsetGroups(
                class_index=[group.class_index for group in self._groups],
                scale=[group.scale for group in self._groups],
                kv_offset=[group.kv_offset for group in self._groups],
                num_pages=[pages["total"] for pages in ledger.stats()["classes"]],
            ),
            max_sequences=ledger.max_sequences,
            width=ledger.row_width,
            device=device,
            num_slots=1 if device == "cpu" else 3,  # on the CPU a copy has run when it returns
        )

    @property
    def groups(self) -> tuple[KernelGroup, ...]:
        """The groups of the destination, in order."""
        return self._groups

    def copy(
        self,
        destination: object,
        request_ids: Iterable[Hashable],
        *,
        num_padding_rows: int = 0,
        stream: object | None = None,
    ) -> None:
        """Write the indices of a batch; see `RoleView.copy_batch_block_offsets`."""
        ids = tuple(request_ids)
        self._publisher.publish(
            lambda pages, used: self._block_tables(ids, pages, used),
            len(ids),
            destination,
            num_padding_rows=num_padding_rows,
            stream=stream,
        )

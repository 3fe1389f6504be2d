"""Pages of the host tier as payloads: one page of every group of both roles, as one value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import StoreError
from tandemkv.managers import Managers
from tandemkv.planning import Plan
from tandemkv.stores.values import Bytes, ValueLayout
from tandemkv.tiers import TierExecutor

Pages = NDArray[np.int32]


class HostShelf:
    """The pages of some classes in host memory that have one number and travel as one value.

    Args:
        class_index: the ledger's number of the first of the classes.
        parts: per group, the target's before the draft's, its host memory by page, uint8
            `[pages, page_bytes]`.
        fingerprint: 32 bytes that say what the parts hold; see `geometry_fingerprint`.
    """

    def __init__(self, class_index: int, parts: Sequence[Bytes], fingerprint: bytes) -> None:
        self.class_index = class_index
        self._parts = tuple(parts)
        ends = np.cumsum([part.shape[1] for part in parts]).tolist()
        self._places = [
            slice(end - part.shape[1], end) for end, part in zip(ends, parts, strict=True)
        ]
        self.layout = ValueLayout(fingerprint, ends[-1])

    @property
    def num_pages(self) -> int:
        """Pages that every part has."""
        return min(len(part) for part in self._parts)

    def gather(self, pages: Pages, out: Bytes) -> None:
        """Copy pages to payloads: `pages[i]` to row i of `out`, uint8 `[n, payload_bytes]`."""
        for part, place in zip(self._parts, self._places, strict=True):
            out[:, place] = part[pages]

    def scatter(self, payloads: Bytes, pages: Pages) -> None:
        """Copy payloads, uint8 `[n, payload_bytes]`, to pages: row i to `pages[i]`."""
        for part, place in zip(self._parts, self._places, strict=True):
            part[pages] = payloads[:, place]


def geometry_fingerprint(
    managers: Managers, plan: Plan, rank: int, classes: Sequence[int]
) -> bytes:
    """Return 32 bytes that name what a page of some classes holds on a rank, and in which order.

    The same in every process with equal layers, dtypes, layouts, block sizes and place among the
    ranks, whatever the arrangement of the pools. Which weights these are is part of the keys.
    """
    groups = []
    for view in managers.views:
        for group, pool in zip(view.plan.groups, view.pools, strict=True):
            if pool.class_index in classes:
                first = view.layer_indices[0]
                buffers = [
                    [first + item.layer, item.name, item.dtype, *item.shape]
                    for item in pool.layout.buffers
                ]
                shard = [plan.ranks[rank].tp_rank % view.plan.tp_size, view.plan.tp_size]
                groups.append([view.role, list(group.rule), shard, buffers])
    record: list[Any] = ["tandemkv page", 1, plan.tokens_per_block, groups]
    return hashlib.sha256(json.dumps(record, separators=(",", ":")).encode()).digest()


def host_shelf(managers: Managers, plan: Plan, rank: int) -> HostShelf:
    """Return the shelf of the blocks: all classes that keep every token.

    Raises:
        StoreError: there is no host tier in memory, or the model has windows or states, whose
            pages would be missing beside the blocks.
    """
    executor = None if managers.tiers is None else managers.tiers.executor
    host = executor.host if isinstance(executor, TierExecutor) else None
    if host is None:
        raise StoreError(
            "outer stores need a host tier: host_cache_size in the plan, and pools that are built"
        )
    shelves = [
        item["classes"]
        for item in managers.ledger.tier_stats()["shelves"]
        if item["tier"] == "host"
    ]
    if len(shelves) != 1:
        others = [managers.limits.classes[index].lifetime[0] for (index,) in shelves[1:]]
        raise StoreError(
            f"the model keeps {', '.join(others)} beside full attention; outer stores serve full "
            "attention alone so far"
        )
    classes = shelves[0]
    parts = [
        buffer.reshape(-1, group.page_bytes)
        for group, buffer in host.buffers()
        if group.class_index in classes
    ]
    return HostShelf(classes[0], parts, geometry_fingerprint(managers, plan, rank, classes))

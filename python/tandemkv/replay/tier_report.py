"""What host and disk did in a replay: hits by tier, blocks and bytes by direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandemkv._core import Ledger
from tandemkv.replay.transfers import FULL_CLASS, Links, ModelledExecutor, direction_name
from tandemkv.tiers.transfers import DEVICE, DISK, HOST

TIER_DEFINITIONS = {
    "hit_tokens_by_tier": "hit_tokens by where they lay when the request was first admitted; what "
    "another request was loading counts as device",
    "loaded_blocks": "blocks that were sent to the device and became part of a request",
    "offloaded_blocks": "blocks that were sent from the device to host or disk when they were "
    "evicted; those that still had a copy there are not sent again",
    "rejected": "evicted blocks and side pages for which no tier had room",
    "lost": "copies on host or disk that gave way to others and had not been loaded",
    "moved_blocks": "blocks sent, by direction",
    "moved_bytes": "bytes sent by all ranks, both roles, windows and states included",
    "loading_requests": "requests that waited for their pages, and ran when they were there",
}
"""What each figure about tiers means."""

_DIRECTIONS = ((DEVICE, HOST), (DEVICE, DISK), (HOST, DISK), (HOST, DEVICE), (DISK, DEVICE))


@dataclass(frozen=True, slots=True)
class LoadedBlocks:
    """Blocks that came from lower tiers.

    Attributes:
        host: from the host.
        disk: from disk.
    """

    host: int = 0
    disk: int = 0

    def __add__(self, other: LoadedBlocks) -> LoadedBlocks:
        return LoadedBlocks(self.host + other.host, self.disk + other.disk)

    def __sub__(self, other: LoadedBlocks) -> LoadedBlocks:
        return LoadedBlocks(self.host - other.host, self.disk - other.disk)

    @classmethod
    def sent(cls, executor: ModelledExecutor) -> LoadedBlocks:
        """Return how many blocks were sent to the device so far."""
        rows = executor.rows
        return cls(rows[(HOST, DEVICE), FULL_CLASS], rows[(DISK, DEVICE), FULL_CLASS])


@dataclass(frozen=True, kw_only=True)
class TierReport:
    """What the lower tiers did; see TIER_DEFINITIONS.

    Attributes:
        host_pages: pages of blocks on the host.
        disk_pages: pages of blocks on disk.
        hit_tokens_by_tier: `device`, `host` and `disk`; they add up to `hit_tokens`.
        loaded_blocks: blocks that came back.
        offloaded_blocks: blocks that left the device.
        rejected: evicted, and lost at once.
        lost: displaced later.
        moved_blocks: blocks sent, by direction: `device_to_host` and so on.
        moved_bytes: bytes sent, by direction; None where the size of a page is not known.
        loading_requests: requests that waited for their pages.
        loading_ms_p50: median of the waits from admission until the pages were there; None without.
        loading_ms_p95: their 95th percentile.
    """

    host_pages: int
    disk_pages: int
    hit_tokens_by_tier: dict[str, int]
    loaded_blocks: int
    offloaded_blocks: int
    rejected: int
    lost: int
    moved_blocks: dict[str, int]
    moved_bytes: dict[str, int] | None
    loading_requests: int = 0
    loading_ms_p50: float | None = None
    loading_ms_p95: float | None = None

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        executor: ModelledExecutor,
        *,
        tokens_per_block: int,
        hit_tokens: int,
        found: LoadedBlocks,
        waits_ms: Sequence[float] = (),
    ) -> TierReport:
        """Close the books.

        Args:
            ledger: its counters are read.
            executor: what it was given is counted.
            tokens_per_block: the ledger's block.
            hit_tokens: tokens found at first admissions, on any tier.
            found: how many of them, in blocks, came from lower tiers.
            waits_ms: how long requests waited for their pages.
        """
        stats = ledger.tier_stats()
        pages = {
            shelf["tier"]: shelf["total"]
            for shelf in stats["shelves"]
            if FULL_CLASS in shelf["classes"]
        }
        host, disk = found.host * tokens_per_block, found.disk * tokens_per_block
        blocks = {
            direction_name(direction): executor.rows[direction, FULL_CLASS]
            for direction in _DIRECTIONS
        }
        waits = np.array(waits_ms)
        return cls(
            host_pages=pages.get("host", 0),
            disk_pages=pages.get("disk", 0),
            hit_tokens_by_tier={"device": hit_tokens - host - disk, "host": host, "disk": disk},
            loaded_blocks=ledger.stats()["loaded_blocks"],
            offloaded_blocks=blocks["device_to_host"] + blocks["device_to_disk"],
            rejected=stats["counters"]["rejected"],
            lost=stats["counters"]["lost"],
            moved_blocks=blocks,
            moved_bytes=None if executor.links is None else _moved_bytes(executor, executor.links),
            loading_requests=len(waits),
            loading_ms_p50=float(np.percentile(waits, 50)) if len(waits) else None,
            loading_ms_p95=float(np.percentile(waits, 95)) if len(waits) else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values; the keys stay."""
        return {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        }


def _moved_bytes(executor: ModelledExecutor, links: Links) -> dict[str, int]:
    moved = {direction_name(direction): 0 for direction in _DIRECTIONS}
    for (direction, class_index), rows in executor.rows.items():
        moved[direction_name(direction)] += rows * links.total_page_bytes[class_index]
    return moved

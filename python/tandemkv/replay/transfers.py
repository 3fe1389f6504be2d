"""Transfers between tiers in a replay: nothing is copied, but copies take time and are counted."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import ReplayError
from tandemkv.managers.classes import cache_classes
from tandemkv.planning import Plan
from tandemkv.planning.groups import Lifetime
from tandemkv.planning.roles import RolePlan
from tandemkv.tiers.transfers import DEVICE, DISK, HOST, TIER_NAMES, Direction, TransferPlan

FULL_CLASS = 0
"""The class whose pages are blocks; where a ledger has tiers it keeps every token."""

# What a link carries in one direction goes one after the other.
_LINKS: dict[Direction, str] = {
    (DEVICE, HOST): "to host",
    (HOST, DEVICE): "from host",
    (DEVICE, DISK): "to disk",
    (HOST, DISK): "to disk",
    (DISK, DEVICE): "from disk",
}


@dataclass(frozen=True, kw_only=True)
class Links:
    """What moves pages between tiers: bytes per page, and how fast each rank moves them.

    Attributes:
        page_bytes: bytes of a page of each class, both roles, on the rank that has the most; ranks
            decide alike, so that the others wait for it.
        total_page_bytes: the same on all ranks together.
        host_bytes_per_s: of each rank and direction, between device and host; None: no time.
        disk_bytes_per_s: the same from and to disk.

    Raises:
        ReplayError: a speed below 1.
    """

    page_bytes: tuple[int, ...]
    total_page_bytes: tuple[int, ...]
    host_bytes_per_s: int | None = None
    disk_bytes_per_s: int | None = None

    def __post_init__(self) -> None:
        for name in ("host_bytes_per_s", "disk_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ReplayError(f"{name} is {value}; must be at least 1")

    @classmethod
    def of(
        cls, plan: Plan, host_bytes_per_s: int | None = None, disk_bytes_per_s: int | None = None
    ) -> Links:
        """Return the links of a plan's ranks."""
        rules = [item.lifetime for item in cache_classes(plan)]
        ranks = [
            [_page_bytes(rank.target, rule) + _page_bytes(rank.draft, rule) for rule in rules]
            for rank in plan.ranks
        ]
        return cls(
            page_bytes=tuple(map(max, zip(*ranks, strict=True))),
            total_page_bytes=tuple(map(sum, zip(*ranks, strict=True))),
            host_bytes_per_s=host_bytes_per_s,
            disk_bytes_per_s=disk_bytes_per_s,
        )

    def duration_ms(self, direction: Direction, num_bytes: int) -> float:
        """Return how long `num_bytes` bytes take."""
        rate = self.disk_bytes_per_s if DISK in direction else self.host_bytes_per_s
        return 0.0 if rate is None else 1000.0 * num_bytes / rate


def _page_bytes(role: RolePlan | None, rule: Lifetime) -> int:
    groups = () if role is None else role.groups
    return sum(group.page_bytes for group in groups if group.rule == rule)


class ModelledExecutor:
    """Completes transfers when the virtual clock has passed the time that their bytes take.

    Every transfer succeeds. The two directions of host and of disk are four links; each carries
    one transfer after the other, in the order planned.

    Args:
        links: their sizes and speeds; None: every transfer is complete at once.

    Attributes:
        links: as given.
        rows: pages handed over so far, by direction and class.
        completed: transfers that are over by the time of the clock.
    """

    def __init__(self, links: Links | None = None) -> None:
        self.links = links
        self._now_ms = 0.0
        self._free_at: dict[str, float] = {}
        self._running: list[tuple[float, int]] = []
        self._done: list[int] = []
        self._closed = False
        self.rows: Counter[tuple[Direction, int]] = Counter()
        self.completed = 0

    @property
    def next_done_ms(self) -> float | None:
        """When the next running transfer is complete; None if none runs."""
        return self._running[0][0] if self._running else None

    def advance(self, now_ms: float) -> None:
        """Set the clock, which never goes back."""
        self._now_ms = max(self._now_ms, now_ms)
        while self._running and self._running[0][0] <= self._now_ms:
            self._finish_first()

    def submit(self, plan: TransferPlan, stream: object | None = None) -> None:
        """Start transfers; rows of one id follow each other."""
        num_bytes: dict[int, int] = {}
        links: dict[int, Direction] = {}
        for row, direction in zip(plan.rows.tolist(), plan.directions(), strict=True):
            number, class_index = row[:2]
            self.rows[direction, class_index] += 1
            page_bytes = 0 if self.links is None else self.links.page_bytes[class_index]
            num_bytes[number] = num_bytes.get(number, 0) + page_bytes
            links[number] = direction
        for number, direction in links.items():
            link = _LINKS[direction]
            start = max(self._now_ms, self._free_at.get(link, 0.0))
            lasts = 0.0
            if self.links is not None:
                lasts = self.links.duration_ms(direction, num_bytes[number])
            self._free_at[link] = start + lasts
            heapq.heappush(self._running, (start + lasts, number))
        self.advance(self._now_ms)

    def poll(self, wait: bool = False) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return what was completed since the last call; `wait` completes what runs."""
        while wait and self._running:
            self._finish_first()
        done, self._done = self._done, []
        return np.array(done, np.int64), np.ones(len(done), np.uint8)

    def close(self) -> None:
        """Nothing to give up."""

    def _finish_first(self) -> None:
        _, number = heapq.heappop(self._running)
        self._done.append(number)
        self.completed += 1


def direction_name(direction: Direction) -> str:
    """Return `host_to_device` for (1, 0)."""
    source, target = direction
    return f"{TIER_NAMES[source]}_to_{TIER_NAMES[target]}"

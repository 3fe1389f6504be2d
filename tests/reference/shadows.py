"""The shadow caches of the adaptive policy: named blocks in a dictionary, linear scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GHOSTS_PER_BLOCK = 4


def ghosts_in(evictions: list[Any], capacity: int) -> list[Any]:
    """Return the blocks evicted within the window of a cache of `capacity` blocks."""
    return evictions[-GHOSTS_PER_BLOCK * capacity :]


@dataclass
class _Cached:
    parent: Any
    last_use: int
    uses: int


class Shadow:
    """A leaf-first cache of `capacity` blocks; classes count as used later by a fixed boost."""

    def __init__(self, capacity: int, boost: int) -> None:
        self.capacity = capacity
        self.boost = boost
        self.clock = 0
        self.blocks: dict[Any, _Cached] = {}
        self.evictions: list[Any] = []

    def serve(self, chain: Sequence[Any]) -> int:
        """Serve a request; return its hit blocks. One larger than the cache is not served."""
        if len(chain) > self.capacity:
            return 0
        hit = next((at for at, name in enumerate(chain) if name not in self.blocks), len(chain))
        while len(self.blocks) + len(chain) - hit > self.capacity:
            self._evict_one(set(chain[:hit]))
        for name in chain[:hit]:
            block = self.blocks[name]
            block.last_use, block.uses = self.clock, max(block.uses, 1)
        ghosts = ghosts_in(self.evictions, self.capacity)
        for at in range(hit, len(chain)):
            parent = chain[at - 1] if at else None
            uses = 2 if chain[at] in ghosts else 0
            self.blocks[chain[at]] = _Cached(parent, self.clock, uses)
        self.clock += max(1, len(chain) - hit)
        return hit

    def _evict_one(self, busy: set[Any]) -> None:
        parents = {block.parent for block in self.blocks.values()}
        leaves = [name for name in self.blocks if name not in parents and name not in busy]
        victim = min(leaves, key=self._order)
        del self.blocks[victim]
        self.evictions.append(victim)

    def _order(self, name: Any) -> tuple[int, int]:
        block = self.blocks[name]
        return block.last_use + block.uses * self.boost * self.capacity, block.uses

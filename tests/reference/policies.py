"""The policies of docs/eviction.md, in plain Python: how the reference ledger ranks leaf blocks."""

from __future__ import annotations

from reference.tree import Block


class Lru:
    """All ranks are equal, so the last use decides."""

    def rank(self, block: Block) -> int:
        """Rank a block that becomes unprotected."""
        return 0

    def evicted(self, block: Block) -> None:
        """Note a victim."""


class Lfu(Lru):
    """Uses plus the largest rank evicted so far."""

    def __init__(self) -> None:
        self.age = 0

    def rank(self, block: Block) -> int:
        return block.uses + self.age

    def evicted(self, block: Block) -> None:
        self.age = max(self.age, block.rank)


POLICIES = {"lru": Lru, "lfu": Lfu}

"""The policies of docs/eviction.md in plain Python: how the reference orders leaf blocks."""

from __future__ import annotations

from reference.shadows import Shadow, ghosts_in
from reference.tree import Block

SAMPLE_BITS = 3
BOOSTS = (0, 1, 8)
WORD = 2**64


class Lru:
    """The last use decides."""

    fresh_uses = 1
    grows_with_blocks = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def place(self, block: Block) -> None:
        """Note a full block that enters the tree."""
        block.uses = self.fresh_uses

    def used(self, block: Block) -> None:
        """Note an admission that shares or copies a block."""
        block.uses += 1

    def rank(self, block: Block) -> int:
        """Rank a block that becomes unprotected."""
        return 0

    def fresh_rank(self) -> int:
        """Rank a block that was used once, now."""
        return 0

    def order(self, block: Block) -> tuple[int, ...]:
        """Order the leaves: the smallest goes first."""
        return (block.rank, block.last_use)

    def evicted(self, block: Block) -> None:
        """Note a victim."""

    def served(self, path: list[Block]) -> None:
        """Note the end of a request that stood on this path."""


class Lfu(Lru):
    """Uses plus the largest rank evicted so far."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.age = 0

    def rank(self, block: Block) -> int:
        return block.uses + self.age

    def fresh_rank(self) -> int:
        return self.fresh_uses + self.age

    def evicted(self, block: Block) -> None:
        self.age = max(self.age, block.rank)


class Adaptive(Lru):
    """Last use plus a boost by class: 1 if used again, 2 if it came back after an eviction.

    `uses` is the class. Scores are hit blocks in 1/65536.
    """

    fresh_uses = 0
    grows_with_blocks = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.evictions: list[tuple[object, ...]] = []
        self.shadow_capacity = max(capacity >> SAMPLE_BITS, 1)
        self.shadows = [Shadow(self.shadow_capacity, boost) for boost in BOOSTS]
        self.scores = [0] * len(BOOSTS)
        self.chosen = 0

    def place(self, block: Block) -> None:
        came_back = _name(block) in ghosts_in(self.evictions, self.capacity)
        block.uses = 2 if came_back else 0

    def used(self, block: Block) -> None:
        block.uses = max(block.uses, 1)

    def order(self, block: Block) -> tuple[int, ...]:
        return (block.last_use + block.uses * BOOSTS[self.chosen] * self.capacity, block.uses)

    def evicted(self, block: Block) -> None:
        if not block.is_partial:
            self.evictions.append(_name(block))

    def served(self, path: list[Block]) -> None:
        full = [block for block in path if not block.is_partial]
        if not full or path_hash(full[0]) >> (64 - SAMPLE_BITS):
            return
        fading = 128 * self.shadow_capacity
        left = fading - min(fading, len(full))
        for at, shadow in enumerate(self.shadows):
            hits = shadow.serve([_name(block) for block in full])
            self.scores[at] = self.scores[at] * left // fading + hits * 65536
        best = self.scores.index(max(self.scores))
        if self.scores[best] * 100 > self.scores[self.chosen] * 101:
            self.chosen = best


def _name(block: Block) -> tuple[object, ...]:
    """Name a block by all the text up to its end."""
    return (block.scope, *(token for b in block.path() for token in b.tokens))


def _mix(value: int, item: int) -> int:
    value = (value ^ item) * 0x9E3779B97F4A7C15 % WORD
    return value ^ value >> 32


def path_hash(first: Block) -> int:
    """Hash the first block of a path as docs/eviction.md says, to decide whether it is sampled."""
    value = _mix(1, first.scope)
    tokens = first.tokens
    for at in range(0, len(tokens) - 1, 2):
        value = _mix(value, tokens[at] | tokens[at + 1] << 32)
    return _mix(value, tokens[-1]) if len(tokens) % 2 else value


POLICIES = {"lru": Lru, "lfu": Lfu, "adaptive": Adaptive}

"""The prefix tree of the reference ledger: one object per block, linear scans everywhere.

Written from docs/ledger.md alone, to be read beside it. Nothing here is meant to be fast; pools in
the tests hold a few dozen blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

DEFAULT_PRIORITY = 35


@dataclass(eq=False)
class Block:
    """One block of the tree, full or a partial tail.

    Attributes:
        parent: the block before it, or None at the root of its scope.
        tokens: its own tokens, `tokens_per_block` of them or fewer in a partial tail.
        following: the tokens kept after them: D for a full block, up to D - 1 for a tail.
        covered: tokens whose KV its pages hold.
        pages: its page in each class; 0 where it has none.
        last_use: the tick at which it was last let go.
        stamp: the newest step begun at that moment.
        key: of a full block, once it was asked for.
        snapshots: in each state class with a page, the tokens of the block that the state covers.
        side_stamps: in each windowed and state class, the stamp of its page's last pin.
        wanted: the classes in which its page is not merely left behind by one sequence.
        used_at: the clock at its last use.
        priority: lower goes first.
        until: the time from which on the default priority holds again.
        uses: how often it was used, counting its entry.
        rank: its rank among leaves under the policy, from the same moment.

    """

    scope: int
    parent: Block | None
    tokens: tuple[int, ...]
    following: tuple[int, ...]
    covered: int
    draft_valid: bool
    pages: list[int]
    is_partial: bool
    last_use: int = 0
    stamp: int = 0
    used_at: float = 0.0
    priority: int = DEFAULT_PRIORITY
    until: float = math.inf
    uses: int = 1
    rank: int = 0
    children: list[Block] = field(default_factory=list)
    key: bytes = b""
    snapshots: dict[int, int] = field(default_factory=dict)
    side_stamps: dict[int, int] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)

    @property
    def text(self) -> tuple[int, ...]:
        """Its tokens and those kept after them."""
        return self.tokens + self.following

    def path(self) -> list[Block]:
        """Return the blocks from the root of its scope down to this one."""
        chain: list[Block] = []
        block: Block | None = self
        while block is not None:
            chain.append(block)
            block = block.parent
        return chain[::-1]


@dataclass(frozen=True)
class Match:
    """What a prompt may use: a number of tokens and the blocks that hold them, in order."""

    usable: int
    path: tuple[Block, ...]


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Count the leading tokens in which two token strings agree."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


def starts_with(text: tuple[int, ...], prefix: tuple[int, ...]) -> bool:
    """Tell whether `text` begins with all of `prefix`."""
    return text[: len(prefix)] == prefix


class Tree:
    """All cached blocks. `blocks` lists them in the order in which they entered."""

    def __init__(self, tokens_per_block: int, lookahead: int, partial_reuse: bool) -> None:
        self.tokens_per_block = tokens_per_block
        self.lookahead = lookahead
        self.partial_reuse = partial_reuse
        self.blocks: list[Block] = []

    def siblings(self, scope: int, parent: Block | None) -> list[Block]:
        """Return the blocks that follow `parent`, or that start the scope."""
        if parent is not None:
            return parent.children
        return [block for block in self.blocks if block.parent is None and block.scope == scope]

    def match(self, tokens: tuple[int, ...], scope: int, draft_from: int) -> Match:
        """Return the path with the largest usable length; see "Agreement" in docs/ledger.md."""
        best, best_key = Match(0, ()), None
        for block in self.blocks:
            if block.scope != scope or tokens[:1] != block.path()[0].tokens[:1]:
                continue
            path = block.path()
            if not all(self._role_may_use(b, i, draft_from) for i, b in enumerate(path)):
                continue
            usable = self._usable(tokens, path)
            used = path[: -(-usable // self.tokens_per_block)]
            # Larger first; then draft-valid at the first branch; then the smallest text, a prefix
            # before what it begins, so that the choice does not depend on how the tree came to be.
            # Media references, which are negative, stand after every ordinary token.
            text = tuple(t for b in used[-1:] for t in b.text)
            key = (usable, tuple(b.draft_valid for b in used), (*(-(t % 2**32) for t in text), 1))
            if usable > 0 and (best_key is None or key > best_key):
                best, best_key = Match(usable, tuple(path)), key
        return best

    def _role_may_use(self, block: Block, ordinal: int, draft_from: int) -> bool:
        if draft_from < 0 or block.draft_valid:
            return True
        return (ordinal + 1) * self.tokens_per_block <= draft_from

    def _usable(self, tokens: tuple[int, ...], path: list[Block]) -> int:
        text = tuple(t for b in path for t in b.tokens) + path[-1].following
        agreed = common_prefix(tokens, text)
        usable = min(max(agreed - self.lookahead, 0), sum(b.covered for b in path))
        return usable if self.partial_reuse else usable - usable % self.tokens_per_block

    def find_equal(self, new: Block, windowed: list[int]) -> Block | None:
        """Find a full block of the same tokens and following ones, at least as draft-valid.

        A better one must have the side pages that the new block has, which could not stand in for
        them.
        """
        equal = [
            block
            for block in self.siblings(new.scope, new.parent)
            if not block.is_partial
            and (block.tokens, block.following) == (new.tokens, new.following)
            and (
                block.draft_valid == new.draft_valid
                or (block.draft_valid and all(block.pages[c] for c in windowed if new.pages[c]))
            )
        ]
        return max(equal, key=lambda block: block.draft_valid, default=None)

    def find_cover(self, tail: Block) -> Block | None:
        """Find a block in the tree that makes the tail `tail` worthless: the one that matches."""
        covers = [
            block
            for block in self.siblings(tail.scope, tail.parent)
            if block.draft_valid >= tail.draft_valid
            and starts_with(block.text, tail.text)
            and block.covered >= tail.covered
        ]
        # Media references, which are negative, stand after every ordinary token.
        order = {id(block): tuple(t % 2**32 for t in block.text) for block in covers}
        return min(covers, key=lambda b: (not b.draft_valid, order[id(b)]), default=None)

    def replaced_by(self, new: Block, protected: set[int]) -> list[Block]:
        """Return the partial blocks that become worthless when `new` enters."""
        return [
            block
            for block in self.siblings(new.scope, new.parent)
            if block.is_partial
            and id(block) not in protected
            and block.draft_valid <= new.draft_valid
            and starts_with(new.text, block.text)
        ]

    def insert(self, new: Block) -> None:
        """Add a block below its parent."""
        self.blocks.append(new)
        if new.parent is not None:
            new.parent.children.append(new)

    def remove(self, block: Block) -> None:
        """Take a block without children out of the tree."""
        assert not block.children
        self.blocks.remove(block)
        if block.parent is not None:
            block.parent.children.remove(block)

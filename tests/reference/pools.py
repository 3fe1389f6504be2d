"""Fences, pins and eviction of the reference ledger: see docs/ledger.md and docs/groups.md."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from reference.state import Sequence
from reference.tree import Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Pools:
    """What `ReferenceLedger` does with pages."""

    # Fences

    def _stamp(self: ReferenceLedger) -> int:
        return self.copy_step if self.config.same_stream else self.newest

    def _fence_copies(self: ReferenceLedger, step: int) -> None:
        """Note that copies were queued: with `same_stream` they are the reason for fences."""
        self.copy_step = max(self.copy_step, step)

    def _fence_is_open(self: ReferenceLedger, stamp: int) -> bool:
        return any(step <= stamp for step in self.open_steps)

    def _give_up_page(self: ReferenceLedger, cls: int, stamp: int) -> None:
        # A record is no memory, so no step can touch it.
        if self._fence_is_open(stamp) and cls != self.record_class:
            self.fenced.append((cls, stamp))
        else:
            self.free[cls] += 1

    def _leave_page(self: ReferenceLedger, seq: Sequence, cls: int, page: int) -> None:
        """Give up a private page of a sequence, unless a fork has it too."""
        others = [other for other in self.sequences.values() if other is not seq]
        if not any(page == block[cls] for other in others for block in other.private):
            self._give_up_page(cls, self._stamp())

    def _leave(self: ReferenceLedger, seq: Sequence, pages: list[int]) -> None:
        """Give up the pages of a private block, in the classes where it has one."""
        for cls, page in enumerate(pages):
            if page:
                self._leave_page(seq, cls, page)

    def _give_up(self: ReferenceLedger, pages: list[int], stamp: int) -> None:
        """Give up the pages of one block, in the classes where it has one."""
        for cls, page in enumerate(pages):
            if page:
                self._give_up_page(cls, stamp)

    def _give_up_cached(self: ReferenceLedger, block: Block, protected: set[int]) -> None:
        """Give up the pages of a block that leaves the tree for another reason than eviction."""
        for cls, page in enumerate(block.pages):
            if page and cls in self.side_classes:
                self._give_up_side(cls, block)
            elif page:
                is_idle = id(block) not in protected and not self._fence_is_open(block.stamp)
                self._give_up_page(cls, 0 if is_idle else self._stamp())

    def _give_up_side(self: ReferenceLedger, cls: int, block: Block) -> None:
        """Give up a side page for another reason than eviction."""
        is_idle = not self.is_pinned(cls, block) and not self._fence_is_open(block.side_stamps[cls])
        self._give_up_page(cls, 0 if is_idle else self._stamp())
        self._forget_side(cls, block)

    def _forget_side(self: ReferenceLedger, cls: int, block: Block) -> None:
        block.pages[cls] = 0
        block.snapshots.pop(cls, None)
        block.wanted.discard(cls)
        if block in self.queues[cls]:
            self.queues[cls].remove(block)

    # Protection and pins

    def protected(self: ReferenceLedger) -> set[int]:
        """Return the `id()` of every block that a sequence or a pending copy needs."""
        ends = [seq.node for seq in self.sequences.values()] + [copy.block for copy in self.copies]
        ends += [lease.block for lease in self.leases.values()]
        return {id(block) for end in ends if end is not None for block in end.path()}

    def is_pinned(self: ReferenceLedger, cls: int, block: Block) -> bool:
        """Tell whether a sequence or a pending copy needs the side page of a block."""
        held = any((cls, block) in seq.pins for seq in self.sequences.values())
        return held or any(copy.block is block and cls in copy.classes for copy in self.copies)

    def _dequeue(self: ReferenceLedger, cls: int, block: Block) -> None:
        """Take a side page that was pinned out of the queue."""
        if block in self.queues[cls]:
            self.queues[cls].remove(block)

    def _enqueue(self: ReferenceLedger, cls: int, block: Block) -> None:
        """Queue a side page that entered the tree or lost a pin, if nothing pins it."""
        if block.pages[cls] and not self.is_pinned(cls, block):
            block.side_stamps[cls] = self._stamp()
            self.queues[cls].append(block)

    def _touch_unprotected(
        self: ReferenceLedger, before: set[int], end: Block | None, entered: int = 0
    ) -> None:
        """End one use of the path down to `end`: one tick for all it leaves unprotected.

        The next tick is later by the full blocks that the use put into the tree.
        """
        self.tick += self.growth
        self.growth = max(1, entered) if self.policy.grows_with_blocks else 1
        after = self.protected()
        for block in end.path() if end is not None else []:
            if id(block) in before and id(block) not in after:
                block.last_use, block.stamp = self.tick, self._stamp()
                block.rank = self.policy.rank(block)
                block.used_at = self.now

    # Eviction

    def evictable(self: ReferenceLedger) -> list[Block]:
        """Return the blocks that could be evicted now, leaves first or not."""
        protected = self.protected()
        return [
            block
            for block in self.tree.blocks
            if id(block) not in protected and not self._fence_is_open(block.stamp)
        ]

    def evictable_side(self: ReferenceLedger, cls: int) -> list[Block]:
        """Return the blocks whose side page could be evicted now, those left behind first."""
        ready = [b for b in self.queues[cls] if not self._fence_is_open(b.side_stamps[cls])]
        return sorted(ready, key=lambda block: cls in block.wanted)

    def evictable_in(self: ReferenceLedger, cls: int) -> list[Block]:
        """Return the blocks whose page in this class could be evicted now."""
        if cls in self.side_classes:
            return self.evictable_side(cls)
        return self.evictable() if cls in self.full_classes else []

    def num_evictable_for(self: ReferenceLedger, scope: int, cls: int) -> int:
        """Count the pages of a class that an allocation for a scope could evict now."""
        guarded = self.guarded_against(scope) if cls in self.full_classes else 0
        return len(self.evictable_in(cls)) - guarded

    def has_room(self: ReferenceLedger, scope: int, needs: list[int]) -> bool:
        """Tell whether a need per class of a scope can be met now."""
        return all(
            need <= self.free[cls] + self.num_evictable_for(scope, cls)
            for cls, need in enumerate(needs)
        )

    def _make_room(self: ReferenceLedger, scope: int, needs: list[int]) -> None:
        """Evict until the pages of each class are free; the caller has checked that it fits."""
        while any(self.free[cls] < needs[cls] for cls in self.full_classes):
            self.evict_one(scope)
        for cls in self.side_classes:
            while self.free[cls] < needs[cls]:
                ready = self.evictable_side(cls)
                unclaimed = [b for b in ready if (cls, id(b)) not in self.claimed_side]
                victim = (unclaimed or ready)[0]
                self.offer_all(self.leaving(victim, [cls]))
                self._forget_side(cls, victim)
                self.free[cls] += 1
                self.counters["evicted_side_pages"] += 1

    def evict_one(self: ReferenceLedger, scope: int) -> None:
        """Evict the block that goes first, of which there is one."""
        victim = self._victim(scope)
        self.offer_all(self.leaving(victim, [*self.full_classes, *self.side_classes]))
        self.policy.evicted(victim)
        self._remove_leaf(victim)
        self.counters["evicted_blocks"] += 1

    def _victim(self: ReferenceLedger, scope: int) -> Block:
        """Return the leaf block that an allocation for a scope evicts next."""
        leaves = [b for b in self.evictable() if not b.children and self.may_evict(scope, b)]
        return min(
            leaves,
            key=lambda block: (
                id(block) in self.claimed,
                not self.is_above_ceiling(block.scope),
                block.priority,
                *self.policy.order(block),
            ),
        )

    def is_awaited(self: ReferenceLedger, page: int) -> bool:
        """Tell whether a copy that `moves` has not handed out will write the page."""
        return any(destination == page for _, (_, _, destination, _) in self.queued_moves)

    def _remove_leaf(self: ReferenceLedger, leaf: Block) -> None:
        self.tree.remove(leaf)
        for cls, page in enumerate(leaf.pages):
            if page and cls in self.side_classes:
                self._give_up_page(cls, leaf.side_stamps[cls])
                self._forget_side(cls, leaf)
            elif page:
                self.free[cls] += 1

    def expire(self: ReferenceLedger, now: float) -> None:
        """Give up blocks that nothing has used for the time to live."""
        ttl = self.config.ttl_ms / 1000.0
        while ttl:
            old = [b for b in self.evictable() if not b.children and b.used_at + ttl <= now]
            if not old:
                return
            self._remove_leaf(min(old, key=lambda block: block.last_use))
            self.counters["expired_blocks"] += 1

    # Taking

    def block_needs(self: ReferenceLedger, count: int, publishes: bool) -> list[int]:
        """Return the pages per class that `count` new blocks of a sequence take."""
        needs = [0] * len(self.lifetimes)
        for cls in [*self.full_classes, *self.windowed_classes]:
            needs[cls] = count if publishes or cls != self.record_class else 0
        return needs

    def _take(
        self: ReferenceLedger,
        scope: int,
        count: int,
        publishes: bool,
        left_out: Collection[tuple[int, int]] = (),
    ) -> list[list[int]]:
        """Take the pages of `count` blocks, evicting as needed, but for some (class, block)."""
        needs = self.block_needs(count, publishes)
        has_page = [need > 0 for need in needs]
        for cls, _ in left_out:
            needs[cls] -= 1
        self._make_room(scope, needs)
        return [
            [
                self._take_page(cls) if has_page[cls] and (cls, block) not in left_out else 0
                for cls in range(len(needs))
            ]
            for block in range(count)
        ]

    def _take_page(self: ReferenceLedger, cls: int) -> int:
        assert self.free[cls] > 0
        self.free[cls] -= 1
        self.next_page += 1
        return self.next_page

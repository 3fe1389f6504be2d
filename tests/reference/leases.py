"""Leases of the reference ledger: see docs/eviction.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reference.state import cdiv, require
from reference.tree import Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger

NOTHING, REFUSED = (0, 0), (-1, 0)


class Lease(NamedTuple):
    """A prefix that ends with a block, and when the lease on it ends."""

    block: Block
    until: float


class Leasing:
    """What `ReferenceLedger` does with leases."""

    def pin(
        self: ReferenceLedger, tokens: tuple[int, ...], scope: int, until: float, draft_from: int
    ) -> tuple[int, int]:
        """Return the lease and the tokens it protects."""
        usable = self.match(tokens, scope, draft_from)
        require(until > self.now, "until")
        path = self._match(tokens, scope, draft_from).path
        path = path[: cdiv(usable, self.config.tokens_per_block)]
        if not path:
            return NOTHING
        leased = self.leased()
        more = sum(id(block) not in leased for block in path)
        wanted = sum(block in path for block in self.evictable())
        needs = [0] * len(self.lifetimes)
        for cls in self.full_classes:
            needs[cls] = wanted + sum(self.promise(seq, cls) for seq in self.sequences.values())
        too_many = len(leased) + more > self.config.max_leased_blocks
        if too_many or not self.has_room(scope, needs):
            self.counters["refused_leases"] += 1
            return REFUSED
        self.newest_lease += 1
        self.leases[self.newest_lease] = Lease(path[-1], until)
        return self.newest_lease, usable

    def leased(self: ReferenceLedger) -> set[int]:
        """Return the `id()` of every block that a lease protects."""
        return {id(block) for lease in self.leases.values() for block in lease.block.path()}

    def unpin(self: ReferenceLedger, lease: int) -> bool:
        """Tell whether the lease still held."""
        require(1 <= lease <= self.newest_lease, "lease")
        held = lease in self.leases
        if held:
            self._end_lease(lease)
        return held

    def _end_lease(self: ReferenceLedger, lease: int) -> None:
        before = self.protected()
        block = self.leases.pop(lease).block
        self._touch_unprotected(before, block)

    def end_leases(self: ReferenceLedger, now: float) -> None:
        """End the leases whose time has come, the earliest first."""
        ended = [(lease.until, name) for name, lease in self.leases.items() if lease.until <= now]
        for _, name in sorted(ended):
            self._end_lease(name)

"""Quotas of the reference ledger: see docs/eviction.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from reference.state import MAX_TOKEN, cdiv, require
from reference.tree import Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Quota(NamedTuple):
    """What a scope keeps while others need room, in blocks."""

    floor: int
    ceiling: int | None


class Quotas:
    """What `ReferenceLedger` does with quotas."""

    def set_quota(self: ReferenceLedger, scope: int, floor: int, ceiling: int | None) -> None:
        require(scope >= 0 and self.scopes.is_held(scope), "scope")
        require(self.config.reuse, "nothing is cached")
        require(0 <= floor < MAX_TOKEN, "floor_blocks")
        require(ceiling is None or floor <= ceiling < MAX_TOKEN, "ceiling_blocks")
        others = {name: quota.floor for name, quota in self.quota_of.items() if name != scope}
        for cls in self.full_classes:
            require(floor + sum(others.values()) <= self.usable[cls], "floors exceed the pages")
            for seq in self.sequences.values():
                if seq.scope != scope:
                    left = self.usable[cls] - floor
                    left -= sum(kept for name, kept in others.items() if name != seq.scope)
                    written = max(len(seq.tokens), seq.max_total - 1 + self.config.reserve_tokens)
                    worst = cdiv(written + self.config.extra_tokens, self.config.tokens_per_block)
                    needs = self.block_needs(worst, self.publishes(seq))
                    require(floor == 0 or needs[cls] <= left, "an open sequence needs more")
        self.quota_of[scope] = Quota(floor, ceiling)
        if floor == 0 and ceiling is None:
            del self.quota_of[scope]

    def quotas(self: ReferenceLedger) -> list[dict[str, Any]]:
        """Return the quotas by scope, with what they count."""
        return [
            {
                "scope": scope,
                "floor_blocks": quota.floor,
                "ceiling_blocks": quota.ceiling,
                "cached_blocks": len(self._cached_of(scope)),
                "evictable_blocks": len(self._evictable_of(scope)),
                "guarded_blocks": self._num_guarded(scope),
            }
            for scope, quota in sorted(self.quota_of.items())
        ]

    def _cached_of(self: ReferenceLedger, scope: int) -> list[Block]:
        return [block for block in self.tree.blocks if block.scope == scope]

    def _evictable_of(self: ReferenceLedger, scope: int) -> list[Block]:
        return [block for block in self.evictable() if block.scope == scope]

    def _num_guarded(self: ReferenceLedger, scope: int) -> int:
        """Count the evictable blocks of a scope that no other may evict, one after the other."""
        quota, cached = self.quota_of.get(scope), len(self._cached_of(scope))
        left = len(self._evictable_of(scope))
        while quota is not None and left > 0 and cached > quota.floor:
            left, cached = left - 1, cached - 1
        return left if quota is not None else 0

    def guarded_against(self: ReferenceLedger, scope: int) -> int:
        """Count the evictable blocks that an allocation for a scope may not evict."""
        return sum(self._num_guarded(other) for other in self.quota_of if other != scope)

    def floors_against(self: ReferenceLedger, scope: int) -> int:
        """Add up the floors of all scopes but one."""
        return sum(quota.floor for other, quota in self.quota_of.items() if other != scope)

    def may_evict(self: ReferenceLedger, scope: int, block: Block) -> bool:
        """Tell whether an allocation for a scope may evict a block now."""
        quota = self.quota_of.get(block.scope)
        if quota is None or block.scope == scope:
            return True
        return len(self._cached_of(block.scope)) > quota.floor

    def is_above_ceiling(self: ReferenceLedger, scope: int) -> bool:
        quota = self.quota_of.get(scope)
        if quota is None or quota.ceiling is None:
            return False
        return len(self._cached_of(scope)) > quota.ceiling

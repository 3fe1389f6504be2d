"""Retention hints of the reference ledger: see docs/eviction.md."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from reference.state import Sequence, require
from reference.tree import DEFAULT_PRIORITY, Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger

HintItem = tuple[int, int, int, int, int]
"""(handle, start, end, priority, duration in milliseconds)."""


class Hint(NamedTuple):
    """A hint for the blocks whose first token is in `start .. end`."""

    start: int
    end: float
    priority: int
    until: float


class Retaining:
    """What `ReferenceLedger` does with hints."""

    def retain(self: ReferenceLedger, items: list[HintItem]) -> None:
        """Apply hints in order."""
        by_handle = {seq.handle: seq for seq in self.sequences.values()}
        longest = self.config.max_seq_len
        for handle, start, end, priority, duration_ms in items:
            require(handle in by_handle, "stale handle")
            require(not by_handle[handle].is_suspended, "suspended")
            require(0 <= start <= longest, "start")
            require(end == -1 or start <= end <= longest, "end")
            require(0 <= priority <= 100, "priority")
            require(-1 <= duration_ms <= 2**52, "duration_ms")
        for handle, start, end, priority, duration_ms in items:
            until = math.inf if duration_ms == -1 else self.now + duration_ms / 1000.0
            hint = Hint(start, math.inf if end == -1 else end, priority, until)
            seq = by_handle[handle]
            seq.hints.append(hint)
            for ordinal, block in enumerate(seq.path):
                if self._holds(hint, ordinal):
                    block.priority, block.until = priority, until
        self._end_hints()

    def _holds(self: ReferenceLedger, hint: Hint, ordinal: int) -> bool:
        return hint.start <= ordinal * self.config.tokens_per_block < hint.end

    def hint_block(self: ReferenceLedger, seq: Sequence, block: Block) -> None:
        """Give a block that enters the tree what the newest hint of its sequence says."""
        for hint in seq.hints:
            if self._holds(hint, len(seq.path)):
                block.priority, block.until = hint.priority, hint.until
        if block.until <= self.now:
            block.priority, block.until = DEFAULT_PRIORITY, math.inf

    def _end_hints(self: ReferenceLedger) -> None:
        """Give the default back to blocks whose time has come."""
        for block in self.tree.blocks:
            if block.until <= self.now:
                block.priority, block.until = DEFAULT_PRIORITY, math.inf

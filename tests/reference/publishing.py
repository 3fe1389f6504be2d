"""`release` and publishing of the reference ledger: see docs/ledger.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.state import Sequence
from reference.tree import Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Publishing:
    """What `ReferenceLedger` does to put blocks into the tree, and to end a sequence."""

    def release(self: ReferenceLedger, items: list[tuple[int, int]]) -> None:
        """Items are (handle, publish)."""
        sequences = self._look_up([handle for handle, _ in items])
        for seq, (_, publish) in zip(sequences, items, strict=True):
            before = self.protected()
            end = seq.node
            tail = self._publish_tail(seq) if publish and self.config.partial_reuse else None
            if tail is not None:
                before.add(id(tail))
                end = tail
            for pages in seq.private:
                self._give_up(pages, self._stamp())
            del self.sequences[seq.handle & 0xFFFFFFFF]
            self._touch_unprotected(before, end)
            self.counters["released"] += 1

    def _publishes(self: ReferenceLedger, seq: Sequence) -> bool:
        return self.config.reuse and seq.scope >= 0

    def _next_block(
        self: ReferenceLedger, seq: Sequence, end: int, covered: int, is_partial: bool
    ) -> Block:
        """Build the block after those published; its text ends at position `end`."""
        tpb, start = self.config.tokens_per_block, len(seq.path) * self.config.tokens_per_block
        return Block(
            scope=seq.scope,
            parent=seq.node,
            tokens=tuple(seq.tokens[start : min(start + tpb, end)]),
            following=tuple(seq.tokens[start + tpb : end]),
            covered=covered,
            draft_valid=not self.config.has_draft or 0 <= seq.draft_from <= start,
            pages=seq.private[0],
            is_partial=is_partial,
        )

    def _publish_full_blocks(self: ReferenceLedger, seq: Sequence) -> None:
        tpb, lookahead = self.config.tokens_per_block, self.config.lookahead
        while self._publishes(seq):
            end = (len(seq.path) + 1) * tpb
            if end > seq.history or end + lookahead > len(seq.tokens):
                return
            new = self._next_block(seq, end + lookahead, tpb, is_partial=False)
            pages = seq.private.pop(0)
            equal = self.tree.find_equal(new)
            if equal is not None:
                self._give_up(pages, self._stamp())
                seq.node = equal
                self.counters["rebased_blocks"] += 1
            else:
                self._enter(new)
                seq.node = new

    def _publish_tail(self: ReferenceLedger, seq: Sequence) -> Block | None:
        lookahead, start = self.config.lookahead, len(seq.path) * self.config.tokens_per_block
        covered = min(seq.history, len(seq.tokens) - lookahead) - start
        if not self._publishes(seq) or covered <= 0:
            return None
        tail = self._next_block(seq, start + covered + lookahead, covered, is_partial=True)
        if self.tree.covers(tail):
            return None
        seq.private.pop(0)
        self._enter(tail)
        return tail

    def _enter(self: ReferenceLedger, new: Block) -> None:
        protected = self.protected()
        for old in self.tree.replaced_by(new, protected):
            self.tree.remove(old)
            self._give_up_cached(old, protected)
        self.tree.insert(new)
        self.counters["published_blocks"] += 1

"""`release` and publishing of the reference ledger: see docs/ledger.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.state import Request, Sequence, require
from reference.tree import Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Publishing:
    """What `ReferenceLedger` does to put blocks into the tree, and to end a sequence."""

    def release(self: ReferenceLedger, items: list[tuple[int, int]]) -> None:
        """Items are (handle, publish)."""
        require(all(publish in {0, 1} for _, publish in items), "publish")
        sequences = self._look_up_any([handle for handle, _ in items])
        for seq, (_, publish) in zip(sequences, items, strict=True):
            self._leave_everything(seq, bool(publish) and not seq.is_suspended)
            self.counters["released"] += 1

    def _leave_everything(self: ReferenceLedger, seq: Sequence, publish: bool) -> None:
        """Take a sequence out of the ledger, after publishing its tail if asked."""
        before = self.protected()
        tail = self._next_tail(seq) if publish and self.config.partial_reuse else None
        cover = self.tree.find_cover(tail) if tail is not None else None
        end = seq.node
        if tail is not None and cover is None:
            self._publish_tail(seq, tail)
            before.add(id(tail))
            end = tail
        for cls in self.state_classes:
            if cls in seq.own and seq.load is None:
                self._leave_state(seq, cls, cover or end, tail, publish)
        for pages in self.leave_load(seq):
            self._leave(seq, pages)
        for cls in self.cross_classes:
            for _ in seq.own.get(cls, []):
                self._give_up_page(cls, self._stamp())
        del self.sequences[seq.handle & 0xFFFFFFFF]
        self.policy.served(seq.path)
        self._touch_unprotected(before, end, seq.entered)
        for cls in self.windowed_classes:
            for block in end.path() if end is not None else []:
                if (cls, block) in seq.pins:
                    block.wanted.add(cls)
                    self._enqueue(cls, block)

    def _leave_state(
        self: ReferenceLedger,
        seq: Sequence,
        cls: int,
        block: Block | None,
        tail: Block | None,
        publish: bool,
    ) -> None:
        """Make the state a snapshot of `block` if what is published ends where it does."""
        [page] = seq.own[cls]
        tpb = self.config.tokens_per_block
        covered = tpb if tail is None else tail.covered
        ends_here = seq.history == len(seq.path) * tpb + (0 if tail is None else covered)
        last = len(seq.path) - (tail is None)
        fits = publish and seq.is_settled and ends_here
        if (
            block is None
            or not fits
            or not self._has_draft_of(seq, block, last)
            or not self._may_have_snapshot(cls, block, covered)
        ):
            self._give_up_page(cls, self._stamp())
            return
        self._set_snapshot(cls, block, page, covered)
        block.wanted.add(cls)
        self._enqueue(cls, block)

    def _has_draft_of(self: ReferenceLedger, seq: Sequence, block: Block, ordinal: int) -> bool:
        """Tell whether a sequence has the draft KV that a block equal to its own promises."""
        return self._is_draft_valid(seq, ordinal) or not block.draft_valid

    def _is_draft_valid(self: ReferenceLedger, seq: Sequence, ordinal: int) -> bool:
        start = ordinal * self.config.tokens_per_block
        return not self.config.has_draft or 0 <= seq.draft_from <= start

    def _may_have_snapshot(self: ReferenceLedger, cls: int, block: Block, tokens: int) -> bool:
        """Tell whether a snapshot for `tokens` tokens of the block would be new and could stay."""
        return block.snapshots.get(cls, 0) < tokens and not self.is_pinned(cls, block)

    def _set_snapshot(
        self: ReferenceLedger, cls: int, block: Block, page: int, tokens: int
    ) -> None:
        """Put a snapshot into the tree; the one that it replaces is given up."""
        if block.pages[cls]:
            self._give_up_side(cls, block)
        block.pages[cls], block.snapshots[cls] = page, tokens
        self.counters["snapshots"] += 1

    def publishes(self: ReferenceLedger, seq: Sequence | Request) -> bool:
        """Tell whether what is computed for a sequence may enter the tree."""
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
            draft_valid=self._is_draft_valid(seq, len(seq.path)),
            pages=list(seq.private[0]),
            is_partial=is_partial,
        )

    def _publish_full_blocks(self: ReferenceLedger, seq: Sequence) -> None:
        tpb, lookahead = self.config.tokens_per_block, self.config.lookahead
        while self.publishes(seq):
            end = (len(seq.path) + 1) * tpb
            if end > seq.history or end + lookahead > len(seq.tokens):
                return
            new = self._next_block(seq, end + lookahead, tpb, is_partial=False)
            pages = seq.private[0]
            equal = self.tree.find_equal(new, self.windowed_classes)
            seq.private.pop(0)
            if equal is not None:
                self._rebase(seq, pages, equal)
            else:
                self.policy.place(new)
                self.hint_block(seq, new)
                seq.entered += 1
                self._enter(new)
                self._pin_pages(seq, new)
                seq.node = new

    def _pin_pages(self: ReferenceLedger, seq: Sequence, block: Block) -> None:
        for cls in self.windowed_classes:
            if block.pages[cls]:
                seq.pins.append((cls, block))
                self._dequeue(cls, block)

    def _rebase(self: ReferenceLedger, seq: Sequence, pages: list[int], equal: Block) -> None:
        """Continue on an equal block of the tree; see "Publishing"."""
        for cls in self.full_classes:
            self._give_up_page(cls, self._stamp())
        ordinal = len(seq.path)
        for cls in self.windowed_classes:
            theirs, ours = equal.pages[cls], pages[cls]
            if theirs and ours:
                self._give_up_page(cls, self._stamp())
            elif ours:
                equal.pages[cls] = ours
            if ours or (theirs and self._is_kept(cls, ordinal, seq.history)):
                seq.pins.append((cls, equal))
                self._dequeue(cls, equal)
                equal.wanted.add(cls)
        seq.node = equal
        self.counters["rebased_blocks"] += 1

    def _next_tail(self: ReferenceLedger, seq: Sequence) -> Block | None:
        """Build the partial block at the sequence's end, if it may be published."""
        lookahead, start = self.config.lookahead, len(seq.path) * self.config.tokens_per_block
        covered = min(seq.history, len(seq.tokens) - lookahead) - start
        if not self.publishes(seq) or covered <= 0:
            return None
        return self._next_block(seq, start + covered + lookahead, covered, is_partial=True)

    def _publish_tail(self: ReferenceLedger, seq: Sequence, tail: Block) -> None:
        seq.private.pop(0)
        tail.uses = self.policy.fresh_uses
        self.hint_block(seq, tail)
        self._enter(tail)
        self._pin_pages(seq, tail)

    def _enter(self: ReferenceLedger, new: Block) -> None:
        protected = self.protected()
        for old in self.tree.replaced_by(new, protected):
            self.tree.remove(old)
            for cls in self.state_classes:
                self._pass_snapshot_on(cls, old, new)
            self._give_up_cached(old, protected)
        self.tree.insert(new)
        self.counters["published_blocks"] += 1

    def _pass_snapshot_on(self: ReferenceLedger, cls: int, old: Block, new: Block) -> None:
        """Keep the snapshot of a partial block that is dropped, if it is the best of them."""
        queue = self.queues[cls]
        if not old.pages[cls] or old.draft_valid != new.draft_valid:
            return
        if new.pages[cls]:
            theirs = (new.snapshots[cls], queue.index(new))
            if theirs > (old.snapshots[cls], queue.index(old)):
                return
            self._give_up_side(cls, new)
        new.pages[cls], new.snapshots[cls] = old.pages[cls], old.snapshots[cls]
        new.side_stamps[cls] = old.side_stamps[cls]
        new.wanted |= old.wanted & {cls}
        queue[queue.index(old)] = new
        old.pages[cls] = 0

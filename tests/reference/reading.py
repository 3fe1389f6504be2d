"""The calls of the reference ledger that read, and its reset: see docs/ledger.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reference.policies import POLICIES
from reference.state import COUNTERS, Sequence, SequencesOpen, require
from reference.tree import Block, Match

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Reading:
    """What `ReferenceLedger` answers."""

    def _match(
        self: ReferenceLedger, tokens: tuple[int, ...], scope: int, draft_from: int
    ) -> Match:
        if scope == -1 or not self.config.reuse:
            return Match(0, ())
        return self.tree.match(tokens, scope, draft_from)

    def match(self: ReferenceLedger, tokens: tuple[int, ...], scope: int, draft_from: int) -> int:
        """Return the usable length for exactly these tokens."""
        self.check_prompt(tokens)
        self.check_scope(scope)
        require(draft_from >= -1, "draft_from")
        require(self.config.has_draft or draft_from == -1, "no draft here")
        match = self._match(tokens, scope, draft_from)
        return self._accepted(match.path, match.usable)

    def moves(self: ReferenceLedger) -> list[tuple[int, int, int, int]]:
        """Return the queued copies as (class, source, destination, tokens); consumed."""
        queued, self.queued_moves = self.queued_moves, []
        return [move for _, move in queued]

    def table(self: ReferenceLedger, handle: int) -> list[list[int]]:
        """Per class, the sequence's pages in order."""
        [seq] = self._look_up([handle])
        return [self.columns(seq, cls) for cls in range(self.num_classes)]

    def columns(self: ReferenceLedger, seq: Sequence, cls: int) -> list[int]:
        """Return a sequence's pages in one class, 0 where it has none."""
        if cls in seq.own:
            return seq.own[cls]
        is_side = cls in self.side_classes
        shared = [b.pages[cls] if not is_side or (cls, b) in seq.pins else 0 for b in seq.path]
        return shared + [pages[cls] for pages in seq.private]

    def left_pages(self: ReferenceLedger, cls: int) -> list[int]:
        """Return the pages of a class that loads fill for sequences that are gone."""
        loads = self.left_loads()
        pages = [block[cls] for load in loads for block in load.blocks if block[cls]]
        if cls in self.state_classes:
            pages += [load.own[cls][0] for load in loads]
        return pages

    def private_pages(self: ReferenceLedger, cls: int) -> list[int]:
        """Return the pages of a class that open sequences own, and those that loads still fill."""
        pages = self.left_pages(cls)
        for seq in self.sequences.values():
            pages += seq.own.get(cls, [block[cls] for block in seq.private])
        return [page for page in pages if page]

    def cached_pages(self: ReferenceLedger, cls: int) -> list[int]:
        """Return the pages of a class that blocks of the tree own."""
        return [block.pages[cls] for block in self.tree.blocks if block.pages[cls]]

    def sequence(self: ReferenceLedger, handle: int) -> dict[str, Any]:
        """Return the lengths of one sequence."""
        seq = self._look_up_any([handle])[0]
        return {
            "suspended": seq.is_suspended,
            "known": len(seq.tokens),
            "history": seq.history,
            "reach": seq.reach,
            "committed": len(seq.path) * self.config.tokens_per_block,
            "capacity": seq.num_blocks * self.config.tokens_per_block,
            "promise": self._promise_of_blocks(seq),
            "valid": list(seq.valid),
            "blocks": seq.num_blocks,
            "outstanding": list(seq.outstanding),
            "scope": seq.scope,
            "draft_from": seq.draft_from,
            "max_total": seq.max_total,
        }

    def stats(self: ReferenceLedger) -> dict[str, Any]:
        """Count by state per class; all counters but those of the tree's inner form."""
        classes = []
        for cls, total in enumerate(self.num_pages):
            counts = {
                "total": total,
                "reserved": 1,
                "free": self.free[cls],
                "fenced": sum(at == cls for at, _ in self.fenced),
                "live": len(set(self.private_pages(cls))),
                "cached": len(self.cached_pages(cls)),
                "protected": self._num_protected(cls),
                "evictable": len(self.evictable_in(cls)),
                "promised": sum(self.promise(seq, cls) for seq in self.sequences.values()),
            }
            classes.append(counts)
        return {
            "classes": classes,
            "open_sequences": len(self.sequences),
            "suspended_sequences": sum(seq.is_suspended for seq in self.sequences.values()),
            "promised": sum(map(self._promise_of_blocks, self.sequences.values())),
            "open_steps": len(self.open_steps),
            "newest_step": self.newest,
            "cached_blocks": len(self.tree.blocks),
            "leases": len(self.leases),
            "pinned_blocks": len(self.leased()),
            "guarded_blocks": sum(map(self._num_guarded, self.quota_of)),
            **{name: self.counters[name] for name in COUNTERS},
        }

    def _promise_of_blocks(self: ReferenceLedger, seq: Sequence) -> int:
        return self.promise(seq, self.full_classes[0]) if self.full_classes else 0

    def reset_reuse_state(self: ReferenceLedger, detach_live: bool = False) -> None:
        """Give up every cached block; with `detach_live`, those of sequences become theirs."""
        if self.sequences and not detach_live:
            raise SequencesOpen(len(self.sequences))
        live = [
            seq for seq in self.sequences.values() if self.publishes(seq) and not seq.is_suspended
        ]
        owned = {seq.handle: self._unpublished_pages(seq) for seq in live}
        kept = {page for blocks in owned.values() for pages in blocks for page in pages}
        for block in self.tree.blocks:
            for cls in [*self.full_classes, *self.windowed_classes]:
                if block.pages[cls] in kept:
                    block.pages[cls] = 0
        self.give_up_blocks(self.tree.blocks)
        for seq in live:
            seq.private, seq.node, seq.pins = owned[seq.handle], None, []
            seq.scope, seq.entered, seq.hints = -1, 0, []
        self.drop_entries()
        self.policy = POLICIES[self.config.policy](self.most_blocks())

    def _unpublished_pages(self: ReferenceLedger, seq: Sequence) -> list[list[int]]:
        """Return the pages of a sequence's blocks as if it had published none; records go."""
        for pages in seq.private:
            if self.record_class is not None:
                self._give_up_page(self.record_class, 0)
                pages[self.record_class] = 0
        in_rows = [*self.full_classes, *self.windowed_classes]
        shared = [[0] * len(self.lifetimes) for _ in seq.path]
        for cls in in_rows:
            if cls != self.record_class:
                for pages, page in zip(shared, self.columns(seq, cls), strict=False):
                    pages[cls] = page
        return shared + seq.private

    def give_up_blocks(self: ReferenceLedger, blocks: list[Block]) -> None:
        """Give up all blocks of some scopes, also while copies read them."""
        protected = self.protected()
        gone = {id(block) for block in blocks}
        for block in blocks:
            self._give_up_cached(block, protected)
        self.tree.blocks = [block for block in self.tree.blocks if id(block) not in gone]
        self.copies = [copy for copy in self.copies if id(copy.block) not in gone]
        self.leases = {
            name: lease for name, lease in self.leases.items() if id(lease.block) not in gone
        }

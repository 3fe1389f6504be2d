"""`fork` of the reference ledger: see docs/ledger.md and docs/groups.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.state import REFUSED_NOW, REFUSED_ROWS, Sequence, cdiv, require

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Forks:
    """What `ReferenceLedger` does to continue a sequence in another row."""

    def fork(self: ReferenceLedger, step: int, parents: list[int]) -> tuple[int, list[int]]:
        """Return the number of forks and, per item, the new handle or the reason of a refusal."""
        require(step in self.open_steps, "step is not open")
        by_handle = {seq.handle: seq for seq in self.sequences.values()}
        for handle in parents:
            require(handle in by_handle, "stale handle")
            seq = by_handle[handle]
            require(not seq.is_suspended, "suspended")
            require(seq.load is None, "loading")
            require(not seq.outstanding, "the parent runs a step")
            waiting = {destination for _, (_, _, destination, _) in self.queued_moves}
            sources = {page for _, page, _ in self._to_copy(seq)}
            require(not sources & waiting, "copies wait")
        out = [self._fork_one(step, by_handle[handle]) for handle in parents]
        self.counters["refused_forks"] += sum(handle < 0 for handle in out)
        return sum(handle >= 0 for handle in out), out

    def _num_shared_private(self: ReferenceLedger, seq: Sequence) -> int:
        """Count the private blocks that a fork shares: those below the history, unpublished."""
        return 0 if self.publishes(seq) else seq.history // self.config.tokens_per_block

    def _to_copy(self: ReferenceLedger, seq: Sequence) -> list[tuple[int, int, int]]:
        """Return (class, page, tokens) of all that a fork copies, block after block."""
        tpb, copies = self.config.tokens_per_block, []
        first = len(seq.path) + self._num_shared_private(seq)
        for ordinal in range(first, cdiv(seq.reach, tpb)):
            pages = seq.private[ordinal - len(seq.path)]
            tokens = min(tpb, seq.reach - ordinal * tpb)
            copies += [(cls, page, tokens) for cls, page in enumerate(pages) if page]
        for cls, pages in sorted(seq.own.items()):
            length = self.lifetimes[cls].tokens
            for ordinal, page in enumerate(pages):
                tokens = 1 if cls in self.state_classes else min(tpb, length - ordinal * tpb)
                copies.append((cls, page, tokens))
        return [copy for copy in copies if copy[0] != self.record_class]

    def _fork_one(self: ReferenceLedger, step: int, parent: Sequence) -> int:
        row = self._free_row()
        if row is None:
            return REFUSED_ROWS
        num_shared = self._num_shared_private(parent)
        rest = parent.private[num_shared:]
        needs = [
            sum(block[cls] != 0 for block in rest) + len(parent.own.get(cls, []))
            for cls in range(len(self.lifetimes))
        ]
        wanted = [
            need + self.promise(parent, cls) + sum(self.promise(s, cls) for s in self._open())
            for cls, need in enumerate(needs)
        ]
        if not self.has_room(parent.scope, wanted):
            return REFUSED_NOW
        self._make_room(parent.scope, needs)
        self.generations[row] += 1
        child = Sequence(
            handle=self.generations[row] << 32 | row,
            scope=parent.scope,
            draft_from=parent.draft_from,
            max_total=parent.max_total,
            tokens=list(parent.tokens),
            valid=list(parent.valid),
            node=parent.node,
            private=[list(block) for block in parent.private[:num_shared]],
            prompt_blocks=parent.prompt_blocks,
            pins=list(parent.pins),
            hints=list(parent.hints),
        )
        mine: dict[int, int] = {}  # the new page of each of the parent's
        for cls in range(len(self.lifetimes)):
            theirs = [block[cls] for block in rest if block[cls]] + parent.own.get(cls, [])
            mine |= {page: self._take_page(cls) for page in theirs}
        child.private += [[mine.get(page, 0) for page in block] for block in rest]
        child.own = {cls: [mine[page] for page in pages] for cls, pages in parent.own.items()}
        self.sequences[row] = child
        self._queue_fork_copies(step, parent, mine)
        self.counters["forked"] += 1
        return child.handle

    def _queue_fork_copies(
        self: ReferenceLedger, step: int, parent: Sequence, mine: dict[int, int]
    ) -> None:
        copies = self._to_copy(parent)
        if copies:
            self._fence_copies(step)
        self.queued_moves += [
            (step, (cls, page, mine[page], tokens)) for cls, page, tokens in copies
        ]
        first = len(parent.path) + self._num_shared_private(parent)
        blocks = cdiv(parent.reach, self.config.tokens_per_block) - first
        self.counters["copied_blocks"] += blocks

    def _open(self: ReferenceLedger) -> list[Sequence]:
        return list(self.sequences.values())

"""`grow` and `advance` of the reference ledger: see docs/ledger.md."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from reference.state import MAX_TOKEN, Copy, Sequence, cdiv, require

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Running:
    """What `ReferenceLedger` does to run a step of its sequences."""

    def grow(
        self: ReferenceLedger, step: int, items: list[tuple[int, int]], stop_at_first: bool = False
    ) -> tuple[int, list[int]]:
        """Items are (handle, width). Returns the number grown and `ok`."""
        config = self.config
        require(step in self.open_steps, "step is not open")
        sequences = self._look_up_ready([handle for handle, _ in items])
        most = config.max_seq_len + config.extra_tokens + config.reserve_tokens + 1
        for seq, (_, width) in zip(sequences, items, strict=True):
            require(width >= 1, "width")
            require(all(at < step for at, _ in seq.outstanding), "step already has a width")
            room = seq.reach + seq.pending + width + config.extra_tokens
            require(room <= most, "beyond max_seq_len")
        ok: list[int] = []
        for seq, (_, width) in zip(sequences, items, strict=True):
            tried = not (stop_at_first and 0 in ok)
            ok.append(int(tried and self._grow_one(step, seq, width)))
        return sum(ok), ok

    def _grow_one(self: ReferenceLedger, step: int, seq: Sequence, width: int) -> bool:
        room = seq.reach + seq.pending + width + self.config.extra_tokens
        need = max(cdiv(room, self.config.tokens_per_block) - seq.num_blocks, 0)
        if not self.has_room(seq.scope, self.block_needs(need, self.publishes(seq))):
            self.counters["refused_grows"] += 1
            return False
        seq.private += self._take(seq.scope, need, self.publishes(seq))
        for cls in self.state_classes:
            self._snapshot(step, seq, cls)
        seq.outstanding.append((step, width))
        self.counters["grown_blocks"] += need
        return True

    def _snapshot(self: ReferenceLedger, step: int, seq: Sequence, cls: int) -> None:
        """Copy the state into the tree before the step writes it, if that is due and possible."""
        tpb, interval, block = self.config.tokens_per_block, self.config.snapshot_interval, seq.node
        is_due = (
            block is not None
            and seq.is_settled
            and seq.history == len(seq.path) * tpb
            and interval > 0
            and seq.history % interval == 0
            and not self.is_awaited(seq.own[cls][0])
            and self._has_draft_of(seq, block, len(seq.path) - 1)
        )
        if block is None or not is_due or not self._may_have_snapshot(cls, block, tpb):
            return
        needs = [int(other == cls) for other in range(len(self.lifetimes))]
        if not self.has_room(seq.scope, needs):
            return
        self._make_room(seq.scope, needs)
        page = self._take_page(cls)
        self._set_snapshot(cls, block, page, tpb)
        block.wanted |= {cls} if block.children else set()
        self.copies.append(Copy(step, block, (cls,)))
        self._fence_copies(step)
        self.queued_moves.append((step, (cls, seq.own[cls][0], page, 1)))

    def advance(
        self: ReferenceLedger,
        step: int,
        items: list[tuple[int, tuple[int, ...], int]],
        valid: list[list[int]] | None = None,
    ) -> None:
        """Items are (handle, tokens, count): the first `count` of the tokens are appended."""
        require(1 <= step <= self.newest, "step was never begun")
        sequences = self._look_up_ready([handle for handle, _, _ in items])
        rows: list[list[int] | None] = [None] * len(items) if valid is None else [*valid]
        for seq, (_, tokens, count), ends in zip(sequences, items, rows, strict=True):
            self._check_advance(step, seq, tokens, count, ends)
        for seq, (_, tokens, count), ends in zip(sequences, items, rows, strict=True):
            self._advance_one(seq, list(tokens[:count]), ends)

    def _check_advance(
        self: ReferenceLedger,
        step: int,
        seq: Sequence,
        tokens: tuple[int, ...],
        count: int,
        ends: list[int] | None,
    ) -> None:
        require(bool(seq.outstanding) and seq.outstanding[0][0] == step, "no width for the step")
        require(0 <= count <= len(tokens), "count")
        kept = self.publishes(seq)
        in_range = all(0 <= t < MAX_TOKEN for t in tokens[:count])
        require(not kept or in_range, "token out of range")
        known, run = len(seq.tokens), seq.reach + seq.outstanding[0][1]
        if count > 0:
            require(known <= run, "the prompt has not been run to its end")
            require(known + count - 1 <= run, "more tokens than ran")
        require(known + count <= seq.max_total, "beyond max_total")
        if ends is None:
            return
        for role, end in enumerate(ends):
            if role in seq.used_roles:
                require(seq.valid[role] <= end <= min(known + count, run), "valid")
            else:
                require(end == 0, "valid of a role that is not used")

    def path_moves(
        self: ReferenceLedger, step: int, items: list[tuple[int, tuple[int, ...]]], role: int
    ) -> list[tuple[int, int, int, int, int]]:
        """Items are (handle, nodes). Return the token copies, as if each slot were looked up."""
        require(1 <= step <= self.newest, "step was never begun")
        require(role == 0 or (role == 1 and self.config.has_draft), "role")
        sequences = self._look_up([handle for handle, _ in items])
        moves = []
        for seq, (_, nodes) in zip(sequences, items, strict=True):
            require([at for at, _ in seq.outstanding][:1] == [step], "no width for the step")
            if not nodes:
                continue
            require(role in seq.used_roles, "the sequence has no draft")
            require(len(seq.outstanding) == 1, "a later step runs")
            width = seq.outstanding[0][1]
            require(nodes[0] == 0, "node 0 is kept")
            require(all(a < b for a, b in pairwise(nodes)), "not ascending")
            require(nodes[-1] < width, "more nodes than ran")
            for cls in sorted([*self.full_classes, *self.windowed_classes]):
                if cls == self.record_class:
                    continue
                slot = self._slots(seq, cls)
                for kept, node in enumerate(nodes):
                    if node != kept:
                        start = seq.valid[role]
                        moves.append((cls, *slot[start + node], *slot[start + kept]))
        return moves

    def _slots(self: ReferenceLedger, seq: Sequence, cls: int) -> list[tuple[int, int]]:
        """Return (page, offset) of each position that a sequence has room for."""
        tpb = self.config.tokens_per_block
        return [(page, offset) for page in self.columns(seq, cls) for offset in range(tpb)]

    def _advance_one(
        self: ReferenceLedger, seq: Sequence, tokens: list[int], ends: list[int] | None
    ) -> None:
        _, width = seq.outstanding.pop(0)
        history, reach = seq.history, seq.reach
        seq.tokens += tokens
        for role in seq.used_roles:
            end = min(len(seq.tokens) - (len(tokens) > 0), history + width)
            seq.valid[role] = max(seq.valid[role], end) if ends is None else ends[role]
        self._publish_full_blocks(seq)
        keep = cdiv(
            seq.reach + seq.pending + self.config.extra_tokens, self.config.tokens_per_block
        )
        while seq.private and seq.num_blocks > keep:
            self._leave(seq, seq.private.pop())
        for cls in self.windowed_classes:
            self._prune(seq, cls)
        self.counters["accepted_tokens"] += len(tokens)
        self.counters["rewound_tokens"] += max(reach + width - seq.reach, 0)

    def _prune(self: ReferenceLedger, seq: Sequence, cls: int) -> None:
        """Give up the pages of a windowed class that the history has left behind."""
        for ordinal, block in enumerate(seq.path):
            if (cls, block) in seq.pins and not self._is_kept(cls, ordinal, seq.history):
                seq.pins.remove((cls, block))
                self._enqueue(cls, block)
        for ordinal, pages in enumerate(seq.private, start=len(seq.path)):
            if pages[cls] and not self._is_kept(cls, ordinal, seq.history):
                self._leave_page(seq, cls, pages[cls])
                pages[cls] = 0

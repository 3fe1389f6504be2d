"""The calls of the reference ledger that read, and its reset: see docs/ledger.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reference.state import MAX_TOKEN, SequencesOpen, require
from reference.tree import Match

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
        require(all(0 <= t < MAX_TOKEN for t in tokens), "token out of range")
        require(scope >= -1, "scope")
        require(draft_from >= -1, "draft_from")
        require(self.config.has_draft or draft_from == -1, "no draft here")
        return self._match(tokens, scope, draft_from).usable

    def moves(self: ReferenceLedger) -> list[tuple[int, int, int, int]]:
        """Return the queued copies as (class, source, destination, tokens); consumed."""
        queued, self.queued_moves = self.queued_moves, []
        return [move for _, move in queued]

    def table(self: ReferenceLedger, handle: int) -> list[list[int]]:
        """Per class, the sequence's pages in order."""
        pages = self._look_up([handle])[0].pages()
        return [[block[cls] for block in pages] for cls in range(self.num_classes)]

    def sequence(self: ReferenceLedger, handle: int) -> dict[str, Any]:
        """Return the lengths of one sequence."""
        seq = self._look_up([handle])[0]
        return {
            "known": len(seq.tokens),
            "history": seq.history,
            "reach": seq.reach,
            "committed": len(seq.path) * self.config.tokens_per_block,
            "capacity": seq.num_blocks * self.config.tokens_per_block,
            "promise": seq.promise,
            "valid": list(seq.valid),
            "blocks": seq.num_blocks,
            "outstanding": list(seq.outstanding),
            "scope": seq.scope,
            "draft_from": seq.draft_from,
            "max_total": seq.max_total,
        }

    def stats(self: ReferenceLedger) -> dict[str, Any]:
        """Count by state per class; all counters but those of the tree's inner form."""
        live = sum(len(seq.private) for seq in self.sequences.values())
        classes = []
        for cls, total in enumerate(self.config.num_pages):
            counts = {
                "total": total,
                "reserved": 1,
                "free": self.free[cls],
                "fenced": sum(at == cls for at, _ in self.fenced),
                "live": live,
                "cached": len(self.tree.blocks),
                "evictable": len(self.evictable()),
            }
            classes.append(counts)
        names = (
            "admitted refused_now refused_never refused_rows prompt_tokens hit_tokens "
            "target_only_hits published_blocks rebased_blocks evicted_blocks copied_blocks "
            "grown_blocks refused_grows accepted_tokens rewound_tokens released"
        )
        return {
            "classes": classes,
            "open_sequences": len(self.sequences),
            "promised": sum(seq.promise for seq in self.sequences.values()),
            "open_steps": len(self.open_steps),
            "newest_step": self.newest,
            "cached_blocks": len(self.tree.blocks),
            **{name: self.counters[name] for name in names.split()},
        }

    def reset_reuse_state(self: ReferenceLedger) -> None:
        """Give up every cached block."""
        if self.sequences:
            raise SequencesOpen(len(self.sequences))
        protected = self.protected()
        for block in self.tree.blocks:
            self._give_up_cached(block, protected)
        self.tree.blocks.clear()
        self.copies.clear()

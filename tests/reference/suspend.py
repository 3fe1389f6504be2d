"""`suspend` and `resume` of the reference ledger: see docs/ledger.md and docs/groups.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.state import REFUSED_LOADING, Admission, Request, Sequence, require

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Suspending:
    """What `ReferenceLedger` does to take the pages of a sequence and to give it new ones."""

    def suspend(self: ReferenceLedger, items: list[tuple[int, int]]) -> None:
        """Items are (handle, publish)."""
        require(all(publish in {0, 1} for _, publish in items), "publish")
        sequences = self._look_up_ready([handle for handle, _ in items])
        require(not any(seq.outstanding for seq in sequences), "a step is running")
        for seq, (_, publish) in zip(sequences, items, strict=True):
            self.suspend_one(seq, bool(publish))

    def suspend_one(self: ReferenceLedger, seq: Sequence, publish: bool) -> None:
        self._leave_everything(seq, publish)
        self.sequences[seq.handle & 0xFFFFFFFF] = Sequence(
            handle=seq.handle,
            scope=seq.scope,
            draft_from=seq.draft_from,
            max_total=seq.max_total,
            tokens=seq.tokens,
            valid=[0, 0],
            node=None,
            private=[],
            prompt_blocks=0,
            hints=seq.hints,
            is_suspended=True,
        )
        self.counters["suspended"] += 1

    def resume(
        self: ReferenceLedger, step: int, items: list[tuple[int, int]]
    ) -> tuple[int, list[int], list[int]]:
        """Items are (handle, first). Returns the number resumed, `ok` and the hits."""
        require(step in self.open_steps, "step is not open")
        sequences = self._look_up_any([handle for handle, _ in items])
        for seq, (_, first) in zip(sequences, items, strict=True):
            require(seq.is_suspended, "not suspended")
            require(first >= 1, "first")
        requests = [
            Request(tuple(seq.tokens), seq.scope, first, seq.max_total, seq.draft_from)
            for seq, (_, first) in zip(sequences, items, strict=True)
        ]
        matches = self._claim(requests)
        evicted = self._num_evicted()
        ok, hits = [], []
        for seq, request, claimed in zip(sequences, requests, matches, strict=True):
            match = claimed if self._num_evicted() == evicted else self._match_item(request)
            plan = self.decide_pages(request, match)
            ok.append(int(isinstance(plan, Admission)))
            hits.append(plan.hit if isinstance(plan, Admission) else 0)
            if not isinstance(plan, Admission):
                is_loading = plan == REFUSED_LOADING
                self.counters["refused_loading" if is_loading else "refused_resumes"] += 1
                continue
            self._act(step, request, plan, seq.handle)
            resumed = self.sequences[seq.handle & 0xFFFFFFFF]
            resumed.hints = seq.hints
            if resumed.load is not None:
                resumed.load.is_resumed = True
            self.counters["resumed"] += 1
            self.counters["resumed_tokens"] += len(seq.tokens)
            self.counters["resumed_hit_tokens"] += self.on_device(plan)
        self._end_claims()
        return sum(ok), ok, hits

"""`admit` of the reference ledger: see docs/ledger.md and docs/groups.md."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING

from reference.lifetimes import most_live_blocks
from reference.shelves import Found, claims
from reference.state import (
    NOT_TRIED,
    REFUSED_LOADING,
    REFUSED_NEVER,
    REFUSED_NOW,
    REFUSED_ROWS,
    Admission,
    Copy,
    Request,
    Sequence,
    cdiv,
    require,
)
from reference.tree import Block, Match

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger

_REFUSALS = {
    REFUSED_NOW: "refused_now",
    REFUSED_NEVER: "refused_never",
    REFUSED_ROWS: "refused_rows",
    REFUSED_LOADING: "refused_loading",
}


class Admitting:
    """What `ReferenceLedger` does to take requests in."""

    def admit(
        self: ReferenceLedger, step: int, items: list[Request], stop_at_first: bool = False
    ) -> tuple[int, list[int], list[int]]:
        """Return the number admitted, the handles or reasons, and the hits."""
        self._check_admit(step, items)
        matches = self._claim(items)
        evicted = self._num_evicted()
        handles: list[int] = []
        hits: list[int] = []
        for item, claimed in zip(items, matches, strict=True):
            if stop_at_first and handles and handles[-1] < 0:
                handles.append(NOT_TRIED)
                hits.append(0)
                continue
            match = claimed if self._num_evicted() == evicted else self._match_item(item)
            handle, hit = self._admit_one(step, item, match)
            handles.append(handle)
            hits.append(hit)
        self._end_claims()
        return sum(handle >= 0 for handle in handles), handles, hits

    def _claim(self: ReferenceLedger, items: list[Request]) -> list[Match]:
        """Match all items, and claim what they would use."""
        matches = [self._match_item(item) for item in items]
        for item, match in zip(items, matches, strict=True):
            found = self.find_loads(item)
            plan = self._plan(item, match, found)
            self.claimed_copies |= claims(found)
            self.claimed |= {id(block) for block in (plan.shared if found else match.path)}
            self.claimed_side |= {(cls, id(block)) for cls, block in self._side_pages(plan)}
        return matches

    def _end_claims(self: ReferenceLedger) -> None:
        self.claimed.clear()
        self.claimed_side.clear()
        self.claimed_copies.clear()

    def _num_evicted(self: ReferenceLedger) -> int:
        return self.counters["evicted_blocks"] + self.counters["evicted_side_pages"]

    def _check_admit(self: ReferenceLedger, step: int, items: list[Request]) -> None:
        require(step in self.open_steps, "step is not open")
        self._check_requests(items)

    def _check_requests(self: ReferenceLedger, items: list[Request]) -> None:
        config = self.config
        for item in items:
            require(len(item.prompt) > 0, "empty prompt")
            kept = self.publishes(item)
            self.check_scope(item.scope)
            if kept:
                self.check_prompt(item.prompt)
            require(item.first >= 1, "first")
            require(len(item.prompt) <= item.max_total <= config.max_seq_len, "max_total")
            require(item.draft_from >= -1, "draft_from")
            require(config.has_draft or item.draft_from == -1, "no draft here")

    def _admit_one(
        self: ReferenceLedger, step: int, item: Request, match: Match
    ) -> tuple[int, int]:
        plan = self._decide(item, match)
        if not isinstance(plan, Admission):
            self.counters[_REFUSALS[plan]] += 1
            return plan, 0
        self._count_misses(item, match, plan)
        row = self._free_row()
        assert row is not None
        self.generations[row] += 1
        handle = self.generations[row] << 32 | row
        self._act(step, item, plan, handle)
        self.counters["admitted"] += 1
        self.counters["prompt_tokens"] += len(item.prompt)
        self.counters["hit_tokens"] += self.on_device(plan)
        if self.config.has_draft and item.draft_from < 0 and plan.hit > 0:
            self.counters["target_only_hits"] += 1
        return handle, plan.hit

    def _refuse(self: ReferenceLedger, item: Request) -> int | None:
        """Return the reason why nothing about the pages now can help a request, if there is one."""
        if self._free_row() is None:
            return REFUSED_ROWS
        floors = self.floors_against(item.scope)
        too_large = any(
            self._worst(cls, item) > usable - (floors if cls in self.full_classes else 0)
            for cls, usable in enumerate(self.usable)
        )
        return REFUSED_NEVER if too_large else None

    def _decide(self: ReferenceLedger, item: Request, match: Match) -> Admission | int:
        """Return what a request takes, or the reason why it cannot have it."""
        refusal = self._refuse(item)
        if refusal is not None:
            return refusal
        return self.decide_pages(item, match)

    def decide_pages(self: ReferenceLedger, item: Request, match: Match) -> Admission | int:
        """Return what a request that has a row takes, or why it cannot have it now."""
        found = self.find_loads(item)
        if self.is_coming(found):
            return REFUSED_LOADING
        if found:
            plan = self._plan(item, match, found)
            return plan if self._fits(item.scope, plan) else REFUSED_NOW
        fitting = self._fitting_plan(item, match)
        return REFUSED_NOW if fitting is None else fitting

    def _fitting_plan(self: ReferenceLedger, item: Request, match: Match) -> Admission | None:
        """Return what the item would take, if that is there, with or without a copy."""
        plan = self._plan(item, match)
        if not self._fits(item.scope, plan) and plan.source is not None:
            plan = self._plan(item, self._without_copy(match))
        return plan if self._fits(item.scope, plan) else None

    def _free_row(self: ReferenceLedger) -> int | None:
        rows = range(self.config.max_sequences)
        return next((row for row in rows if row not in self.sequences), None)

    # What an item would reuse

    def _match_item(self: ReferenceLedger, item: Request) -> Match:
        """Match a prompt less its last token, which must run, and the blocks that this uses."""
        match = self._match(item.prompt, item.scope, item.draft_from)
        limit = min(len(item.prompt) - 1, match.usable)
        return self._cut(match, self._accepted(match.path, limit))

    def _cut(self: ReferenceLedger, match: Match, hit: int) -> Match:
        return Match(hit, match.path[: cdiv(hit, self.config.tokens_per_block)])

    def _accepted(self: ReferenceLedger, path: tuple[Block, ...], limit: int) -> int:
        """Return the largest length up to the limit from which every class can continue."""
        aligned = not self.config.partial_reuse
        for length in range(limit, 0, -1):
            if aligned and length % self.config.tokens_per_block != 0:
                continue
            if all(self._accepts(cls, path, length) for cls in self.side_classes):
                return length
        return 0

    def _accepts(self: ReferenceLedger, cls: int, path: tuple[Block, ...], length: int) -> bool:
        """Tell whether the side pages of this class are there to continue after `length` tokens."""
        tpb, rule = self.config.tokens_per_block, self.lifetimes[cls]
        used = path[: cdiv(length, tpb)]
        if cls in self.state_classes:
            is_there = used[-1].snapshots.get(cls) == length - (len(used) - 1) * tpb
            return is_there and not self.is_awaited(used[-1].pages[cls])
        return all(
            block.pages[cls] != 0
            for ordinal, block in enumerate(used)
            if rule.is_live(ordinal, tpb, length, lookahead=0)
        )

    def _without_copy(self: ReferenceLedger, match: Match) -> Match:
        """Return the longest match that copies nothing."""
        tpb = self.config.tokens_per_block
        if self.state_classes:
            return Match(0, ())
        for length in range(match.usable - match.usable % tpb, 0, -tpb):
            if all(self._accepts(cls, match.path, length) for cls in self.windowed_classes):
                return self._cut(match, length)
        return Match(0, ())

    # What it would take

    def _plan(
        self: ReferenceLedger, item: Request, match: Match, loads: Sequence_[Found] = ()
    ) -> Admission:
        tpb, extra, hit = self.config.tokens_per_block, self.config.extra_tokens, match.usable
        shared = list(match.path[: hit // tpb])
        if loads:
            path = self._match(item.prompt, item.scope, item.draft_from).path
            shared = list(path[: loads[0].ordinal])
            hit = (len(shared) + self.num_blocks_in(loads)) * tpb
        copied = [] if hit % tpb == 0 else [*self.full_classes, *self.windowed_classes]
        copied = [cls for cls in copied if cls != self.record_class]
        copied += self.state_classes if hit > 0 and not loads else []
        width = min(item.first, len(item.prompt) - hit)
        need = cdiv(hit + width + extra, tpb) - len(shared)
        whole = cdiv(len(item.prompt) + extra, tpb) - len(shared)
        needs = self._with_own(self.block_needs(need, self.publishes(item)))
        for cls, _ in self.left_out(loads):
            needs[cls] -= 1
        return Admission(
            hit=hit,
            shared=shared,
            pins=[
                (cls, block)
                for cls in self.windowed_classes
                for ordinal, block in enumerate(shared)
                if self._is_kept(cls, ordinal, hit) and block.pages[cls] != 0
            ],
            source=match.path[(hit - 1) // tpb] if copied else None,
            copied=sorted(copied),
            width=width,
            need=need,
            whole=whole,
            needs=needs,
            wholes=[self._whole(cls, item, now, whole) for cls, now in enumerate(needs)],
            loads=list(loads),
        )

    def _is_kept(self: ReferenceLedger, cls: int, ordinal: int, history: int) -> bool:
        """Tell whether a windowed class keeps a block at this history."""
        rule, config = self.lifetimes[cls], self.config
        return rule.is_live(ordinal, config.tokens_per_block, history, config.lookahead)

    def _with_own(self: ReferenceLedger, needs: list[int]) -> list[int]:
        """Add the pages that a sequence has from its admission to its end."""
        for cls in self.state_classes:
            needs[cls] = 1
        for cls in self.cross_classes:
            needs[cls] = cdiv(self.lifetimes[cls].tokens, self.config.tokens_per_block)
        return needs

    def _whole(self: ReferenceLedger, cls: int, item: Request, need: int, whole: int) -> int:
        """Return the new pages of a class for the whole prompt."""
        if cls in self.windowed_classes:
            return max(need, min(whole, self._bound(cls)))
        return self._with_own(self.block_needs(whole, self.publishes(item)))[cls]

    def _worst(self: ReferenceLedger, cls: int, item: Request) -> int:
        """Return the most pages of a class that the request can ever need."""
        config = self.config
        written = max(len(item.prompt), item.max_total - 1 + config.reserve_tokens)
        worst = cdiv(written + config.extra_tokens, config.tokens_per_block)
        if cls in self.windowed_classes:
            return min(worst, self._bound(cls))
        return self._with_own(self.block_needs(worst, self.publishes(item)))[cls]

    def _bound(self: ReferenceLedger, cls: int) -> int:
        """Return the most pages of a windowed class that one sequence has, if known."""
        config = self.config
        if config.max_step_tokens == 0:
            return 2**31
        ahead = max(config.max_step_tokens, 1 + config.reserve_tokens) + config.extra_tokens
        rule = self.lifetimes[cls]
        return most_live_blocks(rule, config.tokens_per_block, config.lookahead, ahead)

    def promise(self: ReferenceLedger, seq: Sequence, cls: int) -> int:
        """Return the pages of a class that admission counted on and that are not taken."""
        if cls in self.windowed_classes:
            held = sum(page != 0 for page in self.columns(seq, cls))
            return min(seq.promise, max(self._bound(cls) - held, 0))
        return self.block_needs(seq.promise, self.publishes(seq))[cls]

    def _side_pages(self: ReferenceLedger, plan: Admission) -> set[tuple[int, Block]]:
        """Return the side pages that an item would pin, as (class, block)."""
        pages = set(plan.pins)
        if plan.source is not None:
            pages |= {(cls, plan.source) for cls in plan.copied if cls in self.side_classes}
        return pages

    def _fits(self: ReferenceLedger, scope: int, plan: Admission) -> bool:
        wanted = {id(block) for block in [*plan.shared, plan.source] if block is not None}
        side = {(cls, id(block)) for cls, block in self._side_pages(plan)}
        for cls, whole in enumerate(plan.wholes):
            available = self.free[cls]
            for block in self.evictable_in(cls):
                is_side = cls in self.side_classes
                available += (cls, id(block)) not in side if is_side else id(block) not in wanted
            if cls in self.full_classes:
                available -= self.guarded_against(scope)
            if whole + self._kept_pages(cls) > available:
                return False
        return True

    def _kept_pages(self: ReferenceLedger, cls: int) -> int:
        """Count the pages of a class that an admission leaves to what runs already."""
        grows = cls in self.full_classes or cls in self.windowed_classes
        watermark = self.config.watermark_blocks if self._is_any_running() and grows else 0
        return watermark + sum(self.promise(seq, cls) for seq in self.sequences.values())

    def _is_any_running(self: ReferenceLedger) -> bool:
        return not all(seq.is_suspended for seq in self.sequences.values())

    def _act(self: ReferenceLedger, step: int, item: Request, plan: Admission, handle: int) -> None:
        """Start the sequence of this handle in its row."""
        on_device = self.on_device(plan)
        seq = Sequence(
            handle=handle,
            scope=item.scope,
            draft_from=item.draft_from,
            max_total=item.max_total,
            tokens=list(item.prompt),
            valid=[on_device, on_device if item.draft_from >= 0 else 0],
            node=plan.shared[-1] if plan.shared else None,
            private=[],
            prompt_blocks=len(plan.shared) + plan.whole,
            outstanding=[] if plan.loads else [(step, plan.width)],
            pins=list(plan.pins),
        )
        self.sequences[handle & 0xFFFFFFFF] = seq
        self._count_use(plan)
        if plan.source is not None:
            sides = tuple(cls for cls in plan.copied if cls in self.side_classes)
            self.copies.append(Copy(step, plan.source, sides))
        for cls, block in self._side_pages(plan):
            self._dequeue(cls, block)
            block.wanted.add(cls)
        claimed = set(self.claimed_copies)
        self.claimed_copies |= claims(plan.loads)
        self._make_room(item.scope, plan.needs)
        self.claimed_copies = claimed
        left_out = {(cls, ordinal - len(plan.shared)) for cls, ordinal in self.left_out(plan.loads)}
        seq.private = self._take(item.scope, plan.need, self.publishes(seq), left_out)
        for cls in [*self.state_classes, *self.cross_classes]:
            seq.own[cls] = [self._take_page(cls) for _ in range(plan.needs[cls])]
        self.plan_load(seq, plan.loads)
        self._queue_copies(step, seq, plan)

    def on_device(self: ReferenceLedger, plan: Admission) -> int:
        """Return how much of the hit is there already."""
        return plan.hit - self.num_blocks_in(plan.loads) * self.config.tokens_per_block

    def _count_use(self: ReferenceLedger, plan: Admission) -> None:
        used = [*plan.shared, *([] if plan.source is None else [plan.source])]
        for block in {id(block): block for block in used}.values():
            self.policy.used(block)

    def _queue_copies(self: ReferenceLedger, step: int, seq: Sequence, plan: Admission) -> None:
        tokens = plan.hit % self.config.tokens_per_block
        if plan.copied:
            self._fence_copies(step)
        for cls in plan.copied:
            assert plan.source is not None
            if cls in self.state_classes:
                move = (cls, plan.source.pages[cls], seq.own[cls][0], 1)
            else:
                move = (cls, plan.source.pages[cls], seq.private[0][cls], tokens)
            self.queued_moves.append((step, move))
        self.counters["copied_blocks"] += tokens != 0

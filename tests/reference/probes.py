"""What the reference answers to a scheduler's questions: docs/scheduling.md in plain Python.

Every answer is computed from its definition, with sets of pages and lists of all paths; nothing
follows the way in which the core finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reference.state import Admission, Request, Sequence, cdiv, require
from reference.tree import Block, Match, common_prefix

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Probes:
    """What `ReferenceLedger` answers to a scheduler."""

    def fits(self: ReferenceLedger, items: list[Request]) -> tuple[int, list[int], list[int]]:
        """Return how many fit, the answers and the hits."""
        self._check_requests(items)
        decisions = [self._decide(item, self._match_item(item)) for item in items]
        answers = [0 if isinstance(plan, Admission) else plan for plan in decisions]
        hits = [plan.hit if isinstance(plan, Admission) else 0 for plan in decisions]
        return answers.count(0), answers, hits

    def fits_blocks(
        self: ReferenceLedger,
        items: list[tuple[int, int, int, int]],
        scopes: list[int] | None = None,
    ) -> tuple[int, list[int]]:
        """Items are (length, hit, first, max_total). Return how many fit and the answers."""
        config, tpb = self.config, self.config.tokens_per_block
        each = [0] * len(items) if scopes is None else scopes
        for (length, hit, first, max_total), scope in zip(items, each, strict=True):
            require(scope >= 0, "scope")
            self.check_scope(scope)
            require(1 <= length <= config.max_seq_len, "length")
            require(length <= max_total <= config.max_seq_len, "max_total")
            require(first >= 1, "first")
            require(0 <= hit < length, "hit")
            require(config.partial_reuse or hit % tpb == 0, "hit ends inside a block")
            require(config.reuse or hit == 0, "nothing is reused")
        answers = []
        for (length, hit, first, max_total), scope in zip(items, each, strict=True):
            item = Request((0,) * length, scope, first, max_total, -1)
            refusal = self._refuse(item)
            if refusal is None:
                hits = [hit] if self.side_classes else [hit, hit - hit % tpb]
                refusal = 0 if any(self._fits_hit(item, hit) for hit in hits) else -1
            answers.append(refusal)
        return answers.count(0), answers

    def _fits_hit(self: ReferenceLedger, item: Request, hit: int) -> bool:
        """Tell whether an item fits if every block of its hit is evictable."""
        tpb, extra, length = (
            self.config.tokens_per_block,
            self.config.extra_tokens,
            len(item.prompt),
        )
        shared, used = hit // tpb, cdiv(hit, tpb)
        need = cdiv(hit + min(item.first, length - hit) + extra, tpb) - shared
        whole = cdiv(length + extra, tpb) - shared
        for cls, free in enumerate(self.free):
            evictable = self.num_evictable_for(item.scope, cls)
            wanted = self._whole(cls, item, need, whole) + self._kept_pages(cls)
            if wanted > free + evictable - min(evictable, used):
                return False
        return True

    def reclaimable(self: ReferenceLedger, handles: list[int]) -> list[list[int]]:
        """Return, per sequence, the pages in each class."""
        return [self.gain([seq]) for seq in self._look_up(handles)]

    def victims(
        self: ReferenceLedger, handles: list[int], need: list[int]
    ) -> tuple[int, list[int]]:
        """Return how many are chosen, and for each handle whether it is."""
        sequences = self._look_up(handles)
        require(all(pages >= 0 for pages in need), "need")

        def suffices(members: list[Sequence]) -> bool:
            return all(gain >= n for gain, n in zip(self.gain(members), need, strict=True))

        chosen: list[Sequence] = []
        for seq in sequences:
            if not suffices(chosen):
                chosen.append(seq)
        if not suffices(chosen):
            chosen = []
        for seq in reversed(chosen):
            rest = [other for other in chosen if other is not seq]
            if suffices(rest):
                chosen = rest
        return len(chosen), [int(seq in chosen) for seq in sequences]

    def gain(self: ReferenceLedger, released: list[Sequence]) -> list[int]:
        """Count the pages per class that nobody else holds, were all copies in flight completed."""
        others = [seq for seq in self.sequences.values() if seq not in released]
        return [
            len(self._held(released, cls) - self._held(others, cls) - self._leased_pages(cls))
            for cls in range(self.num_classes)
        ]

    def _leased_pages(self: ReferenceLedger, cls: int) -> set[int]:
        """Return the pages of a class that leases protect."""
        if cls not in self.full_classes:
            return set()
        return {block.pages[cls] for held in self.leases.values() for block in held.block.path()}

    def _held(self: ReferenceLedger, sequences: list[Sequence], cls: int) -> set[int]:
        """Return the pages of a class that sequences own or protect."""
        pages: set[int] = set()
        for seq in sequences:
            pages |= {block[cls] for block in seq.private} | set(seq.own.get(cls, []))
            if cls in self.full_classes:
                pages |= {block.pages[cls] for block in seq.path}
            pages |= {block.pages[cls] for at, block in seq.pins if at == cls}
        return pages - {0}

    def _num_protected(self: ReferenceLedger, cls: int) -> int:
        protected = self.protected()
        if cls in self.full_classes:
            return len(protected)
        return sum(self.is_pinned(cls, b) for b in self.tree.blocks if b.pages[cls])

    def _count_misses(self: ReferenceLedger, item: Request, match: Match, plan: Admission) -> None:
        length = len(item.prompt)
        if not self.publishes(item):
            self.counters["missed_private_tokens"] += length
            return
        usable = self.match(item.prompt, item.scope, item.draft_from)
        self.counters["missed_text_tokens"] += length - max(usable, plan.hit)
        if not plan.loads:
            self.counters["missed_last_tokens"] += usable - match.usable
            self.counters["missed_copy_tokens"] += match.usable - plan.hit

    def explain_match(
        self: ReferenceLedger, tokens: tuple[int, ...], scope: int, draft_from: int
    ) -> dict[str, Any]:
        """Return the dictionary of `Ledger.explain_match`."""
        usable, length = self.match(tokens, scope, draft_from), len(tokens)
        answer = {"tokens": length, "matched": 0, "usable": usable, "hit": 0, "missed": []}
        if scope == -1 or not self.config.reuse:
            bounds = [(0, {"reason": "private" if self.config.reuse else "reuse_off"})]
        else:
            match = self._match_item(Request(tokens, scope, 1, length, draft_from))
            answer["hit"] = max(match.usable, 0)
            bounds = [
                *self._text_bounds(tokens, scope, answer),
                *self._use_bounds(tokens, scope, draft_from),
                (usable, {"reason": "state"}),
                (answer["hit"], {"reason": "first_token_must_run"}),
            ]
        end = length
        for position, reason in bounds:
            if position < end:
                missed = {**reason, "position": position, "tokens": end - position}
                answer["missed"].insert(0, missed)
            end = min(end, position)
        return answer

    def _text_bounds(
        self: ReferenceLedger, tokens: tuple[int, ...], scope: int, answer: dict[str, Any]
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return what no scope has, or another one only; note what this one has."""
        agreed = [(common_prefix(tokens, _text(block)), block) for block in self.tree.blocks]
        longest = max((count for count, _ in agreed), default=0)
        ends = [block for count, block in agreed if count == longest]
        goes_on = any(len(_text(block)) > longest for block in ends)
        holder = min((block.scope for block in ends), default=scope)
        counts = [count for count, block in agreed if block.scope == scope]
        answer["matched"] = max(counts, default=0)
        return [
            (longest, {"reason": "tokens" if goes_on else "end_of_cached_text"}),
            (answer["matched"], {"reason": "scope", "scope": holder}),
        ]

    def _use_bounds(
        self: ReferenceLedger, tokens: tuple[int, ...], scope: int, draft_from: int
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return what may be used by each rule on top of the ones before."""
        blocks = [block for block in self.tree.blocks if block.scope == scope]
        agreed = [(common_prefix(tokens, _text(block)), block) for block in blocks]
        match = self._match(tokens, scope, draft_from)
        windows = [
            length
            for length in range(match.usable + 1)
            if self.config.partial_reuse or length % self.config.tokens_per_block == 0
            if length == 0
            or all(self._accepts(cls, match.path, length) for cls in self.windowed_classes)
        ]
        return [
            (_most(self, agreed, None), {"reason": "lookahead"}),
            (_most(self, agreed, draft_from), {"reason": "draft"}),
            (match.usable, {"reason": "partial"}),
            (max(windows), {"reason": "window"}),
        ]


def _text(block: Block) -> tuple[int, ...]:
    return tuple(t for b in block.path() for t in b.tokens) + block.following


def _most(ledger: ReferenceLedger, agreed: list[tuple[int, Block]], draft_from: int | None) -> int:
    """Return the most tokens usable of the paths; whatever their draft KV, if it is None."""
    lookahead, tpb = ledger.config.lookahead, ledger.config.tokens_per_block
    most = 0
    for count, block in agreed:
        path = block.path()
        needs_draft = draft_from is not None and draft_from >= 0
        ends = [(at + 1) * tpb for at, b in enumerate(path) if not b.draft_valid]
        if needs_draft and any(end > draft_from for end in ends):
            continue
        most = max(most, min(max(count - lookahead, 0), sum(b.covered for b in path)))
    return most

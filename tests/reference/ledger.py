"""The reference ledger: the calls of docs/ledger.md in plain Python, slow and easy to check.

It mirrors `tandemkv._core.Ledger` with lists for arrays. Pages are its own serial numbers, so they
compare with real ones only up to a bijection; every other number must be equal.
"""

from __future__ import annotations

from collections import Counter

from reference.publishing import Publishing
from reference.reading import Reading
from reference.running import Running
from reference.state import (
    MAX_TOKEN,
    NOT_TRIED,
    REFUSED_NEVER,
    REFUSED_NOW,
    REFUSED_ROWS,
    Admission,
    Config,
    Request,
    Sequence,
    cdiv,
    require,
)
from reference.tree import Block, Match, Tree


class ReferenceLedger(Running, Publishing, Reading):
    """See docs/ledger.md: each method is one of its sections."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tree = Tree(config.tokens_per_block, config.lookahead, config.partial_reuse)
        self.num_classes = len(config.num_pages)
        self.free = [pages - 1 for pages in config.num_pages]
        self.fenced: list[tuple[int, int]] = []  # (class, stamp), one per page
        self.sequences: dict[int, Sequence] = {}  # by row
        self.generations = [0] * config.max_sequences
        self.copies: list[tuple[int, Block]] = []  # (step, source) of copies not yet completed
        self.queued_moves: list[tuple[int, tuple[int, int, int, int]]] = []  # (step, move)
        self.newest = 0
        self.now = float("-inf")
        self.open_steps: set[int] = set()
        self.tick = 0
        self.next_page = 0
        self.claimed: set[int] = set()  # the `id()` of blocks, during `admit`
        self.counters: Counter[str] = Counter()

    # Steps and fences

    def begin_step(self, now: float) -> int:
        require(now >= self.now, "now went backwards")
        self.now = now
        self.newest += 1
        self.open_steps.add(self.newest)
        return self.newest

    def complete_step(self, step: int) -> None:
        require(step in self.open_steps, "step is not open")
        require(all(at != step for at, _ in self.queued_moves), "copies were not taken")
        self.open_steps.remove(step)
        finished = [source for at, source in self.copies if at == step]
        held = [(at, source) for at, source in self.copies if at != step]
        for index, source in enumerate(finished):
            before = self.protected()
            self.copies = [(step, later) for later in finished[index + 1 :]] + held
            self._touch_unprotected(before, source)
        for entry in list(self.fenced):
            if not self._fence_is_open(entry[1]):
                self.fenced.remove(entry)
                self.free[entry[0]] += 1

    def _stamp(self) -> int:
        return 0 if self.config.same_stream else self.newest

    def _fence_is_open(self, stamp: int) -> bool:
        return any(step <= stamp for step in self.open_steps)

    def _give_up(self, pages: list[int], stamp: int) -> None:
        for cls in range(len(pages)):
            if self._fence_is_open(stamp):
                self.fenced.append((cls, stamp))
            else:
                self.free[cls] += 1

    def _give_up_cached(self, block: Block, protected: set[int]) -> None:
        """Give up the pages of a block that leaves the tree for another reason than eviction."""
        is_idle = id(block) not in protected and not self._fence_is_open(block.stamp)
        self._give_up(block.pages, 0 if is_idle else self._stamp())

    # Protection and eviction

    def protected(self) -> set[int]:
        """Return the `id()` of every block that a sequence or a pending copy needs."""
        ends = [seq.node for seq in self.sequences.values()] + [source for _, source in self.copies]
        return {id(block) for end in ends if end is not None for block in end.path()}

    def evictable(self) -> list[Block]:
        """Return the blocks that could be evicted now, leaves first or not."""
        protected = self.protected()
        return [
            block
            for block in self.tree.blocks
            if id(block) not in protected and not self._fence_is_open(block.stamp)
        ]

    def _touch_unprotected(self, before: set[int], end: Block | None) -> None:
        """End one use of the path down to `end`: one tick for all it leaves unprotected."""
        self.tick += 1
        after = self.protected()
        for block in end.path() if end is not None else []:
            if id(block) in before and id(block) not in after:
                block.last_use, block.stamp = self.tick, self._stamp()

    def _take(self, count: int) -> list[list[int]]:
        """Take `count` blocks' pages, evicting as needed; the caller has checked that it fits."""
        while min(self.free) < count:
            leaves = [block for block in self.evictable() if not block.children]
            unclaimed = [block for block in leaves if id(block) not in self.claimed]
            victim = min(unclaimed or leaves, key=lambda block: block.last_use)
            self.tree.remove(victim)
            self._give_up(victim.pages, victim.stamp)
            self.counters["evicted_blocks"] += 1
        taken = []
        for _ in range(count):
            self.next_page += 1
            taken.append([self.next_page] * self.num_classes)
        self.free = [free - count for free in self.free]
        return taken

    # Calls on sequences

    def admit(
        self, step: int, items: list[Request], stop_at_first: bool = False
    ) -> tuple[int, list[int], list[int]]:
        """Return the number admitted, the handles or reasons, and the hits."""
        self._check_admit(step, items)
        matches = [self._match_item(item) for item in items]
        self.claimed = {id(block) for match in matches for block in match.path}
        evicted = self.counters["evicted_blocks"]
        handles: list[int] = []
        hits: list[int] = []
        for item, claimed in zip(items, matches, strict=True):
            if stop_at_first and handles and handles[-1] < 0:
                handles.append(NOT_TRIED)
                hits.append(0)
                continue
            is_stale = self.counters["evicted_blocks"] != evicted
            match = self._match_item(item) if is_stale else claimed
            handle, hit = self._admit_one(step, item, match)
            handles.append(handle)
            hits.append(hit)
        self.claimed.clear()
        return sum(handle >= 0 for handle in handles), handles, hits

    def _check_admit(self, step: int, items: list[Request]) -> None:
        config = self.config
        require(step in self.open_steps, "step is not open")
        for item in items:
            require(len(item.prompt) > 0, "empty prompt")
            kept = self.config.reuse and item.scope >= 0
            require(not kept or all(0 <= t < MAX_TOKEN for t in item.prompt), "token out of range")
            require(item.scope >= -1, "scope")
            require(item.first >= 1, "first")
            require(len(item.prompt) <= item.max_total <= config.max_seq_len, "max_total")
            require(item.draft_from >= -1, "draft_from")
            require(config.has_draft or item.draft_from == -1, "no draft here")

    def _admit_one(self, step: int, item: Request, match: Match) -> tuple[int, int]:
        config, tpb = self.config, self.config.tokens_per_block
        free_rows = [r for r in range(config.max_sequences) if r not in self.sequences]
        if not free_rows:
            self.counters["refused_rows"] += 1
            return REFUSED_ROWS, 0
        length = len(item.prompt)
        written = max(length, item.max_total - 1 + config.reserve_tokens)
        worst = cdiv(written + config.extra_tokens, tpb)
        if min(config.num_pages) - 1 < worst:
            self.counters["refused_never"] += 1
            return REFUSED_NEVER, 0
        hit = match.usable
        plan = self._plan(item, match, hit)
        if not self._fits(plan) and hit % tpb != 0:
            plan = self._plan(item, match, hit - hit % tpb)
        if not self._fits(plan):
            self.counters["refused_now"] += 1
            return REFUSED_NOW, 0
        return self._act(step, item, plan, free_rows[0]), plan.hit

    def _match_item(self, item: Request) -> Match:
        """Match a prompt less its last token, which must run, and the blocks that this uses."""
        tpb = self.config.tokens_per_block
        match = self._match(item.prompt, item.scope, item.draft_from)
        hit = min(len(item.prompt) - 1, match.usable)
        if not self.config.partial_reuse:
            hit -= hit % tpb
        return Match(hit, match.path[: cdiv(hit, tpb)])

    def _plan(self, item: Request, match: Match, hit: int) -> Admission:
        tpb, extra = self.config.tokens_per_block, self.config.extra_tokens
        shared = hit // tpb
        width = min(item.first, len(item.prompt) - hit)
        return Admission(
            hit=hit,
            shared=list(match.path[:shared]),
            source=match.path[shared] if hit % tpb != 0 else None,
            width=width,
            need=cdiv(hit + width + extra, tpb) - shared,
            whole=cdiv(len(item.prompt) + extra, tpb) - shared,
        )

    def _fits(self, plan: Admission) -> bool:
        wanted = {id(block) for block in [*plan.shared, plan.source] if block is not None}
        evictable = sum(id(block) not in wanted for block in self.evictable())
        promised = sum(seq.promise for seq in self.sequences.values())
        return all(plan.whole + promised <= free + evictable for free in self.free)

    def _act(self, step: int, item: Request, plan: Admission, row: int) -> int:
        self.generations[row] += 1
        seq = Sequence(
            handle=self.generations[row] << 32 | row,
            scope=item.scope,
            draft_from=item.draft_from,
            max_total=item.max_total,
            tokens=list(item.prompt),
            valid=[plan.hit, plan.hit if item.draft_from >= 0 else 0],
            node=plan.shared[-1] if plan.shared else None,
            private=[],
            prompt_blocks=len(plan.shared) + plan.whole,
            outstanding=[(step, plan.width)],
        )
        self.sequences[row] = seq
        if plan.source is not None:
            self.copies.append((step, plan.source))
        seq.private = self._take(plan.need)
        if plan.source is not None:
            tokens = plan.hit % self.config.tokens_per_block
            for cls in range(self.num_classes):
                move = (cls, plan.source.pages[cls], seq.private[0][cls], tokens)
                self.queued_moves.append((step, move))
            self.counters["copied_blocks"] += 1
        self.counters["admitted"] += 1
        self.counters["prompt_tokens"] += len(item.prompt)
        self.counters["hit_tokens"] += plan.hit
        if self.config.has_draft and item.draft_from < 0 and plan.hit > 0:
            self.counters["target_only_hits"] += 1
        return seq.handle

    def _look_up(self, handles: list[int]) -> list[Sequence]:
        require(len(set(handles)) == len(handles), "repeated handle")
        by_handle = {seq.handle: seq for seq in self.sequences.values()}
        require(all(handle in by_handle for handle in handles), "stale handle")
        return [by_handle[handle] for handle in handles]

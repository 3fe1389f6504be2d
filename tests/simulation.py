"""A serving simulation: a small scheduler drives one ledger whose pool is too small for the load.

One tick is one step of an engine. The oldest step in flight ends and its results arrive; then
running requests grow, oldest first, with a preemption if one cannot; then waiting ones are
admitted, and suspended ones resumed. Some requests are forked, some given retention hints, and they
are aborted at every point between. In each tick something runs, finishes or is freed, but for the
ticks in which steps in flight bring back what is missing.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from reference.binding import CoreLedger
from reference.state import Config, cdiv
from reference.state import Request as Item

# Why an admission is refused whose pages are on their way for somebody else.
LOADING = -5

# Classes in which a new block takes a page.
GROWING = {"full_attention", "sliding_window", "chunked_attention"}


@dataclass(frozen=True)
class Options:
    """How the engine runs and what is asked of it.

    Attributes:
        depth: steps in flight at once: 2 for an engine that schedules while the last step runs.
        step_tokens: most tokens in one step.
        chunk: most prompt tokens of one request in one step.
        skipped: share of steps that do not run.
        aborted: share of points in a tick at which a request is aborted.
        lagging: share of results in which the draft has written less than the target.
        patience: ticks that the head of the queue waits before nobody may pass it.
        validate_every: ticks between two checks of all invariants.
        suspends: whether a preempted request with nothing in flight is suspended, not released.
        forked: share of ticks in which a request that generates is forked (n-best).
        hinted: share of admitted requests that get a retention hint.

    """

    depth: int = 1
    step_tokens: int = 64
    chunk: int = 24
    skipped: float = 0.02
    aborted: float = 0.004
    lagging: float = 0.1
    patience: int = 50
    validate_every: int = 50
    suspends: bool = False
    forked: float = 0.0
    hinted: float = 0.0


@dataclass(eq=False)
class Request:
    """One request; `tokens` are those known, `total` those it ends with.

    A suspended one keeps its handle and waits.
    """

    tokens: list[int]
    total: int
    scope: int
    draft_from: int
    handle: int = -1
    is_suspended: bool = False
    ends: list[int] = field(default_factory=lambda: [0, 0])
    widths: deque[tuple[int, int]] = field(default_factory=deque)  # (step, tokens that it runs)

    @property
    def scheduled(self) -> int:
        """The position up to which tokens have run or are in flight."""
        return max(self.ends) + sum(width for _, width in self.widths)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) == self.total


class Workload:
    """Random requests: turns of conversations over a few system prompts."""

    def __init__(self, config: Config, rng: random.Random, scopes: tuple[int, ...]) -> None:
        self.config = config
        self.rng = rng
        self.scopes = scopes
        longest = config.max_seq_len
        self.systems = [self.text(rng.randint(1, longest // 3)) for _ in range(4)]
        self.histories: deque[list[int]] = deque(maxlen=8)

    def text(self, length: int) -> list[int]:
        return [self.rng.randrange(50) for _ in range(length)]

    def request(self) -> Request:
        rng, longest = self.rng, self.config.max_seq_len
        start = rng.choice(self.histories or self.systems) if rng.random() < 0.5 else []
        start = start or rng.choice(self.systems)
        prompt = (start + self.text(rng.randint(1, longest // 4)))[: longest - 1]
        total = min(len(prompt) + rng.randint(1, longest // 3), longest)
        draft_from = -1
        if self.config.has_draft:
            # On time, late, or not at all.
            draft_from = rng.choice((0, 0, 0, rng.randint(0, len(prompt)), -1))
        return Request(prompt, total, rng.choice(self.scopes), draft_from)


class Simulation:
    """Serves `count` requests; `events` counts what happened.

    The oldest running request always gets on: everything younger is preempted for it if need be,
    and alone it fits, or it would have been refused for ever.
    """

    def __init__(self, config: Config, options: Options, count: int, seed: int) -> None:
        self.config = config
        self.options = options
        self.rng = random.Random(seed)
        self.ledger = CoreLedger(config)
        adapter = self.ledger.intern_scope(("sql", 1))
        self.workload = Workload(config, self.rng, (0, 0, 0, adapter, -1))
        self.left = count  # requests still to come
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of admission
        self.in_flight: deque[int] = deque()
        self.waited = 0  # ticks since the head of the queue could be admitted
        self.idle = 0  # ticks since the engine got on
        self.events: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Serve everything, then check that nothing is left of it."""
        while self.left or self._unserved():
            self.tick()
        while self.in_flight:
            self._end_oldest_step()
        self.events.update(
            {name: self.ledger.stats()[name] for name in ("evicted_side_pages", "snapshots")}
        )
        self._check_drained()
        return self.events

    def tick(self) -> None:
        before = self._progress()
        while self.left and len(self.waiting) < 2 * self.config.max_sequences:
            self.left -= 1
            self.waiting.append(self.workload.request())
        self._abort("between steps")
        if len(self.in_flight) == self.options.depth:
            self._end_oldest_step()
        step = self.ledger.begin_step(float(self.events["ticks"]))
        self.in_flight.append(step)
        self._abort("before it is scheduled")
        self._fork(step)
        budget, everybody_ran = self._grow(step)
        if everybody_ran:
            self._admit(step, budget)
        self._abort("after it is scheduled")
        self.ledger.moves()
        self.events["ticks"] += 1
        if self.events["ticks"] % self.options.validate_every == 0:
            self._check()
        got_on = self._progress() != before or not self._unserved()
        self.idle = 0 if got_on else self.idle + 1
        assert self.idle <= self._longest_wait(), "the engine makes no progress"

    def _unserved(self) -> bool:
        return bool(self.waiting or self.running)

    def _longest_wait(self) -> int:
        """Ticks without progress by which every fence that was there in the first has passed."""
        return self.options.depth

    def _progress(self) -> tuple[int, ...]:
        kinds = ("ran", "results", "finished", "unservable", "preempted", "aborted", "forked")
        return tuple(self.events[kind] for kind in kinds)

    # What a step brings

    def _end_oldest_step(self) -> None:
        step, rng = self.in_flight.popleft(), self.rng
        # What was launched after a step that did not run has not run either.
        skipped = rng.random() < self.options.skipped
        steps = [step, *self.in_flight] if skipped else [step]
        if skipped:
            self.events["skipped"] += len(steps)
            self.in_flight.clear()
        for ended in steps:
            complete_first = rng.random() < 0.5
            if complete_first:
                self.ledger.complete_step(ended)
                self._abort("between completion and result")
            self._advance(ended, skipped)
            if not complete_first:
                self._abort("between result and completion")
                self.ledger.complete_step(ended)
        for request in [request for request in self.running if request.is_done]:
            self._release(request)
            self.workload.histories.append(request.tokens)
            self.events["finished"] += 1

    def _advance(self, step: int, skipped: bool) -> None:
        items, ends = [], []
        for request in self.running:
            if not request.widths or request.widths[0][0] != step:
                continue
            _, width = request.widths.popleft()
            new = [] if skipped else self._results(request, width)
            if not skipped:
                self._move_ends(request, width, len(new))
            request.tokens += new
            items.append((request.handle, tuple(new), len(new)))
            ends.append(list(request.ends))
        if items:
            self.ledger.advance(step, items, ends)
            self.events["results"] += len(items)

    def _results(self, request: Request, width: int) -> list[int]:
        """Return the tokens that a step gives: none within a prompt, at least one after it."""
        reached = max(request.ends) + width
        if reached < len(request.tokens):
            return []
        most = min(reached + 1, request.total) - len(request.tokens)
        return self.workload.text(self.rng.randint(min(1, most), most))

    def _move_ends(self, request: Request, width: int, count: int) -> None:
        known = len(request.tokens) + count
        end = known - 1 if count else min(max(request.ends) + width, known)
        end = max(end, *request.ends)
        lags = self.rng.random() < self.options.lagging
        drafted = self.rng.randint(request.ends[1], end) if lags else end
        request.ends = [end, drafted if request.draft_from >= 0 else 0]
        self.events["lagging drafts"] += request.draft_from >= 0 and drafted < end

    # What a step runs

    def _grow(self, step: int) -> tuple[int, bool]:
        """Make room for running requests; return the tokens left and whether all got theirs."""
        budget, everybody = self.options.step_tokens, True
        for request in list(self.running):
            if request not in self.running:  # preempted in this tick
                continue
            width = self._width(request, budget)
            if width == 0:
                continue
            granted = self.ledger.grow(step, [(request.handle, width)])[1] == [1]
            if not granted:
                self.events["grow refused"] += 1
                self._preempt_for(request, width)
                granted = self.ledger.grow(step, [(request.handle, width)])[1] == [1]
            if granted:
                request.widths.append((step, width))
                budget -= width
                self.events["ran"] += 1
            everybody = everybody and granted
        return budget, everybody

    def _width(self, request: Request, budget: int) -> int:
        rest = len(request.tokens) - request.scheduled
        if rest > 0:
            return min(rest, self.options.chunk, budget)
        # Each step in flight gives a token at least; no more may come to be known than `total`.
        if len(request.tokens) + len(request.widths) >= request.total:
            return 0
        width = 1
        if request.draft_from >= 0:
            width += self.rng.randint(0, self.config.reserve_tokens)
        room = self.config.max_seq_len + self.config.reserve_tokens + 1 - request.scheduled
        return width if width <= min(budget, room) else 0

    def _preempt_for(self, request: Request, width: int) -> None:
        """Preempt younger requests until this one has room, once the steps in flight have ended."""
        tokens = request.scheduled + width + self.config.extra_tokens
        blocks = self.ledger.sequence(request.handle)["blocks"]
        need = cdiv(tokens, self.config.tokens_per_block) - blocks
        lifetimes = self.config.lifetimes or (("full_attention", 0, 0),) * len(
            self.config.num_pages
        )
        missing = []
        for pages, (kind, _, _) in zip(self.ledger.stats()["classes"], lifetimes, strict=True):
            # What is fenced, or cached behind a fence, comes back by itself.
            coming = pages["free"] + pages["fenced"] + pages["cached"] - pages["protected"]
            missing.append(max(need - coming, 0) if kind in GROWING else 0)
        younger = self._dispensable(request)
        count, chosen = self.ledger.victims([other.handle for other in younger], missing)
        # With a step in flight it may want more than its worst case: it waits for the result then.
        may_wait = bool(request.widths) or request is not self.running[0] or self._are_coming()
        assert count or not any(missing) or may_wait, "nothing can be freed for the oldest request"
        if self.config.num_blocks and younger and not any(missing):
            # Block records are in no count: only trying shows whether one more gives enough.
            chosen[0] = 1
        for other, is_victim in zip(younger, chosen, strict=True):
            if is_victim:
                self._preempt(other)

    def _dispensable(self, request: Request) -> list[Request]:
        """Return whom a running request may take pages from, the most dispensable first."""
        return self.running[self.running.index(request) + 1 :][::-1]

    def _are_coming(self) -> bool:
        """Tell whether pages come back that no request holds and that no count shows."""
        return False

    def _preempt(self, request: Request) -> None:
        if self.options.suspends and not request.widths:
            self.ledger.suspend([(request.handle, self.rng.randint(0, 1))])
            self.running.remove(request)
            request.is_suspended, request.ends = True, [0, 0]
            self.events["suspended"] += 1
        else:
            self._release(request)
        self.waiting.appendleft(request)
        self.events["preempted"] += 1

    def _fork(self, step: int) -> None:
        """Let up to three more requests continue one that has run all it knows but one token."""
        if self.rng.random() >= self.options.forked:
            return
        settled = [
            request
            for request in self.running
            if not request.widths and max(request.ends) == len(request.tokens) - 1
        ]
        if not settled:
            return
        parent = self.rng.choice(settled)
        _, handles = self.ledger.fork(step, [parent.handle] * self.rng.randint(1, 3))
        for handle in handles:
            if handle < 0:
                self.events["fork refused"] += 1
                continue
            child = replace(parent, handle=handle, tokens=[*parent.tokens], ends=[*parent.ends])
            child.widths = deque()
            self.running.append(child)
            self.events["forked"] += 1

    def _admit(self, step: int, budget: int) -> None:
        """Admit what fits, in order; smaller requests may pass the head, but not for ever."""
        queue = []
        for request in list(self.waiting)[:4]:
            if budget > 0 and request.is_suspended:
                ran = self._resume(step, request, budget)
                budget -= ran
                if ran == 0 and self.waiting and request is self.waiting[0]:
                    self.waited += 1
                    if self.waited > self.options.patience:
                        return
            else:
                queue.append(request)
        if not queue or budget == 0:
            return
        items = [self._item(request, budget) for request in queue]
        _, answers, _ = self.ledger.fits(items)
        if queue[0] is self.waiting[0]:
            self.waited = self.waited + 1 if answers[0] == -1 else 0
        for request, item, answer in zip(queue, items, answers, strict=True):
            if answer == -2:
                self.waiting.remove(request)
                self.events["unservable"] += 1
            elif answer == LOADING:
                self.events["waited for the load of another"] += 1
            elif answer == 0 and budget > 0:
                budget -= self._admit_one(step, request, item._replace(first=budget))
            if answer == -1 and self.waited > self.options.patience:
                return

    def _resume(self, step: int, request: Request, budget: int) -> int:
        """Resume a suspended request; return the tokens that it runs, 0 if it does not fit."""
        first = min(budget, self.options.chunk)
        _, [is_resumed], [hit] = self.ledger.resume(step, [(request.handle, first)])
        if not is_resumed:
            self.events["resume refused"] += 1
            return 0
        self.events["resumed"] += 1
        self.events["resumed with a hit"] += hit > 0
        self.waited = 0 if request is self.waiting[0] else self.waited
        request.is_suspended = False
        return self._start(step, request, hit, first)

    def _item(self, request: Request, budget: int) -> Item:
        return Item(
            prompt=tuple(request.tokens),
            scope=request.scope,
            first=min(budget, self.options.chunk),
            max_total=request.total,
            draft_from=request.draft_from,
        )

    def _admit_one(self, step: int, request: Request, item: Item) -> int:
        """Admit one request; return the tokens that it runs, 0 if what fitted is gone."""
        item = item._replace(first=min(item.first, self.options.chunk))
        _, [handle], [hit] = self.ledger.admit(step, [item])
        if handle < 0:
            self.events["waited for the load of another"] += handle == LOADING
            self.events["admit refused"] += handle != LOADING
            return 0
        self.events["admitted"] += 1
        self.events["passed the head"] += request is not self.waiting[0]
        self.events["hits"] += hit > 0
        self.events["late drafts"] += request.draft_from > 0
        self.events["without draft"] += request.draft_from < 0
        request.handle = handle
        if self.rng.random() < self.options.hinted:
            hint = (self.rng.randint(0, len(request.tokens)), -1, self.rng.choice((0, 35, 80, 100)))
            self.ledger.retain([(handle, *hint, self.rng.choice((-1, 20_000)))])
            self.events["hinted"] += 1
        return self._start(step, request, hit, item.first)

    def _start(self, step: int, request: Request, hit: int, first: int) -> int:
        """Note that an admitted or resumed request runs; return its tokens in this step."""
        self.waiting.remove(request)
        self.running.append(request)
        request.ends = [hit, hit if request.draft_from >= 0 else 0]
        width = min(first, len(request.tokens) - hit)
        request.widths.append((step, width))
        self.events["ran"] += 1
        return width

    # How requests end

    def _abort(self, point: str) -> None:
        """Abort a request now and then, wherever it is."""
        known = [*self.waiting, *self.running]
        if not known or self.rng.random() >= self.options.aborted:
            return
        request = self.rng.choice(known)
        if request.is_suspended:
            self.ledger.release([(request.handle, self.rng.randint(0, 1))])
            self.waiting.remove(request)
            self.events["aborted when suspended"] += 1
        elif request.handle >= 0:
            self.events["aborted in flight"] += len(request.widths) > 0
            self.events["aborted when finished"] += request.is_done
            self._release(request)
        else:
            self.waiting.remove(request)
        self.events["aborted"] += 1
        self.events[f"aborted {point}"] += 1

    def _release(self, request: Request) -> None:
        """Close a request; results that it still has in flight are passed over."""
        self.ledger.release([(request.handle, self.rng.randint(0, 1))])
        self.running.remove(request)
        request.handle = -1
        request.ends = [0, 0]
        request.widths.clear()

    # What must hold

    def _check(self) -> None:
        self._check_ledger()

    def _check_ledger(self, others: int = 0) -> None:
        """Check all invariants; `others` sequences are open that neither run nor are suspended."""
        self.ledger.validate()
        stats = self.ledger.stats()
        suspended = [request for request in self.waiting if request.is_suspended]
        assert stats["suspended_sequences"] == len(suspended)
        assert stats["open_sequences"] == len(self.running) + len(suspended) + others
        for pages in stats["classes"]:
            assert min(pages.values()) >= 0
            parts = sum(pages[state] for state in ("free", "fenced", "live", "cached", "reserved"))
            assert parts == pages["total"]
        for request in [*self.running, *suspended]:
            seq = self.ledger.sequence(request.handle)
            assert (seq["known"], seq["valid"]) == (len(request.tokens), request.ends)
            assert seq["outstanding"] == list(request.widths)

    def _check_drained(self) -> None:
        """All pages are free or cached, and those cached can all be had."""
        self._check()
        for pages in self.ledger.stats()["classes"]:
            assert pages["live"] == pages["fenced"] == pages["protected"] == 0
            assert pages["free"] + pages["evictable"] == pages["total"] - pages["reserved"]
        self.ledger.reset_reuse_state()
        for pages in self.ledger.stats()["classes"]:
            assert pages["free"] == pages["total"] - pages["reserved"]

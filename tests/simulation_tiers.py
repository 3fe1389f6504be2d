"""The serving simulation with host and disk: transfers take their time, and some fail.

A request whose pages are on their way waits beside the queue and runs when they are there. It is
aborted, or gives its pages up, like any other. In each tick something runs, finishes, is freed or
is loaded, or a transfer is under way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from reference.state import Config
from simulation import Options, Request, Simulation

READY, ON_ITS_WAY, SUSPENDED = 0, 1, 2

_ROWS_MAX = 4096


@dataclass(frozen=True)
class TierOptions(Options):
    """How transfers behave besides.

    Attributes:
        delay: most ticks that a transfer takes.
        failing: share of transfers that fail.
        offloaded: share of ticks after which blocks are sent down.
        flushed: share of ticks in which the host is copied to disk.

    """

    delay: int = 3
    failing: float = 0.1
    offloaded: float = 0.1
    flushed: float = 0.02


class Transfers:
    """An executor with random delay and random failure: what is under way, and until when."""

    def __init__(self, simulation: TieredSimulation) -> None:
        self.simulation = simulation
        self.due: dict[int, int] = {}

    def hand_out(self) -> None:
        """Take what was planned; rows of one id are one transfer."""
        s = self.simulation
        for number, *_ in s.ledger.transfers(_ROWS_MAX):
            self.due.setdefault(number, s.events["ticks"] + s.rng.randint(0, s.options.delay))

    def complete(self, everything: bool = False) -> int:
        """Say what became of those that are due, in any order; return how many."""
        s = self.simulation
        done = [
            number for number, due in self.due.items() if everything or due <= s.events["ticks"]
        ]
        s.rng.shuffle(done)
        for number in done:
            del self.due[number]
        s.ledger.complete_transfers(
            [(number, int(s.rng.random() >= s.options.failing)) for number in done]
        )
        s.events["completed transfers"] += len(done)
        return len(done)


class TieredSimulation(Simulation):
    """Serves `count` requests on a ledger with lower tiers."""

    options: TierOptions

    def __init__(self, config: Config, options: TierOptions, count: int, seed: int) -> None:
        super().__init__(config, options, count, seed)
        self.loading: list[Request] = []
        self.transfers = Transfers(self)

    # The clock

    def tick(self) -> None:
        self.transfers.complete()
        self._sort_out_failed_loads()
        super().tick()
        if self.rng.random() < self.options.offloaded:
            self.events["offloaded"] += self.ledger.offload(self.rng.randint(1, 12))
        if self.rng.random() < self.options.flushed:
            self.events["flushed"] += self.ledger.flush()
        self.transfers.hand_out()
        full = all(shelf["free"] == 0 for shelf in self.ledger.tier_stats()["shelves"])
        full = full and all(pages["free"] == 0 for pages in self.ledger.stats()["classes"])
        self.events["all tiers full"] += full

    def _unserved(self) -> bool:
        return super()._unserved() or bool(self.loading)

    def _progress(self) -> tuple[int, ...]:
        kinds = ("completed transfers", "loads", "loaded", "gave up a load", "failed loads")
        return (*super()._progress(), *(self.events[kind] for kind in kinds))

    def _longest_wait(self) -> int:
        # Transfers are handed out at the end of a tick, and completed at the start of a later one.
        return super()._longest_wait() + 1 + self.options.delay

    # Requests that wait for their pages

    def _start(self, step: int, request: Request, hit: int, first: int) -> int:
        if not self.ledger.loading([request.handle])[0]:
            return super()._start(step, request, hit, first)
        self.waiting.remove(request)
        self.loading.append(request)
        self.events["loads"] += 1
        return 0

    def _resume(self, step: int, request: Request, budget: int) -> int:
        before = self.events["loads"]
        ran = super()._resume(step, request, budget)
        self.events["loads of suspended ones"] += self.events["loads"] - before
        return ran

    def _state(self, request: Request) -> int:
        _, [state] = self.ledger.loading([request.handle])
        return state

    def _sort_out_failed_loads(self) -> None:
        """Put back those that were suspended because some page of a window or state is missing."""
        for request in [one for one in self.loading if self._state(one) == SUSPENDED]:
            self.loading.remove(request)
            request.is_suspended, request.ends = True, [0, 0]
            self.waiting.appendleft(request)
            self.events["failed loads"] += 1

    def _admit(self, step: int, budget: int) -> None:
        for request in [one for one in self.loading if self._state(one) == READY]:
            if budget == 0:
                return
            budget -= self._take_up(step, request, budget)
        super()._admit(step, budget)
        stuck = self.loading and not self.running and not self.transfers.due
        if stuck and len(self.loading) > 1 and not self.ledger.pending_transfers():
            self._preempt(self.loading[-1])  # they stand in each other's way

    def _take_up(self, step: int, request: Request, budget: int) -> int:
        """Run a request whose pages have come; return its tokens, 0 if it does not fit."""
        seq = self.ledger.sequence(request.handle)
        width = min(self.options.chunk, budget, len(request.tokens) - seq["history"])
        if self.ledger.grow(step, [(request.handle, width)])[1] != [1]:
            self.events["refused when loaded"] += 1
            return 0
        self.loading.remove(request)
        self.running.append(request)
        request.ends, request.widths = seq["valid"], deque([(step, width)])
        self.events["loaded"] += 1
        self.events["ran"] += 1
        return width

    # Shortage, and aborts

    def _dispensable(self, request: Request) -> list[Request]:
        return [*reversed(self.loading), *super()._dispensable(request)]

    def _are_coming(self) -> bool:
        return bool(self.transfers.due) or self.ledger.pending_transfers() > 0

    def _preempt(self, request: Request) -> None:
        if request in self.loading:
            self._leave(request)
            self.waiting.appendleft(request)
            self.events["gave up a load"] += 1
            return
        super()._preempt(request)

    def _abort(self, point: str) -> None:
        if self.loading and self.rng.random() < self.options.aborted:
            self._leave(self.rng.choice(self.loading))
            self.events["aborted when loading"] += 1
            self.events["aborted"] += 1
            return
        super()._abort(point)

    def _leave(self, request: Request) -> None:
        self.ledger.release([(request.handle, self.rng.randint(0, 1))])
        self.loading.remove(request)
        request.handle = -1
        request.ends = [0, 0]

    # What must hold

    def _check(self) -> None:
        self._check_ledger(len(self.loading))
        for shelf in self.ledger.tier_stats()["shelves"]:
            assert shelf["free"] + shelf["writing"] + shelf["valid"] == shelf["total"]
            assert 0 <= shelf["spare"] <= shelf["valid"] - shelf["pinned"]
            assert min(shelf[name] for name in ("free", "writing", "valid", "pinned")) >= 0
        assert self.ledger.tier_stats()["open_transfers"] >= len(self.transfers.due)
        for request in self.loading:
            assert self.ledger.sequence(request.handle)["outstanding"] == []

    def _check_drained(self) -> None:
        """Nothing is under way, nothing is pinned, and no page of any tier is missing."""
        assert not self.loading
        while self.transfers.due or self.ledger.pending_transfers():
            self.transfers.hand_out()
            self.transfers.complete(everything=True)
        stats = self.ledger.tier_stats()
        assert stats["open_transfers"] == 0
        for shelf in stats["shelves"]:
            assert shelf["free"] + shelf["valid"] == shelf["total"]
            assert shelf["writing"] == shelf["pinned"] == 0
        self.events.update(stats["counters"])
        for name in ("loaded_blocks", "missed_load_tokens", "refused_loading"):
            self.events[name] = self.ledger.stats()[name]
        super()._check_drained()
        for shelf in self.ledger.tier_stats()["shelves"]:
            assert shelf["free"] == shelf["total"]

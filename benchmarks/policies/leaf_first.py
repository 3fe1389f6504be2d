"""Leaf-first prefix caches in plain Python, block by block: the checks of `docs/policies.md`.

Nothing here uses the ledger. A trace is a list of requests, a request the list of its full blocks
from the root on, each numbered by the whole text up to its end (equal numbers are equal prefixes).
A cache holds `capacity` blocks; one with a cached child, or of the request being served, cannot
go. Requests are served one after the other; one that has more blocks than the cache is not served.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from tandemkv.replay.trace import Trace

ROOT = -1


class Chains:
    """The requests of a trace as chains of block numbers; `parent[b]` is the block before b."""

    def __init__(self, trace: Trace, tokens_per_block: int) -> None:
        self.requests: list[list[int]] = []
        self.parent: list[int] = []
        self.names: list[int] = []  # the token that each block repeats
        self.tokens_per_block = tokens_per_block
        known: dict[tuple[int, int], int] = {}
        for index in range(len(trace)):
            full = int(trace.input_tokens[index]) // tokens_per_block
            text = trace.text(index, 0, full * tokens_per_block)
            before, chain = ROOT, []
            # The readers repeat an id over its block, so the first token names it.
            for name in text[::tokens_per_block].tolist():
                edge = (before, name)
                block = known.get(edge)
                if block is None:
                    block = known[edge] = len(self.parent)
                    self.parent.append(before)
                    self.names.append(name)
                chain.append(block)
                before = block
            self.requests.append(chain)

    @property
    def num_blocks(self) -> int:
        return len(self.parent)


class Policy(Protocol):
    """Ranks leaves: the one with the smallest rank goes first."""

    def use(self, block: int, index: int, *, is_new: bool) -> None:
        """Note that request `index` used a block."""

    def rank(self, block: int) -> tuple[int, ...]:
        """Rank an idle leaf; called once after each of its uses."""

    def evicted(self, block: int) -> None:
        """Note that a block has gone."""

    def served(self, new_blocks: int) -> None:
        """Note that a request has ended."""


class Lru:
    """Least recently used first."""

    def __init__(self, num_blocks: int) -> None:
        self.last = [0] * num_blocks

    def use(self, block: int, index: int, *, is_new: bool) -> None:
        self.last[block] = index

    def rank(self, block: int) -> tuple[int, ...]:
        return (self.last[block],)

    def evicted(self, block: int) -> None:
        pass

    def served(self, new_blocks: int) -> None:
        pass


class Lfu(Lru):
    """Least frequently used first, with dynamic ageing: rank = uses + the rank of the last victim.

    Arlitt et al., "Evaluating content management techniques for Web proxy caches", 2000 (LFU-DA).
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.uses = [0] * num_blocks
        self.aged = [0] * num_blocks
        self.age = 0

    def use(self, block: int, index: int, *, is_new: bool) -> None:
        super().use(block, index, is_new=is_new)
        self.uses[block] = 1 if is_new else self.uses[block] + 1
        self.aged[block] = self.age + self.uses[block]

    def rank(self, block: int) -> tuple[int, ...]:
        return (self.aged[block], self.last[block])

    def evicted(self, block: int) -> None:
        self.age = max(self.age, self.aged[block])


class Optimum:
    """Belady: the leaf whose next use is farthest away. Requests that do not fit use nothing."""

    def __init__(self, chains: Chains, capacity: int) -> None:
        self.uses: list[list[int]] = [[] for _ in range(chains.num_blocks)]
        for index, chain in enumerate(chains.requests):
            if len(chain) <= capacity:
                for block in chain:
                    self.uses[block].append(index)
        self.index = -1

    def use(self, block: int, index: int, *, is_new: bool) -> None:
        self.index = index

    def rank(self, block: int) -> tuple[int, ...]:
        uses = self.uses[block]
        at = bisect_right(uses, self.index)
        return (-(uses[at] if at < len(uses) else len(self.uses) + self.index + 2**40),)

    def evicted(self, block: int) -> None:
        pass

    def served(self, new_blocks: int) -> None:
        pass


class Cache:
    """A leaf-first cache of block numbers under one policy."""

    def __init__(self, parent: Sequence[int], capacity: int, policy: Policy) -> None:
        self.parent = parent
        self.capacity = capacity
        self.policy = policy
        self.cached: set[int] = set()
        self.children = [0] * len(parent)
        self.heap: list[tuple[tuple[int, ...], int, int]] = []
        self.version = [0] * len(parent)
        self.evictions = 0
        self.hits = 0

    def serve(self, chain: Sequence[int], index: int) -> int:
        """Serve a request; return its hit blocks."""
        if len(chain) > self.capacity:
            return 0
        hit = 0
        while hit < len(chain) and chain[hit] in self.cached:
            hit += 1
        busy = set(chain)
        self._make_room(len(chain) - hit, busy)
        for at, block in enumerate(chain):
            self.policy.use(block, index, is_new=at >= hit)
            self.version[block] += 1
        for block in chain[hit:]:
            self.cached.add(block)
            if self.parent[block] != ROOT:
                self.children[self.parent[block]] += 1
        self.policy.served(len(chain) - hit)
        if chain and self.children[chain[-1]] == 0:
            self._offer(chain[-1])
        self.hits += hit
        return hit

    def _offer(self, block: int) -> None:
        heappush(self.heap, (self.policy.rank(block), block, self.version[block]))

    def _make_room(self, needed: int, busy: set[int]) -> None:
        missing = len(self.cached) + needed - self.capacity
        while missing > 0:
            _, block, version = heappop(self.heap)
            if version != self.version[block] or block in busy or block not in self.cached:
                continue
            if self.children[block]:
                continue
            self.cached.discard(block)
            self.policy.evicted(block)
            self.evictions += 1
            missing -= 1
            before = self.parent[block]
            if before != ROOT:
                self.children[before] -= 1
                if self.children[before] == 0 and before not in busy:
                    self._offer(before)


def run(chains: Chains, capacity: int, policy: Policy) -> int:
    """Return the hit blocks of all requests."""
    cache = Cache(chains.parent, capacity, policy)
    for index, chain in enumerate(chains.requests):
        cache.serve(chain, index)
    return cache.hits


def hit_blocks(chains: Chains, capacity: int) -> dict[str, int]:
    """Return the hit blocks of LRU, LFU and the optimum."""
    return {
        "lru": run(chains, capacity, Lru(chains.num_blocks)),
        "lfu": run(chains, capacity, Lfu(chains.num_blocks)),
        "optimum": run(chains, capacity, Optimum(chains, capacity)),
    }

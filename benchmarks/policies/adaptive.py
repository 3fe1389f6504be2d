"""The adaptive policy of `docs/eviction.md` in plain Python, with any share of requests sampled.

    python benchmarks/policies/adaptive.py

prints what sampling costs, the table of `docs/decisions/011-sample-shadow-caches.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from leaf_first import ROOT, Chains, hit_blocks
from traces import CAPACITIES, MOONCAKE, load

BOOSTS = (0, 1, 8)
SCORE_WINDOW = 128
GHOST_WINDOW = 4
WORD = 2**64

Sample = Callable[[Chains, Sequence[int]], bool]


class Boosted:
    """A leaf-first cache in which a block of class c counts as used `c * boost * size` later.

    The class is 2 if the block was among the last `GHOST_WINDOW * size` evictions when it entered,
    else 0, and at least 1 once it was hit. `size` is the capacity and, in the replay of the
    ledger, the page beyond it that holds each request's own tokens.
    """

    def __init__(
        self, parent: Sequence[int], capacity: int, boost: int = 0, own_pages: int = 0
    ) -> None:
        self.parent = parent
        self.capacity = capacity
        self.size = capacity + own_pages
        self.boost = boost
        self.cached: set[int] = set()
        self.children = [0] * len(parent)
        self.kind = [0] * len(parent)
        self.last = [0] * len(parent)
        self.version = [0] * len(parent)
        self.heaps: tuple[list[tuple[int, int, int]], ...] = ([], [], [])
        self.evicted_as: dict[int, int] = {}
        self.evictions = self.clock = self.hits = 0

    def serve(self, chain: Sequence[int]) -> int:
        """Serve a request; return its hit blocks."""
        if len(chain) > self.capacity:
            return 0
        hit = 0
        while hit < len(chain) and chain[hit] in self.cached:
            hit += 1
        busy = set(chain)
        while len(self.cached) + len(chain) - hit > self.capacity:
            self._evict_one(busy)
        for at, block in enumerate(chain):
            self.version[block] += 1
            self.last[block] = self.clock
            if at < hit:
                self.kind[block] = max(self.kind[block], 1)
                continue
            self.kind[block] = 2 if self._is_ghost(block) else 0
            self.cached.add(block)
            if at > 0:
                self.children[chain[at - 1]] += 1
        self.clock += max(1, len(chain) - hit)
        if chain and not self.children[chain[-1]]:
            self._offer(chain[-1])
        self.hits += hit
        return hit

    def _is_ghost(self, block: int) -> bool:
        number = self.evicted_as.get(block)
        return number is not None and number >= self.evictions - GHOST_WINDOW * self.size

    def _offer(self, block: int) -> None:
        heappush(self.heaps[self.kind[block]], (self.last[block], block, self.version[block]))

    def _is_leaf(self, entry: tuple[int, int, int], busy: set[int]) -> bool:
        _, block, version = entry
        idle = block in self.cached and block not in busy and not self.children[block]
        return idle and version == self.version[block]

    def _evict_one(self, busy: set[int]) -> None:
        heads = []
        for kind, heap in enumerate(self.heaps):
            while heap and not self._is_leaf(heap[0], busy):
                heappop(heap)
            if heap:
                heads.append((heap[0][0] + kind * self.boost * self.size, kind))
        _, block, _ = heappop(self.heaps[min(heads)[1]])
        self.cached.remove(block)
        self.evicted_as[block] = self.evictions
        self.evictions += 1
        before = self.parent[block]
        if before != ROOT:
            self.children[before] -= 1
            if not self.children[before] and before not in busy:
                self._offer(before)


def _mix(value: int, item: int) -> int:
    value = (value ^ item) * 0x9E3779B97F4A7C15 % WORD
    return value ^ value >> 32


def path_hash(chains: Chains, first: int) -> int:
    """Hash a block at the root of scope 0, as `docs/eviction.md` says."""
    name, value = chains.names[first], _mix(1, 0)
    for _ in range(chains.tokens_per_block // 2):
        value = _mix(value, name | name << 32)
    return _mix(value, name) if chains.tokens_per_block % 2 else value


def one_in(bits: int, salt: int = 0) -> Sample:
    """Sample one root branch in `2**bits`; another salt, other branches."""
    if bits == 0:
        return lambda chains, chain: True
    return lambda chains, chain: path_hash(chains, chain[0]) >> (64 - bits) == salt


def run_adaptive(chains: Chains, capacity: int, bits: int, salt: int = 0) -> int:
    """Return the hit blocks of all requests; shadows are `2**bits` times smaller."""
    real, is_sampled = Boosted(chains.parent, capacity, own_pages=1), one_in(bits, salt)
    small = max(real.size >> bits, 1)
    shadows = [Boosted(chains.parent, small, boost) for boost in BOOSTS]
    scores, chosen, window = [0] * len(BOOSTS), 0, SCORE_WINDOW * small
    for chain in chains.requests:
        real.serve(chain)
        if not chain or len(chain) > capacity or not is_sampled(chains, chain):
            continue
        for at, shadow in enumerate(shadows):
            kept = scores[at] * (window - min(window, len(chain))) // window
            scores[at] = kept + shadow.serve(chain) * 65536
        best = scores.index(max(scores))
        if scores[best] * 100 > scores[chosen] * 101:
            chosen = best
            real.boost = BOOSTS[chosen]
    return real.hits


def main() -> None:
    chains = load(MOONCAKE)
    full_blocks = sum(map(len, chains.requests))
    print("| shadows see | " + " | ".join(f"{share:.0%}" for share in CAPACITIES) + " |")
    print("|---|" + "---|" * len(CAPACITIES))
    sizes = [max(1, int(chains.num_blocks * share)) for share in CAPACITIES]
    lru = [hit_blocks(chains, size)["lru"] for size in sizes]
    for bits in (0, 2, 3, 4):
        cells = []
        for size, base in zip(sizes, lru, strict=True):
            salts = range(1 if bits == 0 else 4)
            hits = [run_adaptive(chains, size, bits, salt) for salt in salts]
            gains = [100 * (hit - base) / full_blocks for hit in hits]
            mean = sum(gains) / len(gains)
            spread = f" ({min(gains):+.2f} .. {max(gains):+.2f})" if bits else ""
            cells.append(f"{mean:+.2f}{spread}")
        print(f"| 1 in {2**bits} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

"""Hit ratios of every policy beside the offline optimum: the tables of `docs/policies.md`.

    python benchmarks/policies/table.py

The policies are those of the real ledger, through the cache-only replay. The optimum is that of
`leaf_first.py`; plain-Python versions of the policies must hit exactly what the ledger hits.
"""

from __future__ import annotations

from adaptive import run_adaptive
from leaf_first import Chains, hit_blocks
from traces import CAPACITIES, SOURCES, Source, load, read

from tandemkv.config import EVICTION_POLICIES
from tandemkv.replay import replay_cache

SAMPLE_BITS = 3


def ledger_hits(source: Source, chains: Chains, pages: int) -> dict[str, int]:
    """Return the hit blocks of the ledger's policies."""
    trace, size = read(source), chains.tokens_per_block
    return {
        policy: replay_cache(
            trace, tokens_per_block=size, usable_pages=pages, policy=policy
        ).hit_blocks
        for policy in EVICTION_POLICIES
    }


def plain_hits(chains: Chains, pages: int) -> dict[str, int]:
    """Return the hit blocks of the same policies in plain Python, and those of the optimum."""
    return {
        **hit_blocks(chains, pages),
        "adaptive": run_adaptive(chains, pages, SAMPLE_BITS),
    }


def row(source: Source, chains: Chains, share: float) -> str:
    """Return one line: hit ratios in percent, and the share of the gap that each policy closes."""
    pages = max(1, int(chains.num_blocks * share))
    full_blocks = sum(map(len, chains.requests))
    hits, plain = ledger_hits(source, chains, pages), plain_hits(chains, pages)
    if {policy: plain[policy] for policy in hits} != hits:
        raise AssertionError(f"{source.name}, {pages} pages: ledger {hits}, plain {plain}")
    lru, gap = hits["lru"], plain["optimum"] - hits["lru"]
    cells = [f"{100 * lru / full_blocks:.2f}"]
    for policy in EVICTION_POLICIES:
        if policy != "lru":
            closed = f"{100 * (hits[policy] - lru) / gap:+.1f} %" if gap else "no gap"
            cells.append(f"{100 * hits[policy] / full_blocks:.2f} ({closed})")
    cells.append(f"{100 * plain['optimum'] / full_blocks:.2f}")
    refused = sum(len(chain) > pages for chain in chains.requests)
    return f"| {share:.0%} | {pages:,} | {refused} | " + " | ".join(cells) + " |"


def main() -> None:
    others = [policy for policy in EVICTION_POLICIES if policy != "lru"]
    for source in SOURCES:
        chains = load(source)
        blocks = sum(map(len, chains.requests))
        print(f"### {source.name}\n")
        print(
            f"{len(chains.requests):,} requests, {blocks:,} full blocks of "
            f"{chains.tokens_per_block} tokens, {chains.num_blocks:,} distinct.\n"
        )
        print("| capacity | pages | refused | lru | " + " | ".join(others) + " | optimum |")
        print("|---|---|---|---|" + "---|" * (len(others) + 1))
        for share in CAPACITIES:
            print(row(source, chains, share), flush=True)
        print()


if __name__ == "__main__":
    main()

"""Write the table of docs/tiers.md: hit ratios of tiers beside one pool of their sum.

    python scripts/tiers_table.py          # rewrite the table in place
    python scripts/tiers_table.py --check  # exit 1 if it is not up to date

Every figure is one `tandemkv replay --cache-only` of a bundled trace. It takes about a minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tandemkv.replay import read_trace, replay_cache

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tiers.md"
TRACES = ROOT / "tests" / "data" / "traces"
BEGIN, END = "<!-- begin: hit ratios -->\n", "<!-- end: hit ratios -->"

# File, tokens per block, and sizes of device, host and disk in blocks.
MOONCAKE = "mooncake_fast25_synthetic_trace.jsonl"
SHAREGPT = "llmservingsim_sharegpt300_qwen3_blk16_hashed.jsonl"
TAUBENCH = "lmcache_agent_taubench_blk16_hashed.jsonl"
SESSION = "kv_cache_tester/trace_0291.json"
CASES = [
    (MOONCAKE, 512, (2000, 2000, 0)),
    (MOONCAKE, 512, (2000, 6000, 0)),
    (MOONCAKE, 512, (2000, 2000, 4000)),
    (MOONCAKE, 512, (4000, 4000, 8000)),
    (SHAREGPT, 16, (700, 700, 0)),
    (SHAREGPT, 16, (700, 2100, 0)),
    (SHAREGPT, 16, (700, 700, 1400)),
    (TAUBENCH, 16, (80, 80, 0)),
    (TAUBENCH, 16, (80, 80, 160)),
    (SESSION, 64, (1600, 500, 0)),
    (SESSION, 64, (1600, 1600, 0)),
    (SESSION, 64, (1600, 500, 1000)),
]
NAMES = {MOONCAKE: "Mooncake", SHAREGPT: "ShareGPT", TAUBENCH: "τ-bench", SESSION: "agent session"}
HEAD = "| trace | device | host | disk | device alone | tiers | one pool | difference |"


def ratios(name: str, tokens_per_block: int, sizes: tuple[int, int, int]) -> tuple[float, ...]:
    """Return the hit ratios (full blocks) of the device alone, of the tiers, and of one pool."""
    trace = read_trace(
        TRACES / name, trace_block_tokens=tokens_per_block, tokens_per_block=tokens_per_block
    )
    pools = ((sizes[0], 0, 0), sizes, (sum(sizes), 0, 0))
    return tuple(
        replay_cache(
            trace,
            tokens_per_block=tokens_per_block,
            usable_pages=pool[0],
            host_pages=pool[1],
            disk_pages=pool[2],
        ).hit_ratio_full_blocks
        for pool in pools
    )


def table() -> Iterator[str]:
    """Yield the lines."""
    yield HEAD
    yield "|---|" + "---:|" * 7
    for name, tokens_per_block, sizes in CASES:
        alone, tiers, pool = ratios(name, tokens_per_block, sizes)
        tokens = " | ".join(f"{blocks * tokens_per_block:,}" for blocks in sizes)
        found = f"{alone:.4f} | {tiers:.4f} | {pool:.4f} | {tiers - pool:+.4f}"
        yield f"| {NAMES[name]} | {tokens} | {found} |"


def main() -> int:
    """Rewrite or check the page; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    given = parser.parse_args()
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}" + "".join(f"{line}\n" for line in table()) + f"{END}{after}"
    if given.check:
        return int(new != text)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

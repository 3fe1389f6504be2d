"""The bundled traces, as chains of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from leaf_first import Chains

from tandemkv.replay import Trace, read_trace

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "data" / "traces"
CAPACITIES = (0.01, 0.03, 0.1, 0.3)
"""Sizes of the cache, as shares of a trace's distinct full blocks."""


class Source(NamedTuple):
    """A file and the tokens of its hash blocks, None where the file says them."""

    name: str
    file: str
    block_tokens: int | None


MOONCAKE = Source("Mooncake synthetic", "mooncake_fast25_synthetic_trace.jsonl", 512)
SOURCES = (
    MOONCAKE,
    Source("ShareGPT (LLMServingSim)", "llmservingsim_sharegpt300_qwen3_blk16_hashed.jsonl", 16),
    Source("tau-bench (LMCache)", "lmcache_agent_taubench_blk16_hashed.jsonl", 16),
    Source("Coding session 0291", "kv_cache_tester/trace_0291.json", None),
)


def read(source: Source) -> Trace:
    """Read a trace."""
    return read_trace(str(FOLDER / source.file), trace_block_tokens=source.block_tokens)


def load(source: Source) -> Chains:
    """Read a trace and cut its prompts into full blocks."""
    trace = read(source)
    assert trace.block_tokens is not None
    return Chains(trace, trace.block_tokens)

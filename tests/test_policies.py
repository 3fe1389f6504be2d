"""Hit ratios of the ledger's policies beside plain-Python programs of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tandemkv.config import EVICTION_POLICIES
from tandemkv.replay import replay_cache

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "policies"
sys.path.insert(0, str(FOLDER))

import adaptive  # noqa: E402
import leaf_first  # noqa: E402
import table  # noqa: E402
import traces  # noqa: E402


@pytest.fixture(scope="module")
def mooncake() -> leaf_first.Chains:
    return traces.load(traces.MOONCAKE)


def test_every_policy_hits_what_its_plain_python_version_hits(mooncake: leaf_first.Chains):
    pages = mooncake.num_blocks // 10
    hits = table.ledger_hits(traces.MOONCAKE, mooncake, pages)
    plain = table.plain_hits(mooncake, pages)
    assert hits == {policy: plain[policy] for policy in EVICTION_POLICIES}
    # The published study of this trace: LRU 25.7 %, the optimum 50.9 %.
    full_blocks = sum(map(len, mooncake.requests))
    assert round(100 * hits["lru"] / full_blocks, 1) == 25.7
    assert round(100 * plain["optimum"] / full_blocks, 1) == 50.9
    # The gain that the sampled shadows must keep.
    assert hits["adaptive"] - hits["lru"] > 0.004 * full_blocks


def test_full_shadows_reach_the_study(mooncake: leaf_first.Chains):
    """The study of this trace has 27.0 % at a tenth, with shadows that see every request."""
    full_blocks = sum(map(len, mooncake.requests))
    hits = adaptive.run_adaptive(mooncake, mooncake.num_blocks // 10, bits=0)
    assert 100 * hits / full_blocks == pytest.approx(27.0, abs=0.1)


def test_policies_differ_only_in_what_they_evict():
    """With room for all blocks every policy hits the same."""
    trace = traces.read(traces.SOURCES[2])
    hits = {
        policy: replay_cache(trace, tokens_per_block=16, usable_pages=None, policy=policy)
        for policy in EVICTION_POLICIES
    }
    assert {report.hit_blocks for report in hits.values()} == {hits["lru"].hit_blocks}
    assert {report.evicted_blocks for report in hits.values()} == {0}

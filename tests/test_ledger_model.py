"""The reference ledger by itself: its window arithmetic and its invariants under random calls."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from reference import configs, operations, tier_operations
from reference.alone import Alone
from reference.lifetimes import CHUNKED, SLIDING, Lifetime, most_live_blocks

from tandemkv._core import window_blocks

OPERATIONS_PER_LEDGER = 400


def live(rule: Lifetime, tpb: int, history: int, count: int, lookahead: int = 0) -> list[int]:
    return [o for o in range(count) if rule.is_live(o, tpb, history, lookahead)]


def test_window_counts_the_token_in_flight() -> None:
    """At history h the window is the positions [h + 1 - W, h]."""
    assert live(Lifetime(SLIDING, 64, 0), 32, 128, 5) == [2, 3, 4]
    assert live(Lifetime(SLIDING, 64, 0), 32, 126, 4) == [1, 2, 3]
    assert live(Lifetime(SLIDING, 1, 0), 32, 96, 4) == [3]


def test_sinks_are_kept_with_the_window() -> None:
    assert live(Lifetime(SLIDING, 32, 1), 32, 159, 5) == [0, 4]
    assert live(Lifetime(SLIDING, 32, 33), 32, 159, 5) == [0, 1, 4]


def test_lookahead_keeps_a_window_as_it_was() -> None:
    assert live(Lifetime(SLIDING, 64, 0), 32, 129, 5, lookahead=3) == [1, 2, 3, 4]


def test_a_chunk_starts_at_a_multiple_of_its_length() -> None:
    assert live(Lifetime(CHUNKED, 48, 0), 32, 95, 4) == [1, 2, 3]
    assert live(Lifetime(CHUNKED, 48, 0), 32, 96, 4) == [3]
    assert live(Lifetime(CHUNKED, 48, 0), 32, 96, 4, lookahead=1) == [1, 2, 3]


@pytest.mark.parametrize(
    ("window", "tpb", "ahead", "expected"),
    [
        (4096, 32, 1, 129),  # vllm#48959: ceil(W / p) + 1
        (512, 64, 1, 9),
        (1, 32, 1, 1),
    ],
)
def test_bound_is_the_worst_offset(window: int, tpb: int, ahead: int, expected: int) -> None:
    assert most_live_blocks(Lifetime(SLIDING, window, 0), tpb, 0, ahead) == expected


def test_the_core_finds_the_same_bound() -> None:
    """Every history tried one by one, against the core's window function at its worst offset."""
    rng = random.Random(5)
    for _ in range(500):
        sinks = rng.choice((0, rng.randint(1, 12)))
        sliding = Lifetime(SLIDING, rng.randint(1, 18), sinks)
        rule = rng.choice((sliding, Lifetime(CHUNKED, rng.randint(1, 18), 0)))
        tpb, lookahead, ahead = rng.randint(1, 6), rng.choice((0, 1, 3)), rng.randint(1, 9)
        sizes = {"tokens_per_block": tpb, "lookahead": lookahead, "ahead": ahead}
        expected = most_live_blocks(rule, tpb, lookahead, ahead)
        assert window_blocks(tuple(rule), tokens=10**6, **sizes) == expected, (rule, sizes)


@pytest.mark.parametrize("kind", configs.CLASS_KINDS)
def test_invariants_hold_after_every_operation(kind: str) -> None:
    rng = random.Random(kind)
    kinds, weights = list(operations.WEIGHTS), list(operations.WEIGHTS.values())
    total: Counter[str] = Counter()
    for _ in range(12):
        alone = Alone(configs.config(rng.randint, [kind]))
        for operation in rng.choices(kinds, weights, k=OPERATIONS_PER_LEDGER):
            alone.apply(*operation(alone, rng.randint))
        total += alone.outcomes + alone.model.counters
    expected = ["admitted", "hit_tokens", "refused_now", "evicted_blocks", "published_blocks"]
    if kind not in {"full", "two full", "full, cross"}:
        expected.append("evicted_side_pages")
    if "state" in kind:
        expected.append("snapshots")
    expected += ["forked", "resumed"]
    assert not [name for name in expected if not total[name]]


@pytest.mark.parametrize("kind", configs.TIERED_KINDS)
def test_invariants_hold_with_tiers_below_the_device(kind: str) -> None:
    rng = random.Random(kind)
    weighted = tier_operations.TIER_WEIGHTS
    total: Counter[str] = Counter()
    for _ in range(12):
        alone = Alone(configs.with_tiers(rng.randint, [kind]))
        for operation in rng.choices(
            list(weighted), list(weighted.values()), k=OPERATIONS_PER_LEDGER
        ):
            alone.apply(*operation(alone, rng.randint))
        total += alone.model.counters + Counter(alone.model.tier_stats()["counters"])
    expected = ["device_to_host", "host_to_disk", "host_to_device", "failed", "loaded_blocks"]
    assert not [name for name in expected if not total[name]]

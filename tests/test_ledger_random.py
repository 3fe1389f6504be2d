"""A seeded random driver: many operations on many tiny ledgers, each compared."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import numpy as np
import pytest
from reference import configs, operations, tier_operations
from reference.binding import CoreLedger
from reference.interpreter import Comparison

from tandemkv.errors import LedgerError

OPERATIONS_PER_LEDGER = 500

# Everything that a run must have met at least once to be worth its name.
EXPECTED_OUTCOMES = {
    *(f"{name}" for name in ("begin_step", "complete_step", "admit", "grow", "advance")),
    *(f"{name}" for name in ("release", "match", "moves", "reset_reuse_state")),
    *(f"{name} error" for name in ("begin_step", "complete_step", "admit", "grow", "advance")),
    *("suspend", "suspend error", "resume", "resume error", "resume refused"),
    *("fork", "fork error", "fork -1", "fork -3", "unpublished pages shared"),
    *(f"{name} error" for name in ("release", "reset_reuse_state")),
    *(f"admit {reason}" for reason in (-1, -2, -3, -4)),
    *("grow refused", "moves queued", "updates too small", "retain", "retain error"),
    *("pin", "pin error", "unpin", "unpin error"),
    *("intern_scope", "release_scope", "drop_scope", "intern_media", "release_media"),
    *("release_scope error", "drop_scope error", "intern_media error", "release_media error"),
    *("match error", "scope number freed", "media number freed"),
    *("hit with media", "hit in a scope"),
    *("keys", "keys error", "block_keys", "block_keys error"),
    *("stored", "evicted", "dropped", "cleared", "media stored", "copies of a key"),
    *("fits", "fits_blocks", "reclaimable", "victims", "explain_match"),
    *(f"{name} error" for name in ("fits", "fits_blocks", "reclaimable", "victims")),
    *(f"fits {answer}" for answer in (0, -1, -2, -3)),
    *(f"fits_blocks {answer}" for answer in (0, -1, -2, -3)),
    *(f"victims {chosen}" for chosen in (0, 1, 2)),
    *(f"missed {reason}" for reason in ("reuse_off", "private", "lookahead", "draft", "scope")),
    *(f"missed {reason}" for reason in ("tokens", "end_of_cached_text", "partial")),
    "missed first_token_must_run",
    *("path_moves", "path_moves error", "path moved"),
    *("resize", "resize error", "pages moved"),
    *("begin_trial", "begin_trial error", "end_trial", "end_trial error"),
    *("set_quota", "set_quota error", "ceiling", "guarded"),
}
EXPECTED_COUNTERS = {
    *("evicted_side_pages", "snapshots"),
    *("hit_tokens", "target_only_hits", "published_blocks", "rebased_blocks", "evicted_blocks"),
    *(f"missed_{reason}_tokens" for reason in ("private", "text", "last", "copy")),
    *(
        "copied_blocks",
        "grown_blocks",
        "accepted_tokens",
        "rewound_tokens",
        "expired_blocks",
        "refused_leases",
        "released",
    ),
    *("forked", "refused_forks", "suspended", "resumed", "resumed_hit_tokens"),
}


# The same of ledgers with tiers below the device.
EXPECTED_BELOW = {
    *("transfers", "transfers error", "complete_transfers", "complete_transfers error"),
    *(f"transfer {pair}" for pair in ("0 to 1", "0 to 2", "1 to 2", "1 to 0", "2 to 0")),
    *("loading", "loading error", "loading 0", "loading 1", "loading 2"),
    *("pending_transfers", "match_tiers", "offload", "offload error", "flush"),
    *(
        "restore",
        "restore error",
        "adopt",
        "adopt error",
        "admit -5",
        "fits -5",
        "resume that loads",
    ),
    *("released while loading", "loads from two tiers"),
    *("stored below", "evicted below", "failed below", "cleared below"),
    *("failed", "renewed", "rejected", "restored", "adopted", "lost"),
    *("loaded_blocks", "missed_load_tokens", "refused_loading"),
}


def run_ledgers(
    seed: int, num_operations: int, validate_every: int, tiers: bool = False
) -> Counter[str]:
    """Run ledgers one after the other; return what happened in all of them together."""
    rng = random.Random(seed)
    make_config = configs.with_tiers if tiers else configs.config
    weighted = tier_operations.TIER_WEIGHTS if tiers else operations.WEIGHTS
    kinds, weights = list(weighted), list(weighted.values())
    total: Counter[str] = Counter()
    for _ in range(num_operations // OPERATIONS_PER_LEDGER):
        pair = Comparison(
            make_config(rng.randint),
            validate_every=validate_every,
            flat=rng.random() < 0.5,
            dtype=np.int64 if rng.random() < 0.5 else np.int32,
        )
        for kind in rng.choices(kinds, weights, k=OPERATIONS_PER_LEDGER):
            pair.apply(*kind(pair, rng.randint))
        _check_mirror(pair)
        total += pair.outcomes
        total["scope number freed"] += pair.model.scopes.swept
        total["media number freed"] += pair.model.media.swept
        counters = EXPECTED_COUNTERS | EXPECTED_BELOW
        total += Counter({name: pair.model.counters[name] for name in counters})
        total += Counter(pair.model.tier_stats()["counters"])
    return total


def _check_mirror(pair: Comparison) -> None:
    """Repeat all calls on another ledger, as another rank would: both end in the same state.

    Hash tables are seeded anew in every ledger, so nothing may depend on their order.
    """
    mirror = CoreLedger(pair.config, flat=not pair.core.flat, dtype=pair.core.dtype)
    for name, *args in pair.applied:
        with contextlib.suppress(LedgerError):
            getattr(mirror, name)(*args)
    assert mirror.digest() == pair.core.digest(), f"{pair.config!r}\n{pair.applied!r}"


# What a short run may miss by chance; tests of their own lead there.
RARE = {"copies of a key", "dropped", "missed_copy_tokens"}


def _run(seed: int, num_operations: int, validate_every: int) -> None:
    total = run_ledgers(seed, num_operations, validate_every)
    expected = EXPECTED_OUTCOMES | EXPECTED_COUNTERS
    missing = expected - total.keys() - (RARE if num_operations < 1_000_000 else set())
    assert not missing, f"the run never met {sorted(missing)}"


@pytest.mark.parametrize("seed", range(4))
def test_random_operations(seed: int) -> None:
    """100,000 operations in all."""
    _run(seed, 25_000, validate_every=10)


@pytest.mark.parametrize("seed", range(2))
def test_random_operations_on_tiers(seed: int) -> None:
    """50,000 operations in all."""
    missing = EXPECTED_BELOW - run_ledgers(seed, 25_000, validate_every=10, tiers=True).keys()
    assert not missing, f"the run never met {sorted(missing)}"


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_half_a_million_random_operations_on_tiers() -> None:
    run_ledgers(1_000, 500_000, validate_every=10, tiers=True)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_one_million_random_operations() -> None:
    _run(1_000, 1_000_000, validate_every=10)

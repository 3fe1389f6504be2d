"""Random serving on a pool too small for its load: nothing leaks, nothing wedges."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from reference.scenario import Scenario, tokens
from reference.state import Config, cdiv
from simulation import Options, Simulation
from simulation_tiers import TieredSimulation, TierOptions

from tandemkv.errors import LedgerError

SMALL = {"tokens_per_block": 4, "num_pages": (41,), "max_sequences": 8, "max_seq_len": 170}
DRAFT = {"has_draft": True, "reserve_tokens": 3, "extra_tokens": 1, "lookahead": 1}
FULL = ("full_attention", 0, 0)
STEP = {"max_step_tokens": 24}
WINDOW = {"lifetimes": (FULL, ("sliding_window", 30, 0)), **STEP}
ONLY_WINDOW = {"lifetimes": (("sliding_window", 22, 6),), "num_blocks": 40, **STEP}
STATE = {
    "lifetimes": (FULL, ("sliding_window", 18, 5), ("recurrent_state", 0, 0)),
    "snapshot_interval": 8,
    **STEP,
}
EVERY_KIND = {
    "lifetimes": (
        FULL,
        ("chunked_attention", 16, 0),
        ("recurrent_state", 0, 0),
        ("cross_attention", 6, 0),
    ),
    "snapshot_interval": 4,
    **STEP,
}

ENGINES = {
    "plain": (Config(**SMALL), Options()),
    "pair, overlapping": (Config(**SMALL, **DRAFT), Options(depth=2)),
    "watermark, three steps": (
        Config(**SMALL, **DRAFT, watermark_blocks=4, policy="adaptive"),
        Options(depth=3, skipped=0.1),
    ),
    "two classes, whole blocks": (
        Config(**{**SMALL, "num_pages": (41, 37)}, partial_reuse=False, policy="lfu"),
        Options(depth=2, aborted=0.02),
    ),
    "one stream, no reuse": (
        Config(**SMALL, **DRAFT, same_stream=True, reuse=False),
        Options(depth=2),
    ),
    "n-best, hints": (
        Config(**SMALL, **DRAFT, policy="lfu"),
        Options(forked=0.1, hinted=0.5),
    ),
    "suspend": (
        Config(**SMALL, **DRAFT, watermark_blocks=3),
        Options(suspends=True),
    ),
    "full and window, overlapping": (
        Config(**{**SMALL, "num_pages": (41, 33)}, **DRAFT, **WINDOW, policy="lfu"),
        Options(depth=2, forked=0.1),
    ),
    "full, window and state": (
        Config(
            **{**SMALL, "num_pages": (41, 25, 12)},
            **STATE,
            policy="adaptive",
            ttl_ms=40_000,
        ),
        Options(suspends=True, hinted=0.2),
    ),
    "window only": (
        Config(**{**SMALL, "num_pages": (33,)}, **DRAFT, **ONLY_WINDOW, policy="adaptive"),
        Options(depth=2, suspends=True),
    ),
    "every kind, two steps": (
        Config(**{**SMALL, "num_pages": (41, 35, 14, 20)}, **DRAFT, **EVERY_KIND),
        Options(depth=2, suspends=True, forked=0.1),
    ),
}

TIERED = {
    "host, pair, overlapping": (
        Config(**SMALL, **DRAFT, host_pages=(60,)),
        TierOptions(depth=2),
    ),
    "host and disk, suspend": (
        Config(**SMALL, **DRAFT, host_pages=(24,), disk_pages=(90,), policy="lfu"),
        TierOptions(suspends=True, delay=6, aborted=0.02),
    ),
    "disk only, three steps": (
        Config(**SMALL, watermark_blocks=4, disk_pages=(90,), policy="adaptive"),
        TierOptions(depth=3, forked=0.1, failing=0.3),
    ),
    "all tiers full": (
        Config(**SMALL, **DRAFT, host_pages=(6,), disk_pages=(8,)),
        TierOptions(suspends=True, delay=4, flushed=0.1),
    ),
    "two classes on one shelf, whole blocks": (
        Config(
            **{**SMALL, "num_pages": (41, 37)},
            host_pages=(40, 30),
            disk_pages=(50, 60),
            partial_reuse=False,
        ),
        TierOptions(depth=2, hinted=0.3),
    ),
    "full and window, tiers": (
        Config(
            **{**SMALL, "num_pages": (41, 33)},
            **DRAFT,
            **WINDOW,
            host_pages=(40, 30),
        ),
        TierOptions(depth=2, forked=0.05),
    ),
    "full, window and state, tiers": (
        Config(
            **{**SMALL, "num_pages": (41, 25, 12)},
            **STATE,
            host_pages=(40, 30, 20),
            disk_pages=(60, 60, 30),
        ),
        TierOptions(suspends=True),
    ),
}

# What a run of each must have met to be worth its name.
EXPECTED = {
    *("finished", "unservable", "preempted", "skipped", "grow refused", "passed the head"),
    *("aborted between steps", "aborted before it is scheduled", "aborted after it is scheduled"),
    *("aborted between completion and result", "aborted between result and completion"),
    *("aborted in flight", "without draft"),
}
EXPECTED_OF_PAIRS = {"late drafts", "lagging drafts"}
EXPECTED_OF_TIERS = {
    *("loads", "loaded", "loaded_blocks", "waited for the load of another", "failed"),
    *("missed_load_tokens", "aborted when loading", "renewed", "lost"),
}
RARE_WITH_TIERS = {"gave up a load"}
QUICK, LONG = (cdiv(count, len(ENGINES)) for count in (5_000, 100_000))


def run(name: str, count: int, seed: int) -> Counter[str]:
    config, options = (ENGINES | TIERED)[name]
    expected = set(EXPECTED)
    if isinstance(options, TierOptions):
        events = TieredSimulation(config, options, count, seed).run()
        expected |= EXPECTED_OF_TIERS | (RARE_WITH_TIERS if count > QUICK else set())
        expected |= {"all tiers full", "rejected"} if name == "all tiers full" else set()
        expected |= {"loads of suspended ones"} if options.suspends else set()
        expected |= {"failed loads"} if len(config.lifetimes or ()) > 1 else set()
    else:
        events = Simulation(config, options, count, seed).run()
    expected |= EXPECTED_OF_PAIRS if config.has_draft else set()
    expected |= {"hits"} if config.reuse else set()
    expected |= {"suspended", "resumed", "resumed with a hit"} if options.suspends else set()
    expected |= {"forked"} if options.forked else set()
    is_long = count > QUICK or not isinstance(options, TierOptions)
    expected |= {"fork refused"} if options.forked and is_long else set()
    expected |= {"hinted"} if options.hinted else set()
    names = {name for name, _, _ in config.lifetimes or ()}
    expected |= {"evicted_side_pages"} if names - {"full_attention"} else set()
    expected |= {"snapshots"} if "recurrent_state" in names else set()
    missing = [event for event in expected if not events[event]]
    assert not missing, f"the run never met {missing}: {events}"
    return events


@pytest.mark.parametrize("name", [*ENGINES, *TIERED])
def test_every_request_is_served_or_refused(name: str) -> None:
    """5,000 requests, spread over the engines without tiers; forks are requests as well."""
    events = run(name, QUICK, seed=1)
    ended = events["finished"] + events["unservable"] + events["aborted"]
    assert ended == QUICK + events["forked"]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ENGINES)
def test_one_hundred_thousand_requests(name: str) -> None:
    """100,000 requests, spread over the engines."""
    run(name, LONG, seed=2)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TIERED)
def test_one_hundred_thousand_requests_with_tiers(name: str) -> None:
    """100,000 more, spread over the engines with lower tiers."""
    run(name, cdiv(100_000, len(TIERED)), seed=4)


@pytest.mark.parametrize("publish", [0, 1])
@pytest.mark.parametrize("point", ["in flight", "completed", "after its result"])
@pytest.mark.parametrize("last", range(5))
def test_an_abort_leaves_nothing_at_any_point(last: int, point: str, publish: int) -> None:
    """vllm-ascend#16662, dynamo#7489: an abort in or after any of five chunks frees all, once."""
    s = Scenario("core", num_pages=(17,), has_draft=True, lookahead=1, extra_tokens=2)
    s.serve(tokens(6))
    step = s.begin()
    handle, hit = s.try_admit(step, tokens(20), first=3)
    assert hit == 5
    for _ in range(last):
        s.complete(step)
        s.advance(step, handle)
        step = s.begin()
        assert s.grow(step, handle, 3)
    if point != "in flight":
        s.complete(step)
    if point == "after its result":
        s.advance(step, handle)
    s.release(handle, publish)
    before = s.ledger.digest()
    # The result and a second abort arrive late, and nobody is there any more.
    for late in (lambda: s.advance(step, handle), lambda: s.release(handle)):
        with pytest.raises(LedgerError, match="names no open sequence"):
            late()
    assert s.ledger.digest() == before
    if point == "in flight":
        assert s.count("fenced") > 0
        s.complete(step)
    s.ledger.validate()
    assert s.count("live") == s.count("fenced") == s.count("protected") == 0
    s.ledger.reset_reuse_state()
    assert s.count("free") == 16


def test_an_abort_in_the_step_of_its_end_frees_at_once() -> None:
    """vllm#29906: the abort comes first, and the finished request is not released again."""
    s = Scenario("core", num_pages=(9,))
    handle = s.prefill(tokens(8), 50)
    s.release(handle, publish=0)
    with pytest.raises(LedgerError, match="names no open sequence"):
        s.release(handle)
    assert s.count("live") == s.count("fenced") == 0


def test_usage_stays_within_the_pool_and_gauges_add_up() -> None:
    """vllm-ascend#10048: in every tick no count is below 0 or above the pool."""
    config, options = ENGINES["pair, overlapping"]
    Simulation(config, replace(options, validate_every=1), 100, seed=3).run()


def test_usage_of_every_tier_stays_within_its_pages() -> None:
    """vllm-ascend#10048 : pages of each tier by state add up in every tick."""
    config, options = TIERED["full, window and state, tiers"]
    assert isinstance(options, TierOptions)
    TieredSimulation(config, replace(options, validate_every=1), 100, seed=3).run()

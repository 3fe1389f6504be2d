"""Faults that users of other caches reported about their lower tiers, one test per kind.

A letter and a number name the kind. Those about the movers are in tests/tiers: L1, L2 (files), L5
(round trips), L7 (every buffer), L9 (limits of memory). E2, F6 and L8 are tests of
test_ledger_tiers.py and test_ledger_tiers_loads.py, L3 with contents one of
test_ledger_tiers_contents.py, N2 one of test_simulation.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from managers_setup import new
from reference.scenario import ENGINES, Scenario, tokens
from test_managers_tiers import SlowExecutor, prompt, serve, slow, tiered_plan

from tandemkv.managers import Batch, Managers, build_managers
from tandemkv.tiers import BookkeepingExecutor

A, B, C, D = (tokens(4, start) for start in (0, 100, 200, 300))
LONG = tokens(20)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def build(engine: str, host: int = 0, disk: int = 0, **options: object) -> Scenario:
    pages = {"host_pages": (host,) if host else None, "disk_pages": (disk,) if disk else None}
    return Scenario(engine, **{**pages, **options})


def host_is_whole(s: Scenario) -> dict[str, int]:
    shelf = s.shelf("host")
    assert shelf["free"] + shelf["writing"] + shelf["valid"] == shelf["total"]
    return shelf


# D: what is claimed


def test_d8_a_lookup_pins_nothing_and_a_load_only_what_it_loads(engine: str) -> None:
    """D8, LMCache#1034: lookups fill the host with entries that cannot be evicted."""
    s = build(engine, host=8)
    s.demote(LONG)
    s.release(s.prefill_from_below((*LONG, 9999)))  # now nothing is to be fetched
    for _ in range(3):
        s.ledger.fits([s.request((*LONG, 9999))])
        s.below(LONG)
    assert host_is_whole(s)["pinned"] == 0
    s.ledger.offload(64)
    s.copy()
    # The last block may not be loaded: one token must run. Four of five pages are read.
    step = s.begin()
    s.admit(step, LONG)
    assert host_is_whole(s)["pinned"] == 4
    s.copy()
    assert host_is_whole(s)["pinned"] == 0


def test_d9_a_refused_request_holds_nothing_that_it_found(engine: str) -> None:
    """D9, TensorRT-LLM#19202: pages claimed before an admission stay held when it fails."""
    s = build(engine, host=8, num_pages=(9,))
    s.demote(LONG)
    step = s.begin()
    s.admit(step, tokens(24, 500), scope=-1)
    pages, stats = s.stats()["classes"], s.ledger.tier_stats()
    before = s.ledger.digest() if engine == "core" else b""
    # Found on the host, and no pages for them now.
    assert s.try_admit(step, (*LONG, 9999)) == (-1, 0)
    assert (s.stats()["classes"], s.ledger.tier_stats()) == (pages, stats)
    assert engine != "core" or s.ledger.digest() == before
    assert host_is_whole(s)["pinned"] == 0


def test_d13_a_probe_makes_nothing_more_valuable(engine: str) -> None:
    """D13, Mooncake#2187: existence probes renewed everything, so that nothing could be evicted."""
    s = build(engine, host=2)
    s.demote(A, B)
    for _ in range(1000):
        assert s.below(A) == (0, 4, 0)
        s.ledger.fits([s.request((*A, 9999))])
    s.demote(C)
    assert s.below(A) == (0, 0, 0)
    assert s.below(B) == s.below(C) == (0, 4, 0)
    assert s.tiers("lost") == 1


# E, F: whose page it is


def test_e6_a_hundred_swaps_keep_every_count(engine: str) -> None:
    """E6, TensorRT-LLM#12834: negative counts after pages of two tiers were swapped."""
    s = build(engine, host=6, num_pages=(9,), max_sequences=2)
    handles = []
    for start in (0, 400):
        handles.append(s.prefill((*tokens(20, start), 7)))
        s.ledger.suspend([(handles[-1], 0)])
    for turn in range(100):
        s.ledger.offload(64)
        s.copy()
        step = s.begin()
        handle = handles[turn % 2]
        count, [ok], [hit] = s.ledger.resume(step, [(handle, 21)])
        assert (count, ok) == (1, 1)
        s.copy()
        if hit:
            assert s.sequence(handle)["history"] == hit
            s.grow(step, handle, 21 - hit)
        s.complete(step)
        s.advance(step, handle)
        s.ledger.suspend([(handle, 0)])
        shelf = host_is_whole(s)
        assert min(shelf[state] for state in ("free", "writing", "valid", "spare")) >= 0
        pages = s.stats()["classes"][0]
        parts = ("free", "fenced", "live", "cached", "reserved")
        assert sum(pages[state] for state in parts) == pages["total"]
        assert min(pages.values()) >= 0
    assert s.stats()["loaded_blocks"] > 100


def test_f2_an_evicted_page_leaves_before_its_next_owner_writes() -> None:
    """F2, vllm#52360: a page was used again while a store still had to read it.

    Rows are with the executor before `prepare_resources` returns, and a copy that fails leaves no
    entry that keeps a later one from being written.
    """
    executor = SlowExecutor()
    managers = build_managers(
        tiered_plan(), materialize=False, executor=executor, num_dummy_requests=0
    )
    serve(managers, "a", prompt(100), fill=False)
    taken = []
    for start in (200, 300):
        batch = ask(prompt(start))
        assert managers.prepare_resources(batch).all()
        row = managers.block_tables(["x"])[0][0, 0]
        taken += [page for page in row.tolist() if page]
        # Every page that was cached and belongs to the new request has been handed over.
        assert {row[3] for row in executor.seen} <= set(taken)
        managers.update_resources(batch, [[7]])
        managers.free_resources("x")
    sent = len(executor.seen)
    assert sent > 0
    executor.finish(ok=False)
    serve(managers, "a", prompt(100), fill=False)  # computed: nothing is found
    for start in (200, 300):
        serve(managers, "x", prompt(start), fill=False)
    assert len(executor.seen) > sent
    assert managers.stats().tiers is not None
    assert managers.stats().tiers["counters"]["failed"] == sent


def ask(text: list[int]) -> Batch:
    return new("x", text, max_total=len(text) + 2)


def test_f4_nothing_is_stored_before_the_step_that_writes_it_is_over(engine: str) -> None:
    """F4, vllm#46278: a copy to the host began before the kernel had finished."""
    s = build(engine, host=8)
    step = s.begin()
    handle = s.admit(step, (*A, *B, 7))
    s.advance(step, handle)
    s.release(handle)
    assert s.ledger.offload(64) == 0
    assert s.ledger.pending_transfers() == 0
    s.complete(step)
    assert s.ledger.offload(64) == 3
    assert len(s.take()) == 2


def test_f8_what_the_host_refuses_leaves_no_key_behind(engine: str) -> None:
    """F8, sglang#27108: a backup that failed was treated as done, and the device copy dropped."""
    s = build(engine, host=1)
    s.serve((*A, *B, 7))
    s.ledger.offload(64)  # the host's page is being written, so the second block gets none
    assert (s.tiers("rejected"), s.ledger.pending_transfers()) == (1, 1)
    s.copy()
    assert s.below((*A, *B)) == (0, 0, 0)  # block 1 has a copy, which nothing leads to
    assert s.below(A) == (0, 0, 0)
    s.serve((*A, *B, 7))
    assert s.stats()["hit_tokens"] == 0


def test_f9_what_is_read_stays_however_long_that_takes(engine: str) -> None:
    """F9, Mooncake#850: a lease of 30 s ran out while its pages were read."""
    s = build(engine, host=2, ttl_ms=30_000)
    s.demote(A, B)
    step = s.begin()
    handle = s.admit(step, (*A, 9999))
    rows = s.take()
    s.complete(step)
    for day in range(1, 5):
        s.now = 86_400.0 * day
        s.demote(tokens(4, 1000 * day))
        assert host_is_whole(s)["pinned"] == 1
    s.finish(rows)
    assert s.sequence(handle)["history"] == 4


# L: host and disk


def test_l3_a_copy_that_is_being_written_is_a_miss(engine: str) -> None:
    """L3, LMCache#4385: a page was read while its write was in progress."""
    s = build(engine, host=8)
    s.serve((*A, 9999))
    s.ledger.offload(64)
    rows = s.take()
    assert s.below(A) == (0, 0, 0)
    step = s.begin()
    handle, hit = s.try_admit(step, (*A, 9999))
    assert (hit, s.is_loading(handle)) == (0, False)
    s.finish(rows)
    assert s.below(A) == (0, 4, 0)


def test_l4_l6_a_key_without_its_value_is_computed_and_forgotten() -> None:
    """L4 dynamo#15079, L6 Mooncake#3465: the key is listed, the value cannot be read."""
    managers, executor = slow()
    batch = ask(prompt(100))
    assert not managers.prepare_resources(batch).any()
    managers.update_resources(batch, [[]])
    executor.finish(ok=False)
    assert managers.prepare_resources(batch).all()
    assert managers.hit_lengths(["x"]).tolist() == [0]
    managers.update_resources(batch, [[7]])
    managers.free_resources("x")
    stats = managers.stats()
    assert (stats.ledger["hit_tokens"], stats.ledger["missed_load_tokens"]) == (0, 20)
    tokens_on = managers.ledger.match_tiers(np.array([*prompt(100), 1], np.int32))
    assert tokens_on[1:] == (0, 0)


def test_l9_without_tiers_a_suspended_request_is_computed_again() -> None:
    """L9, TensorRT-LLM#12306: suspending needed a host tier, and waited for one."""
    managers = build_managers(tiered_plan(), materialize=False, num_dummy_requests=0)
    assert managers.tiers is None
    batch = ask(prompt(100))
    managers.prepare_resources(batch)
    managers.update_resources(batch, [[7]])
    managers.suspend(["x"])
    for start in (200, 300):
        serve(managers, "other", prompt(start), fill=False)
    managers.prepare_resources(Batch([]))
    assert managers.resume(["x"], np.array([30], np.int32)).all()
    assert managers.hit_lengths(["x"]).tolist() == [0]
    assert managers.sequence("x")["outstanding"] == [(managers.step, 22)]


def test_l10_any_number_of_blocks_comes_back(engine: str) -> None:
    """L10, vllm#28950: 37 pages did not fill whole pages of a host with larger ones."""
    s = build(engine, host=40, num_pages=(41,))
    text = tokens(37 * 4)
    s.demote(text)
    assert s.shelf("host")["valid"] == 37
    step = s.begin()
    handle, hit = s.try_admit(step, (*text, 9999))
    assert (hit, len(s.copy())) == (148, 37)
    assert s.sequence(handle)["history"] == 148


def test_l11_an_emptied_page_is_used_before_anything_is_evicted(engine: str) -> None:
    """L11, TensorRT-LLM#18868: good entries were evicted while emptied slots lay unused."""
    s = build(engine, host=3)
    s.demote(A, B, C)
    # Reading A fails: its page is empty.
    step = s.begin()
    s.admit(step, (*A, 9999))
    s.finish(s.take(), ok=0)
    s.complete(step)
    assert s.shelf("host")["free"] == 1
    s.demote(D)
    assert s.tiers("lost") == 0
    assert s.below(B) == s.below(C) == s.below(D) == (0, 4, 0)


def test_l12_what_was_rejected_is_stored_the_next_time(engine: str) -> None:
    """L12, Mooncake#3331: puts that were rejected were never tried again."""
    s = build(engine, host=1)
    s.serve((*A, 9999))
    s.serve((*B, 9999))
    s.ledger.offload(64)
    assert s.tiers("rejected") == 1
    s.copy()
    assert [s.below(text) for text in (A, B)] == [(0, 4, 0), (0, 0, 0)]
    s.demote(B)
    assert [s.below(text) for text in (A, B)] == [(0, 0, 0), (0, 4, 0)]
    assert s.tiers("rejected") == 1


# N, Q: counters, and room for swaps


def test_n4_every_direction_counts_its_transfers(engine: str) -> None:
    """N4, dynamo#4549: the counter of loads was always 0."""
    s = build(engine, host=2, disk=8)
    for start in range(0, 1200, 100):
        s.demote(tokens(4, start))
    on_disk = [start for start in range(0, 1200, 100) if s.below(tokens(4, start))[2]]
    on_host = [start for start in range(0, 1200, 100) if s.below(tokens(4, start))[1]]
    moved = {name: s.tiers(name) for name in ("device_to_host", "host_to_disk")}
    assert (moved["device_to_host"], len(on_host)) == (12, 2)
    assert moved["host_to_disk"] >= len(on_disk) > 2
    for start in (*on_disk[:3], on_host[0]):
        s.prefill_from_below((*tokens(4, start), 9999))
    assert (s.tiers("disk_to_device"), s.tiers("host_to_device")) == (3, 1)
    only_disk = build(engine, disk=8)
    only_disk.demote(A, B)
    assert only_disk.tiers("device_to_disk") == 2


def test_q5_swaps_never_take_more_than_the_host_has() -> None:
    """Q5, vllm#5578: n-best requests used the swap space up; above its cap they are computed."""
    managers = build_managers(
        tiered_plan(num_pages=25, host_pages=6),
        materialize=False,
        executor=BookkeepingExecutor(),
        num_dummy_requests=0,
    )
    names = ["a", "b", "c"]
    for name, start in zip(names, (100, 200, 300), strict=True):
        batch = new(name, prompt(start), max_total=26)
        assert managers.prepare_resources(batch).all()
        managers.update_resources(batch, [[7]])
    managers.suspend(names)
    assert managers.ledger.offload(100) == 3 * (5 + 1)  # partial blocks are dropped
    stats = managers.stats()
    assert stats.tiers is not None
    managers.tiers.run()  # type: ignore[union-attr]
    [shelf] = shelves(managers, "host")
    assert (shelf["valid"], shelf["total"]) == (6, 6)
    assert managers.stats().tiers["counters"]["rejected"] == 15 - 6  # type: ignore[index]
    for name in names:
        managers.prepare_resources(Batch([]))
        assert managers.resume([name], np.array([30], np.int32)).all()
        managers.moves()
        ran = managers.sequence(name)["outstanding"]
        assert [width for _, width in ran] == [22 - managers.hit_lengths([name])[0]]
        managers.update_resources(Batch([name], chunk_lens=[ran[0][1]]), [[8]])
        [shelf] = shelves(managers, "host")
        assert shelf["free"] + shelf["writing"] + shelf["valid"] == 6
    for name in names:
        managers.free_resources(name)


def shelves(managers: Managers, tier: str) -> Iterator[dict[str, int]]:
    found = managers.ledger.tier_stats()["shelves"]
    return (shelf for shelf in found if shelf["tier"] == tier)


def test_a_last_tier_that_cannot_take_all_loses_no_page(engine: str) -> None:
    """Case runtime-052: more goes down than fits; the rest is refused, and every page is free."""
    s = build(engine, host=2, disk=1)
    s.serve((*tokens(40), 9999))
    assert s.ledger.offload(64) == 11
    assert s.tiers("rejected") == 8
    s.copy()
    for _ in range(3):
        s.ledger.flush()
        s.copy()
    pages = s.stats()["classes"][0]
    assert pages["free"] == pages["total"] - pages["reserved"]
    for tier in ("host", "disk"):
        shelf = s.shelf(tier)
        assert shelf["free"] + shelf["valid"] == shelf["total"]

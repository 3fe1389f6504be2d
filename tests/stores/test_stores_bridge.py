"""Two engines that share nothing but a store: what one evicted, the other one reuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from managers_setup import layers, new
from store_engine import PAYLOAD, Engine, prompt, store_prompts, tiered_plan
from store_faults import FakeClock, FaultyBackend, ManualExecutor, faulty_store

import tandemkv as tkv
from tandemkv.errors import RequestError, StoreError
from tandemkv.managers import Managers, build_managers
from tandemkv.stores import MemoryStore, Outcome, StoreBridge
from tandemkv.stores.shelves import geometry_fingerprint
from tandemkv.tiers import DEVICE, HOST, TransferPlan


@pytest.mark.parametrize("writer", ["interleaved", "per_layer"])
@pytest.mark.parametrize("reader", ["interleaved", "per_layer"])
def test_an_engine_reuses_what_another_one_computed(writer: str, reader: str):
    store = MemoryStore(1 << 20)
    one, other = Engine(store, arrangement=writer), Engine(store, arrangement=reader)
    assert other.fetch(prompt(100)) == 0
    store_prompts(one, 100)
    # 5 full blocks; their next token, which the draft's KV depends on, is in the prompt.
    assert other.bridge.fetch("x", prompt(100)) == 5
    assert other.bridge.poll() == 5
    assert other.serve(prompt(100)) == 20
    # A prompt that goes on differently in block 3 shares three blocks. What the third one leaves
    # in the draft depends on the token after it, so that it shares two where that differs.
    assert Engine(store).fetch([*prompt(100, 13), *prompt(500, 8)]) == 3
    assert Engine(store).fetch([*prompt(100, 12), *prompt(500, 8)]) == 2
    stats = other.bridge.stats()
    assert (stats.asked, stats.found, stats.adopted, stats.pending_fetches) == (10, 5, 5, 0)
    assert other.managers.stats().to_dict()["tiers"]["counters"]["adopted"] == 5


def test_what_tiers_have_is_not_asked_for():
    store = MemoryStore(1 << 20)
    one, other = Engine(store), Engine(store)
    store_prompts(one, 100)
    # On the host.
    assert one.bridge.fetch("x", prompt(100)) == 0
    # On the device: two blocks of it.
    other.serve(prompt(100, 9))
    assert other.bridge.fetch("x", prompt(100)) == 3
    assert other.bridge.poll() == 3
    assert other.serve(prompt(100)) == 20


def test_scopes_and_media_are_part_of_what_is_asked_for():
    store = MemoryStore(1 << 20)
    one, other = Engine(store), Engine(store)
    fields = {"adapter": ("sql", 3), "cache_salt": "tenant", "media": [(2, 5, bytes(32))]}
    many = {"adapters": ("sql", 3), "cache_salts": "tenant", "media": [(2, 5, bytes(32))]}
    batch = new("x", prompt(100), max_total=23, **many)
    assert one.managers.prepare_resources(batch).all()
    one.managers.update_resources(batch, [[7]])
    one.managers.free_resources("x")
    store_prompts(one)
    for name, changed in (
        ("adapter", ("sql", 4)),
        ("cache_salt", "another"),
        ("cache_salt", None),
        ("media", [(2, 5, bytes(31) + b"\1")]),
        ("media", ()),
    ):
        other.bridge.fetch("x", prompt(100), **{**fields, name: changed})
        assert other.bridge.poll() == 0
    assert other.bridge.fetch("x", prompt(100), **fields) == 5
    assert other.bridge.poll() == 5
    assert other.bridge.fetch("x", prompt(100), scope=-1) == 0  # private


def test_other_weights_share_nothing():
    store = MemoryStore(1 << 20)
    one = Engine(store)
    store_prompts(one, 100)
    plan = tiered_plan()
    managers = build_managers(plan, num_dummy_requests=0, fingerprint=b"other weights")
    bridge = StoreBridge(managers, plan, store)
    assert bridge.fetch("x", prompt(100)) == 5
    assert bridge.poll() == 0


@pytest.mark.parametrize(
    "edit",
    [
        lambda value: value[:50],
        np.zeros_like,
        lambda value: np.concatenate([value[:-1], value[-1:] ^ 1]),
        lambda value: Outcome.FAILED,
    ],
)
def test_blocks_after_one_that_is_missing_are_not_used(edit: Callable[[Any], Any]):
    backend = FaultyBackend()
    store = faulty_store(backend)
    one, other = Engine(store), Engine(store)
    store_prompts(one, 100)
    key = other.managers.ledger.tier_keys(np.array(prompt(100), np.int32))[3].tobytes()
    layout = other.bridge._shelf.layout
    backend.edits[layout.name(key)] = edit
    assert other.fetch(prompt(100)) == 3
    assert other.serve(prompt(100)) == 12
    assert store.stats().misses == 1


def test_what_did_not_reach_the_host_is_not_offered():
    store = MemoryStore(1 << 20)
    engine = Engine(store)
    names = np.arange(64, dtype=np.uint8).reshape(2, 32)
    rows = [[7, 0, DEVICE, 3, HOST, 5], [8, 0, DEVICE, 4, HOST, 6]]
    engine.bridge.planned(TransferPlan(np.array(rows), names))
    engine.bridge.completed(np.array([8, 7, 9]), np.array([1, 0, 1], np.uint8))
    layout = engine.bridge._shelf.layout
    assert store.exists(layout, names, timeout_s=1).poll().tolist() == [False, True]
    assert engine.bridge.stats().offered == 1
    # Nothing is left to be offered with another transfer of that number.
    engine.bridge.completed(np.array([7, 8]), np.array([1, 1], np.uint8))
    assert engine.bridge.stats().offered == 1


def test_a_store_that_fails_costs_hits_and_nothing_else():
    backend = FaultyBackend()
    store = faulty_store(backend, max_failures=1000)
    one, other = Engine(store), Engine(store)
    backend.raises = OSError("gone")
    store_prompts(one, 100)
    assert store.stats().outcomes["put"] == {"failed": one.bridge.stats().offered}
    assert other.fetch(prompt(100)) == 0
    assert other.serve(prompt(100)) == 0
    backend.raises = None
    store_prompts(one, 200)
    assert other.fetch(prompt(200)) == 5


def test_a_fetch_that_is_late_is_given_up_and_the_request_computes():
    clock, executor = FakeClock(), ManualExecutor()
    store = faulty_store(FaultyBackend(), executor, clock)
    one, other = Engine(store), Engine(store, get_timeout_s=1.0)
    store_prompts(one, 100)
    while executor.jobs:
        executor.run()
    assert other.bridge.fetch("x", prompt(100)) == 5
    assert other.bridge.is_pending("x")
    assert other.bridge.poll() == 0
    with pytest.raises(RequestError, match="a fetch for 'x' is pending"):
        other.bridge.fetch("x", prompt(100))
    clock.now += 2.0
    assert other.bridge.poll() == 0
    assert not other.bridge.is_pending("x")
    assert other.serve(prompt(100)) == 0
    executor.run()
    assert other.bridge.fetch("y", prompt(100)) == 0  # its five blocks are cached by now
    # One that is given up by the engine, and one whose blocks come in time.
    third = Engine(store)
    assert third.bridge.fetch("y", prompt(100)) == 5
    third.bridge.cancel("y")
    third.bridge.cancel("y")
    assert third.bridge.stats().pending_fetches == 0
    assert third.bridge.fetch("y", prompt(100)) == 5
    while executor.jobs:
        executor.run()
    assert third.bridge.poll() == 5
    assert third.serve(prompt(100)) == 20


def test_memory_for_fetches_is_bounded():
    store = MemoryStore(1 << 20)
    one = Engine(store)
    store_prompts(one, 100, 200)
    executor = ManualExecutor()
    slow = faulty_store(FaultyBackend(), executor)
    other = Engine(slow, max_fetch_bytes=8 * PAYLOAD + 1)
    assert other.bridge.fetch("a", prompt(100)) == 5
    assert other.bridge.fetch("b", prompt(200)) == 3
    assert other.bridge.fetch("c", prompt(300)) == 0
    while executor.jobs:
        executor.run()
    other.bridge.poll()
    assert other.bridge.fetch("c", prompt(300)) == 5


def test_ranks_adopt_what_all_of_them_got():
    stores = [MemoryStore(1 << 20), MemoryStore(1 << 20)]
    seen: list[list[np.ndarray]] = [[], []]

    def agree_as(rank: int) -> Callable[[np.ndarray], np.ndarray]:
        def agree(values: np.ndarray) -> np.ndarray:
            seen[rank].append(values)
            place = len(seen[rank]) - 1
            other = seen[1 - rank]
            return np.minimum(values, other[place]) if place < len(other) else values

        return agree

    for store in stores:
        store_prompts(Engine(store), 100)
    readers = [Engine(store, agree=agree_as(rank)) for rank, store in enumerate(stores)]
    # Rank 1 lacks block 2.
    layout = readers[0].bridge._shelf.layout
    keys = readers[0].managers.ledger.tier_keys(np.array(prompt(100), np.int32))
    stores[1]._backend.drop([layout.name(keys[2].tobytes())])
    assert [reader.bridge.fetch("x", prompt(100)) for reader in readers] == [5, 5]
    assert readers[1].bridge.poll() == 2
    assert readers[0].bridge.poll() == 2
    digests = {reader.managers.ledger.digest() for reader in readers}
    assert len(digests) == 1


@pytest.mark.parametrize("seed", range(3))
def test_conversations_on_three_engines_keep_every_page(seed: int):
    """Pools and a store for a part of them, values that are spoiled: no page is ever wrong."""
    rng = random.Random(seed)
    backend = FaultyBackend(30 * (128 + PAYLOAD))
    store = faulty_store(backend, max_failures=1000)
    engines = [
        Engine(store, host_pages=pages, arrangement=arrangement)
        for pages, arrangement in ((6, "interleaved"), (9, "per_layer"), (12, "interleaved"))
    ]
    layout = engines[0].bridge._shelf.layout
    texts = [prompt(1000 * number, rng.randrange(9, 14)) for number in range(6)]
    hits = 0

    def flip(value: np.ndarray) -> np.ndarray:
        value = value.copy()
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        return value

    for _ in range(60):
        number = rng.randrange(len(texts))
        engine = rng.choice(engines)
        if rng.random() < 0.2:
            keys = engine.managers.ledger.tier_keys(np.array(texts[number], np.int32))
            backend.edits = {layout.name(key.tobytes()): flip for key in keys[-1:]}
        backend.raises = OSError() if rng.random() < 0.1 else None
        engine.fetch(texts[number])
        hits += engine.serve(texts[number])
        if len(texts[number]) < 22:
            texts[number] = [*texts[number], *(rng.randrange(90) for _ in range(3))]
        else:
            texts[number] = prompt(1000 * number, 9)
    assert hits > 0
    assert sum(engine.bridge.stats().adopted for engine in engines) > 10
    assert store.stats().misses > 0


def test_fingerprints_tell_pages_apart_that_are_not_the_same():
    def fingerprint(rank: int = 0, *, tp: int = 1, **changes: Any) -> bytes:
        options = {
            name: changes.pop(name) for name in ("kv_layout", "arrangement") if name in changes
        }
        target = tkv.Layer(
            kind="attention",
            kv_dtype=changes.pop("kv_dtype", "bf16"),
            num_kv_heads=2,
            head_dim=changes.pop("head_dim", 8),
        )
        plan = tkv.plan(
            tkv.ModelGeometry(layers=(target,) * changes.pop("num_layers", 2), name="target"),
            config=tkv.KvCacheConfig(
                max_gpu_total_bytes="1MiB",
                host_cache_size="1MiB",
                tokens_per_block=changes.pop("tokens_per_block", 16),
                max_batch_size=1,
                max_seq_len=64,
            ),
            mapping=tkv.Mapping(tp_size=tp, pp_size=changes.pop("pp", 1)),
        )
        managers = build_managers(plan, rank, tiers=False, **options)
        return geometry_fingerprint(managers, plan, rank, [0])

    assert fingerprint() == fingerprint(arrangement="per_layer")
    different = [
        fingerprint(),
        fingerprint(kv_dtype="fp16"),
        fingerprint(head_dim=16),
        fingerprint(num_layers=3),
        fingerprint(tokens_per_block=32),
        fingerprint(kv_layout="HND"),
        fingerprint(0, tp=2),
        fingerprint(1, tp=2),
        fingerprint(0, pp=2),
        fingerprint(1, pp=2),
    ]
    assert len(set(different)) == len(different)
    assert {len(item) for item in different} == {32}


def test_a_bridge_needs_a_host_tier_in_memory():
    plan = tiered_plan(0)
    managers: Managers = build_managers(plan, num_dummy_requests=0)
    with pytest.raises(StoreError, match="outer stores need a host tier"):
        StoreBridge(managers, plan, MemoryStore(1 << 20))


def test_a_model_with_windows_is_refused():
    window = tkv.Layer(
        kind="attention",
        kv_dtype="fp32",
        num_kv_heads=1,
        head_dim=2,
        window=8,
    )
    plan = tiered_plan(
        64,
        target=(*layers(2), window),
        max_gpu_total_bytes="64KiB",
        host_cache_size="64KiB",
        cached_endpoints=4,
    )
    managers = build_managers(plan, num_dummy_requests=0)
    with pytest.raises(StoreError, match="keeps sliding_window beside full attention"):
        StoreBridge(managers, plan, MemoryStore(1 << 20))

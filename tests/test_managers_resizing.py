"""`apply_plan`: pools grow and shrink while requests run, and their KV stays what it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from managers_setup import TPB, decode, new, run, small_managers, small_plan
from test_managers_moves import Engine

import tandemkv as tkv
from tandemkv.errors import ConfigError, LedgerError, PoolError, StepError


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_requests_keep_their_kv(arrangement: Any) -> None:
    rng = random.Random(arrangement)
    managers = small_managers(33, arrangement=arrangement, max_batch_size=6)
    engine, moved, refused = Engine(managers), 0, 0
    for number in range(60):
        name = f"r{number}"
        # Prompts that share beginnings, so that pages of the cache move as well.
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, 14))]
        if len(engine.texts) < 5:
            engine.texts[name] = list(prompt)
            engine.step(new(name, prompt, max_total=len(prompt) + 8), [[1]])
        elif rng.random() < 0.5:
            gone = rng.choice(sorted(engine.texts))
            managers.free_resources(gone)
            del engine.texts[gone]
        plan = small_plan(rng.randint(12, 48), max_batch_size=6)
        try:
            moved += len(managers.apply_plan(plan))
        except LedgerError as error:
            assert error.code == "pool_too_small"  # noqa: PT017
            refused += 1
            continue
        managers.ledger.validate()
        for view in managers.views:
            share = getattr(plan.ranks[0], view.role)
            assert view.num_pages == share.num_pages
            assert view.pool.buffer.nbytes == view.device_bytes == share.device_bytes
            assert not view.pool.pages[0].any() if arrangement == "interleaved" else True
        assert managers.limits.usable_pages == managers.target.num_pages - 1
        for request_id in engine.texts:
            engine.check(request_id, managers.sequence(request_id)["history"])
    assert moved > 20
    assert refused > 3
    assert managers.ledger.stats()["hit_tokens"] > 0


def test_tables_name_the_new_pages() -> None:
    managers = small_managers(33)
    run(managers, new("old", range(40)), [[5]])
    run(managers, new("a", range(100, 112)), [[5]])
    managers.free_resources("old", publish=False)
    groups = managers.block_offsets.groups
    before = np.zeros((len(groups), 1, 2, managers.ledger.row_width), np.int32)
    managers.block_offsets.copy(before, ["a"])
    moves = managers.apply_plan(small_plan(12))
    assert len(moves) > 0
    after = np.zeros_like(before)
    managers.block_offsets.copy(after, ["a"])
    pages, _ = managers.block_tables(["a"])
    assert pages.max() < 12
    assert (after[0, 0, 0] == groups[0].scale * pages[0, 0]).all()
    assert (before != after).any()
    run(managers, decode(["a"]), [[6]])


def test_an_engine_with_its_own_memory_gets_the_rows() -> None:
    managers = small_managers(33, materialize=False)
    run(managers, new("old", range(40)), [[5]])
    run(managers, new("a", range(100, 112)), [[5]])
    managers.free_resources("old", publish=False)
    before, _ = managers.block_tables(["a"])
    moves = managers.apply_plan(small_plan(12))
    after, _ = managers.block_tables(["a"])
    places = {source: destination for _, source, destination, _ in moves.tolist()}
    renamed = [places.get(page, page) for page in before[0, 0].tolist()]
    assert renamed == after[0, 0].tolist()
    assert moves[:, 3].tolist() == [TPB] * len(moves)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_seq_len": 32}, "max_seq_len"),
        ({"max_batch_size": 5}, "max_requests"),
        ({"tokens_per_block": 8}, "tokens_per_block"),
        ({"draft_len": 3}, "extra_tokens"),
        ({"reuse": False}, "enable_block_reuse"),
        ({"draft": False}, "draft tp_size"),
        ({"pp_size": 2}, "ranks"),
    ],
)
def test_only_sizes_may_differ(options: dict[str, Any], field: str) -> None:
    managers = small_managers(33)
    run(managers, new("a", range(9)), [[5]])
    digest, pools = managers.ledger.digest(), [view.pools for view in managers.views]
    with pytest.raises(ConfigError, match=field):
        managers.apply_plan(small_plan(24, **options))
    assert managers.ledger.digest() == digest
    assert [view.pools for view in managers.views] == pools


def test_what_does_not_fit_or_runs_is_refused() -> None:
    managers = small_managers(33)
    run(managers, new("a", range(30), max_total=60), [[5]])
    digest, pools = managers.ledger.digest(), [view.pools for view in managers.views]
    with pytest.raises(LedgerError, match=r"num_pages\[0\] is 9, must be at least 18") as caught:
        managers.apply_plan(small_plan(9))
    assert caught.value.details == {"class_index": 0, "needed": 18, "given": 9}
    assert managers.prepare_resources(decode(["a"])).all()
    with pytest.raises(LedgerError, match="cannot resize: 1 steps are open"):
        managers.apply_plan(small_plan(40))
    managers.skip_step()
    assert managers.ledger.digest() != digest, "a step was begun"
    assert [view.pools for view in managers.views] == pools
    managers.apply_plan(small_plan(18))


def test_copies_that_wait_come_first() -> None:
    managers = small_managers(33)
    run(managers, new("a", range(5)), [[5]])
    batch = decode(["a"], 3)
    assert managers.prepare_resources(batch).all()
    managers.update_resources(batch, [[6, 7]], paths=[[0, 2]])
    with pytest.raises(StepError, match="run_token_moves"):
        managers.apply_plan(small_plan(40))
    managers.run_token_moves()
    managers.apply_plan(small_plan(40))


def test_pools_below_the_device_are_not_replaced() -> None:
    layer = tkv.Layer(kind="attention", kv_dtype="fp32", num_kv_heads=1, head_dim=2)
    plan = tkv.plan(
        tkv.ModelGeometry(layers=(layer,), name="target"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=4096, host_cache_size=4096, tokens_per_block=4,
            max_batch_size=2, max_seq_len=32,
        ),
    )  # fmt: skip
    with pytest.raises(PoolError, match="use host or disk"):
        tkv.build_managers(plan).apply_plan(plan)
    tkv.build_managers(plan, tiers=False).apply_plan(plan)

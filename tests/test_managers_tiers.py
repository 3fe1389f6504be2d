"""Host and disk under the managers: who waits, who runs, and what their pages hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import managers_setup
import numpy as np
import pytest
from managers_setup import TPB, layers, new

import tandemkv as tkv
from tandemkv.managers import Batch, Managers, build_managers
from tandemkv.tiers import BookkeepingExecutor, TierOptions, TransferPlan


def tiered_plan(num_pages: int = 9, host_pages: int = 16, **config: Any) -> tkv.Plan:
    """Return a plan of target and draft with so many pages on device and host."""
    per_page = TPB * (managers_setup.TARGET_BYTES + managers_setup.DRAFT_BYTES)
    return tkv.plan(
        tkv.ModelGeometry(layers=layers(2), name="target"),
        tkv.ModelGeometry(layers=layers(1), name="draft", role="draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=num_pages * per_page,
            host_cache_size=host_pages * per_page,
            tokens_per_block=TPB,
            max_batch_size=4,
            max_seq_len=26,
            **config,
        ),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=1),
    )


class SlowExecutor(BookkeepingExecutor):
    """Says that a transfer is done when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ...]] = []
        self.open: list[int] = []
        self.done: list[tuple[int, bool]] = []

    def submit(self, plan: TransferPlan, stream: object | None = None) -> None:
        self.seen += [tuple(row) for row in plan.rows.tolist()]
        self.open += sorted(set(plan.ids.tolist()))

    def finish(self, which: Callable[[int], bool] = lambda _: True, ok: bool = True) -> None:
        self.done += [(number, ok) for number in self.open if which(number)]
        self.open = [number for number in self.open if not which(number)]

    def poll(self, wait: bool = False) -> tuple[np.ndarray, np.ndarray]:
        done, self.done = self.done, []
        return (
            np.array([number for number, _ in done], np.int64),
            np.array([ok for _, ok in done], np.uint8),
        )


def prompt(start: int, length: int = 21) -> list[int]:
    return list(range(start, start + length))


def ask(request_id: str, tokens: list[int]) -> Batch:
    return new(request_id, tokens, max_total=len(tokens) + 2)


def write(managers: Managers, request_id: str, tokens: list[int]) -> None:
    """Write into the pools of both roles what only these tokens leave there."""
    row = managers.block_tables([request_id])[0][0, 0]
    for view in managers.views:
        pages = view.pools[0].buffer.view(np.float32).reshape(view.pools[0].num_pages, TPB, -1)
        for position, token in enumerate(tokens):
            pages[row[position // TPB], position % TPB] = token + position * 1000


def check(managers: Managers, request_id: str, tokens: list[int], length: int) -> None:
    row = managers.block_tables([request_id])[0][0, 0]
    for view in managers.views:
        pages = view.pools[0].buffer.view(np.float32).reshape(view.pools[0].num_pages, TPB, -1)
        for position in range(length):
            held = pages[row[position // TPB], position % TPB]
            assert (held == tokens[position] + position * 1000).all(), (view.role, position)


def serve(managers: Managers, request_id: str, tokens: list[int], fill: bool = True) -> int:
    """Run a prompt in one step and free it; return what it reused."""
    batch = ask(request_id, tokens)
    assert managers.prepare_resources(batch).all(), managers.refusals
    hit = int(managers.hit_lengths([request_id])[0])
    if fill:
        check(managers, request_id, tokens, hit)
        write(managers, request_id, tokens)
    managers.run_moves() if fill else managers.moves()
    managers.update_resources(batch, [[7]])
    managers.free_resources(request_id)
    return hit


def slow(**options: Any) -> tuple[Managers, SlowExecutor]:
    """Return managers that have A on the host, and an executor that waits."""
    executor = SlowExecutor()
    managers = build_managers(
        tiered_plan(), materialize=False, executor=executor, num_dummy_requests=0, **options
    )
    for request_id, start in (("a", 100), ("b", 200), ("c", 300)):
        serve(managers, request_id, prompt(start), fill=False)
        executor.finish()
    assert managers.tiers is not None
    managers.tiers.collect()
    return managers, executor


def test_a_host_hit_runs_in_the_step_that_asks_for_it() -> None:
    managers = build_managers(tiered_plan(), num_dummy_requests=0)
    for start in (100, 200, 300):
        assert serve(managers, "x", prompt(start)) == 0
    # 5 full blocks; the draft's lookahead of 1 leaves all of them their next token.
    assert serve(managers, "x", prompt(100)) == 20
    assert managers.tiers is not None
    counters = managers.stats().to_dict()["tiers"]["counters"]
    assert counters["host_to_device"] == 5
    assert managers.stats().ledger["loaded_blocks"] == 5
    assert managers.stats().ledger["hit_tokens"] == 20


def test_ten_conversations_on_pools_for_one_keep_every_page() -> None:
    managers = build_managers(tiered_plan(host_pages=64), num_dummy_requests=0)
    texts = [prompt(1000 * number, 13) for number in range(10)]
    for _ in range(4):
        for number, text in enumerate(texts):
            serve(managers, "x", text)
            texts[number] = [*text, *range(text[-1] + 1, text[-1] + 3)]
    assert managers.stats().ledger["loaded_blocks"] > 60
    managers.ledger.validate()


def test_a_request_waits_for_its_pages_and_runs_when_they_are_there() -> None:
    managers, executor = slow()
    batch = ask("again", prompt(100))
    assert not managers.prepare_resources(batch).any()
    assert managers.refusals["again"].reason == "loading"
    assert managers.request_ids == ()
    managers.update_resources(batch, [[]])
    assert not managers.prepare_resources(batch).any()
    managers.update_resources(batch, [[]])
    executor.finish()
    assert managers.prepare_resources(batch).all()
    assert managers.hit_lengths(["again"]).tolist() == [20]
    managers.update_resources(batch, [[7]])
    assert managers.sequence("again")["history"] == 21


def test_two_requests_share_one_load() -> None:
    managers, executor = slow()
    before = len(executor.seen)
    both = Batch(
        ["one", "two"],
        chunk_lens=[21, 21],
        prompts=[prompt(100), prompt(100)],
        max_total_tokens=[22, 22],
    )
    assert not managers.prepare_resources(both).any()
    assert {refusal.reason for refusal in managers.refusals.values()} == {"loading"}
    managers.update_resources(both, [[], []])
    executor.finish()
    assert managers.prepare_resources(both).all()
    assert managers.hit_lengths(["one", "two"]).tolist() == [20, 20]
    loads = [row for row in executor.seen[before:] if row[4] == 0]
    assert len(loads) == 5


def test_what_does_not_arrive_is_computed() -> None:
    managers, executor = slow()
    batch = ask("again", prompt(100))
    managers.prepare_resources(batch)
    managers.update_resources(batch, [[]])
    loads = [row[0] for row in executor.seen if row[4] == 0]
    executor.finish(lambda number: number == loads[2], ok=False)
    executor.finish()
    assert managers.prepare_resources(batch).all()
    assert managers.hit_lengths(["again"]).tolist() == [8]
    managers.update_resources(batch, [[7]])
    assert managers.stats().ledger["missed_load_tokens"] == 12


def test_a_waiting_request_can_be_freed_or_replaced() -> None:
    managers, executor = slow()
    batch = ask("again", prompt(100))
    managers.prepare_resources(batch)
    managers.skip_step()
    assert managers.stats().tiers["waiting_requests"] == 1
    managers.free_resources("again")
    with pytest.raises(tkv.RequestError, match="'again' is not open"):
        managers.free_resources("again")
    executor.finish()
    managers.prepare_resources(Batch([]))
    managers.skip_step()
    [pages] = managers.stats().pages
    assert pages["live"] == pages["protected"] == 0

    managers.prepare_resources(batch)
    managers.skip_step()
    other = ask("again", prompt(500))
    assert managers.prepare_resources(other).all() or managers.refusals
    assert managers.stats().tiers["waiting_requests"] == 0


def test_a_preempted_request_can_be_freed_while_it_waits() -> None:
    managers, executor = slow()
    batch = ask("again", prompt(400))
    assert managers.prepare_resources(batch).all()
    managers.update_resources(batch, [[7]])
    managers.preempt(["again"])
    managers.ledger.offload(100)
    managers.prepare_resources(Batch([]))
    executor.finish()
    managers.skip_step()
    managers.prepare_resources(batch)
    assert managers.refusals["again"].reason == "loading"
    managers.skip_step()
    managers.free_resources("again")
    with pytest.raises(tkv.RequestError, match="'again' is not open"):
        managers.free_resources("again")
    # A new request of that id is no readmission. The pages come back with the step after the load.
    executor.finish()
    managers.prepare_resources(Batch([]))
    managers.skip_step()
    assert managers.prepare_resources(ask("again", prompt(500))).all()
    assert (managers.stats().preempted, managers.stats().readmitted) == (1, 0)


def test_a_suspended_request_comes_back_from_the_host() -> None:
    managers = build_managers(tiered_plan(), num_dummy_requests=0)
    tokens = prompt(100)
    batch = ask("long", tokens)
    managers.prepare_resources(batch)
    write(managers, "long", tokens)
    managers.update_resources(batch, [[7]])
    managers.suspend(["long"])
    assert managers.ledger.offload(100) > 0
    for start in (200, 300):
        serve(managers, "x", prompt(start))
    managers.prepare_resources(Batch([]))
    assert managers.resume(["long"], np.array([8], np.int32)).all()
    check(managers, "long", tokens, 20)
    assert managers.hit_lengths(["long"]).tolist() == [20]
    assert managers.stats().ledger["loaded_blocks"] == 5


def test_a_resumed_request_waits_until_its_pages_are_there() -> None:
    managers, executor = slow()
    batch = ask("long", prompt(400))
    managers.prepare_resources(batch)
    managers.update_resources(batch, [[7]])
    managers.suspend(["long"])
    managers.ledger.offload(100)
    managers.prepare_resources(Batch([]))
    executor.finish()
    chunk = np.array([8], np.int32)
    assert not managers.resume(["long"], chunk).any()
    assert not managers.resume(["long"], chunk).any()
    executor.finish()
    assert managers.resume(["long"], chunk).all()
    assert managers.hit_lengths(["long"]).tolist() == [20]
    with pytest.raises(tkv.LedgerError, match="is not suspended"):
        managers.resume(["long"], chunk)


def test_ranks_see_the_completions_they_agreed_on() -> None:
    managers, executor = slow()
    held: list[int] = []

    def agree(ids: np.ndarray, ok: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        held.extend(ids.tolist())
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)

    assert managers.tiers is not None
    managers.tiers.agree = agree
    batch = ask("again", prompt(100))
    managers.prepare_resources(batch)
    managers.skip_step()
    executor.finish()
    assert not managers.prepare_resources(batch).any()
    managers.skip_step()
    assert held
    managers.tiers.agree = lambda ids, ok: (np.array(held, np.int64), np.ones(len(held), np.uint8))
    assert managers.prepare_resources(batch).all()


def test_tiers_need_what_they_need(tmp_path: Path) -> None:
    plan = tiered_plan()
    assert build_managers(plan, materialize=False).tiers is None
    assert build_managers(plan, tiers=False).tiers is None
    with pytest.raises(tkv.ConfigError, match=r"materialize=False.*an executor has to move"):
        build_managers(plan, materialize=False, tiers=True)
    with pytest.raises(tkv.ConfigError, match="enable_block_reuse=False"):
        build_managers(tiered_plan(enable_block_reuse=False))
    with pytest.raises(tkv.ConfigError, match="neither host nor disk"):
        build_managers(managers_setup.small_plan(), tiers=True)
    with pytest.raises(tkv.ConfigError, match="pages on disk: name a folder"):
        build_managers(tiered_plan(disk_cache_size=16384))
    with pytest.raises(tkv.ConfigError, match=r"has 42 pages on disk, and no room for one with"):
        build_managers(tiered_plan(disk_cache_size=8191))
    with pytest.raises(tkv.ConfigError, match="have no disk tier of their own"):
        build_managers(plan, disk=tmp_path)
    with pytest.raises(tkv.ConfigError, match="one that names the weights"):
        build_managers(tiered_plan(disk_cache_size=16384), disk=tmp_path, persistent=True)
    assert list(tmp_path.iterdir()) == []


def on_disk(path: Path, fingerprint: bytes = b"weights") -> Managers:
    plan = tiered_plan(host_pages=64, disk_cache_size=64 * 4096)
    return build_managers(
        plan, num_dummy_requests=0, disk=path, persistent=True, fingerprint=fingerprint
    )


def test_a_restart_finds_what_was_cached(tmp_path: Path) -> None:
    first = on_disk(tmp_path)
    assert first.tiers is not None
    for start in range(100, 900, 100):
        serve(first, "x", prompt(start))
        first.tiers.drain()
    first.ledger.offload(100)
    first.tiers.flush()
    first.tiers.close()
    second = on_disk(tmp_path)
    assert second.tiers is not None
    restored = second.stats().tiers["counters"]["restored"]
    assert restored == 40
    hits = []
    for start in range(100, 900, 100):
        batch = ask("x", prompt(start))
        while not second.prepare_resources(batch).all():
            assert second.refusals["x"].reason == "loading"
            second.skip_step()
            second.tiers.collect(wait=True)
        hits.append(int(second.hit_lengths(["x"])[0]))
        check(second, "x", prompt(start), hits[-1])
        second.update_resources(batch, [[7]])
        second.free_resources("x")
    assert hits == [20] * 8
    assert second.stats().tiers["counters"]["disk_to_device"] == restored
    second.tiers.close()
    with pytest.raises(tkv.TierError, match="fingerprint"):
        on_disk(tmp_path, b"other weights")


def test_what_was_reset_is_not_found_after_a_restart(tmp_path: Path) -> None:
    first = on_disk(tmp_path)
    assert first.tiers is not None
    for start in (100, 200, 300):
        serve(first, "x", prompt(start))
    first.ledger.offload(100)
    first.tiers.flush()
    first.reset_reuse_state()
    serve(first, "x", prompt(400))
    first.ledger.offload(100)
    first.tiers.flush()
    first.tiers.close()
    second = on_disk(tmp_path)
    assert second.tiers is not None
    assert second.stats().tiers["counters"]["restored"] == 5
    found = second.ledger.match_tiers(np.array(prompt(400), np.int32))
    assert found == (0, 0, 20)
    second.tiers.close()


def test_ranks_start_with_what_all_of_them_found(tmp_path: Path) -> None:
    page_bytes = TPB * managers_setup.TARGET_BYTES // 2
    plan = tkv.plan(
        tkv.ModelGeometry(layers=layers(2), name="target"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=9 * page_bytes,
            disk_cache_size=64 * 4096,
            tokens_per_block=TPB,
            max_batch_size=4,
            max_seq_len=24,
        ),
        mapping=tkv.Mapping(pp_size=2),
    )
    with pytest.raises(tkv.ConfigError, match=r"a plan of 2 ranks.*agree_restored"):
        build_managers(plan, disk=tmp_path, persistent=True, fingerprint=b"weights")
    seen: list[Any] = []

    def agree(found: Any) -> Any:
        seen.extend(found)
        return []

    managers = build_managers(
        plan,
        disk=tmp_path,
        persistent=True,
        fingerprint=b"weights",
        tier_options=TierOptions(agree_restored=agree),
    )
    assert managers.tiers is not None
    assert managers.stats().tiers["counters"]["restored"] == 0
    managers.tiers.close()


def test_windows_without_pages_on_the_host_are_named() -> None:
    full, window = layers(1)[0], dataclasses.replace(layers(1)[0], window=8)
    plan = tkv.plan(
        tkv.ModelGeometry(layers=(full, window), name="target"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="64KiB",
            host_cache_size="64KiB",
            tokens_per_block=TPB,
            max_batch_size=2,
            max_seq_len=64,
            max_num_tokens=32,
        ),
    )
    with pytest.raises(tkv.ConfigError, match=r"sliding_window on host.*give `cached_endpoints`"):
        build_managers(plan)

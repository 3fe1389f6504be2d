"""Pages between device and host: contents, order, refusals; sizes that cannot be had."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tier_setup import (
    DEVICE_PAGES,
    FULL_CLASS,
    NUM_CLASSES,
    STATE_CLASS,
    WINDOW_CLASS,
    device_row,
    digest,
    key_of,
    load_row,
    make_pools,
    move,
    page_views,
    plan_of,
    wait_for_all,
    write_page,
)

import tandemkv as tkv
from tandemkv.errors import ArrayError, ConfigError, TierError
from tandemkv.tiers import (
    DEVICE,
    DISK,
    HOST,
    BookkeepingExecutor,
    HostLimits,
    TierExecutor,
    TransferPlan,
    build_executor,
    check_host_memory,
    host_limits,
    tier_pages,
)
from tandemkv.tiers.host import HostTier
from tandemkv.tiers.pages import device_group

HOST_PAGES = (20, 7, 3)


def host_executor(pools: Any, **options: Any) -> TierExecutor:
    executor = build_executor(pools, NUM_CLASSES, host_pages=HOST_PAGES, **options)
    assert isinstance(executor, TierExecutor)
    return executor


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
@pytest.mark.parametrize("class_index", [FULL_CLASS, WINDOW_CLASS, STATE_CLASS])
def test_every_buffer_of_every_role_moves_with_its_page(
    backend: str, arrangement: Any, class_index: int
) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    pools = make_pools(arrangement, backend)
    for number in range(NUM_CLASSES):
        for page in range(1, DEVICE_PAGES[number]):
            write_page(pools, number, page, 100 * number + page)
    before = {
        (number, page): digest(pools, number, page)
        for number in range(NUM_CLASSES)
        for page in range(DEVICE_PAGES[number])
    }
    with host_executor(pools) as executor:
        assert move(executor, [device_row(1, class_index, 2, HOST, 0)]) == {1: True}
        write_page(pools, class_index, 2, 999)
        assert move(executor, [load_row(2, class_index, HOST, 0, 4)]) == {2: True}
    after = {place: digest(pools, *place) for place in before}
    assert after.pop((class_index, 4)) == before[class_index, 2]
    assert after.pop((class_index, 2)) != before[class_index, 2]
    assert after == {place: before[place] for place in after}


def test_a_host_page_is_the_page_of_an_interleaved_pool() -> None:
    """What lies on lower tiers does not depend on the arrangement of the pool."""
    stored = []
    for arrangement in ("interleaved", "per_layer"):
        pools = make_pools(arrangement)
        write_page(pools, FULL_CLASS, 3, 5)
        groups = [device_group(pool) for pool in pools]
        host = HostTier(groups, HOST_PAGES)
        with TierExecutor(groups, NUM_CLASSES, copier=_copier(), host=host) as executor:
            move(executor, [device_row(1, FULL_CLASS, 3, HOST, 6)])
            parts = [part.tobytes() for part in host.parts(FULL_CLASS, 6)]
        assert [len(part) for part in parts] == [pools[0].page_bytes, pools[3].page_bytes]
        stored.append(parts)
        expected = b"".join(part.tobytes() for part in page_views(pools[0], 3))
        assert parts[0] == expected
    assert stored[0] == stored[1]


def _copier() -> Any:
    from tandemkv.tiers.copies import HostCopier  # noqa: PLC0415

    return HostCopier()


def test_rows_take_effect_in_their_order() -> None:
    """A page is evicted, its place is loaded, and evicted again, in one plan."""
    pools = make_pools()
    with host_executor(pools) as executor:
        write_page(pools, FULL_CLASS, 1, 1)
        move(executor, [device_row(1, FULL_CLASS, 1, HOST, 0)])
        write_page(pools, FULL_CLASS, 5, 2)
        first, second = digest(pools, FULL_CLASS, 1), digest(pools, FULL_CLASS, 5)
        rows = [
            device_row(2, FULL_CLASS, 5, HOST, 1),
            load_row(3, FULL_CLASS, HOST, 0, 5),
            device_row(4, FULL_CLASS, 5, HOST, 2),
            load_row(5, FULL_CLASS, HOST, 1, 6),
            load_row(6, FULL_CLASS, HOST, 2, 7),
        ]
        executor.submit(plan_of(rows))
        # Copies are done when `submit` returns.
        found = [digest(pools, FULL_CLASS, page) for page in (5, 6, 7)]
        assert found == [first, second, first]
        assert wait_for_all(executor) == dict.fromkeys(range(2, 7), True)
        assert executor.outstanding == 0


def test_a_transfer_of_several_classes_is_one() -> None:
    pools = make_pools()
    with host_executor(pools) as executor:
        rows = [device_row(9, number, 1, HOST, 0) for number in range(NUM_CLASSES)]
        executor.submit(plan_of(rows))
        ids, ok = executor.poll()
        assert (ids.tolist(), ok.tolist()) == ([9], [1])
        assert (ids.dtype, ok.dtype) == (np.int64, np.uint8)
        assert executor.poll()[0].size == 0
        assert executor.stats()["directions"] == {"device_to_host": {"rows": 3, "failed": 0}}


def test_a_failed_copy_is_a_failed_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = make_pools()
    with host_executor(pools) as executor:
        copier = executor._copier
        down = copier.to_host

        def broken(group: Any, *rest: Any) -> None:
            if group.class_index == WINDOW_CLASS:
                raise RuntimeError("no such device any more")
            down(group, *rest)

        monkeypatch.setattr(copier, "to_host", broken)
        rows = [device_row(1, FULL_CLASS, 1, HOST, 0), device_row(1, WINDOW_CLASS, 1, HOST, 0)]
        assert move(executor, rows) == {1: False}
        assert executor.stats()["last_error"] == "RuntimeError: no such device any more"
        assert move(executor, [device_row(2, FULL_CLASS, 1, HOST, 0)]) == {2: True}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 0, DEVICE, 0, HOST, 0], "page 0 on the device, where class 0 has pages 1 to 8"),
        ([1, 1, DEVICE, 6, HOST, 0], "page 6 on the device, where class 1 has pages 1 to 5"),
        ([1, 0, HOST, 0, DEVICE, 9], "page 9 on the device"),
        ([1, 0, DEVICE, 1, HOST, 20], "page 20 on the host, where class 0 has pages 0 to 19"),
        ([1, 0, DEVICE, 1, HOST, -1], "page -1 on the host"),
        ([1, 0, DEVICE, 1, DISK, 0], "page 0 on the disk, where class 0 has pages 0 to -1"),
        ([1, 0, DEVICE, 1, DEVICE, 2], "goes from tier 0 to 0"),
        ([1, 0, 3, 1, HOST, 2], "goes from tier 3 to 1"),
        ([1, 3, DEVICE, 1, HOST, 0], "has class 3; there are 0 to 2"),
        ([1, -1, DEVICE, 1, HOST, 0], "has class -1"),
    ],
)
def test_rows_out_of_range_are_refused_and_nothing_is_started(row: Any, message: str) -> None:
    pools = make_pools()
    with host_executor(pools) as executor:
        good = device_row(7, FULL_CLASS, 1, HOST, 0)
        with pytest.raises(TierError, match=f"row 1 .*{message}"):
            executor.submit(plan_of([good, row]))
        assert executor.outstanding == 0
        assert move(executor, [good]) == {7: True}


def test_a_closed_executor_takes_nothing() -> None:
    executor = host_executor(make_pools())
    executor.close()
    executor.close()
    with pytest.raises(TierError, match="closed"):
        executor.submit(plan_of([device_row(1, FULL_CLASS, 1, HOST, 0)]))


def test_a_plan_is_what_was_given() -> None:
    rows = np.array([device_row(1, 0, 2, HOST, 3), load_row(2, 1, HOST, 4, 5)], np.int64)
    keys = np.frombuffer(key_of(1) + key_of(2), np.uint8).reshape(2, 32).copy()
    plan = TransferPlan(rows, keys)
    rows[...] = 0
    keys[...] = 0
    assert plan.rows.tolist() == [[1, 0, 0, 2, 1, 3], [2, 1, 1, 4, 0, 5]]
    with pytest.raises(ValueError, match="read-only"):
        plan.rows[0, 0] = 3
    parts = plan.split()
    assert {direction: part.ids.tolist() for direction, part in parts.items()} == {
        (DEVICE, HOST): [1],
        (HOST, DEVICE): [2],
    }
    assert plan.num_bytes([10, 100]) == 110
    assert plan.to_dict([10, 100]) == {
        "transfers": [
            {
                "id": 1,
                "class": 0,
                "source": ["device", 2],
                "destination": ["host", 3],
                "key": key_of(1).hex(),
            },
            {
                "id": 2,
                "class": 1,
                "source": ["host", 4],
                "destination": ["device", 5],
                "key": key_of(2).hex(),
            },
        ],
        "bytes": 110,
    }
    assert [part.ids.tolist() for _, part in plan.stretches()] == [[1], [2]]


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        (np.zeros((1, 6), np.int32), np.zeros((1, 32), np.uint8), "rows: dtype int64"),
        (np.zeros((1, 5), np.int64), np.zeros((1, 32), np.uint8), r"rows: shape \(any, 6\)"),
        (np.zeros((1, 6), np.int64), np.zeros((2, 32), np.uint8), "keys: 2 keys for 1 rows"),
        (np.zeros((1, 6), np.int64), np.zeros((1, 31), np.uint8), r"keys: shape \(any, 32\)"),
        ([[0] * 6], np.zeros((1, 32), np.uint8), "rows: dtype int64 is needed, not list"),
    ],
)
def test_plans_of_another_form_are_refused(rows: Any, keys: Any, message: str) -> None:
    with pytest.raises(ArrayError, match=message):
        TransferPlan(rows, keys)


def test_host_tier_takes_the_bytes_of_its_pages() -> None:
    pools = make_pools()
    host = HostTier([device_group(pool) for pool in pools], HOST_PAGES)
    assert host.num_bytes == sum(HOST_PAGES[pool.class_index] * pool.page_bytes for pool in pools)
    for number, pool in enumerate(pools):
        assert host.buffer(number).ctypes.data % resource.getpagesize() == 0
        assert not host.buffer(number).any()
        assert host.buffer(number).nbytes == HOST_PAGES[pool.class_index] * pool.page_bytes
    with pytest.raises(ConfigError, match="num_pages is -1"):
        HostTier([device_group(pool) for pool in pools], (-1, 0, 0))


def test_memory_that_is_not_there_is_refused_in_one_line() -> None:
    groups = [device_group(pool) for pool in make_pools()]
    size = HostTier(groups, HOST_PAGES).num_bytes
    for local_ranks, reserved, available, fits in (
        (1, 0, size, True),
        (1, 0, size - 1, False),
        (8, 0, 8 * size, True),
        (8, 0, 8 * size - 1, False),
        (2, 1000, 2 * size + 2000, True),
        (2, 1000, 2 * size + 1999, False),
    ):
        limits = HostLimits(available_bytes=available, memlock_bytes=None)
        options = {"local_ranks": local_ranks, "reserved_bytes": reserved, "limits": limits}
        if fits:
            HostTier(groups, HOST_PAGES, **options).close()
            continue
        with pytest.raises(TierError) as caught:
            HostTier(groups, HOST_PAGES, **options)
        assert caught.value.tier == "host"
        assert f"{available} are available" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_pinning_needs_the_right_to_lock() -> None:
    groups = [device_group(pool) for pool in make_pools()]
    size = HostTier(groups, HOST_PAGES).num_bytes
    pinned: list[int] = []

    def pin(array: np.ndarray) -> Any:
        if len(pinned) == 2:
            raise TierError("the device refuses", tier="host")
        pinned.append(array.nbytes)
        return lambda: pinned.remove(array.nbytes)

    limits = HostLimits(available_bytes=None, memlock_bytes=size - 1)
    with pytest.raises(TierError, match=f"RLIMIT_MEMLOCK is {size - 1} bytes"):
        HostTier(groups, HOST_PAGES, pin=pin, limits=limits)
    assert pinned == []
    HostTier(groups, HOST_PAGES, limits=limits).close()  # pageable memory needs no right
    limits = HostLimits(available_bytes=None, memlock_bytes=size)
    with pytest.raises(TierError, match="the device refuses"):
        HostTier(groups, HOST_PAGES, pin=pin, limits=limits)
    assert pinned == []  # what was locked before is unlocked


def test_memory_that_the_system_refuses_is_an_error() -> None:
    limits = HostLimits(available_bytes=None, memlock_bytes=None)
    groups = [device_group(pool) for pool in make_pools()]
    with pytest.raises(TierError, match=r"host tier: \d+ bytes of memory: "):
        HostTier(groups, (2**31 - 1, 0, 0), limits=limits)


def test_limits_are_those_of_the_system(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 700 kB\n",
        "proc/self/cgroup": "0::/a/b\n",
        "proc/self/status": "Name: x\nCapEff: 0000000000000000\n",
        "sys/fs/cgroup/a/memory.max": "500000\n",
        "sys/fs/cgroup/a/memory.current": "300000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 20000\nactive_file 3000\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "300000\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert host_limits(tmp_path).available_bytes == 223_000
    (tmp_path / "sys/fs/cgroup/a/memory.max").write_text("2000000\n")
    assert host_limits(tmp_path).available_bytes == 700 * 1024
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    expected = None if soft == resource.RLIM_INFINITY else soft
    assert host_limits(tmp_path).memlock_bytes == expected
    (tmp_path / "proc/self/status").write_text("CapEff: 0000000000004000\n")  # CAP_IPC_LOCK
    assert host_limits(tmp_path).memlock_bytes is None
    assert host_limits(tmp_path / "nothing").available_bytes is None
    check_host_memory(2**60, limits=host_limits(tmp_path / "nothing"))


def test_pools_without_memory_move_nothing() -> None:
    plan = _plan_with_tiers()
    managers = tkv.build_managers(plan, materialize=False)
    executor = build_executor(managers.target.pools, 1, host_pages=(5,))
    assert isinstance(executor, BookkeepingExecutor)
    executor.submit(plan_of([device_row(4, 0, 1, HOST, 0), device_row(5, 0, 2, HOST, 1)]))
    assert [part.tolist() for part in executor.poll(wait=True)] == [[4, 5], [1, 1]]
    executor.close()
    with pytest.raises(TierError, match="closed"):
        executor.submit(plan_of([device_row(6, 0, 1, HOST, 0)]))
    with pytest.raises(TierError, match="with and without memory"):
        build_executor([*managers.target.pools, *make_pools()], 1)


def _plan_with_tiers() -> tkv.Plan:
    layer = tkv.Layer(kind="attention", kv_dtype="fp32", num_kv_heads=1, head_dim=2)
    return tkv.plan(
        tkv.ModelGeometry(layers=(layer,) * 2, name="target"),
        tkv.ModelGeometry(layers=(layer,), name="draft", role="draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=10 * 4 * 48,
            host_cache_size=25 * 4 * 48 + 7,
            tokens_per_block=4,
            max_batch_size=1,
            max_seq_len=16,
        ),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=2),
    )


def test_tier_pages_are_the_planned_ones() -> None:
    # 4 tokens of 2 target layers and 1 draft layer of 2 x 1 head of 2 in fp32: 16 bytes each.
    pages = tier_pages(_plan_with_tiers())
    assert pages.host == (25,)
    assert pages.disk == (0,)

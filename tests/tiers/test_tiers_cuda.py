"""The copier of GPUs on a fake one, whose streams run when they are waited for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))

import fake_cuda
from fake_cuda import FakeCuda
from test_tiers_moves import DISK_PAGES, HOST_PAGES, Tiers
from tier_setup import (
    FULL_CLASS,
    NUM_CLASSES,
    STATE_CLASS,
    WINDOW_CLASS,
    device_row,
    digest,
    load_row,
    make_pools,
    open_pool_store,
    plan_of,
    wait_for_all,
    write_page,
)

from tandemkv.errors import ArrayError, TierError
from tandemkv.managers.pools import Pool
from tandemkv.tiers import (
    DISK,
    HOST,
    DiskStore,
    HostLimits,
    TierExecutor,
    build_executor,
)


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_cuda.installed(None) as fake:
        yield fake


def on_gpu(arrangement: Any = "interleaved") -> list[Pool]:
    return make_pools(arrangement, "cupy", "cuda:0")


def executor_of(pools: list[Pool], **options: Any) -> TierExecutor:
    executor = build_executor(pools, NUM_CLASSES, host_pages=HOST_PAGES, **options)
    assert isinstance(executor, TierExecutor)
    return executor


def store_of(folder: Path, pools: list[Pool]) -> DiskStore:
    return open_pool_store(folder, pools, DISK_PAGES)


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_copies_are_queued_between_the_steps_of_the_stream(gpu: FakeCuda, arrangement: Any) -> None:
    """Kernels before the plan have written what is evicted; those after it overwrite the page."""
    pools, stream = on_gpu(arrangement), gpu.stream()
    with executor_of(pools) as executor:
        digests = []

        def step(seed: int) -> None:
            def kernel() -> None:
                for class_index in range(NUM_CLASSES):
                    write_page(pools, class_index, 2, 10 * seed + class_index)
                digests.append([digest(pools, number, 2) for number in range(NUM_CLASSES)])

            stream.queue.append(kernel)

        step(1)
        rows = [device_row(1, number, 2, HOST, 1) for number in range(NUM_CLASSES)]
        executor.submit(plan_of(rows), stream)
        step(2)
        rows = [load_row(2, number, HOST, 1, 3) for number in range(NUM_CLASSES)]
        executor.submit(plan_of(rows), stream)
        assert executor.poll()[0].tolist() == []
        stream.run(1)
        assert executor.poll()[0].tolist() == []  # the kernel has run, the copies have not
        assert wait_for_all(executor) == {1: True, 2: True}
        assert [digest(pools, number, 3) for number in range(NUM_CLASSES)] == digests[0]
        assert digests[0] != digests[1]


def test_an_event_is_enough_for_poll(gpu: FakeCuda) -> None:
    pools, stream = on_gpu(), gpu.stream()
    with executor_of(pools) as executor:
        executor.submit(plan_of([device_row(1, FULL_CLASS, 1, HOST, 0)]), stream)
        executor.submit(plan_of([device_row(2, FULL_CLASS, 2, HOST, 1)]), stream)
        queued = len(stream.queue)
        assert queued == 2 * (2 + 1)  # a copy for each role, and an event
        stream.run(queued // 2)
        ids, ok = executor.poll()
        assert (ids.tolist(), ok.tolist()) == ([1], [1])
        stream.synchronize()
        assert executor.poll()[0].tolist() == [2]


def test_a_load_from_disk_waits_for_the_eviction_of_its_page(gpu: FakeCuda, tmp_path: Path) -> None:
    pools, stream = on_gpu(), gpu.stream()
    with executor_of(pools, disk=store_of(tmp_path, pools)) as executor:
        write_page(pools, FULL_CLASS, 1, 1)
        stored = digest(pools, FULL_CLASS, 1)
        executor.submit(plan_of([device_row(1, FULL_CLASS, 1, DISK, 4)]), stream)
        assert wait_for_all(executor) == {1: True}
        write_page(pools, FULL_CLASS, 3, 2)
        evicted = digest(pools, FULL_CLASS, 3)
        key = plan_of([device_row(1, FULL_CLASS, 1, DISK, 4)]).keys.tobytes()
        rows = [device_row(2, FULL_CLASS, 3, HOST, 5), load_row(3, FULL_CLASS, DISK, 4, 3)]
        executor.submit(plan_of(rows, keys=[key, key]), stream)
        # The read may have come back long before the stream gets to the eviction.
        while executor._jobs.running:
            executor._take_results(wait=True)
        executor._advance()
        assert digest(pools, FULL_CLASS, 3) == evicted
        executor._copier._loads.synchronize()  # runs first what it waits for
        assert digest(pools, FULL_CLASS, 3) == stored
        assert wait_for_all(executor) == {2: True, 3: True}
        assert digest(pools, FULL_CLASS, 3) == stored
        executor.submit(plan_of([load_row(4, FULL_CLASS, HOST, 5, 6)]), stream)
        assert wait_for_all(executor) == {4: True}
        assert digest(pools, FULL_CLASS, 6) == evicted


def test_an_eviction_to_disk_is_written_after_the_stream_has_passed(
    gpu: FakeCuda, tmp_path: Path
) -> None:
    pools, stream = on_gpu("per_layer"), gpu.stream()
    with executor_of(pools, disk=store_of(tmp_path, pools)) as executor:
        stream.queue.append(lambda: write_page(pools, FULL_CLASS, 1, 7))
        executor.submit(plan_of([device_row(1, FULL_CLASS, 1, DISK, 0)]), stream)
        stream.queue.append(lambda: write_page(pools, FULL_CLASS, 1, 8))
        assert executor._jobs.running == 0
        assert wait_for_all(executor) == {1: True}
        stream.synchronize()
        key = plan_of([device_row(1, FULL_CLASS, 1, DISK, 0)]).keys.tobytes()
        executor.submit(plan_of([load_row(2, FULL_CLASS, DISK, 0, 2)], keys=[key]), stream)
        assert wait_for_all(executor) == {2: True}
        write_page(pools, FULL_CLASS, 3, 7)
        assert digest(pools, FULL_CLASS, 2) == digest(pools, FULL_CLASS, 3)


class GpuTiers(Tiers):
    """Random moves on the fake GPU, whose stream runs a little now and then."""

    def __init__(self, folder: Path, arrangement: Any, gpu: FakeCuda) -> None:
        self.stream = gpu.stream()
        super().__init__(folder, arrangement, seed=3)
        self.executor.close()
        self.pools = on_gpu(arrangement)
        self.store = store_of(folder, self.pools)
        self.executor = executor_of(
            self.pools, disk=self.store, staging_pages=3, when_full="wait", threads=3
        )
        self.host = self.executor._host
        submit = self.executor.submit

        def submit_on_stream(plan: Any) -> None:
            submit(plan, self.stream)
            self.stream.run(self.random.randint(0, len(self.stream.queue)))

        self.executor.submit = submit_on_stream  # type: ignore[method-assign]


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_a_thousand_moves_keep_every_page(gpu: FakeCuda, tmp_path: Path, arrangement: Any) -> None:
    tiers = GpuTiers(tmp_path, arrangement, gpu)
    tiers.run(1_000)
    assert len(tiers.executor.stats()["directions"]) == 6
    tiers.executor.close()


def test_pages_that_follow_each_other_are_one_copy(gpu: FakeCuda) -> None:
    """In pools page by page a copy per run of pages and role, else one per page or piece."""
    counts = {}
    for arrangement in ("interleaved", "per_layer"):
        pools, stream = on_gpu(arrangement), gpu.stream()
        with executor_of(pools) as executor:
            for class_index in (FULL_CLASS, WINDOW_CLASS, STATE_CLASS):
                before = gpu.copies
                rows = [device_row(1, class_index, page, HOST, page) for page in (1, 2)]
                executor.submit(plan_of(rows), stream)
                single = [device_row(2, class_index, 3, HOST, 0)]
                executor.submit(plan_of(single), stream)
                counts[arrangement, class_index] = gpu.copies - before
                wait_for_all(executor)
    assert counts == {
        ("interleaved", FULL_CLASS): 4,
        ("interleaved", WINDOW_CLASS): 2,
        ("interleaved", STATE_CLASS): 2,
        # Three different layers of the target each time, two like ones of the draft.
        ("per_layer", FULL_CLASS): 3 + 2 + 3 + 1,
        ("per_layer", WINDOW_CLASS): 3 + 1,
        ("per_layer", STATE_CLASS): 2 + 1,
    }


def test_a_stream_is_needed_and_nothing_is_started_without(gpu: FakeCuda) -> None:
    with executor_of(on_gpu()) as executor:
        with pytest.raises(ArrayError, match="needs the engine's stream"):
            executor.submit(plan_of([device_row(1, FULL_CLASS, 1, HOST, 0)]))
        assert executor.outstanding == 0


@pytest.mark.parametrize("broken", ["memcpyAsync", "record", "done"])
def test_a_device_that_fails_is_a_failed_transfer(
    gpu: FakeCuda, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the device is lost")

    pools, stream = on_gpu(), gpu.stream()
    with executor_of(pools) as executor:
        with monkeypatch.context() as patch:
            if broken == "memcpyAsync":
                patch.setattr(gpu.cuda.runtime, "memcpyAsync", fail)
            elif broken == "record":
                patch.setattr(fake_cuda.FakeEvent, "record", fail)
            else:
                patch.setattr(fake_cuda.FakeEvent, "synchronize", fail)
            executor.submit(plan_of([device_row(1, FULL_CLASS, 1, HOST, 0)]), stream)
            assert wait_for_all(executor) == {1: False}
        executor.submit(plan_of([device_row(2, FULL_CLASS, 1, HOST, 0)]), stream)
        assert wait_for_all(executor) == {2: True}


def test_host_and_staging_memory_is_pinned_while_it_is_used(gpu: FakeCuda, tmp_path: Path) -> None:
    pools = on_gpu()
    before = len(gpu._regions)
    executor = executor_of(pools, disk=store_of(tmp_path / "a", pools), pin=True)
    assert len(gpu._regions) == before + len(pools) + 2
    assert "pinned" in executor.describe()
    executor.close()
    assert len(gpu._regions) == before
    limits = HostLimits(available_bytes=None, memlock_bytes=1000)
    with pytest.raises(TierError, match="RLIMIT_MEMLOCK is 1000 bytes"):
        executor_of(pools, limits=limits)
    executor_of(pools, limits=limits, pin=False).close()
    gpu.cuda.runtime.hostRegister = _refuse
    with pytest.raises(TierError, match="bytes cannot be pinned: out of memory"):
        executor_of(pools)
    assert len(gpu._regions) == before
    with pytest.raises(TierError, match="these are on the CPU"):
        build_executor(make_pools(), NUM_CLASSES, host_pages=HOST_PAGES, pin=True)


def _refuse(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_a_real_gpu_moves_pages(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("there is no GPU")
    for arrangement in ("interleaved", "per_layer"):
        pools = on_gpu(arrangement)
        stream = cupy.cuda.Stream(non_blocking=True)
        with executor_of(pools, disk=store_of(tmp_path / arrangement, pools)) as executor:
            content = []
            for pool in pools:
                values = np.random.default_rng(1).integers(0, 256, pool.num_bytes, np.uint8)
                pool.buffer.set(values)
                content.append(values)
            cupy.cuda.get_current_stream().synchronize()
            rows = [device_row(1, number, 1, HOST, 2) for number in range(NUM_CLASSES)]
            rows += [device_row(2, number, 2, DISK, 3) for number in range(NUM_CLASSES)]
            executor.submit(plan_of(rows), stream)
            assert wait_for_all(executor) == {1: True, 2: True}
            rows = [load_row(3, number, HOST, 2, 2) for number in range(NUM_CLASSES)]
            executor.submit(plan_of(rows), stream)
            keys = [plan_of([device_row(2, 0, 1, HOST, 0)]).keys.tobytes()] * NUM_CLASSES
            rows = [load_row(4, number, DISK, 3, 1) for number in range(NUM_CLASSES)]
            executor.submit(plan_of(rows, keys=keys), stream)
            assert wait_for_all(executor) == {3: True, 4: True}
            for pool, before in zip(pools, content, strict=True):
                for spec in pool.layout.buffers:
                    start = pool.layout.start_bytes(spec, pool.num_pages)
                    stride = pool.layout.page_stride_bytes(spec.layer)
                    after = pool.buffer.get()
                    for page, was in ((1, 2), (2, 1), (3, 3)):
                        first, origin = start + page * stride, start + was * stride
                        mine = after[first : first + spec.num_bytes]
                        assert (mine == before[origin : origin + spec.num_bytes]).all()

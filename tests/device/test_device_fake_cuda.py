"""The cuda backend end to end on a fake GPU: streams, staging, the managers and their pools."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cuda
import kernel_harness as harness
import numpy as np
import pytest
from fake_cuda import FakeArray, FakeCuda

sys.path.insert(0, str(Path(__file__).parents[1]))  # as when the suite runs from `tests`

from managers_setup import decode, new, small_managers

from tandemkv.device import OffsetGroups, copy_batch_block_offsets
from tandemkv.device.publisher import TablePublisher
from tandemkv.errors import ArrayError, DeviceUnavailableError
from tandemkv.managers.memory import check_device
from tandemkv.managers.moves import PageMover
from tandemkv.managers.tables import Csr

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason=harness.SKIP_REASON)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def gpu(library: Path) -> Iterator[FakeCuda]:
    with fake_cuda.installed(harness.Shim(library)) as fake:
        yield fake


def test_pools_hold_the_planned_bytes_on_the_gpu(gpu: FakeCuda) -> None:
    managers, host = small_managers(device="cuda:0"), small_managers()
    for view, other in zip(managers.views, host.views, strict=True):
        assert view.pool.backend == "cupy"
        assert view.pool.buffer.nbytes == view.device_bytes == other.pool.buffer.nbytes
        base = int(view.pool.buffer.data)
        for layer in range(view.num_layers):
            for name in ("key", "value"):
                mine, theirs = view.pool.view(layer, name), other.pool.view(layer, name)
                assert (mine.shape, mine.strides, mine.dtype) == (
                    theirs.shape,
                    theirs.strides,
                    theirs.dtype,
                )
                assert int(mine.data) - base == theirs.ctypes.data - other.pool.buffer.ctypes.data
    with pytest.raises(DeviceUnavailableError, match="'cuda:1' cannot be built: there are 1"):
        check_device("cuda:1", materialize=True)


def test_a_step_on_the_gpu_equals_a_step_on_the_cpu(gpu: FakeCuda) -> None:
    """After each step of the same requests, pages and tables are equal once the stream has run."""
    stream = gpu.stream()
    both = small_managers(device="cuda:0"), small_managers()
    rng = np.random.default_rng(4)
    for gpu_view, cpu_view in zip(both[0].views, both[1].views, strict=True):
        content = rng.integers(0, 256, cpu_view.pool.num_bytes).astype(np.uint8)
        gpu_view.pool.buffer.set(content)
        cpu_view.pool.buffer[...] = content

    def step(batch: Any, accepted: Any, names: list[str]) -> None:
        for managers in both:
            assert managers.prepare_resources(batch).all()
            managers.run_moves(stream=stream if managers is both[0] else None)
        width = both[1].ledger.row_width
        offsets = gpu.zeros((2, 4, 2, width), np.int32), np.zeros((2, 4, 2, width), np.int32)
        slots = gpu.zeros(40, np.int64), np.zeros(40, np.int64)
        padded = gpu.zeros((3, width), np.int32), np.zeros((3, width), np.int32)
        ragged = [
            Csr(*(zeros(size, np.int32) for size in (4, 60, 3))) for zeros in (gpu.zeros, np.zeros)
        ]
        for number, managers in enumerate(both):
            queue = stream if number == 0 else None
            managers.block_offsets.copy(offsets[number], names, num_padding_rows=1, stream=queue)
            managers.tables.slot_mapping(names, out=slots[number], pad=-1, stream=queue)
            managers.tables.block_table(names, out=padded[number], stream=queue)
            managers.tables.csr(names, out=ragged[number], stream=queue)
            managers.update_resources(batch, accepted)
        assert not slots[0].get().any()  # nothing has run yet
        stream.synchronize()
        for mine, theirs in (offsets, slots, padded, *zip(*ragged, strict=True)):
            np.testing.assert_array_equal(mine.get(), theirs)
        for gpu_view, cpu_view in zip(both[0].views, both[1].views, strict=True):
            np.testing.assert_array_equal(gpu_view.pool.buffer.get(), cpu_view.pool.buffer)

    step(new("a", range(100, 118)), [[1]], ["a"])
    step(decode(["a"], 2), [[2, 3]], ["a"])
    step(new("b", [*range(100, 114), 9, 9]), [[5]], ["b"])
    assert both[0].ledger.stats()["copied_blocks"] == 1
    step(decode(["b", "a"], 3), [[6], [7, 8]], ["b", "a"])
    assert {stream for _, stream in gpu.launches} == {stream}
    assert {name for name, _ in gpu.launches} == {"copy_batch_block_offsets", "apply_page_moves"}
    assert not FakeCuda.current[0].queue, "the default stream was used"


def test_a_missing_stream_leaves_the_moves_queued(gpu: FakeCuda) -> None:
    managers = small_managers(device="cuda:0")
    stream = gpu.stream()
    for number, prompt in enumerate((range(100, 118), [*range(100, 114), 9])):
        batch = new(number, prompt)
        assert managers.prepare_resources(batch).all()
        with pytest.raises(ArrayError, match="stream: the cuda backend needs the engine's stream"):
            managers.run_moves()
        assert managers.run_moves(stream=stream.ptr) == number
        with pytest.raises(ArrayError, match="stream: the cuda backend needs"):
            managers.tables.slot_mapping([number], out=gpu.zeros(40, np.int64))
        managers.update_resources(batch, [[1]])


@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_a_slot_is_not_rewritten_before_the_kernel_has_read_it(
    gpu: FakeCuda, num_slots: int
) -> None:
    """Kernels run as late as the ring allows, and each still reads its own step's table."""
    groups = OffsetGroups([0], [2], [1], [1000])
    publisher = TablePublisher(
        groups, max_sequences=2, width=4, device="cuda:0", num_slots=num_slots
    )
    stream = gpu.stream()
    destinations = []
    for number in range(1, 9):
        destination = gpu.zeros((1, 2, 2, 4), np.int32)

        def write(pages: Any, used: Any, page: int = number) -> None:
            pages[...], used[...] = page, 4

        publisher.publish(write, 2, destination, stream=stream)
        destinations.append(destination)
    late = [not destination.get().any() for destination in destinations]
    assert late == [number >= 8 - num_slots for number in range(8)]
    stream.synchronize()
    for number, destination in enumerate(destinations, start=1):
        assert (destination.get()[0, :, 0] == 2 * number).all()
        assert (destination.get()[0, :, 1] == 2 * number + 1).all()


def test_memory_that_a_kernel_cannot_read_is_refused(gpu: FakeCuda) -> None:
    groups = OffsetGroups([0], [2], [1], [100])
    destination = gpu.zeros((1, 1, 2, 4), np.int32)
    pinned = gpu.empty_pinned((1,), np.int32)
    pinned[0] = 0
    with pytest.raises(ArrayError, match="source: the GPU cannot read pageable host memory"):
        copy_batch_block_offsets(
            np.ones((1, 1, 4), np.int32), pinned, groups, destination, stream=gpu.stream()
        )
    assert isinstance(destination, FakeArray)
    assert not gpu.launches


def test_more_moves_than_a_slot_holds_take_several_launches(gpu: FakeCuda) -> None:
    managers = small_managers(700, device="cuda:0")
    stream = gpu.stream()
    pools = [view.pool for view in managers.views]
    for pool in pools:
        pool.buffer.set(np.repeat(np.arange(700) % 251, pool.page_bytes))
    moves = np.zeros((300, 4), np.int32)
    moves[:, 1], moves[:, 2], moves[:, 3] = np.arange(1, 301), np.arange(301, 601), 4
    PageMover(pools, "cuda:0").run(moves, stream)
    assert [name for name, _ in gpu.launches] == ["apply_page_moves"] * 2
    moves[...] = -1  # the caller's array is not what the kernels read
    stream.synchronize()
    for pool in pools:
        pages = pool.pages.get()
        assert (pages[301:601] == pages[1:301]).all()
        assert (pages[601:] == (np.arange(601, 700) % 251)[:, None]).all()

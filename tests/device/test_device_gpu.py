"""The kernels on a GPU: the same cases, the caller's stream, graphs, and slots under stress."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import cupy
import cupyx
import numpy as np
import pytest
from kernel_cases import Case, random_copy, random_update
from move_cases import MoveCase, random_moves
from numpy.typing import NDArray

from tandemkv.device import (
    OffsetGroups,
    PageSegments,
    apply_block_table_updates,
    apply_page_moves,
    copy_batch_block_offsets,
)
from tandemkv.device.publisher import TablePublisher
from tandemkv.errors import ArrayError

sys.path.insert(0, str(Path(__file__).parents[1]))

from managers_setup import new, small_managers

ROOT = Path(__file__).parents[2]
HAS_GPU = cupy.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU with a working driver")


def on_device(array: NDArray[Any]) -> Any:
    """Copy an array to the GPU, as far from 16-byte alignment as it is on the host."""
    shift = array.ctypes.data % 16 // array.itemsize
    memory = cupy.empty(array.size + shift, array.dtype)
    result = memory[shift:].reshape(array.shape)
    result.set(array)
    return result


def pinned(array: NDArray[Any]) -> NDArray[Any]:
    memory: NDArray[Any] = cupyx.empty_pinned(max(array.size, 1), array.dtype)
    result = memory[: array.size].reshape(array.shape)
    result[...] = array
    return result


def gpu_arguments(case: Case, place: Any) -> dict[str, Any]:
    """Move a case's arrays: those that are written to the GPU, the others by `place`."""
    moved = dict(case.arguments)
    for name, value in moved.items():
        if isinstance(value, np.ndarray):
            written = name in ("destination", "table")
            moved[name] = on_device(value) if written else place(value)
    return moved


@needs_gpu
@pytest.mark.parametrize("place", [on_device, pinned], ids=["device", "pinned"])
def test_random_cases(place: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    for call, make in (
        (copy_batch_block_offsets, random_copy),
        (apply_block_table_updates, random_update),
    ):
        for seed in range(100):
            case = make(np.random.default_rng([9, seed]))
            arguments = gpu_arguments(case, place)
            cupy.cuda.get_current_stream().synchronize()
            call(**arguments, stream=stream)
            stream.synchronize()
            for name, expected in case.expected.items():
                if name != "source":
                    np.testing.assert_array_equal(cupy.asnumpy(arguments[name]), expected)


def moved_segments(case: MoveCase, pools: list[Any]) -> PageSegments:
    """Return the segments of a case in the copies of its pools."""
    places = {id(pool): copy for pool, copy in zip(case.pools, pools, strict=True)}
    segments = case.arguments["segments"]
    return PageSegments([replace(item, memory=places[id(item.memory)]) for item in segments])


@needs_gpu
@pytest.mark.parametrize("place", [on_device, pinned], ids=["device", "pinned"])
def test_random_page_moves(place: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    for seed in range(100):
        case = random_moves(np.random.default_rng([13, seed]))
        pools = [on_device(pool) for pool in case.pools]
        segments = moved_segments(case, pools)
        count = case.arguments["count"]
        count = place(count) if isinstance(count, np.ndarray) else count
        moves = place(case.arguments["moves"])
        cupy.cuda.get_current_stream().synchronize()
        apply_page_moves(moves, segments, count=count, stream=stream)
        stream.synchronize()
        for pool, expected in zip(pools, case.expected, strict=True):
            np.testing.assert_array_equal(cupy.asnumpy(pool), expected)


@needs_gpu
def test_managers_serve_with_pools_on_the_gpu() -> None:
    """Tables and copies of a few steps equal those of managers on the CPU."""
    stream = cupy.cuda.Stream(non_blocking=True)
    both = small_managers(device="cuda:0"), small_managers()
    for gpu_view, cpu_view in zip(both[0].views, both[1].views, strict=True):
        cpu_view.pool.buffer[...] = np.arange(cpu_view.pool.num_bytes) % 251
        gpu_view.pool.buffer.set(cpu_view.pool.buffer)
    for number, prompt in enumerate((range(100, 118), [*range(100, 114), 9, 9])):
        batch = new(number, prompt)
        slots = cupy.zeros(40, np.int64), np.zeros(40, np.int64)
        cupy.cuda.get_current_stream().synchronize()
        for managers, out in zip(both, slots, strict=True):
            queue = stream if managers is both[0] else None
            assert managers.prepare_resources(batch).all()
            assert managers.run_moves(queue) == number
            managers.tables.slot_mapping([number], out=out, stream=queue)
            managers.update_resources(batch, [[1]])
        stream.synchronize()
        np.testing.assert_array_equal(cupy.asnumpy(slots[0]), slots[1])
        for gpu_view, cpu_view in zip(both[0].views, both[1].views, strict=True):
            np.testing.assert_array_equal(cupy.asnumpy(gpu_view.pool.buffer), cpu_view.pool.buffer)


@needs_gpu
def test_every_combination_of_pinned_and_device_inputs() -> None:
    groups = OffsetGroups([0, 0], [4, 3], [1, 0], [100])
    source = np.arange(1, 33, dtype=np.int32).reshape(1, 4, 8)
    index, used = np.array([3, -1, 0], np.int32), np.array([[8, 8, 5]], np.int32)
    count = np.array([3], np.int32)
    expected = np.zeros((2, 3, 2, 8), np.int32)
    copy_batch_block_offsets(source, index, groups, expected, used=used)
    stream = cupy.cuda.Stream(non_blocking=True)
    for places in product((on_device, pinned), repeat=4):
        arrays = [
            place(array) for place, array in zip(places, (source, index, used, count), strict=True)
        ]
        destination = cupy.full(expected.shape, -7, np.int32)
        cupy.cuda.get_current_stream().synchronize()
        copy_batch_block_offsets(
            *arrays[:2], groups, destination, used=arrays[2], count=arrays[3], stream=stream
        )
        stream.synchronize()
        np.testing.assert_array_equal(cupy.asnumpy(destination), expected)


@needs_gpu
def test_pageable_memory_and_a_missing_stream_are_refused() -> None:
    groups = OffsetGroups([0], [4], [1], [100])
    source, index = np.ones((1, 2, 8), np.int32), np.zeros(1, np.int32)
    destination = cupy.full((1, 1, 2, 8), -7, np.int32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with pytest.raises(ArrayError, match="source: the GPU cannot read pageable host memory"):
        copy_batch_block_offsets(source, pinned(index), groups, destination, stream=stream)
    with pytest.raises(ArrayError, match="stream: the cuda backend needs the engine's stream"):
        copy_batch_block_offsets(pinned(source), pinned(index), groups, destination)
    assert (cupy.asnumpy(destination) == -7).all()


@needs_gpu
def test_a_captured_graph_replays_with_new_tables() -> None:
    groups = OffsetGroups([0], [3], [1], [1000])
    table = cupy.zeros((1, 4, 8), np.int32)
    index, used = cupy.full(4, -1, np.int32), cupy.zeros((1, 4), np.int32)
    count, destination = cupy.zeros(1, np.int32), cupy.full((1, 4, 2, 8), 55, np.int32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()

    def launch() -> None:
        copy_batch_block_offsets(
            table, index, groups, destination, used=used, count=count, stream=stream
        )

    launch()  # compiles and uploads the groups, which a capture must not do
    with stream:
        stream.begin_capture()
        launch()
        graph = stream.end_capture()
    rng = np.random.default_rng(5)
    expected = np.full((1, 4, 2, 8), 55, np.int32)
    for batch in (4, 1, 0, 3):
        pages = rng.integers(1, 1000, (1, 4, 8)).astype(np.int32)
        lengths = rng.integers(0, 9, (1, 4)).astype(np.int32)
        rows = rng.permutation(4).astype(np.int32)
        for device, host in ((table, pages), (used, lengths), (index, rows)):
            device.set(host, stream=stream)
        count.set(np.array([batch], np.int32), stream=stream)
        graph.launch(stream)
        stream.synchronize()
        copy_batch_block_offsets(pages, rows, groups, expected, used=lengths, count=batch)
        np.testing.assert_array_equal(cupy.asnumpy(destination), expected)


@needs_gpu
@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_a_refilled_ring_never_corrupts_a_table(num_slots: int) -> None:
    """2,000 publishes as fast as the host can refill, each into a destination of its own."""
    groups = OffsetGroups([0], [2], [1], [100_000])
    publisher = TablePublisher(
        groups, max_sequences=64, width=256, device="cuda:0", num_slots=num_slots
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    destinations = cupy.zeros((50, 1, 64, 2, 256), np.int32)
    cupy.cuda.get_current_stream().synchronize()
    for first in range(0, 2000, 50):
        for number in range(first, first + 50):

            def write(
                pages: NDArray[np.int32], used: NDArray[np.int32], page: int = number + 1
            ) -> None:
                pages[...] = page
                used[...] = pages.shape[2]

            publisher.publish(write, 64, destinations[number - first], stream=stream)
        stream.synchronize()
        expected = 2 * np.arange(first + 1, first + 51).reshape(50, 1, 1)
        host = cupy.asnumpy(destinations)
        assert (host[:, 0, :, 0] == expected).all()
        assert (host[:, 0, :, 1] == expected + 1).all()


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_the_gpu_check_says_in_one_line_that_there_is_none() -> None:
    result = subprocess.run(
        [str(ROOT / "scripts" / "gpu_check.sh")],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr == (
        "gpu_check: device 'cuda' was asked for, but CuPy finds no GPU with a working driver\n"
    )

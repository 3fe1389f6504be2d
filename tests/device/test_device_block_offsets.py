"""The two table calls on the CPU: values from the contract, and every refusal."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest
import torch
from kernel_cases import UNTOUCHED, random_copy, random_update

from tandemkv.device import OffsetGroups, apply_block_table_updates, copy_batch_block_offsets
from tandemkv.errors import ArrayError, DeviceUnavailableError

NO_GPU = not cupy.cuda.is_available()


def test_random_copies() -> None:
    for seed in range(150):
        case = random_copy(np.random.default_rng([3, seed]))
        copy_batch_block_offsets(**case.arguments)
        case.check()


def test_random_updates() -> None:
    for seed in range(150):
        case = random_update(np.random.default_rng([4, seed]))
        apply_block_table_updates(**case.arguments)
        case.check()


def test_a_worked_example() -> None:
    """Two layers of K and V per page: page 5 holds buffers 20 to 23, its V is one further."""
    groups = OffsetGroups([0], [4], [1], [10])
    source = np.array([[[5, 7, 0, 0], [9, 0, 0, 0]]], np.int32)
    destination = np.full((1, 3, 2, 4), UNTOUCHED, np.int32)
    copy_batch_block_offsets(
        source, np.array([1, 0], np.int32), groups, destination, used=np.array([[1, 2]], np.int32)
    )
    assert destination[0, 0].tolist() == [[36, 0, 0, 0], [37, 0, 0, 0]]
    assert destination[0, 1].tolist() == [[20, 28, 0, 0], [21, 29, 0, 0]]
    assert (destination[0, 2] == UNTOUCHED).all()


def test_torch_tensors_are_written_in_place() -> None:
    groups = OffsetGroups([0], [2], [1], [10])
    destination = torch.full((1, 1, 2, 3), -5, dtype=torch.int32)
    copy_batch_block_offsets(
        torch.tensor([[[4, 0, 0]]], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        groups,
        destination,
    )
    assert destination.tolist() == [[[[8, 0, 0], [9, 0, 0]]]]


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "source": np.ones((2, 3, 4), np.int32),
        "copy_index": np.array([0, 2], np.int32),
        "groups": OffsetGroups([0, 1], [2, 2], [1, 1], [5, 5]),
        "destination": np.full((2, 2, 2, 4), UNTOUCHED, np.int32),
        "used": np.array([[1, 2], [3, 4]], np.int32),
        **changes,
    }


REFUSED_COPIES = {
    "source dtype": (
        {"source": np.ones((2, 3, 4), np.int64)},
        "source: dtype int32 is needed, not int64",
    ),
    "source type": (
        {"source": [[[1]]]},
        "source: a NumPy array, a torch tensor or an array with __cuda_array_interface__ is "
        "needed, not list",
    ),
    "source dimensions": (
        {"source": np.ones((3, 4), np.int32)},
        r"source: 3 dimensions are needed \(\(any, any, any\)\), not shape \(3, 4\)",
    ),
    "source planes": (
        {"source": np.ones((2, 3, 1, 4), np.int32)},
        r"source: shape \(any, any, 2, any\) is needed, not \(2, 3, 1, 4\)",
    ),
    "source tables": (
        {"source": np.ones((1, 3, 4), np.int32)},
        "source: 2 tables are needed, one per class, not 1",
    ),
    "source layout": (
        {"source": np.ones((2, 3, 8), np.int32)[:, :, ::2]},
        "source: a C-contiguous array is needed",
    ),
    "page beyond its pool": (
        {"source": np.full((2, 3, 4), 5, np.int32)},
        r"source: page 5 of class 0 is outside \[0, 5\)",
    ),
    "width": (
        {"destination": np.zeros((2, 2, 2, 5), np.int32)},
        r"destination: shape \(2, any, 2, 4\) is needed, not \(2, 2, 2, 5\)",
    ),
    "groups": (
        {"destination": np.zeros((3, 2, 2, 4), np.int32)},
        r"destination: shape \(2, any, 2, 4\) is needed, not \(3, 2, 2, 4\)",
    ),
    "rows": (
        {"destination": np.zeros((2, 1, 2, 4), np.int32)},
        "destination: 1 rows cannot hold 2 sequences",
    ),
    "index too large": (
        {"copy_index": np.array([0, 3], np.int32)},
        r"copy_index: 3 at 1 is outside \[-1, 2\]",
    ),
    "index too small": (
        {"copy_index": np.array([-2, 0], np.int32)},
        r"copy_index: -2 at 0 is outside \[-1, 2\]",
    ),
    "index dtype": (
        {"copy_index": np.array([0, 1])},
        "copy_index: dtype int32 is needed, not int64",
    ),
    "used too long": (
        {"used": np.array([[1, 2], [3, 5]], np.int32)},
        r"used: 5 at \(1, 1\) is outside \[0, 4\]",
    ),
    "used too small": (
        {"used": np.array([[1], [3]], np.int32)},
        "used: 1 columns cannot hold 2 sequences",
    ),
    "count": ({"count": 3}, r"count: 3 is outside \[0, 2\]"),
    "count array": (
        {"count": np.array([3], np.int32)},
        r"count: 3 is outside \[0, 2\]",
    ),
    "first page": ({"first_page": -1}, r"first_page: -1 is outside \[0, 2147483647\]"),
    "empty": ({"empty": 7}, "empty: 0 or -1 is needed, not 7"),
    "backend": ({"backend": "hip"}, "backend: 'auto', 'cpu' or 'cuda' is needed, not 'hip'"),
}


@pytest.mark.parametrize("name", REFUSED_COPIES)
def test_a_refused_copy_writes_nothing(name: str) -> None:
    changes, message = REFUSED_COPIES[name]
    call = arguments(**changes)
    before = call["destination"].copy()
    with pytest.raises(ArrayError, match=f"^{message}$") as caught:
        copy_batch_block_offsets(**call)
    assert caught.value.argument in message
    np.testing.assert_array_equal(call["destination"], before)


def test_a_read_only_destination_is_refused() -> None:
    call = arguments()
    call["destination"].setflags(write=False)
    with pytest.raises(ArrayError, match="destination: the array is read-only"):
        copy_batch_block_offsets(**call)


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_cuda_without_a_gpu_is_one_clear_error() -> None:
    call = arguments(backend="cuda")
    with pytest.raises(DeviceUnavailableError, match=r"^device 'cuda' was asked for, but CuPy"):
        copy_batch_block_offsets(**call)
    assert (call["destination"] == UNTOUCHED).all()


def test_no_sequences_write_nothing() -> None:
    call = arguments(copy_index=np.zeros(0, np.int32), used=np.zeros((2, 0), np.int32))
    copy_batch_block_offsets(**call)
    assert (call["destination"] == UNTOUCHED).all()


def test_padding_rows_need_no_row_at_all() -> None:
    call = arguments(source=np.zeros((2, 0, 4), np.int32), copy_index=np.full(2, -1, np.int32))
    copy_batch_block_offsets(**call)
    assert (call["destination"] == 0).all()


REFUSED_UPDATES = {
    "row": ([[3, 0, 0, 1]], r"records \(row\): 3 at 0 is outside \[0, 2\]"),
    "class": ([[0, 0, 0, 1], [0, 2, 0, 1]], r"records \(class\): 2 at 1 is outside \[0, 1\]"),
    "column": ([[0, 0, -1, 1]], r"records \(column\): -1 at 0 is outside \[0, 3\]"),
    "page": ([[0, 1, 0, 5]], r"records \(page\): 5 at 0 is outside \[0, 4\] of class 1"),
}


@pytest.mark.parametrize("name", REFUSED_UPDATES)
def test_a_refused_update_writes_nothing(name: str) -> None:
    records, message = REFUSED_UPDATES[name]
    table = np.full((2, 3, 4), 1, np.int32)
    destination = np.full((2, 3, 2, 4), UNTOUCHED, np.int32)
    with pytest.raises(ArrayError, match=f"^{message}$"):
        apply_block_table_updates(
            np.array(records, np.int32),
            table=table,
            groups=arguments()["groups"],
            destination=destination,
        )
    assert (table == 1).all()
    assert (destination == UNTOUCHED).all()


def test_updates_need_somewhere_to_go() -> None:
    records = np.zeros((0, 4), np.int32)
    with pytest.raises(ArrayError, match="destination: a table or a destination is needed"):
        apply_block_table_updates(records)
    with pytest.raises(ArrayError, match="groups: they are needed to write a destination"):
        apply_block_table_updates(records, destination=np.zeros((1, 1, 2, 4), np.int32))


class _CudaArray:
    """What a library hands out for GPU memory: the interface only; nothing is read here."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "data": (0xDEAD0000, False),
            "shape": shape,
            "strides": strides,
            "typestr": "<i4",
            "version": 3,
        }


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_gpu_arrays_are_checked_before_a_gpu_is_looked_for() -> None:
    with pytest.raises(ArrayError, match="destination: a C-contiguous array is needed"):
        copy_batch_block_offsets(**arguments(destination=_CudaArray((2, 2, 2, 4), (64, 32, 4, 8))))
    with pytest.raises(ArrayError, match="the cpu backend writes host memory, this is on a GPU"):
        copy_batch_block_offsets(**arguments(destination=_CudaArray((2, 2, 2, 4)), backend="cpu"))
    with pytest.raises(DeviceUnavailableError):
        copy_batch_block_offsets(**arguments(destination=_CudaArray((2, 2, 2, 4))))


def test_gpu_memory_in_a_cpu_call_is_refused() -> None:
    with pytest.raises(ArrayError, match="source: the cpu backend cannot read memory of a GPU"):
        copy_batch_block_offsets(**arguments(source=_CudaArray((2, 3, 4))))

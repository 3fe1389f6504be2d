"""The publisher of a manager's tables, on the CPU."""

from __future__ import annotations

import cupy
import numpy as np
import pytest
from numpy.typing import NDArray

from tandemkv.device import OffsetGroups
from tandemkv.device.publisher import TablePublisher
from tandemkv.errors import ArrayError, DeviceUnavailableError

GROUPS = OffsetGroups([0, 1], [2, 3], [1, 0], [100, 100])


def publisher(device: str = "cpu") -> TablePublisher:
    return TablePublisher(GROUPS, max_sequences=4, width=5, device=device, num_slots=1)


def write(pages: NDArray[np.int32], used: NDArray[np.int32]) -> None:
    """Fill a batch: class c, sequence s has s + 1 pages from 10 * (c + 1) on."""
    pages[...] = 99  # what lies past the used length must not matter
    for table in range(pages.shape[0]):
        for sequence in range(pages.shape[1]):
            used[table, sequence] = sequence + 1
            pages[table, sequence, : sequence + 1] = 10 * (table + 1) + np.arange(sequence + 1)


def test_batches_of_changing_size_share_a_slot() -> None:
    tables = publisher()
    for num_sequences, padding in ((3, 1), (1, 0), (0, 4), (2, 2)):
        dst = np.full((2, 5, 2, 5), -7, np.int32)
        tables.publish(write, num_sequences, dst, num_padding_rows=padding)
        for group, (scale, offset) in enumerate([(2, 1), (3, 0)]):
            for sequence in range(num_sequences):
                keys = [scale * (10 * (group + 1) + i) for i in range(sequence + 1)]
                rest = [0] * (4 - sequence)
                assert dst[group, sequence, 0].tolist() == keys + rest
                assert dst[group, sequence, 1].tolist() == [key + offset for key in keys] + rest
        assert (dst[:, num_sequences : num_sequences + padding] == 0).all()
        assert (dst[:, num_sequences + padding :] == -7).all()


def test_a_failed_fill_gives_its_slot_back() -> None:
    tables = publisher()

    def fail(pages: NDArray[np.int32], used: NDArray[np.int32]) -> None:
        raise OSError("no table today")

    dst = np.full((2, 4, 2, 5), -7, np.int32)
    for _ in range(3):
        with pytest.raises(OSError, match="no table today"):
            tables.publish(fail, 1, dst)
        with pytest.raises(ArrayError, match="destination: 4 dimensions"):
            tables.publish(write, 1, dst[0])
    assert (dst == -7).all()
    tables.publish(write, 1, dst)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0:1", ""])
def test_unknown_devices(device: str) -> None:
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda:N', not"):
        publisher(device)


@pytest.mark.skipif(cupy.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu() -> None:
    with pytest.raises(DeviceUnavailableError, match="CuPy finds no GPU"):
        publisher("cuda:0")

"""`copy_pages` and `checksum` of the core, against NumPy and published digests."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemkv import _core
from tandemkv.errors import LedgerError


def pages(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8)), max_size=12),
    st.integers(1, 40),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_pages_are_copied_in_order_and_nothing_else(
    moves: list[tuple[int, int]], size: int, start: int, gap: int
) -> None:
    random = np.random.default_rng(size)
    source = random.integers(0, 256, start + 7 * (size + gap), np.uint8)
    destination = random.integers(0, 256, 9 * size, np.uint8)
    expected = destination.copy()
    for from_page, to_page in moves:
        first = start + from_page * (size + gap)
        expected[to_page * size : (to_page + 1) * size] = source[first : first + size]
    _core.copy_pages(
        source,
        destination,
        pages(*(move[0] for move in moves)),
        pages(*(move[1] for move in moves)),
        np.array([[size, start, size + gap, 0, size]], np.int64),
    )
    assert (destination == expected).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_pages": pages(0, 4)}, r"source_pages\[1\] is 4: piece 0 of it would not end"),
        ({"destination_pages": pages(5, 0)}, r"destination_pages\[0\] is 5: piece 0"),
        ({"source_pages": pages(0, -1)}, r"source_pages\[1\] is -1, must be >= 0"),
        ({"source_pages": pages(0, 2**62)}, "would not end within"),
        ({"source_pages": pages(0)}, "has 1 pages, destination_pages 2"),
        ({"pieces": np.array([[4, 0, 8, -1, 8]])}, r"pieces\[0\] has -1, must be >= 0"),
        ({"pieces": np.array([[4, 0, 8, 0]])}, "has 4 columns, must have 5"),
        ({"pieces": np.array([[2**62, 2**62, 2**62, 0, 8]])}, "would not end within"),
        ({"source": np.zeros(32, np.int32)}, "must be an array of uint8, got int32"),
        ({"source": np.zeros(64, np.uint8)[::2]}, "must be C-contiguous"),
    ],
)
def test_nothing_is_copied_on_an_error(change: dict[str, Any], message: str) -> None:
    arguments = {
        "source": np.ones(32, np.uint8),
        "destination": np.zeros(40, np.uint8),
        "source_pages": pages(0, 1),
        "destination_pages": pages(1, 0),
        "pieces": np.array([[4, 0, 8, 0, 8], [4, 4, 8, 4, 8]], np.int64),
        **change,
    }
    with pytest.raises(LedgerError, match=message):
        _core.copy_pages(*arguments.values())
    assert not arguments["destination"].any()


def test_a_destination_that_is_read_is_refused() -> None:
    memory = np.zeros(32, np.uint8)
    piece = np.array([[8, 0, 8, 0, 8]], np.int64)
    with pytest.raises(LedgerError, match="destination shares memory with source"):
        _core.copy_pages(memory, memory, pages(0), pages(1), piece)
    memory.setflags(write=False)
    with pytest.raises(LedgerError, match="read-only"):
        _core.copy_pages(np.ones(32, np.uint8), memory, pages(0), pages(1), piece)


# From the test vectors of BLAKE3: the input is 0, 1, ..., 250, 0, 1, ... of that length.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    31744: "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
}


@pytest.mark.parametrize("size", VECTORS)
def test_checksums_are_blake3(size: int) -> None:
    data = np.resize(np.arange(251, dtype=np.uint8), size)
    assert _core.checksum(data).hex() == VECTORS[size]
    assert _core.checksum(data[: size // 3], data[size // 3 :]).hex() == VECTORS[size]
    assert _core.checksum(data.tobytes(), b"").hex() == VECTORS[size]
    memory = mmap.mmap(-1, 4096)
    assert _core.checksum(memoryview(memory)[:0], data).hex() == VECTORS[size]


# Of the same input, by the reference implementation (python-xxhash).
XXH3_VECTORS = {
    0: "99aa06d3014798d86001c324468d497f",
    1: "a6cd5e9392000f6ac44bdff4074eecdb",
    16: "72950631827607e2842812cc870dcae2",
    240: "65b5be86da5540e7c92b68e16f83bbb6",
    1024: "d0ac1f7b93bf57b9e5d78bafa45b2aa5",
    31744: "786ea195976b880d5162bbaf8b257803",
}


@pytest.mark.parametrize("size", XXH3_VECTORS)
def test_checksums_of_pages_are_xxh3(size: int) -> None:
    data = np.resize(np.arange(251, dtype=np.uint8), size)
    assert _core.page_checksum(data).hex() == XXH3_VECTORS[size]
    assert _core.page_checksum(data[: size // 3], data[size // 3 :]).hex() == XXH3_VECTORS[size]
    with pytest.raises(LedgerError, match=r"buffers\[0\] must be an array of uint8"):
        _core.page_checksum(data.astype(np.int32))


def test_a_checksum_needs_bytes() -> None:
    with pytest.raises(LedgerError, match=r"buffers\[1\] must be an array of uint8, got int64"):
        _core.checksum(b"", np.zeros(3, np.int64))

"""Page moves: what the call promises, on the NumPy backend and through the kernel's own text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kernel_harness as harness
import numpy as np
import pytest
from kernel_large_strides import check_large_moves
from move_cases import almost_aligned_moves, check_hidden_moves, random_moves, segments_of
from numpy.typing import NDArray

from tandemkv.device import PageSegment, PageSegments, apply_page_moves
from tandemkv.device.arrays import view
from tandemkv.device.launches import MoveArguments, move_launch
from tandemkv.errors import ArrayError, DeviceUnavailableError

needs_compiler = pytest.mark.skipif(harness.COMPILER is None, reason=harness.SKIP_REASON)


def small_pool(num_pages: int = 4, token_bytes: int = 8) -> tuple[NDArray[np.uint8], PageSegments]:
    """Return a pool of blocks of 4 tokens in which byte b of page p holds 16 * p + b % 16."""
    page = np.arange(4 * token_bytes) % 16
    pool = (np.arange(num_pages)[:, None] * 16 + page).astype(np.uint8).reshape(-1)
    buffers = [(1, token_bytes)]
    return pool, PageSegments(segments_of(pool, 0, num_pages, 4, buffers, per_layer=False))


def moves_of(*moves: tuple[int, int, int, int]) -> NDArray[np.int32]:
    return np.array(moves, np.int32).reshape(-1, 4)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(params=[False, True], ids=["in-order", "reverse"])
def shim(request: pytest.FixtureRequest, library: Path) -> harness.Shim:
    return harness.Shim(library, reverse=request.param)


def test_only_the_first_tokens_are_copied() -> None:
    pool, segments = small_pool()
    apply_page_moves(moves_of((0, 1, 3, 3)), segments)
    pages = pool.reshape(4, 32)
    assert pages[3].tolist() == [*pages[1, :24], *(48 + np.arange(24, 32) % 16)]
    assert pages[2, 0] == 32


def test_random_moves_on_the_cpu() -> None:
    for seed in range(150):
        case = random_moves(np.random.default_rng([6, seed]))
        apply_page_moves(**case.arguments)
        case.check()


@needs_compiler
def test_random_moves_in_the_kernel(shim: harness.Shim) -> None:
    with shim.installed():
        for seed in range(150):
            case = random_moves(np.random.default_rng([7, seed]))
            apply_page_moves(**case.arguments)
            case.check()
        for case in almost_aligned_moves():
            apply_page_moves(**case.arguments)
            case.check()


@needs_compiler
def test_offsets_beyond_32_bits(shim: harness.Shim) -> None:
    with shim.installed():
        check_large_moves()


def test_offsets_beyond_32_bits_on_the_cpu() -> None:
    check_large_moves()


def chained(backend: Any = "cpu") -> None:
    """1 -> 2, then 2 -> 3, then 3 -> 1: as if they ran one after the other."""
    pool, segments = small_pool()
    first = pool[32:64].copy()
    moves = moves_of((0, 1, 2, 4), (0, 2, 3, 2), (0, 3, 1, 1), (0, 1, 2, 1))
    apply_page_moves(moves, segments, backend=backend)
    pages = pool.reshape(4, 32)
    assert pages[2].tolist() == first.tolist()
    assert pages[3].tolist() == [*first[:16], *(48 + np.arange(16, 32) % 16)]
    assert pages[1].tolist() == first.tolist()


def test_moves_that_depend_on_each_other_keep_their_order() -> None:
    chained()


@needs_compiler
def test_the_kernel_keeps_the_order_too(shim: harness.Shim) -> None:
    with shim.installed():
        chained()


@needs_compiler
def test_moves_that_the_host_cannot_see_stay_inside_the_pool(shim: harness.Shim) -> None:
    check_hidden_moves(shim.move)


@needs_compiler
def test_one_launch_is_replayed_with_other_moves(shim: harness.Shim) -> None:
    """A graph's launch has the grid of the most moves; the count in memory says how many run."""
    pool, segments = small_pool(9, 36)
    moves, count = np.zeros((4, 4), np.int32), np.zeros(1, np.int32)
    launch = move_launch(
        MoveArguments(view("moves", moves), view("count", count), 0, 4),
        segments.descriptors.ctypes.data,
        len(segments),
        segments.units_max,
    )
    rng = np.random.default_rng(8)
    for number in (4, 0, 1, 3):
        pages = rng.permutation(np.arange(1, 9)).reshape(4, 2)
        for row, (source, destination) in enumerate(pages.tolist()):
            moves[row] = 0, source, destination, rng.integers(1, 5)
        count[0] = number
        expected = pool.reshape(9, 4, 36).copy()
        for _, source, destination, tokens in moves[:number].tolist():
            expected[destination, :tokens] = expected[source, :tokens]
        shim.launch(launch)
        np.testing.assert_array_equal(pool, expected.reshape(-1))


@pytest.mark.parametrize(
    ("move", "message"),
    [
        ((1, 1, 2, 4), r"moves \(class\): 1 at 1 has no segment; there are \[0\]"),
        ((0, 4, 2, 4), r"moves \(source\): 4 at 1 is outside \[0, 3\]"),
        ((0, 1, 0, 4), r"moves \(destination\): 0 at 1 is outside \[1, 3\]"),
        ((0, 1, 2, 5), r"moves \(tokens\): 5 at 1 is outside \[1, 4\]"),
        ((0, 1, 2, 0), r"moves \(tokens\): 0 at 1 is outside \[1, 4\]"),
    ],
)
def test_a_bad_move_is_refused_before_any_is_run(
    move: tuple[int, int, int, int], message: str
) -> None:
    pool, segments = small_pool()
    before = pool.copy()
    with pytest.raises(ArrayError, match=message):
        apply_page_moves(moves_of((0, 1, 3, 4), move), segments)
    np.testing.assert_array_equal(pool, before)


def test_arguments_of_another_form_are_refused() -> None:
    _, segments = small_pool()
    moves = moves_of((0, 1, 2, 4))
    for bad, message in (
        (moves.astype(np.int64), "dtype int32 is needed, not int64"),
        (moves.reshape(4), "2 dimensions are needed"),
        (np.zeros((2, 5), np.int32)[:, :4], "C-contiguous"),
    ):
        with pytest.raises(ArrayError, match=message):
            apply_page_moves(bad, segments)
    with pytest.raises(ArrayError, match=r"count: 2 is outside \[0, 1\]"):
        apply_page_moves(moves, segments, count=2)
    with pytest.raises(ArrayError, match=r"count: 3 at 0 is outside \[0, 1\]"):
        apply_page_moves(moves, segments, count=np.array([3], np.int32))
    with pytest.raises(DeviceUnavailableError):
        apply_page_moves(moves, segments, backend="cuda")


def segment(memory: object, **fields: int) -> PageSegment:
    values = {
        "offset_bytes": 0,
        "page_stride_bytes": 32,
        "num_rows": 1,
        "row_stride_bytes": 32,
        "token_bytes": 8,
        "tokens_per_block": 4,
        "num_pages": 4,
        **fields,
    }
    return PageSegment(memory=memory, **values)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"offset_bytes": 1}, ArrayError, "ends at byte 129, but the pool has 128 bytes"),
        ({"num_rows": 2}, ArrayError, "ends at byte 160"),
        ({"token_bytes": 0}, ValueError, "token_bytes must be at least 1, not 0"),
        ({"class_index": -1}, ValueError, "class_index must be at least 0, not -1"),
        ({"num_rows": 2**27}, ValueError, "exceed 2147483647 bytes"),
    ],
)
def test_a_segment_outside_its_pool_is_refused(
    fields: dict[str, int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        PageSegments([segment(np.zeros(128, np.uint8), **fields)])


def test_a_pool_of_another_form_is_refused() -> None:
    read_only = np.zeros(128, np.uint8)
    read_only.setflags(write=False)
    for pool, message in (
        (np.zeros(32, np.float32), "a contiguous uint8"),
        (np.zeros((4, 32), np.uint8), "a contiguous uint8"),
        (read_only, "read-only"),
    ):
        with pytest.raises(ArrayError, match=message):
            PageSegments([segment(pool)])
    with pytest.raises(ValueError, match="at least one segment"):
        PageSegments([])

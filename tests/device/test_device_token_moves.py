"""Token moves: what the call promises, on the NumPy backend and through the kernel's own text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kernel_harness as harness
import numpy as np
import pytest
from fake_cuda import FakeCuda, installed
from managers_setup import TPB, small_managers
from move_cases import TOKEN_BYTES, aligned_bytes, segments_of, token_bytes
from numpy.typing import NDArray

from tandemkv.device import PageSegment, PageSegments, apply_token_moves, chains_of
from tandemkv.device.arrays import view
from tandemkv.device.launches import TokenMoveArguments
from tandemkv.errors import ArrayError
from tandemkv.managers.moves import TokenMover

needs_compiler = pytest.mark.skipif(harness.COMPILER is None, reason=harness.SKIP_REASON)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.compile_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(params=[False, True], ids=["in-order", "reverse"])
def shim(request: pytest.FixtureRequest, library: Path) -> harness.Shim:
    return harness.Shim(library, reverse=request.param)


def moves_of(*moves: tuple[int, ...]) -> NDArray[np.int32]:
    return np.array(moves, np.int32).reshape(-1, 5)


def expected_pool(
    pool: NDArray[np.uint8], segments: list[PageSegment], moves: list[list[int]]
) -> NDArray[np.uint8]:
    """Return what the pool holds after the moves, one token of one row after the other."""
    result = pool.copy()
    for number, source, at, destination, to in moves:
        for segment in segments:
            for row in range(segment.num_rows if segment.class_index == number else 0):
                moved = result[token_bytes(segment, source, row, at)].copy()
                result[token_bytes(segment, destination, row, to)] = moved
    return result


def random_paths(rng: np.random.Generator, block: int, num_pages: int) -> list[list[int]]:
    """Return the moves of kept nodes in several sequences with pages of their own."""
    pages, moves = rng.permutation(np.arange(1, num_pages)).tolist(), []
    while len(pages) >= 3:
        mine, pages = pages[:3], pages[3:]
        slots = [(page, offset) for page in mine for offset in range(block)]
        start = int(rng.integers(block))
        nodes = [0, *(n for n in range(1, len(slots) - start) if rng.random() < 0.4)]
        moves += [
            [0, *slots[start + node], *slots[start + kept]]
            for kept, node in enumerate(nodes)
            if node != kept
        ]
    return moves


def check_random_cases(seed: int, backend: Any = "cpu") -> None:
    for number in range(80):
        rng = np.random.default_rng([seed, number])
        block, num_pages = int(rng.choice([1, 3, 4, 16])), int(rng.integers(4, 20))
        buffers = [
            (int(rng.choice([1, 2, 5])), int(rng.choice(TOKEN_BYTES)))
            for _ in range(int(rng.integers(1, 4)))
        ]
        size = num_pages * block * sum(rows * token for rows, token in buffers)
        pool = aligned_bytes(size, 0 if rng.random() < 0.7 else int(rng.integers(1, 16)))
        pool[...] = rng.integers(0, 256, size)
        per_layer = bool(rng.integers(2))
        segments = segments_of(pool, 0, num_pages, block, buffers, per_layer=per_layer)
        moves = random_paths(rng, block, num_pages)
        if rng.random() < 0.2:  # moves of no path, in which a later one may read what was written
            slots = rng.integers((0, 0, 1, 0), (num_pages, block, num_pages, block), (6, 4))
            moves = [[0, *slot] for slot in slots.tolist()]
        expected = expected_pool(pool, segments, moves)
        apply_token_moves(moves_of(*map(tuple, moves)), PageSegments(segments), backend=backend)
        np.testing.assert_array_equal(pool, expected)


def test_random_moves_on_the_cpu() -> None:
    check_random_cases(1)


@needs_compiler
def test_random_moves_in_the_kernel(shim: harness.Shim) -> None:
    with shim.installed():
        check_random_cases(2)


def test_the_moves_of_a_path_are_one_chain_per_class_and_sequence() -> None:
    moves = moves_of((0, 1, 3, 1, 2), (0, 2, 0, 1, 3), (0, 3, 0, 2, 0), (1, 1, 3, 1, 2),
                     (1, 2, 0, 1, 3), (0, 7, 2, 7, 1))  # fmt: skip
    assert chains_of(moves).tolist() == [0, 3, 5, 6]
    assert chains_of(moves[:0]).tolist() == [0]


def test_moves_that_depend_on_each_other_across_chains_are_one() -> None:
    reads_what_was_written = moves_of((0, 1, 0, 2, 0), (0, 2, 0, 3, 2))
    writes_what_was_read = moves_of((0, 1, 0, 2, 0), (0, 4, 0, 1, 2), (0, 5, 0, 1, 0))
    writes_twice = moves_of((0, 1, 0, 2, 0), (0, 4, 0, 3, 2), (0, 5, 0, 2, 0))
    for moves in (reads_what_was_written, writes_what_was_read, writes_twice):
        assert chains_of(moves).tolist() == [0, len(moves)]


def small_pool() -> tuple[NDArray[np.uint8], PageSegments]:
    """Return 4 pages of 4 tokens of 8 bytes; token t of page p holds 16 * p + t."""
    pool = (np.arange(4)[:, None, None] * 16 + np.arange(4)[:, None]).repeat(8, 2)
    pool = pool.astype(np.uint8).reshape(-1)
    return pool, PageSegments(segments_of(pool, 0, 4, 4, [(1, 8)], per_layer=False))


@pytest.mark.parametrize(
    ("move", "message"),
    [
        ((1, 1, 0, 2, 0), r"moves \(class\): 1 at 1 has no segment; there are \[0\]"),
        ((0, 4, 0, 2, 0), r"moves \(source page\): 4 at 1 is outside \[0, 3\]"),
        ((0, 1, 4, 2, 0), r"moves \(source offset\): 4 at 1 is outside \[0, 3\]"),
        ((0, 1, 0, 0, 0), r"moves \(destination page\): 0 at 1 is outside \[1, 3\]"),
        ((0, 1, 0, 2, -1), r"moves \(destination offset\): -1 at 1 is outside \[0, 3\]"),
    ],
)
def test_a_bad_move_is_refused_before_any_is_run(move: tuple[int, ...], message: str) -> None:
    pool, segments = small_pool()
    before = pool.copy()
    with pytest.raises(ArrayError, match=message):
        apply_token_moves(moves_of((0, 1, 0, 2, 1), move), segments)
    np.testing.assert_array_equal(pool, before)


@pytest.mark.parametrize("chains", [[], [1, 2], [0, 1], [0, 2, 1, 2]])
def test_chains_cover_the_moves(chains: list[int]) -> None:
    _, segments = small_pool()
    moves = moves_of((0, 1, 0, 2, 1), (0, 1, 1, 2, 2))
    with pytest.raises(ArrayError, match="chains"):
        apply_token_moves(moves, segments, chains=np.array(chains, np.int32))


@needs_compiler
def test_moves_that_the_host_cannot_see_stay_inside_the_pool(shim: harness.Shim) -> None:
    pool, segments = small_pool()
    before = pool.copy()
    chain = np.array([0, 1], np.int32)
    for move in ((1, 1, 0, 2, 0), (0, 4, 0, 2, 0), (0, 1, 4, 2, 0), (0, 1, 0, 0, 0),
                 (0, -1, 0, 2, 0), (0, 1, -1, 2, 0), (0, 1, 0, 4, 0), (0, 1, 0, 2, 4),
                 (0, 1, 0, 2, -1)):  # fmt: skip
        records = view("moves", moves_of(move))
        shim.move_tokens(TokenMoveArguments(records, view("chains", chain)), segments)
    for bounds in ([0, 2], [-1, 1]):
        chain = np.array(bounds, np.int32)
        records = view("moves", moves_of((0, 1, 0, 2, 0)))
        shim.move_tokens(TokenMoveArguments(records, view("chains", chain)), segments)
    np.testing.assert_array_equal(pool, before)


@pytest.fixture
def gpu(library: Path) -> Any:
    with installed(harness.Shim(library)) as fake:
        yield fake


@needs_compiler
def test_the_mover_stages_what_the_kernels_read(gpu: FakeCuda) -> None:
    managers = small_managers(700, device="cuda:0")
    stream, pools = gpu.stream(), list(managers.target.pools)
    for pool in pools:
        pool.buffer.set(np.repeat(np.arange(700) % 251, pool.page_bytes))
    moves = np.zeros((300, 5), np.int32)
    moves[:, 1], moves[:, 2] = np.arange(1, 301), 3
    moves[:, 3], moves[:, 4] = np.arange(301, 601), 1
    TokenMover(pools, "cuda:0").run(moves, stream)
    assert [name for name, _ in gpu.launches] == ["apply_token_moves"] * 2
    moves[...] = -1  # the caller's array is not what the kernels read
    stream.synchronize()
    for pool in pools:
        for spec in pool.layout.buffers:
            rows = pool.view(spec.layer, spec.name).get()
            rows = rows.reshape(700, TPB, -1).view(np.uint8)
            assert (rows[301:601, 1] == rows[1:301, 3]).all()
            assert (rows[301:601, 0, 0] == np.arange(301, 601) % 251).all()

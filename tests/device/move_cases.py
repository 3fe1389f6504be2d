"""Random page moves, with the bytes that the contract asks for.

The expected bytes come from loops over rows and tokens, written from the contract and not from any
backend: one token of one row is one slice of the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import PageSegment, PageSegments
from tandemkv.device.arrays import view
from tandemkv.device.launches import MoveArguments

# 1 and 3 leave no alignment, 36 is an nvfp4 latent's scales, 132 an fp8 indexer key with its scale.
TOKEN_BYTES = (1, 3, 8, 16, 24, 36, 48, 132, 256, 1024)


@dataclass
class MoveCase:
    """Arguments of one call and what each pool must hold afterwards.

    Attributes:
        arguments: keyword arguments of the call.
        pools: the memory of each pool.
        expected: what it must hold after the call.
        unread: views of memory that the call must neither read nor write.
    """

    arguments: dict[str, Any]
    pools: list[NDArray[np.uint8]]
    expected: list[NDArray[np.uint8]]
    unread: list[NDArray[np.uint8]] = field(default_factory=list)

    def check(self) -> None:
        """Compare the pools with what they must hold."""
        for number, (pool, expected) in enumerate(zip(self.pools, self.expected, strict=True)):
            np.testing.assert_array_equal(pool, expected, err_msg=f"pool {number}")


def aligned_bytes(size: int, shift: int) -> NDArray[np.uint8]:
    """Return exactly `size` bytes whose address is `shift` beyond a multiple of 16."""
    memory = np.empty(size + shift, np.uint8)
    assert memory.ctypes.data % 16 == 0  # the allocator's promise; the shift decides alone
    return memory[shift:]


def segments_of(
    pool: NDArray[np.uint8],
    class_index: int,
    num_pages: int,
    tokens_per_block: int,
    buffers: list[tuple[int, int]],
    *,
    per_layer: bool,
) -> list[PageSegment]:
    """Return the segments of one pool: pages contiguous over layers, or layers over pages."""
    page_bytes = sum(rows * tokens_per_block * token for rows, token in buffers)
    segments, before = [], 0
    for rows, token in buffers:
        size = rows * tokens_per_block * token
        segments.append(
            PageSegment(
                memory=pool,
                offset_bytes=before * num_pages if per_layer else before,
                page_stride_bytes=size if per_layer else page_bytes,
                num_rows=rows,
                row_stride_bytes=tokens_per_block * token,
                token_bytes=token,
                tokens_per_block=tokens_per_block,
                num_pages=num_pages,
                class_index=class_index,
            )
        )
        before += size
    return segments


def random_moves(rng: np.random.Generator) -> MoveCase:
    """Return a case of `apply_page_moves`: one to three pools in one or two classes."""
    pools, segments = [], []
    num_classes = int(rng.integers(1, 3))
    pages = [int(rng.integers(2, 12)) for _ in range(num_classes)]
    blocks = [int(rng.choice([1, 3, 4, 16, 32])) for _ in range(num_classes)]
    for _ in range(int(rng.integers(1, 4))):
        number = int(rng.integers(num_classes))
        buffers = [
            (int(rng.choice([1, 1, 2, 4, 5])), int(rng.choice(TOKEN_BYTES)))
            for _ in range(int(rng.integers(1, 4)))
        ]
        size = pages[number] * blocks[number] * sum(rows * token for rows, token in buffers)
        pool = aligned_bytes(size, 0 if rng.random() < 0.7 else int(rng.integers(1, 16)))
        pool[...] = rng.integers(0, 256, size)
        pools.append(pool)
        per_layer = bool(rng.integers(2))
        segments += segments_of(
            pool, number, pages[number], blocks[number], buffers, per_layer=per_layer
        )

    present = sorted({segment.class_index for segment in segments})
    records = []
    for number in present:
        order = rng.permutation(np.arange(1, pages[number]))
        half = len(order) // 2
        for destination in order[:half][: int(rng.integers(0, half + 1))]:
            source = int(rng.choice([0, *order[half:]]))
            tokens = int(rng.integers(1, blocks[number] + 1))
            records.append([number, source, int(destination), tokens])
    rng.shuffle(records)
    num_run = int(rng.integers(0, len(records) + 1))
    count: Any = [num_run, np.array([num_run], np.int32), None][rng.integers(3)]
    return move_case(pools, segments, records, count)


def move_case(
    pools: list[NDArray[np.uint8]],
    segments: list[PageSegment],
    records: list[list[int]],
    count: Any = None,
) -> MoveCase:
    """Return the case of running `records`, or the first `count` of them."""
    run = records if count is None else records[: int(np.asarray(count).item())]
    return MoveCase(
        arguments={
            "moves": np.array(records, np.int32).reshape(-1, 4),
            "segments": PageSegments(segments),
            "count": count,
        },
        pools=pools,
        expected=expected_pools(pools, segments, run),
        unread=untouched(segments, run),
    )


def almost_aligned_moves() -> list[MoveCase]:
    """Return cases where the address, the pages or the rows alone are not aligned to 16 bytes."""
    cases = []
    for shift, tokens_per_block, buffers in (
        (8, 4, [(1, 16)]),
        (0, 3, [(1, 16), (1, 3)]),  # pages of 48 + 9 bytes
        (0, 1, [(2, 24)]),  # rows of 24 bytes in pages of 48
    ):
        size = 5 * tokens_per_block * sum(rows * token for rows, token in buffers)
        pool = aligned_bytes(size, shift)
        pool[...] = np.arange(size) % 251
        segments = segments_of(pool, 0, 5, tokens_per_block, buffers, per_layer=False)
        cases.append(move_case([pool], segments, [[0, 1, 2, tokens_per_block], [0, 3, 4, 1]]))
    return cases


def expected_pools(
    pools: list[NDArray[np.uint8]], segments: list[PageSegment], moves: list[list[int]]
) -> list[NDArray[np.uint8]]:
    """Return what the pools hold after the moves, token by token."""
    results = [pool.copy() for pool in pools]
    places = {id(pool): result for pool, result in zip(pools, results, strict=True)}
    for number, source, destination, tokens in moves:
        for segment in segments:
            if segment.class_index != number:
                continue
            memory = places[id(segment.memory)]
            for row in range(segment.num_rows):
                for token in range(tokens):
                    memory[token_bytes(segment, destination, row, token)] = memory[
                        token_bytes(segment, source, row, token)
                    ]
    return results


def token_bytes(segment: PageSegment, page: int, row: int, token: int) -> slice:
    """Return where a token's bytes lie in its pool, as the contract has it."""
    start = (
        segment.offset_bytes
        + page * segment.page_stride_bytes
        + row * segment.row_stride_bytes
        + token * segment.token_bytes
    )
    return slice(start, start + segment.token_bytes)


def untouched(segments: list[PageSegment], moves: list[list[int]]) -> list[NDArray[np.uint8]]:
    """Return the bytes of the pools that no move reads or writes, as contiguous views."""
    parts = []
    for memory in {id(segment.memory): segment.memory for segment in segments}.values():
        assert isinstance(memory, np.ndarray)
        needed = np.zeros(memory.shape, bool)
        for segment in segments:
            for number, source, destination, tokens in moves:
                if segment.memory is memory and segment.class_index == number:
                    for page in (source, destination):
                        for row in range(segment.num_rows):
                            first = token_bytes(segment, page, row, 0).start
                            needed[first : first + tokens * segment.token_bytes] = True
        edges = np.flatnonzero(np.diff(np.concatenate(([True], needed, [True])).astype(np.int8)))
        parts += [memory[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return parts


def check_hidden_moves(move: Callable[[MoveArguments, PageSegments], None]) -> None:
    """Run moves that no host has checked, as a replayed graph does: a bad one is skipped.

    Args:
        move: the backend's `apply_page_moves`.
    """
    least, most = -(2**31), 2**31 - 1
    good = [(0, 1, 2, 4)]
    bad = [(0, 1, 0, 4), (0, 4, 3, 4), (0, 1, 4, 4), (0, -1, 3, 4), (0, 1, least, 4),
           (0, 1, 3, 5), (0, 1, 3, 0), (0, 1, 3, -3), (0, 1, 3, most), (1, 1, 3, 4),
           (-1, 1, 3, 4), (0, most, 3, 4)]  # fmt: skip
    pool = aligned_bytes(4 * 32, 0)
    pool[...] = np.arange(128)
    segments = PageSegments(segments_of(pool, 0, 4, 4, [(1, 8)], per_layer=False))
    for record in bad:
        move(MoveArguments(view("moves", np.array([record], np.int32)), None, 0, 1), segments)
        np.testing.assert_array_equal(pool, np.arange(128))
    move(MoveArguments(view("moves", np.array(good, np.int32)), None, 0, 1), segments)
    np.testing.assert_array_equal(pool[64:96], np.arange(32, 64))

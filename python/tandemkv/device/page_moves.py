"""Page copies on the device: the ledger's move list, run in all pools of a rank at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import cpu_backend, cuda_backend
from tandemkv.device.arguments import Backend, as_count, check_range, choose_backend
from tandemkv.device.arrays import ArrayView, int32_view, view
from tandemkv.device.kernels import require_cupy
from tandemkv.device.launches import UNIT_BYTES, MoveArguments
from tandemkv.errors import ArrayError

SEGMENT_BYTES_MAX = 2**31 - 1
"""Keeps every byte number inside one page's segment within 32 bits in the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSegment:
    """One buffer of one layer in all pages of a pool, as rows of tokens.

    Token t of row r in page p is the `token_bytes` bytes from `offset_bytes + p * page_stride_bytes
    + r * row_stride_bytes + t * token_bytes` on.

    Attributes:
        memory: the pool: uint8, one-dimensional and contiguous, in host memory or on a GPU.
        offset_bytes: where the buffer of page 0 starts.
        page_stride_bytes: from page to page.
        num_rows: rows per page: 1 where tokens come first, the heads where heads come first.
        row_stride_bytes: from row to row.
        token_bytes: bytes of one token in a row.
        tokens_per_block: tokens of a row.
        num_pages: pages, the reserved page 0 included.
        class_index: class whose pages these are.
    """

    memory: object
    offset_bytes: int
    page_stride_bytes: int
    num_rows: int
    row_stride_bytes: int
    token_bytes: int
    tokens_per_block: int
    num_pages: int
    class_index: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in one page."""
        return self.token_bytes * self.tokens_per_block

    @property
    def end_bytes(self) -> int:
        """Where its last byte ends, counted from the start of `memory`."""
        last_page = self.offset_bytes + (self.num_pages - 1) * self.page_stride_bytes
        return last_page + (self.num_rows - 1) * self.row_stride_bytes + self.row_bytes


class PageSegments:
    """The segments that one launch copies: those of the target and of the draft together.

    Args:
        segments: at least one; all in host memory, or all on one GPU.

    Raises:
        ArrayError: a pool of another form, or a segment that does not lie inside its pool.
        ValueError: there is no segment, or a count or size is out of range.
    """

    def __init__(self, segments: Sequence[PageSegment]) -> None:
        if not segments:
            raise ValueError("at least one segment is needed")
        self._segments = tuple(segments)
        self._views = [_pool_view(number, item) for number, item in enumerate(segments)]
        self._on_host = self._views[0].host is not None
        for number, memory in enumerate(self._views):
            if (memory.host is not None) != self._on_host:
                raise ArrayError(memory.name, f"segment {number} lies elsewhere than segment 0")
        descriptors = np.array(
            [
                (
                    *(pool.pointer + item.offset_bytes, item.page_stride_bytes),
                    *(item.row_stride_bytes, item.num_rows, item.token_bytes),
                    *(item.tokens_per_block, item.num_pages, item.class_index),
                )
                for item, pool in zip(self._segments, self._views, strict=True)
            ],
            np.int64,
        )
        descriptors.setflags(write=False)
        self._descriptors = descriptors
        self._on_device: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[PageSegment]:
        return iter(self._segments)

    @property
    def descriptors(self) -> NDArray[np.int64]:
        """int64 [segments, 8], as `cuda/page_moves.cu` reads them; read-only."""
        return self._descriptors

    @property
    def memory(self) -> ArrayView:
        """The pool of the first segment: where all of them lie."""
        return self._views[0]

    @property
    def pools(self) -> tuple[ArrayView, ...]:
        """The different pools of the segments: few, so that checking each is cheap."""
        return tuple({pool.pointer: pool for pool in self._views}.values())

    @cached_property
    def host_rows(self) -> list[NDArray[np.uint8]]:
        """Each segment as uint8 [pages, rows, row bytes], without a copy.

        Raises:
            ArrayError: the pools are on a GPU.
        """
        rows = []
        for item, pool in zip(self._segments, self._views, strict=True):
            if pool.host is None:
                raise ArrayError(pool.name, "the cpu backend writes host memory, this is on a GPU")
            rows.append(
                np.lib.stride_tricks.as_strided(
                    pool.host[item.offset_bytes :],
                    (item.num_pages, item.num_rows, item.row_bytes),
                    (item.page_stride_bytes, item.row_stride_bytes, 1),
                )
            )
        return rows

    @cached_property
    def units_max(self) -> int:
        """Most units of 16 bytes that one segment has in a page."""
        return max(item.num_rows * -(-item.row_bytes // UNIT_BYTES) for item in self._segments)

    @cached_property
    def token_units_max(self) -> int:
        """Most units of 16 bytes that one token has in a segment."""
        return max(item.num_rows * -(-item.token_bytes // UNIT_BYTES) for item in self._segments)

    @cached_property
    def limits(self) -> dict[int, tuple[int, int]]:
        """Pages and tokens per block of each class: the smallest of its segments."""
        limits: dict[int, tuple[int, int]] = {}
        for item in self._segments:
            have = limits.get(item.class_index, (item.num_pages, item.tokens_per_block))
            limits[item.class_index] = (
                min(have[0], item.num_pages),
                min(have[1], item.tokens_per_block),
            )
        return limits

    def on_device(self, device: int) -> Any:
        """Return the descriptors as a CuPy array on a GPU; uploaded once, before this returns."""
        if device not in self._on_device:
            cupy = require_cupy()
            with cupy.cuda.Device(device):
                uploaded = cupy.asarray(self._descriptors)
                cupy.cuda.get_current_stream().synchronize()
            self._on_device[device] = uploaded
        return self._on_device[device]


def apply_page_moves(
    moves: object,
    segments: PageSegments,
    *,
    count: object | int | None = None,
    backend: Backend = "auto",
    stream: object | None = None,
) -> None:
    """Copy the first tokens of pages to other pages, in every segment of the move's class.

    Moves act as if they ran one after the other. Where the host sees them, a move that reads or
    overwrites what an earlier one wrote starts another launch; the ledger's lists need one.

    Args:
        moves: int32 [n, 4], as `Ledger.moves` writes them: class, source page, destination page,
            leading tokens to copy. Tokens after them stay as they are in the destination.
        segments: what the pages hold.
        count: moves to run: an int, or an int32 array [1] that the kernel reads when it runs, with
            moves that are independent of each other; None means n. 0 returns before a launch.
        backend: "cpu", "cuda", or "auto" for that of the pools.
        stream: the engine's stream; needed for, and only used by, the cuda backend. Moves in host
            memory must be pinned and unchanged until the stream has passed this call.

    Raises:
        ArrayError: an argument does not have this form, a move is out of range (checked where the
            host can see it; the GPU skips such a move), or no stream was given.
        DeviceUnavailableError: the cuda backend without CuPy or without a GPU.
    """
    records = int32_view("moves", moves, shape=(None, 4))
    if records.pointer % 16:
        raise ArrayError("moves", "16-byte alignment is needed")
    num_moves, device_count = as_count(count, records.shape[0])
    chosen = choose_backend(backend, segments.memory)
    bounds = _bounds(records, num_moves, device_count, segments)
    if len(bounds) > 2:
        device_count = None  # the host has read it; each stretch has a length of its own
    for first, end in pairwise(bounds):
        if first == end:
            continue
        arguments = MoveArguments(
            moves=records, count=device_count, first_move=first, num_moves=end - first
        )
        if chosen == "cpu":
            cpu_backend.apply_page_moves(arguments, segments)
        else:
            cuda_backend.apply_page_moves(arguments, segments, stream)


def _bounds(
    records: ArrayView, num_moves: int, count: ArrayView | None, segments: PageSegments
) -> list[int]:
    """Check the moves that the host can see, and return the bounds of the launches."""
    if records.host is None or (count is not None and count.host is None):
        return [0, num_moves]
    visible = num_moves
    if count is not None and count.host is not None:
        check_range("count", count.host, 0, num_moves)
        visible = int(count.host[0])
    moves = records.host[:visible]
    _check_moves(moves, segments)
    bounds = _independent(moves)
    # A kernel that reads the count when it runs keeps the grid of the most moves.
    return [0, num_moves] if len(bounds) == 2 else bounds


def _pool_view(number: int, segment: PageSegment) -> ArrayView:
    name = f"segments[{number}]"
    pool = view(name, segment.memory)
    if pool.dtype != np.uint8 or len(pool.shape) != 1 or not pool.contiguous:
        raise ArrayError(name, f"a contiguous uint8 [bytes] is needed, not {pool.dtype} "
                               f"{pool.shape}")  # fmt: skip
    if not pool.writable:
        raise ArrayError(name, "the array is read-only")
    for field, least in (
        *(("offset_bytes", 0), ("page_stride_bytes", 1), ("num_rows", 1)),
        *(("row_stride_bytes", 0), ("token_bytes", 1), ("tokens_per_block", 1)),
        *(("num_pages", 1), ("class_index", 0)),
    ):
        if getattr(segment, field) < least:
            raise ValueError(
                f"{name}: {field} must be at least {least}, not {getattr(segment, field)}"
            )
    if segment.num_rows * (segment.row_bytes + 16) > SEGMENT_BYTES_MAX:
        raise ValueError(
            f"{name}: {segment.num_rows} rows of {segment.row_bytes} bytes exceed "
            f"{SEGMENT_BYTES_MAX} bytes"
        )
    if segment.end_bytes > pool.shape[0]:
        raise ArrayError(
            name, f"it ends at byte {segment.end_bytes}, but the pool has {pool.shape[0]} bytes"
        )
    return pool


def _check_moves(moves: NDArray[np.int32], segments: PageSegments) -> None:
    limits = segments.limits
    classes, sources, destinations, tokens = moves.T
    known = np.isin(classes, list(limits))
    if not known.all():
        position = int(np.flatnonzero(~known)[0])
        raise ArrayError(
            "moves (class)",
            f"{classes[position]} at {position} has no segment; there are {sorted(limits)}",
        )
    for number, (num_pages, tokens_per_block) in limits.items():
        mine = classes == number
        check_range("moves (source)", sources[mine], 0, num_pages - 1)
        check_range("moves (destination)", destinations[mine], 1, num_pages - 1)
        check_range("moves (tokens)", tokens[mine], 1, tokens_per_block)


def _independent(moves: NDArray[np.int32]) -> list[int]:
    """Return the bounds of stretches whose moves may run in any order."""
    places = moves[:, :1].astype(np.int64) << 32
    sources, destinations = places[:, 0] | moves[:, 1], places[:, 0] | moves[:, 2]
    if len(np.unique(destinations)) == len(moves) and not np.isin(destinations, sources).any():
        return [0, len(moves)]
    bounds, read, written = [0], set[int](), set[int]()
    for number, (source, destination) in enumerate(
        zip(sources.tolist(), destinations.tolist(), strict=True)
    ):
        if source in written or destination in written or destination in read:
            bounds.append(number)
            read, written = set(), set()
        read.add(source)
        written.add(destination)
    return [*bounds, len(moves)]

"""Token copies on the device: what brings the accepted nodes of draft trees together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import cpu_backend, cuda_backend
from tandemkv.device.arguments import Backend, check_range, choose_backend
from tandemkv.device.arrays import int32_view
from tandemkv.device.launches import TokenMoveArguments
from tandemkv.device.page_moves import PageSegments
from tandemkv.errors import ArrayError


def apply_token_moves(
    moves: object,
    segments: PageSegments,
    *,
    chains: object | None = None,
    backend: Backend = "auto",
    stream: object | None = None,
) -> None:
    """Copy single tokens within pages and between them, in every segment of the move's class.

    Moves act as if they ran one after the other.

    Args:
        moves: int32 [n, 5], as `path_moves` writes them: class, source page, source offset,
            destination page, destination offset. Without moves nothing is launched.
        segments: what the pages hold: those of one role.
        chains: int32 [c + 1] as `chains_of` makes them, ascending from 0 to n: moves of different
            chains touch nothing of each other and may run in any order. None: made here, from moves
            in host memory.
        backend: "cpu", "cuda", or "auto" for that of the pools.
        stream: the engine's stream; needed for, and only used by, the cuda backend. Arrays in host
            memory must be pinned and unchanged until the stream has passed this call.

    Raises:
        ArrayError: an argument does not have this form, a move is out of range (checked where the
            host can see it; the GPU skips such a move), no chains for moves that the host cannot
            see, or no stream was given.
        DeviceUnavailableError: the cuda backend without CuPy or without a GPU.
    """
    records = int32_view("moves", moves, shape=(None, 5))
    chosen = choose_backend(backend, segments.memory)
    if records.host is not None:
        _check_moves(records.host, segments)
    if chains is None:
        if records.host is None:
            raise ArrayError("chains", "they are needed for moves that the host cannot see")
        chains = chains_of(records.host)
    bounds = int32_view("chains", chains, shape=(None,))
    if bounds.shape[0] < 1:
        raise ArrayError("chains", "at least one entry is needed")
    if bounds.host is not None:
        _check_chains(bounds.host, records.shape[0])
    if records.shape[0] == 0 or bounds.shape[0] == 1:
        return
    arguments = TokenMoveArguments(moves=records, chains=bounds)
    if chosen == "cpu":
        cpu_backend.apply_token_moves(arguments, segments)
    else:
        cuda_backend.apply_token_moves(arguments, segments, stream)


def chains_of(moves: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return where chains begin in `moves`, int32 [n, 5], with n at the end: int32 [c + 1].

    The destinations of a path follow each other, so a chain ends where they do not. Rows that come
    from no path may depend on each other across such an end; then all of them are one chain.
    """
    if len(moves) == 0:
        return np.zeros(1, np.int32)
    classes, _, _, pages, offsets = moves.T
    goes_on = (classes[1:] == classes[:-1]) & (
        ((pages[1:] == pages[:-1]) & (offsets[1:] == offsets[:-1] + 1)) | (offsets[1:] == 0)
    )
    bounds = np.concatenate(([0], np.flatnonzero(~goes_on) + 1, [len(moves)])).astype(np.int32)
    chain = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return bounds if _is_apart(moves, chain) else np.array([0, len(moves)], np.int32)


def _is_apart(moves: NDArray[np.int32], chain: NDArray[np.intp]) -> bool:
    """Tell whether no slot that one chain writes is touched by another."""
    sources, destinations = _slots(moves, 1), _slots(moves, 3)
    order = np.argsort(destinations, kind="stable")
    written, writer = destinations[order], chain[order]
    if ((written[1:] == written[:-1]) & (writer[1:] != writer[:-1])).any():
        return False
    place = np.searchsorted(written, sources).clip(max=len(written) - 1)
    return not ((written[place] == sources) & (writer[place] != chain)).any()


def _slots(moves: NDArray[np.int32], column: int) -> NDArray[np.int64]:
    """Return a number for each (class, page, offset) from `column` on."""
    offset_max = int(moves[:, [2, 4]].max()) + 1
    pages = moves[:, 0].astype(np.int64) << 32 | moves[:, column]
    return pages * offset_max + moves[:, column + 1]


def _check_moves(moves: NDArray[np.int32], segments: PageSegments) -> None:
    limits = segments.limits
    known = np.isin(moves[:, 0], list(limits))
    if not known.all():
        position = int(np.flatnonzero(~known)[0])
        raise ArrayError(
            "moves (class)",
            f"{moves[position, 0]} at {position} has no segment; there are {sorted(limits)}",
        )
    for number, (num_pages, tokens_per_block) in limits.items():
        mine = moves[moves[:, 0] == number]
        check_range("moves (source page)", mine[:, 1], 0, num_pages - 1)
        check_range("moves (source offset)", mine[:, 2], 0, tokens_per_block - 1)
        check_range("moves (destination page)", mine[:, 3], 1, num_pages - 1)
        check_range("moves (destination offset)", mine[:, 4], 0, tokens_per_block - 1)


def _check_chains(chains: NDArray[np.int32], num_moves: int) -> None:
    if chains[0] != 0 or chains[-1] != num_moves or (np.diff(chains) < 0).any():
        raise ArrayError("chains", f"they must ascend from 0 to {num_moves}, not {chains.tolist()}")

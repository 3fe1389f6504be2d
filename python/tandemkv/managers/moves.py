"""Runs the ledger's copies of pages in the pools of all roles, and of tokens in those of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import (
    PageSegments,
    StagingRing,
    StagingSlot,
    apply_page_moves,
    apply_token_moves,
    chains_of,
)
from tandemkv.device.cuda_backend import as_stream
from tandemkv.device.ring import CudaDevice
from tandemkv.errors import TandemkvError
from tandemkv.managers.memory import device_number
from tandemkv.managers.pools import Pool

_STAGED_MOVES = 256
"""Moves per launch on a GPU: 4 KiB of pinned memory in each of the ring's slots."""


class PageMover:
    """Copies pages between each other in several pools at once.

    Args:
        pools: the pools of the target and the draft, on one device.
        device: where they lie: `cpu` or `cuda:N`.

    Raises:
        PoolError: a pool holds no memory.
        DeviceUnavailableError: a GPU that is not there.
    """

    def __init__(self, pools: Sequence[Pool], device: str) -> None:
        self._segments = PageSegments([part for pool in pools for part in pool.segments()])
        self._ring: StagingRing | None = None
        if device != "cpu":
            self._ring = StagingRing(
                3, {"moves": (4 * _STAGED_MOVES,)}, device=CudaDevice(device_number(device))
            )

    def run(self, moves: NDArray[np.int32], stream: object | None) -> None:
        """Run `moves`, int32 `[k, 4]` of the ledger; on a GPU, queue them on `stream`.

        Raises:
            ArrayError: no stream was given on a GPU; nothing was copied.
        """
        if len(moves) == 0:
            return
        if self._ring is None:
            apply_page_moves(moves, self._segments, backend="cpu")
            return
        for first in range(0, len(moves), _STAGED_MOVES):
            part = moves[first : first + _STAGED_MOVES]
            slot = self._ring.acquire()
            staged = _staged(slot, "moves", part)
            with _published(self._ring, slot, stream):
                apply_page_moves(staged, self._segments, backend="cuda", stream=stream)


class TokenMover:
    """Copies single tokens in the pools of one role.

    Args:
        pools: the pools of the role, on one device.
        device: where they lie: `cpu` or `cuda:N`.

    Raises:
        PoolError: a pool holds no memory.
        DeviceUnavailableError: a GPU that is not there.
    """

    def __init__(self, pools: Sequence[Pool], device: str) -> None:
        self._segments = PageSegments([part for pool in pools for part in pool.segments()])
        self._ring: StagingRing | None = None
        if device != "cpu":
            shapes = {"moves": (5 * _STAGED_MOVES,), "chains": (_STAGED_MOVES + 1,)}
            self._ring = StagingRing(3, shapes, device=CudaDevice(device_number(device)))

    def check(self, stream: object | None) -> None:
        """Refuse a run without a stream on a GPU.

        Raises:
            ArrayError: see `as_stream`.
        """
        if self._ring is not None:
            as_stream(stream)

    def run(self, moves: NDArray[np.int32], stream: object | None) -> None:
        """Run `moves`, int32 `[k, 5]` of `path_moves`, in order; on a GPU, queue them on `stream`.

        Raises:
            ArrayError: no stream was given on a GPU; nothing was copied.
        """
        if self._ring is None:
            apply_token_moves(moves, self._segments, backend="cpu")
            return
        for first in range(0, len(moves), _STAGED_MOVES):
            part = moves[first : first + _STAGED_MOVES]
            slot = self._ring.acquire()
            staged, chains = (
                _staged(slot, "moves", part),
                _staged(slot, "chains", chains_of(part)),
            )
            with _published(self._ring, slot, stream):
                apply_token_moves(
                    staged, self._segments, chains=chains, backend="cuda", stream=stream
                )


def _staged(slot: StagingSlot, name: str, values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Write `values` into an array of a ring slot; return the part that holds them."""
    staged: NDArray[np.int32] = slot[name][: values.size].reshape(values.shape)
    staged[...] = values
    return staged


@contextmanager
def _published(ring: StagingRing, slot: StagingSlot, stream: object | None) -> Iterator[None]:
    """Hand a slot to the stream once the launch that reads it is queued."""
    try:
        yield
    except TandemkvError:
        slot.cancel()  # refused before the launch: nothing reads it
        raise
    except BaseException:
        # Whether the launch was queued is not known, so the slot waits for the stream.
        slot.publish(ring.device, stream)
        raise
    slot.publish(ring.device, stream)

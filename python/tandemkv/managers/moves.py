"""Runs the ledger's page copies in the pools of all roles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandemkv.device import PageSegments, StagingRing, apply_page_moves
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
            staged = slot["moves"][: part.size].reshape(part.shape)
            staged[...] = part
            try:
                apply_page_moves(staged, self._segments, backend="cuda", stream=stream)
            except TandemkvError:
                slot.cancel()  # refused before the launch: nothing reads it
                raise
            except BaseException:
                # Whether the launch was queued is not known, so the slot waits for the stream.
                slot.publish(self._ring.device, stream)
                raise
            slot.publish(self._ring.device, stream)

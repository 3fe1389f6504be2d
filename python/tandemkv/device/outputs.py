"""Lets host code fill a caller's arrays, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.device.arrays import ArrayView
from tandemkv.device.cuda_backend import as_stream, copy_to_device, device_of
from tandemkv.device.ring import CudaDevice, StagingRing
from tandemkv.errors import ArrayError

Fill = Callable[..., Sequence[int]]
"""Writes into one NumPy array per output; returns how many items of each it wrote."""

_ALIGNMENT = 16
_NUM_SLOTS = 3


class OutputWriter:
    """Fills host arrays in place, and arrays on a GPU through pinned staging slots.

    The slots grow to the largest output seen, so one writer serves tables of any size. It belongs
    to one thread at a time.
    """

    def __init__(self) -> None:
        self._rings: dict[int, tuple[int, StagingRing]] = {}

    def write(self, outputs: Sequence[ArrayView], fill: Fill, stream: object | None) -> None:
        """Call `fill` with one array per output.

        Args:
            outputs: what to fill: all in host memory, or all on one GPU.
            fill: writes the arrays it is given, of the outputs' shapes and dtypes; on a GPU their
                former content is undefined, and only the items it returns are copied.
            stream: the engine's stream, needed on a GPU: the copies are queued there.

        Raises:
            ArrayError: some outputs are on a GPU and some are not, or no stream was given.
        """
        hosts = [output.host for output in outputs]
        if all(host is not None for host in hosts):
            fill(*hosts)
            return
        for output in outputs:
            if output.host is not None:
                raise ArrayError(output.name, "it is in host memory, other outputs are on a GPU")
        queue = as_stream(stream)
        device = device_of(outputs[0], tuple(outputs[1:]))
        sizes = [_staged_bytes(output) for output in outputs]
        ring = self._ring(device, sum(sizes))
        slot = ring.acquire()
        try:
            staged = _cut(slot["bytes"].view(np.uint8), outputs, sizes)
            written = fill(*staged)
        except BaseException:
            slot.cancel()  # nothing reads it yet
            raise
        try:
            for output, array, count in zip(outputs, staged, written, strict=True):
                copy_to_device(output, array, count, device, queue)
        finally:
            # Some copies may be queued even if one failed: the slot waits for the stream.
            slot.publish(ring.device, queue)

    def _ring(self, device: int, num_bytes: int) -> StagingRing:
        held, ring = self._rings.get(device, (0, None))
        if ring is None or held < num_bytes:
            if ring is not None:
                ring.drain()  # its memory is given up
            held = 1 << max(num_bytes - 1, 4095).bit_length()
            ring = StagingRing(_NUM_SLOTS, {"bytes": (held // 4,)}, device=CudaDevice(device))
            self._rings[device] = held, ring
        return ring


def _staged_bytes(output: ArrayView) -> int:
    size = int(np.prod(output.shape, dtype=np.int64)) * output.dtype.itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _cut(
    memory: NDArray[np.uint8], outputs: Sequence[ArrayView], sizes: Sequence[int]
) -> list[NDArray[Any]]:
    """Return one array per output in the memory of a slot."""
    arrays, start = [], 0
    for output, size in zip(outputs, sizes, strict=True):
        num_items = int(np.prod(output.shape, dtype=np.int64))
        items = memory[start : start + num_items * output.dtype.itemsize].view(output.dtype)
        arrays.append(items.reshape(output.shape))
        start += size
    return arrays

"""Copies between a GPU and host memory, queued on the caller's stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from tandemkv.device.cuda_backend import as_stream
from tandemkv.device.kernels import require_cupy
from tandemkv.device.ring import CudaDevice, Event
from tandemkv.errors import TierError
from tandemkv.tiers.copies import Bytes, Pages
from tandemkv.tiers.host import Unpin
from tandemkv.tiers.pages import DeviceGroup

_MAX_PITCH_BYTES = 2**31 - 1
"""The largest distance of rows that a copy of rows takes."""


class CudaCopier:
    """The copier of pools on a GPU.

    Pages that follow each other on both sides are one copy. In a pool layer by layer, a page is one
    copy of as many rows as layers where these are alike. Host memory has to be pinned for copies to
    run beside the host; pageable memory is right, and the calls then wait for the device.

    Args:
        device: number of the GPU.

    Raises:
        DeviceUnavailableError: CuPy is not installed, or there is no GPU.
    """

    def __init__(self, device: int) -> None:
        self._cupy = require_cupy()
        self._device = device
        self._events = CudaDevice(device)
        with self._cupy.cuda.Device(device):
            self._loads = self._cupy.cuda.Stream(non_blocking=True)

    def to_host(
        self, group: DeviceGroup, host: Bytes, pages: Pages, host_pages: Pages, stream: object
    ) -> None:
        """See `PageCopier.to_host`."""
        self._copy(group, host, pages, host_pages, stream, up=False)

    def to_device(
        self, group: DeviceGroup, host: Bytes, pages: Pages, host_pages: Pages, stream: object
    ) -> None:
        """See `PageCopier.to_device`."""
        self._copy(group, host, pages, host_pages, stream, up=True)

    def record(self, stream: object) -> Event:
        """See `PageCopier.record`."""
        return self._events.record(stream)

    def check_stream(self, stream: object) -> None:
        """See `PageCopier.check_stream`."""
        as_stream(stream)

    def load_stream(self, stream: object) -> object:
        """Return the stream for loads from disk, after what is queued on `stream` by now.

        What was evicted from their pages is read before they are written. They are not ordered
        before later work on `stream`: a sequence runs when its loads are reported.
        """
        with self._cupy.cuda.Device(self._device):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(as_stream(stream))
            self._loads.wait_event(event)
        return self._loads

    def pin(self, array: Bytes) -> Unpin:
        """Lock an array for copies by the GPU, and return what unlocks it.

        Raises:
            TierError: the driver refuses.
        """
        runtime, pointer = self._cupy.cuda.runtime, _address(array)
        with self._cupy.cuda.Device(self._device):
            try:
                runtime.hostRegister(pointer, array.nbytes, 0)
            except runtime.CUDARuntimeError as error:
                raise TierError(
                    f"host tier: {array.nbytes} bytes cannot be pinned: {error}", tier="host"
                ) from None

        def unpin() -> None:
            with self._cupy.cuda.Device(self._device):
                runtime.hostUnregister(pointer)

        return unpin

    def _copy(
        self,
        group: DeviceGroup,
        host: Bytes,
        pages: Pages,
        host_pages: Pages,
        stream: object,
        *,
        up: bool,
    ) -> None:
        runtime = self._cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice if up else runtime.memcpyDeviceToHost
        queue: Any = as_stream(stream).ptr
        device_start, host_start = group.memory.pointer, _address(host)
        with self._cupy.cuda.Device(self._device):
            for width, height, device, device_pitch, offset, pitch in _rows(
                group, pages, host_pages
            ):
                to, to_pitch = (device_start + device, device_pitch)
                source, source_pitch = (host_start + offset, pitch)
                if not up:
                    to, to_pitch, source, source_pitch = source, source_pitch, to, to_pitch
                if height == 1:
                    runtime.memcpyAsync(to, source, width, kind, queue)
                else:
                    runtime.memcpy2DAsync(
                        to, to_pitch, source, source_pitch, width, height, kind, queue
                    )


def _rows(
    group: DeviceGroup, pages: Pages, host_pages: Pages
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yield the copies that move pages: width, rows, and first byte and pitch on both sides."""
    pieces = group.pieces.tolist()
    pitch = _layer_pitch(pieces)
    for page, host_page, count in _runs(pages, host_pages):
        if count == 1 and pitch is not None:
            size, start, stride, offset, host_stride = pieces[0]
            yield (
                *(size, len(pieces), start + page * stride, pitch),
                *(offset + host_page * host_stride, size),
            )
            continue
        for size, start, stride, offset, host_stride in pieces:
            device, host = start + page * stride, offset + host_page * host_stride
            if stride == host_stride == size:
                yield size * count, 1, device, 0, host, 0
            else:
                yield size, count, device, stride, host, host_stride


def _layer_pitch(pieces: list[list[int]]) -> int | None:
    """Return how far the pieces of a page are apart on the device, where all are alike."""
    sizes = {(size, stride) for size, _, stride, _, _ in pieces}
    starts = np.diff([piece[1] for piece in pieces])
    if len(pieces) == 1 or len(sizes) > 1 or len(set(starts.tolist())) > 1:
        return None
    return int(starts[0]) if pieces[0][0] <= starts[0] <= _MAX_PITCH_BYTES else None


def _runs(pages: Pages, host_pages: Pages) -> Iterator[tuple[int, int, int]]:
    """Yield first page, first host page and number of pages that follow each other on both."""
    cuts = np.flatnonzero((np.diff(pages) != 1) | (np.diff(host_pages) != 1)) + 1
    bounds = [0, *cuts.tolist(), len(pages)]
    for first, end in pairwise(bounds):
        if first < end:
            yield int(pages[first]), int(host_pages[first]), end - first


def _address(array: Bytes) -> int:
    address: int = array.__array_interface__["data"][0]
    return address

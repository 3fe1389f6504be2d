"""Copies between the device and host memory: one copier per kind of device."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandemkv import _core
from tandemkv.device.ring import Event, HostDevice
from tandemkv.errors import ArrayError
from tandemkv.tiers.pages import DeviceGroup

Bytes = NDArray[np.uint8]
Pages = NDArray[np.int64]


class PageCopier(Protocol):
    """Copies pages of a group between the device and a host buffer.

    A host buffer is uint8 `[pages * page_bytes]`; pages are int64 `[k]`, one per copy, and in
    range. Copies on one stream take effect in the order of the calls.
    """

    def to_host(
        self, group: DeviceGroup, host: Bytes, pages: Pages, host_pages: Pages, stream: object
    ) -> None:
        """Copy device pages `pages` to `host_pages` of `host`, or queue that on `stream`."""

    def to_device(
        self, group: DeviceGroup, host: Bytes, pages: Pages, host_pages: Pages, stream: object
    ) -> None:
        """Copy `host_pages` of `host` to device pages `pages`, or queue that on `stream`."""

    def record(self, stream: object) -> Event:
        """Return the event of everything queued on `stream` so far."""

    def check_stream(self, stream: object) -> None:
        """Refuse a stream on which copies cannot be queued.

        Raises:
            ArrayError: it is none.
        """

    def load_stream(self, stream: object) -> object:
        """Return a stream for loads whose data come later, ordered after `stream` up to here."""


class HostCopier:
    """The copier of pools in CPU memory: a copy is done when the call returns."""

    def __init__(self) -> None:
        self._device = HostDevice()

    def to_host(
        self, group: DeviceGroup, host: Bytes, pages: Pages, host_pages: Pages, stream: object
    ) -> None:
        """See `PageCopier.to_host`; there is no stream."""
        _core.copy_pages(_bytes_of(group), host, pages, host_pages, group.pieces)

    def to_device(
        self, group: DeviceGroup, host: Bytes, pages: Pages, host_pages: Pages, stream: object
    ) -> None:
        """See `PageCopier.to_device`; there is no stream."""
        _core.copy_pages(host, _bytes_of(group), host_pages, pages, group.pieces_up)

    def record(self, stream: object) -> Event:
        """Return an event that has passed."""
        return self._device.record(stream)

    def check_stream(self, stream: object) -> None:
        """Take anything: there is no stream."""

    def load_stream(self, stream: object) -> object:
        """Return what was given: there is no stream."""
        return stream


def _bytes_of(group: DeviceGroup) -> Bytes:
    if group.memory.host is None:
        raise ArrayError(
            group.memory.name, "the pool is on a GPU; copies on the CPU were asked for"
        )
    return group.memory.host

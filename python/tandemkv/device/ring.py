"""Staging buffers from which tables are published: free -> filling -> in flight -> free.

A kernel reads its tables when it runs, not when it is queued. So a host buffer that was handed to
a launch must not change before the launch has run, and nothing but an event on the launch's stream
says that it has. A ring slot is such a buffer together with its event.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tandemkv.device.cuda_backend import as_stream
from tandemkv.device.kernels import require_cupy
from tandemkv.errors import RingFullError

WhenFull = Literal["block", "raise"]


class Event(Protocol):
    """A point on a stream that has been passed or not."""

    def done(self) -> bool:
        """Whether all work before the point has run."""

    def wait(self) -> None:
        """Wait until it has been passed."""


class RingDevice(Protocol):
    """Where slots are allocated, and what tells that their copies have run."""

    def allocate(self, shape: tuple[int, ...]) -> NDArray[np.int32]:
        """Return a zeroed host array that the device can read."""

    def record(self, stream: object) -> Event:
        """Return the event of everything queued on `stream` so far."""


class HostDevice:
    """The device of the cpu backend: its copies have run when the call returns."""

    def allocate(self, shape: tuple[int, ...]) -> NDArray[np.int32]:
        """Return a zeroed NumPy array."""
        return np.zeros(shape, np.int32)

    def record(self, stream: object) -> Event:
        """Return an event that has passed; there is no stream."""
        return _PassedEvent()


class CudaDevice:
    """A GPU: pinned host memory and CUDA events.

    Args:
        device: its number.

    Raises:
        DeviceUnavailableError: CuPy is not installed, or there is no GPU.
    """

    def __init__(self, device: int) -> None:
        self._cupy = require_cupy()
        self._device = device

    def allocate(self, shape: tuple[int, ...]) -> NDArray[np.int32]:
        """Return a zeroed array in pinned memory that every GPU can read at its own address."""
        import cupyx  # noqa: PLC0415 (an extra; `require_cupy` has found it)

        with self._cupy.cuda.Device(self._device):
            pinned: NDArray[np.int32] = cupyx.empty_pinned(shape, np.int32)
        pinned[...] = 0
        return pinned

    def record(self, stream: object) -> Event:
        """Record a CUDA event on the stream."""
        with self._cupy.cuda.Device(self._device):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(as_stream(stream))
        return _CudaEvent(event)


class _PassedEvent:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


class _CudaEvent:
    def __init__(self, event: Any) -> None:
        self._event = event

    def done(self) -> bool:
        return bool(self._event.done)

    def wait(self) -> None:
        self._event.synchronize()


class _State(Enum):
    FREE = "free"
    FILLING = "filling"
    IN_FLIGHT = "in flight"


class StagingSlot:
    """One slot's arrays, for whoever acquired it, until `publish` or `cancel`.

    The arrays are writable until then and read-only afterwards; a view that the caller made of
    them before is not, and must not outlive the slot's use.
    """

    def __init__(self, arrays: Mapping[str, NDArray[np.int32]], entry: _Entry) -> None:
        self._arrays = dict(arrays)
        self._entry = entry
        self._open = True

    def __getitem__(self, name: str) -> NDArray[np.int32]:
        return self._arrays[name]

    def publish(self, device: RingDevice, stream: object) -> None:
        """Mark the slot as in flight until everything queued on `stream` so far has run.

        Call it after the copies or kernels that read the slot have been queued.

        Raises:
            ValueError: the slot was published or cancelled before.
        """
        self._close()
        # In flight before the event exists: if recording fails, the slot stays out of use, since
        # whether its reader has run can no longer be known.
        self._entry.state = _State.IN_FLIGHT
        self._entry.event = device.record(stream)

    def cancel(self) -> None:
        """Give the slot back; nothing that reads it may have been queued.

        Raises:
            ValueError: the slot was published or cancelled before.
        """
        self._close()
        self._entry.state = _State.FREE

    def _close(self) -> None:
        if not self._open:
            raise ValueError("the slot was published or cancelled before")
        self._open = False
        for array in self._arrays.values():
            array.setflags(write=False)


class _Entry:
    """A slot's memory and state, which outlive each use of it."""

    def __init__(self, arrays: dict[str, NDArray[np.int32]]) -> None:
        self.arrays = arrays
        self.state = _State.FREE
        self.event: Event | None = None

    def passed(self) -> bool:
        return self.event is not None and self.event.done()


class StagingRing:
    """A fixed number of staging slots, used by one thread at a time.

    Args:
        num_slots: slots, >= 1: the steps that may be in flight at once.
        shapes: name -> shape of the int32 arrays of each slot.
        device: what allocates them and records events; None for the cpu backend.
        when_full: whether `acquire` waits for the oldest slot ("block") or raises ("raise").

    Raises:
        ValueError: `num_slots` or `when_full` is out of range.
    """

    def __init__(
        self,
        num_slots: int,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        device: RingDevice | None = None,
        when_full: WhenFull = "block",
    ) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        if when_full not in ("block", "raise"):
            raise ValueError(f"when_full must be 'block' or 'raise', not {when_full!r}")
        self._device = HostDevice() if device is None else device
        self._when_full = when_full
        self._entries = [
            _Entry({name: self._device.allocate(shape) for name, shape in shapes.items()})
            for _ in range(num_slots)
        ]
        self._waiting: list[_Entry] = []  # in flight or filling, in the order of acquisition

    @property
    def num_slots(self) -> int:
        """Slots of the ring."""
        return len(self._entries)

    @property
    def device(self) -> RingDevice:
        """What allocated the slots."""
        return self._device

    def acquire(self) -> StagingSlot:
        """Return a slot whose last copy has run, with writable arrays of undefined content.

        Raises:
            RingFullError: no slot can be had: with `when_full="raise"`, all are in flight or being
                filled; with "block", all are being filled, which waiting would not change.
        """
        self._collect()
        free = next((entry for entry in self._entries if entry.state is _State.FREE), None)
        if free is None:
            self._wait_for_oldest()
            self._collect()
            free = next(entry for entry in self._entries if entry.state is _State.FREE)
        free.state = _State.FILLING
        free.event = None
        self._waiting.append(free)
        return StagingSlot({name: array.view() for name, array in free.arrays.items()}, free)

    def drain(self) -> None:
        """Wait until no slot is in flight, such as before the memory is given up."""
        for entry in self._waiting:
            if entry.event is not None:
                entry.event.wait()
        self._collect()

    def _collect(self) -> None:
        """Free the slots whose event has passed, whatever their order."""
        for entry in self._waiting:
            if entry.state is _State.IN_FLIGHT and entry.passed():
                entry.state = _State.FREE
        self._waiting = [entry for entry in self._waiting if entry.state is not _State.FREE]

    def _wait_for_oldest(self) -> None:
        oldest = next((entry for entry in self._waiting if entry.event is not None), None)
        if self._when_full == "raise" or oldest is None or oldest.event is None:
            raise RingFullError(
                f"all {self.num_slots} staging slots are in flight or being filled",
                num_slots=self.num_slots,
            )
        oldest.event.wait()

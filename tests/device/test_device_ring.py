"""The staging ring against a device whose copies run late, in every order up to a bound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

from tandemkv.device import StagingRing
from tandemkv.device.ring import Event
from tandemkv.errors import RingFullError


class FakeEvent:
    """A point in a stream's queue."""

    def __init__(self, device: FakeDevice, stream: int) -> None:
        self._device, self._stream = device, stream
        self._position = device.queued[stream]

    def done(self) -> bool:
        return self._device.executed[self._stream] >= self._position

    def wait(self) -> None:
        while not self.done():
            self._device.execute(self._stream)


class FakeDevice:
    """Streams that copy a slot when `execute` says so, not when the copy is queued."""

    def __init__(self, num_streams: int = 1) -> None:
        self.queued = [0] * num_streams
        self.executed = [0] * num_streams
        self.received: dict[int, int] = {}
        self._copies: list[list[tuple[int, NDArray[np.int32]]]] = [[] for _ in range(num_streams)]

    def allocate(self, shape: tuple[int, ...]) -> NDArray[np.int32]:
        return np.zeros(shape, np.int32)

    def record(self, stream: object) -> Event:
        assert isinstance(stream, int)
        return FakeEvent(self, stream)

    def copy(self, step: int, source: NDArray[np.int32], stream: int) -> None:
        self._copies[stream].append((step, source))
        self.queued[stream] += 1

    def execute(self, stream: int) -> None:
        step, source = self._copies[stream][self.executed[stream]]
        self.received[step] = int(source[0])
        self.executed[stream] += 1

    def pending(self, stream: int) -> bool:
        return self.executed[stream] < self.queued[stream]


class CarelessDevice(FakeDevice):
    """Says of every copy at once that it has run: what a ring without events would believe."""

    def record(self, stream: object) -> Event:
        event = FakeEvent(self, 0)
        event.done = lambda: True  # type: ignore[method-assign]
        return event


def interleavings(num_steps: int, num_streams: int) -> Iterator[str]:
    """Yield every order of host publishes ("h") and executed copies ("0", "1" by stream).

    Step k goes to stream k % num_streams; a copy runs only after it was queued.
    """

    def extend(prefix: str, published: int, executed: tuple[int, ...]) -> Iterator[str]:
        if published == num_steps:
            yield prefix
            return
        yield from extend(prefix + "h", published + 1, executed)
        for stream in range(num_streams):
            queued = len(range(stream, published, num_streams))
            if executed[stream] < queued:
                after = tuple(n + (i == stream) for i, n in enumerate(executed))
                yield from extend(prefix + str(stream), published, after)

    yield from extend("", 0, (0,) * num_streams)


def publish(ring: StagingRing, device: FakeDevice, step: int, stream: int) -> None:
    slot = ring.acquire()
    slot["table"][0] = 1000 + step
    device.copy(step, slot["table"], stream)
    slot.publish(device, stream)


def run(order: str, ring: StagingRing, device: FakeDevice, num_streams: int) -> dict[int, int]:
    steps = count()
    for action in order:
        if action == "h":
            step = next(steps)
            publish(ring, device, step, step % num_streams)
        elif device.pending(int(action)):  # a blocked publish may have run it already
            device.execute(int(action))
    for stream in range(num_streams):
        while device.pending(stream):
            device.execute(stream)
    return device.received


@pytest.mark.parametrize("num_streams", [1, 2])
@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_every_interleaving_delivers_what_was_published(num_slots: int, num_streams: int) -> None:
    num_steps = 6
    seen = 0
    for order in interleavings(num_steps, num_streams):
        device = FakeDevice(num_streams)
        ring = StagingRing(num_slots, {"table": (4,)}, device=device)
        assert run(order, ring, device, num_streams) == {k: 1000 + k for k in range(num_steps)}
        seen += 1
    assert seen >= 132  # one stream: the Catalan number C(6); two have more orders


def test_the_check_sees_a_ring_that_does_not_wait() -> None:
    corrupted = 0
    for order in interleavings(4, 1):
        device = CarelessDevice()
        ring = StagingRing(2, {"table": (4,)}, device=device)
        corrupted += run(order, ring, device, 1) != {k: 1000 + k for k in range(4)}
    assert corrupted > 0


def test_one_step_too_many_waits_for_the_oldest() -> None:
    device = FakeDevice()
    ring = StagingRing(2, {"table": (4,)}, device=device)
    publish(ring, device, 0, 0)
    publish(ring, device, 1, 0)
    assert device.executed == [0]
    publish(ring, device, 2, 0)
    assert device.executed == [1]
    assert device.received == {0: 1000}


def test_one_step_too_many_raises_when_asked() -> None:
    device = FakeDevice()
    ring = StagingRing(2, {"table": (4,)}, device=device, when_full="raise")
    publish(ring, device, 0, 0)
    publish(ring, device, 1, 0)
    with pytest.raises(RingFullError, match=r"^all 2 staging slots are in flight") as caught:
        ring.acquire()
    assert caught.value.num_slots == 2
    assert device.executed == [0]
    device.execute(0)
    publish(ring, device, 2, 0)


def test_waiting_for_slots_that_are_being_filled_would_never_end() -> None:
    ring = StagingRing(1, {"table": (4,)})
    slot = ring.acquire()
    with pytest.raises(RingFullError):
        ring.acquire()
    slot.cancel()
    ring.acquire()


def test_a_slot_in_flight_cannot_be_written_or_used_twice() -> None:
    device = FakeDevice()
    ring = StagingRing(2, {"table": (4,)}, device=device)
    slot = ring.acquire()
    slot.publish(device, 0)
    with pytest.raises(ValueError, match="read-only"):
        slot["table"][0] = 1
    for again in (lambda: slot.publish(device, 0), slot.cancel):
        with pytest.raises(ValueError, match="published or cancelled before"):
            again()


def test_drain_waits_for_all() -> None:
    device = FakeDevice()
    ring = StagingRing(3, {"table": (4,)}, device=device)
    for step in range(3):
        publish(ring, device, step, 0)
    ring.drain()
    assert device.executed == [3]


def test_a_failed_event_keeps_its_slot_out_of_use() -> None:
    class Broken(FakeDevice):
        def record(self, stream: object) -> Event:
            raise RuntimeError("the context is gone")

    device = Broken()
    ring = StagingRing(2, {"table": (4,)}, device=device)
    with pytest.raises(RuntimeError, match="the context is gone"):
        ring.acquire().publish(device, 0)
    kept = ring.acquire()
    with pytest.raises(RingFullError):
        ring.acquire()
    kept.cancel()


@pytest.mark.parametrize(
    ("slots", "when_full", "message"),
    [(0, "block", "num_slots must be at least 1"), (1, "drop", "must be 'block' or 'raise'")],
)
def test_bad_rings(slots: int, when_full: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StagingRing(slots, {"table": (4,)}, when_full=when_full)  # type: ignore[arg-type]

"""A store in this process: an example of a backend, and what tests run on."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from tandemkv.stores.executors import Executor, InlineExecutor
from tandemkv.stores.outcomes import Outcome
from tandemkv.stores.queued import QueuedStore
from tandemkv.stores.values import Bytes, check_bytes


class MemoryBackend:
    """Values in a dictionary. The least recently read or stored one gives way to a new one.

    Args:
        max_bytes: bytes of all values, headers included.
        evict: False: a value that has no room is rejected.
    """

    probe_extends_lease = False
    lease_s: float | None = None

    def __init__(self, max_bytes: int, *, evict: bool = True) -> None:
        self._max_bytes = check_bytes("max_bytes", max_bytes)
        self._evict = evict
        self._lock = threading.Lock()
        self._values: OrderedDict[str, Bytes] = OrderedDict()
        self._num_bytes = 0

    def put(self, names: Sequence[str], values: Sequence[Bytes]) -> list[Outcome]:
        """See `StoreBackend.put`."""
        with self._lock:
            return [self._put(name, value) for name, value in zip(names, values, strict=True)]

    def get(self, names: Sequence[str], value_bytes: int) -> list[Bytes | Outcome]:
        """See `StoreBackend.get`."""
        del value_bytes
        with self._lock:
            for name in names:
                if name in self._values:
                    self._values.move_to_end(name)
            return [self._values.get(name, Outcome.ABSENT) for name in names]

    def exists(self, names: Sequence[str]) -> list[Outcome]:
        """See `StoreBackend.exists`. What is probed is not worth more than before."""
        with self._lock:
            return [Outcome.OK if name in self._values else Outcome.ABSENT for name in names]

    def drop(self, names: Sequence[str]) -> int:
        """See `StoreBackend.drop`."""
        with self._lock:
            present = [name for name in dict.fromkeys(names) if name in self._values]
            for name in present:
                self._remove(name)
            return len(present)

    def errors(self) -> dict[str, int]:
        """See `StoreBackend.errors`: there are none."""
        return {}

    def close(self) -> None:
        """See `StoreBackend.close`."""
        with self._lock:
            self._values.clear()
            self._num_bytes = 0

    def _put(self, name: str, value: Bytes) -> Outcome:
        if name in self._values:
            self._values.move_to_end(name)
            return Outcome.OK
        if value.nbytes > self._max_bytes:
            return Outcome.REJECTED
        while self._num_bytes + value.nbytes > self._max_bytes:
            if not self._evict:
                return Outcome.REJECTED
            self._remove(next(iter(self._values)))
        kept = value.copy()
        kept.setflags(write=False)
        self._values[name] = kept
        self._num_bytes += kept.nbytes
        return Outcome.OK

    def _remove(self, name: str) -> None:
        self._num_bytes -= self._values.pop(name).nbytes


class MemoryStore(QueuedStore):
    """An `OuterStore` in this process. Its tickets are done when the call returns.

    Args:
        max_bytes: bytes of all values, headers of 128 bytes included.
        evict: False: a value that has no room is rejected, instead of evicting older ones.
        executor: where calls run; None: in the caller's thread.
        clock: seconds, monotonic.

    Raises:
        StoreError: `max_bytes` is not an int >= 1.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        evict: bool = True,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        backend = MemoryBackend(max_bytes, evict=evict)
        super().__init__(backend, executor or InlineExecutor(), clock=clock)

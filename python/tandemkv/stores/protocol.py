"""What an outer store is: to those who use it, and to those who connect another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tandemkv.stores.outcomes import Outcome
from tandemkv.stores.statistics import StoreStats
from tandemkv.stores.tickets import Ticket
from tandemkv.stores.values import Bytes, ValueLayout

# Writes n payloads to the array that it is given, uint8 `[n, payload_bytes]`.
Fill = Callable[[Bytes], None]


class OuterStore(Protocol):
    """Values by key, outside this process; calls take many keys and return at once.

    Whatever goes wrong is a miss, and is counted: an absent, short or foreign value, a wrong
    checksum, an error, an answer after the deadline. Nothing of that is raised; only misuse is
    (`ArrayError`, `StoreError`). Calls may come from any thread.
    """

    @property
    def probe_extends_lease(self) -> bool:
        """Whether `exists` keeps values from being evicted: probe rarely then."""

    def put(
        self, layout: ValueLayout, keys: Bytes, payloads: Bytes | Fill, *, timeout_s: float
    ) -> Ticket:
        """Store values. A value that is there already stays, and counts as stored.

        Args:
            layout: what the values are.
            keys: uint8 `[n, 32]`.
            payloads: uint8 `[n, payload_bytes]`, or what writes them to an array of that shape.
                They are read before this returns.
            timeout_s: seconds until the ticket is done at the latest, >= 0.

        Raises:
            ArrayError: an array of another form.
            StoreError: a timeout that is no number >= 0.
        """

    def get(self, layout: ValueLayout, keys: Bytes, out: Bytes, *, timeout_s: float) -> Ticket:
        """Read values.

        Args:
            layout: what the values are.
            keys: uint8 `[n, 32]`.
            out: uint8 `[n, payload_bytes]`, each row in one piece; the caller leaves it alone until
                the ticket is done. Rows of misses then hold anything.
            timeout_s: seconds until the ticket is done at the latest, >= 0. What ends later is not
                used.

        Raises:
            ArrayError: an array of another form.
            StoreError: a timeout that is no number >= 0.
        """

    def exists(self, layout: ValueLayout, keys: Bytes, *, timeout_s: float) -> Ticket:
        """Ask whether values are there. They may be gone when they are read.

        Args:
            layout: what the values are.
            keys: uint8 `[n, 32]`.
            timeout_s: seconds until the ticket is done at the latest, >= 0.

        Raises:
            ArrayError: an array of another form.
            StoreError: a timeout that is no number >= 0.
        """

    def stats(self) -> StoreStats:
        """Return the counters."""

    def close(self, timeout_s: float = 10.0) -> bool:
        """Give up what is pending and let go of the store; later calls are `BUSY`.

        Args:
            timeout_s: seconds to wait for calls that are running.

        Returns:
            False: something was still running then. Nothing of it reaches the caller any more.
        """


class StoreBackend(Protocol):
    """The blocking calls of one kind of store; `QueuedStore` makes an `OuterStore` of it.

    Called from one or more threads. Anything may be raised: all keys of the call then have failed.
    """

    @property
    def probe_extends_lease(self) -> bool:
        """See `OuterStore`."""

    @property
    def lease_s(self) -> float | None:
        """Seconds after the start of a read for which its memory is left alone; None: for ever."""

    def put(self, names: Sequence[str], values: Sequence[Bytes]) -> Sequence[Outcome]:
        """Store values, uint8 `[bytes]`; `OK`, `REJECTED` or `FAILED` of each.

        A value is seen by readers as a whole or not at all. One that is there already stays (`OK`).
        """

    def get(self, names: Sequence[str], value_bytes: int) -> Sequence[Bytes | Outcome]:
        """Return the bytes of each value, or why there are none.

        Args:
            names: of the values.
            value_bytes: what each is expected to have; others come in any length.

        Returns:
            uint8 `[bytes]`, valid until the thread's next call.
        """

    def exists(self, names: Sequence[str]) -> Sequence[Outcome]:
        """Return `OK`, `ABSENT` or `FAILED` of each."""

    def drop(self, names: Sequence[str]) -> int:
        """Remove values that nobody can read; return how many."""

    def errors(self) -> dict[str, int]:
        """Return failures that were not raised, by what was said about them."""

    def close(self) -> None:
        """Let go of the store; no call comes after this one."""

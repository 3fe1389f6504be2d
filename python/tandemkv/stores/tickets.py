"""Tickets: how the caller of a store learns what became of its keys, without waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tandemkv.stores.outcomes import Outcome

Mask = NDArray[np.bool_]
Outcomes = NDArray[np.uint8]

# Told the outcomes of keys, once for each of them.
Record = Callable[[Outcomes], None]


class Ticket:
    """One call of a store on its way. Made by stores.

    It is done at its deadline at the latest, whatever the store does, except while a payload that
    came in time is being copied.
    """

    def __init__(
        self, num_keys: int, *, deadline: float, clock: Callable[[], float], record: Record
    ) -> None:
        self._deadline = deadline
        self._clock = clock
        self._record = record
        self._changed = threading.Condition(threading.Lock())
        self._outcomes = np.full(num_keys, Outcome.PENDING, np.uint8)
        self._num_pending = num_keys
        self._writing = False

    def __len__(self) -> int:
        return self._outcomes.size

    def poll(self) -> Mask | None:
        """Return which keys ended well, bool `[n]`, or None while it is not done. Never waits.

        Once it is done, nothing of the call reads or writes the caller's memory.
        """
        with self._changed:
            self._expire()
            return None if self._num_pending else self._good()

    def wait(self) -> Mask:
        """Return what `poll` returns when it is done, which is at the deadline at the latest.

        Not for the thread that serves.
        """
        with self._changed:
            while True:
                self._expire()
                if not self._num_pending:
                    return self._good()
                left = self._deadline - self._clock()
                # While the worker is copying there is no deadline: it tells when it has finished.
                self._changed.wait(None if self._writing else max(left, 0.0) + 0.001)

    def cancel(self) -> None:
        """Give up what is not known yet, unless it is just being copied."""
        self.give_up(Outcome.CANCELLED)

    @property
    def outcomes(self) -> Outcomes:
        """`Outcome` of each key, uint8 `[n]`, a copy; `PENDING` where it is not known."""
        with self._changed:
            self._expire()
            return self._outcomes.copy()

    # --- for stores ---------------------------------------------------------------------------

    def give_up(self, outcome: Outcome) -> None:
        """Settle all keys that are pending, unless they are just being copied."""
        with self._changed:
            if not self._writing:
                self._settle(self._outcomes == Outcome.PENDING, outcome)

    def is_open(self) -> bool:
        """Return whether anybody still wants to know."""
        with self._changed:
            self._expire()
            return self._num_pending > 0

    def begin_write(self) -> bool:
        """Return whether the caller's memory may be written to; if so `settle` must follow."""
        with self._changed:
            self._expire()
            self._writing = self._num_pending > 0
            return self._writing

    def settle(self, keys: slice, outcomes: Outcomes, *, in_time: bool = False) -> None:
        """Say what became of some keys. Those that are known already stay as they are.

        Args:
            keys: which.
            outcomes: uint8, one per key.
            in_time: what ends after the deadline does not count.
        """
        with self._changed:
            if in_time and self._clock() > self._deadline:
                outcomes = np.where(outcomes == Outcome.OK, Outcome.LATE, outcomes)
            self._writing = False
            mask = np.zeros(self._outcomes.size, np.bool_)
            mask[keys] = self._outcomes[keys] == Outcome.PENDING
            self._settle(mask, outcomes[self._outcomes[keys] == Outcome.PENDING])

    def _good(self) -> Mask:
        return np.equal(self._outcomes, Outcome.OK)

    def _expire(self) -> None:
        if self._num_pending and not self._writing and self._clock() > self._deadline:
            self._settle(self._outcomes == Outcome.PENDING, Outcome.TIMED_OUT)

    def _settle(self, mask: Mask, outcomes: Outcomes | Outcome) -> None:
        self._outcomes[mask] = outcomes
        self._num_pending = int(np.count_nonzero(self._outcomes == Outcome.PENDING))
        if mask.any():
            self._record(self._outcomes[mask])
        self._changed.notify_all()

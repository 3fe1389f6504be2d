"""Leaves a store alone that failed again and again, so that requests do not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Breaker:
    """Suspends calls after failures in a row, for a time; then one more failure suspends again.

    Args:
        max_failures: failures in a row, >= 1.
        retry_after_s: seconds without calls.
        clock: seconds, monotonic.
    """

    def __init__(self, max_failures: int, retry_after_s: float, clock: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until: float | None = None

    @property
    def suspended(self) -> bool:
        """Whether calls are not to be made now."""
        with self._lock:
            return self._until is not None and self._clock() < self._until

    def note(self, *, failed: bool) -> None:
        """Count the end of a call."""
        with self._lock:
            if not failed:
                self._failures, self._until = 0, None
                return
            self._failures += 1
            if self._failures >= self._max_failures:
                self._until = self._clock() + self._retry_after_s

"""Reads and writes of the disk, in a small pool of threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from tandemkv.tiers.rows import DiskRow

_JOB_ROWS = 16
"""Most rows of one job: enough to hide what a job costs."""


class DiskJobs:
    """Runs rows in threads; everything but the rows' transfers happens in the caller's thread.

    Args:
        threads: threads, >= 1.
        transfer: reads or writes one row, in a thread; any exception is a failed row.
    """

    def __init__(self, threads: int, transfer: Callable[[DiskRow], None]) -> None:
        self._threads = threads
        self._transfer = transfer
        self._pool = ThreadPoolExecutor(threads, "tandemkv-tiers")
        self._results: SimpleQueue[list[tuple[DiskRow, str]]] = SimpleQueue()
        self._running = 0

    @property
    def running(self) -> int:
        """Jobs whose results were not taken."""
        return self._running

    def start(self, rows: list[DiskRow]) -> None:
        """Hand rows to the threads, a few at a time."""
        size = max(1, min(_JOB_ROWS, -(-len(rows) // self._threads)))
        for first in range(0, len(rows), size):
            self._running += 1
            self._pool.submit(self._run, rows[first : first + size])

    def take(self, *, wait: bool) -> list[tuple[DiskRow, str]]:
        """Return the rows of a finished job, each with what went wrong or ""; [] if there is none.

        Args:
            wait: wait until one of the running jobs is finished.
        """
        try:
            results = self._results.get(block=wait and self._running > 0)
        except Empty:
            return []
        self._running -= 1
        return results

    def close(self) -> None:
        """End the threads, after what they run."""
        self._pool.shutdown()

    def _run(self, rows: list[DiskRow]) -> None:
        results = []
        for row in rows:
            try:
                self._transfer(row)
                results.append((row, ""))
            except Exception as error:
                results.append((row, f"{type(error).__name__}: {error}"))
        self._results.put(results)

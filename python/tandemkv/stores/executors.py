"""Where the blocking calls of a store run: in threads of its own, or at once."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

Job = Callable[[], None]


class Executor(Protocol):
    """Runs jobs, which raise nothing."""

    def submit(self, job: Job) -> bool:
        """Take a job, to be run now or later; False: there is no room for it. Never waits."""

    def close(self, last: Job, timeout_s: float) -> bool:
        """Run the jobs that were taken, then `last`; False: that did not end in time."""


class InlineExecutor:
    """Runs a job when it is submitted: for stores that never wait for anything."""

    def submit(self, job: Job) -> bool:
        """See `Executor.submit`."""
        job()
        return True

    def close(self, last: Job, timeout_s: float) -> bool:
        """See `Executor.close`."""
        del timeout_s
        last()
        return True


class ThreadExecutor:
    """Runs jobs in threads, in the order in which they were submitted.

    The end of the process waits for jobs that are running, though not for ever: a library that
    comes back into an interpreter that has ended crashes.

    Args:
        num_threads: jobs that run at a time, >= 1.
        max_jobs: jobs that wait, >= 1; more are refused.
        exit_wait_s: seconds for which the end of the process waits.
    """

    def __init__(self, num_threads: int, max_jobs: int, *, exit_wait_s: float = 120.0) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._max_jobs = max_jobs
        self._threads = [
            threading.Thread(target=self._run, name=f"tandemkv-store-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self._join, exit_wait_s)

    def submit(self, job: Job) -> bool:
        """See `Executor.submit`."""
        if self._jobs.qsize() >= self._max_jobs:
            return False
        self._jobs.put(job)
        return True

    def close(self, last: Job, timeout_s: float) -> bool:
        """See `Executor.close`. `last` runs in a thread too, when all others have ended."""

        def finish() -> None:
            self._join(None)
            last()
            atexit.unregister(self._join)

        thread = threading.Thread(target=finish, name="tandemkv-store-close", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive()

    def _join(self, timeout_s: float | None) -> None:
        """Let the threads end after the jobs that were taken, and wait for that."""
        for _ in self._threads:
            self._jobs.put(None)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if until is None else max(until - time.monotonic(), 0.0))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            # A local name would keep the job's memory until the next one comes.
            del job

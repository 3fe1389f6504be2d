"""Tiers below the device in the managers: transfers go out, requests wait for their pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.errors import ArrayError, RequestError, TierError
from tandemkv.managers.identity import Identity
from tandemkv.managers.steps import named
from tandemkv.tiers.protocols import Executor, TransferObserver
from tandemkv.tiers.transfers import KEY_BYTES, TransferPlan

Completed = tuple[NDArray[np.int64], NDArray[np.uint8]]
Agreement = Callable[[NDArray[np.int64], NDArray[np.uint8]], Completed]

# Rows beyond those planned, for copies to disk ahead of need: what one call plans at most.
_ROWS_AHEAD = 256

READY, ON_ITS_WAY, SUSPENDED = 0, 1, 2
"""What `Ledger.loading` says of a sequence."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that was admitted and whose pages are on their way.

    Attributes:
        handle: its sequence.
        prompt: its prompt as it was given, int32 or int64.
        identity: its adapter, salt and media, None without any.
        terms: its scope as it was given, `max_total` and `draft_from`.
    """

    handle: int
    prompt: NDArray[Any]
    identity: Identity | None
    terms: tuple[int, int, int]

    def is_same(
        self, prompt: NDArray[Any], identity: Identity | None, terms: tuple[int, int, int]
    ) -> bool:
        """Tell whether a request that is given again is this one."""
        same = self.terms == terms and self.identity == identity
        return same and np.array_equal(self.prompt, prompt)


class Transfers:
    """The executor of a rank, and the requests that wait for it.

    Attributes:
        stream: where copies from and to a GPU are queued: the engine's stream. It has to be set
            before the first `prepare_resources`; pools in CPU memory need none.
        agree: where several ranks decide alike, what makes them see the same completions at the
            same calls: it is given the ids int64 `[n]` that this rank has completed since the last
            call, with uint8 `[n]` whether ok, and returns those that all ranks have completed by
            now, in one order, ok where all are. None: this rank decides alone.
        observer: hears of all transfers; None: nobody does.
    """

    def __init__(self, ledger: Ledger, executor: Executor, device: str = "cpu") -> None:
        self._ledger = ledger
        self._executor = executor
        self._device = device
        self._closed = False
        # Completed, and not told to the ledger: what stood between them raised.
        self._untold = (np.zeros(0, np.int64), np.zeros(0, np.uint8))
        self._waiting: dict[Hashable, Waiting] = {}
        self.stream: object | None = None
        self.agree: Agreement | None = None
        self.observer: TransferObserver | None = None
        # The managers' as well: what changes something runs one after the other.
        self.lock = threading.RLock()
        # Handles that were resumed and have not run since.
        self.resuming: set[int] = set()

    def __contains__(self, request_id: Hashable) -> bool:
        return request_id in self._waiting

    def __len__(self) -> int:
        """Return how many requests wait for their pages."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        """Return True: there are tiers, whether somebody waits for them or not."""
        return True

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._waiting)

    @property
    def executor(self) -> Executor:
        """What copies."""
        return self._executor

    def stats(self) -> dict[str, Any]:
        """Return pages and counters of the lower tiers; see `Ledger.tier_stats`."""
        return {**self._ledger.tier_stats(), "waiting_requests": len(self._waiting)}

    def collect(self, wait: bool = False) -> int:
        """Tell the ledger what the executor has completed; return how many transfers that is.

        Args:
            wait: wait until one is completed, if any is under way; other threads wait too.
        """
        with self.lock:
            polled = self._executor.poll(wait and not len(self._untold[0]))
            ids = np.concatenate((self._untold[0], polled[0]))
            ok = np.concatenate((self._untold[1], polled[1]))
            self._untold = (ids, ok)
            if self.agree is not None:
                ids, ok = self.agree(ids, ok)
            self._untold = (ids[:0], ok[:0])
            if len(ids):
                try:
                    if self.observer is not None:
                        self.observer.completed(ids, ok)
                finally:
                    self._ledger.complete_transfers(ids, ok)
            return len(ids)

    def check(self) -> None:
        """Refuse a step whose copies could not be started.

        Raises:
            TierError: the tiers are closed, or have no stream on a GPU.
        """
        if self._closed:
            raise TierError("the tiers are closed; nothing can be evicted to them or loaded")
        if self._device != "cpu" and self.stream is None:
            raise TierError(
                f"tiers.stream is None; copies from and to {self._device} are queued on the "
                "engine's stream, which has to be set first"
            )

    def run(self) -> None:
        """Start what the ledger has planned, before anything else touches the pages."""
        with self.lock:
            rows = np.empty((self._ledger.pending_transfers() + _ROWS_AHEAD, 6), np.int64)
            keys = np.empty((len(rows), KEY_BYTES), np.uint8)
            count = self._ledger.transfers(rows, keys)
            if count:
                self._submit(TransferPlan(rows[:count], keys[:count]))
                self.collect()

    def _submit(self, plan: TransferPlan) -> None:
        if self.observer is not None:
            self.observer.planned(plan)
        try:
            self._executor.submit(plan, self.stream)
        except (ArrayError, TierError):
            # Nothing was started, so nothing may wait for it.
            ids = np.unique(plan.ids)
            failed = np.zeros(len(ids), np.uint8)
            if self.observer is not None:
                self.observer.completed(ids, failed)
            self._ledger.complete_transfers(ids, failed)
            raise

    def drain(self) -> None:
        """Run and wait until nothing is planned or under way."""
        with self.lock:
            self.run()
            while self._ledger.tier_stats()["open_transfers"]:
                told = self.collect(wait=True)
                if not told and self.agree is None and not self._ledger.pending_transfers():
                    left = self._ledger.tier_stats()["open_transfers"]
                    raise TierError(f"{left} transfers are under way, and the executor has none")
                self.run()

    def flush(self, device: bool = False) -> int:
        """Copy everything to disk that lies on the host only, and wait; return how many pages.

        Args:
            device: take what is cached on the device and nobody uses down first, as before a
                shutdown: without it what never left the device is not found after a restart.
        """
        with self.lock:
            if device:
                self._ledger.offload(2**31 - 1)
            self.drain()
            planned = self._ledger.flush()
            self.drain()
            return planned

    def clear(self) -> None:
        """Forget what is on disk, after the ledger has forgotten it: a restart must not find it."""
        clear_disk = getattr(self._executor, "clear_disk", None)
        if clear_disk is not None:
            with self.lock:
                self.run()
                clear_disk()

    def close(self) -> None:
        """Wait for what runs, and give the executor up."""
        with self.lock:
            if not self._closed:
                self.drain()
            self._closed = True
            self._executor.close()

    # --- requests that wait ---------------------------------------------------------------------

    def states(self, handles: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return what `Ledger.loading` says of handles."""
        out = np.empty(len(handles), np.uint8)
        self._ledger.loading(handles, out)
        return out

    def are_resuming(self, handles: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which handles were resumed and wait for their pages, or have them now."""
        self.collect()
        if not self.resuming:
            return np.zeros(len(handles), np.bool_)
        known = np.array([handle in self.resuming for handle in handles.tolist()], np.bool_)
        # Some page did not arrive: the ledger has suspended it again.
        again: NDArray[np.bool_] = known & (self.states(handles) == SUSPENDED)
        self.resuming.difference_update(handles[again].tolist())
        still: NDArray[np.bool_] = known & ~again
        return still

    def check_resumed(self, ids: Iterable[Hashable], handles: NDArray[np.int64]) -> None:
        """Refuse requests that were to be resumed and have not run since.

        Their pages may be there, but what did not come from lower tiers has to run first.

        Raises:
            RequestError: names them.
        """
        if not self.resuming:
            return
        pairs = zip(ids, handles.tolist(), strict=True)
        waiting = tuple(request_id for request_id, handle in pairs if handle in self.resuming)
        if waiting:
            raise RequestError(f"{named(waiting)} not resumed yet: call resume again", waiting)

    def put(self, request_id: Hashable, waiting: Waiting) -> None:
        """Keep a request until its pages are there and it is given again."""
        self._waiting[request_id] = waiting

    def get(self, request_id: Hashable) -> Waiting | None:
        """Return what is known of a request that waits."""
        return self._waiting.get(request_id)

    def take(self, request_id: Hashable) -> Waiting:
        """Forget a request that waits, and return it."""
        return self._waiting.pop(request_id)

    def check_absent(self, ids: Iterable[Hashable]) -> None:
        """Refuse ids of requests that wait.

        Raises:
            RequestError: names them.
        """
        present = tuple(request_id for request_id in ids if request_id in self._waiting)
        if present:
            raise RequestError(
                f"{named(present)} waiting for pages from a lower tier; another request needs an "
                "id of its own",
                present,
            )

    def release(self, request_id: Hashable) -> None:
        """End a request that waits; its pages come back when its transfers are completed."""
        handle = self.take(request_id).handle
        self._ledger.release(np.array([handle], np.int64), np.zeros(1, np.uint8))

"""Forks of requests, and requests that give up their pages for a while."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.errors import BatchError, LedgerError, StepError
from tandemkv.managers.arrays import int_array, publish_flags
from tandemkv.managers.batch import RequestIds
from tandemkv.managers.limits import Limits
from tandemkv.managers.preparation import name_request
from tandemkv.managers.registry import Registry
from tandemkv.managers.steps import NOT_GRANTED, Steps
from tandemkv.managers.transfers import READY, Transfers


class Lifecycle:
    """What `Managers` does with requests between their admission and their end."""

    def __init__(
        self,
        ledger: Ledger,
        limits: Limits,
        registry: Registry,
        steps: Steps,
        transfers: Transfers | None,
    ) -> None:
        self._transfers = transfers
        self._ledger = ledger
        self._limits = limits
        self._registry = registry
        self._steps = steps

    def fork(
        self, request_id: Hashable, new_ids: RequestIds, step: int | None
    ) -> NDArray[np.bool_]:
        """See `Managers.fork`."""
        number = self._step(step)
        parent = self._registry.handle(request_id)
        self._registry.check_absent(new_ids)
        if self._transfers is not None:
            self._transfers.check_absent(new_ids)
        self._refuse_dummy(request_id, parent)
        if self._transfers is not None:
            self._transfers.check_resumed((request_id,), np.array([parent], np.int64))
        made = np.full(len(new_ids), NOT_GRANTED, np.int64)
        room = max(self._limits.max_requests - self._registry.num_requests, 0)
        tried = made[:room]
        try:
            self._ledger.fork(number, np.full(len(tried), parent, np.int64), tried)
        except LedgerError as error:
            error.add_note(f"the parent is request {request_id!r}")
            raise
        self._registry.fork(parent, new_ids, made)
        return made >= 0

    def suspend(self, ids: RequestIds, publish: bool | Sequence[bool]) -> None:
        """See `Managers.suspend`."""
        handles = self._registry.resolve(ids)
        flags = publish_flags(publish, len(ids))
        for request_id, handle in zip(ids, handles.tolist(), strict=True):
            self._refuse_dummy(request_id, handle)
        try:
            self._ledger.suspend(handles, flags)
        except LedgerError as error:
            name_request(error, ids)
            raise

    def resume(self, ids: RequestIds, chunk_lens: object, step: int | None) -> NDArray[np.bool_]:
        """See `Managers.resume`."""
        number = self._step(step)
        handles = self._registry.resolve(ids)
        first = int_array("chunk_lens", chunk_lens, np.int32)
        if len(first) != len(ids):
            raise BatchError(
                f"chunk_lens has {len(first)} items, expected {len(ids)}", field="chunk_lens"
            )
        if len(first) and first.min() < 1:
            item = int(np.flatnonzero(first < 1)[0])
            raise BatchError(
                f"chunk_lens of request {ids[item]!r} is {first[item]}, must be at least 1",
                field="chunk_lens",
            )
        ok, hits = np.zeros(len(ids), np.uint8), np.zeros(len(ids), np.int32)
        transfers = self._transfers
        known = None if transfers is None else transfers.are_resuming(handles)
        try:
            if known is None or not known.any():
                self._ledger.resume(number, handles, first, ok, hits)
            else:
                asked = np.flatnonzero(~known)
                part, found = ok[asked], hits[asked]
                self._ledger.resume(number, handles[asked], first[asked], part, found)
                ok[asked], hits[asked] = part, found
                ok[known] = 1
        except LedgerError as error:
            name_request(error, ids)
            raise
        resumed = ok.astype(np.bool_)
        if transfers is not None:
            resumed = self._start_loaded(transfers, number, handles, first, (ok, hits))
        count = int(np.count_nonzero(resumed))
        for item in np.flatnonzero(resumed).tolist():
            handle = int(handles[item])
            self._registry.resume(handle, self._ledger.sequence(handle), int(hits[item]))
        granted = np.where(resumed, handles, NOT_GRANTED)
        self._steps.record(number, False, ids, granted, count)
        return resumed

    def _start_loaded(
        self,
        transfers: Transfers,
        step: int,
        handles: NDArray[np.int64],
        first: NDArray[np.int32],
        answers: tuple[NDArray[np.uint8], NDArray[np.int32]],
    ) -> NDArray[np.bool_]:
        """Return which run now: not those whose pages are on their way from lower tiers."""
        transfers.run()
        ok, hits = answers
        resumed = ok.astype(np.bool_)
        for item in np.flatnonzero(resumed).tolist():
            handle = handles[item : item + 1]
            state = self._ledger.sequence(int(handle[0]))
            if state["outstanding"]:
                continue
            if transfers.states(handle)[0] != READY:
                transfers.resuming.add(int(handle[0]))
                resumed[item] = False
                continue
            hits[item] = state["history"]
            width = np.minimum(first[item : item + 1], state["known"] - state["history"])
            granted = np.zeros(1, np.uint8)
            self._ledger.grow(step, handle, width.astype(np.int32), granted)
            resumed[item] = bool(granted[0])
            if granted[0]:
                transfers.resuming.discard(int(handle[0]))
            else:
                transfers.resuming.add(int(handle[0]))
        return resumed

    def _step(self, step: int | None) -> int:
        number = self._steps.implicit if step is None else step
        if number is None:
            raise StepError(
                "no step is prepared: pass a step of begin_step(), and the same one to "
                "prepare_resources",
                0,
            )
        return number

    def _refuse_dummy(self, request_id: Hashable, handle: int) -> None:
        if self._registry.is_dummy(handle):
            raise BatchError(
                f"{request_id!r} is a dummy request; only requests are forked or suspended",
                field="request_ids",
            )

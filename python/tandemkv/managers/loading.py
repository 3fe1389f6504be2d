"""New requests whose pages come from lower tiers: admitted now, running when they are there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.managers.admission import LOADING, NO_PAGES_NOW, Admission
from tandemkv.managers.registry import Registry
from tandemkv.managers.transfers import ON_ITS_WAY, SUSPENDED, Transfers, Waiting


class Loading:
    """Takes up requests that wait, when the engine gives them again.

    To the engine such a request is one that was refused (`loading`), so it comes back in a later
    batch, with the same prompt. Its sequence is open meanwhile and waits for its pages.
    """

    def __init__(self, ledger: Ledger, registry: Registry, transfers: Transfers) -> None:
        self._ledger = ledger
        self._registry = registry
        self._transfers = transfers

    def set_apart(self, admission: Admission, given: Admission, start: int, stop: int) -> None:
        """Keep what was admitted of the items `start .. stop` and has to wait for its pages.

        `given` is the admission as it was given, without numbers for media, adapters and salts.
        """
        handles = admission.handles[start:stop]
        admitted = start + np.flatnonzero(handles >= 0)
        if not len(admitted):
            return
        states = self._transfers.states(admission.handles[admitted])
        for item in admitted[states == ON_ITS_WAY].tolist():
            handle = int(admission.handles[item])
            waiting = Waiting(
                handle, given.prompt(item), given.identity_of(item), given.terms_of(item)
            )
            self._transfers.put(admission.ids[item], waiting)
            admission.handles[item] = LOADING

    def waiting(self, admission: Admission) -> NDArray[np.intp]:
        """Return the items that wait already, in order.

        One that is given with another prompt, identity, scope or length than before is a new
        request: the old one ends.
        """
        found = []
        for item, request_id in enumerate(admission.ids):
            known = self._transfers.get(request_id)
            if known is None:
                continue
            asked = admission.prompt(item), admission.identity_of(item), admission.terms_of(item)
            if known.is_same(*asked):
                found.append(item)
            else:
                self._transfers.release(request_id)
        return np.array(found, np.intp)

    def take_up(self, admission: Admission, items: NDArray[np.intp], step: int) -> int:
        """Let those run in `step` whose pages are there; return how many do."""
        running = 0
        for item in items.tolist():
            handle, hit = self._start(admission, item, step)
            admission.handles[item] = handle
            if handle >= 0:
                admission.hits[item] = hit
                self._transfers.take(admission.ids[item])
                self._registry.open(admission, item, item + 1)
                running += 1
        return running

    def _start(self, admission: Admission, item: int, step: int) -> tuple[int, int]:
        """Return the handle, or why it does not run, and the tokens that need not run."""
        known = self._transfers.get(admission.ids[item])
        assert known is not None
        handle = np.array([known.handle], np.int64)
        state = self._transfers.states(handle)[0]
        ok, first = np.zeros(1, np.uint8), admission.first[item : item + 1]
        if state == ON_ITS_WAY:
            return LOADING, 0
        if state == SUSPENDED:
            # Some page did not arrive: it starts anew with what there is.
            hit = np.zeros(1, np.int32)
            self._ledger.resume(step, handle, first, ok, hit)
            if ok[0] and self._transfers.states(handle)[0] == ON_ITS_WAY:
                return LOADING, 0
            return (known.handle, int(hit[0])) if ok[0] else (NO_PAGES_NOW, 0)
        history = self._ledger.sequence(known.handle)["history"]
        width = np.minimum(first, np.int32(len(known.prompt) - history))
        self._ledger.grow(step, handle, width.astype(np.int32), ok)
        return (known.handle, history) if ok[0] else (NO_PAGES_NOW, 0)

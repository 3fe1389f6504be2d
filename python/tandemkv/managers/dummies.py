"""Dummies: requests that only hold room, and what they would add to the counters of requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.managers.admission import dummies_fit, dummy_admission
from tandemkv.managers.batch import RequestIds
from tandemkv.managers.limits import Limits
from tandemkv.managers.registry import Registry

# What a dummy adds to these counters of the ledger is taken out again.
COUNTERS = ("admitted", "prompt_tokens", "missed_private_tokens", "released")


class Dummies:
    """Opens dummies, all or none.

    Attributes:
        totals: what dummies have added to the ledger's counters, by the names of `COUNTERS`.
    """

    def __init__(self, ledger: Ledger, limits: Limits, registry: Registry) -> None:
        self._ledger = ledger
        self._limits = limits
        self._registry = registry
        self.totals = dict.fromkeys(COUNTERS, 0)

    def open(self, ids: RequestIds, lens: NDArray[np.int64], now: float) -> bool:
        """Open dummies of so many tokens, in a step of their own that is over at once.

        Returns:
            Whether there were rows and pages for all of them; if not, nothing has changed.
        """
        if not dummies_fit(self._ledger.stats(), self._limits, lens):
            return False
        if not len(ids):
            return True
        step = self._ledger.begin_step(now)
        dummies = dummy_admission(ids, lens, self._limits)
        for start, stop in dummies.admit(self._ledger, step, len(ids), False):
            self._registry.open(dummies, start, stop, dummy=True)
        nothing = np.zeros((len(ids), 1), np.int32)
        self._ledger.advance(step, dummies.handles, nothing, np.zeros(len(ids), np.int32))
        self._ledger.complete_step(step)
        self.totals["admitted"] += len(ids)
        for name in ("prompt_tokens", "missed_private_tokens"):
            self.totals[name] += int(lens.sum())
        return True

    def note_released(self, count: int) -> None:
        """Note that so many of the requests released were dummies."""
        self.totals["released"] += count

"""Requests that were preempted and have not come back, and what they reuse when they do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.registry import Registry

COUNTERS = ("preempted", "readmitted", "readmitted_prompt_tokens", "readmitted_hit_tokens")


class Preemptions:
    """Counts preemptions, and keeps what is recomputed apart from the hits of new requests.

    A request that comes back finds most of its own text in the cache. Counted as a hit, that would
    raise the hit rate the more often requests are preempted.

    Attributes:
        totals: counters since the start, by the names of `COUNTERS`.
    """

    def __init__(self) -> None:
        self.totals = dict.fromkeys(COUNTERS, 0)
        self._waiting: set[Hashable] = set()

    def __contains__(self, request_id: Hashable) -> bool:
        return request_id in self._waiting

    def __len__(self) -> int:
        """Return how many have not come back."""
        return len(self._waiting)

    def add(self, ids: RequestIds) -> None:
        """Note that requests were preempted."""
        self._waiting.update(ids)
        self.totals["preempted"] += len(ids)

    def forget(self, ids: Iterable[Hashable]) -> None:
        """Note that requests will not come back."""
        self._waiting.difference_update(ids)

    def note_admitted(self, batch: Batch, granted: NDArray[np.bool_], registry: Registry) -> None:
        """Note which of the new requests that a step admitted have come back."""
        lens = batch.new_offsets[1:] - batch.new_offsets[:-1]
        new = zip(batch.new_index.tolist(), lens.tolist(), strict=True)
        back = {
            batch.request_ids[item]: length
            for item, length in new
            if granted[item] and batch.request_ids[item] in self._waiting
        }
        if back:
            self._waiting.difference_update(back)
            self.totals["readmitted"] += len(back)
            self.totals["readmitted_prompt_tokens"] += sum(back.values())
            self.totals["readmitted_hit_tokens"] += int(registry.hits_of(RequestIds(back)).sum())

"""What a scheduler asks before it decides: what fits, whom to preempt, why a match ended."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.errors import BatchError
from tandemkv.managers.admission import NO_ROW, Refusal, admission_of
from tandemkv.managers.arrays import int_array, token_array
from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.identity import interned
from tandemkv.managers.limits import Limits
from tandemkv.managers.registry import Registry


@dataclass(frozen=True, slots=True)
class Fits:
    """What `prepare_resources` would answer to each new request of a batch alone.

    Attributes:
        mask: bool `[n]`: which would be admitted.
        hit_lengths: int32 `[n]`: prompt tokens that each would reuse, 0 for a refused one.
        refusals: why which would be refused.
    """

    mask: NDArray[np.bool_]
    hit_lengths: NDArray[np.int32]
    refusals: Mapping[Hashable, Refusal]


class Probe:
    """Answers about the present state, which no answer changes; `Managers.probe` is one.

    `docs/scheduling.md` says exactly what each answer means.
    """

    def __init__(self, ledger: Ledger, limits: Limits, registry: Registry, lock: RLock) -> None:
        self._ledger = ledger
        self._limits = limits
        self._registry = registry
        self._lock = lock

    def fits(self, batch: Batch) -> Fits:
        """Return which requests would be admitted now, each for itself.

        Two that fit alone need not fit together.

        Args:
            batch: new requests only, as for `Managers.prepare_resources`.

        Raises:
            BatchError: a request without a prompt, or a length beyond the plan.
            RequestError: an id that is open.
        """
        with self._lock:
            ids = batch.request_ids
            if batch.num_new < len(ids):
                has_prompt = np.zeros(len(ids), np.bool_)
                has_prompt[batch.new_index] = True
                item = int(np.flatnonzero(~has_prompt)[0])
                raise BatchError(
                    f"request {ids[item]!r} (item {item}) has no prompt; fits answers for new "
                    "requests",
                    field="prompts",
                    item=item,
                )
            if not len(ids):
                return Fits(np.zeros(0, np.bool_), np.zeros(0, np.int32), {})
            self._registry.check_absent(ids)
            asked = admission_of(batch, self._limits)
            answer = np.empty(len(asked), np.int32)
            with interned(self._ledger, asked):
                self._ledger.fits(
                    (asked.tokens, asked.offsets),
                    asked.scopes,
                    asked.first,
                    asked.max_total,
                    asked.draft_from,
                    answer,
                    asked.hits,
                )
            if self._registry.num_requests >= self._limits.max_requests:
                # The rows that are left are those of dummies.
                answer[:] = NO_ROW
                asked.hits[:] = 0
            asked.handles[:] = answer
            return Fits(answer == 0, asked.hits, asked.refusals(self._limits))

    def reclaimable(self, request_ids: Iterable[Hashable]) -> NDArray[np.int64]:
        """Return the pages that would become allocatable if only this request were freed.

        Returns:
            int64 `[n, classes]`; what requests share counts for none of them alone.

        Raises:
            RequestError: an id that is not open.
        """
        with self._lock:
            handles = self._registry.resolve(RequestIds(request_ids))
            pages = np.empty((len(handles), self._ledger.num_classes), np.int64)
            self._ledger.reclaimable(handles, pages)
            return pages

    def victims(
        self, request_ids: Iterable[Hashable], num_pages: int | Sequence[int]
    ) -> tuple[Hashable, ...]:
        """Choose which requests to preempt so that so many more pages become allocatable.

        Args:
            request_ids: open requests that may be preempted, the most dispensable first.
            num_pages: pages needed beyond those that are free, evictable or fenced: in every
                class, or one number per class.

        Returns:
            Some of the ids, in the order given, none of which can be left out; empty if all of
            them together do not free enough, or if no page is needed.

        Raises:
            RequestError: an id that is not open.
            BatchError: another number of numbers than classes.
            LedgerError: a number below 0.
        """
        with self._lock:
            ids = RequestIds(request_ids)
            handles = self._registry.resolve(ids)
            classes = self._ledger.num_classes
            given = [num_pages] * classes if isinstance(num_pages, int) else num_pages
            need = int_array("num_pages", given, np.int64)
            if len(need) != classes:
                raise BatchError(
                    f"num_pages has {len(need)} items, expected {classes}: one per class",
                    field="num_pages",
                )
            chosen = np.empty(len(ids), np.uint8)
            self._ledger.victims(handles, need, chosen)
            return tuple(ids[item] for item in np.flatnonzero(chosen).tolist())

    def explain_match(
        self, tokens: object, scope: int = 0, draft_from: int | None = None
    ) -> dict[str, Any]:
        """Say how far a prompt matches, and why no further: see `Ledger.explain_match`.

        Args:
            tokens: the prompt, ints or an int32 or int64 array.
            scope: its scope.
            draft_from: the first position whose draft KV will be valid, -1 without a draft; None:
                0 where the plan has a draft.

        Raises:
            BatchError: `tokens` holds no integers.
            LedgerError: a token, the scope or `draft_from` is out of range.
        """
        with self._lock:
            return self._ledger.explain_match(token_array("tokens", tokens), scope, draft_from)

"""One `prepare_resources`: grow what runs, admit what is new, or change nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.errors import LedgerError
from tandemkv.managers.admission import LOADING, Admission, Refusal, admission_of
from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.identity import interned
from tandemkv.managers.limits import Limits
from tandemkv.managers.loading import Loading
from tandemkv.managers.registry import Registry
from tandemkv.managers.steps import NOT_GRANTED
from tandemkv.managers.transfers import Transfers

# A checked batch: handles of the running requests; their positions, and the new requests (both
# None if all requests run already). Plain tuples, because every decode step makes one.
Work = tuple[NDArray[np.int64], NDArray[np.intp] | None, Admission | None]

_NONE = np.zeros(0, np.intp)

# What a step was granted: handles (`NOT_GRANTED` for the refused), which, and how many.
Granted = tuple[NDArray[np.int64], NDArray[np.bool_], int]


class Preparation:
    """Grows and admits the requests of one step.

    Attributes:
        refusals: why the last `run` refused which request.
        refused_rows: requests refused so far to keep rows for dummies.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: Limits,
        registry: Registry,
        transfers: Transfers | None = None,
    ) -> None:
        self._transfers = transfers
        self._loading = None if transfers is None else Loading(ledger, registry, transfers)
        self._ledger = ledger
        self._limits = limits
        self._max_draft_len = limits.reserve_tokens
        self._registry = registry
        self.refusals: dict[Hashable, Refusal] = {}
        self.refused_rows = 0

    def check(self, batch: Batch) -> Work:
        """Check a batch against the plan and the open requests; nothing is changed.

        What passes here cannot fail in `admit` any more, so that a batch that grew is never left
        half done.

        Raises:
            RequestError, BatchError: see `Managers.prepare_resources`.
        """
        if batch.max_draft_len > self._max_draft_len:
            self._limits.refuse_draft_lens(batch)
        if batch.num_new == 0:
            handles = self._registry.resolve(batch.request_ids)
            if self._transfers is not None:
                self._transfers.check_resumed(batch.request_ids, handles)
            if batch.num_chunks or self._registry.num_mid_prompt:
                self._registry.check_chunks(batch.request_ids, batch.chunk_lens, handles)
            return handles, None, None
        running, handles = self._registry.split(batch)
        if self._transfers is not None:
            self._transfers.check_resumed(pick(batch.request_ids, running), handles)
        if batch.num_chunks > batch.num_new or self._registry.num_mid_prompt:
            members = pick(batch.request_ids, running)
            self._registry.check_chunks(members, batch.chunk_lens[running], handles)
        return handles, running, admission_of(batch, self._limits)

    def run(self, batch: Batch, work: Work, step: int, stop_at_first: bool) -> Granted:
        """Do what `check` has checked, in an open step.

        Raises:
            LedgerError: `step` is not open, a request already runs in it, or would exceed
                `max_seq_len`; nothing was changed.
        """
        if self.refusals:
            self.refusals = {}
        if self._transfers is not None:
            self._transfers.collect()
        ids = batch.request_ids
        handles, running, admission = work
        if running is None or admission is None:
            granted = self._grow(ids, batch.widths, handles, step, stop_at_first)
            if self._transfers is not None:
                self._transfers.run()
            if batch.num_chunks:
                self._registry.move_cursors(batch.chunk_lens, handles, granted[1])
            return granted
        grown: Granted = handles, np.ones(0, np.bool_), 0
        if len(running):
            members = pick(ids, running)
            grown = self._grow(members, batch.widths[running], handles, step, stop_at_first)
        grown_handles, mask, num_grown = grown
        num_admitted = 0
        if stop_at_first and num_grown < len(running):
            if self._transfers is not None:
                self._transfers.run()
        else:
            try:
                num_admitted = self._admit(step, admission, stop_at_first)
            except LedgerError as error:
                # Only a closed step, or prompts that changed after the check, bring us here.
                hold(self._ledger, step, grown_handles[mask])
                name_request(error, admission.ids)
                raise
        self._registry.move_cursors(batch.chunk_lens[running], handles, mask)
        self.refusals.update(admission.refusals(self._limits))
        everything = np.full(len(ids), NOT_GRANTED, np.int64)
        everything[running] = grown_handles
        everything[batch.new_index] = np.maximum(admission.handles, NOT_GRANTED)
        return everything, everything != NOT_GRANTED, num_grown + num_admitted

    def _grow(
        self,
        ids: Sequence[Hashable],
        widths: NDArray[np.int32],
        handles: NDArray[np.int64],
        step: int,
        stop_at_first: bool,
    ) -> Granted:
        ok = np.empty(len(handles), np.uint8)
        try:
            count = self._ledger.grow(step, handles, widths, ok, stop_at_first)
        except LedgerError as error:
            name_request(error, ids)
            raise
        mask = ok.view(np.bool_)
        if count == len(handles):
            return handles, mask, count
        refused = np.flatnonzero(~mask).tolist()
        for item in refused:
            tried = item == refused[0] or not stop_at_first
            reason = "no_pages_now" if tried else "not_tried"
            sequence = self._ledger.sequence(int(handles[item]))
            ahead = sum(width for _, width in sequence["outstanding"]) + int(widths[item])
            needed = self._limits.tightest(self._limits.blocks(sequence["reach"] + ahead))
            self.refusals[ids[item]] = Refusal(reason, *needed)
        return np.where(mask, handles, NOT_GRANTED), mask, count

    def _admit(self, step: int, admission: Admission, stop_at_first: bool) -> int:
        """Admit in order, never into the rows that are kept for dummies; return how many run."""
        if self._loading is None or self._transfers is None:
            return self._admit_new(step, admission, stop_at_first)
        waiting = self._loading.waiting(admission) if len(self._transfers) else _NONE
        if not len(waiting):
            self._admit_new(step, admission, stop_at_first)
        else:
            self._loading.take_up(admission, waiting, step)
            rest = np.setdiff1d(np.arange(len(admission)), waiting)
            if len(rest) and not (stop_at_first and (admission.handles[waiting] < 0).any()):
                fresh = admission.select(rest)
                self._admit_new(step, fresh, stop_at_first)
                admission.handles[rest], admission.hits[rest] = fresh.handles, fresh.hits
        # Copies in CPU memory are over when this returns.
        self._transfers.run()
        apart = np.flatnonzero(admission.handles == LOADING)
        mine = [item for item in apart.tolist() if admission.ids[item] in self._transfers]
        self._loading.take_up(admission, np.array(mine, np.intp), step)
        return int(np.count_nonzero(admission.handles >= 0))

    def _admit_new(self, step: int, admission: Admission, stop_at_first: bool) -> int:
        waiting = 0 if self._transfers is None else len(self._transfers)
        room = self._limits.max_requests - self._registry.num_requests - waiting
        given = replace(admission)  # which keeps its arrays while others take their place
        with interned(self._ledger, admission):
            for start, stop in admission.admit(self._ledger, step, room, stop_at_first):
                if self._loading is not None:
                    self._loading.set_apart(admission, given, start, stop)
                self._registry.open(admission, start, stop)
        self.refused_rows += admission.kept_out
        return int(np.count_nonzero(admission.handles >= 0))


def hold(ledger: Ledger, step: int, handles: NDArray[np.int64]) -> None:
    """Advance requests by nothing: every length stays, the room of the step is given back.

    Raises:
        LedgerError: an older step of one of them is not advanced yet; nothing was changed.
    """
    if not len(handles):
        return
    states = [ledger.sequence(handle) for handle in handles.tolist()]
    valid = np.array([list(state["valid"]) for state in states], np.int32)
    nothing = np.zeros((len(handles), 1), np.int32)
    ledger.advance(step, handles, nothing, np.zeros(len(handles), np.int32), valid)


def name_request(error: LedgerError, ids: Sequence[Hashable]) -> None:
    """Add to a ledger's error, which speaks of items, which of `ids` it means."""
    item = error.details.get("item")
    if item is not None:
        error.add_note(f"item {item} is request {ids[item]!r}")


def pick(ids: RequestIds, index: NDArray[np.intp]) -> tuple[Hashable, ...]:
    """Return the ids at the positions `index`."""
    return tuple(ids[item] for item in index.tolist())

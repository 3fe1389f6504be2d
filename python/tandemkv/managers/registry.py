"""Which request has which handle, and where its prompt stands."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import BatchError, RequestError
from tandemkv.managers.admission import Admission
from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.steps import named

_ROW_MASK = 0xFFFFFFFF
# Micro-batches whose handles stay looked up; each is one entry.
_MAX_RESOLVED = 64


class Registry:
    """The open requests.

    Looking up handles costs tens of ns per id, so the array found for a `RequestIds` object is
    kept until a request is closed: a decode step with unchanged membership looks nothing up.
    """

    def __init__(self, max_sequences: int) -> None:
        self.handles: dict[Hashable, int] = {}
        self._dummies: set[Hashable] = set()
        self._resolved: dict[int, tuple[RequestIds, NDArray[np.int64]]] = {}
        # By row. A cursor is how many prompt tokens have been scheduled.
        self._prompt_lens = np.zeros(max_sequences, np.int64)
        self._cursors = np.zeros(max_sequences, np.int64)
        self._hits = np.zeros(max_sequences, np.int32)
        self._is_dummy = np.zeros(max_sequences, np.bool_)
        self._num_mid_prompt = 0

    @property
    def num_mid_prompt(self) -> int:
        """Open requests whose prompt is not all scheduled; while 0, decode steps need no check."""
        return self._num_mid_prompt

    @property
    def num_requests(self) -> int:
        """Open requests, dummies not counted."""
        return len(self.handles) - len(self._dummies)

    @property
    def num_dummies(self) -> int:
        """Open dummies."""
        return len(self._dummies)

    def handle(self, request_id: Hashable) -> int:
        """Return the handle of one request.

        Raises:
            RequestError: the id is not open.
        """
        try:
            return self.handles[request_id]
        except KeyError:
            raise _unknown((request_id,)) from None

    def resolve(self, ids: RequestIds) -> NDArray[np.int64]:
        """Return the handles of open requests, int64 `[n]`, not to be written.

        Raises:
            RequestError: ids that are not open.
        """
        entry = self._resolved.get(id(ids))
        # The entry keeps its ids alive, so an equal address means the same object.
        if entry is not None and entry[0] is ids:
            return entry[1]
        try:
            handles = np.fromiter(map(self.handles.__getitem__, ids), np.int64, len(ids))
        except KeyError:
            raise _unknown(tuple(i for i in ids if i not in self.handles)) from None
        handles.setflags(write=False)
        if len(self._resolved) == _MAX_RESOLVED:
            self._resolved.clear()
        self._resolved[id(ids)] = (ids, handles)
        return handles

    def split(self, batch: Batch) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the positions and handles of the running requests of a batch with new ones.

        Raises:
            RequestError: a new request that is open, or a running one that is not.
        """
        ids = batch.request_ids
        is_running = np.ones(len(ids), np.bool_)
        is_running[batch.new_index] = False
        self.check_absent(tuple(ids[item] for item in batch.new_index.tolist()))
        running = np.flatnonzero(is_running)
        members = tuple(ids[item] for item in running.tolist())
        unknown = tuple(i for i in members if i not in self.handles)
        if unknown:
            raise _unknown(unknown)
        handles = np.fromiter(map(self.handles.__getitem__, members), np.int64, len(members))
        return running, handles

    def check_absent(self, ids: tuple[Hashable, ...]) -> None:
        """Refuse ids that are open.

        Raises:
            RequestError: names them.
        """
        present = tuple(request_id for request_id in ids if request_id in self.handles)
        if present:
            raise RequestError(
                f"{named(present)} already open; a new request needs an id of its own", present
            )

    def open(self, admission: Admission, start: int, stop: int, dummy: bool = False) -> None:
        """Register what was admitted of the items `start .. stop`."""
        handles = admission.handles[start:stop]
        admitted = np.flatnonzero(handles >= 0)
        for item, handle in zip(admitted.tolist(), handles[admitted].tolist(), strict=True):
            self.handles[admission.ids[start + item]] = handle
            if dummy:
                self._dummies.add(admission.ids[start + item])
        rows = _rows(handles[admitted])
        lens = admission.prompt_lens[start:stop][admitted]
        hits = admission.hits[start:stop][admitted]
        self._prompt_lens[rows] = lens
        self._hits[rows] = hits
        self._cursors[rows] = np.minimum(lens, hits + admission.first[start:stop][admitted])
        self._is_dummy[rows] = dummy
        self._num_mid_prompt += self._count_mid_prompt(rows)

    def fork(self, parent: int, ids: RequestIds, handles: NDArray[np.int64]) -> None:
        """Register what was forked of the request `parent`: where a handle is >= 0."""
        made = np.flatnonzero(handles >= 0)
        for item in made.tolist():
            self.handles[ids[item]] = int(handles[item])
        rows, row = _rows(handles[made]), parent & _ROW_MASK
        for values in (self._prompt_lens, self._cursors, self._hits, self._is_dummy):
            values[rows] = values[row]
        self._num_mid_prompt += self._count_mid_prompt(rows)

    def resume(self, handle: int, state: dict[str, Any], hit: int) -> None:
        """Take all that a resumed request knows for its prompt; `hit` of it need not run."""
        row = handle & _ROW_MASK
        self._num_mid_prompt -= int(self._cursors[row] < self._prompt_lens[row])
        self._prompt_lens[row] = state["known"]
        self._hits[row] = hit
        self._cursors[row] = hit + sum(width for _, width in state["outstanding"])
        self._num_mid_prompt += int(self._cursors[row] < self._prompt_lens[row])

    def is_dummy(self, handle: int) -> bool:
        """Tell whether an open request is a dummy."""
        return bool(self._is_dummy[handle & _ROW_MASK])

    def close(self, ids: RequestIds) -> int:
        """Forget released requests; return how many were dummies."""
        handles = np.fromiter(map(self.handles.pop, ids), np.int64, len(ids))
        self._num_mid_prompt -= self._count_mid_prompt(_rows(handles))
        dummies = self._dummies.intersection(ids)
        self._dummies -= dummies
        self._resolved.clear()
        return len(dummies)

    def hits_of(self, ids: RequestIds) -> NDArray[np.int32]:
        """Return the prefix hits of open requests, int32 `[n]`.

        Raises:
            RequestError: ids that are not open.
        """
        return self._hits[_rows(self.resolve(ids))]

    def check_chunks(
        self,
        ids: tuple[Hashable, ...],
        chunk_lens: NDArray[np.int32],
        handles: NDArray[np.int64],
    ) -> None:
        """Refuse chunks beyond the prompt of a running request, and decode steps within it.

        Raises:
            BatchError: names the request, the chunk and what is left.
        """
        rows = _rows(handles)
        left = self._prompt_lens[rows] - self._cursors[rows]
        wrong = np.flatnonzero((chunk_lens > left) | ((chunk_lens == 0) & (left > 0)))
        if len(wrong):
            item = int(wrong[0])
            chunk_len = int(chunk_lens[item])
            decodes = "" if chunk_len else " (a decode step)"
            supported = "" if chunk_len else f"; chunk_lens must be 1 to {int(left[item])}"
            raise BatchError(
                f"chunk_lens of request {ids[item]!r} is {chunk_len}{decodes}, but "
                f"{int(left[item])} of its {int(self._prompt_lens[rows[item]])} prompt tokens are "
                f"left to run{supported}",
                field="chunk_lens",
            )

    def move_cursors(
        self,
        chunk_lens: NDArray[np.int32],
        handles: NDArray[np.int64],
        granted: NDArray[np.bool_],
    ) -> None:
        """Count the chunks that were granted as scheduled."""
        runs = granted & (chunk_lens > 0)
        rows = _rows(handles[runs])
        self._cursors[rows] += chunk_lens[runs]
        # Each of them had prompt tokens left before: `check_chunks` saw to it.
        self._num_mid_prompt -= len(rows) - self._count_mid_prompt(rows)

    def check_dummies(
        self, ids: Sequence[Hashable], handles: NDArray[np.int64], counts: NDArray[np.int32]
    ) -> None:
        """Refuse tokens for a dummy, which has no room for any beyond its own.

        Raises:
            BatchError: names the dummy.
        """
        wrong = np.flatnonzero((counts > 0) & self._is_dummy[_rows(handles)])
        if len(wrong):
            item = int(wrong[0])
            raise BatchError(
                f"accepted has {int(counts[item])} tokens for {ids[item]!r}, which is a dummy "
                "request; dummies take none",
                field="accepted",
            )

    def restore_cursor(self, handle: int, state: dict[str, Any]) -> None:
        """Set a cursor to what the ledger knows to be written or under way."""
        row = handle & _ROW_MASK
        under_way = state["reach"] + sum(width for _, width in state["outstanding"])
        self._num_mid_prompt -= int(self._cursors[row] < self._prompt_lens[row])
        self._cursors[row] = min(int(self._prompt_lens[row]), under_way)
        self._num_mid_prompt += int(self._cursors[row] < self._prompt_lens[row])

    def _count_mid_prompt(self, rows: NDArray[np.int64]) -> int:
        return int(np.count_nonzero(self._cursors[rows] < self._prompt_lens[rows]))

    def check_counts(
        self,
        batch: Batch,
        live: NDArray[np.intp] | None,
        handles: NDArray[np.int64],
        counts: NDArray[np.int32],
    ) -> None:
        """Refuse a decode step that produced nothing, unless it is a dummy's.

        Args:
            batch: the batch.
            live: which of its items `handles` and `counts` speak of; None: all.
            handles: what ran.
            counts: accepted tokens of each.

        Raises:
            BatchError: names the request.
        """
        chunk_lens = batch.chunk_lens if live is None else batch.chunk_lens[live]
        decodes = (counts == 0) & (chunk_lens == 0) & ~self._is_dummy[_rows(handles)]
        if decodes.any():
            item = int(np.flatnonzero(decodes)[0])
            item = item if live is None else int(live[item])
            raise BatchError(
                f"accepted[{item}] is empty, but request {batch.request_ids[item]!r} ran a decode "
                "step, which yields one token at least (skip_step says that a step did not run)",
                field="accepted",
                item=item,
            )


def _rows(handles: NDArray[np.int64]) -> NDArray[np.int64]:
    return handles & _ROW_MASK


def _unknown(ids: tuple[Hashable, ...]) -> RequestError:
    return RequestError(f"{named(ids)} not open: never admitted, refused, or freed", ids)

"""What each step in flight runs: which handles it was granted, and which were freed since."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import BatchError, RequestError, StepError
from tandemkv.managers.batch import RequestIds

NOT_GRANTED = -1
"""Stands in an array of handles where a request was refused."""

_NONE: frozenset[int] = frozenset()


class StepRecord:
    """The requests prepared for one step and not yet updated.

    A step may be prepared in several calls (refused requests again after a preemption). A request
    that is freed while its step runs stays in the record, so that the result which arrives for it
    later is dropped instead of being taken for a stranger's.

    Attributes:
        step: its number.
        implicit: whether the managers began it, and so complete it.
        outstanding: granted handles that were neither updated nor freed.
    """

    __slots__ = ("_done", "_freed", "_parts", "_whole", "implicit", "outstanding", "step")

    def __init__(
        self,
        step: int,
        implicit: bool,
        ids: RequestIds,
        handles: NDArray[np.int64],
        granted: int,
    ) -> None:
        self.step = step
        self.implicit = implicit
        self.outstanding = granted
        # One entry per `prepare_resources` call; refused items hold NOT_GRANTED.
        self._parts: tuple[tuple[RequestIds, NDArray[np.int64]], ...] = ((ids, handles),)
        # The handles, as long as every request of a single call is still to be updated.
        self._whole = handles if granted == len(ids) else None
        self._freed = _NONE
        self._done = _NONE

    def add(self, ids: RequestIds, handles: NDArray[np.int64], granted: int) -> None:
        """Record a further `prepare_resources` call."""
        self._whole = None
        self._parts += ((ids, handles),)
        self.outstanding += granted
        # A request that was suspended after its update runs again in the same step.
        self._done -= frozenset(handles.tolist())

    def whole(self, ids: RequestIds) -> NDArray[np.int64] | None:
        """Return the handles of `ids` if the step runs exactly these, all of them, else None."""
        if self._whole is None:
            return None
        known = self._parts[0][0]
        return self._whole if known is ids or known == ids else None

    def lookup(self, ids: RequestIds) -> NDArray[np.int64]:
        """Return the handles granted to `ids` in this step, `NOT_GRANTED` for refused requests.

        Raises:
            RequestError: an id that was not prepared in this step.
        """
        granted: dict[Hashable, int] = {}
        for known, handles in self._parts:
            # A later call overrides a refusal; the ledger refuses to grow one handle twice.
            granted.update(zip(known, handles.tolist(), strict=True))
        missing = tuple(request_id for request_id in ids if request_id not in granted)
        if missing:
            raise RequestError(
                f"{named(missing)} not prepared in step {self.step}", request_ids=missing
            )
        return np.array([granted[request_id] for request_id in ids], np.int64)

    def is_freed(self, handles: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of `handles` were freed while the step ran."""
        if not self._freed:
            return np.zeros(len(handles), np.bool_)
        return np.isin(handles, np.array(sorted(self._freed), np.int64))

    def finish(self, handles: NDArray[np.int64]) -> None:
        """Count `handles` as updated."""
        self.outstanding -= len(handles)
        if self.outstanding:
            self._done |= frozenset(handles.tolist())
        self._whole = None

    def free(self, handle: int) -> None:
        """Note that a request was freed, if this step runs it."""
        if handle in self._done or handle in self._freed:
            return
        if any((handles == handle).any() for _, handles in self._parts):
            self._freed |= {handle}
            self._whole = None
            self.outstanding -= 1

    def members(self) -> Iterator[tuple[Hashable, int]]:
        """Yield `(request id, handle)` of what is outstanding, in the order it was prepared."""
        gone = {NOT_GRANTED} | self._done | self._freed
        for ids, handles in self._parts:
            for request_id, handle in zip(ids, handles.tolist(), strict=True):
                if handle not in gone:
                    gone.add(handle)
                    yield request_id, handle

    def still_running(
        self, ids: RequestIds, counts: NDArray[np.int32]
    ) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the positions and handles of what was granted and not freed since.

        Raises:
            RequestError, BatchError: see `Managers.update_resources`.
        """
        granted = self.lookup(ids)
        self.check_refused(ids, granted, counts)
        live = np.flatnonzero((granted != NOT_GRANTED) & ~self.is_freed(granted))
        if self.implicit:
            self.check_all_there(granted[live])
        return live, granted[live]

    def check_refused(
        self, ids: RequestIds, handles: NDArray[np.int64], counts: NDArray[np.int32]
    ) -> None:
        """Refuse tokens for a request that the step did not run.

        Raises:
            BatchError: names the request.
        """
        wrong = np.flatnonzero((handles == NOT_GRANTED) & (counts != 0))
        if len(wrong):
            item = int(wrong[0])
            raise BatchError(
                f"accepted[{item}] has {int(counts[item])} tokens, but request {ids[item]!r} was "
                f"refused in step {self.step}",
                field="accepted",
                item=item,
            )

    def check_all_there(self, handles: NDArray[np.int64]) -> None:
        """Refuse an update that leaves out what the step runs.

        Raises:
            RequestError: names what is missing.
        """
        if len(handles) == self.outstanding:
            return
        given = set(handles.tolist())
        missing = tuple(request_id for request_id, handle in self.members() if handle not in given)
        raise RequestError(
            f"{named(missing)} running in step {self.step}, but left out of its update", missing
        )


class Steps:
    """The steps in flight, by number, and the one that the managers began themselves."""

    def __init__(self) -> None:
        self._records: dict[int, StepRecord] = {}
        self.implicit: int | None = None
        # A step that the managers began and the caller completed.
        self._taken_over = 0

    def refuse_second(self, step: int) -> NoReturn:
        """Say that the managers do not begin a second step while their own `step` is open.

        Raises:
            StepError: always.
        """
        raise StepError(
            f"step {step} is prepared and not updated: call update_resources or skip_step first, "
            "or pass steps of begin_step() to overlap them",
            step,
        )

    def record(
        self, step: int, began: bool, ids: RequestIds, handles: NDArray[np.int64], granted: int
    ) -> None:
        """Note what one `prepare_resources` call granted."""
        if began:
            self.implicit = step
        elif step in self._records:
            self._records[step].add(ids, handles, granted)
            return
        self._records[step] = StepRecord(step, began, ids, handles, granted)

    def waiting(self, step: int | None) -> StepRecord:
        """Return the record of a step that waits for its result; None: the managers' own.

        Raises:
            StepError: there is none.
        """
        if step is None:
            if self.implicit is None and self._taken_over in self._records:
                raise StepError(
                    f"step {self._taken_over} was completed by complete_step: pass its number, "
                    f"step={self._taken_over}",
                    self._taken_over,
                )
            if self.implicit is None:
                raise StepError("no step is prepared: call prepare_resources first", 0)
            step = self.implicit
        record = self._records.get(step)
        if record is None:
            raise StepError(f"step {step} has nothing prepared that waits for its result", step)
        return record

    def completed(self, step: int) -> None:
        """Note that a step is complete; its result may still be awaited."""
        if self.implicit == step:
            self.implicit, self._taken_over = None, step
        record = self._records.get(step)
        if record is not None:
            record.implicit = False

    def updated(self, record: StepRecord, handles: NDArray[np.int64]) -> None:
        """Note that the results of `handles` are in.

        A step that waits for no more is forgotten, and so are older ones whose requests were all
        freed: no result for them will come any more.
        """
        record.finish(handles)
        if record.outstanding == 0:
            del self._records[record.step]
        if self._records:
            for step, old in list(self._records.items()):
                if step < record.step and old.outstanding == 0 and not old.implicit:
                    del self._records[step]

    def free(self, handle: int) -> None:
        """Note that a request was freed."""
        for record in self._records.values():
            record.free(handle)


def named(request_ids: tuple[Any, ...], limit: int = 5) -> str:
    """Return `request 'a' is` or `requests 'a', 'b' and 3 more are`, for messages."""
    shown = ", ".join(repr(request_id) for request_id in request_ids[:limit])
    if len(request_ids) == 1:
        return f"request {shown} is"
    rest = len(request_ids) - limit
    return f"requests {shown} and {rest} more are" if rest > 0 else f"requests {shown} are"

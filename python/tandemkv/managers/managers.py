"""The managers: request ids, steps and pools over one ledger for target and draft."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.device.cuda_backend import as_stream
from tandemkv.errors import LedgerError, PoolError, SequencesOpenError, StepError
from tandemkv.managers.accepted import read_accepted, select
from tandemkv.managers.admission import Refusal
from tandemkv.managers.arrays import int_array, publish_flags
from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.dummies import Dummies
from tandemkv.managers.identity import drop_scope
from tandemkv.managers.lifecycle import Lifecycle
from tandemkv.managers.limits import Limits
from tandemkv.managers.moves import PageMover
from tandemkv.managers.offsets import BlockOffsets
from tandemkv.managers.preemptions import Preemptions
from tandemkv.managers.preparation import Preparation, hold, name_request, pick
from tandemkv.managers.probe import Probe
from tandemkv.managers.registry import Registry
from tandemkv.managers.resizing import Resizing
from tandemkv.managers.retention import Retention
from tandemkv.managers.stats import DecodeSteps, ManagerStats
from tandemkv.managers.steps import StepRecord, Steps
from tandemkv.managers.tables import KernelTables
from tandemkv.managers.transfers import Transfers
from tandemkv.managers.trees import DraftTrees, TokenMoves
from tandemkv.managers.views import RoleView
from tandemkv.planning import Plan


class Managers:
    """What an engine's scheduler talks to on one rank; `build_managers` makes it.

    One step is `prepare_resources(batch)`, then `run_moves()` or `moves()`, the engine's work, and
    `update_resources(batch, accepted)`. An engine that schedules step N + 1 while step N runs
    passes the numbers of `begin_step()` and completes them with `complete_step()` itself.

    Every call is atomic: an error changes nothing, and what is refused for lack of pages leaves no
    trace. Calls may come from several threads; they run one after the other.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: Limits,
        *,
        target: RoleView,
        draft: RoleView | None,
        transfers: Transfers | None = None,
        resizing: Resizing | None = None,
    ) -> None:
        self._transfers = transfers
        self._ledger = ledger
        self._limits = limits
        self._target = target
        self._draft = draft
        self._lock = threading.RLock() if transfers is None else transfers.lock
        self._registry = Registry(ledger.max_sequences)
        self._steps = Steps()
        self._now = 0.0
        self._preparation = Preparation(ledger, limits, self._registry, transfers)
        self._lifecycle = Lifecycle(ledger, limits, self._registry, self._steps, transfers)
        self._preemptions = Preemptions()
        self._decodes = DecodeSteps()
        self._dummies = Dummies(ledger, limits, self._registry)
        self._trees = DraftTrees(ledger, self.views)
        self._resizing = resizing
        for view in self.views:
            view.attach(self.block_tables)

    # --- what is here -------------------------------------------------------------------------

    @property
    def target(self) -> RoleView:
        """The target's part of this rank."""
        return self._target

    @property
    def draft(self) -> RoleView | None:
        """The draft's part of this rank; None on a rank without draft layers."""
        return self._draft

    @property
    def views(self) -> tuple[RoleView, ...]:
        """The roles that have layers on this rank."""
        return (self._target,) if self._draft is None else (self._target, self._draft)

    @property
    def ledger(self) -> Ledger:
        """The ledger that decides; for reading."""
        return self._ledger

    @property
    def tiers(self) -> Transfers | None:
        """What moves pages to and from host and disk; None where the plan has neither."""
        return self._transfers

    @property
    def lock(self) -> threading.RLock:
        """Held by every call that changes something; for those who add to the managers."""
        return self._lock

    @property
    def limits(self) -> Limits:
        """The numbers of the plan that bind requests."""
        return self._limits

    @property
    def request_ids(self) -> RequestIds:
        """The open requests, dummies included, in the order they were admitted."""
        with self._lock:
            return RequestIds(self._registry.handles)

    @property
    def step(self) -> int | None:
        """The step that `prepare_resources` began and nothing has completed yet, or None."""
        return self._steps.implicit

    def __repr__(self) -> str:
        roles = " and ".join(view.role for view in self.views)
        return f"Managers({roles}; {len(self._registry.handles)} open requests)"

    # --- steps --------------------------------------------------------------------------------

    def begin_step(self, now: float | None = None) -> int:
        """Begin a step and return its number, for engines that overlap steps.

        Args:
            now: the engine's clock in seconds, which must not go backwards; None: the last one
                given. Times to live, leases and retention end by it, and by nothing else.

        Raises:
            LedgerError: `now` went backwards.
        """
        with self._lock:
            now = self._now if now is None else now
            step = self._ledger.begin_step(now)
            self._now = now
            return step

    def complete_step(self, step: int) -> None:
        """Say that the device has finished a step; `update_resources` may come before or after.

        Raises:
            LedgerError: the step is not open, or copies queued for it were not taken.
        """
        with self._lock:
            self._ledger.complete_step(step)
            self._steps.completed(step)

    def prepare_resources(
        self, batch: Batch, step: int | None = None, *, stop_at_first: bool = False
    ) -> NDArray[np.bool_]:
        """Make room for one step: grow running requests, then admit new ones, in batch order.

        A refused running request keeps what it has; a refused new one is not known afterwards and
        can be given again. `refusals` says why.

        Args:
            batch: what to run.
            step: an open step of `begin_step`; None begins one, which `update_resources` or
                `skip_step` completes.
            stop_at_first: try nothing after the first refusal, instead of going on.

        Returns:
            bool `[n]`: which requests may run in this step.

        Raises:
            RequestError: an id without a prompt that is not open or waits to be resumed, or with a
                prompt that is open.
            BatchError: a length beyond the plan, a chunk beyond the rest of its prompt, a decode
                step (no `chunk_lens`) of a request with prompt tokens left to run, or a draft
                where the plan has none.
            StepError: `step` is None while such a step is still open, or accepted nodes of draft
                trees wait to be brought together (`run_token_moves`).
            LedgerError: `step` is not open, a request already runs in it, or would exceed
                `max_seq_len`. A step begun by this call is closed again.
            TierError: `tiers` are closed, or have no stream on a GPU.
        """
        with self._lock:
            self._trees.check_taken()
            if self._transfers is not None:
                self._transfers.check()
            began = step is None
            if step is None and self._steps.implicit is not None:
                self._steps.refuse_second(self._steps.implicit)
            work = self._preparation.check(batch)
            number = self._ledger.begin_step(self._now) if step is None else step
            try:
                handles, mask, total = self._preparation.run(batch, work, number, stop_at_first)
            except LedgerError:
                if began:
                    self._ledger.complete_step(number)
                raise
            self._steps.record(number, began, batch.request_ids, handles, total)
            if batch.num_new and self._preemptions:
                self._preemptions.note_admitted(batch, mask, self._registry)
            return mask

    @property
    def refusals(self) -> dict[Hashable, Refusal]:
        """Why the last `prepare_resources` refused which request."""
        return dict(self._preparation.refusals)

    def update_resources(
        self,
        batch: Batch,
        accepted: object,
        step: int | None = None,
        *,
        valid: NDArray[np.int32] | None = None,
        paths: object | None = None,
        draft_paths: object | None = None,
    ) -> None:
        """Commit what a step produced: append accepted tokens, rewind the rest, publish blocks.

        Requests of the batch that were refused, or freed since, are passed over; a refused one
        must have no tokens.

        Args:
            batch: the batch that was prepared, or another one of requests of the same step. A
                step that the managers began is updated by one call, with all of its requests.
            accepted: one entry per request of the batch: accepted draft tokens and the bonus
                token, or the token sampled after the last chunk; nothing for a chunk that does not
                end its prompt. See `tandemkv.managers.accepted.read_accepted` for the forms.
            step: None: the step that `prepare_resources` began; it is completed as well.
            valid: int32 `[n, roles]`, ends of valid KV per role where the engine did not write
                all of it; None: everything up to the accepted end.
            paths: for draft trees, the nodes of each request whose target KV is kept, ascending,
                node 0 (the token known before) first, as many as accepted tokens; empty where the
                step ran in line. A list with one sequence per request, or (nodes int32 flat,
                offsets int64 `[n + 1]`). `run_token_moves` must follow. None: no trees.
            draft_paths: the same for the draft, if it does not run over accepted tokens again.

        Raises:
            RequestError: an id that the step does not run, or one that it runs is left out.
            BatchError: accepted tokens or paths of a wrong form, for a refused request or a dummy,
                or none after a decode step.
            StepError: no such step, or copies queued for it were not taken.
            LedgerError: more tokens than ran, a path that is none, or a token or length out of
                range.
        """
        with self._lock:
            record = self._steps.waiting(step)
            ids = batch.request_ids
            tokens, counts = read_accepted(accepted, len(ids))
            handles = record.whole(ids)
            live: NDArray[np.intp] | None = None
            if handles is None:
                live, handles = record.still_running(ids, counts)
                tokens, counts = select(tokens, counts, live)
                valid = None if valid is None else np.asarray(valid)[live]
            num_yielding = int(np.count_nonzero(counts))
            if num_yielding < len(counts):
                self._registry.check_counts(batch, live, handles, counts)
            if self._ledger.pending_moves:
                self._check_moves(record)
            moves: TokenMoves | None = None
            if paths is not None or draft_paths is not None:
                chosen = self._trees.read((paths, draft_paths), len(ids), counts, live)
                members = ids if live is None else pick(ids, live)
                moves = self._trees.queue(record.step, handles, chosen, members)
            try:
                if len(handles):
                    self._ledger.advance(record.step, handles, tokens, counts, valid)
            except LedgerError as error:
                members = ids if live is None else pick(ids, live)
                self._registry.check_dummies(members, handles, counts)
                name_request(error, members)
                raise
            if moves is not None:
                self._trees.add(moves)
            self._decodes.note(batch, live, counts, num_yielding)
            self._close(record, handles)

    def skip_step(self, step: int | None = None) -> None:
        """Say that a prepared step did not run: every length stays, the room is given back.

        Requests admitted for it stay open with their prefix hit.

        Args:
            step: None: the step that `prepare_resources` began; it is completed as well.

        Raises:
            StepError: no such step, or copies queued for it were not taken.
            LedgerError: an older step of one of the requests is not updated yet.
        """
        with self._lock:
            record = self._steps.waiting(step)
            self._check_moves(record)
            handles = np.array([handle for _, handle in record.members()], np.int64)
            hold(self._ledger, record.step, handles)
            for handle in handles.tolist():
                self._registry.restore_cursor(handle, self._ledger.sequence(handle))
            self._close(record, handles)

    def _check_moves(self, record: StepRecord) -> None:
        # The ledger refuses to complete such a step; found here, before anything has changed.
        if record.implicit and self._ledger.pending_moves:
            raise StepError(
                f"step {record.step} has page copies that were not taken: call run_moves() or "
                "moves() between prepare_resources and update_resources",
                record.step,
            )

    def _close(self, record: StepRecord, handles: NDArray[np.int64]) -> None:
        if record.implicit:
            self._ledger.complete_step(record.step)
            self._steps.implicit = None
            record.implicit = False
        self._steps.updated(record, handles)

    # --- copies and tables --------------------------------------------------------------------

    def moves(self) -> NDArray[np.int32]:
        """Take the page copies that must run before the work of the step they were queued in.

        Returns:
            int32 `[k, 4]`: class, source page, destination page, tokens to copy.
        """
        with self._lock:
            self._run_transfers()
            out = np.empty((self._ledger.pending_moves, 4), np.int32)
            self._ledger.moves(out)
            return out

    def run_moves(self, stream: object | None = None) -> int:
        """Take the queued page copies and run them in the pools of both roles, in one launch.

        Of each page the tokens that the ledger names are copied, in every layer.

        Args:
            stream: the engine's stream, needed on a GPU: the copies are queued there.

        Returns:
            The number of pages copied per role, in all classes together.

        Raises:
            PoolError: the pools hold no memory (`materialize=False`): take `moves()` instead.
            ArrayError: pools on a GPU, and no stream; the copies are still queued in the ledger.
        """
        with self._lock:
            mover = self._mover
            if self._target.device != "cpu":
                as_stream(stream)  # raises before the moves are consumed
            moves = self.moves()
            mover.run(moves, stream)
            return len(moves)

    def token_moves(self) -> TokenMoves:
        """Take the token copies that bring accepted nodes of draft trees together.

        They must run in order, in the pools of their role, after the step's work and before any
        that is prepared later; `run_token_moves` does it where the managers have pools.
        """
        with self._lock:
            return self._trees.take()

    def run_token_moves(self, stream: object | None = None) -> int:
        """Bring the accepted nodes of draft trees together, in the pools of their role.

        Args:
            stream: the engine's stream, needed on a GPU: the copies are queued there.

        Returns:
            The number of tokens copied, in all classes together.

        Raises:
            PoolError: the pools hold no memory (`materialize=False`): take `token_moves()` instead.
            ArrayError: pools on a GPU, and no stream; the copies still wait.
        """
        with self._lock:
            return self._trees.run(stream)

    def _run_transfers(self) -> None:
        """Start copies between tiers before anything else touches their pages."""
        if self._transfers is not None:
            self._transfers.run()

    @cached_property
    def _mover(self) -> PageMover:
        pools = [pool for view in self.views for pool in view.pools]
        return PageMover(pools, self._target.device)

    def block_tables(
        self,
        request_ids: Iterable[Hashable],
        out: NDArray[np.int32] | None = None,
        used: NDArray[np.int32] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the pages of requests, one row each, in the order of `request_ids`.

        Args:
            request_ids: open requests, n of them.
            out: int32 `[classes, n, width]` to write into; None: a new array as wide as a row.
            used: int32 `[classes, n]` to write into; None: a new array.

        Returns:
            `out`, page 0 beyond a row's blocks, and `used`, the blocks of each row.

        Raises:
            RequestError: an id that is not open.
            LedgerError: a buffer of a wrong shape.
        """
        with self._lock:
            handles = self._registry.resolve(RequestIds(request_ids))
            shape = (self._ledger.num_classes, len(handles))
            if out is None:
                out = np.empty((*shape, self._ledger.row_width), np.int32)
            if used is None:
                used = np.empty(shape, np.int32)
            self._ledger.table(handles, out, used)
            return out, used

    @cached_property
    def block_offsets(self) -> BlockOffsets:
        """What writes the kernel indices of both roles in one launch.

        Its `groups` are the target's and then the draft's, its `copy` takes the arguments of
        `RoleView.copy_batch_block_offsets`, which writes one role and says what is raised.
        """
        pools = [pool for view in self.views for pool in view.pools]
        return BlockOffsets(pools, self._ledger, self.block_tables, self._target.device)

    @cached_property
    def tables(self) -> KernelTables:
        """What writes tables in other forms: padded, CSR, slot mappings, rows of slots."""
        return KernelTables(self._ledger, self.handles, lambda: self.step, self._lock)

    @cached_property
    def probe(self) -> Probe:
        """What answers a scheduler's questions: what fits, whom to preempt, why a match ended."""
        return Probe(self._ledger, self._limits, self._registry, self._lock)

    @cached_property
    def retention(self) -> Retention:
        """What says which cached blocks to keep: priorities, leases on prefixes, and quotas."""
        return Retention(self._ledger, self._limits, self._registry, self._lock)

    # --- requests -----------------------------------------------------------------------------

    def handles(self, request_ids: Iterable[Hashable]) -> NDArray[np.int64]:
        """Return the ledger's handles, int64 `[n]`; `handle & 0xffffffff` is the row.

        Raises:
            RequestError: an id that is not open.
        """
        with self._lock:
            return self._registry.resolve(RequestIds(request_ids)).copy()

    def hit_lengths(self, request_ids: Iterable[Hashable]) -> NDArray[np.int32]:
        """Return how many prompt tokens each request reused when admitted or resumed, int32 `[n]`.

        Raises:
            RequestError: an id that is not open.
        """
        with self._lock:
            return self._registry.hits_of(RequestIds(request_ids))

    def sequence(self, request_id: Hashable) -> dict[str, Any]:
        """Return the lengths of one request as the ledger keeps them: see `Ledger.sequence`.

        Raises:
            RequestError: the id is not open.
        """
        with self._lock:
            return self._ledger.sequence(self._registry.handle(request_id))

    def free_resources(self, request_id: Hashable, publish: bool = True) -> None:
        """Free one request, finished or aborted; `preempt` frees one that is to come back.

        It may run in a step at that time: its pages wait for that step, and its result is
        passed over.

        Args:
            request_id: an open request, or a preempted one that does not come back.
            publish: whether the valid part of its last, partial block stays reusable as well.

        Raises:
            RequestError: the id is neither.
        """
        with self._lock:
            self.free_many(RequestIds((request_id,)), publish)

    def free_many(
        self, request_ids: Iterable[Hashable], publish: bool | Sequence[bool] = True
    ) -> None:
        """Free several requests in order, all or none; see `free_resources`.

        Args:
            request_ids: open requests, or preempted ones that do not come back, n of them.
            publish: one for all, or one per request.

        Raises:
            RequestError: an id that is neither.
            BatchError: an id twice, or `publish` of another length.
        """
        with self._lock:
            ids = RequestIds(request_ids)
            flags = publish_flags(publish, len(ids))
            rest = ids
            if self._transfers is not None and len(self._transfers):
                rest, flags = self._free_waiting(self._transfers, ids, flags)
            if not self._preemptions:
                self._free(rest, flags)
                return
            here = [item for item, name in enumerate(rest) if not self._is_away(name)]
            self._free(RequestIds(rest[item] for item in here), flags[here])
            self._preemptions.forget(ids)

    def _free_waiting(
        self, transfers: Transfers, ids: RequestIds, flags: NDArray[np.uint8]
    ) -> tuple[RequestIds, NDArray[np.uint8]]:
        """Free those that wait for their pages; return the others, which have been checked."""
        here = [item for item, name in enumerate(ids) if name not in transfers]
        rest = RequestIds(ids[item] for item in here)
        if len(rest) < len(ids):
            known = (name for name in rest if not self._is_away(name))
            self._registry.resolve(RequestIds(known))
            for name in ids:
                if name in transfers:
                    transfers.release(name)
        return rest, flags[here]

    def _is_away(self, request_id: Hashable) -> bool:
        return request_id in self._preemptions and request_id not in self._registry.handles

    def _free(self, ids: RequestIds, flags: NDArray[np.uint8]) -> None:
        handles = self._registry.resolve(ids)
        self._ledger.release(handles, flags)
        for handle in handles.tolist():
            self._steps.free(handle)
        if self._transfers is not None:
            self._transfers.resuming.difference_update(handles.tolist())
        self._dummies.note_released(self._registry.close(ids))

    def preempt(
        self, request_ids: Iterable[Hashable], publish: bool | Sequence[bool] = True
    ) -> None:
        """Free requests that are to come back, all or none; see `free_resources`.

        They come back as new requests of the same id, whose prompt is all that is known by then.
        The statistics count them as preempted and, then, as readmitted. `probe.victims` chooses.

        Args:
            request_ids: open requests, n of them.
            publish: one for all, or one per request.

        Raises:
            RequestError: an id that is not open.
            BatchError: an id twice, or `publish` of another length.
        """
        with self._lock:
            ids = RequestIds(request_ids)
            self._free(ids, publish_flags(publish, len(ids)))
            self._preemptions.add(ids)

    def fork(
        self, request_id: Hashable, new_ids: Iterable[Hashable], step: int | None = None
    ) -> NDArray[np.bool_]:
        """Continue a request in new ones, as for n-best or beam search; each all or nothing.

        They share its full blocks and get copies of the rest, which `run_moves` or `moves` carries
        out before the step. The request must have no step that is not updated, so fork between
        `update_resources` and the batch that runs it again: in a step of `begin_step`, or in one
        that `prepare_resources` began for other requests (`Batch([])` if there are none).

        Args:
            request_id: an open request.
            new_ids: ids that are not open, n of them.
            step: an open step of `begin_step`; None: the one that `prepare_resources` began.

        Returns:
            bool `[n]`: which were made. Refused ones are not known; try again, or `preempt`.

        Raises:
            RequestError: `request_id` is not open or waits to be resumed, or a new id is open.
            BatchError: an id twice, or the fork of a dummy.
            StepError: `step` is None and no step is prepared.
            LedgerError: the request runs a step, or waits for copies that were not taken.
        """
        with self._lock:
            self._trees.check_taken()
            made = self._lifecycle.fork(request_id, RequestIds(new_ids), step)
            self._run_transfers()
            return made

    def suspend(
        self, request_ids: Iterable[Hashable], publish: bool | Sequence[bool] = True
    ) -> None:
        """Take the pages of requests that keep their rows and tokens, all or none; see `resume`.

        What they published stays reusable until it is evicted. They stay open: `free_resources`
        ends them. `preempt` frees requests altogether, whose prompts must be given again.

        Args:
            request_ids: open requests, n of them, without a step that is not updated.
            publish: whether the valid part of the last block stays reusable as well; one for all,
                or one per request.

        Raises:
            RequestError: an id that is not open.
            BatchError: an id twice, a dummy, or `publish` of another length.
            LedgerError: a request runs a step, or is suspended already.
        """
        with self._lock:
            self._lifecycle.suspend(RequestIds(request_ids), publish)

    def resume(
        self, request_ids: Iterable[Hashable], chunk_lens: object, step: int | None = None
    ) -> NDArray[np.bool_]:
        """Give suspended requests pages again; each runs a chunk of what it knows in this step.

        They join the step's batch: `update_resources` takes them like those prepared for it.

        `hit_lengths` then says where the chunk begins. It and those that follow are prompt chunks
        to every other call; the last one yields the next token.

        Args:
            request_ids: suspended requests, n of them.
            chunk_lens: int32 `[n]`, the most tokens that each runs in this step, >= 1.
            step: an open step of `begin_step`; None: the one that `prepare_resources` began.

        Returns:
            bool `[n]`: which run. The others stay suspended, or wait for their pages from a lower
            tier: give them again.

        Raises:
            RequestError: an id that is not open.
            BatchError: an id twice, lengths of another number, or one below 1.
            StepError: `step` is None and no step is prepared.
            LedgerError: `step` is not open, or a request is not suspended.
        """
        with self._lock:
            self._trees.check_taken()
            return self._lifecycle.resume(RequestIds(request_ids), chunk_lens, step)

    def add_dummy_requests(
        self, request_ids: Iterable[Hashable], token_nums: Sequence[int] | NDArray[np.int64]
    ) -> list[Hashable] | None:
        """Open requests that only hold room, for padding CUDA graphs or measuring: all or none.

        Each holds `token_nums[i]` tokens and the plan's extra tokens, in both roles, until it is
        freed. Dummies match nothing, publish nothing and do not appear in the request counters.

        Args:
            request_ids: ids that are not open.
            token_nums: tokens of each, >= 1.

        Returns:
            The ids, or None if rows or pages are missing in either role; then nothing has changed.

        Raises:
            RequestError: an id that is open.
            BatchError: an id twice, or a number of tokens out of range.
        """
        with self._lock:
            ids = RequestIds(request_ids)
            self._registry.check_absent(ids)
            if self._transfers is not None:
                self._transfers.check_absent(ids)
            lens = int_array("token_nums", token_nums, np.int64)
            self._limits.check_dummy_lens(ids, lens)
            self._trees.check_taken()
            opened = self._dummies.open(ids, lens, self._now)
            self._run_transfers()
            return list(ids) if opened else None

    def drop_scope(
        self, adapter: tuple[int | str, int] | None = None, cache_salt: bytes | str | None = None
    ) -> None:
        """Forget what could be reused by requests with exactly this adapter and salt.

        For an adapter that was unloaded or replaced, or a tenant that left.

        Raises:
            SequencesOpenError: such requests are open; nothing was changed.
            LedgerError: an adapter or salt of another form than in a batch.
        """
        with self._lock:
            drop_scope(self._ledger, adapter, cache_salt)

    def reset_reuse_state(self, detach_live: bool = False) -> None:
        """Forget everything that could be reused.

        Args:
            detach_live: do so although requests are open, as after new weights: they keep their
                pages and run on, but nothing of theirs becomes reusable any more. Those that were
                refused with `loading` begin anew when they are given again.

        Raises:
            SequencesOpenError: requests are open, and not `detach_live`; nothing was changed.
        """
        with self._lock:
            if detach_live and self._transfers is not None:
                for request_id in list(self._transfers):
                    self._transfers.release(request_id)
            try:
                self._ledger.reset_reuse_state(detach_live)
            except SequencesOpenError as error:
                if self._transfers is not None and len(self._transfers):
                    error.add_note(f"{len(self._transfers)} of them wait for pages (`tiers`)")
                raise
            if self._transfers is not None:
                self._transfers.clear()

    def apply_plan(self, plan: Plan, stream: object | None = None) -> NDArray[np.int32]:
        """Take another plan of the same models: pools of both roles grow or shrink together.

        All or nothing, between steps. Requests stay open and what is cached stays reusable, as far
        as it fits: the least valuable blocks are evicted where pools get smaller, and pages beyond
        a new end move. New pools are built beside the old ones, filled, and put in their place:
        `RoleView.pools` has other buffers then, so whatever holds their addresses (kernels'
        arguments, captured graphs) must look again, and `block_offsets` is made anew.

        An engine with memory of its own (`materialize=False`) runs the rows that this returns,
        copies of whole pages as in `moves()`, in its pools of both roles before anything else
        touches them; then it may give up the pages beyond the new ends, or add new ones.

        Watermark, leases and policy stay as they were built.

        Args:
            plan: it may differ in the sizes of pools only, and in what they follow from: memory
                and what else is on the device.
            stream: the engine's stream, needed for pools on a GPU, which this waits for.

        Returns:
            int32 `[k, 4]`: class, source page, destination page, tokens; run already where the
            managers have pools.

        Raises:
            ConfigError: the plan differs in something else.
            PoolError: the managers use host or disk, whose executor holds the old pools; or were
                not built from a plan.
            StepError: accepted nodes of draft trees wait to be brought together.
            LedgerError: a step is open, or what must stay does not fit (`.details` has the class,
                the pages needed and those given).
            ArrayError: pools on a GPU, and no stream.
        """
        with self._lock:
            self._trees.check_taken()
            if self._transfers is not None or self._resizing is None:
                what = "use host or disk" if self._transfers is not None else "have no plan"
                raise PoolError(f"the managers {what}: build new ones for another plan")
            moves = self._resizing.apply(plan, stream)
            self._trees.forget_pools()
            for cached in ("_mover", "block_offsets"):
                self.__dict__.pop(cached, None)
            return moves

    def stats(self) -> ManagerStats:
        """Return counts and counters, and what each role uses; see `ManagerStats`."""
        with self._lock:
            return ManagerStats.of(
                self._ledger.stats(),
                views=self.views,
                open_requests=self._registry.num_requests,
                open_dummies=self._registry.num_dummies,
                dummy_totals=self._dummies.totals,
                refused_rows=self._preparation.refused_rows,
                preemptions=self._preemptions.totals,
                decodes=self._decodes,
                tiers=None if self._transfers is None else self._transfers.stats(),
            )

"""The sequences of one `generate` call: their text, lengths and steps in the ledger.

`generate` runs all sequences in lockstep, as columns of a matrix that is padded on the left. A
column of row i is position `column - pad[i]` of sequence i; columns before that are padding, which
no page holds. Target and draft share the rows: a page holds the KV of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemkv.integrations.transformers.errors import OutOfPagesError, PagedCacheError
from tandemkv.integrations.transformers.slots import Copies, RowSlots, Span
from tandemkv.integrations.transformers.store import stream_of
from tandemkv.managers import Batch, Managers

_serial = itertools.count()

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    batch: Batch
    stop: int  # column after the last one it has room for


class PagedRows:
    """Admits prompts, gives every forward room for its tokens, and commits what was accepted.

    Args:
        managers: what holds the pages.
        prompts: tokens of each sequence, without padding.
        max_new_tokens: most tokens that follow a prompt.
        cache_salt: only prompts with equal ones share; None is one of its own.
        share: whether to reuse what others left, and leave it to others.
        with_draft: whether a draft model writes its KV too.

    Raises:
        OutOfPagesError: the prompts do not fit; nothing is held.
        BatchError: longer than the plan's `max_seq_len`.
        PagedCacheError: no prompt, an empty one, or a draft where the plan has none.
    """

    def __init__(
        self,
        managers: Managers,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        cache_salt: bytes | str | None = None,
        share: bool = True,
        with_draft: bool = False,
    ) -> None:
        self._managers = managers
        self._cache_salt = cache_salt
        self._scope = 0 if share else -1
        self._with_draft = with_draft
        self._reserve = managers.limits.reserve_tokens
        lens = np.array([len(prompt) for prompt in prompts], np.int64)
        if not len(lens) or not lens.all():
            raise PagedCacheError(f"prompts have lengths {lens.tolist()}; each needs a token")
        self._width = int(lens.max())
        self._pads = self._width - lens
        self._max_new = max_new_tokens
        # Drafts may lie beyond the last token that is wanted.
        columns = self._width + max_new_tokens + 2 * (self._reserve + 1)
        self._text = np.zeros((len(prompts), columns), np.int64)
        for row, prompt in enumerate(prompts):
            self._text[row, self._pads[row] : self._width] = prompt
        self._ids: list[Hashable] = [("generate", next(_serial)) for _ in prompts]
        self._steps: list[_Step] = []
        self._known = self._width  # columns whose tokens the ledger has
        self._told = self._width  # columns whose tokens are here
        self._ran = False  # the target has run all that the steps gave room for
        self._selection: NDArray[np.int64] | None = None
        self._slots = RowSlots(managers)
        self._moved: list[Copies] = []
        self.is_open = True
        batch = Batch(
            self._ids,
            chunk_lens=lens.astype(np.int32),
            prompts=[list(prompt) for prompt in prompts],
            max_total_tokens=lens + max_new_tokens,
            scopes=np.full(len(lens), self._scope, np.int32),
            cache_salts=[cache_salt] * len(lens),
            draft_from=self._draft_from(len(lens)),
        )
        self._grant(batch, self._width)
        self.hits = self._managers.hit_lengths(self._ids).astype(np.int64)
        start = self._first_column()
        self._ends = {"target": start, "draft": start}
        self._draft_valid = self.hits.copy()

    def _first_column(self) -> int:
        """Return the column where all rows can start.

        Attention may run what is there already, and not write it. A state cannot: a row starts
        at its snapshot, or from nothing.
        """
        starts = self._pads + self.hits
        first = int(starts.min())
        if self._slots.has_states:
            fits = [c for c in {0, *starts} if ((starts == c) | (self._pads >= c)).all()]
            first = int(max(fits))
        return first

    # --- lengths ------------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        """Sequences."""
        return len(self._ids)

    @property
    def num_selected(self) -> int:
        """Sequences from the next forward on; see `select`."""
        return self.num_rows if self._selection is None else len(self._selection)

    @property
    def pads(self) -> NDArray[np.int64]:
        """Columns of padding before each sequence, int64 `[rows]`."""
        return self._pads

    def end(self, role: str) -> int:
        """Return the column up to which a role's KV is there."""
        return self._ends[role]

    # --- forwards -----------------------------------------------------------------------------

    def begin(self, role: str, tokens: Tokens) -> Span:
        """Make room for a forward that runs `tokens`, int64 `[rows, columns]`, from `end` on.

        What ran before is committed once its next token is known, which is when a forward brings
        it.

        Raises:
            OutOfPagesError: no room; the rows stay as they are.
            PagedCacheError: another number of rows, more columns at once than the plan gives a
                step, or the rows are closed.
        """
        self._check(tokens)
        start = self._ends[role]
        stop = start + tokens.shape[1]
        if stop > self._text.shape[1]:
            raise PagedCacheError(
                f"the {role} runs up to column {stop}; the prompt of {self._width} and "
                f"max_new_tokens {self._max_new} leave room for {self._text.shape[1]}"
            )
        if self._selection is not None:
            self._select_rows(start, stop, tokens)
        else:
            self._text[:, start:stop] = tokens
            self._told = max(self._told, stop)
            self._settle()
            if stop > self._room:
                self._prepare(stop)
        return self._slots.span(self._ids, start, stop, pads=self._pads, hits=self.hits)

    def finish_forward(self, role: str, stop: int) -> None:
        """Say that a forward is through: KV of the role is there up to column `stop`."""
        self._ends[role] = stop
        if role == "target":
            self._ran = stop >= self._width

    def crop(self, role: str, count: int) -> None:
        """Take back the last `count` columns of a role: rejected draft tokens.

        Raises:
            PagedCacheError: more than ran since the last tokens were committed.
        """
        end = self._ends[role] - count
        committed = max(self._known - 1, self._width)
        if role == "target" and count and end < committed:
            raise PagedCacheError(
                f"crop takes {count} columns back to {end}; {committed} are committed"
            )
        self._ends[role] = end
        if role == "target":
            self._told = min(self._told, end)

    def select(self, index: NDArray[np.int64]) -> None:
        """Let row j continue what row `index[j]` is now; takes effect in the next forward.

        Raises:
            PagedCacheError: in a pair with a draft, which rolls back by `crop` alone, or an index
                that is no row.
        """
        if self._with_draft:
            raise PagedCacheError("rows of a target with a draft cannot be reordered")
        count = self.num_selected
        if len(index) == 0 or index.min() < 0 or index.max() >= count:
            raise PagedCacheError(f"rows {index.tolist()} are not all below {count}")
        current = self._selection
        self._selection = index if current is None else current[index]

    def take_copies(self) -> list[Copies]:
        """Return what to copy before the forward, once; mostly nothing."""
        copies, self._moved = self._moved, []
        return copies

    # --- the end ------------------------------------------------------------------------------

    def finish(self, sequences: Tokens | None = None) -> None:
        """Commit the last forward and free the rows; what they hold stays reusable.

        Args:
            sequences: int64 `[rows, columns]`, all tokens, whose last one no forward has brought.
                Without it the last token's predecessor may have to be computed again.
        """
        if not self.is_open:
            return
        end = self._ends["target"]
        if self._selection is not None:
            self._abort(publish=False)
            return
        if sequences is not None and len(sequences) == self.num_rows and sequences.shape[1] > end:
            self._text[:, end] = sequences[:, end]
            self._told = max(self._told, end + 1)
        self._settle()
        self._abort(publish=True)

    def abort(self) -> None:
        """Free the rows; steps that are not committed count as not run."""
        if self.is_open:
            self._abort(publish=False)

    def _abort(self, *, publish: bool) -> None:
        self.is_open = False
        self._managers.free_many(self._ids, publish)
        for step in self._steps:
            self._managers.complete_step(step.number)
        self._steps.clear()

    # --- steps of the ledger ------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._steps[-1].stop if self._steps else self._known - 1

    def _settle(self) -> None:
        """Commit every open step, if the target ran it and the token after it is known."""
        end = self._ends["target"]
        if self._steps and self._ran and self._told > end:
            for step in self._steps:
                self._commit(step, step.batch, min(end, step.stop))
            self._steps.clear()
            self._ran = False

    def _commit(self, step: _Step, batch: Batch, end: int) -> None:
        """Say that `step` made the target's KV of `batch` valid up to column `end`."""
        rows = np.array([self._ids.index(row) for row in batch.request_ids], np.int64)
        new = self._text[rows, self._known : end + 1]
        if new.shape[1] == 0:
            # Candidates behind a prompt whose first one was wrong.
            self._managers.skip_step(step.number)
        else:
            valid = np.zeros((len(rows), 2), np.int32)
            valid[:, 0] = end - self._pads[rows]
            if self._with_draft:
                reached = min(self._ends["draft"], end) - self._pads[rows]
                self._draft_valid[rows] = np.maximum(self._draft_valid[rows], reached)
                valid[:, 1] = self._draft_valid[rows]
            self._managers.update_resources(batch, list(new), step.number, valid=valid)
            self._known = end + 1
        self._managers.complete_step(step.number)

    def _prepare(self, stop: int) -> None:
        """Give room for columns up to `stop`: one token and the drafts behind it."""
        width = stop - self._room
        if width > 1 + self._reserve:
            raise PagedCacheError(
                f"a forward runs {width} tokens at once behind the prompt; the plan gives a step 1 "
                f"token and {self._reserve} drafts (max_draft_len)"
            )
        if self._with_draft:
            width = 1 + self._reserve  # the draft goes first, the target follows with one more
        room = self._room + width
        self._grant(Batch(self._ids, draft_lens=[width - 1] * self.num_rows), room)

    def _grant(self, batch: Batch, stop: int) -> None:
        """Open a step for `batch`, all of it or nothing.

        Raises:
            OutOfPagesError: says why.
        """
        managers = self._managers
        step = managers.begin_step()
        try:
            granted = managers.prepare_resources(batch, step)
            managers.run_moves(stream_of(managers))
        except BaseException:
            managers.complete_step(step)
            raise
        if granted.all():
            self._steps.append(_Step(step, batch, stop))
            return
        request_id, refusal = next(iter(managers.refusals.items()))
        managers.skip_step(step)
        new = [batch.request_ids[item] for item in batch.new_index.tolist() if granted[item]]
        managers.free_many(new, publish=False)
        managers.complete_step(step)
        row = batch.request_ids.index(request_id)
        raise OutOfPagesError(
            f"row {row} of {len(batch)} has no room for its next tokens: {refusal}", refusal.reason
        )

    def _draft_from(self, count: int) -> NDArray[np.int32] | None:
        if not self._managers.limits.has_draft:
            if self._with_draft:
                raise PagedCacheError("a draft model is given, but the plan has no draft")
            return None
        return np.full(count, 0 if self._with_draft else -1, np.int32)

    # --- rows that become others --------------------------------------------------------------

    def _select_rows(self, start: int, stop: int, tokens: Tokens) -> None:
        """Carry out `select`: the first heir of a row goes on with its pages, others copy.

        A copy is a new sequence of the same text. What the prefix tree has of it is shared; the
        rest, up to `start`, is copied slot by slot.
        """
        index = self._selection
        assert index is not None
        if stop != start + 1 or start < self._width:
            raise PagedCacheError("rows can be reordered between decode steps of one token only")
        heirs, first = np.unique(index, return_index=True)
        is_first = np.zeros(len(index), np.bool_)
        is_first[first] = True
        self._text = self._text[index]
        self._text[:, start] = tokens[:, 0]
        self._told = stop
        old_ids = self._ids
        self._ids = [
            old_ids[source] if keeps else ("generate", next(_serial))
            for source, keeps in zip(index.tolist(), is_first.tolist(), strict=True)
        ]
        self._pads = self._pads[index]
        self._draft_valid = self._draft_valid[index]
        self.hits = self.hits[index]
        kept = Batch([self._ids[row] for row in np.sort(first).tolist()])
        dropped = [old_ids[row] for row in range(len(old_ids)) if row not in set(heirs.tolist())]
        self._managers.free_many(dropped, publish=False)
        for step in self._steps:
            self._commit(step, kept, min(start, step.stop))
        self._steps.clear()
        self._ran = False
        self._selection = None
        self._admit_copies(start, is_first)
        copies = np.flatnonzero(~is_first)
        if len(copies):
            sources = [old_ids[source] for source in index[copies].tolist()]
            ids = [self._ids[row] for row in copies.tolist()]
            lens = (start - self._pads[copies]).astype(np.int32)
            self._moved += self._slots.copies(sources, ids, lens)

    def _admit_copies(self, start: int, is_first: NDArray[np.bool_]) -> None:
        lens = start + 1 - self._pads
        prompts = [
            [] if keeps else self._text[row, self._pads[row] : start + 1].tolist()
            for row, keeps in enumerate(is_first.tolist())
        ]
        batch = Batch(
            self._ids,
            chunk_lens=np.where(is_first, 0, lens).astype(np.int32),
            prompts=prompts,
            max_total_tokens=self._width - self._pads + self._max_new,
            scopes=np.full(self.num_rows, self._scope, np.int32),
            cache_salts=[self._cache_salt] * self.num_rows,
            draft_from=self._draft_from(self.num_rows),
        )
        self._known = start + 1
        self._grant(batch, start + 1)

    def _check(self, tokens: Tokens) -> None:
        if not self.is_open:
            raise PagedCacheError("the rows are closed: their generation has ended")
        rows = self.num_selected
        if tokens.ndim != 2 or len(tokens) != rows or not tokens.shape[1]:
            raise PagedCacheError(
                f"a forward runs tokens of shape {tokens.shape}; [{rows}, 1 or more] is needed"
            )

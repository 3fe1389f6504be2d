"""New requests on their way into the ledger, and why some do not get there."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.identity import Adapter, Identity, MediaItem, Salt
from tandemkv.managers.limits import Limits

# The negative values of `handle` in Ledger.admit.
NO_PAGES_NOW, NEVER_FITS, NO_ROW, NOT_TRIED, LOADING = -1, -2, -3, -4, -5
_REASONS = {
    NO_PAGES_NOW: "no_pages_now",
    NEVER_FITS: "never_fits",
    NO_ROW: "no_row",
    NOT_TRIED: "not_tried",
    LOADING: "loading",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not run in a step.

    Attributes:
        reason: `no_pages_now` (wait, or preempt), `never_fits` (it needs more than the pool can
            ever give), `no_row` (as many requests as the plan allows are open), `loading` (its
            pages are on their way from a lower tier: give it again), or `not_tried` (after another
            refusal, with `stop_at_first`).
        required_blocks: blocks it can come to need in each class; of a running request, those that
            it needs for this step.
        usable_pages: pages of the smallest class that requests can own, those that floors of other
            scopes keep included.
    """

    reason: str
    required_blocks: int = 0
    usable_pages: int = 0

    def __str__(self) -> str:
        if self.reason == "never_fits":
            beside = "" if self.required_blocks > self.usable_pages else " beside others' floors"
            usable = f"the pool has {self.usable_pages} usable"
            return f"needs {self.required_blocks} pages{beside}, {usable}"
        return self.reason.replace("_", " ")


@dataclass(slots=True)
class Admission:
    """The new requests of a batch as arrays for `Ledger.admit`, and its answers.

    Attributes:
        ids: the new requests' ids, k of them.
        tokens: their prompts, one after the other.
        offsets: int64 `[k + 1]`, where each prompt starts in `tokens`.
        handles: int64 `[k]`, the ledger's answer: a handle, or a negative reason.
        hits: int32 `[k]`, reused prompt tokens.
        identity: their adapters, salts and media, which `interned` turns into numbers.
        kept_out: refused for want of a row without asking the ledger.
    """

    ids: tuple[Hashable, ...]
    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    scopes: NDArray[np.int32]
    first: NDArray[np.int32]
    max_total: NDArray[np.int64]
    draft_from: NDArray[np.int32] | None
    handles: NDArray[np.int64]
    hits: NDArray[np.int32]
    identity: Identity | None = None
    kept_out: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def prompt_lens(self) -> NDArray[np.int64]:
        """Length of each prompt, int64 `[k]`."""
        return self.offsets[1:] - self.offsets[:-1]

    def prompt(self, item: int) -> NDArray[Any]:
        """Return the prompt of an item, a copy."""
        return self.tokens[self.offsets[item] : self.offsets[item + 1]].copy()

    def identity_of(self, item: int) -> Identity | None:
        """Return the adapter, salt and media of an item, None if the batch has none."""
        return None if self.identity is None else self.identity.select(np.array([item], np.intp))

    def terms_of(self, item: int) -> tuple[int, int, int]:
        """Return the scope, `max_total` and `draft_from` of an item; -1 without a draft."""
        draft_from = -1 if self.draft_from is None else int(self.draft_from[item])
        return int(self.scopes[item]), int(self.max_total[item]), draft_from

    def select(self, items: NDArray[np.intp]) -> Admission:
        """Return some of the requests, not tried yet."""
        lens = self.prompt_lens[items]
        offsets = np.zeros(len(items) + 1, np.int64)
        np.cumsum(lens, out=offsets[1:])
        prompts = [self.prompt(item) for item in items.tolist()]
        return Admission(
            ids=tuple(self.ids[item] for item in items.tolist()),
            tokens=np.concatenate(prompts) if prompts else self.tokens[:0],
            offsets=offsets,
            scopes=self.scopes[items],
            first=self.first[items],
            max_total=self.max_total[items],
            draft_from=None if self.draft_from is None else self.draft_from[items],
            handles=np.full(len(items), NOT_TRIED, np.int64),
            hits=np.zeros(len(items), np.int32),
            identity=None if self.identity is None else self.identity.select(items),
        )

    def admit(
        self, ledger: Ledger, step: int, max_new: int, stop_at_first: bool
    ) -> Iterator[tuple[int, int]]:
        """Admit in order while at most `max_new` are open; yield the ranges that were tried.

        The caller registers a range before the next one is tried.
        """
        start = opened = 0
        while start < len(self):
            room = max_new - opened
            if room <= 0:
                self.handles[start:] = NO_ROW
                if stop_at_first:
                    self.handles[start + 1 :] = NOT_TRIED
                self.kept_out = int(np.count_nonzero(self.handles[start:] == NO_ROW))
                return
            stop = min(len(self), start + room)
            admitted = self._admit_range(ledger, step, start, stop, stop_at_first)
            opened += admitted
            yield start, stop
            if stop_at_first and admitted < stop - start:
                self.handles[stop:] = NOT_TRIED
                return
            start = stop

    def _admit_range(
        self, ledger: Ledger, step: int, start: int, stop: int, stop_at_first: bool
    ) -> int:
        whole = start == 0 and stop == len(self)
        offsets = self.offsets if whole else self.offsets[start : stop + 1] - self.offsets[start]
        tokens = self.tokens if whole else self.tokens[self.offsets[start] : self.offsets[stop]]
        return ledger.admit(
            step,
            (tokens, offsets),
            self.scopes[start:stop],
            self.first[start:stop],
            self.max_total[start:stop],
            None if self.draft_from is None else self.draft_from[start:stop],
            self.handles[start:stop],
            self.hits[start:stop],
            stop_at_first,
        )

    def refusals(self, limits: Limits) -> dict[Hashable, Refusal]:
        """Return why which of the requests was refused."""
        return {
            self.ids[item]: Refusal(
                _REASONS[int(self.handles[item])],
                *limits.tightest(
                    limits.worst_blocks(int(self.prompt_lens[item]), int(self.max_total[item]))
                ),
            )
            for item in np.flatnonzero(self.handles < 0).tolist()
        }


def admission_of(batch: Batch, limits: Limits) -> Admission:
    """Return the new requests of `batch`, checked against the plan.

    Raises:
        BatchError: longer than `max_seq_len`, or with a draft where the plan has none.
    """
    new = batch.new_index
    count = len(new)
    assert batch.prompt_tokens is not None
    assert batch.max_total_tokens is not None
    if batch.draft_from is not None:
        draft_from: NDArray[np.int32] | None = batch.draft_from[new]
    else:
        draft_from = np.zeros(count, np.int32) if limits.has_draft else None
    limits.check_new(batch, draft_from)
    ids = batch.request_ids
    return Admission(
        ids=ids if count == len(ids) else tuple(ids[item] for item in new.tolist()),
        tokens=batch.prompt_tokens,
        offsets=batch.new_offsets,
        scopes=np.zeros(count, np.int32) if batch.scopes is None else batch.scopes[new],
        first=batch.chunk_lens[new],
        max_total=batch.max_total_tokens[new],
        draft_from=draft_from,
        handles=np.full(count, NOT_TRIED, np.int64),
        hits=np.zeros(count, np.int32),
        identity=None if batch.identity is None else batch.identity.select(new),
    )


def asked_about(
    limits: Limits,
    name: str,
    prompt: NDArray[Any],
    *,
    scope: int,
    adapter: Adapter | None,
    cache_salt: Salt | None,
    media: Sequence[MediaItem],
    draft_from: int | None = None,
) -> Admission:
    """Return a prompt as a new request that is asked about and not admitted, checked like one.

    Errors call it `name`.

    Raises:
        BatchError: longer than `max_seq_len`, or fields that a batch would refuse.
    """
    batch = Batch(
        [name],
        chunk_lens=[1],
        prompts=[prompt],
        max_total_tokens=[len(prompt)],
        scopes=[scope],
        adapters=[adapter],
        cache_salts=[cache_salt],
        media=[media],
        draft_from=None if draft_from is None else [draft_from],
    )
    return admission_of(batch, limits)


def dummy_admission(ids: RequestIds, lens: NDArray[np.int64], limits: Limits) -> Admission:
    """Return dummies as new requests: token 1 throughout, private, their whole length at once."""
    offsets = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(lens, out=offsets[1:])
    return Admission(
        ids=ids,
        tokens=np.ones(int(offsets[-1]), np.int32),
        offsets=offsets,
        scopes=np.full(len(ids), -1, np.int32),
        first=lens.astype(np.int32),
        max_total=lens,
        draft_from=np.zeros(len(ids), np.int32) if limits.has_draft else None,
        handles=np.full(len(ids), NOT_TRIED, np.int64),
        hits=np.zeros(len(ids), np.int32),
    )


def dummies_fit(stats: dict[str, Any], limits: Limits, lens: NDArray[np.int64]) -> bool:
    """Return whether the ledger would admit all dummies of `lens` tokens; read-only.

    It is `admit` of docs/ledger.md for items that match nothing and run whole: each takes its
    blocks at once and promises none, so the sum decides; the watermark binds all but one that
    comes first into an idle ledger.
    """
    if stats["open_sequences"] + len(lens) > limits.max_sequences:
        return False
    for length in lens.tolist():
        needed, usable = limits.tightest(limits.worst_blocks(length, length))
        if needed > usable:
            return False
    blocks = [limits.blocks(length) for length in lens.tolist()]
    idle = not stats["open_sequences"] and len(lens) == 1
    watermark = 0 if idle else limits.watermark_blocks
    return all(
        sum(item.blocks_now(count) for count in blocks)
        + pages["promised"]
        + (watermark if item.grows else 0)
        <= pages["free"] + pages["evictable"]
        for item, pages in zip(limits.classes, stats["classes"], strict=True)
    )

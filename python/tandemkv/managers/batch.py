"""A batch: one scheduler step as a struct of arrays, checked once when it is built."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import BatchError
from tandemkv.managers.arrays import Ints, flatten, item_array, offset_array, token_array
from tandemkv.managers.identity import (
    Adapter,
    Identity,
    MediaItem,
    Salt,
    check_media_fits,
    read_identity,
)

_EMPTY_INDEX: NDArray[np.intp] = np.zeros(0, np.intp)
_ONE = np.int32(1)
_NO_OFFSETS: NDArray[np.int64] = np.zeros(1, np.int64)


class RequestIds(tuple[Hashable, ...]):
    """Distinct, hashable request ids in batch order.

    Building one checks the ids; a batch that is given one does not check again, and the managers
    recognise it and reuse the handles they looked up for it. A scheduler whose membership did not
    change passes `batch.request_ids` of the step before.

    Raises:
        BatchError: an id twice, an id that cannot be hashed, or a bare string.
    """

    __slots__ = ()

    def __new__(cls, request_ids: Iterable[Hashable] = ()) -> RequestIds:
        """Check the ids; see the class."""
        if isinstance(request_ids, RequestIds):
            return request_ids
        if isinstance(request_ids, str | bytes):
            raise BatchError(
                f"request_ids is the string {request_ids!r}; a sequence of ids is needed",
                field="request_ids",
            )
        try:
            ids = super().__new__(cls, request_ids)
            last = _last_checked[0]
            if ids == last:
                return last
            distinct = set(ids)
        except (TypeError, ValueError) as error:
            raise BatchError(f"request_ids: {error}", field="request_ids") from None
        if len(distinct) != len(ids):
            seen: set[Hashable] = set()
            for item, request_id in enumerate(ids):
                if request_id in seen:
                    raise BatchError(
                        f"request_ids[{item}] is {request_id!r} a second time",
                        field="request_ids",
                        item=item,
                    )
                seen.add(request_id)
        _last_checked[0] = ids
        return ids


# Schedulers that build a list of ids for each step mostly build the same one: comparing it with the
# last is several times cheaper than checking it, and finds the handles looked up for it.
_last_checked = [tuple.__new__(RequestIds)]


class Batch:
    """What a step runs, one entry per request; immutable.

    A request new to the managers brings its prompt; a running one does not. Per request, a step
    runs either `chunk_lens[i]` prompt tokens, or, with `chunk_lens[i] == 0`, one decode step of
    one token plus `draft_lens[i]` draft slots.

    Arrays are copied (prompts are not: leave them alone until `prepare_resources` returns).
    Python sequences of ints are converted.

    Args:
        request_ids: distinct hashables, n of them.
        chunk_lens: int32 `[n]`, prompt tokens to run, >= 1 for a new request (the managers run
            fewer if the rest of the prompt is shorter), 0 for a decode step. None: all 0.
        draft_lens: int32 `[n]`, draft slots of a decode step (all nodes of a draft tree), 0 for a
            chunk. None: all 0.
        prompts: `(flat tokens int32 or int64, offsets int64 [n + 1])`, or a list of n token
            sequences; an empty range for a running request. None: no new request.
        max_total_tokens: int64 `[n]`, the most tokens a new request can come to know, its prompt
            included; not read for running ones. Needed where there is a new request.
        scopes: int32 `[n]`, what separates equal prompts: -1 is private, a number above 0 one that
            `Ledger.intern_scope` gave, 0 leaves it to the next two arguments. None: all 0.
        adapters: per request None or `(id, version)` of its adapter (LoRA), the id an int or a
            text; new weights under an old id need another version. None: no adapters.
        cache_salts: per request None, bytes or a text; only equal salts share. None: no salts.
        media: per request a list of `(offset, length, digest)`: where its placeholders begin in the
            prompt, how many there are, and the 32 bytes that identify the content. None: no media.
            These three are read for new requests only.
        draft_from: int32 `[n]`, the first position whose draft KV will be valid; -1 runs without
            a draft. None: 0 where the plan has a draft, else -1. Read for new requests only.

    Attributes:
        widths: int32 `[n]`, the most tokens each request runs: the chunk, or 1 + draft slots.
        identity: adapters, salts and media, checked; None if there are none.
        num_chunks: how many run a prompt chunk, new ones included.
        max_draft_len: the largest of `draft_lens`, 0 for an empty batch.
        num_new: how many bring a prompt.
        new_index: positions of the requests that bring a prompt, ascending.
        new_offsets: int64 `[num_new + 1]`, where their prompts start in `prompt_tokens`.

    Raises:
        BatchError: names the argument, the item and the value at fault.
    """

    __slots__ = (
        "chunk_lens",
        "draft_from",
        "draft_lens",
        "identity",
        "max_draft_len",
        "max_total_tokens",
        "new_index",
        "new_offsets",
        "num_chunks",
        "num_new",
        "prompt_tokens",
        "request_ids",
        "scopes",
        "widths",
    )

    request_ids: RequestIds
    chunk_lens: NDArray[np.int32]
    draft_lens: NDArray[np.int32]
    prompt_tokens: NDArray[Any] | None
    max_total_tokens: NDArray[np.int64] | None
    scopes: NDArray[np.int32] | None
    identity: Identity | None
    draft_from: NDArray[np.int32] | None
    widths: NDArray[np.int32]
    num_chunks: int
    num_new: int
    max_draft_len: int
    new_index: NDArray[np.intp]
    new_offsets: NDArray[np.int64]

    def __init__(
        self,
        request_ids: Iterable[Hashable],
        *,
        chunk_lens: Ints | None = None,
        draft_lens: Ints | None = None,
        prompts: tuple[Ints, Ints] | Sequence[Ints] | None = None,
        max_total_tokens: Ints | None = None,
        scopes: Ints | None = None,
        adapters: Sequence[Adapter | None] | None = None,
        cache_salts: Sequence[Salt | None] | None = None,
        media: Sequence[Sequence[MediaItem] | None] | None = None,
        draft_from: Ints | None = None,
    ) -> None:
        put = object.__setattr__
        ids = RequestIds(request_ids)
        n = len(ids)
        chunks, num_chunks, _ = _lengths("chunk_lens", chunk_lens, n)
        drafts, num_drafts, max_draft_len = _lengths("draft_lens", draft_lens, n)
        put(self, "request_ids", ids)
        put(self, "chunk_lens", chunks)
        put(self, "draft_lens", drafts)
        put(self, "num_chunks", num_chunks)
        put(self, "max_draft_len", max_draft_len)
        if num_chunks and num_drafts:
            self._check_no_draft_in_chunks()
        if max_draft_len == np.iinfo(np.int32).max:
            self._refuse("draft_lens", int(drafts.argmax()), "below 2^31 - 1")
        put(self, "widths", _widths(chunks, num_chunks, drafts))
        self._set_optional("max_total_tokens", max_total_tokens, np.int64, 0)
        self._set_optional("scopes", scopes, np.int32, -1)
        self._set_optional("draft_from", draft_from, np.int32, -1)
        put(self, "identity", read_identity(n, adapters, cache_salts, media))
        put(self, "num_new", 0)
        put(self, "new_index", _EMPTY_INDEX)
        put(self, "new_offsets", _NO_OFFSETS)
        put(self, "prompt_tokens", None)
        if prompts is not None:
            self._set_prompts(prompts)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Batch is immutable: cannot set {name}")

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.request_ids)

    def __repr__(self) -> str:
        return (
            f"Batch({len(self)} requests: {self.num_new} new, {self.num_chunks} prompt chunks, "
            f"{self.num_tokens} tokens at most)"
        )

    @property
    def num_tokens(self) -> int:
        """Sum of `widths`: the most tokens the step runs, before prefix hits shorten chunks."""
        return int(self.widths.sum(dtype=np.int64))

    def _set_optional(
        self, field: str, value: object, dtype: type[np.signedinteger[Any]], low: int
    ) -> None:
        if value is None:
            object.__setattr__(self, field, None)
            return
        array = item_array(field, value, dtype, len(self))
        object.__setattr__(self, field, array)
        if len(array) and int(array.min()) < low:
            self._refuse(field, int(np.flatnonzero(array < low)[0]), f">= {low}")

    def _set_prompts(self, prompts: object) -> None:
        put = object.__setattr__
        tokens, offsets = _prompts(prompts, len(self))
        new = np.flatnonzero(offsets[1:] > offsets[:-1])
        if len(new) == 0:
            return
        put(self, "prompt_tokens", tokens)
        put(self, "num_new", len(new))
        put(self, "new_index", new)
        # Ranges between two new requests are empty, so each ends where the next one begins.
        put(self, "new_offsets", np.append(offsets[new], offsets[-1]))
        lens = self.new_offsets[1:] - self.new_offsets[:-1]
        if self.max_total_tokens is None:
            raise BatchError(
                f"max_total_tokens is missing, but {len(new)} requests bring a prompt",
                field="max_total_tokens",
            )
        self._refuse_new("chunk_lens", self.chunk_lens[new] < 1, ">= 1 for a new request")
        if self.identity is not None:
            self._check_identity(self.identity, lens)
        short = self.max_total_tokens[new] < lens
        self._refuse_new("max_total_tokens", short, "at least the length of the prompt")

    def _check_identity(self, identity: Identity, lens: NDArray[np.int64]) -> None:
        for item, prompt_len in zip(self.new_index.tolist(), lens.tolist(), strict=True):
            check_media_fits(identity, item, prompt_len)
            if self.scopes is not None and self.scopes[item] > 0 and identity.has_scope(item):
                self._refuse("scopes", item, "0 or -1 where the request has an adapter or a salt")

    def _refuse_new(self, field: str, wrong: NDArray[np.bool_], supported: str) -> None:
        if wrong.any():
            self._refuse(field, int(self.new_index[np.flatnonzero(wrong)[0]]), supported)

    def _refuse(self, field: str, item: int, supported: str) -> None:
        raise BatchError(
            f"{field}[{item}] is {int(getattr(self, field)[item])} (request "
            f"{self.request_ids[item]!r}); it must be {supported}",
            field=field,
            item=item,
        )

    def _check_no_draft_in_chunks(self) -> None:
        both = np.flatnonzero((self.chunk_lens > 0) & (self.draft_lens > 0))
        if len(both):
            self._refuse("draft_lens", int(both[0]), "0 where a prompt chunk runs")


def _prompts(prompts: object, num_items: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if isinstance(prompts, tuple) and len(prompts) == 2:
        tokens = token_array("prompts: tokens", prompts[0])
        return tokens, offset_array("prompts: offsets", prompts[1], num_items, len(tokens))
    if not isinstance(prompts, Sequence) or isinstance(prompts, tuple | str | bytes):
        raise BatchError(
            f"prompts is {type(prompts).__name__}; (tokens, offsets) or a list with one token "
            "sequence per request is needed",
            field="prompts",
        )
    if len(prompts) != num_items:
        raise BatchError(f"prompts has {len(prompts)} items, expected {num_items}", field="prompts")
    return flatten("prompts", prompts)


@functools.lru_cache(maxsize=32)
def _full(num_items: int, value: int) -> NDArray[np.int32]:
    array = np.full(num_items, value, np.int32)
    array.setflags(write=False)
    return array


def _lengths(field: str, value: object, num_items: int) -> tuple[NDArray[np.int32], int, int]:
    """Return lengths >= 0, how many are not 0, and the largest."""
    if value is None:
        return _full(num_items, 0), 0, 0
    array = item_array(field, value, np.int32, num_items)
    nonzero = int(np.count_nonzero(array))
    if nonzero == 0:
        return array, 0, 0
    # As unsigned, a negative length is larger than any other; argmax is the cheap reduction.
    unsigned = array.view(np.uint32)
    largest = int(unsigned[unsigned.argmax()])
    if largest > np.iinfo(np.int32).max:
        item = int(np.flatnonzero(array < 0)[0])
        raise BatchError(
            f"{field}[{item}] is {int(array[item])}; it must be >= 0", field=field, item=item
        )
    return array, nonzero, largest


def _widths(
    chunks: NDArray[np.int32], num_chunks: int, drafts: NDArray[np.int32]
) -> NDArray[np.int32]:
    if num_chunks == len(chunks) and num_chunks:
        return chunks
    one_more = drafts + _ONE
    widths = one_more if num_chunks == 0 else np.where(chunks > 0, chunks, one_more)
    widths.setflags(write=False)
    return widths

"""What separates equal prompts: adapters, cache salts and media of the requests in a batch."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.errors import BatchError, SequencesOpenError

if TYPE_CHECKING:
    from tandemkv.managers.admission import Admission

Adapter = tuple[int | str, int]
Salt = bytes | str
MediaItem = tuple[int, int, bytes]

DIGEST_BYTES = 32
_INT64 = range(-(2**63), 2**63)
_LENGTHS = range(1, 2**31)


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields of some requests, one entry per request.

    Attributes:
        adapters: `(id, version)`, or None without an adapter.
        cache_salts: bytes or text, or None.
        media: `(offset, length, digest)` of each item, in the order of the prompt.
    """

    adapters: tuple[Adapter | None, ...]
    cache_salts: tuple[Salt | None, ...]
    media: tuple[tuple[MediaItem, ...], ...]

    def select(self, index: NDArray[np.intp]) -> Identity:
        """Return the fields of the requests at the positions `index`."""
        items = index.tolist()
        return Identity(
            tuple(self.adapters[item] for item in items),
            tuple(self.cache_salts[item] for item in items),
            tuple(self.media[item] for item in items),
        )

    def has_scope(self, item: int) -> bool:
        """Tell whether a request has an adapter or a salt."""
        return self.adapters[item] is not None or self.cache_salts[item] is not None


def read_identity(
    num_items: int, adapters: object, cache_salts: object, media: object
) -> Identity | None:
    """Return the checked fields of a batch; None if there are none.

    Raises:
        BatchError: names the argument, the item and what is wrong with it.
    """
    if adapters is None and cache_salts is None and media is None:
        return None
    return Identity(
        tuple(map(_adapter, range(num_items), _items("adapters", adapters, num_items))),
        tuple(map(_salt, range(num_items), _items("cache_salts", cache_salts, num_items))),
        tuple(map(_media, range(num_items), _items("media", media, num_items))),
    )


def check_media_fits(identity: Identity, item: int, prompt_len: int) -> None:
    """Refuse media that end beyond a prompt.

    Raises:
        BatchError: names the item.
    """
    for offset, length, _ in identity.media[item]:
        if offset + length > prompt_len:
            raise _wrong(
                "media", item, f"ends at {offset + length}; the prompt has {prompt_len} tokens"
            )


def _items(field: str, value: object, num_items: int) -> Sequence[Any]:
    if value is None:
        return [None] * num_items
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise BatchError(
            f"{field} is {type(value).__name__}; a sequence with one entry per request is needed",
            field=field,
        )
    if len(value) != num_items:
        raise BatchError(f"{field} has {len(value)} items, expected {num_items}", field=field)
    return value


def _wrong(field: str, item: int, problem: str) -> BatchError:
    return BatchError(f"{field}[{item}] {problem}", field=field, item=item)


def _check_text(field: str, item: int, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(field, item, f"is {text!r}, which UTF-8 cannot hold") from None


def _adapter(item: int, value: object) -> Adapter | None:
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2:
        raise _wrong("adapters", item, f"is {value!r}; None or (id, version) is needed")
    name, version = value
    if isinstance(name, str):
        _check_text("adapters", item, name)
    elif not isinstance(name, int) or name not in _INT64:
        raise _wrong("adapters", item, f"has the id {name!r}; a text or an int64 is needed")
    if not isinstance(version, int) or version not in _INT64:
        raise _wrong("adapters", item, f"has the version {version!r}; an int64 is needed")
    return name, version


def _salt(item: int, value: object) -> Salt | None:
    if isinstance(value, str):
        _check_text("cache_salts", item, value)
    elif value is not None and not isinstance(value, bytes):
        raise _wrong("cache_salts", item, f"is {value!r}; None, bytes or a text is needed")
    return value


def _media(item: int, value: object) -> tuple[MediaItem, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _wrong("media", item, f"is {value!r}; a list of (offset, length, digest) is needed")
    items: list[MediaItem] = []
    end = 0
    for given in value:
        try:
            first, count, digest = given
            offset, length = operator.index(first), operator.index(count)
        except (TypeError, ValueError):
            problem = f"holds {given!r}; (offset, length, digest) is needed"
            raise _wrong("media", item, problem) from None
        if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
            shown = f"{len(digest)} bytes" if isinstance(digest, bytes) else repr(digest)
            raise _wrong("media", item, f"has a digest of {shown}; {DIGEST_BYTES} bytes are needed")
        if length not in _LENGTHS:
            raise _wrong("media", item, f"has the length {length}; at least 1 is needed")
        if offset < end:
            problem = (
                f"has the offset {offset}; at least {end}, the end of the one before, is needed"
            )
            raise _wrong("media", item, problem)
        end = offset + length
        items.append((offset, length, digest))
    return tuple(items)


@contextmanager
def interned(ledger: Ledger, admission: Admission) -> Iterator[None]:
    """Give the fields of new requests their numbers while the ledger is asked about them.

    Scopes and media references are written into the admission. What the ledger keeps, it keeps
    without a hold of ours: the numbers stay as long as a sequence or a cached block has them.
    What is refused, or only asked about, leaves none behind.
    """
    identity = admission.identity
    if identity is None:
        yield
        return
    scopes: list[int] = []
    references: list[int] = []
    ledger.begin_trial()
    try:
        admission.scopes = admission.scopes.copy()
        for item, (adapter, salt) in enumerate(
            zip(identity.adapters, identity.cache_salts, strict=True)
        ):
            if admission.scopes[item] == 0 and identity.has_scope(item):
                scopes.append(ledger.intern_scope(adapter, salt))
                admission.scopes[item] = scopes[-1]
        if any(identity.media):
            admission.tokens = admission.tokens.copy()
        for start, items in zip(admission.offsets.tolist(), identity.media, strict=False):
            for offset, length, digest in items:
                references.append(ledger.intern_media(digest, length))
                admission.tokens[start + offset] = references[-1]
        yield
    finally:
        for scope in scopes:
            ledger.release_scope(scope)
        for reference in references:
            ledger.release_media(reference)
        ledger.end_trial()


def drop_scope(ledger: Ledger, adapter: Adapter | None, salt: Salt | None) -> None:
    """Give up every cached block of requests with exactly these fields.

    Raises:
        SequencesOpenError: such requests are open; nothing was changed.
    """
    ledger.begin_trial()
    scope = ledger.intern_scope(adapter, salt)
    try:
        ledger.drop_scope(scope)
    except SequencesOpenError:
        ledger.release_scope(scope)
        raise
    finally:
        ledger.end_trial()

"""Where a page lies in its file, and what makes it valid.

A file is slots of one size. A slot is the page, the parts of its groups one after the other, zeros,
and a trailer in its last bytes. All of it is written by one call. The trailer has a checksum of the
page and one of itself, so a slot of which only some bytes arrived is not valid: nothing has to be
written in order, and nothing before anything else. A slot that is valid holds what was stored under
its key at some time, which is the same bytes at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from struct import Struct

from tandemkv import _core

BLOCK_BYTES = 4096
"""Slots are whole blocks: what O_DIRECT asks of addresses, sizes and offsets at most."""

DIGEST_BYTES = 32

_MAGIC = b"TKVPAGE\n"
_FIELDS = Struct("<8sIQQQ32s32s16s")
TRAILER_BYTES = _FIELDS.size + DIGEST_BYTES

# The system reads and writes less than 2 GiB at a time.
MAX_SLOT_BYTES = 2**31 - 2 * BLOCK_BYTES


def slot_bytes(page_bytes: int) -> int:
    """Return the bytes of the file that a page of `page_bytes` takes."""
    return -(-(page_bytes + TRAILER_BYTES) // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True)
class StoreClass:
    """The pages of one class.

    Attributes:
        part_bytes: bytes of each of its groups in a page; none: nothing is kept.
        num_pages: pages.
    """

    part_bytes: tuple[int, ...]
    num_pages: int

    @cached_property
    def page_bytes(self) -> int:
        """Bytes of a page, all groups together."""
        return sum(self.part_bytes)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of a slot of its file."""
        return slot_bytes(self.page_bytes)

    @property
    def file_bytes(self) -> int:
        """Bytes of its file."""
        return self.num_pages * self.slot_bytes if self.part_bytes else 0


@dataclass(frozen=True, slots=True)
class Trailer:
    """What a slot says about its page.

    Attributes:
        class_index, page: where it is.
        generation: a number that grows with every page written to the store.
        page_bytes: bytes of the page.
        fingerprint: of the store.
        key: the tier key, 32 bytes.
        checksum: XXH3-128 of the page, 16 bytes.
    """

    class_index: int
    page: int
    generation: int
    page_bytes: int
    fingerprint: bytes
    key: bytes
    checksum: bytes

    def pack(self) -> bytes:
        """Return its bytes, with their own checksum at the end."""
        fields = _FIELDS.pack(
            _MAGIC,
            self.class_index,
            self.page,
            self.generation,
            self.page_bytes,
            self.fingerprint,
            self.key,
            self.checksum,
        )
        return fields + _core.checksum(fields)


def unpack(raw: bytes) -> Trailer | None:
    """Return the trailer that `raw` is; None for anything else, an unwritten one included."""
    fields, digest = raw[: _FIELDS.size], raw[_FIELDS.size :]
    if len(raw) != TRAILER_BYTES or not fields.startswith(_MAGIC):
        return None
    if _core.checksum(fields) != digest:
        return None
    return Trailer(*_FIELDS.unpack(fields)[1:])

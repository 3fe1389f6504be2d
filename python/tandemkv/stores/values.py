"""The form of a value: a header, and the bytes of one page of every group of both roles.

| bytes | field |
|---|---|
| 0-7 | `tandemkv` |
| 8-11 | version of this form, u32, little-endian like all numbers: 1 |
| 12-15 | bytes of the header, u32: 128 |
| 16-23 | bytes of the payload, u64 |
| 24-31 | zero |
| 32-63 | fingerprint of the layout |
| 64-95 | key |
| 96-127 | BLAKE3 of bytes 0-95 and the payload |
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemkv import _core
from tandemkv.errors import StoreError
from tandemkv.stores.outcomes import Outcome

Bytes = NDArray[np.uint8]

VERSION = 1
"""Version of the form of a value."""

KEY_BYTES = 32
"""Bytes of a key and of a fingerprint."""

HEADER_BYTES = 128
"""Bytes before the payload."""

_HEAD = struct.Struct("<8sIIQ8x32s32s")
_MAGIC = b"tandemkv"


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """What all values of one kind have in common.

    Attributes:
        fingerprint: 32 bytes that name what the payload holds, and in which order. Values of other
            fingerprints have other names in a store, and are never read for each other.
        payload_bytes: bytes of the payload, > 0.

    Raises:
        StoreError: a fingerprint of another length, or no payload.
    """

    fingerprint: bytes
    payload_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.fingerprint, bytes) or len(self.fingerprint) != KEY_BYTES:
            raise StoreError(f"fingerprint is {self.fingerprint!r}; {KEY_BYTES} bytes are needed")
        check_bytes("payload_bytes", self.payload_bytes)

    @property
    def value_bytes(self) -> int:
        """Bytes of a value: header and payload."""
        return HEADER_BYTES + self.payload_bytes

    def name(self, key: bytes) -> str:
        """Return what the value of `key` is called in a store, 129 characters."""
        return f"{self.fingerprint.hex()}/{key.hex()}"

    def head(self, key: bytes) -> bytes:
        """Return the header of the value of `key`, without its checksum."""
        return _HEAD.pack(_MAGIC, VERSION, HEADER_BYTES, self.payload_bytes, self.fingerprint, key)

    def seal(self, value: Bytes, key: bytes) -> None:
        """Write the header of a value whose payload is in place.

        Args:
            value: uint8 `[value_bytes]`, written to.
            key: 32 bytes.
        """
        head = self.head(key)
        digest = _core.checksum(head, value[HEADER_BYTES:])
        value[:HEADER_BYTES] = np.frombuffer(head + digest, np.uint8)

    def open(self, value: Bytes, key: bytes, out: Bytes) -> Outcome:
        """Copy the payload of a value that was read, and say whether it is what it should be.

        The copy is verified, not the original, which a transfer that was given up may still write
        to.

        Args:
            value: uint8 `[any]`: what came.
            key: 32 bytes: what was asked for.
            out: uint8 `[payload_bytes]`; holds the payload where this returns `OK`, else anything.
        """
        if value.nbytes < HEADER_BYTES:
            return Outcome.LENGTH
        header = value[:HEADER_BYTES].tobytes()
        head = self.head(key)
        if header[: len(head)] != head:
            return Outcome.FOREIGN
        if value.nbytes != self.value_bytes:
            return Outcome.LENGTH
        out[:] = value[HEADER_BYTES:]
        return Outcome.OK if _core.checksum(head, out) == header[len(head) :] else Outcome.CORRUPT


def check_bytes(name: str, value: object, *, least: int = 1) -> int:
    """Return a number of bytes.

    Raises:
        StoreError: it is no int, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise StoreError(f"{name} is {value!r}; an int >= {least} is needed")
    return value


def check_timeout(name: str, value: object) -> float:
    """Return a number of seconds.

    Raises:
        StoreError: it is no finite number from 0 on.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise StoreError(f"{name} is {value!r}; a number >= 0 is needed")
    return float(value)

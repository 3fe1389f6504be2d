"""The form of a value, built by hand from the table in `docs/stores.md`."""

from __future__ import annotations

import numpy as np
import pytest
from store_faults import LAYOUT, keys, payloads

from tandemkv import _core
from tandemkv.errors import StoreError
from tandemkv.stores import Outcome, ValueLayout

KEY = keys("a")[0].tobytes()


def by_hand(payload: bytes, *, version: int = 1, key: bytes = KEY, size: int = 1000) -> bytes:
    head = b"tandemkv" + version.to_bytes(4, "little") + (128).to_bytes(4, "little")
    head += size.to_bytes(8, "little") + bytes(8) + LAYOUT.fingerprint + key
    return head + _core.checksum(head + payload) + payload


def opened(value: bytes) -> tuple[Outcome, bytes]:
    out = np.full(1000, 0xEE, np.uint8)
    return LAYOUT.open(np.frombuffer(value, np.uint8), KEY, out), out.tobytes()


def test_a_value_is_what_the_table_says():
    payload = payloads(1)[0]
    value = np.concatenate([np.zeros(128, np.uint8), payload])
    LAYOUT.seal(value, KEY)
    assert value.tobytes() == by_hand(payload.tobytes())
    assert LAYOUT.value_bytes == 1128
    assert LAYOUT.name(KEY) == LAYOUT.fingerprint.hex() + "/" + KEY.hex()
    assert opened(by_hand(payload.tobytes())) == (Outcome.OK, payload.tobytes())


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda value: b"", Outcome.LENGTH),
        (lambda value: value[:127], Outcome.LENGTH),
        (lambda value: value[:128], Outcome.LENGTH),
        (lambda value: value[:-1], Outcome.LENGTH),
        (lambda value: value + b"\0", Outcome.LENGTH),
        (lambda value: bytes(1128), Outcome.FOREIGN),
        (lambda value: by_hand(value[128:], version=2), Outcome.FOREIGN),
        (lambda value: by_hand(value[128:], key=keys("b")[0].tobytes()), Outcome.FOREIGN),
        (lambda value: by_hand(value[128:], size=999), Outcome.FOREIGN),
        (lambda value: value[:128] + bytes(1000), Outcome.CORRUPT),
        (lambda value: value[:96] + bytes(32) + value[128:], Outcome.CORRUPT),
    ],
)
def test_what_is_not_the_value_is_told_apart(change, outcome):
    value = by_hand(payloads(1)[0].tobytes())
    assert opened(change(value))[0] == outcome


@pytest.mark.parametrize("place", [*range(0, 128, 7), 127, 128, 600, 1127])
def test_every_flipped_bit_is_seen(place: int):
    value = bytearray(by_hand(payloads(1)[0].tobytes()))
    value[place] ^= 0x10
    assert opened(bytes(value))[0] in (Outcome.FOREIGN, Outcome.CORRUPT)


@pytest.mark.parametrize(
    ("fingerprint", "size", "message"),
    [
        (b"short", 10, "32 bytes are needed"),
        ("text" * 8, 10, "32 bytes are needed"),
        (bytes(32), 0, "payload_bytes is 0; an int >= 1"),
        (bytes(32), 1.5, "payload_bytes is 1.5; an int >= 1"),
        (bytes(32), True, "payload_bytes is True; an int >= 1"),
    ],
)
def test_a_layout_that_is_none_is_refused(fingerprint, size, message):
    with pytest.raises(StoreError, match=message):
        ValueLayout(fingerprint, size)

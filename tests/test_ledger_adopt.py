"""Entries of the host tier that come from elsewhere, and the keys to ask for."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tandemkv._core import Ledger
from tandemkv.errors import LedgerError

TPB = 4


def make(host: int | None = 6, **options: Any) -> Ledger:
    values = {
        "tokens_per_block": TPB,
        "num_pages": [9],
        "max_sequences": 2,
        "max_seq_len": 32,
        "host_pages": None if host is None else [host],
        **options,
    }
    return Ledger(**values)


def keys(*numbers: int) -> np.ndarray:
    digests = b"".join(hashlib.sha256(b"%d" % number).digest() for number in numbers)
    return np.frombuffer(digests, np.uint8).reshape(-1, 32)


def adopt(ledger: Ledger, given: np.ndarray) -> list[int]:
    pages = np.full(len(given), 99, np.int32)
    count = ledger.adopt(0, given, pages)
    assert count == int((pages >= 0).sum())
    return pages.tolist()


def counted(ledger: Ledger) -> dict[str, int]:
    return {name: count for name, count in ledger.tier_stats()["counters"].items() if count}


def host_pages(ledger: Ledger) -> dict[str, int]:
    (shelf,) = ledger.tier_stats()["shelves"][:1]
    return {name: shelf[name] for name in ("total", "free", "writing", "valid", "spare", "pinned")}


def field(tag: bytes, value: bytes) -> bytes:
    return tag + len(value).to_bytes(4, "little") + value


def u32(tokens: list[int]) -> bytes:
    return np.array(tokens, "<u4").tobytes()


def test_without_a_draft_tier_keys_are_those_of_the_blocks():
    ledger = make()
    for length, blocks in ((0, 0), (4, 0), (5, 1), (8, 1), (9, 2), (20, 4)):
        tokens = np.arange(length, dtype=np.int32)
        expected = ledger.keys(tokens)[:blocks]
        assert np.array_equal(ledger.tier_keys(tokens), expected), length
        assert np.array_equal(ledger.tier_keys(tokens.astype(np.int64), 0, False), expected)


def test_with_a_draft_they_name_the_next_tokens_and_whether_draft_kv_is_there():
    ledger = make(has_draft=True, lookahead=2)
    tokens = list(range(100, 115))
    blocks = ledger.keys(np.array(tokens, np.int32))
    for draft_valid in (True, False):
        # By docs/tiers.md; block 2 ends at 12, and its two next tokens are in the prompt.
        expected = [
            hashlib.sha256(
                b"\1T"
                + field(b"k", blocks[block].tobytes())
                + field(b"d", bytes([draft_valid]))
                + field(b"t", u32(tokens[4 * block + 4 : 4 * block + 6]))
            ).digest()
            for block in range(3)
        ]
        found = ledger.tier_keys(np.array(tokens, np.int32), 0, draft_valid)
        assert [key.tobytes() for key in found] == expected
    for length, count in ((14, 3), (13, 2), (10, 2), (9, 1), (6, 1), (5, 0)):
        assert len(ledger.tier_keys(np.array(tokens[:length], np.int32))) == count


def test_an_adopted_block_is_found_and_loaded_by_an_admission():
    ledger = make()
    prompt = np.arange(14, dtype=np.int32)
    assert ledger.match_tiers(prompt) == (0, 0, 0)
    assert adopt(ledger, ledger.tier_keys(prompt)) == [0, 1, 2]
    assert ledger.match_tiers(prompt) == (0, 12, 0)
    assert ledger.match_tiers(np.arange(9, dtype=np.int32)) == (0, 8, 0)
    step = ledger.begin_step()
    handle, hit = np.zeros(1, np.int64), np.zeros(1, np.int32)
    first, most = np.array([14], np.int32), np.array([14], np.int64)
    ledger.admit(step, [prompt], np.zeros(1, np.int32), first, most, None, handle, hit)
    assert hit.tolist() == [12]
    rows, names = np.zeros((10, 6), np.int64), np.zeros((10, 32), np.uint8)
    count = ledger.transfers(rows, names)
    # From pages 0, 1, 2 of the host to the device.
    assert rows[:count, [2, 3, 4]].tolist() == [[1, 0, 0], [1, 1, 0], [1, 2, 0]]
    assert np.array_equal(names[:count], ledger.tier_keys(prompt))


def test_what_has_an_entry_is_renewed_and_not_filled_again():
    ledger = make(host=3)
    assert adopt(ledger, keys(1, 2, 3)) == [0, 1, 2]
    # 1 is worth most of them and 3 least; then 3 is renewed, and 2 is the least.
    assert adopt(ledger, keys(3)) == [-1]
    assert counted(ledger) == {"adopted": 3, "renewed": 1}
    assert adopt(ledger, keys(4)) == [1]
    assert counted(ledger) == {"adopted": 4, "renewed": 1, "lost": 1}
    assert adopt(ledger, keys(1, 3, 4)) == [-1, -1, -1]
    assert adopt(ledger, keys(2)) == [1]  # that of 4, the last of that call


def test_a_key_that_appears_twice_gets_one_page():
    ledger = make()
    assert adopt(ledger, keys(1, 1, 2)) == [0, -1, 1]


def test_the_first_keys_of_a_call_keep_their_pages():
    ledger = make(host=3)
    assert adopt(ledger, keys(1, 2, 3, 4, 5)) == [0, 1, 2, -1, -1]
    assert counted(ledger) == {"adopted": 3, "rejected": 2}
    # What the call finds stays too, so that its prompt has all that there is room for.
    assert adopt(ledger, keys(3, 6, 7, 8)) == [-1, 1, 0, -1]
    assert adopt(ledger, keys(3, 6, 7)) == [-1, -1, -1]
    assert host_pages(ledger) == {
        "total": 3, "free": 0, "writing": 0, "valid": 3, "spare": 0, "pinned": 0,
    }  # fmt: skip


def test_nothing_adopted_changes_without_room_or_keys():
    ledger = make()
    assert adopt(ledger, keys()[:0]) == []
    before = ledger.digest()
    assert ledger.tier_keys(np.arange(9, dtype=np.int32)).shape == (2, 32)
    assert ledger.digest() == before


@pytest.mark.parametrize("host", [None, 6])
def test_misuse_is_named_and_changes_nothing(host: int | None):
    ledger = make(host)
    before = ledger.digest()
    pages = np.zeros(1, np.int32)
    for class_index in (0, 1) if host is None else (1, 7):
        with pytest.raises(LedgerError, match="a class with pages on that tier"):
            ledger.adopt(class_index, keys(1), pages)
    with pytest.raises(LedgerError, match="pages has 1 items, must have 2"):
        ledger.adopt(0, keys(1, 2), pages)
    with pytest.raises(LedgerError, match="keys has 31 columns, must have 32"):
        ledger.adopt(0, np.zeros((1, 31), np.uint8), pages)
    with pytest.raises(LedgerError, match="scope"):
        ledger.tier_keys(np.arange(9, dtype=np.int32), -1)
    assert ledger.digest() == before


def test_side_pages_are_adopted_beside_blocks():
    ledger = make(
        num_pages=[9, 9],
        lifetimes=[("full_attention", 0, 0), ("sliding_window", 8, 0)],
        host_pages=[6, 2],
        max_step_tokens=8,
    )
    pages = np.zeros(3, np.int32)
    assert ledger.adopt(1, keys(1, 2, 3), pages) == 2
    assert pages.tolist() == [0, 1, -1]
    assert ledger.adopt(0, keys(1, 2, 3), pages) == 3


def test_events_tell_what_was_adopted_and_what_gave_way():
    ledger = make(host=2, events=100)
    adopt(ledger, keys(1, 2))
    adopt(ledger, keys(3))
    host = [
        (event["kind"], event.get("reason"), event["keys"])
        for event in ledger.events()
        if event["tier"] == "host"
    ]
    one, two, three = (key.tobytes() for key in keys(1, 2, 3))
    assert host == [
        ("stored", None, [one, two]),
        ("removed", "evicted", [two]),
        ("stored", None, [three]),
    ]
    assert sorted(ledger.event_snapshot()["host"]) == sorted([one, three])


def test_with_a_draft_tier_keys_are_no_keys_of_blocks_and_events_are_silent():
    ledger = make(has_draft=True, lookahead=1, events=100)
    assert adopt(ledger, keys(1)) == [0]
    assert ledger.events() == []

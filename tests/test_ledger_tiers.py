"""What goes to host and disk, and which page it gets there: docs/tiers.md, "Down"."""

from __future__ import annotations

import hashlib
import struct

import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv.errors import BufferTooSmallError, LedgerError

A, B, C, D = (tokens(4, start) for start in (0, 100, 200, 300))
"""Prompts of one full block each."""

DEVICE, HOST, DISK = 0, 1, 2


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def build(engine: str, host: int | None = None, disk: int | None = None, **options) -> Scenario:
    pages = {"host_pages": host, "disk_pages": disk}
    given = {name: (count,) for name, count in pages.items() if count is not None}
    return Scenario(engine, **{**given, **options})


def parts(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return rows without the pages of the device, which only the ledger chooses."""
    return [
        (number, source, from_page if source else None, tier, page if tier else None)
        for number, _, source, from_page, tier, page in rows
    ]


def test_an_evicted_block_is_copied_to_the_host(engine: str) -> None:
    s = build(engine, host=8)
    s.serve((*A, *B, 7))
    # The tail is a block of the tree as well: it is evicted first, and dropped.
    assert s.ledger.offload(64) == 3
    assert s.ledger.pending_transfers() == 2
    assert s.shelf("host")["writing"] == 2
    rows = s.take()
    # The block that ends the path goes first.
    assert parts(rows) == [(1, DEVICE, None, HOST, 0), (2, DEVICE, None, HOST, 1)]
    assert s.below(A + B) == (0, 0, 0), "a copy that is being written is not read"
    s.finish(rows)
    assert s.below(A + B) == (0, 8, 0)
    expected = {"total": 8, "free": 6, "writing": 0, "valid": 2, "spare": 0, "pinned": 0}
    assert s.shelf("host") == {"tier": "host", "classes": [0], **expected}


def test_only_what_was_asked_for_is_evicted(engine: str) -> None:
    s = build(engine, host=8)
    s.serve((*A, *B, *C, *D, 7))
    assert s.ledger.offload(0) == 0
    assert s.ledger.offload(3) == 3
    assert s.match((*A, *B, *C, *D, 7)) == 8
    assert s.stats()["evicted_blocks"] == 3
    assert s.ledger.offload(64) == 2
    assert s.ledger.offload(64) == 0


def test_a_ledger_without_a_host_evicts_to_disk(engine: str) -> None:
    s = build(engine, disk=4)
    s.demote(A)
    assert s.below(A) == (0, 0, 4)
    assert s.tiers("device_to_disk") == 1


def test_a_partial_block_is_not_kept(engine: str) -> None:
    s = build(engine, host=8)
    s.serve(tokens(3))
    assert s.ledger.offload(64) == 1
    assert s.take() == []
    assert s.below(tokens(3)) == (0, 0, 0)


def test_time_to_live_and_drop_scope_send_nothing_down(engine: str) -> None:
    s = build(engine, host=8, ttl_ms=1000)
    scope = s.ledger.intern_scope(("sql", 3), None)
    s.serve((*B, 7), scope=scope)
    s.ledger.drop_scope(scope)
    s.serve((*A, 7))
    s.ledger.begin_step(100.0)
    assert s.stats()["expired_blocks"] == 2
    assert s.take() == []
    assert s.shelf("host")["free"] == 8


def test_what_lies_below_stays_when_its_scope_is_dropped(engine: str) -> None:
    s = build(engine, host=8)
    scope = s.ledger.intern_scope(("sql", 3), None)
    s.serve((*A, 7), scope=scope)
    s.ledger.offload(64)
    s.copy()
    s.ledger.drop_scope(scope)
    assert s.below(A) == (0, 0, 0)
    newer = s.ledger.intern_scope(("sql", 4), None)
    assert s.below(A, scope=newer) == (0, 0, 0)
    again = s.ledger.intern_scope(("sql", 3), None)
    assert s.below(A, scope=again) == (0, 4, 0)


def test_the_least_valuable_copy_makes_room(engine: str) -> None:
    s = build(engine, host=2)
    s.demote(A, B, C)
    assert [s.below(prompt)[HOST] for prompt in (A, B, C)] == [0, 4, 4]
    assert s.tiers("lost") == 1
    s.demote(D)
    assert [s.below(prompt)[HOST] for prompt in (A, B, C, D)] == [0, 0, 4, 4]


def test_a_block_that_is_worth_less_is_rejected(engine: str) -> None:
    s = build(engine, host=2)
    for prompt, priority in ((A, 100), (B, 36)):
        handle = s.prefill((*prompt, 7))
        s.ledger.retain([(handle, 0, -1, priority, -1)])
        s.release(handle)
        s.ledger.offload(64)
        s.copy()
    s.demote(C)
    assert [s.below(prompt)[HOST] for prompt in (A, B, C)] == [4, 4, 0]
    assert (s.tiers("rejected"), s.tiers("lost")) == (1, 0)
    handle = s.prefill((*D, 7))
    s.ledger.retain([(handle, 0, -1, 37, -1)])
    s.release(handle)
    s.ledger.offload(64)
    assert parts(s.copy()) == [(3, DEVICE, None, HOST, 1)], "the page of B, whose priority is 36"


def test_what_was_loaded_is_spare_until_it_is_evicted_again(engine: str) -> None:
    s = build(engine, host=2)
    s.demote(A, B)
    s.release(s.prefill_from_below((*B, 7)))
    assert s.shelf("host")["spare"] == 1
    # Evicted again, it is worth more than ever: the page of A is the one to take.
    s.ledger.offload(64)
    assert s.copy() == []
    assert s.shelf("host")["spare"] == 0
    s.demote(C)
    assert [s.below(prompt)[HOST] for prompt in (A, B, C)] == [0, 4, 4]


def test_a_spare_copy_makes_room_before_a_less_valuable_one(engine: str) -> None:
    s = build(engine, host=2)
    s.demote(A, B)
    handle = s.prefill_from_below((*B, 7))
    s.demote(C)  # B is in use and stays on the device
    assert [s.below(prompt)[HOST] for prompt in (A, C)] == [4, 4]
    assert (s.tiers("lost"), s.tiers("rejected")) == (0, 0)
    s.release(handle)
    assert s.below(B) == (4, 0, 0)


def test_a_block_with_a_copy_below_is_not_copied_again(engine: str) -> None:
    s = build(engine, host=2)
    s.demote(A, B)
    s.release(s.prefill_from_below((*A, 7)))
    s.ledger.offload(64)
    assert s.copy() == []
    assert s.tiers("device_to_host") == 2
    assert s.tiers("renewed") == 1
    s.demote(C)
    assert [s.below(prompt)[HOST] for prompt in (A, B, C)] == [4, 0, 4], "A was renewed"


def test_a_failed_write_is_a_miss(engine: str) -> None:
    s = build(engine, host=2)
    s.serve((*A, *B, 7))
    s.ledger.offload(64)
    rows = s.take()
    s.finish(rows[1:])
    s.finish(rows[:1], ok=0)
    # The second block of the path was evicted first: its page is free again.
    assert s.below(A + B) == (0, 4, 0)
    assert (s.shelf("host")["free"], s.tiers("failed"), s.tiers("device_to_host")) == (1, 1, 1)
    s.demote(C)
    assert s.below(C) == (0, 4, 0)


def test_host_copies_go_to_disk_before_their_pages_are_needed(engine: str) -> None:
    s = build(engine, host=9, disk=8)
    prompts = [tokens(4, 100 * n) for n in range(8)]
    s.demote(*prompts[:7])
    assert s.tiers("host_to_disk") == 0, "cdiv(9, 8) = 2 pages are free"
    s.serve((*prompts[7], 7))
    s.ledger.offload(64)
    # One is free now: the least valuable copy goes to disk, as soon as there is room for its row.
    first = s.take(1)
    assert parts(first) == [(8, DEVICE, None, HOST, 7)]
    rows = s.take()
    assert parts(rows) == [(9, HOST, 0, DISK, 0)]
    assert s.take() == [], "it is on its way"
    assert (s.shelf("host")["pinned"], s.shelf("host")["spare"]) == (1, 0)
    s.finish(first + rows)
    assert (s.shelf("host")["pinned"], s.shelf("host")["spare"]) == (0, 1)
    assert s.below(prompts[0]) == (0, 4, 0), "the warmest copy is read"
    # The next two blocks get the free page and then the spare one.
    s.demote(B[::-1], C[::-1])
    assert s.below(prompts[0]) == (0, 0, 4)
    assert [s.below(prompt)[HOST] for prompt in prompts[1:]] == [4] * 7
    assert s.tiers("lost") == 0


def test_a_failed_copy_to_disk_leaves_the_host_copy(engine: str) -> None:
    s = build(engine, host=2, disk=8)
    s.demote(A)
    s.serve((*B, 7))
    s.ledger.offload(64)
    rows = s.take()
    assert parts(rows) == [(2, DEVICE, None, HOST, 1), (3, HOST, 0, DISK, 0)]
    s.finish(rows[:1])
    s.finish(rows[1:], ok=0)
    assert s.below(A) == (0, 4, 0)
    assert s.shelf("disk")["free"] == 8
    assert s.shelf("host")["spare"] == 0
    assert parts(s.take()) == [(4, HOST, 0, DISK, 0)], "tried again"


def test_flush_copies_the_most_valuable_first(engine: str) -> None:
    s = build(engine, host=16, disk=2)
    s.demote(A, B, C)
    assert s.ledger.flush() == 2
    assert parts(s.take()) == [(4, HOST, 2, DISK, 0), (5, HOST, 1, DISK, 1)]
    assert s.ledger.flush() == 0
    one_tier = build(engine, host=16)
    one_tier.demote(A)
    assert one_tier.ledger.flush() == 0


def test_classes_of_full_attention_share_a_shelf(engine: str) -> None:
    s = Scenario(engine, num_pages=(9, 17), host_pages=(3, 2))
    s.demote(A, B, C)
    assert s.shelf("host")["total"] == 2
    assert s.shelf("host")["classes"] == [0, 1]
    assert [s.below(prompt)[HOST] for prompt in (A, B, C)] == [0, 4, 4]
    s.serve((*D, 7))
    s.ledger.offload(64)
    assert s.ledger.pending_transfers() == 2
    with pytest.raises((Misuse, BufferTooSmallError)):
        s.take(1)
    rows = s.take(2)
    assert [(row[0], row[1], *row[4:]) for row in rows] == [(4, 0, HOST, 1), (4, 1, HOST, 1)]
    s.ledger.complete_transfers([(4, 1)])
    assert s.below(D) == (0, 4, 0)


def test_transfers_are_completed_once_in_any_order(engine: str) -> None:
    s = build(engine, host=4)
    s.serve((*A, *B, 7))
    s.ledger.offload(64)
    with pytest.raises((Misuse, LedgerError)):
        s.ledger.complete_transfers([(1, 1)])  # not handed out
    s.take()
    for items in ([(2, 1), (2, 1)], [(1, 1), (3, 1)], [(0, 1)]):
        with pytest.raises((Misuse, LedgerError)):
            s.ledger.complete_transfers(items)
    s.ledger.complete_transfers([(2, 1), (1, 1)])
    with pytest.raises((Misuse, LedgerError)):
        s.ledger.complete_transfers([(1, 1)])
    assert s.below(A + B) == (0, 8, 0)


def test_reset_drops_all_but_what_is_in_transfer(engine: str) -> None:
    s = build(engine, host=8)
    s.demote(A)
    s.serve((*B, 7))
    s.ledger.offload(64)
    rows = s.take()
    s.ledger.reset_reuse_state()
    assert s.below(A) == s.below(B) == (0, 0, 0)
    assert (s.shelf("host")["free"], s.shelf("host")["writing"]) == (7, 1)
    s.finish(rows)
    assert s.shelf("host")["free"] == 8
    assert s.below(B) == (0, 0, 0)


def _record(tag: bytes, value: bytes) -> bytes:
    return tag + struct.pack("<I", len(value)) + value


@pytest.mark.parametrize("lookahead", [0, 1])
def test_the_tier_key_is_the_documented_digest(engine: str, lookahead: int) -> None:
    s = build(engine, host=8, has_draft=True, lookahead=lookahead)
    s.serve((*A, *B, 7))
    s.ledger.offload(64)
    keys = [row[6] for row in s.ledger.transfers(8)]
    first, second = s.ledger.keys((*A, *B), 0)
    following = {first: [100][:lookahead], second: [7][:lookahead]}
    expected = [
        hashlib.sha256(
            b"\x01T"
            + _record(b"k", key)
            + _record(b"d", b"\x01")
            + _record(b"t", struct.pack(f"<{lookahead}I", *following[key]))
        ).digest()
        for key in (second, first)
    ]
    assert keys == expected


def test_without_a_draft_the_tier_key_is_the_key_of_the_block(engine: str) -> None:
    s = build(engine, host=8)
    s.serve((*A, *B, 7))
    s.ledger.offload(64)
    assert [row[6] for row in s.ledger.transfers(8)] == s.ledger.keys((*A, *B), 0)[::-1]

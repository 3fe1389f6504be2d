"""How what lies on host and disk comes back: docs/tiers.md, "Up"."""

from __future__ import annotations

import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import NOT_TRIED, REFUSED_LOADING, Misuse

from tandemkv.errors import LedgerError

A, B, C, D = (tokens(4, start) for start in (0, 100, 200, 300))
"""Prompts of one full block each."""

LONG = (*tokens(12), 9999)
"""Three blocks and the token that must run."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def build(engine: str, host: int | None = 8, disk: int | None = None, **options) -> Scenario:
    pages = {"host_pages": host, "disk_pages": disk}
    given = {name: (count,) for name, count in pages.items() if count is not None}
    return Scenario(engine, **{**given, **options})


def test_a_prompt_waits_for_what_it_loads(engine: str) -> None:
    s = build(engine)
    s.demote(LONG[:12])
    missed = s.stats()["missed_text_tokens"]
    step = s.begin()
    assert s.ledger.fits([s.request(LONG)]) == (1, [0], [12])
    handle, hit = s.try_admit(step, LONG)
    assert hit == 12
    assert s.is_loading(handle)
    seq = s.sequence(handle)
    assert (seq["history"], seq["committed"], seq["outstanding"]) == (0, 0, [])
    assert seq["blocks"] == 4, "there is room for what runs after the load"
    assert (s.stats()["hit_tokens"], s.stats()["missed_text_tokens"]) == (0, missed + 1)
    for call in (
        lambda: s.ledger.grow(step, [(handle, 1)]),
        lambda: s.ledger.advance(step, [(handle, (5,), 1)]),
        lambda: s.ledger.fork(step, [handle]),
        lambda: s.ledger.suspend([(handle, 1)]),
    ):
        with pytest.raises((Misuse, LedgerError)):
            call()
    rows = s.take()
    # The blocks in order, each from the page it lies on; the block that ended the path went first.
    pages = s.pages(handle)
    assert [row[2:] for row in rows] == [(1, 2 - at, 0, pages[at]) for at in range(3)]
    assert s.shelf("host")["pinned"] == 3
    # The last one completed brings it all, whatever the order.
    s.finish([rows[2]])
    s.finish([rows[0]])
    assert s.is_loading(handle)
    assert s.sequence(handle)["history"] == 0
    assert s.match(LONG) == 0
    s.finish([rows[1]])
    assert not s.is_loading(handle)
    assert s.sequence(handle)["history"] == s.sequence(handle)["committed"] == 12
    assert s.match(LONG) == 12
    assert s.pages(handle) == pages
    counters = s.stats()
    assert (counters["hit_tokens"], counters["loaded_blocks"]) == (12, 3)
    assert counters["missed_load_tokens"] == 0
    assert s.ledger.grow(step, [(handle, 1)]) == (1, [1])
    s.ledger.moves()
    s.ledger.complete_step(step)
    s.advance(step, handle, 5)
    assert s.sequence(handle)["history"] == 13


def test_a_load_goes_on_where_the_device_ends(engine: str) -> None:
    s = build(engine)
    s.serve((*LONG, 7))
    assert s.ledger.offload(3) == 3  # the tail and two blocks
    s.copy()
    assert s.below(LONG[:12]) == (4, 8, 0)
    step = s.begin()
    handle, hit = s.try_admit(step, LONG)
    assert hit == 12
    assert s.sequence(handle)["history"] == s.sequence(handle)["committed"] == 4
    assert s.stats()["hit_tokens"] == 4
    assert len(s.copy()) == 2
    assert s.stats()["hit_tokens"] == 12


def test_a_hit_inside_a_block_gives_way_to_a_longer_one(engine: str) -> None:
    s = build(engine)
    s.demote(LONG[:12])
    s.serve((0, 1, 2))  # a partial block on the device
    assert s.match(LONG) == 3
    step = s.begin()
    handle, hit = s.try_admit(step, LONG)
    assert (hit, s.ledger.moves()) == (12, [])
    assert s.sequence(handle)["history"] == 0
    s.copy()
    assert s.sequence(handle)["history"] == 12


def test_tokens_are_checked_before_they_are_looked_up(engine: str) -> None:
    s = build(engine)
    s.demote(A)
    step = s.begin()
    for wrong in (-1, -7):  # media that nobody holds
        for call in (
            lambda prompt: s.try_admit(step, prompt),
            lambda prompt: s.ledger.fits([s.request(prompt)]),
            s.below,
        ):
            with pytest.raises((Misuse, LedgerError)):
                call((*A[:2], wrong, *A[3:]))


def test_a_load_is_part_of_what_its_release_gives_back(engine: str) -> None:
    s = build(engine)
    s.demote(A + B)
    step = s.begin()
    handle, _ = s.try_admit(step, (*A, *B, 7))
    assert s.ledger.reclaimable([handle]) == [[3]]
    assert s.ledger.victims([handle], [3]) == (1, [1])


def test_whole_blocks_are_told_where_only_they_are_used(engine: str) -> None:
    s = build(engine, partial_reuse=False)
    s.serve((*A, *B, 7))
    assert s.ledger.match_tiers(A + B, 0, -1) == (4, 0, 0)
    assert s.ledger.match_tiers((*A, *B, 5), 0, -1) == (8, 0, 0)


def test_one_token_must_run(engine: str) -> None:
    s = build(engine)
    s.demote(A + B)
    step = s.begin()
    assert s.try_admit(step, A + B)[1] == 4


def test_what_is_on_its_way_is_not_loaded_twice(engine: str) -> None:
    s = build(engine)
    s.demote(LONG[:12])
    step = s.begin()
    items = [s.request(LONG), s.request((*LONG[:8], 5)), s.request((9, 9, 9))]
    count, handles, hits = s.ledger.admit(step, items)
    assert (count, handles[1], hits) == (2, REFUSED_LOADING, [12, 0, 0])
    assert s.ledger.fits([s.request(LONG)]) == (0, [REFUSED_LOADING], [0])
    counters = s.stats()
    assert (counters["refused_loading"], counters["refused_now"]) == (1, 0)
    assert s.ledger.admit(step, [s.request(LONG), s.request(A)], True)[1] == [
        REFUSED_LOADING,
        NOT_TRIED,
    ]
    s.copy()
    handle, hit = s.try_admit(step, LONG)
    assert (hit, s.ledger.pending_transfers()) == (12, 0), "both share the blocks"
    assert s.pages(handle)[:3] == s.pages(handles[0])[:3]


def test_a_failed_load_only_shortens_the_history(engine: str) -> None:
    s = build(engine)
    s.demote(LONG[:12])
    step = s.begin()
    handle, _ = s.try_admit(step, LONG)
    rows = s.take()
    s.finish([rows[2], rows[0]])
    s.finish([rows[1]], ok=0)
    assert s.sequence(handle)["history"] == s.sequence(handle)["committed"] == 4
    counters = s.stats()
    assert (counters["hit_tokens"], counters["missed_load_tokens"]) == (4, 8)
    assert (counters["loaded_blocks"], s.tiers("failed")) == (1, 1)
    # The block that could not be read is forgotten; the one after it is still there.
    assert s.shelf("host")["valid"] == 2
    s.complete(step)
    s.decode(handle, 5, width=9)
    assert s.sequence(handle)["history"] == 13
    assert s.match(LONG) == 12


def test_a_failed_load_drops_both_copies(engine: str) -> None:
    s = build(engine, host=8, disk=8)
    s.demote(A)
    assert s.ledger.flush() == 1
    s.copy()
    assert s.below(A) == (0, 4, 0)
    step = s.begin()
    s.try_admit(step, (*A, 7))
    s.finish(s.take(), ok=0)
    assert s.below(A) == (0, 0, 0)
    assert (s.shelf("host")["free"], s.shelf("disk")["free"]) == (8, 8)


def test_a_sequence_may_be_released_while_it_loads(engine: str) -> None:
    s = build(engine, num_pages=(6,))
    s.demote(LONG[:12])
    step = s.begin()
    handle, _ = s.try_admit(step, LONG)
    rows = s.take()
    s.finish(rows[:1])
    s.complete(step)
    s.release(handle)
    # Three of its four pages wait for the last transfer, also the one that arrived.
    assert (s.count("live"), s.count("free")) == (3, 2)
    with pytest.raises((Misuse, LedgerError)):
        s.ledger.loading([handle])
    step = s.begin()
    assert s.try_admit(step, LONG) == (REFUSED_LOADING, 0)
    s.complete(step)
    s.finish(rows[1:])
    assert (s.count("live"), s.count("free")) == (0, 5)
    counters = s.stats()
    assert (counters["missed_load_tokens"], counters["loaded_blocks"]) == (12, 0)
    assert s.match(LONG) == 0
    step = s.begin()
    assert s.try_admit(step, LONG)[1] == 12


def test_a_pool_of_pages_in_transfer_refuses_and_does_not_wait(engine: str) -> None:
    """No transfer is ever completed; requests are computed all the same."""
    s = build(engine, host=1, disk=1, num_pages=(5,))
    prompts = [(*tokens(8, 100 * n), 7) for n in range(12)]
    for prompt in prompts * 2:
        s.serve(prompt)
        s.take()
    assert s.stats()["admitted"] == 24
    assert s.stats()["hit_tokens"] == 0
    assert s.shelf("host")["writing"] == 1
    assert s.tiers("rejected") > 0


def test_a_suspended_sequence_is_swapped_out_and_in(engine: str) -> None:
    s = build(engine)
    handle = s.prefill(LONG, 5)
    s.ledger.suspend([(handle, 1)])
    assert s.ledger.loading([handle]) == (0, [2])
    assert s.ledger.offload(64) == 4
    s.copy()
    assert s.count("free") == 32
    step = s.begin()
    assert s.ledger.resume(step, [(handle, 2)]) == (1, [1], [12])
    assert s.ledger.loading([handle]) == (1, [1])
    s.copy()
    assert s.sequence(handle)["history"] == 12
    counters = s.stats()
    assert (counters["resumed_hit_tokens"], counters["loaded_blocks"]) == (12, 3)
    assert counters["hit_tokens"] == 0
    s.complete(step)
    s.decode(handle, 6, width=2)


def test_a_resume_waits_for_what_another_loads(engine: str) -> None:
    s = build(engine)
    handle = s.prefill(LONG, 5)
    s.ledger.suspend([(handle, 1)])
    s.ledger.offload(64)
    s.copy()
    step = s.begin()
    s.try_admit(step, LONG)
    assert s.ledger.resume(step, [(handle, 2)]) == (0, [0], [0])
    counters = s.stats()
    assert (counters["refused_loading"], counters["refused_resumes"]) == (1, 0)


def full_device(engine: str) -> Scenario:
    """Return a ledger with A and B on a full host, and C and D on a full device."""
    s = build(engine, host=2, num_pages=(5,), partial_reuse=False)
    s.demote(A, B)
    s.serve((*C, *D, *D, 7))
    assert (s.count("cached"), s.count("free")) == (3, 1)
    return s


def test_a_call_claims_all_it_will_load_before_it_evicts(engine: str) -> None:
    """The blocks that make room for the first load would push out what the second one loads."""
    s = full_device(engine)
    evicted = s.stats()["evicted_blocks"]
    step = s.begin()
    items = [s.request((*A, 7), max_total=5), s.request((*B, 7), max_total=5)]
    count, _, hits = s.ledger.admit(step, items)
    assert (count, hits) == (2, [4, 4])
    assert s.tiers("lost") == 0
    assert s.tiers("rejected") == s.stats()["evicted_blocks"] - evicted == 3
    assert [row[2] for row in s.copy()] == [1, 1]


def test_one_after_the_other_the_second_finds_its_copy_gone(engine: str) -> None:
    s = full_device(engine)
    step = s.begin()
    assert s.try_admit(step, (*A, 7), max_total=5)[1] == 4
    assert s.try_admit(step, (*B, 7), max_total=5)[1] == 0
    assert s.tiers("lost") == 1


def test_evictions_come_before_the_load_that_they_make_room_for(engine: str) -> None:
    s = build(engine, host=8, num_pages=(3,), partial_reuse=False)
    s.demote(A)
    s.serve((*B, 7))
    step = s.begin()
    handle, _ = s.try_admit(step, (*A, 7), max_total=5)
    first, second = s.take()
    assert (first[2], second[2]) == (0, 1)
    assert second[5] == s.pages(handle)[0]
    if engine == "core":
        assert first[3] == second[5], "the page that B left"


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_restart_finds_what_was_kept(engine: str, tier: str) -> None:
    pages = {tier: 8, "host" if tier == "disk" else "disk": None}
    s = build(engine, **pages, fingerprint=b"weights", lookahead=1, has_draft=True)
    s.serve((*LONG[:12], 7))
    s.ledger.offload(64)
    rows = s.ledger.transfers(64)
    kept = [(key, page) for *_, page, key in rows]
    again = build(engine, **pages, fingerprint=b"weights", lookahead=1, has_draft=True)
    assert again.ledger.restore(tier, 0, *map(list, zip(*kept, strict=True))) == len(kept)
    assert again.shelf(tier)["valid"] == len(kept)
    assert again.tiers("restored") == len(kept)
    others = build(engine, **pages, fingerprint=b"other weights", lookahead=1, has_draft=True)
    others.ledger.restore(tier, 0, *map(list, zip(*kept, strict=True)))
    assert sum(others.below((*LONG[:12], 7))) == 0
    step = again.begin()
    handle, hit = again.try_admit(step, (*LONG[:12], 7, 7))
    assert hit == 12
    rows = again.take()
    assert [(row[2], row[3]) for row in rows] == [
        ({"host": 1, "disk": 2}[tier], p) for p in (2, 1, 0)
    ]
    again.finish(rows)
    assert again.sequence(handle)["history"] == 12


def test_restored_pages_and_keys_are_checked(engine: str) -> None:
    s = build(engine, host=8, disk=4)
    s.demote(A)
    [key] = s.ledger.keys(A, 0)
    other = bytes(32)
    for tier, cls, keys, pages in (
        ("device", 0, [other], [3]),
        ("host", 1, [other], [3]),
        ("host", 0, [other], [0]),  # in use
        ("host", 0, [other], [8]),
        ("disk", 0, [other], [-1]),
        ("disk", 0, [key], [3]),  # known
        ("disk", 0, [other, other], [2, 3]),
        ("disk", 0, [other], [2, 3]),
        ("disk", 0, [other, key], [3, 3]),
    ):
        with pytest.raises((Misuse, LedgerError)):
            s.ledger.restore(tier, cls, keys, pages)
    assert s.ledger.restore("host", 0, [other], [3]) == 1
    assert s.shelf("host")["valid"] == 2
    assert s.tiers("restored") == 1


def test_the_first_restored_goes_first(engine: str) -> None:
    s = build(engine, host=2)
    s.ledger.restore("host", 0, [bytes([1]) * 32, *s.ledger.keys(B, 0)], [1, 0])
    s.demote(A)
    assert s.below(B) == (0, 4, 0)
    s.demote(C)
    assert [s.below(prompt)[1] for prompt in (A, B, C)] == [4, 0, 4]


def test_draft_kv_below_belongs_to_the_tokens_after_it(engine: str) -> None:
    s = build(engine, has_draft=True, lookahead=1)
    s.serve((*A, 50, 51))
    s.ledger.offload(64)
    s.copy()
    # The block is that of A before the token 50, with draft KV.
    for follow, found in ((50, 4), (51, 0)):
        prompt = (*A, follow, 52)
        assert s.ledger.match_tiers(prompt, 0, 0) == (0, found, 0)
    assert s.ledger.match_tiers((*A, 50), 0, 0) == (0, 4, 0)
    assert s.ledger.match_tiers(A, 0, 0) == (0, 0, 0), "its next token is not known"


def test_a_draft_needs_entries_with_its_kv(engine: str) -> None:
    s = build(engine, has_draft=True)
    s.serve((*A, *B, 7), draft_from=-1)  # target only
    s.ledger.offload(64)
    s.copy()
    prompt = (*A, *B, 7)
    assert s.ledger.match_tiers(prompt, 0, -1) == (0, 8, 0)
    assert s.ledger.match_tiers(prompt, 0, 0) == (0, 0, 0)
    assert s.ledger.match_tiers(prompt, 0, 4) == (0, 4, 0), "the draft begins after A"
    assert s.ledger.match_tiers(prompt, 0, 7) == (0, 4, 0), "and needs part of B"
    s.serve((*A, *B, 7))
    s.ledger.offload(64)
    s.copy()
    assert s.shelf("host")["valid"] == 4
    assert s.ledger.match_tiers(prompt, 0, 0) == (0, 8, 0)
    # Without a draft either will do, and the entry with draft KV is the one that is taken.
    step = s.begin()
    s.try_admit(step, prompt, draft_from=-1)
    assert [row[3] for row in s.take()] == [3, 2]

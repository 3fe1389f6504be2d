"""The reference cases of tests/data/cases/runtime.json about windows, states and their sizes."""

from __future__ import annotations

import pytest
from reference.scenario import ENGINES, Scenario, tokens
from test_ledger_cases import covers

FULL = ("full_attention", 0, 0)
STATE = ("recurrent_state", 0, 0)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def windowed(engine: str, window: int, sinks: int = 0, **options: object) -> Scenario:
    plain = {
        "num_pages": (33, 33),
        "lifetimes": (FULL, ("sliding_window", window, sinks)),
        "tokens_per_block": 32,
    }
    return Scenario(engine, **{**plain, **options})


def stateful(engine: str, **options: object) -> Scenario:
    plain = {"num_pages": (33, 9), "lifetimes": (FULL, STATE), "tokens_per_block": 32}
    return Scenario(engine, **{**plain, **options})


@covers("runtime-013")
def test_one_sequence_token_by_token(engine: str) -> None:
    """28 pages of 18 layers x 2 x 32 KiB: 22 of the full class and 6 of the window, one the sink.

    There both classes draw from one pool; here each has its own, so the split is given.
    """
    assert 32 * 2**20 // (18 * 2 * 32 * 2**10) == 22 + 6
    options = {"sinks": 1, "max_seq_len": 800, "max_step_tokens": 1}
    s = windowed(engine, 128, num_pages=(23, 7), **options)
    handle = s.prefill(tokens(1), 0, scope=-1, max_total=705)
    room = 1
    while s.grow(step := s.begin(), handle, 1):
        s.complete(step)
        s.advance(step, handle, 0)
        room += 1
    assert room == 704
    s = windowed(engine, 128, num_pages=(23, 6), **options)
    assert s.try_admit(s.begin(), tokens(1), scope=-1, max_total=705)[0] == -2


@covers("runtime-020")
def test_a_state_page_per_sequence(engine: str) -> None:
    """(64 tokens, 63 settled) and the smallest sequence: 2 states; 2 + 1 blocks of attention.

    The case's second sequence is empty and takes no block; here it has at least one token.
    """
    s = stateful(engine)
    handle = s.prefill(tokens(63), 99)
    assert s.grow(s.begin(), handle, 1)
    assert s.sequence(handle)["capacity"] == 64
    assert (s.count("live", 0) + s.count("cached", 0), s.count("live", 1)) == (2, 1)
    s.admit(s.begin(), tokens(1, 500))
    assert (s.count("live", 0) + s.count("cached", 0), s.count("live", 1)) == (3, 2)


@covers("runtime-028")
def test_only_what_continues_at_the_end_is_kept(engine: str) -> None:
    s = windowed(engine, 64, num_pages=(33, 5))
    handle = s.prefill(tokens(128))
    assert s.held(handle, 1) == [2, 3]
    s.release(handle)
    s.prefill(tokens(64, 500), scope=-1)  # the other two pages go to another sequence
    assert s.count("cached", 1) == 2
    assert s.match(tokens(128)) == 128
    assert s.match(tokens(96)) == 0  # block 1 would be needed


@covers("runtime-029")
def test_a_window_is_taken_in_part(engine: str) -> None:
    s = windowed(engine, 8, tokens_per_block=4)
    s.serve(tokens(16))
    step = s.begin()
    handle, hit = s.try_admit(step, tokens(16))
    assert hit == 15
    assert s.held(handle, 1) == [2, 3]
    # Block 2 is shared, block 3 copied; blocks 0 and 1 are nobody's.
    assert s.counts(1) == {**s.counts(1), "cached": 4, "live": 1, "evictable": 2}
    moves = s.ledger.moves()
    assert [(cls, count) for cls, _, _, count in moves] == [(0, 3), (1, 3)]
    assert moves[1][2] == s.pages(handle, 1)[3]


@covers("runtime-030")
def test_a_window_of_one_token_needs_nothing_before_it(engine: str) -> None:
    s = windowed(engine, 1, num_pages=(33, 5))
    s.serve(tokens(96))
    s.prefill(tokens(128, 500), scope=-1)
    assert s.count("cached", 1) == 0
    assert s.match(tokens(96)) == 96
    assert s.match(tokens(95)) == 64  # block 2 would hold position 95


@covers("runtime-039")
def test_a_page_waits_for_its_former_user(engine: str) -> None:
    """Without scratch pages it is a page behind the window that changes hands."""
    s = windowed(engine, 4, tokens_per_block=4, num_pages=(33, 3))
    handle = s.prefill(tokens(4), 99, scope=-1)
    running = s.begin()
    assert s.grow(running, handle, 4)
    step = s.begin()
    assert not s.grow(step, handle, 1)
    s.advance(running, handle, 1, 2, 3, 4)
    assert s.counts(1)["fenced"] == 1
    assert s.try_admit(s.begin(), tokens(4, 500), scope=-1, max_total=4)[0] == -1
    s.complete(running)
    s.complete(step)
    s.complete(step + 1)
    assert s.try_admit(s.begin(), tokens(4, 500), scope=-1, max_total=4)[0] > 0


@covers("runtime-040")
def test_no_snapshot_no_reuse(engine: str) -> None:
    s = stateful(engine)
    handle = s.prefill(tokens(64), 99)
    [page] = s.pages(handle, 1)
    assert s.sequence(handle)["committed"] == 64
    assert s.match(tokens(64)) == 0
    s.decode(handle, 1)
    assert s.pages(handle, 1) == [page]
    # Without a colder tier a suspended sequence keeps no page; it leaves its state as a snapshot.
    s.ledger.suspend([(handle, 1)])
    assert s.counts(1)["live"] == 0
    assert s.ledger.resume(s.begin(), [(handle, 8)])[2] == [65]


@covers("runtime-041")
def test_the_longest_snapshot_inside_the_match(engine: str) -> None:
    s = stateful(engine, snapshot_interval=32)
    handle = s.prefill_in_chunks(tokens(96), 32)
    assert s.stats()["snapshots"] == 2
    assert [s.match(tokens(n)) for n in (32, 48, 96)] == [32, 32, 64]
    # Attention alone would give 48, and the explanation says so.
    explained = s.ledger.explain_match(tokens(48), 0, -1)
    assert (explained["matched"], explained["usable"]) == (48, 32)
    assert explained["missed"] == [{"position": 32, "tokens": 16, "reason": "state"}]
    s.release(handle, publish=0)


@covers("runtime-042")
def test_the_end_moves_into_the_tree(engine: str) -> None:
    s = stateful(engine)
    handle = s.prefill(tokens(48))
    pages = [s.pages(handle, 0)[1], *s.pages(handle, 1)]
    s.release(handle)
    assert s.ledger.moves() == []
    assert [s.count("cached", cls) for cls in (0, 1)] == [2, 1]
    assert [s.match(tokens(n)) for n in (47, 48, 49)] == [0, 48, 48]
    s.admit(s.begin(), tokens(49))
    assert [(source, count) for _, source, _, count in s.ledger.moves()] == [
        (pages[0], 16),
        (pages[1], 1),
    ]


@covers("runtime-044")
def test_states_need_no_mode(engine: str) -> None:
    """Upstream refuses states without a snapshot mode; here they are reusable at release."""
    s = stateful(engine, snapshot_interval=0)
    s.serve(tokens(40))
    assert s.match(tokens(40)) == 40


@covers("runtime-045")
@pytest.mark.parametrize("pure", [False, True])
def test_a_lost_snapshot_harms_no_sequence(engine: str, pure: bool) -> None:
    """The churn is that of test_ledger_states.py; the blocks stay, whatever snapshots do."""
    lone = {"num_pages": (4,), "lifetimes": (STATE,), "num_blocks": 64}
    s = stateful(engine, snapshot_interval=32, **(lone if pure else {"num_pages": (65, 4)}))
    handle = s.prefill_in_chunks(tokens(64), 32, 99)
    cached = s.stats()["cached_blocks"]
    for i in range(5):
        s.release(s.prefill(tokens(32, 1000 * (i + 1)), scope=-1))
    thieves = [s.prefill(tokens(8, 9000 + 100 * i), scope=-1) for i in range(2)]
    assert s.stats()["evicted_side_pages"] == 1
    assert s.stats()["cached_blocks"] == cached == 2
    explained = s.ledger.explain_match(tokens(64), 0, -1)
    assert (explained["matched"], explained["usable"]) == (64, 0)
    s.release(thieves[0])
    for token in range(32):
        s.decode(handle, token)
    assert s.sequence(handle)["committed"] == 96


@covers("runtime-046")
def test_a_tip_lives_as_long_as_a_group_has_a_page(engine: str) -> None:
    """A block goes with its page of the full class, and takes what it has in others along."""
    s = windowed(engine, 64, num_pages=(9, 5), max_step_tokens=32)
    s.serve(tokens(64))
    thief = s.prefill(tokens(128, 500), scope=-1, max_total=128)
    assert (s.count("cached", 0), s.count("cached", 1)) == (2, 0)
    s.release(thief)
    s.serve(tokens(64, 700))
    assert (s.count("cached", 0), s.count("cached", 1)) == (4, 2)
    s.prefill_in_chunks(tokens(256, 900), 32, scope=-1, max_total=256)
    assert (s.count("cached", 0), s.count("cached", 1)) == (0, 0)
    assert s.stats()["evicted_blocks"] == 4

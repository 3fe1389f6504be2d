"""Recurrent states and cross-attention: one page per sequence, snapshots, and what reuse needs.

The numbers are those of published reports, named per test.
"""

from __future__ import annotations

import pytest
from reference.scenario import ENGINES, Scenario, tokens

FULL = ("full_attention", 0, 0)
STATE = ("recurrent_state", 0, 0)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def hybrid(engine: str, *, full: int = 64, states: int = 16, **options: object) -> Scenario:
    """Build a ledger of a full and a state class with so many usable pages."""
    return Scenario(
        engine,
        **{"num_pages": (full + 1, states + 1), "lifetimes": (FULL, STATE), **options},
    )


def pure(engine: str, *, states: int, **options: object) -> Scenario:
    """Build a ledger that has nothing but states."""
    plain = {"num_pages": (states + 1,), "lifetimes": (STATE,), "num_blocks": 64}
    return Scenario(engine, **{**plain, **options})


# One page per sequence


def test_a_sequence_has_one_state_page_for_life(engine: str) -> None:
    s = hybrid(engine)
    handle = s.prefill(tokens(10), 99)
    [page] = s.pages(handle, 1)
    for token in range(8):
        s.decode(handle, token)
        assert s.pages(handle, 1) == [page]
    assert s.count("live", 1) == 1
    assert s.ledger.moves() == []


def test_more_sequences_than_states_wait(engine: str) -> None:
    s = hybrid(engine, states=2)
    handles = [s.prefill(tokens(4, 10 * i)) for i in range(2)]
    assert s.try_admit(s.begin(), tokens(4, 50))[0] == -1
    s.release(handles[0], publish=0)
    s.complete(3)
    assert s.try_admit(s.begin(), tokens(4, 50))[0] > 0


def test_a_state_model_needs_no_page_per_token(engine: str) -> None:
    """A long sequence in a pure state model: one page, whatever its length."""
    s = pure(engine, states=2, max_seq_len=4096)
    handle = s.prefill(tokens(1000), 5, scope=-1, max_total=2000)
    assert s.counts()["live"] == 1
    assert s.sequence(handle)["blocks"] == 250


def test_a_failed_step_loses_no_state(engine: str) -> None:
    """sglang#16067: one slot of 454 was lost per failed schedule."""
    s = hybrid(engine, full=4, states=4)
    before = s.counts(1)
    for _ in range(20):
        assert s.try_admit(s.begin(), tokens(40), max_total=41)[0] == -2
        assert s.counts(1) == before
    first = s.prefill(tokens(8))
    before = s.counts(1)
    for _ in range(20):
        assert s.try_admit(s.begin(), tokens(12, 50), max_total=12)[0] == -1
        assert s.counts(1) == before
    s.release(first)


# Where reuse can start


def test_reuse_starts_at_a_snapshot_only(engine: str) -> None:
    s = hybrid(engine, snapshot_interval=8, max_seq_len=64)
    s.release(s.prefill_in_chunks(tokens(26), 8))
    assert s.stats()["snapshots"] == 4  # at 8, 16, 24 and, at the end, 26
    assert {n: s.match(tokens(n)) for n in (7, 8, 15, 17, 25, 26)} == {
        7: 0,
        8: 8,
        15: 8,
        17: 16,
        25: 24,
        26: 26,
    }
    assert s.match((*tokens(23), 99)) == 16


@pytest.mark.parametrize(("length", "hit"), [(31, 16), (32, 16), (33, 32), (48, 32)])
def test_exact_multiples_hit(engine: str, length: int, hit: int) -> None:
    """vllm#50409: prompts of whole pages never hit: the state was saved at n, looked up below."""
    s = hybrid(engine, tokens_per_block=16, snapshot_interval=16)
    s.release(s.prefill_in_chunks(tokens(length), 16))
    assert s.try_admit(s.begin(), tokens(length))[1] == hit


def test_a_snapshot_is_copied_and_stays(engine: str) -> None:
    s = hybrid(engine)
    s.serve(tokens(10))
    assert s.ledger.moves() == []  # the state itself became the snapshot
    for turn in range(2):
        step = s.begin()
        handle, hit = s.try_admit(step, (*tokens(10), 50 + turn))
        assert hit == 10
        moves = s.ledger.moves()
        assert [(cls, count) for cls, _, _, count in moves] == [(0, 2), (1, 1)]
        assert [destination for _, _, destination, _ in moves] == [
            s.pages(handle, 0)[2],
            s.pages(handle, 1)[0],
        ]
        assert s.counts(1)["evictable"] == 0  # the copy reads it until the step completes
        s.complete(step)
        assert s.counts(1)["evictable"] == 1
        s.release(handle, publish=0)
    assert s.match(tokens(10)) == 10


def test_a_whole_block_is_shared_and_its_state_copied(engine: str) -> None:
    s = hybrid(engine)
    s.serve(tokens(8))
    step = s.begin()
    handle, hit = s.try_admit(step, tokens(9))
    assert hit == 8
    [(cls, _, destination, count)] = s.ledger.moves()
    assert (cls, destination, count) == (1, s.pages(handle, 1)[0], 1)
    assert s.stats()["copied_blocks"] == 0


def test_a_snapshot_in_the_making_is_not_read(engine: str) -> None:
    """All that `moves` hands out may run at once, so no copy reads what another one writes."""
    s = hybrid(engine, snapshot_interval=8)
    writer = s.prefill(tokens(8), 99)
    step = s.begin()
    assert s.grow(step, writer, 1)
    assert s.stats()["snapshots"] == 1
    assert s.match(tokens(8)) == 0
    [(cls, source, destination, count)] = s.ledger.moves()
    assert (cls, source, count) == (1, s.pages(writer, 1)[0], 1)
    assert s.match(tokens(8)) == 8
    reader, hit = s.try_admit(step, tokens(9))
    assert hit == 8
    assert s.ledger.moves() == [(1, destination, s.pages(reader, 1)[0], 1)]


def test_snapshots_are_taken_when_nothing_is_in_flight(engine: str) -> None:
    s = hybrid(engine, snapshot_interval=4)
    handle = s.prefill(tokens(8), first=4)
    first, second = s.begin(), s.begin()
    assert s.grow(first, handle, 4)
    assert s.stats()["snapshots"] == 1
    # The state after `first` exists only once it has run.
    assert s.grow(second, handle, 1)
    assert s.stats()["snapshots"] == 1
    s.complete(first)
    s.advance(first, handle)
    s.complete(second)
    s.advance(second, handle, valid=[8, 0])
    assert s.grow(s.begin(), handle, 1)
    assert s.stats()["snapshots"] == 2


def test_a_draft_that_lags_leaves_no_snapshot(engine: str) -> None:
    """The pair moves together: a state is kept where target and draft end at one length."""
    s = hybrid(engine, has_draft=True, lookahead=1)
    handle = s.prefill(tokens(9), 99)
    s.decode(handle, 7)
    step = s.begin()
    assert s.grow(step, handle, 1)
    s.complete(step)
    s.advance(step, handle, 8, valid=[11, 10])
    s.release(handle)
    assert s.stats()["snapshots"] == 0
    # One that ends with both leaves its state, also where the tail is cached already.
    s.release(s.prefill(tokens(9), 99))
    assert s.stats()["snapshots"] == 1
    assert s.match((*tokens(9), 99)) == 9


def test_a_state_without_its_tokens_is_nothing(engine: str) -> None:
    """Nothing is published of a private sequence, nor of one that is given up."""
    s = hybrid(engine)
    s.release(s.prefill(tokens(8), scope=-1))
    s.release(s.prefill(tokens(8, 20)), publish=0)
    step = s.begin()
    s.release(s.admit(step, tokens(8, 40)))  # dropped before it ran
    s.complete(step)
    assert s.stats()["snapshots"] == 0
    assert s.count("free", 1) == 16


# What goes first


def test_snapshots_of_a_long_prompt_spare_the_ends_of_others(engine: str) -> None:
    """Those taken on the way go before those at which a sequence ended."""
    s = hybrid(engine, full=200, states=4, snapshot_interval=4)
    s.serve(tokens(10))
    s.release(s.prefill_in_chunks(tokens(80, 1000), 4))
    assert s.stats()["evicted_side_pages"] > 0
    assert s.match(tokens(10)) == 10
    assert s.match(tokens(80, 1000)) == 80


def test_the_state_of_a_shared_beginning_stays(engine: str) -> None:
    """The second prompt shows that the beginning is shared; from the third on it is found."""
    s = hybrid(engine, full=200, states=6, snapshot_interval=16)
    hits = []
    for i in range(8):
        prompt = (*tokens(32), *tokens(32, 1000 * (i + 1)))
        before = s.stats()["hit_tokens"]
        s.release(s.prefill_in_chunks(prompt, 16))
        hits.append(s.stats()["hit_tokens"] - before)
    assert hits[2:] == [32] * 6


def test_snapshots_go_before_blocks(engine: str) -> None:
    s = hybrid(engine, states=2)
    s.serve(tokens(8))
    holders = [s.prefill(tokens(4, 100 * i), scope=-1) for i in (1, 2)]
    assert (s.stats()["evicted_side_pages"], s.stats()["evicted_blocks"]) == (1, 0)
    assert s.match(tokens(8)) == 0
    assert s.count("cached", 0) == 2
    # The next sequence with this text leaves a state again, and no second set of blocks.
    s.release(holders[0])
    s.serve(tokens(8))
    assert s.match(tokens(8)) == 8
    assert s.count("cached", 0) == 2


@pytest.mark.parametrize("build", [hybrid, pure])
def test_churn_takes_no_block_from_a_sequence_that_rests(engine: str, build) -> None:
    """TensorRT-LLM bug 6625710: about 1.7 % of runs died on a snapshot that nobody held.

    Its eviction detached a block that a resting sequence stood on. Page 32, 2 prompt pages, 100
    requests of 4 pages, then one more page is committed.
    """
    s = build(engine, states=4, tokens_per_block=32, snapshot_interval=32, max_seq_len=512)
    rest = s.prefill_in_chunks(tokens(64), 32, 999)
    for i in range(100):
        s.serve(tokens(128, 1000 * (i + 1)))
    assert s.stats()["evicted_side_pages"] > 0
    assert s.sequence(rest)["committed"] == 64
    for token in range(32):
        s.decode(rest, token)
    assert s.sequence(rest)["committed"] == 96
    s.release(rest)
    assert s.match((*tokens(64), 999, *range(31))) == 96
    # Its blocks were all kept; of its snapshots the one at 32 is gone, that at 64 is new.
    assert [s.match(tokens(n)) for n in (64, 63)] == [64, 0]


@pytest.mark.parametrize("build", [hybrid, pure])
def test_churn_harms_no_sequence_that_is_suspended(engine: str, build) -> None:
    """The same bug with a suspended sequence: it resumes, from less, and commits one more page."""
    s = build(engine, states=4, tokens_per_block=32, snapshot_interval=32, max_seq_len=512)
    rest = s.prefill_in_chunks(tokens(64), 32, 999)
    s.ledger.suspend([(rest, 1)])
    assert s.match((*tokens(64), 999)) == 64
    for i in range(100):
        s.serve(tokens(128, 1000 * (i + 1)))
    step = s.begin()
    assert s.ledger.resume(step, [(rest, 65)])[1] == [1]
    s.complete(step)
    s.advance(step, rest)
    for token in range(32):
        s.decode(rest, token)
    assert s.sequence(rest)["committed"] == 96
    s.release(rest)
    assert s.match((*tokens(64), 999, *range(31))) == 96


def test_records_bound_the_tree_of_a_state_model(engine: str) -> None:
    s = pure(engine, states=8, num_blocks=10)
    for i in range(5):
        s.serve(tokens(16, 100 * i))
        assert s.stats()["cached_blocks"] <= 10
    assert s.stats()["evicted_blocks"] == 10
    assert [s.match(tokens(16, 100 * i)) for i in range(5)] == [0, 0, 0, 16, 16]
    assert s.try_admit(s.begin(), tokens(44))[0] == -2
    assert s.try_admit(s.begin(), tokens(44), scope=-1)[0] > 0  # publishes nothing, needs none


def test_a_snapshot_comes_back_while_its_tail_is_cached(engine: str) -> None:
    s = hybrid(engine, states=2)
    s.serve(tokens(6))
    holders = [s.prefill(tokens(4, 100 * i), scope=-1) for i in (1, 2)]
    assert s.match(tokens(6)) == 0
    s.release(holders[0])
    s.serve(tokens(6))
    assert (s.count("cached", 0), s.match(tokens(6))) == (2, 6)


def test_a_longer_tail_inherits_the_snapshot(engine: str) -> None:
    """A tail that is dropped for a longer one hands its snapshot on, so its end stays reusable."""
    s = hybrid(engine)
    s.serve(tokens(6))
    handle = s.prefill(tokens(7))
    assert s.grow(s.begin(), handle, 1)
    s.release(handle)  # in the middle of a step: its state is worth nothing, its tail is
    assert s.count("cached", 0) == 2
    assert [s.match(tokens(n)) for n in (6, 7)] == [6, 6]


def test_a_longer_tail_replaces_the_snapshot(engine: str) -> None:
    s = hybrid(engine)
    s.serve(tokens(6))
    s.serve(tokens(7))
    assert s.count("cached", 1) == 1
    assert [s.match(tokens(n)) for n in (6, 7)] == [0, 7]


# Cross-attention


def test_cross_attention_pages_are_private_from_start_to_end(engine: str) -> None:
    s = Scenario(
        engine, num_pages=(33, 12), lifetimes=(FULL, ("cross_attention", 18, 0)), max_seq_len=100
    )
    s.serve(tokens(8))
    handles = [s.admit(s.begin(), tokens(9)) for _ in range(2)]
    assert [len(s.pages(handle, 1)) for handle in handles] == [5, 5]
    assert not set(s.pages(handles[0], 1)) & set(s.pages(handles[1], 1))
    assert s.counts(1)["live"] == 10
    assert s.stats()["hit_tokens"] == 16  # the text is shared, the encoder's tokens are not
    assert s.try_admit(s.begin(), tokens(4))[0] == -1
    s.release(handles[0])
    assert s.counts(1) == {
        "free": 1,
        "fenced": 5,
        "live": 5,
        "cached": 0,
        "reserved": 1,
        "evictable": 0,
    }


def test_an_encoder_that_can_never_fit_is_refused_for_good(engine: str) -> None:
    s = Scenario(engine, num_pages=(33, 5), lifetimes=(FULL, ("cross_attention", 18, 0)))
    assert s.try_admit(s.begin(), tokens(4))[0] == -2

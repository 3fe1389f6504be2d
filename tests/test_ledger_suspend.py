"""`suspend` and `resume`: pages go, tokens stay, and nothing drifts."""

from __future__ import annotations

import numpy as np
import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv.errors import LedgerError

ERRORS = (LedgerError, Misuse)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def resume(s: Scenario, step: int, handle: int, first: int = 1000) -> tuple[bool, int]:
    _, ok, hit = s.ledger.resume(step, [(handle, first)])
    return ok == [1], hit[0]


def test_tokens_handle_and_row_stay(engine: str) -> None:
    s = Scenario(engine)
    handle = s.prefill(tokens(10), 99, max_total=40)
    s.ledger.suspend([(handle, 1)])
    assert (s.count("live"), s.count("cached"), s.count("evictable")) == (0, 3, 3)
    state = s.sequence(handle)
    assert (state["suspended"], state["known"], state["max_total"]) == (True, 11, 40)
    assert (state["history"], state["capacity"], state["committed"], state["promise"]) == (0,) * 4
    assert (s.stats()["open_sequences"], s.stats()["suspended_sequences"]) == (1, 1)
    assert s.admit(s.begin(), tokens(3, 50)) & 0xFFFFFFFF == 1, "its row is taken"
    step = s.begin()
    assert resume(s, step, handle) == (True, 10)
    s.complete(step)
    s.advance(step, handle, 98)
    assert (s.sequence(handle)["history"], s.sequence(handle)["known"]) == (11, 12)
    assert not s.sequence(handle)["suspended"]


def test_without_publishing_the_tail_runs_again(engine: str) -> None:
    s = Scenario(engine)
    handle = s.prefill(tokens(10), 99)
    s.ledger.suspend([(handle, 0)])
    assert s.count("cached") == 2
    assert resume(s, s.begin(), handle, first=2) == (True, 8)
    assert s.sequence(handle)["outstanding"][0][1] == 2


def test_one_token_must_run_again(engine: str) -> None:
    """All that it knows is cached, by another sequence of the same text."""
    s = Scenario(engine)
    handle = s.prefill(tokens(8))
    s.ledger.suspend([(handle, 1)])
    assert s.match(tokens(8)) == 8
    assert resume(s, s.begin(), handle) == (True, 7)


@pytest.mark.parametrize("options", [{"scope": -1}, {}])
def test_a_sequence_that_does_not_publish_runs_everything_again(
    engine: str, options: dict[str, int]
) -> None:
    s = Scenario(engine, reuse="scope" in options)
    handle = s.prefill(tokens(10), 99, **options)
    s.ledger.suspend([(handle, 1)])
    assert s.counts()["free"] == 32
    step = s.begin()
    assert resume(s, step, handle) == (True, 0)
    s.complete(step)
    s.advance(step, handle)
    assert s.sequence(handle)["history"] == 11


def test_a_resume_that_does_not_fit_changes_nothing(engine: str) -> None:
    s = Scenario(engine, num_pages=(7,))
    handle = s.prefill(tokens(14), 99, max_total=16)
    s.ledger.suspend([(handle, 1)])
    other = s.prefill(tokens(16, 100), max_total=17)
    before, step = s.counts(), s.begin()
    assert resume(s, step, handle) == (False, 0)
    assert s.counts() == before
    assert s.sequence(handle)["known"] == 15
    assert (s.stats()["refused_resumes"], s.stats()["resumed"]) == (1, 0)
    s.release(other)
    s.complete(step)
    assert resume(s, s.begin(), handle)[0]


def test_own_tokens_do_not_raise_the_hit_rate(engine: str) -> None:
    """vllm#25787: 30 % reported on random prompts: re-runs after preemption counted as hits."""
    s = Scenario(engine, tokens_per_block=16, num_pages=(80,), max_seq_len=1100)
    handle = s.prefill(tokens(1000), 5000)
    s.ledger.suspend([(handle, 1)])
    assert resume(s, s.begin(), handle) == (True, 1000)
    stats = s.stats()
    assert (stats["prompt_tokens"], stats["hit_tokens"]) == (1000, 0)
    assert (stats["resumed_tokens"], stats["resumed_hit_tokens"]) == (1001, 1000)


def test_a_suspended_prefix_may_be_evicted(engine: str) -> None:
    """NVBug 6625710: evicting what a suspended request had used killed ~1.7 % of runs."""
    s = Scenario(engine, tokens_per_block=32, num_pages=(9,), max_seq_len=256)
    handle = s.prefill(tokens(64), 9000)
    s.ledger.suspend([(handle, 1)])
    for index in range(100):
        s.serve(tokens(128, 100 * index + 100))
    assert s.match(tokens(64)) == 0
    step = s.begin()
    assert resume(s, step, handle) == (True, 0)
    s.complete(step)
    s.advance(step, handle, 9001)
    for token in range(9002, 9040):
        s.decode(handle, token)
    assert s.sequence(handle)["committed"] == 96
    assert s.match(tokens(64)) == 64


@pytest.mark.parametrize("scope", [0, -1])
def test_two_hundred_cycles_leave_no_drift(engine: str, scope: int) -> None:
    s = Scenario(engine, has_draft=True, lookahead=1, extra_tokens=1, reserve_tokens=2)
    handle = s.prefill(tokens(21), 99, scope=scope, max_total=60)
    states = []
    for _ in range(200):
        step = s.begin()
        assert s.grow(step, handle, 3)
        ends = s.sequence(handle)["valid"]
        s.advance(step, handle, valid=ends)  # skipped
        s.complete(step)
        s.ledger.suspend([(handle, 1)])
        step = s.begin()
        assert resume(s, step, handle)[0]
        s.complete(step)
        s.advance(step, handle)
        state = {key: s.sequence(handle)[key] for key in ("known", "history", "valid", "capacity")}
        states.append((state, s.counts()))
    assert states == [states[0]] * 200
    s.release(handle, publish=0)
    assert s.count("live") == 0


def test_a_suspended_sequence_is_released(engine: str) -> None:
    s = Scenario(engine, max_sequences=1)
    handle = s.prefill(tokens(6), 9)
    s.ledger.suspend([(handle, 1)])
    s.release(handle)
    assert s.stats()["suspended_sequences"] == s.stats()["open_sequences"] == 0
    assert s.match(tokens(6)) == 6
    assert s.prefill(tokens(6, 50)) == 2 << 32


def test_a_fork_outlives_its_suspended_parent(engine: str) -> None:
    s = Scenario(engine)
    parent = s.prefill(tokens(10), 99, scope=-1)
    step = s.begin()
    _, [child] = s.ledger.fork(step, [parent])
    s.complete(step)
    s.ledger.suspend([(parent, 0)])
    assert (s.count("live"), len(s.pages(child))) == (3, 3)
    assert resume(s, s.begin(), parent) == (True, 0)
    assert not set(s.pages(parent)) & set(s.pages(child))


def test_the_watermark_never_stops_the_last_one(engine: str) -> None:
    """While only suspended sequences are open, nobody needs what the watermark keeps free."""
    s = Scenario(engine, num_pages=(5,), watermark_blocks=2)
    handle = s.prefill(tokens(14), 99, max_total=16)
    s.ledger.suspend([(handle, 0)])
    assert resume(s, s.begin(), handle)[0]


def test_misuse_names_the_state_and_changes_nothing() -> None:
    s = Scenario("core")
    handle, running = s.prefill(tokens(6), 6), s.prefill(tokens(6, 50), 6)
    step = s.begin()
    assert s.grow(step, running, 1)
    s.ledger.suspend([(handle, 0)])
    before, core = s.ledger.digest(), s.ledger.core
    one, row = np.array([handle]), np.zeros((1, 1, 8), np.int32)
    suspended = [
        lambda: s.grow(step, handle, 1),
        lambda: s.advance(step, handle),
        lambda: s.ledger.fork(step, [handle]),
        lambda: s.ledger.suspend([(handle, 0)]),
        lambda: core.table(one, row, np.zeros((1, 1), np.int32)),
    ]
    for call in suspended:
        with pytest.raises(LedgerError, match=rf"handle\[0\] = {handle} is suspended") as caught:
            call()
        assert caught.value.code == "suspended"
    with pytest.raises(LedgerError, match=f"{running} runs step {step}"):
        s.ledger.suspend([(running, 0)])
    with pytest.raises(LedgerError, match=f"{running} is not suspended"):
        resume(s, step, running)
    with pytest.raises(LedgerError, match=r"first\[0\] is 0"):
        resume(s, step, handle, first=0)
    with pytest.raises(LedgerError, match="appears twice"):
        s.ledger.resume(step, [(handle, 1), (handle, 1)])
    with pytest.raises(LedgerError, match="step 99"):
        resume(s, 99, handle)
    assert s.ledger.digest() == before


class TestDetachLive:
    """`reset_reuse_state(detach_live=True)`: new weights under running sequences."""

    def test_live_sequences_keep_their_pages_and_publish_nothing(self, engine: str) -> None:
        s = Scenario(engine)
        s.serve(tokens(8, 500))
        handle = s.prefill(tokens(10), 99)
        pages = s.pages(handle)
        with pytest.raises(ERRORS):
            s.ledger.reset_reuse_state()
        s.ledger.reset_reuse_state(True)
        assert (s.match(tokens(10)), s.match(tokens(8, 500))) == (0, 0)
        assert s.pages(handle) == pages
        assert (s.count("live"), s.count("cached"), s.count("free")) == (3, 0, 29)
        state = s.sequence(handle)
        assert (state["committed"], state["history"], state["scope"]) == (0, 10, -1)
        for token in range(98, 88, -1):
            s.decode(handle, token)
        assert s.count("cached") == 0
        s.release(handle)
        assert (s.match(tokens(10)), s.count("free")) == (0, 32)

    def test_what_sequences_shared_stays_until_the_last_one(self, engine: str) -> None:
        s = Scenario(engine)
        first = s.prefill(tokens(10), 99)
        second = s.prefill((*tokens(8), 700, 701), 99)
        assert s.pages(first)[:2] == s.pages(second)[:2]
        s.ledger.reset_reuse_state(True)
        assert s.count("live") == 4
        s.release(first)
        assert s.count("live") == 3
        _, [child] = s.ledger.fork(s.begin(), [second])
        assert s.pages(child)[:2] == s.pages(second)[:2]
        s.release(second)
        s.release(child)
        assert s.count("live") == 0

    def test_a_suspended_sequence_starts_anew(self, engine: str) -> None:
        s = Scenario(engine)
        handle = s.prefill(tokens(10), 99)
        s.ledger.suspend([(handle, 1)])
        s.ledger.reset_reuse_state(True)
        assert s.count("free") == 32
        step = s.begin()
        assert resume(s, step, handle) == (True, 0)
        s.complete(step)
        s.advance(step, handle)
        assert s.match(tokens(10)) == 8, "it publishes what it has run after the reset"

    def test_pages_wait_for_the_step_that_reads_them(self, engine: str) -> None:
        s = Scenario(engine)
        s.serve(tokens(10))
        step = s.begin()
        handle = s.admit(step, tokens(10))
        s.ledger.reset_reuse_state(True)
        assert (s.count("fenced"), s.count("live")) == (1, 3)
        s.complete(step)
        assert s.count("fenced") == 0
        s.advance(step, handle)
        s.release(handle)
        assert s.count("free") == 32

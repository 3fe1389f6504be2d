"""Order of eviction, on the real ledger and on the reference: docs/eviction.md."""

from __future__ import annotations

import pytest
from reference.scenario import ENGINES, Scenario, tokens

from tandemkv import _core
from tandemkv.errors import LedgerError

A, B, C, D = (tokens(4, start) for start in (0, 100, 200, 300))
"""Prompts of one full block each."""


def build(engine: str, **options: object) -> Scenario:
    """Build a ledger of four pages of four tokens whose prompts are cached whole or not at all."""
    plain = {"num_pages": (5,), "partial_reuse": False, "max_seq_len": 16}
    return Scenario(engine, **{**plain, **options})


def use(one: Scenario, *prompts: tuple[int, ...]) -> None:
    """Serve each prompt with one token after it, so that the prompt's own block can be hit."""
    for prompt in prompts:
        one.serve((*prompt, 9999))


def cached(one: Scenario) -> list[tuple[int, ...]]:
    return [prompt for prompt in (A, B, C, D) if one.match(prompt) == 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_lru_evicts_what_was_used_longest_ago(engine: str):
    one = build(engine)
    use(one, A, A, A, B, C, D)
    # Each request needs its block and one page for the token after it: D evicted one block, A.
    assert cached(one) == [B, C, D]
    use(one, A)
    assert cached(one) == [A, C, D]


@pytest.mark.parametrize("engine", ENGINES)
def test_lfu_keeps_what_was_used_often_until_age_overtakes_it(engine: str):
    one = build(engine, policy="lfu")
    use(one, A, A, A, B, C, D)
    # A has 3 uses, the others 1: B was the victim, and the age is 1 from then on.
    assert cached(one) == [A, C, D]
    use(one, B)  # victim C (rank 1)
    assert cached(one) == [A, B, D]
    use(one, C)  # D entered at age 1, so its rank is 2, as is B's; D was used longer ago
    assert cached(one) == [A, B, C]
    use(one, D)  # age 2: victim B (rank 2); C has rank 3, as has A, which was used longer ago
    assert cached(one) == [A, C, D]
    use(one, B)
    assert cached(one) == [B, C, D], "three old uses count no more than one new one"


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_of_one_path_count_their_own_uses(engine: str):
    one = build(engine, policy="lfu")
    long = A + B
    use(one, long)
    use(one, A, A)
    # A is used three times, B after it once: B is the victim, A stays with rank 3.
    use(one, C, D)
    assert one.match(long) == 4
    assert cached(one) == [A, C, D]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_leaf_behind_its_fence_is_passed_over(engine: str):
    one = build(engine, policy="lfu", num_pages=(5,))
    use(one, A, A)
    use(one, B, C)  # fills the pool: A, B, C and a free page
    held = one.begin()
    handle = one.admit(held, (*B, 9999))  # B is used a second time, in a step that stays open
    one.release(handle, publish=0)
    step = one.begin()
    # A and C are evictable, B (rank 2, the lowest beside C's 1) is fenced behind `held`.
    assert one.count("evictable") == 2
    assert one.try_admit(step, tokens(12, 500))[0] == -1
    one.admit(step, tokens(8, 500))
    assert one.match(B) == 4
    assert one.match(C) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_under_the_adaptive_policy_b_is_0_until_a_shadow_does_better(engine: str):
    one = build(engine, policy="adaptive")
    use(one, A, A, A, B, C, D)
    assert cached(one) == [B, C, D], "as with lru"


def hint(
    one: Scenario,
    prompt: tuple[int, ...],
    *hints: tuple[int, int, int, int],
    now: float = 0.0,
) -> None:
    """Serve a prompt with hints (start, end, priority, duration in ms) given at its admission."""
    step = one.ledger.begin_step(now)
    handle = one.admit(step, (*prompt, 9999))
    one.ledger.retain([(handle, *values) for values in hints])
    one.complete(step)
    one.advance(step, handle)
    one.release(handle)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["lru", "lfu", "adaptive"])
def test_lower_priority_goes_first_whatever_the_policy(engine: str, policy: str):
    one = build(engine, policy=policy)
    hint(one, A, (0, -1, 80, -1))
    hint(one, B, (0, -1, 20, -1))
    use(one, B, B, C, D)
    assert cached(one) == [A, C, D], "B has the lowest priority, though it was used most"
    use(one, B)
    assert cached(one) == [A, B, D], "among equal priorities the policy decides"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hint_ends_with_its_time(engine: str):
    one = build(engine)
    hint(one, A, (0, -1, 80, 2_500), now=10.0)
    use_at(one, 12.4, B, C, D)
    assert cached(one) == [A, C, D]
    use_at(one, 12.5, B)
    assert cached(one) == [B, C, D], "A is the least recently used again"


def use_at(one: Scenario, now: float, *prompts: tuple[int, ...]) -> None:
    for prompt in prompts:
        hint(one, prompt, now=now)


@pytest.mark.parametrize("engine", ENGINES)
def test_ranges_cut_runs_and_the_newest_hint_wins(engine: str):
    one = build(engine, num_pages=(9,), max_seq_len=64)
    text = tokens(24)
    hint(one, text, (0, -1, 10, -1), (0, 8, 90, -1), (1, 16, 50, -1))
    # Block 0 begins at token 0 (90), blocks 1 to 3 at 4, 8, 12 (50), 4 and 5 at 16 and 20 (10).
    # Each request needs a block and a page for the token after it; eight pages hold six and two.
    others = [tokens(4, start) for start in (500, 600, 700, 800)]
    left = []
    for other in others:
        use(one, other)
        left.append(one.match(text))
    assert left == [24, 20, 16, 16]
    assert [one.match(other) for other in others] == [0, 4, 4, 4], "35 goes before 50"


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_in_the_tree_are_hinted_at_once(engine: str):
    one = build(engine)
    use(one, A, B)
    hint(one, A, (0, 4, 0, -1))  # a hit: the shared block gets the priority
    use(one, C, D)
    assert cached(one) == [B, C, D]


def test_a_hint_out_of_range_changes_nothing():
    one = build("core")
    step = one.begin()
    handle = one.admit(step, A)
    before = one.ledger.digest()
    for wrong, name in [
        ((handle + 1, 0, -1, 35, -1), "names no open sequence"),
        ((handle, -1, 4, 35, -1), r"start\[1\] is -1"),
        ((handle, 4, 3, 35, -1), r"end\[1\] is 3"),
        ((handle, 0, 17, 35, -1), r"end\[1\] is 17"),
        ((handle, 0, 4, 101, -1), r"priority\[1\] is 101"),
        ((handle, 0, 4, 35, -2), r"duration_ms\[1\] is -2"),
    ]:
        with pytest.raises(LedgerError, match=name):
            one.ledger.retain([(handle, 0, 4, 90, -1), wrong])
        assert one.ledger.digest() == before


def test_existence_probes_never_extend_a_lease():
    """Mooncake#2187: probing every key renewed all leases, and nothing could be evicted."""
    for engine in ENGINES:
        one = build(engine, max_leased_blocks=2, num_pages=(4,))
        use(one, A, B)
        assert one.ledger.pin(A, 0, 10.0, -1) == (1, 4)
        assert one.stats()["pinned_blocks"] == 1
        for now in range(1, 10):
            use_at(one, float(now), C)
            assert cached(one) == [A, C], "the lease holds, and A is not evicted"
        assert one.match(A) == 4
        use_at(one, 10.0, C, D)
        assert cached(one) == [C, D]
        assert one.ledger.unpin(1) is False
        assert one.stats()["leases"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_leases_hold_at_most_their_share_and_count_shared_blocks_once(engine: str):
    one = build(engine, max_leased_blocks=2, num_pages=(9,))
    use(one, A + B, A + C, D)
    assert one.ledger.pin((7, 7, 7, 7), 0, float("inf"), -1) == (0, 0)
    assert one.ledger.pin(A + B, 0, float("inf"), -1) == (1, 8)
    assert one.ledger.pin(A, 0, float("inf"), -1) == (2, 4), "inside the first lease"
    assert one.ledger.pin(A + C, 0, float("inf"), -1) == (-1, 0), "one block too many"
    assert one.stats()["pinned_blocks"] == 2
    assert one.stats()["refused_leases"] == 1
    assert one.ledger.unpin(1) is True
    assert one.stats()["pinned_blocks"] == 1, "A is still leased, B is not"
    assert one.ledger.pin(A + C, 0, float("inf"), -1) == (3, 8)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lease_takes_nothing_that_a_prompt_was_promised(engine: str):
    one = build(engine, max_leased_blocks=4, num_pages=(5,))
    use(one, A)
    step = one.begin()
    prompt = tokens(15, 500)
    one.admit(step, prompt, first=4)  # one page now, three promised: two free ones and A's
    assert one.ledger.pin(A, 0, float("inf"), -1) == (-1, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_leave_after_their_time_to_live(engine: str):
    one = build(engine, num_pages=(9,), ttl_ms=2_500)
    use_at(one, 10.0, A, B)
    use_at(one, 12.0, B, C)
    one.ledger.begin_step(12.4)
    assert cached(one) == [A, B, C]
    one.ledger.begin_step(12.5)
    assert cached(one) == [B, C], "A was used at 10.0, B again at 12.0"
    assert one.stats()["expired_blocks"] == 1
    assert one.stats()["evicted_blocks"] == 0
    assert one.count("free") == 6
    one.ledger.begin_step(100.0)
    assert cached(one) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_in_use_or_leased_does_not_age(engine: str):
    one = build(engine, num_pages=(9,), ttl_ms=1_000, max_leased_blocks=1)
    use_at(one, 1.0, A, B)
    step = one.ledger.begin_step(1.0)
    handle = one.admit(step, (*A, 9999))
    assert one.ledger.pin(B, 0, 50.0, -1)[0] == 1
    one.complete(step)
    one.complete(one.ledger.begin_step(49.0))
    assert cached(one) == [A, B]
    one.ledger.release([(handle, 0)])
    one.complete(one.ledger.begin_step(49.5))
    assert cached(one) == [A, B]
    one.complete(one.ledger.begin_step(50.0))
    assert cached(one) == [B], "A was let go at 49; the lease on B ends now, after 49.5"
    one.complete(one.ledger.begin_step(50.5))
    assert cached(one) == []


def test_misuse_of_leases_is_an_error():
    one = build("core", max_leased_blocks=4)
    use(one, A)
    one.ledger.begin_step(5.0)
    for until in (5.0, 4.0, float("nan")):
        with pytest.raises(LedgerError, match="must be a number above 5"):
            one.ledger.pin(A, 0, until, -1)
    for lease in (0, 1, -1):
        with pytest.raises(LedgerError, match=f"lease {lease} was never given"):
            one.ledger.unpin(lease)


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(
        LedgerError, match="policy is 'fifo', must be one of 'lru', 'lfu', 'adaptive'"
    ):
        _core.Ledger(
            tokens_per_block=4, num_pages=[4], max_sequences=1, max_seq_len=8, policy="fifo"
        )

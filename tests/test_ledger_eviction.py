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


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(
        LedgerError, match="policy is 'fifo', must be one of 'lru', 'lfu', 'adaptive'"
    ):
        _core.Ledger(
            tokens_per_block=4, num_pages=[4], max_sequences=1, max_seq_len=8, policy="fifo"
        )

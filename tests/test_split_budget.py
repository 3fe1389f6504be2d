"""The byte split against a transcription of the reference, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv

Pair = tuple[int, int]

sizes = st.one_of(st.just(0), st.integers(1, 2**44))
slopes = st.one_of(st.just(0), st.integers(1, 2**22))
costs = st.tuples(slopes, sizes)


def reference(total: int, target: Pair, draft: Pair, tier: str) -> tuple[bool, int, int] | None:
    """TensorRT-LLM's split of a budget between target and draft; None where it is infeasible."""
    if total <= 0:
        return False, total, 0
    if any(cost == (0, 0) or min(cost) < 0 for cost in (target, draft)):
        return False, total, 0
    (st_, it), (sd, id_) = target, draft
    if tier != "device":
        it = id_ = 0
    spare, slope = total - it - id_, st_ + sd
    if spare < 0 or (spare == 0 and slope > 0):
        return None
    share = id_ + (spare * sd // slope if slope > 0 else 0)
    return True, total - share, share


@given(total=sizes, target=costs, draft=costs, tier=st.sampled_from(["device", "host", "disk"]))
def test_the_split_is_the_reference(total: int, target: Pair, draft: Pair, tier: str):
    expected = reference(total, target, draft, tier)
    if expected is None:
        with pytest.raises(tkv.BudgetError) as caught:
            tkv.split_budget(total, target, draft, tier=tier)
        assert caught.value.budget_bytes == total
        assert caught.value.fixed_bytes == target[1] + draft[1]
        one_token = target[0] + draft[0]
        assert caught.value.shortfall_bytes == target[1] + draft[1] + one_token - total
        return
    split = tkv.split_budget(total, target, draft, tier=tier)
    assert (split.split, split.target_bytes, split.draft_bytes) == expected
    assert split.split is (split.reason is None)


@pytest.mark.parametrize(
    ("total", "target", "draft", "reason"),
    [
        (0, (80, 0), (20, 0), "no_budget"),
        (-5, (80, 0), (20, 0), "no_budget"),
        (100, (0, 0), (20, 0), "no_target_cost"),
        (100, (80, 0), (0, 0), "no_draft_cost"),
        (100, (80, 0), (-20, 7), "no_draft_cost"),
    ],
)
def test_nothing_to_split_is_a_typed_answer(total: int, target: Pair, draft: Pair, reason: str):
    split = tkv.split_budget(total, target, draft)
    assert split.to_dict() == {
        "split": False,
        "target_bytes": total,
        "draft_bytes": 0,
        "reason": reason,
        "target_tokens": None,
        "draft_tokens": None,
    }


def test_products_beyond_64_bits_are_exact():
    total, slope = 2**62, 2**40
    split = tkv.split_budget(total, (slope, 0), (slope, 1))
    assert split.draft_bytes == 1 + (total - 1) // 2
    assert split.target_bytes + split.draft_bytes == total


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((1.5, (1, 0), (1, 0)), "total_bytes"),
        ((2**63, (1, 0), (1, 0)), "total_bytes"),
        ((10, (1, 0, 0), (1, 0)), "target"),
        ((10, (1, 0), 7), "draft"),
        ((10, (1, 0), (True, 0)), "the slope of draft"),
        ((10, (1, 2**63), (1, 0)), "the intercept of target"),
        ((10, (1, 0), (1, 0), "tape"), "tier"),
    ],
)
def test_misuse_names_the_argument(arguments: tuple[object, ...], field: str):
    with pytest.raises(tkv.ConfigError) as caught:
        tkv.split_budget(*arguments)
    assert caught.value.field == field
    assert field in str(caught.value)

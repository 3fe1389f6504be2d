"""From a device's memory to a budget, and the size of a host tier."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from budget_cases import GIB, gqa, model
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv
from tandemkv.sizes import MAX_BYTES


def estimate(**change: Any) -> tkv.MemoryEstimate:
    # vllm#7256: 80 GiB of which others hold 10, a fraction of 0.9, an own peak of 20.
    values: dict[str, Any] = {
        "total": 80 * GIB,
        "free": 70 * GIB,
        "peak_activation": 3 * GIB,
        "weights": 16 * GIB,
        "graphs": 1 * GIB,
        "fraction": 0.9,
    }
    return tkv.estimate_budget(**(values | change))


def test_what_others_hold_comes_off_the_fraction():
    made = estimate()
    assert made.kv_bytes == 42 * GIB
    assert (made.usable_bytes, made.others_bytes, made.unused_bytes) == (
        72 * GIB,
        10 * GIB,
        8 * GIB,
    )
    # sglang#6928: all of it inside the fraction, line by line.
    own = made.weights_bytes + made.peak_activation_bytes + made.graphs_bytes + made.kv_bytes
    assert made.others_bytes + own == made.usable_bytes
    assert "42.00 GiB" in str(made)
    assert "sum = device memory" in str(made)


def test_the_cap_is_applied_in_bytes():
    assert estimate(max_bytes="10GiB").kv_bytes == 10 * GIB
    assert estimate(max_bytes="100GiB").kv_bytes == 42 * GIB


@pytest.mark.parametrize("fraction", [0.9, "0.9", "9/10", Fraction(9, 10)])
def test_a_fraction_is_the_number_that_was_written(fraction: Any):
    # 0.9 * total in binary floating point is one byte off for this total.
    made = estimate(total=80 * GIB + 10, free=80 * GIB + 10, fraction=fraction)
    assert made.usable_bytes == 72 * GIB + 9


def test_nothing_left_is_an_error_with_every_number():
    with pytest.raises(tkv.BudgetError) as caught:
        estimate(weights="62GiB")
    error = caught.value
    assert (error.tier, error.budget_bytes) == ("device", 72 * GIB)
    assert (error.required_bytes, error.shortfall_bytes) == (76 * GIB, 4 * GIB)
    for number in (72 * GIB, 62 * GIB, 10 * GIB):
        assert str(number) in str(error)
    with pytest.raises(tkv.BudgetError):
        estimate(weights=62 * GIB - 4 * GIB)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"free": 81 * GIB}, "free"),
        ({"fraction": 0}, "fraction"),
        ({"fraction": 1.01}, "fraction"),
        ({"fraction": "most"}, "fraction"),
        ({"fraction": True}, "fraction"),
        ({"fraction": float("nan")}, "fraction"),
        ({"weights": -1}, "weights"),
        ({"graphs": "1 G"}, "graphs"),
    ],
)
def test_sizes_and_fractions_are_checked(change: dict[str, Any], field: str):
    with pytest.raises(tkv.ConfigError) as caught:
        estimate(**change)
    assert caught.value.field == field


@given(
    total=st.integers(1, 2**45),
    others=st.integers(0, 2**44),
    parts=st.tuples(*[st.integers(0, 2**42)] * 3),
    percent=st.integers(1, 100),
)
def test_the_lines_add_up_to_the_device(
    total: int, others: int, parts: tuple[int, int, int], percent: int
):
    others = min(others, total)
    arguments = {
        "total": total,
        "free": total - others,
        "peak_activation": parts[0],
        "weights": parts[1],
        "graphs": parts[2],
        "fraction": Fraction(percent, 100),
    }
    left = total * percent // 100 - others - sum(parts)
    if left <= 0:
        with pytest.raises(tkv.BudgetError) as caught:
            tkv.estimate_budget(**arguments)
        assert caught.value.shortfall_bytes == -left
        return
    made = tkv.estimate_budget(**arguments)
    assert made.kv_bytes == left
    fields = made.to_dict()
    del fields["total_bytes"], fields["usable_bytes"]
    assert sum(fields.values()) == total


# --- host tier ---------------------------------------------------------------------------------


def test_one_host_tier_for_the_pair():
    # A tier for each role would take 4 * (55 + 27.5) = 330 of 440 GiB; one for both takes 220.
    size = tkv.estimate_host_bytes("173GiB", "440GiB", local_ranks=4)
    assert 4 * size == 220 * GIB
    plan = tkv.plan(
        model(gqa(32)),
        model(gqa(1), "draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="173GiB", host_cache_size=size, max_seq_len=4096
        ),
        mapping=tkv.Mapping(tp_size=4),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=4),
    )
    held = sum(rank.target.host_bytes + rank.draft.host_bytes for rank in plan.ranks)
    slack = sum(rank.tiers.host.slack_bytes for rank in plan.ranks)
    assert held + slack == 220 * GIB


@pytest.mark.parametrize(
    ("arguments", "options", "field"),
    [
        ((GIB, []), {}, "available"),
        ((GIB, -1), {}, "available"),
        (("much", GIB), {}, "device_bytes"),
        ((GIB, GIB), {"local_ranks": 0}, "local_ranks"),
        ((GIB, GIB), {"memlock_bytes": "all"}, "memlock_bytes"),
    ],
)
def test_host_sizes_are_checked(arguments: Any, options: dict[str, Any], field: str):
    with pytest.raises(tkv.ConfigError) as caught:
        tkv.estimate_host_bytes(*arguments, **options)
    assert caught.value.field == field


# --- tokens and bytes --------------------------------------------------------------------------


@given(
    full=st.integers(0, 2**20),
    context=st.integers(0, 2**20),
    per_sequence=st.integers(0, 2**30),
    sequences=st.integers(0, 512),
    step=st.integers(0, 2**16),
    quota=st.integers(0, 2**44),
    percent=st.integers(1, 100),
)
def test_what_fits_in_a_quota_never_costs_more(**terms: int):
    quota, limit = terms["quota"], Fraction(terms["percent"], 100)
    cost = tkv.TokenCost(
        full_bytes=terms["full"],
        context_bytes=terms["context"],
        per_sequence_bytes=terms["per_sequence"],
        num_sequences=terms["sequences"],
        max_num_tokens=terms["step"],
    )
    tokens = cost.usable_tokens(quota, limit)
    if tokens:
        assert cost.bytes(tokens) <= quota * limit
        assert cost.quota_bytes(tokens, limit) <= quota
    elif tokens == 0:
        assert cost.bytes(1) > quota * limit or cost.bytes(0) > quota * limit


@pytest.mark.parametrize(
    "change",
    [
        {"full_bytes": -1},
        {"full_bytes": 1.5},
        {"full_bytes": MAX_BYTES + 1},
        {"full_bytes": 1, "num_sequences": -1},
        {"full_bytes": 1, "max_num_tokens": True},
    ],
)
def test_costs_are_checked(change: dict[str, Any]):
    with pytest.raises(tkv.ConfigError):
        tkv.TokenCost(**change)
    cost = tkv.TokenCost(full_bytes=MAX_BYTES)
    with pytest.raises(tkv.BudgetError, match="64 bits"):
        cost.bytes(3)
    with pytest.raises(tkv.ConfigError):
        cost.tokens(-1)

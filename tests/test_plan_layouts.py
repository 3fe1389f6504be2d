"""Layouts: budgets that differ, context parallelism, attention-DP, drafts of their own width."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from budget_cases import GIB, gqa, mla, model
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv


def plan(
    target: tuple[tkv.Layer, ...] = gqa(32),
    draft: tuple[tkv.Layer, ...] | None = None,
    *,
    mode: str = "eagle3",
    layout: dict[str, Any] | None = None,
    ranks: dict[str, list[int | str]] | None = None,
    **config: Any,
) -> tkv.Plan:
    values = {"max_gpu_total_bytes": 40 * GIB, "max_seq_len": 4096} | config
    return tkv.plan(
        model(target),
        None if draft is None else model(draft, "draft"),
        config=tkv.KvCacheConfig(**values),
        mapping=tkv.Mapping(**(layout or {})),
        speculative=None if draft is None else tkv.SpeculativeConfig(mode=mode, max_draft_len=4),
        **(ranks or {}),
    )


# --- budgets that differ -----------------------------------------------------------------------


def test_every_rank_takes_the_pages_that_the_smallest_holds():
    # TensorRT-LLM#13104: quotas of 10.0, 9.7, 10.0 and 9.9 GiB.
    sizes = ["10GiB", int(Fraction("9.7") * GIB), "10GiB", int(Fraction("9.9") * GIB)]
    made = plan(layout={"tp_size": 4}, ranks={"device_bytes": sizes})
    page_bytes = 32 * 32768
    assert made.num_blocks == int(Fraction("9.7") * GIB) // page_bytes
    assert {rank.target.num_pages for rank in made.ranks} == {made.num_blocks}
    for rank, size in zip(made.ranks, (10 * GIB, sizes[1], 10 * GIB, sizes[3]), strict=True):
        assert rank.budget_bytes == size
        assert rank.target.device_bytes + rank.slack_bytes == size
    # Two runs of one rank with 10 GiB, and the smaller ones, are told apart.
    assert [line.split()[0] for line in str(made).splitlines() if " budget " in line] == [
        "0",
        "1",
        "2",
        "3",
    ]


def test_a_rank_that_is_too_small_is_named():
    with pytest.raises(tkv.BudgetError) as caught:
        plan(layout={"tp_size": 2, "pp_size": 2}, ranks={"device_bytes": [GIB, GIB, 1, GIB]})
    assert (caught.value.rank, caught.value.budget_bytes) == (2, 1)
    assert "rank 2 is 1 bytes" in str(caught.value)


def test_the_configured_size_caps_what_a_rank_has():
    made = plan(
        layout={"tp_size": 2},
        ranks={"device_bytes": ["80GiB", "30GiB"], "host_bytes": ["1TiB", "8GiB"]},
        host_cache_size="64GiB",
    )
    assert [rank.budget_bytes for rank in made.ranks] == [40 * GIB, 30 * GIB]
    assert [rank.tiers.host.budget_bytes for rank in made.ranks] == [64 * GIB, 8 * GIB]
    assert made.num_host_blocks == 8 * GIB // (32 * 65536)


@pytest.mark.parametrize(
    ("ranks", "field", "words"),
    [
        ({"device_bytes": [GIB]}, "device_bytes", ("1 entries", "2 ranks")),
        ({"device_bytes": [GIB, "much"]}, "device_bytes[1]", ("'much'",)),
        ({"device_bytes": "40GiB"}, "device_bytes", ("'40GiB'", "list")),
        ({"host_bytes": [GIB, GIB, GIB]}, "host_bytes", ("3 entries",)),
    ],
)
def test_sizes_of_ranks_are_checked(ranks: dict[str, Any], field: str, words: tuple[str, ...]):
    with pytest.raises(tkv.ConfigError) as caught:
        plan(layout={"tp_size": 2}, ranks=ranks, host_cache_size=GIB)
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)


def test_a_token_cap_is_rounded_down_to_blocks():
    # TensorRT-LLM#224: 10,718 tokens in blocks of 16 are 669 blocks, 10,704 tokens.
    made = plan(tokens_per_block=16, max_tokens=10_718)
    assert (made.max_tokens, made.num_blocks) == (10_704, 670)
    [rank] = made.ranks
    assert rank.target.device_bytes == 670 * 16 * 131072
    assert rank.slack_bytes == 40 * GIB - rank.target.device_bytes
    # A cap above what fits changes nothing.
    assert plan(max_tokens=2**31 - 1).num_blocks == plan().num_blocks
    with pytest.raises(tkv.ConfigError, match="max_tokens is 31"):
        plan(max_tokens=31)


# --- context parallelism -----------------------------------------------------------------------


def test_context_parallel_ranks_share_the_tokens():
    alone, shared = plan(), plan(layout={"cp_size": 4})
    assert shared.num_blocks == alone.num_blocks
    assert shared.max_tokens == 4 * alone.max_tokens
    assert (shared.tokens_per_block, shared.block_tokens) == (32, 128)
    # cdiv(4,096 + 1, 128) = 33 blocks of 128 tokens per request.
    assert shared.max_concurrency == (shared.num_blocks - 1) // 33
    assert shared.row_width == 36
    assert [rank.cp_rank for rank in shared.ranks] == [0, 1, 2, 3]
    assert "on each of 4 context-parallel ranks" in str(shared)


def test_ranks_are_numbered_by_stage_then_context_then_tensor():
    made = plan(layout={"tp_size": 2, "cp_size": 3, "pp_size": 2})
    assert [(r.rank, r.pp_rank, r.cp_rank, r.tp_rank) for r in made.ranks] == [
        ((pp * 3 + cp) * 2 + tp, pp, cp, tp)
        for pp in range(2)
        for cp in range(3)
        for tp in range(2)
    ]


def test_windows_under_context_parallelism_are_counted_in_whole_blocks():
    made = plan(gqa(1) + gqa(1, window=1000), layout={"cp_size": 4}, max_batch_size=1)
    group = made.ranks[0].target.groups[1]
    # Blocks of 128 tokens: 1,000 touch cdiv(999, 128) + 1 = 9, a page of 32 tokens each here.
    assert (group.fixed.per_sequence, group.page_bytes) == (9, 32 * 4096)


# --- widths and placement ----------------------------------------------------------------------


def test_blocks_grow_with_the_ranks_at_equal_memory():
    # transformers#48566: 814 blocks instead of 3,258 at tp 4.
    one, four = (plan(layout={"tp_size": tp}, max_gpu_total_bytes=GIB) for tp in (1, 4))
    assert one.num_blocks == 256
    assert four.num_blocks == 1024


def test_a_draft_of_its_own_width_and_dtype():
    made = plan(
        gqa(80, kv_dtype="fp8"), gqa(1), layout={"tp_size": 8, "draft_tp_size": 2, "pp_size": 2}
    )
    assert [rank.draft is None for rank in made.ranks] == [True] * 8 + [False] * 8
    last = made.ranks[15]
    assert (last.target.bytes_per_token, last.draft.bytes_per_token) == (40 * 256, 2048)
    assert (last.target.tp_size, last.draft.tp_size) == (8, 2)
    # The draft is charged where it is, and the last stage decides.
    assert made.num_blocks == 40 * GIB // (32 * (40 * 256 + 2048))
    assert made.ranks[0].slack_bytes == 40 * GIB - made.num_blocks * 32 * 40 * 256


@pytest.mark.parametrize("mode", ["eagle3", "mtp_vanilla", "mtp_one_model"])
def test_a_draft_of_the_last_stage_is_never_spilled(mode: str):
    # 32 + 4 layers at pp 16: an even split of all 36 would put two draft layers on rank 14.
    made = plan(gqa(32), gqa(4), mode=mode, layout={"pp_size": 16})
    held = [() if rank.draft is None else rank.draft.layer_indices for rank in made.ranks]
    assert held == [()] * 15 + [(0, 1, 2, 3)]
    assert all(rank.to_dict()["draft"] is None for rank in made.ranks[:15])


def test_uneven_stages_own_every_layer_once():
    # Megatron-LM#4775: 94 layers over 4 stages; 94 // 4 leaves two unmapped.
    made = plan(gqa(94), layout={"pp_size": 4})
    assert [len(rank.target.layers) for rank in made.ranks] == [24, 24, 23, 23]
    owned = [index for rank in made.ranks for index in rank.target.layer_indices]
    assert owned == list(range(94))


def test_attention_dp_keeps_whole_heads_and_a_batch_per_rank():
    # sglang#38202: 139.4 KB per token, not 69.6.
    made = plan(layout={"tp_size": 2, "enable_attention_dp": True})
    assert [rank.target.bytes_per_token for rank in made.ranks] == [131072, 131072]
    assert (made.data_parallel_size, made.max_sequences) == (2, 256)
    assert f"{2 * made.max_tokens:,} tokens on 2 ranks" in str(made)


@given(
    targets=st.lists(st.sampled_from([*gqa(1), *gqa(1, 4, 64), *mla(1)]), min_size=3, max_size=9),
    drafts=st.lists(st.sampled_from([*gqa(1), *mla(1)]), min_size=1, max_size=4),
    mode=st.sampled_from(["eagle3", "mtp_one_model", "pard", "draft_target_one_model"]),
    layout=st.sampled_from([(1, 1, 1), (2, 1, 2), (1, 3, 1), (2, 2, 2)]),
    data=st.data(),
)
def test_a_group_of_ranks_holds_the_least_of_what_each_holds_alone(
    *,
    targets: list[tkv.Layer],
    drafts: list[tkv.Layer],
    mode: str,
    layout: tuple[int, int, int],
    data: st.DataObject,
):
    tp_size, pp_size, cp_size = layout
    world_size = tp_size * pp_size * cp_size
    sizes = data.draw(st.lists(st.integers(2**25, 2**32), min_size=world_size, max_size=world_size))
    made = plan(
        tuple(targets),
        tuple(drafts),
        mode=mode,
        layout={"tp_size": tp_size, "pp_size": pp_size, "cp_size": cp_size},
        ranks={"device_bytes": sizes},
        max_batch_size=2,
    )
    alone = []
    for rank, size in zip(made.ranks, sizes, strict=True):
        roles = [rank.target] + ([rank.draft] if rank.draft else [])
        page_bytes = 32 * sum(
            layer.bytes_per_token(tp_size) for role in roles for layer in role.layers
        )
        alone.append(size // page_bytes)
        used = sum(role.device_bytes for role in roles)
        assert used == made.num_blocks * page_bytes
        assert used + rank.slack_bytes == rank.budget_bytes == size
    assert made.num_blocks == min(alone)
    placed = [
        index
        for rank in made.ranks[:: tp_size * cp_size]
        if rank.draft is not None
        for index in rank.draft.layer_indices
    ]
    assert placed == list(range(len(drafts)))


@given(
    order=st.permutations([*gqa(2, window=64), *gqa(1), *gqa(1, 2, 64), *mla(2, "fp8")]),
    budget=st.integers(2**27, 2**30),
    more=st.integers(0, 2**29),
)
def test_order_does_not_matter_and_more_memory_never_takes_away(
    order: list[tkv.Layer], budget: int, more: int
):
    def shares(layers: list[tkv.Layer], size: int) -> tuple[int, int, int]:
        made = plan(tuple(layers), gqa(1), max_gpu_total_bytes=size, max_batch_size=2)
        rank = made.ranks[0]
        return made.num_blocks, rank.target.device_bytes, rank.draft.device_bytes

    here = shares(order, budget)
    assert here == shares(sorted(order, key=repr), budget)
    richer = shares(order, budget + more)
    assert all(after >= before for before, after in zip(here, richer, strict=True))

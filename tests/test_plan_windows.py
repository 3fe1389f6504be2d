"""Plans with layers that drop tokens: windows, chunks, states and cross attention."""

from __future__ import annotations

from typing import Any

import pytest
from budget_cases import GIB, byte_layer, gqa, model, state
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv
from tandemkv.planning.explain import explain


def config(**values: Any) -> tkv.KvCacheConfig:
    return tkv.KvCacheConfig(
        **(
            {
                "max_gpu_total_bytes": 8 * GIB,
                "max_seq_len": 4096,
                "max_batch_size": 8,
                "num_dummy_requests": 0,
            }
            | values
        )
    )


def lone(layers: tuple[tkv.Layer, ...], *, layout: dict[str, Any] | None = None, **values: Any):
    return tkv.plan(model(layers), config=config(**values), mapping=tkv.Mapping(**(layout or {})))


def only_group(plan: tkv.Plan) -> tkv.planning.GroupPlan:
    [group] = plan.ranks[0].target.groups
    return group


def cross(max_cross_tokens: int | None) -> tkv.Layer:
    return tkv.Layer(
        kind="cross_attention",
        kv_dtype="fp8",
        num_kv_heads=1,
        head_dim=50,
        max_cross_tokens=max_cross_tokens,
    )


# --- fixed bytes by kind -----------------------------------------------------------------------


def test_prompt_tokens_in_flight_are_charged_once_per_pool():
    # vllm#52495: charging them per sequence made 53.5 KiB per token out of 3.6.
    windows = gqa(4, window=512)
    without, charged = (lone(windows, max_num_tokens=n).ranks[0].target for n in (None, 8192))
    assert charged.fixed_bytes - without.fixed_bytes == 8192 * 4 * 4096
    assert charged.per_step_bytes == 8192 * 4 * 4096
    assert (without.per_step_bytes, without.per_sequence_bytes) == (0, charged.per_sequence_bytes)
    # 512 tokens at the worst offset of 32-token blocks.
    assert charged.per_sequence_bytes == 17 * 32 * 4 * 4096


def test_every_window_pool_of_both_roles_is_charged_for_them():
    plan = tkv.plan(
        model(gqa(2) + gqa(2, window=512)),
        model(gqa(1, window=512), "draft"),
        config=config(max_num_tokens=1000),
        speculative=tkv.SpeculativeConfig(mode="dflash", max_draft_len=4),
    )
    [rank] = plan.ranks
    # cdiv(1,000, 32) = 32 pages.
    assert rank.target.per_step_bytes == 32 * 32 * 2 * 4096
    assert rank.draft.per_step_bytes == 32 * 32 * 4096


def test_sequences_of_all_micro_batches_have_their_windows_and_states():
    # sglang#33666: state cost by stage, and every stage keeps all in-flight micro-batches.
    layers = gqa(4) + state(4, 1000)
    plan = lone(layers, layout={"pp_size": 2}, num_dummy_requests=3)
    assert [len(rank.target.groups) for rank in plan.ranks] == [1, 1]
    group = plan.ranks[1].target.groups[0]
    assert (group.fixed.sequences, group.fixed.dummies, group.fixed.reserved) == (16, 3, 1)
    assert plan.ranks[1].target.fixed_bytes == (16 + 3 + 1) * 4 * 1000
    assert plan.max_sequences == 16
    # The second stage keeps no tokens, so it sets no limit: 8 GiB // (4 * 4,096 B * 32).
    assert plan.num_blocks == 8 * GIB // (4 * 4096 * 32)


@pytest.mark.parametrize(
    ("mode", "attention_dp", "dummies"), [(None, False, 1), (None, True, 2), (4, False, 5)]
)
def test_each_graph_pads_with_a_state_of_its_own(
    mode: int | None, attention_dp: bool, dummies: int
):
    plan = tkv.plan(
        model(gqa(1) + state(1, 1000)),
        config=config(num_dummy_requests=None),
        mapping=tkv.Mapping(tp_size=2, enable_attention_dp=attention_dp),
        speculative=mode and tkv.SpeculativeConfig(mode="ngram", max_draft_len=mode),
    )
    assert plan.ranks[0].target.groups[1].fixed.dummies == dummies


def test_a_margin_for_resuming_is_exact():
    windows = gqa(1, window=512)
    for limit, pages in ((None, 136), ("19/20", 144), (0.95, 144), (1, 136)):
        fixed = only_group(lone(windows, max_util_for_resume=limit)).fixed
        # 8 sequences of 17 pages; cdiv(136 * 20, 19) = 144.
        assert fixed.total - fixed.reserved == pages
        assert fixed.margin == pages - 136


def test_snapshots_are_whole_states_in_the_state_pool():
    layers = gqa(1) + state(1, 100_000)
    plan = lone(layers, state_snapshot_interval=2048, max_gpu_total_bytes="64MiB")
    target = plan.ranks[0].target
    full, states = target.groups
    # cdiv(100,000, 2,048) = 49 B per token beside the layer's 4,096.
    assert target.bytes_per_token == 4096 + 49
    assert target.fixed_bytes == 9 * 100_000
    assert plan.num_blocks == (2**26 - 900_000) // (32 * 4145)
    snapshots = states.num_pages - states.fixed.total
    assert snapshots == plan.num_blocks * 32 * 49 // 100_000
    # Enough for one snapshot per interval of every token that fits.
    assert snapshots >= plan.num_blocks * 32 // 2048
    assert 0 <= target.unused_bytes < 100_000
    assert full.device_bytes + states.device_bytes + target.unused_bytes == target.device_bytes


def test_states_take_no_snapshots_without_reuse():
    layers = gqa(1) + state(1, 100_000)
    plan = lone(layers, state_snapshot_interval=2048, enable_block_reuse=False)
    assert plan.ranks[0].target.bytes_per_token == 4096


def test_endpoints_are_kept_on_every_tier():
    layers = gqa(1) + gqa(1, window=512) + state(1, 1000)
    sizes = {"host_cache_size": "1GiB", "disk_cache_size": "2GiB"}
    without, with_them = lone(layers, **sizes), lone(layers, **sizes, cached_endpoints=10)
    # A cached prefix has nothing in flight: cdiv(512 - 2, 32) + 1 = 17 pages, and one state.
    size = 10 * (17 * 32 * 4096 + 1000)
    one, other = (plan.ranks[0].target for plan in (without, with_them))
    assert other.fixed_bytes - one.fixed_bytes == size
    for tier in ("host", "disk"):
        groups = {group.lifetime: group.tier_bytes(tier) for group in other.groups}
        assert groups["sliding_window"] + groups["recurrent_state"] == size
        assert sum(group.tier_bytes(tier) for group in one.groups[1:]) == 0
    assert with_them.num_host_blocks == (GIB - size) // (32 * 4096)
    assert (without.hittable_endpoints, with_them.hittable_endpoints) == (0, 10)
    assert "10 prefixes stay hittable at full load" in str(with_them)
    assert any("cached_endpoints is 0" in note for note in without.notes)
    assert lone(gqa(1)).hittable_endpoints is None


def test_a_lower_tier_that_would_hold_nothing_is_refused():
    with pytest.raises(tkv.ConfigError, match="cached_endpoints is 0") as caught:
        lone(gqa(1, window=512), host_cache_size="1GiB")
    assert caught.value.field == "host_cache_size"
    plan = lone(gqa(1, window=512), host_cache_size="1GiB", cached_endpoints=2)
    assert plan.ranks[0].target.host_bytes == 2 * 17 * 32 * 4096


def test_cross_attention_holds_the_encoder_once_per_sequence():
    # Whisper's decoder: 1,500 encoder positions, 24 blocks of 64.
    plan = lone((*gqa(1), cross(1500)), tokens_per_block=64)
    group = plan.ranks[0].target.groups[1]
    assert (group.tokens, group.fixed.per_sequence) == (1500, 24)
    assert group.page_bytes == 64 * 100
    for limit, tokens in ((None, 4096), (512, 512)):
        plan = lone((*gqa(1), cross(None)), max_encoder_len=limit)
        assert plan.ranks[0].target.groups[1].tokens == tokens
    assert lone((cross(1500),), max_encoder_len=512).ranks[0].target.groups[0].tokens == 512


def test_a_layer_may_keep_two_things():
    # Falcon-H1: attention and a state space model side by side.
    both = tkv.Layer(
        kind="attention", kv_dtype="fp8", num_kv_heads=1, head_dim=50, beside=state(1, 1000)
    )
    target = lone((both, both)).ranks[0].target
    assert [group.lifetime for group in target.groups] == ["full_attention", "recurrent_state"]
    assert [group.layer_indices for group in target.groups] == [(0, 1), (0, 1)]
    assert (target.bytes_per_token, target.per_sequence_bytes) == (200, 2000)


def test_keys_that_are_the_values_are_charged_once():
    both, one = (gqa(1, 2, 512, shared_kv=shared) for shared in (False, True))
    target = lone((*both, *one)).ranks[0].target
    assert target.bytes_per_token == 4096 + 2048


def test_layers_that_keep_nothing_are_placed_and_cost_nothing():
    none = (tkv.Layer(kind="none"),)
    plan = lone(gqa(1) + none + none + gqa(1), layout={"pp_size": 2})
    assert [len(rank.target.layers) for rank in plan.ranks] == [2, 2]
    assert [rank.target.groups[0].layer_indices for rank in plan.ranks] == [(0,), (3,)]


# --- windows against the longest sequence ------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "reuse", "window", "full"),
    [
        (None, True, 4095, False),
        (None, True, 4096, True),
        ("eagle3", True, 4094, False),
        ("eagle3", True, 4095, True),
        ("eagle3", False, 4095, False),
        ("mtp_vanilla", True, 4092, True),
        ("draft_target_one_model", True, 4095, False),
    ],
)
def test_windows_are_widened_by_the_lookahead_where_blocks_are_reused(
    *, mode: str | None, reuse: bool, window: int, full: bool
):
    plan = tkv.plan(
        model(gqa(1, window=window)),
        mode and model(gqa(4), "draft"),
        config=config(enable_block_reuse=reuse),
        speculative=mode and tkv.SpeculativeConfig(mode=mode, max_draft_len=4),
    )
    assert (only_group(plan).lifetime == "full_attention") is full


def test_a_model_of_windows_has_no_token_limit():
    plan = lone(gqa(4, window=512), layout={"pp_size": 2})
    assert (plan.num_blocks, plan.max_tokens, plan.max_concurrency) == (0, None, 16)
    assert plan.max_request_len == plan.max_seq_len == 4096
    assert "tokens are not limited" in str(plan)
    rank = plan.ranks[0]
    assert rank.target.device_bytes == (16 * 17 + 1) * 32 * 2 * 4096
    assert rank.slack_bytes == 8 * GIB - rank.target.device_bytes


def test_a_batch_that_does_not_fit_is_answered_with_one_that_does():
    layers = gqa(1) + state(1, 2**20)
    sizes = {"max_gpu_total_bytes": "64MiB", "num_dummy_requests": 1}
    with pytest.raises(tkv.BudgetError) as caught:
        lone(layers, max_batch_size=100, **sizes)
    assert caught.value.target_fixed_bytes == 102 * 2**20
    largest = caught.value.largest_batch_size
    # 64 MiB less two pages of tokens, a reserved state and a dummy's.
    assert largest == (2**26 - 2 * 32 * 4096 - 2 * 2**20) // 2**20
    assert lone(layers, max_batch_size=largest, **sizes).num_blocks >= 2
    with pytest.raises(tkv.BudgetError):
        lone(layers, max_batch_size=largest + 1, **sizes)


# --- exact bytes beside the affine bound -------------------------------------------------------


def test_a_request_has_fixed_bytes_and_bytes_per_token():
    # vllm#51041: 96 MiB and 40 KiB per token.
    target = lone((byte_layer(40 * 1024), *state(1, 96 * 2**20))).ranks[0].target
    assert target.bytes(8192) == 416 * 2**20
    assert target.bytes(131072, batch=2) == 2 * 5216 * 2**20
    assert (target.bytes_per_token, target.per_sequence_bytes) == (40 * 1024, 96 * 2**20)


def test_short_sequences_pay_for_windows_by_the_token():
    # hf-mem#60: below the window its layers cost like all others.
    target = lone(gqa(1) + gqa(1, window=1024)).ranks[0].target
    assert target.bytes(512) == 2 * 512 * 4096
    assert target.bytes(1024) == 2 * 1024 * 4096
    assert target.bytes(4096) == (4096 + 33 * 32) * 4096


lifetimes = st.sampled_from(
    [{}, {"window": 64}, {"window": 500}, {"window": 64, "sink_tokens": 4}, {"chunk": 96}]
)


@given(
    layers=st.lists(lifetimes, min_size=1, max_size=5),
    states=st.integers(0, 2),
    tokens_per_block=st.sampled_from([8, 32, 100]),
    batch=st.integers(1, 4),
    mode=st.sampled_from([None, "ngram", "eagle3", "pard"]),
    step=st.sampled_from([None, 64, 1000]),
    endpoints=st.integers(0, 2),
    cp_size=st.sampled_from([1, 2]),
    data=st.data(),
)
def test_every_byte_is_explained_and_the_bound_covers_what_is_in_use(
    *,
    layers: list[dict[str, int]],
    states: int,
    tokens_per_block: int,
    batch: int,
    mode: str | None,
    step: int | None,
    endpoints: int,
    cp_size: int,
    data: st.DataObject,
):
    has_draft = mode in ("eagle3", "pard")
    plan = tkv.plan(
        model(tuple(byte_layer(64, **lifetime) for lifetime in layers) + state(states, 999)),
        model((byte_layer(32), byte_layer(32, window=64)), "draft") if has_draft else None,
        config=config(
            max_gpu_total_bytes="64MiB",
            host_cache_size="1MiB" if endpoints else 0,
            max_seq_len=600,
            tokens_per_block=tokens_per_block,
            max_batch_size=batch,
            max_num_tokens=step,
            cached_endpoints=endpoints,
            state_snapshot_interval=data.draw(st.sampled_from([None, 3 * tokens_per_block])),
            max_util_for_resume=data.draw(st.sampled_from([None, 0.9])),
        ),
        mapping=tkv.Mapping(cp_size=cp_size),
        speculative=mode and tkv.SpeculativeConfig(mode=mode, max_draft_len=3),
    )
    rank = plan.ranks[0]
    for tier in ("device", "host"):
        terms = [term for term in explain(plan) if term.tier == tier]
        assert sum(term.bytes for term in terms) == rank.tiers[tier].budget_bytes
    lengths = data.draw(st.integers(0, 600))
    for role in filter(None, (rank.target, rank.draft)):
        fixed = role.per_engine_bytes + role.per_step_bytes
        assert role.fixed_bytes == fixed + plan.max_sequences * role.per_sequence_bytes
        used = role.bytes(lengths, batch, ahead=plan.headroom_tokens)
        blocks = batch * plan.blocks_of(lengths)
        grows = sum(g.page_bytes for g in role.groups if g.fixed is None)
        assert used <= blocks * grows + batch * role.per_sequence_bytes
        # The bound is reached: no sequence length charges less than the windows take at most.
        most = max(role.bytes(n, ahead=plan.headroom_tokens) - plan.blocks_of(n) * grows
                   for n in range(0, 600, 37))  # fmt: skip
        assert most <= role.per_sequence_bytes

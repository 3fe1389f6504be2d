"""Plans: placement, exact sums, capacities, refusals."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest
from budget_cases import GIB, gqa, mla, model
from hypothesis import given
from hypothesis import strategies as st

import tandemkv as tkv

DRAFT_MODES = [
    *("eagle3_one_model", "mtp_one_model", "mtp_vanilla", "pard", "dflash", "dspark"),
    *("draft_target_one_model", "two_model"),
]
LAST_RANK_MODES = {"eagle3_one_model", "mtp_one_model", "mtp_vanilla"}
NO_DRAFT_MODES = ["ngram", "sa", "user_provided", "shared_kv_mtp"]


def config(**values: Any) -> tkv.KvCacheConfig:
    return tkv.KvCacheConfig(**({"max_gpu_total_bytes": 40 * GIB, "max_seq_len": 4096} | values))


def spec(mode: str = "eagle3", max_draft_len: int = 4) -> tkv.SpeculativeConfig:
    return tkv.SpeculativeConfig(mode=mode, max_draft_len=max_draft_len)


def llama_plan(**values: Any) -> tkv.Plan:
    return tkv.plan(
        model(gqa(32)), model(gqa(1), "draft"), config=config(**values), speculative=spec()
    )


# --- what fits ---------------------------------------------------------------------------------


def test_capacity_of_a_pair():
    plan = llama_plan()
    # 40 GiB // (32 tokens * (131,072 + 4,096) B) = 9,929 pages, of which page 0 is reserved.
    assert plan.num_blocks == 9929
    assert plan.max_tokens == 9928 * 32
    # cdiv(4,096 + 3 extra + 4 reserve + 1, 32) = 129 blocks per request.
    assert plan.max_concurrency == 9928 // 129
    assert plan.concurrency(512) == 9928 // 17
    # The batch of 256 runs; memory alone would hold more of the short ones.
    assert (plan.max_running_requests, plan.running_requests(512)) == (9928 // 129, 256)
    assert plan.max_request_len == 4096
    assert (plan.extra_tokens, plan.reserve_tokens, plan.lookahead) == (3, 4, 1)
    assert plan.row_width == 132
    assert plan.has_draft


def test_a_model_alone():
    plan = tkv.plan(model(gqa(32)), config=config())
    assert plan.num_blocks == 10240
    assert plan.ranks[0].draft is None
    assert not plan.has_draft
    assert (plan.extra_tokens, plan.reserve_tokens, plan.lookahead) == (0, 0, 0)


@pytest.mark.parametrize("mode", NO_DRAFT_MODES)
def test_modes_without_draft_kv_pay_for_no_draft(mode: str):
    plan = tkv.plan(model(gqa(32)), config=config(), speculative=spec(mode))
    assert plan.num_blocks == 10240
    assert not plan.has_draft
    assert plan.reserve_tokens == 4


def test_the_longest_request_that_fits_does_fit():
    plan = tkv.plan(
        model(gqa(32)),
        model(gqa(1), "draft"),
        config=config(max_gpu_total_bytes=20 * 32 * 135168, max_seq_len=100_000),
        speculative=spec(),
    )
    # 19 usable pages of 32 tokens; 3 extra, 4 reserve and one token more than the request.
    assert plan.max_concurrency == 0
    assert plan.max_request_len == 19 * 32 - 8
    assert plan.concurrency(plan.max_request_len) == 1
    assert plan.concurrency(plan.max_request_len + 1) == 0
    assert "the longest that fits has 600 tokens" in str(plan)


def test_max_seq_len_comes_from_the_target_if_not_given():
    plan = tkv.plan(model(gqa(32), positions=8192), config=config(max_seq_len=None))
    assert plan.max_seq_len == 8192
    with pytest.raises(tkv.ConfigError, match="max_position_embeddings"):
        tkv.plan(model(gqa(32)), config=config(max_seq_len=None))


def test_fewer_declared_positions_are_reported_not_enforced():
    plan = tkv.plan(
        model(gqa(32), positions=131072),
        model(gqa(1), "draft", positions=2048),
        config=config(),
        speculative=spec(),
    )
    [note] = plan.notes
    assert "2,048 positions" in note
    assert "draft" in note


# --- who holds what ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", DRAFT_MODES)
def test_placement_of_draft_layers(mode: str):
    plan = tkv.plan(
        model(gqa(8)),
        model(gqa(6), "draft"),
        config=config(),
        mapping=tkv.Mapping(pp_size=4),
        speculative=spec(mode),
    )
    held = [0 if rank.draft is None else len(rank.draft.layers) for rank in plan.ranks]
    assert held == ([0, 0, 0, 6] if mode in LAST_RANK_MODES else [2, 2, 1, 1])


def test_vanilla_mtp_needs_a_module_per_draft_token():
    def made(num_modules: int) -> tkv.Plan:
        return tkv.plan(
            model(gqa(8)),
            model(gqa(num_modules), "draft"),
            config=config(),
            speculative=spec("mtp_vanilla", 3),
        )

    assert len(made(3).ranks[0].draft.layers) == 3
    with pytest.raises(tkv.ConfigError, match=r"max_draft_len is 3.* has 2; mtp_one_model") as e:
        made(2)
    assert (e.value.field, e.value.value) == ("max_draft_len", 3)


def test_a_spread_draft_shorter_than_the_pipeline_leaves_stages_without_a_view():
    plan = tkv.plan(
        model(gqa(8)),
        model(gqa(1), "draft"),
        config=config(),
        mapping=tkv.Mapping(pp_size=2),
        speculative=spec("draft_target_one_model"),
    )
    assert [rank.draft is None for rank in plan.ranks] == [False, True]
    assert plan.has_draft


def test_an_explicit_partition():
    mapping = tkv.Mapping(pp_size=4, pp_partition=(23, 24, 24, 23))
    plan = tkv.plan(model(gqa(94)), config=config(), mapping=mapping)
    assert [len(rank.target.layers) for rank in plan.ranks] == [23, 24, 24, 23]
    owned = [index for rank in plan.ranks for index in rank.target.layer_indices]
    assert owned == list(range(94))
    # The heaviest stage decides: 40 GiB // (24 layers * 4,096 B * 32 tokens).
    assert plan.num_blocks == 13653


def test_ranks_are_numbered_stage_by_stage():
    mapping = tkv.Mapping(tp_size=4, pp_size=2)
    plan = tkv.plan(model(gqa(32)), config=config(), mapping=mapping)
    assert [(r.rank, r.pp_rank, r.tp_rank) for r in plan.ranks] == [
        (pp * 4 + tp, pp, tp) for pp in range(2) for tp in range(4)
    ]


def test_layers_keep_their_order_and_differences():
    layers = (*gqa(2), *mla(1), *gqa(1, kv_heads=4))
    plan = tkv.plan(model(layers), config=config(), mapping=tkv.Mapping(pp_size=2))
    assert plan.ranks[0].target.layers == layers[:2]
    assert plan.ranks[1].target.layers == layers[2:]
    assert plan.ranks[0].target.bytes_per_token == 2 * 4096
    assert plan.ranks[1].target.bytes_per_token == 1152 + 2048


def test_each_role_has_its_own_width():
    def bytes_per_token(**mapping: Any) -> tuple[int, int]:
        plan = tkv.plan(
            model(gqa(1)),
            model(gqa(1), "draft"),
            config=config(),
            mapping=tkv.Mapping(**mapping),
            speculative=spec(),
        )
        assert plan.data_parallel_size == (4 if mapping.get("enable_attention_dp") else 1)
        return plan.ranks[0].target.bytes_per_token, plan.ranks[0].draft.bytes_per_token

    assert bytes_per_token(tp_size=4) == (1024, 1024)
    assert bytes_per_token(tp_size=4, draft_tp_size=1) == (1024, 4096)
    assert bytes_per_token(tp_size=4, draft_tp_size=2) == (1024, 2048)
    # Under attention data parallelism every rank keeps whole heads.
    assert bytes_per_token(tp_size=4, enable_attention_dp=True) == (4096, 4096)


# --- exact sums --------------------------------------------------------------------------------


layer_lists = st.lists(
    st.sampled_from(
        [
            *(gqa(1, heads, dim, dtype)[0] for heads, dim, dtype in [
                (8, 128, "bf16"), (4, 64, "fp8"), (1, 256, "fp32"), (16, 64, "nvfp4"),
            ]),
            mla(1)[0],
            mla(1, "nvfp4", indexer_k=132)[0],
        ]
    ),
    min_size=4,
    max_size=12,
)  # fmt: skip


@given(
    targets=layer_lists,
    drafts=layer_lists,
    mode=st.sampled_from(DRAFT_MODES),
    layout=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 3), (1, 4)]),
    tokens_per_block=st.sampled_from([1, 16, 32, 64, 100]),
    budgets=st.tuples(
        st.integers(2**24, 2**34),
        st.just(0) | st.integers(2**24, 2**34),
        st.just(0) | st.integers(2**24, 2**34),
    ),
)
def test_bytes_add_up_exactly_on_every_rank_and_tier(
    *,
    targets: list[tkv.Layer],
    drafts: list[tkv.Layer],
    mode: str,
    layout: tuple[int, int],
    tokens_per_block: int,
    budgets: tuple[int, int, int],
):
    mapping = tkv.Mapping(tp_size=layout[0], pp_size=layout[1])
    plan = tkv.plan(
        model(tuple(targets)),
        model(tuple(drafts), "draft"),
        config=config(
            max_gpu_total_bytes=budgets[0],
            host_cache_size=budgets[1],
            disk_cache_size=budgets[2],
            tokens_per_block=tokens_per_block,
        ),
        mapping=mapping,
        # A module of vanilla MTP per draft token.
        speculative=spec(mode, len(drafts) if mode == "mtp_vanilla" else 4),
    )
    tiers = dict(zip(("device", "host", "disk"), budgets, strict=True))
    blocks = {
        "device": plan.num_blocks,
        "host": plan.num_host_blocks,
        "disk": plan.num_disk_blocks,
    }
    page_bytes = []
    for rank in plan.ranks:
        roles = [rank.target] + ([rank.draft] if rank.draft else [])
        for role in roles:
            # Independent of the solver: the pool that the layers of this rank really need.
            price = sum(layer.bytes_per_token(mapping.tp_size) for layer in role.layers)
            assert role.bytes_per_token == price
            assert role.page_bytes == price * tokens_per_block
            assert (role.num_pages, role.num_host_pages, role.num_disk_pages) == tuple(
                blocks.values()
            )
            for tier, count in blocks.items():
                assert role.tier_bytes(tier) == count * role.page_bytes
            [group] = role.groups
            assert group.device_bytes == role.device_bytes
            assert group.layer_indices == role.layer_indices
        page_bytes.append(sum(role.page_bytes for role in roles))
        for tier, budget in tiers.items():
            used = sum(role.tier_bytes(tier) for role in roles)
            assert used + rank.tiers[tier].slack_bytes == rank.tiers[tier].budget_bytes == budget
    for tier, budget in tiers.items():
        assert blocks[tier] == min(budget // size for size in page_bytes)
    held = sorted(
        index for rank in plan.ranks[:: mapping.tp_size] if rank.draft
        for index in rank.draft.layer_indices
    )  # fmt: skip
    assert held == list(range(len(drafts)))


def test_host_and_disk_do_not_change_the_device():
    alone, tiered = llama_plan(), llama_plan(host_cache_size="64GiB", disk_cache_size="1TiB")
    assert alone.num_blocks == tiered.num_blocks
    # 64 GiB // (32 * 135,168 B); the lower tiers reserve no page.
    assert tiered.num_host_blocks == 15887
    assert alone.ranks[0].tiers.host.to_dict() == {"budget_bytes": 0, "slack_bytes": 0}
    assert alone.ranks[0].draft.host_bytes == 0


# --- refusals ----------------------------------------------------------------------------------


def test_the_device_must_hold_two_pages():
    page_bytes = 32 * (131072 + 4096)
    assert llama_plan(max_gpu_total_bytes=2 * page_bytes).max_tokens == 32
    with pytest.raises(tkv.BudgetError) as caught:
        llama_plan(max_gpu_total_bytes=2 * page_bytes - 1)
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.tier, error.rank) == ("device", 0)
    assert error.budget_bytes == 2 * page_bytes - 1
    assert (error.target_page_bytes, error.draft_page_bytes) == (32 * 131072, 32 * 4096)
    assert (error.target_fixed_bytes, error.draft_fixed_bytes, error.fixed_bytes) == (0, 0, 0)
    assert (error.required_pages, error.required_bytes) == (2, 2 * page_bytes)
    assert error.shortfall_bytes == 1
    for number in (error.budget_bytes, error.required_bytes, 32 * 131072, 32 * 4096):
        assert str(number) in str(error)


def test_the_rank_that_is_short_is_named():
    with pytest.raises(tkv.BudgetError) as caught:
        tkv.plan(
            model(gqa(4)),
            model(gqa(2), "draft"),
            config=config(max_gpu_total_bytes=2 * 32 * 2 * 2048),
            mapping=tkv.Mapping(tp_size=2, pp_size=2),
            speculative=spec(),
        )
    # Both stages hold two target layers of 2,048 B; the last one also the draft.
    assert caught.value.rank == 2
    assert caught.value.shortfall_bytes == 2 * 32 * 2 * 2048


@pytest.mark.parametrize(
    ("tier", "field"), [("host", "host_cache_size"), ("disk", "disk_cache_size")]
)
def test_a_lower_tier_that_buys_no_page_is_refused(tier: str, field: str):
    page_bytes = 32 * 135168
    plan = llama_plan(**{field: page_bytes})
    assert plan.to_dict()[f"num_{tier}_blocks"] == 1
    with pytest.raises(tkv.BudgetError) as caught:
        llama_plan(**{field: page_bytes - 1})
    assert (caught.value.tier, caught.value.shortfall_bytes) == (tier, 1)


def test_more_pages_than_a_block_table_addresses_are_refused():
    layer = mla(1, "fp8")
    with pytest.raises(tkv.BudgetError, match="2147483647"):
        tkv.plan(model(layer), config=config(max_gpu_total_bytes="4TiB", tokens_per_block=1))


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"target": "config.json"}, "target", ("'config.json'", "ModelGeometry")),
        ({"draft": "config.json", "speculative": spec()}, "draft", ("ModelGeometry",)),
        ({"config": {}}, "config", ("KvCacheConfig",)),
        ({"mapping": 8}, "mapping", ("8", "Mapping")),
        ({"speculative": "eagle3"}, "speculative", ("'eagle3'", "SpeculativeConfig")),
        ({"draft": model(gqa(1), "draft")}, "speculative", ("None",)),
        ({"speculative": spec()}, "draft", ("eagle3_one_model",)),
        (
            {"draft": model(gqa(1), "draft"), "speculative": spec("ngram")},
            "draft",
            ("'ngram'",),
        ),
        ({"draft": model(gqa(1)), "speculative": spec()}, "draft", ("role='draft'",)),
        ({"target": model(gqa(1), "draft")}, "target", ("role='target'",)),
        ({"mapping": tkv.Mapping(draft_tp_size=1)}, "draft_tp_size", ("no draft",)),
        ({"mapping": tkv.Mapping(pp_size=64)}, "pp_size", ("64", "32 layers")),
        (
            {"mapping": tkv.Mapping(pp_size=2, pp_partition=(30, 31))},
            "pp_partition",
            ("61", "32"),
        ),
        ({"speculative": spec("ngram", 4096)}, "max_draft_len", ("4096",)),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], field: str, words: tuple[str, ...]):
    with pytest.raises(tkv.ConfigError) as caught:
        tkv.plan(**({"target": model(gqa(32)), "config": config()} | arguments))
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)


def test_heads_that_ranks_cannot_hold_whole_are_refused():
    with pytest.raises(tkv.GeometryError, match=r"6 KV heads .* tp_size 8"):
        tkv.plan(model(gqa(4, kv_heads=6)), config=config(), mapping=tkv.Mapping(tp_size=8))
    plan = tkv.plan(model(gqa(4)), config=config(), mapping=tkv.Mapping(tp_size=32))
    assert plan.ranks[31].target.bytes_per_token == 4 * 512


@pytest.mark.parametrize("request_len", [0, -1, 4097, 1.5])
def test_concurrency_is_asked_for_lengths_that_can_be(request_len: Any):
    with pytest.raises(tkv.ConfigError, match="request_len"):
        llama_plan().concurrency(request_len)


# --- the result --------------------------------------------------------------------------------


def test_json_has_the_keys_that_stay():
    answer = json.loads(json.dumps(llama_plan(host_cache_size="64GiB").to_dict()))
    top = {"num_blocks", "max_tokens", "max_concurrency", "tokens_per_block", "ranks"}
    top |= {"max_running_requests", "max_sequences"}
    assert top <= set(answer)
    [rank] = answer["ranks"]
    assert set(rank) >= {
        *("rank", "pp_rank", "tp_rank", "budget_bytes", "slack_bytes"),
        *("target", "draft", "tiers"),
    }
    assert set(rank["tiers"]) == {"device", "host", "disk"}
    assert set(rank["tiers"]["host"]) == {"budget_bytes", "slack_bytes"}
    assert rank["budget_bytes"] == rank["tiers"]["device"]["budget_bytes"]
    assert rank["slack_bytes"] == rank["tiers"]["device"]["slack_bytes"]
    role_keys = {
        *("bytes_per_token", "fixed_bytes", "page_bytes", "num_pages", "device_bytes"),
        *("host_bytes", "num_host_pages", "disk_bytes", "num_disk_pages", "layers", "groups"),
    }
    for role, layers in (("target", 32), ("draft", 1)):
        assert role_keys <= set(rank[role])
        assert rank[role]["layers"] == layers
        [group] = rank[role]["groups"]
        assert group["num_pages"] == rank[role]["num_pages"] == answer["num_blocks"]


def test_a_plan_is_immutable_and_travels():
    plan = llama_plan()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.num_blocks = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.ranks[0].target.num_pages = 1
    assert pickle.loads(pickle.dumps(plan)) == plan == copy.deepcopy(plan) == llama_plan()


def test_a_plan_prints_who_gets_what():
    text = str(
        tkv.plan(
            model(gqa(32)),
            model(gqa(1), "draft"),
            config=config(host_cache_size="64GiB"),
            mapping=tkv.Mapping(tp_size=4, pp_size=2),
            speculative=spec(),
        )
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["ranks", "role", "layers", "bytes/token", "page", "pages", "device", "host"] in rows
    assert ["0-3", "draft", "0", "0", "B", "0", "B"] in rows
    assert ["4-7", "budget", "40.00", "GiB", "64.00", "GiB"] in rows
    assert "eagle3_one_model, 4 draft tokens" in text
    assert "GPU KV cache size: 2,467,200 tokens" in text


def test_attention_dp_capacity_is_per_rank_and_in_all():
    plan = tkv.plan(
        model(gqa(32)),
        config=config(),
        mapping=tkv.Mapping(tp_size=8, enable_attention_dp=True),
    )
    assert plan.max_tokens == 10239 * 32
    assert f"{8 * 10239 * 32:,} tokens on 8 ranks" in str(plan)

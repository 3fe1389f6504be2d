"""Every reference case of the budget that is in scope, against the planner and the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from budget_cases import GIB, Case, described, gqa, load_cases, mla, model, pair

import tandemkv as tkv
from tandemkv import _core

# Kinds that need more than layers which keep every token. A kind that is in neither table fails.
LATER = {
    "window_resolution": "sliding-window layers are not planned yet",
    "window_cost": "sliding-window layers are not planned yet",
    "window_capacity": "sliding-window layers are not planned yet",
    "prompt_bytes": "sliding-window layers are not planned yet",
    "resume_margin": "the margin is part of the fixed cost of window pools",
    "quota": "no utilisation limit is offered",
    "auto_host": "no automatic host size is offered",
}
# Their prices belong to LATER; their splits start from the costs that the case states.
PRICED_LATER = {
    "budget-067": "sliding-window layers",
    "budget-072": "recurrent state layers",
    "budget-073": "recurrent state layers",
}
CHECKS: dict[str, Callable[[Case, Case], None]] = {}


def check(kind: str) -> Callable[[Callable[[Case, Case], None]], Callable[[Case, Case], None]]:
    def register(function: Callable[[Case, Case], None]) -> Callable[[Case, Case], None]:
        CHECKS[kind] = function
        return function

    return register


def in_scope() -> list[Case]:
    return [case for case in load_cases() if case["kind"] not in LATER]


def test_every_kind_of_case_is_checked_or_listed_as_later():
    kinds = {case["kind"] for case in load_cases()}
    assert kinds == set(CHECKS) | set(LATER)
    assert not set(CHECKS) & set(LATER)
    assert set(PRICED_LATER) <= {case["id"] for case in in_scope()}


@pytest.mark.parametrize("case", in_scope(), ids=lambda case: f"{case['id']}-{case['kind']}")
def test_case(case: Case):
    CHECKS[case["kind"]](case["inputs"], {"id": case["id"], **case["expected"]})


def plan_pair(
    target: tkv.ModelGeometry,
    draft: tkv.ModelGeometry,
    *,
    mode: str = "draft_target_one_model",
    tp_size: int = 1,
    pp_size: int = 1,
    **config: object,
) -> tkv.Plan:
    return tkv.plan(
        target,
        draft,
        config=tkv.KvCacheConfig(**{"max_gpu_total_bytes": 40 * GIB, "max_seq_len": 4096} | config),
        mapping=tkv.Mapping(tp_size=tp_size, pp_size=pp_size),
        speculative=tkv.SpeculativeConfig(mode=mode, max_draft_len=4),
    )


@check("layer_cost")
def check_layer_cost(inputs: Case, expected: Case) -> None:
    geometry = described(inputs["layer"])
    assert geometry.bytes_per_token(inputs["tp_size"]) == expected["bytes_per_token"]
    if "speculative_depth" in inputs:
        draft = described(inputs["layer"], "draft")
        mode = tkv.SpeculativeConfig(mode="eagle3", max_draft_len=inputs["speculative_depth"])
        config = tkv.KvCacheConfig(max_gpu_total_bytes=GIB, max_seq_len=4096)
        plan = tkv.plan(model(gqa(2)), draft, config=config, speculative=mode)
        assert plan.ranks[0].draft.bytes_per_token == expected["bytes_per_token"]


@check("state_bytes")
def check_state_bytes(inputs: Case, expected: Case) -> None:
    # A convolution of kernel k keeps k - 1 inputs of the heads and of both group projections.
    kept = inputs["conv_kernel"] - 1
    parts = {
        "conv": [
            (inputs["num_heads"], inputs["head_dim"] * kept, inputs["conv_dtype"]),
            (inputs["n_groups"], 2 * inputs["state_size"] * kept, inputs["conv_dtype"]),
        ],
        "recurrent": [
            (
                inputs["num_heads"],
                inputs["head_dim"] * inputs["state_size"],
                inputs["recurrent_dtype"],
            )
        ],
    }
    buffers = {
        part: [
            tkv.StateBuffer(name=part, split_units=units, unit_elements=elements, dtype=dtype)
            for units, elements, dtype in sizes
        ]
        for part, sizes in parts.items()
    }
    for part, own in buffers.items():
        layer = tkv.Layer(kind="state", state_buffers=own)
        assert layer.state_bytes(inputs["tp_size"]) == expected[f"{part}_bytes"]
    whole = tkv.Layer(kind="state", state_buffers=buffers["conv"] + buffers["recurrent"])
    assert whole.state_bytes(inputs["tp_size"]) == expected["state_bytes"]
    if "all_layers_bytes" in expected:
        geometry = tkv.ModelGeometry(layers=[whole] * inputs["layers"])
        assert geometry.state_bytes(inputs["tp_size"]) == expected["all_layers_bytes"]


@check("extra_tokens")
def check_extra_tokens(inputs: Case, expected: Case) -> None:
    assert tkv.SpeculativeConfig(**inputs).extra_tokens == expected["extra_kv_tokens"]


@check("headroom")
def check_headroom(inputs: Case, expected: Case) -> None:
    spec = tkv.SpeculativeConfig(**inputs)
    assert spec.tokens_per_step == expected["tokens_per_step"]
    assert spec.reserve_tokens == expected["reserve_tokens"]
    assert spec.headroom_tokens == expected["headroom_tokens"]


@check("row_width")
def check_row_width(inputs: Case, expected: Case) -> None:
    mode = {4: "eagle3", 7: "pard"}[inputs["reserve_tokens"]]
    plan = tkv.plan(
        model(gqa(2)),
        model(gqa(1), "draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=GIB,
            max_seq_len=inputs["max_seq_len"],
            tokens_per_block=inputs["tokens_per_block"],
        ),
        speculative=tkv.SpeculativeConfig(mode=mode, max_draft_len=4),
    )
    assert (plan.extra_tokens, plan.reserve_tokens) == (
        inputs["extra_kv_tokens"],
        inputs["reserve_tokens"],
    )
    assert plan.blocks_of(plan.max_seq_len) == expected["blocks"]
    assert plan.row_width == expected["row_width"]


@check("split_bytes")
def check_split_bytes(inputs: Case, expected: Case) -> None:
    check_byte_split(inputs, inputs["target_cost"], inputs["draft_cost"], expected)


def check_byte_split(inputs: Case, target: Case, draft: Case, expected: Case) -> None:
    def call() -> tkv.ByteSplit:
        tier = inputs.get("tier", "device")
        return tkv.split_budget(inputs["budget_bytes"], pair(target), pair(draft), tier=tier)

    if "error" in expected:
        with pytest.raises(tkv.BudgetError) as caught:
            call()
        assert caught.value.budget_bytes == expected["budget_bytes"]
        assert caught.value.fixed_bytes == expected["fixed_bytes"]
        assert f"{expected['budget_bytes']} bytes" in str(caught.value)
        return
    split = call()
    for field in ("split", "target_bytes", "draft_bytes", "target_tokens", "draft_tokens"):
        if field in expected:
            assert getattr(split, field) == expected[field], field
    assert split.target_bytes + split.draft_bytes == inputs["budget_bytes"]


@check("split_pages")
def check_split_pages(inputs: Case, expected: Case) -> None:
    target, draft = inputs["target_cost"], inputs["draft_cost"]
    check_byte_split(inputs, target, draft, expected["byte_split"])
    check_page_split(inputs, target, draft, expected["page_split"])


def check_page_split(inputs: Case, target: Case, draft: Case, expected: Case) -> None:
    pages, [(alone, target_bytes, draft_bytes, slack_bytes)] = _core.split_pages(
        tier=inputs["tier"],
        tokens_per_block=inputs["tokens_per_block"],
        budget_bytes=[inputs["budget_bytes"]],
        target=[pair(target)],
        draft=[pair(draft)],
    )
    assert pages == alone == expected["pages"]
    assert pages * inputs["tokens_per_block"] == expected["tokens"]
    assert target_bytes == expected["target_bytes"]
    assert draft_bytes == expected["draft_bytes"]
    assert slack_bytes == expected["slack_bytes"]


@check("split_model")
def check_split_model(inputs: Case, expected: Case) -> None:
    target_cost, draft_cost = expected["target_cost"], expected["draft_cost"]
    check_byte_split(inputs, target_cost, draft_cost, expected["byte_split"])
    if expected["id"] in PRICED_LATER:
        check_page_split(inputs, target_cost, draft_cost, expected["page_split"])
        return
    tier, pages = inputs["tier"], expected["page_split"]
    sizes: dict[str, object] = {"tokens_per_block": inputs["tokens_per_block"]}
    field = {"device": "max_gpu_total_bytes", "host": "host_cache_size"}[tier]
    sizes[field] = inputs["budget_bytes"]
    target, draft = described(inputs["target"]), described(inputs["draft"], "draft")
    if pages["pages"] == 0:
        # A budget that buys no page is refused, not passed on as a tier of nothing.
        with pytest.raises(tkv.BudgetError) as caught:
            plan_pair(target, draft, tp_size=inputs["tp_size"], **sizes)
        assert (caught.value.tier, caught.value.budget_bytes) == (tier, inputs["budget_bytes"])
        page_bytes = (target_cost["slope"] + draft_cost["slope"]) * inputs["tokens_per_block"]
        assert caught.value.required_bytes == page_bytes
        assert caught.value.shortfall_bytes == page_bytes - inputs["budget_bytes"]
        return
    plan = plan_pair(target, draft, tp_size=inputs["tp_size"], **sizes)
    assert len(plan.ranks) == inputs["tp_size"]
    for rank in plan.ranks:
        assert (rank.target.bytes_per_token, rank.target.fixed_bytes) == pair(target_cost)
        assert (rank.draft.bytes_per_token, rank.draft.fixed_bytes) == pair(draft_cost)
        assert rank.target.tier_bytes(tier) == pages["target_bytes"]
        assert rank.draft.tier_bytes(tier) == pages["draft_bytes"]
        assert rank.tiers[tier].budget_bytes == inputs["budget_bytes"]
        assert rank.tiers[tier].slack_bytes == pages["slack_bytes"]
        counts = {"device": rank.draft.num_pages, "host": rank.draft.num_host_pages}
        assert counts[tier] == pages["pages"]
    blocks = {"device": plan.num_blocks, "host": plan.num_host_blocks}[tier]
    assert blocks == pages["pages"]
    assert blocks * plan.tokens_per_block == pages["tokens"]


@check("wrong_price")
def check_wrong_price(inputs: Case, expected: Case) -> None:
    split = tkv.split_budget(
        inputs["budget_bytes"], pair(inputs["target_cost"]), pair(inputs["draft_cost_charged"])
    )
    assert split.target_bytes == expected["target_bytes"]
    assert split.draft_bytes == expected["draft_bytes"]
    assert split.target_tokens == expected["target_tokens"]
    real = _core.cost_tokens(pair(inputs["draft_cost_real"]), split.draft_bytes)
    assert real == expected["draft_tokens_real"]
    # The plan charges the draft what its own pool takes, whatever the target's dtype.
    plan = plan_pair(model(mla(24, "fp8")), model(mla(5), "draft"))
    draft = plan.ranks[0].draft
    assert plan.ranks[0].target.bytes_per_token == inputs["target_cost"]["slope"]
    assert draft.bytes_per_token == inputs["draft_cost_real"]["slope"]
    assert draft.device_bytes == draft.num_pages * plan.tokens_per_block * draft.bytes_per_token


@check("infeasible")
def check_infeasible(inputs: Case, expected: Case) -> None:
    with pytest.raises(tkv.BudgetError) as caught:
        _core.split_pages(
            tier="device",
            tokens_per_block=32,
            budget_bytes=[inputs["budget_bytes"]],
            target=[pair(inputs["target_cost"])],
            draft=[(0, 0)],
            bytes_per_sequence=[inputs["per_sequence_bytes"]],
            max_batch_size=inputs["max_batch_size"],
        )
    error = caught.value
    assert error.budget_bytes == expected["budget_bytes"]
    assert error.fixed_bytes == expected["fixed_bytes"]
    assert error.shortfall_bytes == expected["fixed_bytes"] - expected["budget_bytes"]
    assert error.largest_batch_size == inputs["budget_bytes"] // inputs["per_sequence_bytes"]


@check("pp_layers")
def check_pp_layers(inputs: Case, expected: Case) -> None:
    plan = plan_pair(
        model(gqa(inputs["target_layers"])),
        model(gqa(inputs["draft_layers"]), "draft"),
        mode=inputs["mode"],
        pp_size=inputs["pp_size"],
    )
    targets = [len(rank.target.layers) for rank in plan.ranks]
    drafts = [0 if rank.draft is None else len(rank.draft.layers) for rank in plan.ranks]
    assert targets == expected["target_layers_per_rank"]
    assert drafts == expected["draft_layers_per_rank"]
    owned = [index for rank in plan.ranks for index in rank.target.layer_indices]
    assert owned == list(range(inputs["target_layers"]))


@check("pp_draft_bytes")
def check_pp_draft_bytes(inputs: Case, expected: Case) -> None:
    plan = plan_pair(
        described(inputs["target"]),
        described(inputs["draft"], "draft"),
        mode=inputs["mode"],
        pp_size=inputs["pp_size"],
        max_gpu_total_bytes=inputs["budget_bytes_per_rank"],
    )
    assert [rank.draft is not None for rank in plan.ranks] == expected["draft_view"]
    left = [r.budget_bytes - r.slack_bytes - r.target.device_bytes for r in plan.ranks]
    assert [size == 0 for size in left] == expected["draft_bytes_is_zero"]
    assert [rank["draft"] is None for rank in plan.to_dict()["ranks"]] == [
        not view for view in expected["draft_view"]
    ]


@check("pp_capacity")
def check_pp_capacity(inputs: Case, expected: Case) -> None:
    per_layer = inputs["layer_bytes_per_token"]
    targets, drafts = inputs["target_layers_per_rank"], inputs["draft_layers_per_rank"]
    pages, ranks = _core.split_pages(
        tier="device",
        tokens_per_block=inputs["tokens_per_block"],
        budget_bytes=inputs["budget_bytes_per_rank"],
        target=[(layers * per_layer, 0) for layers in targets],
        draft=[(layers * per_layer, 0) for layers in drafts],
    )
    assert [rank[0] for rank in ranks] == expected["pages_per_rank"]
    assert pages == expected["pages"]
    assert [rank[1:] for rank in ranks] == [
        (rank["target_bytes"], rank["draft_bytes"], rank["slack_bytes"])
        for rank in expected["ranks"]
    ]
    [budget] = set(inputs["budget_bytes_per_rank"])
    plan = plan_pair(
        model(gqa(sum(targets))),
        model(gqa(sum(drafts)), "draft"),
        mode="eagle3",
        pp_size=len(targets),
        max_gpu_total_bytes=budget,
        tokens_per_block=inputs["tokens_per_block"],
    )
    assert plan.num_blocks == expected["pages"]
    for rank, numbers in zip(plan.ranks, expected["ranks"], strict=True):
        assert rank.target.device_bytes == numbers["target_bytes"]
        assert (rank.draft.device_bytes if rank.draft else 0) == numbers["draft_bytes"]
        assert rank.slack_bytes == numbers["slack_bytes"]


@check("host_total")
def check_host_total(inputs: Case, expected: Case) -> None:
    plan = plan_pair(
        model(gqa(32)),
        model(gqa(1), "draft"),
        tp_size=inputs["ranks"],
        host_cache_size=inputs["host_bytes_per_rank"],
    )
    total = sum(
        rank.target.host_bytes + rank.draft.host_bytes + rank.tiers.host.slack_bytes
        for rank in plan.ranks
    )
    assert total == expected["total_bytes"]

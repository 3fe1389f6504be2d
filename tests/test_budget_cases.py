"""Every reference case of the budget, against the planner and the core."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from budget_cases import GIB, Case, byte_layer, described, gqa, load_cases, mla, model, pair, state

import tandemkv as tkv
from tandemkv import _core

CHECKS: dict[str, Callable[[Case, Case], None]] = {}


def check(kind: str) -> Callable[[Callable[[Case, Case], None]], Callable[[Case, Case], None]]:
    def register(function: Callable[[Case, Case], None]) -> Callable[[Case, Case], None]:
        CHECKS[kind] = function
        return function

    return register


def test_every_kind_of_case_is_checked():
    assert {case["kind"] for case in load_cases()} == set(CHECKS)


@pytest.mark.parametrize("case", load_cases(), ids=lambda case: f"{case['id']}-{case['kind']}")
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
    if "max_batch_size" in inputs:
        check_split_with_fixed_pages(inputs, expected)
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


def check_split_with_fixed_pages(inputs: Case, expected: Case) -> None:
    """Windows and states: the plan's costs are the case's, and one reserved page each."""
    target_cost, draft_cost = expected["target_cost"], expected["draft_cost"]
    check_page_split(inputs, target_cost, draft_cost, expected["page_split"])
    spec, draft = inputs["target"], described(inputs["draft"], "draft")
    heads = (spec["kv_heads"], spec["head_dim"], spec["kv_dtype"])
    sizes: dict[str, object] = {"max_batch_size": inputs["max_batch_size"]}
    if "window" in spec:
        windows = gqa(spec["window_layers"], *heads, window=spec["window"])
        target, mode = model(gqa(spec["full_layers"], *heads) + windows), "eagle3"
    else:
        # 36 layers, one of them with the rest of the bytes.
        states = state(36, spec["state_bytes_per_sequence"] // 36)
        target, mode = model(gqa(spec["attention_layers"], *heads) + states), "mtp_one_model"
        sizes["num_dummy_requests"] = inputs["state_slots"] - inputs["max_batch_size"]
        sizes["state_snapshot_interval"] = inputs["snapshot_interval"]
    # The reserved page is ours. A partial page per sequence is not: a copy takes a page of P.
    probe = plan_pair(target, draft, mode=mode, **sizes, max_gpu_total_bytes="80GiB")
    full, fixed = probe.ranks[0].target.groups
    partial_bytes = inputs.get("partial_pages", 0) * full.page_bytes
    ours = fixed.page_bytes - partial_bytes
    budget = inputs["budget_bytes"] + ours
    plan = plan_pair(target, draft, mode=mode, **sizes, max_gpu_total_bytes=budget)
    [rank], pages = plan.ranks, expected["page_split"]
    assert rank.target.bytes_per_token == target_cost["slope"]
    assert rank.target.fixed_bytes == target_cost["intercept"] + ours
    assert (rank.draft.bytes_per_token, rank.draft.fixed_bytes) == pair(draft_cost)
    assert plan.num_blocks == pages["pages"]
    assert rank.target.device_bytes == pages["target_bytes"] + ours
    assert rank.draft.device_bytes == pages["draft_bytes"]
    assert rank.slack_bytes == pages["slack_bytes"]


def lone_plan(layers: tuple[tkv.Layer, ...], **config: object) -> tkv.Plan:
    values = {"max_gpu_total_bytes": 40 * GIB, "max_seq_len": 4096, "max_batch_size": 1} | config
    return tkv.plan(model(layers), config=tkv.KvCacheConfig(**values))


def effective_windows(role: tkv.planning.RolePlan) -> list[int | None]:
    """Return the window of every layer in order; None where every token is kept."""
    found = {index: group.tokens or None for group in role.groups for index in group.layer_indices}
    return [found[index] for index in sorted(found)]


@check("window_resolution")
def check_window_resolution(inputs: Case, expected: Case) -> None:
    def layers(windows: list[int | None]) -> tuple[tkv.Layer, ...]:
        return tuple(byte_layer(64, window=window) for window in windows)

    max_seq_len = inputs["max_seq_len"]
    if "windows" in inputs:
        plan = lone_plan(layers(inputs["windows"]), max_seq_len=max_seq_len)
        assert effective_windows(plan.ranks[0].target) == expected["effective_windows"]
        return
    targets, drafts = layers(inputs["target_windows"]), layers(inputs["draft_windows"])
    plan = plan_pair(
        model(targets), model(drafts, "draft"), max_seq_len=max_seq_len, max_batch_size=4
    )
    assert effective_windows(plan.ranks[0].draft) == expected["draft_effective_windows"]
    assert effective_windows(plan.ranks[0].target) == inputs["target_windows"]


@check("window_cost")
def check_window_cost(inputs: Case, expected: Case) -> None:
    size = inputs["layer_bytes_per_token"]
    sizes = {name: inputs[name] for name in ("max_seq_len", "tokens_per_block", "max_batch_size")}
    config = tkv.KvCacheConfig(max_gpu_total_bytes=GIB, **sizes)
    if "window_pattern" in inputs:
        pattern, [here] = inputs["window_pattern"], inputs["layers_on_this_rank"]
        layers = [byte_layer(size, window=pattern[i % 2]) for i in range(inputs["layers"])]
        mapping = tkv.Mapping(pp_size=3, pp_partition=(here, 1, inputs["layers"] - here - 1))
        role = tkv.plan(model(tuple(layers)), config=config, mapping=mapping).ranks[1].target
        assert role.layer_indices == (here,)
        assert effective_windows(role) == expected["effective_windows"]
        assert (role.bytes_per_token, role.fixed_bytes) == pair(expected["cost"])
        return
    # A headroom of 2 and a lookahead of 1: one head that drafts one token.
    speculates = inputs["headroom_tokens"] > 1
    mode = tkv.SpeculativeConfig(mode="mtp_one_model", max_draft_len=1) if speculates else None
    plan = tkv.plan(
        model((byte_layer(size, window=inputs["window"]),)),
        model((byte_layer(size),), "draft") if speculates else None,
        config=config,
        speculative=mode,
    )
    assert plan.headroom_tokens == inputs["headroom_tokens"]
    assert plan.terms.lookahead == inputs["lookahead_tokens"]
    role = plan.ranks[0].target
    [group] = role.groups
    assert group.fixed.per_sequence == expected["pages_per_sequence"]
    # The reserved page is ours.
    cost = (role.bytes_per_token, role.fixed_bytes - group.page_bytes)
    assert cost == pair(expected["cost"])


@check("window_capacity")
def check_window_capacity(inputs: Case, expected: Case) -> None:
    sizes = zip(inputs["layer_bytes_per_token"], inputs["windows"], strict=True)
    plan = lone_plan(
        tuple(byte_layer(size, window=window) for size, window in sizes),
        **{name: inputs[name] for name in ("tokens_per_block", "max_batch_size", "max_num_tokens")},
    )
    assert plan.headroom_tokens == inputs["headroom_tokens"]
    role = plan.ranks[0].target
    assert role.groups[1].fixed.per_sequence == expected["pages_per_sequence_window"]
    assert role.token_cost.bytes(inputs["tokens"]) == expected["bytes_for_tokens"]
    assert role.token_cost.tokens(expected["bytes_for_tokens"]) == expected["tokens_for_bytes"]


@check("prompt_bytes")
def check_prompt_bytes(inputs: Case, expected: Case) -> None:
    sizes = zip(inputs["layer_bytes_per_token"], inputs["windows"], strict=True)
    layers = tuple(byte_layer(size, window=window) for size, window in sizes)
    plan = lone_plan(layers, tokens_per_block=inputs["tokens_per_block"])
    assert plan.ranks[0].target.prompt_bytes(inputs["prompt_tokens"]) == expected["bytes"]


@check("resume_margin")
def check_resume_margin(inputs: Case, expected: Case) -> None:
    limit = (inputs["max_util_num"], inputs["max_util_den"])
    if "draft_layers" not in inputs:
        whole, _ = _core.utilization(limit, inputs["required_pages"])
        assert whole == expected["pages"]
        return
    layers = (byte_layer(inputs["layer_bytes_per_token"], window=inputs["window"]),)
    plan = tkv.plan(
        model(gqa(32)),
        model(layers * inputs["draft_layers"], "draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=40 * GIB,
            max_seq_len=8192,
            max_util_for_resume="{}/{}".format(*limit),
            **{
                name: inputs[name]
                for name in ("tokens_per_block", "max_batch_size", "max_num_tokens")
            },
        ),
        speculative=tkv.SpeculativeConfig(mode="dflash", max_draft_len=8),
    )
    assert plan.headroom_tokens == inputs["headroom_tokens"]
    [group] = plan.ranks[0].draft.groups
    fixed = group.fixed
    assert (fixed.per_sequence, fixed.per_step) == (
        expected["pages_per_sequence"],
        expected["context_pages"],
    )
    assert fixed.per_sequence * fixed.sequences + fixed.per_step == expected["required_pages"]
    assert fixed.total - fixed.reserved == expected["pages"]
    draft = plan.ranks[0].draft
    assert draft.fixed_bytes - group.page_bytes == expected["fixed_bytes"]
    assert (draft.bytes_per_token, draft.device_bytes) == (0, draft.fixed_bytes)


@check("quota")
def check_quota(inputs: Case, expected: Case) -> None:
    cost = tkv.TokenCost(full_bytes=inputs["bytes_per_token"])
    limit = Fraction(inputs["max_util_num"], inputs["max_util_den"])
    assert cost.quota_bytes(inputs["max_tokens"], limit) == expected["quota_bytes"]
    assert cost.usable_tokens(expected["quota_bytes"], limit) == expected["usable_tokens"]


@check("auto_host")
def check_auto_host(inputs: Case, expected: Case) -> None:
    available = inputs.get("available_bytes", inputs.get("available_bytes_per_rank"))
    options = {
        name: inputs[name]
        for name in ("local_ranks", "memlock_bytes", "unified_memory")
        if name in inputs
    }
    size = tkv.estimate_host_bytes(inputs["device_bytes"], available, **options)
    assert size == expected["host_bytes"]

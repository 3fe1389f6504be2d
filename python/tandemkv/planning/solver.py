"""`plan`: geometry, budgets and a layout in; every pool of every rank out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tandemkv import _core
from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import ConfigError
from tandemkv.geometry.layers import Layer, ModelGeometry
from tandemkv.planning.assembly import Pair, Stage, TierSplit, build_ranks
from tandemkv.planning.checks import (
    check_roles,
    check_type,
    declared_max_seq_len,
    max_pages,
    rank_budgets,
)
from tandemkv.planning.groups import STATE, Terms, group_layers, plan_terms
from tandemkv.planning.longest import longest_plan
from tandemkv.planning.notes import plan_notes
from tandemkv.planning.placement import draft_partition, layer_ranges, target_partition
from tandemkv.planning.result import Plan
from tandemkv.planning.split import TIERS

_Value = TypeVar("_Value")


def plan(
    target: ModelGeometry,
    draft: ModelGeometry | None = None,
    *,
    config: KvCacheConfig,
    mapping: Mapping | None = None,
    speculative: SpeculativeConfig | None = None,
    device_bytes: Sequence[int | str] | None = None,
    host_bytes: Sequence[int | str] | None = None,
) -> Plan:
    """Divide each rank's memory between target and draft, in whole pages.

    Both roles get the same number of pages on all ranks, the smallest that any rank can hold;
    target, draft and slack add up to the budget on every rank and tier, exactly. Windows and
    states, which do not grow with tokens, come off first.

    Args:
        target: the model; its `role` is `target`.
        draft: the drafter's layers, with `role` `draft`; given if and only if the speculative
            mode keeps draft KV of its own.
        config: budgets and sizes, per rank.
        mapping: the parallel layout; None: one rank.
        speculative: the mode; None: no speculation.
        device_bytes: what each rank has for KV, in rank order, where ranks differ; a rank's budget
            is that, at most `max_gpu_total_bytes`. None: all have that.
        host_bytes: the same for the host tier, at most `host_cache_size`.

    Raises:
        BudgetError: a budget does not hold the fixed bytes and two pages of both roles (one page
            on host and disk).
        GeometryError: KV heads that the ranks cannot hold whole.
        ConfigError: arguments that contradict each other.
    """
    mapping = Mapping() if mapping is None else mapping
    check_type("target", target, ModelGeometry)
    check_type("config", config, KvCacheConfig)
    check_type("mapping", mapping, Mapping)
    if draft is not None:
        check_type("draft", draft, ModelGeometry)
    if speculative is not None:
        check_type("speculative", speculative, SpeculativeConfig)
    check_roles(target, draft, mapping, speculative)
    max_seq_len = declared_max_seq_len(target, config, speculative)
    budgets = {
        "device": rank_budgets("device_bytes", device_bytes, config.max_gpu_total_bytes, mapping),
        "host": rank_budgets("host_bytes", host_bytes, config.host_cache_size, mapping),
        "disk": rank_budgets("disk_bytes", None, config.disk_cache_size, mapping),
    }
    solve = partial(_solve, _Request(target, draft, config, mapping, speculative, budgets))
    if max_seq_len is not None:
        return solve(max_seq_len)
    windows = {
        part.window or part.chunk
        for geometry in (target, draft)
        if geometry is not None
        for layer in set(geometry.layers)
        for part in layer.parts
    }
    lookahead = plan_terms(config, mapping, speculative, 1).lookahead
    return longest_plan(
        solve,
        limit=target.max_position_embeddings,
        least=1 if speculative is None else speculative.max_draft_len + 1,
        turns={size + lookahead for size in windows if size is not None},
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `plan`, checked, and the budget of every rank by tier."""

    target: ModelGeometry
    draft: ModelGeometry | None
    config: KvCacheConfig
    mapping: Mapping
    speculative: SpeculativeConfig | None
    budgets: dict[str, list[int]]


def _solve(request: _Request, max_seq_len: int) -> Plan:
    """Plan for sequences of at most `max_seq_len` tokens."""
    config, mapping = request.config, request.mapping
    terms = plan_terms(config, mapping, request.speculative, max_seq_len)
    stages = _pairs(request, terms)
    _check_lower_tiers(config, stages)
    _check_snapshots(config, stages)
    splits = {tier: _split_tier(request, tier, terms, stages) for tier in TIERS}
    target, draft = request.target, request.draft
    return Plan(
        config=config,
        mapping=mapping,
        speculative=request.speculative,
        terms=terms,
        target_name=target.name,
        draft_name=None if draft is None else draft.name,
        max_seq_len=max_seq_len,
        num_blocks=splits["device"].pages,
        num_host_blocks=splits["host"].pages,
        num_disk_blocks=splits["disk"].pages,
        ranks=build_ranks(mapping, terms, stages, request.budgets, splits),
        notes=plan_notes(target, draft, config, max_seq_len, stages, pp_size=mapping.pp_size),
    )


def _pairs(request: _Request, terms: Terms) -> tuple[Pair, ...]:
    """Return target and draft of every pipeline stage."""
    mapping = request.mapping
    partition = target_partition(request.target.num_layers, mapping.pp_size, mapping.pp_partition)
    targets = _stages(request.target, partition, mapping.target_width, terms)
    if request.draft is None or request.speculative is None:
        empty = Stage((), (), mapping.draft_width, ())
        return tuple((target, empty) for target in targets)
    placement = request.speculative.traits.placement
    partition = draft_partition(request.draft.num_layers, mapping.pp_size, placement)
    drafts = _stages(request.draft, partition, mapping.draft_width, terms)
    return tuple(zip(targets, drafts, strict=True))


def _stages(
    geometry: ModelGeometry, partition: Sequence[int], tp_size: int, terms: Terms
) -> tuple[Stage, ...]:
    # Most models repeat few layers: price each distinct part once.
    prices: dict[Layer, int] = {}

    def price(part: Layer) -> int:
        if part not in prices:
            prices[part] = (
                part.state_bytes(tp_size) if part.kind == "state" else part.bytes_per_token(tp_size)
            )
        return prices[part]

    stages = []
    for numbers in layer_ranges(partition):
        layers = geometry.layers[numbers.start : numbers.stop]
        groups = group_layers(layers, numbers.start, price, terms)
        stages.append(Stage(layers, tuple(numbers), tp_size, groups))
    placed = [index for stage in stages for index in stage.indices]
    assert placed == list(range(geometry.num_layers)), "every layer is on exactly one stage"
    return tuple(stages)


def _split_tier(request: _Request, tier: str, terms: Terms, stages: Sequence[Pair]) -> TierSplit:
    mapping, budgets = request.mapping, request.budgets[tier]
    if not any(budgets):
        return TierSplit(False, 0, ((0, 0, 0),) * mapping.world_size)

    def every_rank(values: Iterable[_Value]) -> list[_Value]:
        return [value for value in values for _ in range(mapping.ranks_per_stage)]

    # What one more sequence of the batch takes, so that a refusal can name the batch that fits.
    one_more = [
        mapping.pp_size * (target.per_sequence_bytes + draft.per_sequence_bytes)
        for target, draft in stages
    ]
    on_device = tier == "device"
    pages, ranks = _core.split_pages(
        tier=tier,
        tokens_per_block=terms.tokens_per_block,
        budget_bytes=budgets,
        target=every_rank(target.cost(tier) for target, _ in stages),
        draft=every_rank(draft.cost(tier) for _, draft in stages),
        bytes_per_sequence=every_rank(one_more) if on_device and any(one_more) else None,
        max_batch_size=request.config.max_batch_size,
        max_pages=max_pages(request.config, mapping) if on_device else None,
    )
    return TierSplit(True, pages or 0, tuple((t, d, slack) for _, t, d, slack in ranks))


def _check_snapshots(config: KvCacheConfig, stages: Sequence[Pair]) -> None:
    """Refuse snapshots of states inside blocks, which nothing takes.

    Raises:
        ConfigError: names both numbers.
    """
    interval, block = config.state_snapshot_interval, config.tokens_per_block
    if interval is None or not config.enable_block_reuse or interval % block == 0:
        return
    if any(group.lifetime == STATE for pair in stages for stage in pair for group in stage.groups):
        raise ConfigError(
            f"state_snapshot_interval is {interval}; snapshots are taken at block ends, so a "
            f"multiple of tokens_per_block ({block}) is needed",
            field="state_snapshot_interval",
            value=interval,
        )


def _check_lower_tiers(config: KvCacheConfig, stages: Sequence[Pair]) -> None:
    """Refuse a host or disk tier that no page would ever lie on."""
    costs = [stage.cost("host") for pair in stages for stage in pair]
    holds = any(slope or fixed for slope, fixed in costs)
    for field in ("host_cache_size", "disk_cache_size"):
        size = getattr(config, field)
        if size and not holds:
            raise ConfigError(
                f"{field} is {size}, but no layer keeps every token and cached_endpoints is 0: "
                "the tier would hold nothing",
                field=field,
                value=size,
            )

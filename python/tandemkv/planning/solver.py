"""`plan`: geometry, budgets and a layout in; every pool of every rank out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandemkv import _core
from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import ConfigError
from tandemkv.geometry.layers import Layer, ModelGeometry
from tandemkv.planning.placement import draft_partition, layer_ranges, target_partition
from tandemkv.planning.result import GroupPlan, Plan, RankPlan, RolePlan, TierPlan, Tiers
from tandemkv.planning.split import TIERS


@dataclass(frozen=True, slots=True)
class _Stage:
    """The layers of one role on one pipeline stage, and what a token costs there."""

    layers: tuple[Layer, ...]
    indices: tuple[int, ...]
    tp_size: int
    bytes_per_token: int

    @property
    def cost(self) -> tuple[int, int]:
        # Full attention keeps every token, so nothing is fixed.
        return self.bytes_per_token, 0


@dataclass(frozen=True, slots=True)
class _TierSplit:
    """Pages of a tier, and (target, draft, slack) bytes per stage; zeros on an unused tier."""

    pages: int
    shares: tuple[tuple[int, int, int], ...]


def plan(
    target: ModelGeometry,
    draft: ModelGeometry | None = None,
    *,
    config: KvCacheConfig,
    mapping: Mapping | None = None,
    speculative: SpeculativeConfig | None = None,
) -> Plan:
    """Divide each rank's memory between target and draft, in whole pages.

    Both roles get the same number of pages on all ranks, the smallest that any rank can hold;
    target, draft and slack add up to the budget on every rank and tier, exactly.

    Args:
        target: the model; its `role` is `target`.
        draft: the drafter's layers, with `role` `draft`; given if and only if the speculative
            mode keeps draft KV of its own.
        config: budgets and sizes, per rank.
        mapping: the parallel layout; None: one rank.
        speculative: the mode; None: no speculation.

    Raises:
        BudgetError: a budget does not hold two pages of both roles (one on host and disk).
        GeometryError: KV heads that the ranks cannot hold whole.
        ConfigError: arguments that contradict each other.
    """
    mapping = Mapping() if mapping is None else mapping
    _check_type("target", target, ModelGeometry)
    _check_type("config", config, KvCacheConfig)
    _check_type("mapping", mapping, Mapping)
    if draft is not None:
        _check_type("draft", draft, ModelGeometry)
    if speculative is not None:
        _check_type("speculative", speculative, SpeculativeConfig)
    _check_roles(target, draft, mapping, speculative)
    for geometry in (target, draft):
        if geometry is not None:
            _check_priced(geometry)
    max_seq_len = _max_seq_len(target, config, speculative)
    targets = _stages(
        target,
        target_partition(target.num_layers, mapping.pp_size, mapping.pp_partition),
        mapping.target_width,
    )
    if draft is None or speculative is None:
        drafts = tuple(_Stage((), (), mapping.draft_width, 0) for _ in targets)
    else:
        placement = speculative.traits.placement
        partition = draft_partition(draft.num_layers, mapping.pp_size, placement)
        drafts = _stages(draft, partition, mapping.draft_width)
    splits = {tier: _split_tier(tier, config, mapping, targets, drafts) for tier in TIERS}
    return Plan(
        config=config,
        mapping=mapping,
        speculative=speculative,
        target_name=target.name,
        draft_name=None if draft is None else draft.name,
        max_seq_len=max_seq_len,
        num_blocks=splits["device"].pages,
        num_host_blocks=splits["host"].pages,
        num_disk_blocks=splits["disk"].pages,
        ranks=_ranks(config, mapping, targets, drafts, splits),
        notes=_position_notes(target, draft, max_seq_len),
    )


def _check_type(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ConfigError(
            f"{field} is {value!r}; a tandemkv.{kind.__name__} is needed", field=field, value=value
        )


def _check_priced(geometry: ModelGeometry) -> None:
    """Refuse layers whose lifetime is not planned: none is silently charged as full attention.

    Raises:
        ConfigError: a layer that does not keep every token, or that keeps its keys as values.
    """
    for index, layer in enumerate(geometry.layers):
        if layer.keeps_all_tokens and not layer.shared_kv and not layer.beside:
            continue
        what = next(
            text
            for found, text in (
                (layer.beside, "attention beside other state"),
                (layer.shared_kv, "values that are the keys"),
                (layer.window is not None, f"a sliding window of {layer.window} tokens"),
                (layer.chunk is not None, f"chunked attention of {layer.chunk} tokens"),
                (True, f"kind {layer.kind!r}"),
            )
            if found
        )
        raise ConfigError(
            f"{geometry.role} {geometry.name!r}: layer {index} has {what}, which cannot be planned "
            "yet; supported: attention and latent attention over all tokens",
            field=geometry.role,
            value=layer.kind,
        )


def _check_roles(
    target: ModelGeometry,
    draft: ModelGeometry | None,
    mapping: Mapping,
    speculative: SpeculativeConfig | None,
) -> None:
    for field, geometry in (("target", target), ("draft", draft)):
        if geometry is not None and geometry.role != field:
            raise ConfigError(
                f"{field} is {geometry.name!r}, whose role is {geometry.role!r}; read it with "
                f"role={field!r}",
                field=field,
                value=geometry.role,
            )
    if draft is None:
        if speculative is not None and speculative.traits.has_draft:
            raise ConfigError(
                f"speculative mode {speculative.mode!r} keeps draft KV, but draft is None",
                field="draft",
            )
        if mapping.draft_tp_size is not None:
            raise ConfigError(
                f"draft_tp_size is {mapping.draft_tp_size}, but there is no draft",
                field="draft_tp_size",
                value=mapping.draft_tp_size,
            )
    elif speculative is None:
        raise ConfigError(
            f"draft is {draft.name!r}, but speculative is None: the mode decides which ranks hold "
            "the draft and how many tokens a step writes",
            field="speculative",
        )
    elif not speculative.traits.has_draft:
        raise ConfigError(
            f"draft is {draft.name!r}, but speculative mode {speculative.mode!r} keeps no draft KV",
            field="draft",
            value=draft.name,
        )


def _max_seq_len(
    target: ModelGeometry, config: KvCacheConfig, speculative: SpeculativeConfig | None
) -> int:
    max_seq_len = config.max_seq_len or target.max_position_embeddings
    if max_seq_len is None:
        raise ConfigError(
            f"max_seq_len is None, and {target.name!r} declares no max_position_embeddings",
            field="max_seq_len",
        )
    if speculative is not None and speculative.max_draft_len >= max_seq_len:
        raise ConfigError(
            f"max_draft_len is {speculative.max_draft_len}, but max_seq_len is {max_seq_len}: no "
            "sequence could hold a draft",
            field="max_draft_len",
            value=speculative.max_draft_len,
        )
    return max_seq_len


def _stages(geometry: ModelGeometry, partition: Sequence[int], tp_size: int) -> tuple[_Stage, ...]:
    # Most models repeat one layer: price each distinct one once.
    prices = {layer: layer.bytes_per_token(tp_size) for layer in set(geometry.layers)}
    stages = []
    for numbers in layer_ranges(partition):
        layers = geometry.layers[numbers.start : numbers.stop]
        price = sum(prices[layer] for layer in layers)
        stages.append(_Stage(layers, tuple(numbers), tp_size, price))
    return tuple(stages)


def _split_tier(
    tier: str,
    config: KvCacheConfig,
    mapping: Mapping,
    targets: Sequence[_Stage],
    drafts: Sequence[_Stage],
) -> _TierSplit:
    budget = config.tier_bytes(tier)
    if budget == 0:
        return _TierSplit(0, ((0, 0, 0),) * mapping.pp_size)

    def every_rank(stages: Sequence[_Stage]) -> list[tuple[int, int]]:
        return [cost for stage in stages for cost in [stage.cost] * mapping.tp_size]

    pages, ranks = _core.split_pages(
        tier=tier,
        tokens_per_block=config.tokens_per_block,
        budget_bytes=[budget] * mapping.world_size,
        target=every_rank(targets),
        draft=every_rank(drafts),
    )
    assert pages is not None, "a target has layers, and every layer costs bytes per token"
    # The ranks of a stage are alike: its first one speaks for all.
    firsts = ranks[:: mapping.tp_size]
    return _TierSplit(pages, tuple((target, draft, slack) for _, target, draft, slack in firsts))


def _ranks(
    config: KvCacheConfig,
    mapping: Mapping,
    targets: Sequence[_Stage],
    drafts: Sequence[_Stage],
    splits: dict[str, _TierSplit],
) -> tuple[RankPlan, ...]:
    ranks: list[RankPlan] = []
    for pp_rank, (target, draft) in enumerate(zip(targets, drafts, strict=True)):
        # Ranks of a stage hold the same layers and bytes, so they share these (frozen) parts.
        shares = {tier: split.shares[pp_rank] for tier, split in splits.items()}
        target_plan = _role("target", target, config, splits, [shares[t][0] for t in TIERS])
        draft_plan = (
            _role("draft", draft, config, splits, [shares[t][1] for t in TIERS])
            if draft.layers
            else None
        )
        tiers = Tiers(
            **{
                tier: TierPlan(budget_bytes=config.tier_bytes(tier), slack_bytes=shares[tier][2])
                for tier in TIERS
            }
        )
        ranks += [
            RankPlan(
                rank=pp_rank * mapping.tp_size + tp_rank,
                pp_rank=pp_rank,
                tp_rank=tp_rank,
                target=target_plan,
                draft=draft_plan,
                tiers=tiers,
            )
            for tp_rank in range(mapping.tp_size)
        ]
    return tuple(ranks)


def _role(
    role: str,
    stage: _Stage,
    config: KvCacheConfig,
    splits: dict[str, _TierSplit],
    tier_bytes: Sequence[int],
) -> RolePlan:
    device_bytes, host_bytes, disk_bytes = tier_bytes
    page_bytes = stage.bytes_per_token * config.tokens_per_block
    pages = [splits[tier].pages for tier in TIERS]
    # Every layer keeps all its tokens, so a role is one group.
    group = GroupPlan(
        lifetime="full_attention",
        layer_indices=stage.indices,
        bytes_per_token=stage.bytes_per_token,
        page_bytes=page_bytes,
        num_pages=pages[0],
        num_host_pages=pages[1],
        num_disk_pages=pages[2],
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        disk_bytes=disk_bytes,
    )
    return RolePlan(
        role=role,
        layers=stage.layers,
        layer_indices=stage.indices,
        tp_size=stage.tp_size,
        bytes_per_token=stage.bytes_per_token,
        fixed_bytes=stage.cost[1],
        page_bytes=page_bytes,
        num_pages=pages[0],
        device_bytes=device_bytes,
        num_host_pages=pages[1],
        host_bytes=host_bytes,
        num_disk_pages=pages[2],
        disk_bytes=disk_bytes,
        groups=(group,),
    )


def _position_notes(
    target: ModelGeometry, draft: ModelGeometry | None, max_seq_len: int
) -> tuple[str, ...]:
    """Say where a model declares fewer positions than sequences may have; heads often do."""
    return tuple(
        f"{geometry.name} ({geometry.role}) declares {geometry.max_position_embeddings:,} "
        f"positions, fewer than max_seq_len {max_seq_len:,}"
        for geometry in (target, draft)
        if geometry is not None
        and geometry.max_position_embeddings is not None
        and geometry.max_position_embeddings < max_seq_len
    )

"""From the answer of the split to the ranks of a plan."""

from __future__ import annotations

from collections.abc import Mapping as Dictionary
from collections.abc import Sequence
from dataclasses import dataclass

from tandemkv.config import Mapping
from tandemkv.geometry.layers import Layer
from tandemkv.planning.groups import Group, Terms
from tandemkv.planning.result import RankPlan, TierPlan, Tiers
from tandemkv.planning.roles import GroupPlan, RolePlan
from tandemkv.planning.split import TIERS


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one role on one pipeline stage, and what they cost there."""

    layers: tuple[Layer, ...]
    indices: tuple[int, ...]
    tp_size: int
    groups: tuple[Group, ...]

    def cost(self, tier: str) -> tuple[int, int]:
        """Return (slope, intercept) on a tier, summed over the groups."""
        costs = [group.device if tier == "device" else group.lower for group in self.groups]
        return sum(slope for slope, _ in costs), sum(fixed for _, fixed in costs)

    @property
    def per_sequence_bytes(self) -> int:
        """Fixed bytes of one sequence."""
        return sum(
            group.page_bytes * group.fixed.per_sequence
            for group in self.groups
            if group.fixed is not None
        )


@dataclass(frozen=True, slots=True)
class TierSplit:
    """Pages of a tier, and (target, draft, slack) bytes per rank; zeros on an unused tier."""

    used: bool
    pages: int
    shares: tuple[tuple[int, int, int], ...]


Pair = tuple[Stage, Stage]
"""The target and the draft of one pipeline stage."""

Splits = Dictionary[str, TierSplit]


def build_ranks(
    mapping: Mapping,
    terms: Terms,
    stages: Sequence[Pair],
    budgets: Dictionary[str, Sequence[int]],
    splits: Splits,
) -> tuple[RankPlan, ...]:
    """Return one entry per rank. Ranks that are alike share their (frozen) parts."""
    ranks: list[RankPlan] = []
    tiers = _rank_tiers(budgets, splits)
    for pp_rank, (target, draft) in enumerate(stages):
        first = pp_rank * mapping.ranks_per_stage
        # Pages are equal on all ranks, so the ranks of a stage hold the same bytes of each role.
        shares = {tier: splits[tier].shares[first] for tier in TIERS}
        sizes = [{tier: shares[tier][role] for tier in TIERS} for role in (0, 1)]
        target_plan = _role("target", target, terms, splits, sizes[0])
        draft_plan = _role("draft", draft, terms, splits, sizes[1]) if draft.layers else None
        for place in range(mapping.ranks_per_stage):
            rank = first + place
            ranks.append(
                RankPlan(
                    rank=rank,
                    pp_rank=pp_rank,
                    cp_rank=place // mapping.tp_size,
                    tp_rank=place % mapping.tp_size,
                    target=target_plan,
                    draft=draft_plan,
                    tiers=tiers[rank],
                )
            )
    return tuple(ranks)


def _rank_tiers(budgets: Dictionary[str, Sequence[int]], splits: Splits) -> list[Tiers]:
    """Return budgets and slack of every rank; those of ranks that are alike are one object."""
    columns = []
    for tier in TIERS:
        pairs = list(zip(budgets[tier], (share[2] for share in splits[tier].shares), strict=True))
        plans = {pair: TierPlan(budget_bytes=pair[0], slack_bytes=pair[1]) for pair in set(pairs)}
        columns.append([plans[pair] for pair in pairs])
    known: dict[tuple[int, int, int], Tiers] = {}
    tiers = []
    for device, host, disk in zip(*columns, strict=True):
        key = (id(device), id(host), id(disk))
        if key not in known:
            known[key] = Tiers(device=device, host=host, disk=disk)
        tiers.append(known[key])
    return tiers


def _role(
    role: str,
    stage: Stage,
    terms: Terms,
    splits: Splits,
    sizes: Dictionary[str, int],
) -> RolePlan:
    slope, fixed_bytes = stage.cost("device")
    groups = tuple(_group(group, terms, splits) for group in stage.groups)
    pages = {tier: splits[tier].pages for tier in TIERS}
    lower = {tier: sum(group.tier_bytes(tier) for group in groups) for tier in ("host", "disk")}
    assert lower == {tier: sizes[tier] for tier in lower}, "a tier's bytes are those of its pages"
    unused = sizes["device"] - sum(group.device_bytes for group in groups)
    assert unused >= 0, "the device bytes hold every page"
    return RolePlan(
        role=role,
        layers=stage.layers,
        layer_indices=stage.indices,
        tp_size=stage.tp_size,
        bytes_per_token=slope,
        fixed_bytes=fixed_bytes,
        page_bytes=slope * terms.tokens_per_block,
        num_pages=pages["device"],
        device_bytes=sizes["device"],
        unused_bytes=unused,
        num_host_pages=pages["host"],
        host_bytes=sizes["host"],
        num_disk_pages=pages["disk"],
        disk_bytes=sizes["disk"],
        groups=groups,
    )


def _group(group: Group, terms: Terms, splits: Splits) -> GroupPlan:
    if group.fixed is None:
        pages = {tier: splits[tier].pages for tier in TIERS}
    else:
        # Snapshots of a state grow with the tokens; whole ones fit into their share.
        grown = splits["device"].pages * terms.tokens_per_block * group.device[0]
        pages = {tier: group.fixed.endpoints if splits[tier].used else 0 for tier in TIERS}
        pages["device"] = group.fixed.total + grown // group.page_bytes
    sizes = {tier: count * group.page_bytes for tier, count in pages.items()}
    name, tokens, sink_tokens = group.lifetime
    return GroupPlan(
        lifetime=name,
        tokens=tokens,
        sink_tokens=sink_tokens,
        layers=group.layers,
        layer_indices=group.layer_indices,
        bytes_per_token=group.bytes_per_token or group.device[0],
        page_bytes=group.page_bytes,
        fixed=group.fixed,
        num_pages=pages["device"],
        num_host_pages=pages["host"],
        num_disk_pages=pages["disk"],
        device_bytes=sizes["device"],
        host_bytes=sizes["host"],
        disk_bytes=sizes["disk"],
        terms=terms,
    )

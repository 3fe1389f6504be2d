"""Every term of every byte of a plan, layer group by layer group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tandemkv.planning.report import rank_groups
from tandemkv.planning.split import TIERS

if TYPE_CHECKING:
    from tandemkv.planning.result import Plan, RankPlan
    from tandemkv.planning.roles import GroupPlan, RolePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """Bytes of one kind in one group of a run of like ranks: `pages * page_bytes`.

    Attributes:
        ranks: the ranks, such as `0-3`.
        tier: `device`, `host` or `disk`.
        role: `target`, `draft`, or empty for what belongs to neither.
        group: the lifetime of the group with its numbers; empty for slack and unused shares.
        layers: layers of the group.
        term: what the pages are for.
        pages: how many; None where the bytes are no pages.
        page_bytes: bytes of one; None where the bytes are no pages.
        bytes: the product.
    """

    ranks: str
    tier: str
    role: str
    group: str
    layers: int
    term: str
    pages: int | None
    page_bytes: int | None
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def explain(plan: Plan) -> list[Term]:
    """Return the terms of every run of like ranks; on each tier they add up to its budget."""
    terms: list[Term] = []
    for ranks, rank in rank_groups(plan):
        for tier in TIERS:
            if rank.tiers[tier].budget_bytes:
                terms += _tier_terms(plan, ranks, rank, tier)
    return terms


def group_name(group: GroupPlan) -> str:
    """Return the group's lifetime with its numbers, such as `sliding_window 1,024`."""
    name = group.lifetime
    if group.tokens:
        name += f" {group.tokens:,}"
    if group.sink_tokens:
        name += f" + {group.sink_tokens:,} sinks"
    return name


def _tier_terms(plan: Plan, ranks: str, rank: RankPlan, tier: str) -> Iterator[Term]:
    for role in (rank.target, rank.draft):
        if role is None:
            continue
        for group in role.groups:
            for name, pages in _group_pages(plan, group, tier):
                if pages:
                    yield Term(
                        ranks=ranks,
                        tier=tier,
                        role=role.role,
                        group=group_name(group),
                        layers=len(group.layer_indices),
                        term=name,
                        pages=pages,
                        page_bytes=group.page_bytes,
                        bytes=pages * group.page_bytes,
                    )
        if tier == "device" and role.unused_bytes:
            yield _rest(ranks, tier, role, "share of snapshots below one state", role.unused_bytes)
    yield _rest(ranks, tier, None, "slack", rank.tiers[tier].slack_bytes)


def _group_pages(plan: Plan, group: GroupPlan, tier: str) -> Iterator[tuple[str, int]]:
    pages = {
        "device": group.num_pages,
        "host": group.num_host_pages,
        "disk": group.num_disk_pages,
    }[tier]
    fixed = group.fixed
    if fixed is None:
        reserved = 1 if tier == "device" else 0
        yield "reserved page 0", reserved
        yield f"tokens, {plan.block_tokens:,} per page", pages - reserved
        return
    if tier == "device":
        yield "reserved page 0", fixed.reserved
        sequences = f"{fixed.sequences:,} sequences x {fixed.per_sequence:,}"
        yield sequences, fixed.sequences * fixed.per_sequence
        yield "tokens in flight", fixed.per_step
        yield "dummy requests", fixed.dummies
        yield "resume margin", fixed.margin
        yield "snapshots", pages - fixed.total
    yield "cached endpoints", fixed.endpoints


def _rest(ranks: str, tier: str, role: RolePlan | None, term: str, size: int) -> Term:
    return Term(
        ranks=ranks,
        tier=tier,
        role="" if role is None else role.role,
        group="",
        layers=0,
        term=term,
        pages=None,
        page_bytes=None,
        bytes=size,
    )


def explain_table(plan: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and rows of `explain`, bytes in full; the first five columns are names."""
    rows: list[tuple[str, ...]] = [
        (
            term.ranks,
            term.tier,
            term.role,
            f"{term.group} ({term.layers})" if term.group else "",
            term.term,
            "" if term.pages is None else f"{term.pages:,}",
            "" if term.page_bytes is None else f"{term.page_bytes:,}",
            f"{term.bytes:,}",
        )
        for term in explain(plan)
    ]
    heads = ("ranks", "tier", "role", "group (layers)", "for", "pages", "page bytes", "bytes")
    return heads, rows

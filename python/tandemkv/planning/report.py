"""A plan in words and plain tables; the CLI shows the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemkv.planning.engines import engine_lines
from tandemkv.planning.split import TIERS
from tandemkv.sizes import format_size

if TYPE_CHECKING:
    from tandemkv.planning.result import Plan, RankPlan
    from tandemkv.planning.roles import RolePlan

NAME_COLUMNS = 2
"""The first columns of `role_table` are names, the others numbers."""


def title(plan: Plan) -> str:
    """Return the models and the speculative mode in one line."""
    text = plan.target_name
    if plan.speculative is not None:
        mode = f"{plan.speculative.mode}, {plan.speculative.max_draft_len} draft tokens"
        text += f" + {plan.draft_name} ({mode})" if plan.draft_name else f" ({mode})"
    return text


def capacity_lines(plan: Plan, request_len: int | None = None) -> list[tuple[str, str]]:
    """Return (name, text) lines: what fits, in engine words; `request_len` asks for one more."""
    group = " per attention-DP rank" if plan.data_parallel_size > 1 else ""
    lines = _token_lines(plan, group) if plan.num_blocks else _fixed_lines(plan, group)
    if request_len is not None:
        lines.append(("at --request-len", _running(plan, request_len, group)))
    lines += engine_lines(plan)
    if plan.hittable_endpoints is not None:
        lines.append(
            ("cached endpoints", f"{plan.hittable_endpoints:,} prefixes stay hittable at full load")
        )
    for tier, blocks in (("host", plan.num_host_blocks), ("disk", plan.num_disk_blocks)):
        if blocks:
            lines.append((f"{tier} blocks", f"{blocks:,} = {blocks * plan.block_tokens:,} tokens"))
    if plan.max_concurrency == 0:
        lines.append(
            (
                "note",
                f"no request of max_seq_len {plan.max_seq_len:,} fits; the longest that fits has "
                f"{plan.max_request_len:,} tokens",
            )
        )
    lines += [("note", note) for note in plan.notes]
    return lines


def _token_lines(plan: Plan, group: str) -> list[tuple[str, str]]:
    cp_size = plan.mapping.cp_size
    shared = "" if cp_size == 1 else f" on each of {cp_size} context-parallel ranks"
    lines = [
        (
            "KV cache blocks",
            f"{plan.num_blocks:,} of {plan.tokens_per_block} tokens{shared}{group}, "
            "block 0 reserved",
        ),
        ("capacity", f"{plan.max_tokens:,} tokens{group} (max_tokens)"),
        ("concurrent requests", _running(plan, plan.max_seq_len, group)),
    ]
    if plan.data_parallel_size > 1:
        total = (plan.max_tokens or 0) * plan.data_parallel_size
        lines.insert(
            2, ("all attention-DP ranks", f"{total:,} tokens on {plan.data_parallel_size} ranks")
        )
    return lines


def _fixed_lines(plan: Plan, group: str) -> list[tuple[str, str]]:
    return [
        ("capacity", f"tokens are not limited{group}: no layer keeps every token"),
        (
            "concurrent requests",
            f"{plan.max_sequences:,}{group} ({_batch_limit(plan)})",
        ),
    ]


def _running(plan: Plan, request_len: int, group: str) -> str:
    """Return how many requests run at a time, and what memory holds where that is more."""
    fits, runs = plan.concurrency(request_len), plan.running_requests(request_len)
    limit = _batch_limit(plan)
    reason = f"memory for {fits:,}; {limit} limits" if fits > runs else limit
    return f"{runs:,} of {request_len:,} tokens{group} ({reason})"


def _batch_limit(plan: Plan) -> str:
    pp_size = plan.mapping.pp_size
    times = f" times pp_size {pp_size}" if pp_size > 1 else ""
    return f"max_batch_size {plan.max_batch_size:,}{times}"


def rank_groups(plan: Plan) -> list[tuple[str, RankPlan]]:
    """Return runs of neighbouring ranks that are alike, as (`0-3`, the first of them)."""
    runs: list[list[RankPlan]] = []
    for rank in plan.ranks:
        if runs and _alike(runs[-1][0], rank):
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return [
        (str(run[0].rank) if len(run) == 1 else f"{run[0].rank}-{run[-1].rank}", run[0])
        for run in runs
    ]


def _alike(one: RankPlan, other: RankPlan) -> bool:
    def shown(role: RolePlan | None) -> tuple[object, ...] | None:
        if role is None:
            return None
        groups = tuple((g.rule, g.page_bytes, g.num_pages) for g in role.groups)
        return (len(role.layers), role.device_bytes, groups)

    return (
        shown(one.target) == shown(other.target)
        and shown(one.draft) == shown(other.draft)
        and one.tiers == other.tiers
    )


def role_table(plan: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings, and a row per run of like ranks and role, its slack and its budget.

    Tiers that are not used have no column, nor have fixed bytes where there are none. The first
    two columns are names, the others numbers.
    """
    tiers = [name for name in TIERS if plan.config.tier_bytes(name)]
    runs = rank_groups(plan)
    fixed = any(
        role is not None and role.fixed_bytes
        for _, rank in runs
        for role in (rank.target, rank.draft)
    )
    heads = ("layers", "bytes/token", *(["fixed"] if fixed else []), "page", "pages")
    empty = [""] * len(heads)
    rows: list[tuple[str, ...]] = []
    for ranks, rank in runs:
        for name, role in (("target", rank.target), ("draft", rank.draft)):
            if role is not None:
                numbers = [str(len(role.layers)), f"{role.bytes_per_token:,}"]
                numbers += [format_size(role.fixed_bytes)] if fixed else []
                numbers += [format_size(role.page_bytes), f"{role.num_pages:,}"]
                sizes = [format_size(role.tier_bytes(tier)) for tier in tiers]
                rows.append((ranks, name, *numbers, *sizes))
            elif plan.has_draft:
                rows.append((ranks, name, "0", *empty[1:], *["0 B"] * len(tiers)))
        slack = [format_size(rank.tiers[tier].slack_bytes) for tier in tiers]
        budget = [format_size(rank.tiers[tier].budget_bytes) for tier in tiers]
        rows.append((ranks, "slack", *empty, *slack))
        rows.append((ranks, "budget", *empty, *budget))
    return ("ranks", "role", *heads, *tiers), rows


def plan_text(plan: Plan) -> str:
    """Return the whole plan as plain text."""
    lines = [f"KV cache plan: {title(plan)}"]
    lines += [f"  {name + ':' if name else '':<24}{text}" for name, text in capacity_lines(plan)]
    heads, rows = role_table(plan)
    lines += ["", *_aligned([heads, *rows])]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row: two columns of names to the left, then numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if index < NAME_COLUMNS else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

"""A plan in words and plain tables; the CLI shows the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemkv.planning.split import TIERS
from tandemkv.sizes import format_size

if TYPE_CHECKING:
    from tandemkv.planning.result import Plan, RankPlan, RolePlan

NAME_COLUMNS = 2
"""The first columns of `role_table` are names, the others numbers."""


def title(plan: Plan) -> str:
    """Return the models and the speculative mode in one line."""
    text = plan.target_name
    if plan.speculative is not None:
        mode = f"{plan.speculative.mode}, {plan.speculative.max_draft_len} draft tokens"
        text += f" + {plan.draft_name} ({mode})" if plan.draft_name else f" ({mode})"
    return text


def capacity_lines(plan: Plan) -> list[tuple[str, str]]:
    """Return (name, text) lines: what fits, in engine words."""
    group = " per attention-DP rank" if plan.data_parallel_size > 1 else ""
    lines = [
        (
            "KV cache blocks",
            f"{plan.num_blocks:,} of {plan.tokens_per_block} tokens{group}, block 0 reserved",
        ),
        ("capacity", f"{plan.max_tokens:,} tokens{group} (max_tokens)"),
        (
            "concurrent requests",
            f"{plan.max_concurrency:,} of {plan.max_seq_len:,} tokens{group}"
            f" (max_batch_size {plan.max_batch_size:,})",
        ),
        ("in vLLM's words", _vllm_words(plan)),
    ]
    if plan.data_parallel_size > 1:
        total = plan.max_tokens * plan.data_parallel_size
        lines.insert(
            2, ("all attention-DP ranks", f"{total:,} tokens on {plan.data_parallel_size} ranks")
        )
    for tier, blocks in (("host", plan.num_host_blocks), ("disk", plan.num_disk_blocks)):
        if blocks:
            lines.append(
                (f"{tier} blocks", f"{blocks:,} = {blocks * plan.tokens_per_block:,} tokens")
            )
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


def _vllm_words(plan: Plan) -> str:
    # vLLM divides by the blocks of max_model_len alone; room for drafts is not in its figure.
    blocks = -(-plan.max_seq_len // plan.tokens_per_block)
    return (
        f"GPU KV cache size: {plan.max_tokens:,} tokens; maximum concurrency for "
        f"{plan.max_seq_len:,} tokens per request: {(plan.num_blocks - 1) / blocks:.2f}x"
    )


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
        return None if role is None else (len(role.layers), role.bytes_per_token, role.device_bytes)

    return (
        shown(one.target) == shown(other.target)
        and shown(one.draft) == shown(other.draft)
        and one.tiers == other.tiers
    )


def role_table(plan: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings, and a row per run of like ranks and role, its slack and its budget.

    Tiers that are not used have no column. The first two columns are names, the others numbers.
    """
    tiers = [name for name in TIERS if plan.config.tier_bytes(name)]
    rows: list[tuple[str, ...]] = []
    for ranks, rank in rank_groups(plan):
        for name, role in (("target", rank.target), ("draft", rank.draft)):
            if role is not None:
                numbers = (len(role.layers), f"{role.bytes_per_token:,}")
                pages = (format_size(role.page_bytes), f"{role.num_pages:,}")
                sizes = [format_size(role.tier_bytes(tier)) for tier in tiers]
                rows.append((ranks, name, *map(str, numbers), *pages, *sizes))
            elif plan.has_draft:
                rows.append((ranks, name, "0", "", "", "", *["0 B"] * len(tiers)))
        slack = [format_size(rank.tiers[tier].slack_bytes) for tier in tiers]
        budget = [format_size(rank.tiers[tier].budget_bytes) for tier in tiers]
        rows.append((ranks, "slack", "", "", "", "", *slack))
        rows.append((ranks, "budget", "", "", "", "", *budget))
    return ("ranks", "role", "layers", "bytes/token", "page", "pages", *tiers), rows


def plan_text(plan: Plan) -> str:
    """Return the whole plan as plain text."""
    lines = [f"KV cache plan: {title(plan)}"]
    lines += [f"  {name + ':':<24}{text}" for name, text in capacity_lines(plan)]
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

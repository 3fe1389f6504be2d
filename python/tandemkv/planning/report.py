"""A plan in words and plain tables; the CLI shows the same lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemkv.sizes import format_size

if TYPE_CHECKING:
    from tandemkv.planning.result import Plan, RankPlan, RolePlan

ROLE_COLUMNS = ("ranks", "role", "layers", "bytes/token", "page", "pages", "device", "host", "disk")
"""Headings of `role_rows`."""


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
            lines.append((f"{tier} blocks", f"{blocks:,} = {blocks * plan.tokens_per_block:,} tokens"))
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


def role_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return one row per run of ranks and role, and one for its slack and budget."""
    rows: list[tuple[str, ...]] = []
    for ranks, rank in rank_groups(plan):
        for name, role in (("target", rank.target), ("draft", rank.draft)):
            if role is None:
                if plan.has_draft:
                    rows.append((ranks, name, "0", *[""] * 3, *["0 B"] * 3))
                continue
            rows.append(
                (
                    ranks,
                    name,
                    str(len(role.layers)),
                    f"{role.bytes_per_token:,}",
                    format_size(role.page_bytes),
                    f"{role.num_pages:,}",
                    format_size(role.device_bytes),
                    format_size(role.host_bytes),
                    format_size(role.disk_bytes),
                )
            )
        for name, field in (("slack", "slack_bytes"), ("budget", "budget_bytes")):
            sizes = [format_size(getattr(tier, field)) for _, tier in rank.tiers.items()]
            rows.append((ranks, name, *[""] * 4, *sizes))
    return rows


def plan_text(plan: Plan) -> str:
    """Return the whole plan as plain text."""
    lines = [f"KV cache plan: {title(plan)}"]
    lines += [f"  {name + ':':<24}{text}" for name, text in capacity_lines(plan)]
    lines += ["", *_table(ROLE_COLUMNS, role_rows(plan))]
    return "\n".join(lines)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines; the first two columns to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = []
    for row in [heads, *rows]:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines

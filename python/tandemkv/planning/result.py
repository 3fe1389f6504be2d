"""A plan: every pool of every rank, in pages and exact bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig, check_count
from tandemkv.errors import ConfigError
from tandemkv.planning.groups import Terms
from tandemkv.planning.report import plan_text
from tandemkv.planning.roles import GroupPlan, RolePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class TierPlan:
    """One tier of one rank; both are 0 on a tier that is not used.

    Attributes:
        budget_bytes: what the rank was given.
        slack_bytes: what neither role uses.
    """

    budget_bytes: int
    slack_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"budget_bytes": self.budget_bytes, "slack_bytes": self.slack_bytes}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiers:
    """The tiers of a rank, by attribute or by name: `tiers.host`, `tiers["host"]`."""

    device: TierPlan
    host: TierPlan
    disk: TierPlan

    def __getitem__(self, tier: str) -> TierPlan:
        return dict(self.items())[tier]

    def items(self) -> Iterator[tuple[str, TierPlan]]:
        """Yield (name, tier), warm to cold."""
        yield "device", self.device
        yield "host", self.host
        yield "disk", self.disk

    def to_dict(self) -> dict[str, Any]:
        """Return the tiers as plain values."""
        return {name: tier.to_dict() for name, tier in self.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """One rank. On every tier `target + draft + slack` is the budget, exactly.

    Attributes:
        rank: `(pp_rank * cp_size + cp_rank) * tp_size + tp_rank`.
        pp_rank, cp_rank, tp_rank: its place.
        target: the target's share.
        draft: the draft's share, or None on a rank without draft layers.
        tiers: budgets and slack.
    """

    rank: int
    pp_rank: int
    cp_rank: int
    tp_rank: int
    target: RolePlan
    draft: RolePlan | None
    tiers: Tiers

    @property
    def budget_bytes(self) -> int:
        """Device bytes that the rank was given."""
        return self.tiers.device.budget_bytes

    @property
    def slack_bytes(self) -> int:
        """Device bytes that neither role uses."""
        return self.tiers.device.slack_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the rank as plain values; `draft` is None where there is none."""
        return {
            "rank": self.rank,
            "pp_rank": self.pp_rank,
            "cp_rank": self.cp_rank,
            "tp_rank": self.tp_rank,
            "budget_bytes": self.budget_bytes,
            "slack_bytes": self.slack_bytes,
            "target": self.target.to_dict(),
            "draft": None if self.draft is None else self.draft.to_dict(),
            "tiers": self.tiers.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every pool of every rank, for target and draft. `plan` makes it; nothing in it changes.

    Attributes:
        config, mapping, speculative: what was asked for.
        terms: what that asks of every cache group.
        target_name, draft_name: the models.
        max_seq_len: longest sequence in tokens, resolved.
        num_blocks: pages of each role on each rank in the groups that keep every token, the
            reserved page 0 included; 0 where there is none, so that tokens have no limit.
        num_host_blocks, num_disk_blocks: pages on the lower tiers, which reserve none.
        ranks: one entry per rank, in rank order.
        notes: what the user should know, one sentence each.
    """

    config: KvCacheConfig
    mapping: Mapping
    speculative: SpeculativeConfig | None
    terms: Terms
    target_name: str
    draft_name: str | None
    max_seq_len: int
    num_blocks: int
    num_host_blocks: int
    num_disk_blocks: int
    ranks: tuple[RankPlan, ...]
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_block(self) -> int:
        """Tokens of a block, for both roles."""
        return self.config.tokens_per_block

    @property
    def max_batch_size(self) -> int:
        """Most sequences at a time."""
        return self.config.max_batch_size

    @property
    def has_draft(self) -> bool:
        """Whether any rank holds draft KV; every rank's ledger then counts for both roles."""
        return self.draft_name is not None

    @property
    def extra_tokens(self) -> int:
        """Tokens of room kept beyond what is written."""
        return 0 if self.speculative is None else self.speculative.extra_tokens

    @property
    def reserve_tokens(self) -> int:
        """Draft tokens that one step runs beyond one token."""
        return 0 if self.speculative is None else self.speculative.reserve_tokens

    @property
    def lookahead(self) -> int:
        """Later tokens that draft KV at a position depends on; 0 without draft KV."""
        return 0 if self.speculative is None else self.speculative.lookahead

    @property
    def headroom_tokens(self) -> int:
        """Tokens that a generation step may touch: extra tokens, reserve and one."""
        return self.terms.headroom

    @property
    def block_tokens(self) -> int:
        """Tokens of a block: a page of `tokens_per_block` on each context-parallel rank."""
        return self.terms.block_tokens

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that a sequence of `tokens` tokens takes at its largest.

        `cdiv(tokens + extra_tokens + reserve_tokens + 1, block_tokens)`.
        """
        return -(-(tokens + self.headroom_tokens) // self.block_tokens)

    @property
    def row_width(self) -> int:
        """Entries of a block-table row: the blocks of `max_seq_len`, rounded up to 4."""
        return -(-self.blocks_of(self.max_seq_len) // 4) * 4

    @property
    def max_tokens(self) -> int | None:
        """Tokens that sequences can use: `(num_blocks - 1) * block_tokens`; None: no limit."""
        return (self.num_blocks - 1) * self.block_tokens if self.num_blocks else None

    @property
    def max_sequences(self) -> int:
        """Sequences that can be open: the batch times the micro-batches in flight."""
        return self.terms.sequences

    @property
    def max_concurrency(self) -> int:
        """Sequences of `max_seq_len` tokens that fit at a time; see `concurrency`."""
        return self.concurrency(self.max_seq_len)

    @property
    def max_running_requests(self) -> int:
        """Sequences of `max_seq_len` tokens that can run at a time; see `running_requests`."""
        return self.running_requests(self.max_seq_len)

    def concurrency(self, request_len: int) -> int:
        """Return how many sequences of `request_len` tokens fit at a time, sharing nothing.

        Not limited by the batch size, unless no group grows with tokens: then `max_sequences`,
        for which windows and states are there.

        Raises:
            ConfigError: `request_len` is not in `1 ..= max_seq_len`.
        """
        if check_count("request_len", request_len) > self.max_seq_len:
            raise ConfigError(
                f"request_len is {request_len}, above max_seq_len {self.max_seq_len}",
                field="request_len",
                value=request_len,
            )
        if not self.num_blocks:
            return self.max_sequences
        return (self.num_blocks - 1) // self.blocks_of(request_len)

    def running_requests(self, request_len: int) -> int:
        """Return how many sequences of `request_len` tokens can run at a time.

        `concurrency`, and at most `max_sequences`: what is kept per sequence is there for no more.

        Raises:
            ConfigError: as `concurrency`.
        """
        return min(self.concurrency(request_len), self.max_sequences)

    @property
    def max_request_len(self) -> int:
        """Longest sequence that fits alone, in tokens, at most `max_seq_len`; 0 if none does."""
        if self.max_tokens is None:
            return self.max_seq_len
        return max(0, min(self.max_seq_len, self.max_tokens - self.headroom_tokens))

    def groups(self) -> Iterator[GroupPlan]:
        """Yield every cache group of every rank and role."""
        for rank in self.ranks:
            yield from rank.target.groups
            if rank.draft is not None:
                yield from rank.draft.groups

    @property
    def hittable_endpoints(self) -> int | None:
        """Cached prefixes that stay hittable while all sequences run; None: tokens decide alone.

        Windows and states of a prefix are needed at its end, so at full load only those of
        `cached_endpoints` are sure to be there, and the snapshots of states that are charged
        beside the tokens.
        """
        if all(group.lifetime in ("full_attention", "cross_attention") for group in self.groups()):
            return None
        return self.config.cached_endpoints

    @property
    def data_parallel_size(self) -> int:
        """Groups of ranks that each serve their own requests: tp_size under attention-DP."""
        return self.mapping.tp_size if self.mapping.enable_attention_dp else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values; sizes in bytes, capacities per data-parallel group."""
        return {
            "num_blocks": self.num_blocks,
            "max_tokens": self.max_tokens,
            "max_concurrency": self.max_concurrency,
            "max_running_requests": self.max_running_requests,
            "tokens_per_block": self.tokens_per_block,
            "num_host_blocks": self.num_host_blocks,
            "num_disk_blocks": self.num_disk_blocks,
            "max_seq_len": self.max_seq_len,
            "max_request_len": self.max_request_len,
            "max_batch_size": self.max_batch_size,
            "max_sequences": self.max_sequences,
            "block_tokens": self.block_tokens,
            "hittable_endpoints": self.hittable_endpoints,
            "data_parallel_size": self.data_parallel_size,
            "row_width": self.row_width,
            "extra_tokens": self.extra_tokens,
            "reserve_tokens": self.reserve_tokens,
            "lookahead": self.lookahead,
            "target": self.target_name,
            "draft": self.draft_name,
            "config": self.config.to_dict(),
            "mapping": self.mapping.to_dict(),
            "speculative": None if self.speculative is None else self.speculative.to_dict(),
            "notes": list(self.notes),
            "ranks": [rank.to_dict() for rank in self.ranks],
        }

    def digest(self) -> str:
        """Return a SHA-256 over every number and name of the plan, the same in every process."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return plan_text(self)

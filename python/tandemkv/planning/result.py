"""A plan: every pool of every rank, in pages and exact bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig, check_count
from tandemkv.errors import ConfigError
from tandemkv.geometry.layers import Layer
from tandemkv.planning.report import plan_text


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """The layers of a role on a rank that share a block table.

    Attributes:
        lifetime: which tokens the group keeps; `full_attention` keeps all.
        layer_indices: the layers' numbers in their model, from 0.
        bytes_per_token: bytes of one token in all layers of the group.
        page_bytes: bytes of one page.
        num_pages: device pages, the reserved page 0 included.
        num_host_pages, num_disk_pages: pages on the lower tiers, which reserve none.
        device_bytes, host_bytes, disk_bytes: bytes of those pages.
    """

    lifetime: str
    layer_indices: tuple[int, ...]
    bytes_per_token: int
    page_bytes: int
    num_pages: int
    num_host_pages: int
    num_disk_pages: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; `layers` is their count."""
        return {
            "lifetime": self.lifetime,
            "layers": len(self.layer_indices),
            "layer_indices": list(self.layer_indices),
            "bytes_per_token": self.bytes_per_token,
            "page_bytes": self.page_bytes,
            "num_pages": self.num_pages,
            "device_bytes": self.device_bytes,
            "num_host_pages": self.num_host_pages,
            "host_bytes": self.host_bytes,
            "num_disk_pages": self.num_disk_pages,
            "disk_bytes": self.disk_bytes,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RolePlan:
    """What one role has on one rank.

    Attributes:
        role: `target` or `draft`.
        layers: the layers on this rank, in model order; pools are built from them.
        layer_indices: their numbers in the model, from 0.
        tp_size: ranks that share the role's KV heads (1 under attention data parallelism).
        bytes_per_token: bytes of one token in all layers, on this rank.
        fixed_bytes: device bytes that do not grow with tokens.
        page_bytes: bytes of one page: `bytes_per_token * tokens_per_block`.
        num_pages: device pages, the reserved page 0 included.
        device_bytes: device bytes: `fixed_bytes + num_pages * page_bytes`.
        num_host_pages, host_bytes, num_disk_pages, disk_bytes: the lower tiers.
        groups: the cache groups that the layers form.
    """

    role: str
    layers: tuple[Layer, ...]
    layer_indices: tuple[int, ...]
    tp_size: int
    bytes_per_token: int
    fixed_bytes: int
    page_bytes: int
    num_pages: int
    device_bytes: int
    num_host_pages: int
    host_bytes: int
    num_disk_pages: int
    disk_bytes: int
    groups: tuple[GroupPlan, ...]

    def tier_bytes(self, tier: str) -> int:
        """Return the bytes of this role on `device`, `host` or `disk`."""
        return {
            "device": self.device_bytes,
            "host": self.host_bytes,
            "disk": self.disk_bytes,
        }[tier]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; `layers` is their count."""
        return {
            "bytes_per_token": self.bytes_per_token,
            "fixed_bytes": self.fixed_bytes,
            "page_bytes": self.page_bytes,
            "num_pages": self.num_pages,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "num_host_pages": self.num_host_pages,
            "disk_bytes": self.disk_bytes,
            "num_disk_pages": self.num_disk_pages,
            "layers": len(self.layers),
            "layer_indices": list(self.layer_indices),
            "tp_size": self.tp_size,
            "groups": [group.to_dict() for group in self.groups],
        }


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
        rank: `pp_rank * tp_size + tp_rank`.
        pp_rank, tp_rank: its place.
        target: the target's share.
        draft: the draft's share, or None on a rank without draft layers.
        tiers: budgets and slack.
    """

    rank: int
    pp_rank: int
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
        target_name, draft_name: the models.
        max_seq_len: longest sequence in tokens, resolved.
        num_blocks: pages of each role on each rank, the reserved page 0 included.
        num_host_blocks, num_disk_blocks: pages on the lower tiers, which reserve none.
        ranks: one entry per rank, in rank order.
        notes: what the user should know, one sentence each.
    """

    config: KvCacheConfig
    mapping: Mapping
    speculative: SpeculativeConfig | None
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

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that a sequence of `tokens` tokens takes at its largest.

        `cdiv(tokens + extra_tokens + reserve_tokens + 1, tokens_per_block)`.
        """
        room = tokens + self.extra_tokens + self.reserve_tokens + 1
        return -(-room // self.tokens_per_block)

    @property
    def row_width(self) -> int:
        """Entries of a block-table row: the blocks of `max_seq_len`, rounded up to 4."""
        return -(-self.blocks_of(self.max_seq_len) // 4) * 4

    @property
    def max_tokens(self) -> int:
        """Tokens that sequences can use: `(num_blocks - 1) * tokens_per_block`."""
        return (self.num_blocks - 1) * self.tokens_per_block

    @property
    def max_concurrency(self) -> int:
        """Sequences of `max_seq_len` tokens that fit at a time, not limited by the batch size."""
        return self.concurrency(self.max_seq_len)

    def concurrency(self, request_len: int) -> int:
        """Return how many sequences of `request_len` tokens fit at a time, sharing nothing.

        Raises:
            ConfigError: `request_len` is not in `1 ..= max_seq_len`.
        """
        if check_count("request_len", request_len) > self.max_seq_len:
            raise ConfigError(
                f"request_len is {request_len}, above max_seq_len {self.max_seq_len}",
                field="request_len",
                value=request_len,
            )
        return (self.num_blocks - 1) // self.blocks_of(request_len)

    @property
    def max_request_len(self) -> int:
        """Longest sequence that fits alone, in tokens, at most `max_seq_len`; 0 if none does."""
        room = self.max_tokens - self.extra_tokens - self.reserve_tokens - 1
        return max(0, min(self.max_seq_len, room))

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
            "tokens_per_block": self.tokens_per_block,
            "num_host_blocks": self.num_host_blocks,
            "num_disk_blocks": self.num_disk_blocks,
            "max_seq_len": self.max_seq_len,
            "max_request_len": self.max_request_len,
            "max_batch_size": self.max_batch_size,
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

    def __str__(self) -> str:
        return plan_text(self)

"""What one role has on one rank: its cache groups, in pages and exact bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tandemkv import _core
from tandemkv.config import check_count
from tandemkv.geometry.layers import Layer
from tandemkv.planning.groups import FixedPages, Lifetime, Terms
from tandemkv.planning.quota import TokenCost


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """The layers of a role on a rank that share a block table.

    Attributes:
        lifetime: which tokens the group keeps: `full_attention` all, `sliding_window` the last
            ones and the sinks, `chunked_attention` those of the current chunk, `cross_attention`
            an encoder's, `recurrent_state` none.
        tokens: tokens of the window, of a chunk, or of the encoder; 0 for the others.
        sink_tokens: first tokens that a window keeps besides.
        layers: what the group keeps of each layer, in model order; pools are built from it.
        layer_indices: the layers' numbers in their model, from 0.
        bytes_per_token: bytes of one token in all layers of the group while it is kept; for states
            those of their snapshots, rounded up.
        page_bytes: bytes of one page: of a block's tokens, or of one sequence's states.
        fixed: device pages that do not grow with tokens; None where every token is kept.
        num_pages: device pages, the reserved page 0 included.
        num_host_pages, num_disk_pages: pages on the lower tiers, which reserve none.
        device_bytes, host_bytes, disk_bytes: bytes of those pages.
        terms: what the engine asks of every group.
    """

    lifetime: str
    tokens: int
    sink_tokens: int
    layers: tuple[Layer, ...]
    layer_indices: tuple[int, ...]
    bytes_per_token: int
    page_bytes: int
    fixed: FixedPages | None
    num_pages: int
    num_host_pages: int
    num_disk_pages: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    terms: Terms

    @property
    def rule(self) -> Lifetime:
        """The lifetime with its numbers."""
        return self.lifetime, self.tokens, self.sink_tokens

    def blocks(self, tokens: int, ahead: int = 0) -> int:
        """Return the most pages that a sequence holds until it has `tokens` tokens.

        Args:
            tokens: tokens of the sequence.
            ahead: tokens of room beyond them, such as a plan's headroom.
        """
        check_count("tokens", tokens, least=0)
        check_count("ahead", ahead, least=0)
        return _core.window_blocks(
            self.rule,
            tokens_per_block=self.terms.block_tokens,
            lookahead=self.terms.lookahead,
            tokens=tokens,
            ahead=ahead,
        )

    def tier_bytes(self, tier: str) -> int:
        """Return the bytes of this group on `device`, `host` or `disk`."""
        return {
            "device": self.device_bytes,
            "host": self.host_bytes,
            "disk": self.disk_bytes,
        }[tier]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; `layers` is their count."""
        return {
            "lifetime": self.lifetime,
            "tokens": self.tokens,
            "sink_tokens": self.sink_tokens,
            "layers": len(self.layer_indices),
            "layer_indices": list(self.layer_indices),
            "bytes_per_token": self.bytes_per_token,
            "page_bytes": self.page_bytes,
            "fixed_pages": None if self.fixed is None else self.fixed.to_dict(),
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
        layers: the layers on this rank, in model order, those that keep nothing included.
        layer_indices: their numbers in the model, from 0.
        tp_size: ranks that share the role's KV heads (1 under attention data parallelism).
        bytes_per_token: device bytes that one more token takes on this rank: all layers that keep
            every token, and the snapshots of states.
        fixed_bytes: device bytes that do not grow with tokens.
        page_bytes: bytes of one page: `bytes_per_token * tokens_per_block`.
        num_pages: device pages of the groups that grow, the reserved page 0 included; 0 where no
            group of any rank grows.
        device_bytes: device bytes: `fixed_bytes + num_pages * page_bytes`.
        unused_bytes: device bytes that hold no page: what is left of the share of snapshots, less
            than one state. The rest is the sum over the groups.
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
    unused_bytes: int
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

    @property
    def kept_layers(self) -> tuple[Layer, ...]:
        """What is kept of each layer, group by group, in model order; pools are built from it."""
        return tuple(layer for group in self.groups for layer in group.layers)

    @property
    def kept_indices(self) -> tuple[int, ...]:
        """The number in the model of each of `kept_layers`."""
        return tuple(index for group in self.groups for index in group.layer_indices)

    def _fixed_bytes(self, kind: str) -> int:
        return sum(
            group.page_bytes * getattr(group.fixed, kind)
            for group in self.groups
            if group.fixed is not None
        )

    @property
    def per_engine_bytes(self) -> int:
        """Fixed device bytes whatever runs: reserved pages, dummies, endpoints, margins."""
        return self._fixed_bytes("per_engine")

    @property
    def per_sequence_bytes(self) -> int:
        """Fixed device bytes of one sequence: its windows and states."""
        return self._fixed_bytes("per_sequence")

    @property
    def per_step_bytes(self) -> int:
        """Fixed device bytes of the tokens in flight, once for each pool of windows."""
        return self._fixed_bytes("per_step")

    def bytes(self, tokens: int, batch: int = 1, ahead: int = 0) -> int:
        """Return the device bytes that `batch` sequences of `tokens` tokens hold, page by page.

        The affine cost charges a window as if it were full, and for every sequence of the batch;
        this is what is in use: every block up to the window's length, a constant above.

        Args:
            tokens: tokens of each sequence.
            batch: sequences that share nothing.
            ahead: tokens of room beyond them, such as a plan's headroom.
        """
        check_count("batch", batch, least=0)
        return batch * sum(group.blocks(tokens, ahead) * group.page_bytes for group in self.groups)

    def prompt_bytes(self, tokens: int) -> int:
        """Return the bytes of `tokens` tokens of a prompt while it runs: no layer has dropped any.

        Args:
            tokens: tokens of the prompt that are in flight on this rank.
        """
        check_count("tokens", tokens, least=0)
        return tokens * sum(
            group.bytes_per_token
            for group in self.groups
            if group.lifetime not in ("cross_attention", "recurrent_state")
        )

    @property
    def token_cost(self) -> TokenCost:
        """The role's bytes as TensorRT-LLM counts them, from tokens alone."""
        windows = ("sliding_window", "chunked_attention")
        terms = self.groups[0].terms
        return TokenCost(
            full_bytes=self.bytes_per_token,
            context_bytes=sum(g.bytes_per_token for g in self.groups if g.lifetime in windows),
            per_sequence_bytes=self.per_sequence_bytes,
            num_sequences=terms.sequences,
            max_num_tokens=terms.step_tokens,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values; `layers` is their count."""
        return {
            "bytes_per_token": self.bytes_per_token,
            "fixed_bytes": self.fixed_bytes,
            "per_engine_bytes": self.per_engine_bytes,
            "per_sequence_bytes": self.per_sequence_bytes,
            "per_step_bytes": self.per_step_bytes,
            "page_bytes": self.page_bytes,
            "num_pages": self.num_pages,
            "device_bytes": self.device_bytes,
            "unused_bytes": self.unused_bytes,
            "host_bytes": self.host_bytes,
            "num_host_pages": self.num_host_pages,
            "disk_bytes": self.disk_bytes,
            "num_disk_pages": self.num_disk_pages,
            "layers": len(self.layers),
            "layer_indices": list(self.layer_indices),
            "tp_size": self.tp_size,
            "groups": [group.to_dict() for group in self.groups],
        }

"""From layers to cache groups: layers of one lifetime share a block table and are priced as one.

The core resolves each lifetime and prices each group; here layers are only sorted into groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tandemkv import _core
from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.geometry.layers import Layer

Lifetime = tuple[str, int, int]
"""`(name, tokens, sink tokens)`; the numbers are 0 where the rule has none."""

FULL: Lifetime = ("full_attention", 0, 0)
"""Keeps every token of a sequence."""

STATE: Lifetime = ("recurrent_state", 0, 0)
"""Keeps no token: one state per sequence."""

LIFETIMES: tuple[str, ...] = (
    "full_attention",
    "sliding_window",
    "chunked_attention",
    "cross_attention",
    "recurrent_state",
)
"""Every rule, in the order in which a plan lists its groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedPages:
    """Device pages of a group that do not grow with tokens, by kind.

    Attributes:
        reserved: page 0, which no sequence owns (per engine).
        dummies: states of dummy requests (per engine).
        endpoints: windows and states of cached prefixes, on every tier (per engine).
        margin: pages beyond those needed, so that a suspended sequence can resume (per engine).
        per_sequence: pages of one sequence.
        sequences: sequences that are charged for.
        per_step: pages of the tokens in flight, once for the pool.
    """

    reserved: int
    dummies: int
    endpoints: int
    margin: int
    per_sequence: int
    sequences: int
    per_step: int

    @property
    def per_engine(self) -> int:
        """Pages whatever runs."""
        return self.reserved + self.dummies + self.endpoints + self.margin

    @property
    def total(self) -> int:
        """All of them."""
        return self.per_engine + self.per_sequence * self.sequences + self.per_step

    def to_dict(self) -> dict[str, int]:
        """Return the fields and their total as plain values."""
        return {
            "reserved": self.reserved,
            "dummies": self.dummies,
            "endpoints": self.endpoints,
            "margin": self.margin,
            "per_sequence": self.per_sequence,
            "sequences": self.sequences,
            "per_step": self.per_step,
            "total": self.total,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What an engine asks of every group, the same for both roles and all ranks.

    Attributes:
        tokens_per_block: tokens of a page on one rank.
        cp_size: ranks that share the tokens of a sequence.
        sequences: sequences that can be open: the batch times the micro-batches in flight.
        headroom: tokens that a generation step may touch.
        lookahead: tokens that a match backs off; 0 without block reuse.
        step_tokens: most tokens that one step runs; 0: not charged.
        dummies: requests that only pad a batch.
        endpoints: cached prefixes whose windows and states stay.
        snapshot_interval: tokens between snapshots of a state; None: none.
        resume: how full fixed pools may be, as (numerator, denominator).
        max_seq_len: longest sequence; a window of as many tokens keeps everything.
        encoder_len: most encoder tokens of a sequence, where the model declares no fewer.
    """

    tokens_per_block: int
    cp_size: int
    sequences: int
    headroom: int
    lookahead: int
    step_tokens: int
    dummies: int
    endpoints: int
    snapshot_interval: int | None
    resume: tuple[int, int]
    max_seq_len: int
    encoder_len: int

    @property
    def block_tokens(self) -> int:
        """Tokens of a block: a page on each context-parallel rank."""
        return self.tokens_per_block * self.cp_size


def plan_terms(
    config: KvCacheConfig,
    mapping: Mapping,
    speculative: SpeculativeConfig | None,
    max_seq_len: int,
) -> Terms:
    """Return what the configuration asks of every group."""
    limit = config.max_util_for_resume
    reuse = config.enable_block_reuse
    return Terms(
        tokens_per_block=config.tokens_per_block,
        cp_size=mapping.cp_size,
        # Each pipeline stage has a micro-batch in flight, and all of them hold pages on every rank.
        sequences=config.max_batch_size * mapping.pp_size,
        headroom=1 if speculative is None else speculative.headroom_tokens,
        lookahead=speculative.lookahead if speculative is not None and reuse else 0,
        step_tokens=config.max_num_tokens or 0,
        dummies=dummy_requests(config, mapping, speculative),
        endpoints=config.cached_endpoints,
        snapshot_interval=config.state_snapshot_interval if reuse else None,
        resume=(1, 1) if limit is None else (limit.numerator, limit.denominator),
        max_seq_len=max_seq_len,
        encoder_len=config.max_encoder_len or max_seq_len,
    )


def dummy_requests(
    config: KvCacheConfig, mapping: Mapping, speculative: SpeculativeConfig | None
) -> int:
    """Return how many requests that only pad a batch are planned for.

    CUDA graphs are captured per draft length, and each needs one; under attention data parallelism
    an idle rank runs one as well.
    """
    if config.num_dummy_requests is not None:
        return config.num_dummy_requests
    draft_lens = 1 + (0 if speculative is None else speculative.max_draft_len)
    return draft_lens + mapping.enable_attention_dp


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The layers of one role and lifetime on one pipeline stage, and what they cost there.

    Attributes:
        lifetime: which tokens are kept, resolved against the longest sequence.
        layers: the parts of layers that the group holds, in model order.
        layer_indices: their layers' numbers in the model, from 0.
        bytes_per_token: bytes of one token in all of them while it is kept; 0 for states.
        state_bytes: bytes of one sequence's states in all of them; 0 for attention.
        page_bytes: bytes of one page: of a block's tokens, or of a state.
        fixed: pages that do not grow with tokens; None where every token is kept.
        device, lower: (slope, intercept) on the device, and on host and disk.
    """

    lifetime: Lifetime
    layers: tuple[Layer, ...]
    layer_indices: tuple[int, ...]
    bytes_per_token: int
    state_bytes: int
    page_bytes: int
    fixed: FixedPages | None
    device: tuple[int, int]
    lower: tuple[int, int]


def group_layers(
    layers: Sequence[Layer], first: int, price: Callable[[Layer], int], terms: Terms
) -> tuple[Group, ...]:
    """Sort the layers of one role on one stage into groups, and price those.

    Args:
        layers: every layer of the stage, in order; those that keep nothing are in no group.
        first: the number in the model of the first of them.
        price: bytes of one token of a part on a rank, or of a sequence's state.
        terms: what the engine asks of every group.

    Raises:
        BudgetError: a length outside what a window can have, or numbers beyond 64 bits.
    """
    members: dict[Lifetime, list[tuple[Layer, int]]] = {}
    known: dict[Layer, list[tuple[Lifetime, Layer]]] = {}
    for index, layer in enumerate(layers, start=first):
        if layer not in known:
            kept = [part for part in layer.parts if part.kind != "none"]
            known[layer] = [_resolved(part, terms) for part in kept]
        for lifetime, part in known[layer]:
            members.setdefault(lifetime, []).append((part, index))
    order = {name: place for place, name in enumerate(LIFETIMES)}
    return tuple(
        _priced(lifetime, members[lifetime], price, terms)
        for lifetime in sorted(members, key=lambda rule: (order[rule[0]], *rule[1:]))
    )


def _resolved(part: Layer, terms: Terms) -> tuple[Lifetime, Layer]:
    """Return the lifetime of a part, and the part without a window that no sequence outgrows."""
    if part.kind == "state":
        return STATE, part
    if part.kind == "cross_attention":
        limit = part.max_cross_tokens or terms.encoder_len
        return ("cross_attention", min(limit, terms.encoder_len), 0), part
    rule = FULL
    if part.window is not None:
        rule = ("sliding_window", part.window, part.sink_tokens)
    elif part.chunk is not None:
        rule = ("chunked_attention", part.chunk, 0)
    lifetime = _core.resolve_lifetime(rule, terms.max_seq_len, terms.lookahead)
    if lifetime == FULL and rule != FULL:
        part = replace(part, window=None, sink_tokens=0, chunk=None)
    return lifetime, part


def _priced(
    lifetime: Lifetime,
    members: Sequence[tuple[Layer, int]],
    price: Callable[[Layer], int],
    terms: Terms,
) -> Group:
    size = sum(price(part) for part, _ in members)
    page_bytes, fixed, device, lower = _core.group_cost(
        lifetime,
        size,
        tokens_per_block=terms.tokens_per_block,
        cp_size=terms.cp_size,
        sequences=terms.sequences,
        headroom=terms.headroom,
        lookahead=terms.lookahead,
        step_tokens=terms.step_tokens,
        dummies=terms.dummies,
        endpoints=terms.endpoints,
        snapshot_interval=terms.snapshot_interval,
        resume=terms.resume,
    )
    names = ("reserved", "dummies", "endpoints", "margin", "per_sequence", "sequences", "per_step")
    return Group(
        lifetime=lifetime,
        layers=tuple(part for part, _ in members),
        layer_indices=tuple(index for _, index in members),
        bytes_per_token=0 if lifetime == STATE else size,
        state_bytes=size if lifetime == STATE else 0,
        page_bytes=page_bytes,
        fixed=None if fixed is None else FixedPages(**dict(zip(names, fixed, strict=True))),
        device=device,
        lower=lower,
    )

"""What the user decides: cache sizes, the parallel layout and the speculative mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal

from tandemkv.errors import ConfigError
from tandemkv.modes import ALIASES, MODES, Mode
from tandemkv.sizes import parse_size

MAX_INT32 = 2**31 - 1
"""Tokens, rows and pages are signed 32-bit in the ledger's arrays."""

MAX_RANKS = 2**16
"""Most ranks of a layout; each has its own entry in a plan."""


EvictionPolicy = Literal["lru", "lfu", "adaptive"]
EVICTION_POLICIES: tuple[EvictionPolicy, ...] = ("lru", "lfu", "adaptive")
"""Orders in which cached blocks are evicted; `docs/eviction.md` says what each is."""


def check_count(field: str, value: object, *, least: int = 1) -> int:
    """Return `value` if it is an integer in `least ..= MAX_INT32`.

    Raises:
        ConfigError: it is not; the message names the field and the value.
    """
    # bool is an int in Python, but `tp_size=True` is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_INT32:
        raise ConfigError(
            f"{field} is {value!r}; an integer from {least} to 2^31 - 1 is needed",
            field=field,
            value=value,
        )
    return value


def _check_bool(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(
            f"{field} is {value!r}; True or False is needed", field=field, value=value
        )
    return value


def to_fraction(field: str, value: object) -> Fraction:
    """Return `value` as an exact fraction above 0 and at most 1.

    A float stands for the decimal number that it prints as: 0.95 is 95/100, not the binary number
    next to it, so that no rounding ever adds or drops a page.

    Raises:
        ConfigError: it is no number, or outside that range.
    """
    fraction = None
    if isinstance(value, int | float | str | Fraction) and not isinstance(value, bool):
        try:
            fraction = Fraction(repr(value) if isinstance(value, float) else value)
        except (ValueError, ZeroDivisionError):
            fraction = None
    if fraction is None or not 0 < fraction <= 1 or fraction.denominator > MAX_INT32:
        raise ConfigError(
            f"{field} is {value!r}; a fraction above 0 and at most 1 is needed, such as 0.95",
            field=field,
            value=value,
        )
    return fraction


def check_policy(field: str, value: object) -> EvictionPolicy:
    """Return `value` if it names an eviction policy.

    Raises:
        ConfigError: it does not; the message names those there are.
    """
    for policy in EVICTION_POLICIES:
        if value == policy:
            return policy
    names = ", ".join(EVICTION_POLICIES)
    raise ConfigError(f"{field} is {value!r}; one of {names} is needed", field=field, value=value)


def _optional_count(field: str, value: object) -> int | None:
    return None if value is None else check_count(field, value)


@dataclass(frozen=True, init=False)
class KvCacheConfig:
    """Sizes of the KV cache. Every size is per rank and for both roles together.

    Args:
        max_gpu_total_bytes: device bytes for the KV of target and draft, > 0.
        host_cache_size: host bytes for the pair; 0: no host tier.
        disk_cache_size: disk bytes for the pair; 0: no disk tier.
        tokens_per_block: tokens of a block, for both roles.
        kernel_page_tokens: tokens of a page as attention kernels see it, a divisor of
            `tokens_per_block`; None: the block.
        max_batch_size: most sequences at a time; the rows of the block table. Each has a state of
            its own in models with recurrent states, taken off the budget at once.
        max_seq_len: longest sequence in tokens; None: what the target's config declares; `auto`:
            the longest that fits, up to that.
        max_num_tokens: most tokens that one step runs, or None. Every pool of windows is charged
            room for them while they are in flight, once; None charges nothing. Full attention
            keeps every token it has run, so it is never charged for it.
        max_tokens: most tokens that sequences may use, whatever else would fit; None: no cap. It
            is rounded down to whole blocks.
        cached_endpoints: cached prefixes whose windows and states are kept beside those of the
            sequences, on every tier that is used.
        state_snapshot_interval: tokens between two snapshots of a recurrent state, a multiple of
            `tokens_per_block`; None: none are taken. Of no effect without `enable_block_reuse`.
        max_util_for_resume: how full the pools of windows and states may be for a suspended
            sequence to resume, as a fraction; None: full. Lower values cost pages.
        max_encoder_len: most encoder tokens of a sequence, for cross attention; None:
            `max_seq_len`. What the model declares limits it further.
        num_dummy_requests: requests that only pad a batch, each with a state of its own; None: one
            per draft length from 0 to `max_draft_len` (CUDA graphs are captured for each), and one
            more under attention data parallelism.
        enable_block_reuse: whether prefixes are published and matched.
        enable_partial_reuse: whether a hit may end inside a block; of no effect without
            `enable_block_reuse`.
        eviction_policy: in which order cached blocks are evicted: `lru`, `lfu` or `adaptive`.
        cache_ttl_ms: milliseconds without use, by the clock of the steps, after which cached blocks
            are given up; 0: never.
        max_pinned_fraction: how much of the pool leases on cached prefixes may protect together, as
            a fraction; None: there are no leases.

    Sizes are ints in bytes or strings such as `"40GiB"`; see `parse_size`. They are stored in
    bytes.

    Raises:
        ConfigError: a size that is not one, a zero device budget, a kernel page that does not
            divide the block, a count that is not an integer
            >= 1 (0 is allowed for `cached_endpoints` and `num_dummy_requests`), a fraction outside
            (0, 1], an unknown policy, or a step too small to run one token of every sequence.
    """

    max_gpu_total_bytes: int
    host_cache_size: int
    disk_cache_size: int
    tokens_per_block: int
    kernel_page_tokens: int | None
    max_batch_size: int
    max_seq_len: int | Literal["auto"] | None
    max_num_tokens: int | None
    max_tokens: int | None
    cached_endpoints: int
    state_snapshot_interval: int | None
    max_util_for_resume: Fraction | None
    max_encoder_len: int | None
    num_dummy_requests: int | None
    enable_block_reuse: bool
    enable_partial_reuse: bool
    eviction_policy: EvictionPolicy
    max_pinned_fraction: Fraction | None
    cache_ttl_ms: int

    def __init__(
        self,
        *,
        max_gpu_total_bytes: int | str,
        host_cache_size: int | str = 0,
        disk_cache_size: int | str = 0,
        tokens_per_block: int = 32,
        kernel_page_tokens: int | None = None,
        max_batch_size: int = 256,
        max_seq_len: int | Literal["auto"] | None = None,
        max_num_tokens: int | None = None,
        max_tokens: int | None = None,
        cached_endpoints: int = 0,
        state_snapshot_interval: int | None = None,
        max_util_for_resume: Fraction | float | str | None = None,
        max_encoder_len: int | None = None,
        num_dummy_requests: int | None = None,
        enable_block_reuse: bool = True,
        enable_partial_reuse: bool = True,
        eviction_policy: EvictionPolicy = "lru",
        max_pinned_fraction: Fraction | float | str | None = None,
        cache_ttl_ms: int = 0,
    ) -> None:
        device_bytes = parse_size(max_gpu_total_bytes, "max_gpu_total_bytes")
        if device_bytes == 0:
            raise ConfigError(
                f"max_gpu_total_bytes is {max_gpu_total_bytes!r}; a KV cache needs device memory",
                field="max_gpu_total_bytes",
                value=max_gpu_total_bytes,
            )
        check_count("max_batch_size", max_batch_size)
        check_count("tokens_per_block", tokens_per_block)
        if kernel_page_tokens is not None and (
            tokens_per_block % check_count("kernel_page_tokens", kernel_page_tokens)
        ):
            raise ConfigError(
                f"kernel_page_tokens is {kernel_page_tokens}; it must divide tokens_per_block "
                f"{tokens_per_block}",
                field="kernel_page_tokens",
                value=kernel_page_tokens,
            )
        if max_seq_len is not None and max_seq_len != "auto":
            check_count("max_seq_len", max_seq_len)
        if max_num_tokens is not None and check_count("max_num_tokens", max_num_tokens) < (
            max_batch_size
        ):
            raise ConfigError(
                f"max_num_tokens is {max_num_tokens}, below max_batch_size {max_batch_size}: a "
                "step could not run one token of every sequence",
                field="max_num_tokens",
                value=max_num_tokens,
            )
        values = {
            "max_gpu_total_bytes": device_bytes,
            "host_cache_size": parse_size(host_cache_size, "host_cache_size"),
            "disk_cache_size": parse_size(disk_cache_size, "disk_cache_size"),
            "tokens_per_block": tokens_per_block,
            "kernel_page_tokens": kernel_page_tokens,
            "max_batch_size": max_batch_size,
            "max_seq_len": max_seq_len,
            "max_num_tokens": max_num_tokens,
            "max_tokens": _optional_count("max_tokens", max_tokens),
            "cached_endpoints": check_count("cached_endpoints", cached_endpoints, least=0),
            "state_snapshot_interval": _optional_count(
                "state_snapshot_interval", state_snapshot_interval
            ),
            "max_util_for_resume": (
                None
                if max_util_for_resume is None
                else to_fraction("max_util_for_resume", max_util_for_resume)
            ),
            "max_encoder_len": _optional_count("max_encoder_len", max_encoder_len),
            "num_dummy_requests": (
                None
                if num_dummy_requests is None
                else check_count("num_dummy_requests", num_dummy_requests, least=0)
            ),
            "enable_block_reuse": _check_bool("enable_block_reuse", enable_block_reuse),
            "enable_partial_reuse": _check_bool("enable_partial_reuse", enable_partial_reuse),
            "eviction_policy": check_policy("eviction_policy", eviction_policy),
            "cache_ttl_ms": check_count("cache_ttl_ms", cache_ttl_ms, least=0),
            "max_pinned_fraction": (
                None
                if max_pinned_fraction is None
                else to_fraction("max_pinned_fraction", max_pinned_fraction)
            ),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def tier_bytes(self, tier: str) -> int:
        """Return the bytes of `device`, `host` or `disk` on one rank."""
        return {
            "device": self.max_gpu_total_bytes,
            "host": self.host_cache_size,
            "disk": self.disk_cache_size,
        }[tier]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, sizes in bytes; a fraction as `19/20`."""
        return {
            name: str(value) if isinstance(value, Fraction) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, init=False)
class Mapping:
    """How the ranks share the models: `rank = (pp_rank * cp_size + cp_rank) * tp_size + tp_rank`.

    Args:
        tp_size: tensor-parallel ranks of a pipeline stage.
        pp_size: pipeline stages.
        cp_size: context-parallel ranks: each keeps `1 / cp_size` of the tokens of every sequence,
            so that a block is a page of `tokens_per_block` tokens on each of them. Where an engine
            takes them from its tensor-parallel ranks (vLLM's decode context parallelism of c on t
            ranks), `tp_size` here is t / c.
        pp_partition: target layers of each stage; None: as even as possible, the first stages
            take one more.
        enable_attention_dp: each tensor-parallel rank serves its own requests with whole KV heads
            (attention data parallelism). Capacities are then per such rank.
        draft_tp_size: width of the draft's attention group; None: that of the target. It divides
            `tp_size`: every `draft_tp_size` consecutive ranks hold a whole draft.

    Raises:
        ConfigError: a size that is not an integer >= 1, more than `MAX_RANKS` ranks, a partition
            whose length is not `pp_size`, or a `draft_tp_size` that does not divide `tp_size` or
            contradicts attention data parallelism.
    """

    tp_size: int
    pp_size: int
    cp_size: int
    pp_partition: tuple[int, ...] | None
    enable_attention_dp: bool
    draft_tp_size: int | None

    def __init__(
        self,
        *,
        tp_size: int = 1,
        pp_size: int = 1,
        cp_size: int = 1,
        pp_partition: Sequence[int] | None = None,
        enable_attention_dp: bool = False,
        draft_tp_size: int | None = None,
    ) -> None:
        check_count("tp_size", tp_size)
        check_count("pp_size", pp_size)
        check_count("cp_size", cp_size)
        _check_bool("enable_attention_dp", enable_attention_dp)
        if tp_size * pp_size * cp_size > MAX_RANKS:
            raise ConfigError(
                f"tp_size {tp_size} times pp_size {pp_size} times cp_size {cp_size} is "
                f"{tp_size * pp_size * cp_size} ranks; at most {MAX_RANKS} are planned",
                field="tp_size",
                value=tp_size,
            )
        partition = None if pp_partition is None else _partition(pp_partition, pp_size)
        if draft_tp_size is not None:
            _check_draft_tp(draft_tp_size, tp_size, enable_attention_dp)
        object.__setattr__(self, "tp_size", tp_size)
        object.__setattr__(self, "pp_size", pp_size)
        object.__setattr__(self, "cp_size", cp_size)
        object.__setattr__(self, "pp_partition", partition)
        object.__setattr__(self, "enable_attention_dp", enable_attention_dp)
        object.__setattr__(self, "draft_tp_size", draft_tp_size)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp_size * self.pp_size * self.cp_size

    @property
    def ranks_per_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp_size * self.cp_size

    @property
    def target_width(self) -> int:
        """Ranks that share the target's KV heads."""
        return 1 if self.enable_attention_dp else self.tp_size

    @property
    def draft_width(self) -> int:
        """Ranks that share the draft's KV heads."""
        return self.target_width if self.draft_tp_size is None else self.draft_tp_size

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        partition = None if self.pp_partition is None else list(self.pp_partition)
        return {**asdict(self), "pp_partition": partition}


def _partition(value: Sequence[int], pp_size: int) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(
            f"pp_partition is {value!r}; a list of layer counts is needed",
            field="pp_partition",
            value=value,
        )
    partition = tuple(check_count("an entry of pp_partition", layers) for layers in value)
    if len(partition) != pp_size:
        raise ConfigError(
            f"pp_partition has {len(partition)} entries, but pp_size is {pp_size}",
            field="pp_partition",
            value=partition,
        )
    return partition


def _check_draft_tp(draft_tp_size: int, tp_size: int, attention_dp: bool) -> None:
    check_count("draft_tp_size", draft_tp_size)
    if attention_dp and draft_tp_size != 1:
        raise ConfigError(
            f"draft_tp_size is {draft_tp_size}, but under attention data parallelism every rank "
            "keeps whole heads, so it can only be 1",
            field="draft_tp_size",
            value=draft_tp_size,
        )
    if tp_size % draft_tp_size:
        raise ConfigError(
            f"draft_tp_size is {draft_tp_size}; it must divide tp_size {tp_size}",
            field="draft_tp_size",
            value=draft_tp_size,
        )


@dataclass(frozen=True, init=False)
class SpeculativeConfig:
    """How drafts are made, and what that asks of the cache. K is `max_draft_len`.

    Args:
        mode: `eagle3_one_model` (or `eagle3`), `mtp_one_model` (or `mtp`), `mtp_vanilla`,
            `pard`, `dflash`, `dspark`, `draft_target_one_model`, `two_model`, `ngram`, `sa`,
            `user_provided` or `shared_kv_mtp`.
        max_draft_len: longest chain of draft tokens, K >= 1.
        top_k: branches per level of a draft tree (`eagle3_one_model` only); None: a chain.

    Raises:
        ConfigError: an unknown mode, a length that is not an integer >= 1, or a tree in a mode
            that has none.
    """

    mode: str
    max_draft_len: int
    top_k: int | None

    def __init__(self, *, mode: str, max_draft_len: int, top_k: int | None = None) -> None:
        name = ALIASES.get(mode, mode) if isinstance(mode, str) else mode
        if not isinstance(name, str) or name not in MODES:
            raise ConfigError(
                f"mode is {mode!r}; supported: {', '.join([*MODES, *ALIASES])}",
                field="mode",
                value=mode,
            )
        check_count("max_draft_len", max_draft_len)
        if top_k is not None:
            check_count("top_k", top_k)
            if name != "eagle3_one_model":
                raise ConfigError(
                    f"top_k is {top_k}, but mode {name!r} drafts a chain; only eagle3_one_model "
                    "drafts a tree",
                    field="top_k",
                    value=top_k,
                )
        object.__setattr__(self, "mode", name)
        object.__setattr__(self, "max_draft_len", max_draft_len)
        object.__setattr__(self, "top_k", top_k)

    @property
    def traits(self) -> Mode:
        """What the mode is like, whatever K is."""
        return MODES[self.mode]

    @property
    def extra_tokens(self) -> int:
        """Tokens of room kept beyond what is written: K - 1 in one engine, else 0."""
        return self.max_draft_len - 1 if self.traits.one_engine else 0

    @property
    def tokens_per_step(self) -> int:
        """Most tokens that one decode step runs: 1 + draft tokens; 2K for PARD."""
        if self.traits.parallel_masks:
            return 2 * self.max_draft_len
        return 1 + self.max_draft_len * (self.top_k or 1)

    @property
    def reserve_tokens(self) -> int:
        """Draft tokens that one step runs beyond one token: `tokens_per_step - 1`.

        TensorRT-LLM's manager V2 reserves K for PARD, too little for the 2K - 1 that run.
        """
        return self.tokens_per_step - 1

    @property
    def headroom_tokens(self) -> int:
        """Tokens that a generation step may touch: `extra_tokens + tokens_per_step`."""
        return self.extra_tokens + self.tokens_per_step

    @property
    def lookahead(self) -> int:
        """Later prompt tokens that the draft's KV at a position depends on."""
        lookahead = self.traits.lookahead
        return self.max_draft_len if lookahead == "K" else lookahead

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and what follows from them as plain values."""
        return {
            **asdict(self),
            "extra_tokens": self.extra_tokens,
            "tokens_per_step": self.tokens_per_step,
            "reserve_tokens": self.reserve_tokens,
            "headroom_tokens": self.headroom_tokens,
            "lookahead": self.lookahead,
        }

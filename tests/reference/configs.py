"""Tiny ledgers for the random drivers: of every kind of classes that models have."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import replace

from reference.policies import POLICIES
from reference.state import Config

Pick = Callable[[int, int], int]
LifetimeRule = tuple[str, int, int]


def _full(pick: Pick, tpb: int) -> LifetimeRule:
    return ("full_attention", 0, 0)


def _sliding(pick: Pick, tpb: int) -> LifetimeRule:
    return ("sliding_window", pick(1, 3 * tpb), 0)


def _sinks(pick: Pick, tpb: int) -> LifetimeRule:
    return ("sliding_window", pick(1, 2 * tpb), pick(1, 2 * tpb))


def _chunked(pick: Pick, tpb: int) -> LifetimeRule:
    return ("chunked_attention", pick(1, 3 * tpb), 0)


def _state(pick: Pick, tpb: int) -> LifetimeRule:
    return ("recurrent_state", 0, 0)


def _cross(pick: Pick, tpb: int) -> LifetimeRule:
    return ("cross_attention", pick(1, 2 * tpb), 0)


# The classes of a ledger: what models have.
CLASS_KINDS: dict[str, tuple[Callable[[Pick, int], LifetimeRule], ...]] = {
    "full": (_full,),
    "two full": (_full, _full),
    "full, sliding": (_full, _sliding),
    "full, sinks": (_full, _sinks),
    "full, chunked": (_full, _chunked),
    "full, state": (_full, _state),
    "full, cross": (_full, _cross),
    "full, sliding, state": (_full, _sliding, _state),
    "sliding": (_sliding,),
    "sinks, state": (_sinks, _state),
    "state": (_state,),
}


# Those of which a ledger may keep pages below the device.
TIERED_KINDS = tuple(kind for kind, makers in CLASS_KINDS.items() if makers[0] is _full)


def with_tiers(pick: Pick, kinds: Sequence_[str] = TIERED_KINDS) -> Config:
    """Choose a tiny ledger with a host, a disk or both; each may have no page at all."""
    chosen = replace(config(pick, kinds), reuse=True)
    if pick(0, 9) < 9:
        # Something has to be cached before it can be evicted.
        pages = tuple(max(pages, pick(8, 12)) for pages in chosen.num_pages)
        chosen = replace(chosen, num_pages=pages, ttl_ms=0)
    which = pick(0, 4)
    host, disk = (
        tuple((pick(1, 12), pick(0, 40))[pick(0, 1)] for _ in chosen.num_pages) for _ in range(2)
    )
    return replace(
        chosen,
        host_pages=host if which != 1 else None,
        disk_pages=disk if which != 2 else None,
    )


def config(pick: Pick, kinds: Sequence_[str] = tuple(CLASS_KINDS)) -> Config:
    """Choose a tiny ledger, so that refusals, evictions and collisions are the common case."""
    makers = CLASS_KINDS[kinds[pick(0, len(kinds) - 1)]]
    tpb = (1, 2, 4, 16)[pick(0, 3)]
    # At least the largest lookahead, which the ledger asks for.
    max_seq_len = max(tpb * pick(2, 6) + pick(0, tpb - 1), 3)
    has_draft = pick(0, 2) > 0
    fewest, most = ((12, 40), (8, 20), (2, 12))[pick(0, 2)]
    reuse = pick(0, 9) < 9
    lifetimes = tuple(maker(pick, tpb) for maker in makers)
    names = [name for name, _, _ in lifetimes]
    has_records = reuse and "full_attention" not in names
    # One page of a state class holds a whole sequence.
    least = [2 if name == "recurrent_state" else fewest for name in names]
    return Config(
        tokens_per_block=tpb,
        num_pages=tuple(pick(low, most if low == fewest else 8) for low in least),
        max_sequences=pick(1, 5),
        max_seq_len=max_seq_len,
        has_draft=has_draft,
        extra_tokens=(0, pick(0, 2))[pick(0, 1)],
        reserve_tokens=(0, 0, pick(0, 4))[pick(0, 2)],
        lookahead=(0, 1, 3)[pick(0, 2)] if has_draft else 0,
        reuse=reuse,
        partial_reuse=pick(0, 2) < 2,
        same_stream=pick(0, 3) == 3,
        lifetimes=lifetimes if {*names} != {"full_attention"} or pick(0, 1) == 1 else None,
        max_step_tokens=(0, pick(1, 2 * tpb))[pick(0, 1)],
        num_blocks=pick(fewest, most) if has_records else None,
        snapshot_interval=tpb * pick(0, 2) if "recurrent_state" in names else 0,
        watermark_blocks=(0, 0, pick(0, 4))[pick(0, 2)],
        ttl_ms=(0, 0, pick(1, 6) * 500)[pick(0, 2)],
        max_leased_blocks=(0, pick(1, 8))[pick(0, 1)],
        policy=tuple(POLICIES)[pick(0, len(POLICIES) - 1)],
        events=(0, 512)[pick(0, 1)],
        fingerprint=(b"", b"weights")[pick(0, 1)],
    )

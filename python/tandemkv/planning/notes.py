"""What the user of a plan should know, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from tandemkv.config import KvCacheConfig
from tandemkv.geometry.layers import ModelGeometry
from tandemkv.planning.assembly import Pair


def plan_notes(
    target: ModelGeometry,
    draft: ModelGeometry | None,
    config: KvCacheConfig,
    max_seq_len: int,
    stages: Sequence[Pair],
    *,
    pp_size: int,
) -> tuple[str, ...]:
    """Return the notes of a plan, in a fixed order."""
    notes = _position_notes(target, draft, max_seq_len)
    times = f" x pp_size {pp_size}" if pp_size > 1 else ""
    sequences = config.max_batch_size * pp_size
    kinds = {group.lifetime[0] for pair in stages for stage in pair for group in stage.groups}
    windows = kinds & {"sliding_window", "chunked_attention"}
    if windows and config.max_num_tokens is None:
        notes.append(
            "max_num_tokens is not given: windows are charged no room for a prompt in flight"
        )
    states = kinds & {"recurrent_state"}
    if states:
        notes.append(
            f"a state is kept for each of {sequences:,} sequences at a time, whether they run or "
            f"not: max_batch_size {config.max_batch_size:,}{times} (256 unless given); a smaller "
            "one leaves more room for tokens"
        )
    ends = sorted(windows | (kinds & {"recurrent_state"}))
    if ends and config.enable_block_reuse and config.cached_endpoints == 0:
        notes.append(
            f"cached_endpoints is 0: at full load no cached prefix keeps its {' and '.join(ends)} "
            "pages, so none can be hit"
        )
    return tuple(notes)


def _position_notes(
    target: ModelGeometry, draft: ModelGeometry | None, max_seq_len: int
) -> list[str]:
    """Say where a model declares fewer positions than sequences may have; heads often do."""
    return [
        f"{geometry.name} ({geometry.role}) declares {geometry.max_position_embeddings:,} "
        f"positions, fewer than max_seq_len {max_seq_len:,}"
        for geometry in (target, draft)
        if geometry is not None
        and geometry.max_position_embeddings is not None
        and geometry.max_position_embeddings < max_seq_len
    ]

"""Small plans and steps for the tests of the managers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import tandemkv as tkv
from tandemkv.managers import Batch, Managers, build_managers

TPB = 4
# Bytes per token: 2 target layers and 1 draft layer of 1 head of 2, K and V in fp32.
TARGET_BYTES, DRAFT_BYTES = 32, 16


def layers(count: int) -> tuple[tkv.Layer, ...]:
    return (tkv.Layer(kind="attention", kv_dtype="fp32", num_kv_heads=1, head_dim=2),) * count


def small_plan(
    num_pages: int = 33,
    *,
    draft: bool = True,
    draft_len: int = 4,
    mode: str = "eagle3",
    max_batch_size: int = 4,
    max_seq_len: int = 64,
    tokens_per_block: int = TPB,
    pp_size: int = 1,
    reuse: bool = True,
    partial_reuse: bool = True,
    max_pinned_fraction: float | None = None,
) -> tkv.Plan:
    """Return a plan of exactly `num_pages` pages per role.

    With two pipeline stages the first holds one target layer and no draft layer.
    """
    last_stage = TARGET_BYTES // pp_size + (DRAFT_BYTES if draft else 0)
    return tkv.plan(
        tkv.ModelGeometry(layers=layers(2), name="target"),
        tkv.ModelGeometry(layers=layers(1), name="draft", role="draft") if draft else None,
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=num_pages * tokens_per_block * last_stage,
            tokens_per_block=tokens_per_block,
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
            enable_block_reuse=reuse,
            enable_partial_reuse=partial_reuse,
            max_pinned_fraction=max_pinned_fraction,
        ),
        mapping=tkv.Mapping(pp_size=pp_size),
        speculative=tkv.SpeculativeConfig(mode=mode, max_draft_len=draft_len) if draft else None,
    )


def small_managers(num_pages: int = 33, rank: int = 0, **options: Any) -> Managers:
    """Return the managers of `small_plan`; the options of `build_managers` are split off."""
    names = (
        *("device", "same_stream", "disaggregated"),
        *("num_dummy_requests", "materialize", "backend", "arrangement", "watermark_blocks"),
        *("events", "fingerprint"),
    )
    own = {name: options.pop(name) for name in names if name in options}
    return build_managers(small_plan(num_pages, **options), rank, **own)


def new(
    request_id: Hashable,
    prompt: Sequence[int],
    *,
    chunk: int | None = None,
    max_total: int | None = None,
    scope: int = 0,
    draft_from: int | None = None,
    **identity: object,
) -> Batch:
    """Return a batch of one new request that runs its whole prompt, or `chunk` tokens of it."""
    return Batch(
        [request_id],
        chunk_lens=[len(prompt) if chunk is None else chunk],
        prompts=[prompt],
        max_total_tokens=[len(prompt) + 16 if max_total is None else max_total],
        scopes=[scope],
        draft_from=None if draft_from is None else [draft_from],
        **{name: [value] for name, value in identity.items()},
    )


def chunk(request_id: Hashable, length: int) -> Batch:
    """Return a batch of one further prompt chunk."""
    return Batch([request_id], chunk_lens=[length])


def decode(request_ids: Sequence[Hashable], draft_len: int = 0) -> Batch:
    """Return a decode step with as many draft slots for each request."""
    return Batch(request_ids, draft_lens=[draft_len] * len(request_ids))


def run(managers: Managers, batch: Batch, accepted: Sequence[Sequence[int]]) -> None:
    """Run one step of which nothing is refused."""
    assert managers.prepare_resources(batch).all(), managers.refusals
    managers.moves()
    managers.update_resources(batch, list(accepted))
    managers.ledger.validate()


def pages(managers: Managers) -> dict[str, int]:
    """Return the pages by state, evictable ones as part of the cached."""
    (states,) = managers.ledger.stats()["classes"]
    return dict(states)


def assert_drained(managers: Managers) -> None:
    """Check that nothing is left of any request but what can be reused, and then not even that."""
    states = pages(managers)
    assert states["live"] == states["fenced"] == 0
    assert states["cached"] == states["evictable"]
    assert states["free"] + states["cached"] == states["total"] - 1
    managers.reset_reuse_state()
    assert pages(managers)["free"] == states["total"] - 1
    managers.ledger.validate()

"""What the managers add to the ledger's calls in a decode step of 256 requests.

Run it with `python benchmarks/managers_layer.py` on a quiet machine. Each figure is the median of
five rounds of the fastest percentile of 1,000 steps, so that a busy neighbour shows less; rounds of
the ledger alone and of the managers alternate.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import tandemkv as tkv

NUM_REQUESTS = 256
PROMPT_LEN = 1024
STEPS = 1000
ROUNDS = 5


def open_requests(draft_len: int) -> tuple[tkv.Managers, tkv.RequestIds]:
    """Return managers with 256 running requests of 1,024 distinct prompt tokens."""
    layer = tkv.Layer(kind="attention", kv_dtype="fp8", num_kv_heads=1, head_dim=8)
    roles = 2 if draft_len else 1
    plan = tkv.plan(
        tkv.ModelGeometry(layers=(layer,)),
        tkv.ModelGeometry(layers=(layer,), role="draft") if draft_len else None,
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=140_000 * 16 * 16 * roles,
            tokens_per_block=16,
            max_batch_size=NUM_REQUESTS,
            max_seq_len=8192,
        ),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=draft_len)
        if draft_len
        else None,
    )
    managers = tkv.build_managers(plan, materialize=False)
    tokens = np.random.default_rng(0).integers(0, 30_000, NUM_REQUESTS * PROMPT_LEN)
    batch = tkv.Batch(
        [f"request-{item}" for item in range(NUM_REQUESTS)],
        chunk_lens=[PROMPT_LEN] * NUM_REQUESTS,
        prompts=(tokens, np.arange(NUM_REQUESTS + 1) * PROMPT_LEN),
        max_total_tokens=[8192] * NUM_REQUESTS,
    )
    assert managers.prepare_resources(batch).all()
    managers.moves()
    managers.update_resources(batch, [[1]] * NUM_REQUESTS)
    return managers, batch.request_ids


def make_step(kind: str, draft_len: int) -> Callable[[], None]:
    """Return a function that runs one decode step: `ledger`, or a way to use the managers."""
    managers, ids = open_requests(draft_len)
    counts = np.random.default_rng(1).integers(1, draft_len + 2, NUM_REQUESTS).astype(np.int32)
    rows = np.ones((NUM_REQUESTS, draft_len + 1), np.int32)
    packed = (
        np.ones(int(counts.sum()), np.int32),
        np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
    )
    draft_lens = np.full(NUM_REQUESTS, draft_len, np.int32)
    batch = tkv.Batch(ids, draft_lens=draft_lens)
    ledger, handles, widths = managers.ledger, managers.handles(ids), batch.widths
    ok = np.empty(NUM_REQUESTS, np.uint8)
    names = list(ids)

    def ledger_alone() -> None:
        step = ledger.begin_step(0.0)
        ledger.grow(step, handles, widths, ok)
        ledger.complete_step(step)
        ledger.advance(step, handles, rows, counts)

    def same_batch() -> None:
        managers.prepare_resources(batch)
        managers.update_resources(batch, (rows, counts))

    def packed_tokens() -> None:
        managers.prepare_resources(batch)
        managers.update_resources(batch, packed)

    def new_batch() -> None:
        fresh = tkv.Batch(ids, draft_lens=draft_lens)
        managers.prepare_resources(fresh)
        managers.update_resources(fresh, (rows, counts))

    def new_list() -> None:
        fresh = tkv.Batch(names, draft_lens=draft_lens)
        managers.prepare_resources(fresh)
        managers.update_resources(fresh, (rows, counts))

    return {
        "ledger": ledger_alone,
        "same batch": same_batch,
        "same batch, packed tokens": packed_tokens,
        "new batch, checked ids": new_batch,
        "new batch, list of ids": new_list,
    }[kind]


def fastest_us(step: Callable[[], None]) -> float:
    """Return the fastest percentile of `STEPS` steps in microseconds."""
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(STEPS):
            start = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - start)
    finally:
        gc.enable()
    return float(np.percentile(times, 1)) / 1e3


def main() -> None:
    """Print the ledger's step and, per way to use the managers, theirs and the ratio."""
    if tkv._core.DEBUG_BUILD:
        sys.exit("error: tandemkv._core is a debug build; benchmarks need a release build")
    kinds = ("same batch", "same batch, packed tokens", "new batch, checked ids")
    for draft_len in (0, 4):
        rounds: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for kind in ("ledger", *kinds, "new batch, list of ids"):
                rounds.setdefault(kind, []).append(fastest_us(make_step(kind, draft_len)))
        ledger = statistics.median(rounds.pop("ledger"))
        print(f"{draft_len} draft tokens: the ledger alone {ledger:.1f} us")
        for kind, values in rounds.items():
            value = statistics.median(values)
            print(f"  {kind:26} {value:6.1f} us   {value / ledger:.2f} x")


if __name__ == "__main__":
    main()

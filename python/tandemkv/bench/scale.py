"""W6, a request trace through one ledger, and W7, pools of 10^4 to 10^7 cached blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tandemkv.bench.catalog import SIZES
from tandemkv.bench.measure import now, resident_bytes, settle, verify
from tandemkv.bench.seam import TOKENS_PER_BLOCK, Admission, Seam
from tandemkv.bench.workloads import Samples, random_tokens
from tandemkv.replay import Trace, read_trace

POOL = 131_072
"""Blocks of W6, as in the floor program."""

WINDOW = 16
"""Requests of W6 that run at once, as in the floor program."""

Counts = tuple[int, int, int]
"""Prompt blocks, hit blocks and output blocks of one request."""


def read_requests(path: Path) -> Trace:
    """Read the trace of W6; its hash block is 512 tokens unless the file says otherwise.

    Raises:
        ReplayError, TraceError: the file is no trace, or its blocks are not whole ledger blocks.
    """
    return read_trace(path, trace_block_tokens=512, tokens_per_block=TOKENS_PER_BLOCK)


def w6(trace: Trace, counts: list[Counts], pair: bool, quick: bool) -> Samples:
    """Admit every request of a trace, make room for its output, and end it 16 requests later.

    `counts` receives what each request took, for the floor program.
    """
    samples = []
    for _ in range(2 if quick else 4):
        counts.clear()
        samples.append(_replay(trace, pair, counts))
    yield "w6", samples[1:]


def _replay(trace: Trace, pair: bool, counts: list[Counts]) -> float:
    prompt_tokens = trace.input_tokens.tolist()
    output_tokens = np.maximum(trace.output_tokens, 1)
    seam = Seam(
        blocks=POOL,
        max_sequences=WINDOW + 4,
        max_seq_len=int((trace.input_tokens + output_tokens).max()) + TOKENS_PER_BLOCK,
        pair=pair,
    )
    batches = [seam.admission(1) for _ in range(WINDOW + 1)]
    idle, running = deque(batches), deque[Admission]()
    ok = np.zeros(1, np.uint8)
    spent, hits = 0, 0
    settle()
    for index, length in enumerate(prompt_tokens):
        prompt = [trace.text(index, 0, length)]
        width = output_tokens[index : index + 1].astype(np.int32)
        batch = idle.popleft()
        start = now()
        seam.place(batch, prompt)
        seam.extend(batch, width, ok)
        running.append(batch)
        if len(running) > WINDOW:
            done = running.popleft()
            seam.release(done)
            idle.append(done)
        spent += now() - start
        hit = int(batch.hit[0])
        hits += hit
        shared = hit // TOKENS_PER_BLOCK
        total = -(-(length + int(width[0])) // TOKENS_PER_BLOCK)
        prompt_blocks = -(-length // TOKENS_PER_BLOCK)
        counts.append((prompt_blocks, shared, total - prompt_blocks))
    stats = seam.ledger.stats()
    verify("W6 prompt tokens", stats["prompt_tokens"], sum(prompt_tokens))
    verify("W6 hit tokens", stats["hit_tokens"], hits)
    unlimited = sum(prompt_tokens) - trace.distinct_blocks(TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK
    verify("W6 hits are at most those of an unlimited cache", hits <= unlimited, True)
    verify("W6 prompts hit", hits > 0, True)
    return spent / 1e9


def w7(pair: bool, quick: bool) -> Samples:
    """Fill pools of growing size with cached blocks; then hit them, and make them go."""
    for size in SIZES[:2] if quick else SIZES:
        yield from _size(size, pair)


def _size(size: int, pair: bool) -> Iterator[tuple[str, list[float]]]:
    length, probes = 2048, 128
    blocks = length // TOKENS_PER_BLOCK
    settle()
    before = resident_bytes()
    start = now()
    seam = Seam(blocks=size, max_sequences=4, max_seq_len=length + 64, pair=pair)
    yield f"w7_start_{size}", [(now() - start) / 1e6]

    batch = seam.admission(1)

    def place(seed: int) -> float:
        prompt = [random_tokens(seed, 1, length)[0]]
        start = now()
        seam.place(batch, prompt)
        spent = now() - start
        seam.release(batch)
        return spent / blocks

    first = seed = 7_000_000_000
    while seam.ledger.stats()["classes"][0]["free"] >= blocks:
        place(seed)
        seed += 1
    prompts = seed - first
    settle()
    cached = seam.ledger.stats()["cached_blocks"]
    yield f"w7_bytes_{size}", [(resident_bytes() - before) / cached]

    rng = np.random.default_rng(9)
    samples = []
    for _ in range(probes):
        # Of the younger half, so that the oldest stay the oldest.
        samples.append(place(first + int(rng.integers(prompts // 2, prompts))))
        verify("W7 hit tokens", int(batch.hit[0]), seam.expected_hit(length))
    yield f"w7_hit_{size}", samples

    samples = []
    evicted = seam.ledger.stats()["evicted_blocks"]
    for seed in range(8_000_000_000, 8_000_000_000 + probes + 1):
        samples.append(place(seed))
        verify("W7 hit tokens", int(batch.hit[0]), 0)
    gone = seam.ledger.stats()["evicted_blocks"] - evicted
    # The first may still find pages that filling left over, and a last block that waits for its
    # lookahead goes back to the free pages.
    verify("W7 requests evict", gone >= probes * (blocks - 1), True)
    yield f"w7_evict_{size}", samples[1:]

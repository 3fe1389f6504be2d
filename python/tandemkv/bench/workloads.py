"""W1 to W5 and W8. Each yields (name of a figure, samples) and verifies what it measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tandemkv.bench.measure import now, settle, verify
from tandemkv.bench.seam import TOKENS_PER_BLOCK, Decode, Seam

Samples = Iterator[tuple[str, list[float]]]

BATCH = 256
"""Sequences of W1 to W4 and W8."""

TOKEN_LIMIT = 2**31 - 1


def random_tokens(seed: int, rows: int, columns: int) -> NDArray[np.int32]:
    """Tokens i32[rows, columns], the same for the same seed; rows differ from each other."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, TOKEN_LIMIT, size=(rows, columns), dtype=np.int32)


def w1(pair: bool, quick: bool) -> Samples:
    """Allocate 256 x 2,048 tokens and free them, without a prefix tree."""
    length = 2048
    blocks = BATCH * length // TOKENS_PER_BLOCK
    seam = Seam(
        blocks=blocks + 64, max_sequences=BATCH, max_seq_len=length + 64, pair=pair, reuse=False
    )
    prompts = list(random_tokens(1, BATCH, length))
    batch = seam.admission(BATCH)
    samples = []
    for _ in range(6 if quick else 12):
        free = seam.free_blocks()
        settle()
        start = now()
        seam.place(batch, prompts)
        placed = now()
        verify("W1 blocks used", free - seam.free_blocks(), blocks)
        settle()
        again = now()
        seam.release(batch)
        end = now()
        samples.append((placed - start + end - again) / blocks)
        verify("W1 blocks free again", seam.free_blocks(), free)
    yield "w1", samples[1:]


def w2_w3(pair: bool, quick: bool) -> Samples:
    """Admit and publish distinct prompts of 8,192 tokens, release them, and admit them again."""
    for scattered in (False, True):
        runs = [_miss_and_hit(pair, scattered) for _ in range(3 if quick else 8)]
        miss, release, hit = (list(samples) for samples in zip(*runs[1:], strict=True))
        if scattered:
            yield "w3_scattered", hit
        else:
            yield "w2", miss
            yield "w2_release", release
            yield "w3", hit


def _miss_and_hit(pair: bool, scattered: bool) -> tuple[float, float, float]:
    length = 8192
    blocks = BATCH * length // TOKENS_PER_BLOCK
    pool = blocks + 2 * BATCH
    seam = Seam(
        blocks=pool,
        max_sequences=pool if scattered else BATCH,
        max_seq_len=length + 64,
        pair=pair,
    )
    if scattered:
        seam.scatter(np.random.default_rng(3))
    tokens = random_tokens(2, BATCH, length)
    batch = seam.admission(BATCH)
    times = []
    for expected in (0, seam.expected_hit(length)):
        # Each request brings a buffer of its own, as it would.
        prompts = [row.copy() for row in tokens]
        settle()
        start = now()
        seam.place(batch, prompts)
        placed = now()
        verify("hit tokens", set(batch.hit.tolist()), {expected})
        settle()
        again = now()
        seam.release(batch)
        times += [(placed - start) / blocks, (now() - again) / blocks]
    whole = blocks - (BATCH if pair else 0)  # a last block waits for its lookahead
    verify("cached blocks", seam.ledger.stats()["cached_blocks"], whole)
    return times[0], times[1], times[2]


def w4(pair: bool, quick: bool) -> Samples:
    """Decode steps of 256 sequences: one token each, then 1 + 4 with random acceptance."""
    steps = 256 if quick else 512
    for name, width in (("w4", 1), ("w4_speculative", 5)):
        samples: list[float] = []
        for run in range(1 if quick else 3):
            samples += _decode(pair, steps, width, run)
        yield name, samples


def _decode(pair: bool, steps: int, width: int, seed: int) -> list[float]:
    context = 1024
    room = steps * width + width + TOKENS_PER_BLOCK
    seam = Seam(
        blocks=BATCH * ((context + room) // TOKENS_PER_BLOCK + 3),
        max_sequences=BATCH,
        max_seq_len=context + TOKENS_PER_BLOCK + room,
        pair=pair,
    )
    # Lengths are staggered over a block: a sixteenth of the sequences cross a boundary per step.
    prompts = [
        row[: context + at * 7 % TOKENS_PER_BLOCK]
        for at, row in enumerate(random_tokens(4, BATCH, context + TOKENS_PER_BLOCK))
    ]
    batch = seam.admission(BATCH)
    seam.place(batch, prompts)
    decode = Decode(batch.handle, width)
    rng = np.random.default_rng(40 + seed)
    tokens = rng.integers(0, TOKEN_LIMIT, size=(steps, BATCH, width), dtype=np.int32)
    # What stands of a step, the sampled token included.
    counts = rng.integers(1, width + 1, size=(steps, BATCH), dtype=np.int32)
    inputs = list(zip(tokens, counts, strict=True))
    settle()
    samples = []
    for step_tokens, count in inputs:
        start = now()
        seam.step(decode, step_tokens, count)
        samples.append((now() - start) / 1e3)
    lengths = [seam.ledger.sequence(handle)["known"] for handle in batch.handle.tolist()]
    given = [len(prompt) for prompt in prompts] + counts.sum(axis=0)
    verify("W4 lengths", lengths, given.tolist())
    return samples


def w5(pair: bool, quick: bool) -> Samples:
    """Admit distinct prompts of 4,096 tokens, one by one, into a pool full of cached blocks."""
    pool, length = 65_536, 4096
    blocks = length // TOKENS_PER_BLOCK
    seam = Seam(blocks=pool, max_sequences=4, max_seq_len=length + 64, pair=pair)
    batch = seam.admission(1)
    # One release leaves fewer cached blocks than it took pages: the block without lookahead.
    fill = pool // blocks + 8
    samples = []
    for request in range(fill + (64 if quick else 320)):
        prompt = [random_tokens(5_000_000 + request, 1, length)[0]]
        start = now()
        seam.place(batch, prompt)
        end = now()
        seam.release(batch)
        if request >= fill:
            samples.append((end - start) / blocks)
    stats = seam.ledger.stats()
    verify("W5 pool is full of cached blocks", stats["cached_blocks"] > pool * 0.98, True)
    verify("W5 every request evicted", stats["evicted_blocks"] >= len(samples) * (blocks - 1), True)
    yield "w5", samples


def w8(pair: bool, quick: bool) -> Samples:
    """Write the padded table of 256 x 2,046 entries, and what a step changed in it."""
    width = 2048
    length = (width - 2) * TOKENS_PER_BLOCK
    seam = Seam(
        blocks=BATCH * width,
        max_sequences=BATCH,
        max_seq_len=width * TOKENS_PER_BLOCK - 1,
        pair=pair,
        reuse=False,
    )
    prompt = [random_tokens(8, 1, length)[0]]
    handle = np.zeros(BATCH, np.int64)
    one = seam.admission(1)
    for at in range(BATCH):
        seam.place(one, prompt)
        handle[at] = one.handle[0]
    table = np.zeros((1, BATCH, width), np.int32)
    used = np.zeros((1, BATCH), np.int32)
    samples = []
    for _ in range(5 if quick else 21):
        table[:] = 0
        settle()
        start = now()
        seam.ledger.table(handle, table, used)
        samples.append((now() - start) / 1e3)
    verify("W8 distinct pages", len(np.unique(table[0, :, : width - 2])), BATCH * (width - 2))
    verify("W8 padding", int(table[0, :, width - 2 :].max()), 0)
    yield "w8", samples[1:]
    yield "w8_updates", _updates(seam, handle, table, quick)


def _updates(
    seam: Seam, handle: NDArray[np.int64], table: NDArray[np.int32], quick: bool
) -> list[float]:
    """Measure steps in which every row gets a page; between them nothing of that stands."""
    ledger = seam.ledger
    records = np.zeros((table.size, 4), np.int32)
    ledger.updates(records)
    valid = np.array([ledger.sequence(h)["valid"] for h in handle.tolist()], np.int32)
    decode = Decode(handle, TOKENS_PER_BLOCK)
    tokens = np.zeros((BATCH, 0), np.int32)
    none = np.zeros(BATCH, np.int32)
    samples = []
    for _ in range(16 if quick else 64):
        step = ledger.begin_step()
        ledger.grow(step, decode.handle, decode.width, decode.ok)
        ledger.complete_step(step)
        start = now()
        count = ledger.updates(records)
        samples.append((now() - start) / 1e3)
        verify("W8 changed entries", count, BATCH)
        row, _, column, page = records[:count].T
        table[0, row, column] = page
        expected = np.zeros_like(table)
        ledger.table(handle, expected, np.zeros((1, BATCH), np.int32))
        verify("W8 updated table is the whole one", np.array_equal(table, expected), True)
        ledger.advance(step, handle, tokens, none, valid)
        count = ledger.updates(records)
        row, _, column, page = records[:count].T
        table[0, row, column] = page
    return samples

"""pytest-benchmark of single calls at the Python seam: `make bench`.

Each benchmark is one call, or one step, of a batch, with a target alone and with a draft beside it.
What a call left behind is checked after the measurement.
"""

from __future__ import annotations

import numpy as np
import pytest

from tandemkv import _core
from tandemkv.bench.seam import TOKENS_PER_BLOCK, Decode, Seam
from tandemkv.bench.workloads import random_tokens

BATCH, LENGTH = 64, 2048
ROUNDS = 30

pytestmark = pytest.mark.skipif(_core.DEBUG_BUILD, reason="a debug build is not worth measuring")


@pytest.fixture(params=[False, True], ids=["target", "pair"])
def seam(request):
    blocks = 3 * BATCH * LENGTH // TOKENS_PER_BLOCK
    return Seam(blocks=blocks, max_sequences=BATCH, max_seq_len=2 * LENGTH, pair=request.param)


@pytest.fixture
def prompts():
    return list(random_tokens(1, BATCH, LENGTH))


def test_admit_and_publish(benchmark, seam, prompts):
    batch = seam.admission(BATCH)
    fresh = []

    def empty():
        if fresh:
            seam.release(batch)
            seam.ledger.reset_reuse_state()
        fresh.append(True)

    benchmark.pedantic(seam.place, args=(batch, prompts), setup=empty, rounds=ROUNDS)
    assert batch.hit.sum() == 0


def test_admit_again(benchmark, seam, prompts):
    batch = seam.admission(BATCH)
    seam.place(batch, prompts)
    benchmark.pedantic(
        seam.place, args=(batch, prompts), setup=lambda: seam.release(batch), rounds=ROUNDS
    )
    assert (batch.hit == seam.expected_hit(LENGTH)).all()


def test_release(benchmark, seam, prompts):
    batch = seam.admission(BATCH)
    benchmark.pedantic(
        seam.release, args=(batch,), setup=lambda: seam.place(batch, prompts), rounds=ROUNDS
    )
    assert seam.ledger.stats()["open_sequences"] == 0


def test_evict(benchmark, seam):
    batch = seam.admission(1)
    requests = (random_tokens(100 + number, 1, LENGTH) for number in range(1000))
    while seam.ledger.stats()["evicted_blocks"] == 0:
        seam.place(batch, next(requests))
        seam.release(batch)
    seam.place(batch, next(requests))

    def next_request():
        seam.release(batch)
        return (batch, list(next(requests))), {}

    benchmark.pedantic(seam.place, setup=next_request, rounds=ROUNDS)
    assert batch.hit[0] == 0


@pytest.mark.parametrize("width", [1, 5])
def test_step(benchmark, seam, prompts, width):
    batch = seam.admission(BATCH)
    seam.place(batch, [row[: LENGTH - at * 7 % 16] for at, row in enumerate(prompts)])
    decode = Decode(batch.handle, width)
    rng = np.random.default_rng(2)
    tokens = random_tokens(3, BATCH, width)
    given = []

    def accept():
        given.append(rng.integers(1, width + 1, BATCH, dtype=np.int32))
        return (decode, tokens, given[-1]), {}

    benchmark.pedantic(seam.step, setup=accept, rounds=200)
    known = [seam.ledger.sequence(handle)["known"] for handle in batch.handle.tolist()]
    before = [LENGTH - at * 7 % 16 for at in range(BATCH)]
    assert known == (before + np.sum(given, axis=0)).tolist()


def test_table(benchmark, seam, prompts):
    batch = seam.admission(BATCH)
    seam.place(batch, prompts)
    blocks = LENGTH // TOKENS_PER_BLOCK
    table = np.zeros((1, BATCH, blocks + 2), np.int32)
    used = np.zeros((1, BATCH), np.int32)
    benchmark(seam.ledger.table, batch.handle, table, used)
    assert (used == blocks).all()
    assert len(np.unique(table[0, :, :blocks])) == BATCH * blocks


def test_updates(benchmark, seam, prompts):
    batch = seam.admission(BATCH)
    records = np.zeros((BATCH * LENGTH, 4), np.int32)

    def change():
        seam.place(batch, prompts)
        return (records,), {}

    def undo(_):
        # Rows that get the pages they showed last have no updates, so the empty rows are shown too.
        seam.release(batch)
        seam.ledger.updates(records)

    found = benchmark.pedantic(seam.ledger.updates, setup=change, teardown=undo, rounds=ROUNDS)
    assert found == BATCH * LENGTH // TOKENS_PER_BLOCK

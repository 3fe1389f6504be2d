"""Bytes that the kernels move, counted access by access: nothing is read or written twice.

The library is compiled so that every load and store of a kernel calls a counter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kernel_harness as harness
import numpy as np
import pytest
from move_cases import random_moves, token_bytes

from tandemkv._core import Ledger
from tandemkv.device import (
    OffsetGroups,
    apply_block_table_updates,
    apply_page_moves,
    copy_batch_block_offsets,
)

pytestmark = pytest.mark.skipif(harness.COMPILER is None, reason=harness.SKIP_REASON)

INDEX_BYTES, RECORD_BYTES = 4, 16
BLOCK, BATCH, PROMPT = 16, 64, 40
# A target and a draft, each with K and V: two groups over one class.
GROUPS = OffsetGroups([0, 0], [64, 2], [1, 1], [1000])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.compile_shim(tmp_path_factory.mktemp("shim"), flags=harness.COUNTING)


def serving(batch: int = BATCH) -> tuple[Ledger, Any]:
    """Return a ledger with open sequences that know 40, 41, 42, ... tokens."""
    ledger = Ledger(
        tokens_per_block=BLOCK, num_pages=[1000], max_sequences=batch, max_seq_len=256, reuse=False
    )
    step = ledger.begin_step()
    handle, hit = np.empty(batch, np.int64), np.empty(batch, np.int32)
    prompts = [np.arange(PROMPT + number, dtype=np.int32) for number in range(batch)]
    scope, first = np.full(batch, -1, np.int32), np.full(batch, 256, np.int32)
    totals = np.full(batch, 200, np.int64)
    assert ledger.admit(step, prompts, scope, first, totals, None, handle, hit) == batch
    tokens, ones = np.zeros((batch, 1), np.int32), np.ones(batch, np.int32)
    ledger.advance(step, handle, tokens, ones)
    ledger.complete_step(step)
    return ledger, handle


def decode(ledger: Ledger, handle: Any) -> None:
    step, ok = ledger.begin_step(), np.empty(len(handle), np.uint8)
    ledger.grow(step, handle, np.ones(len(handle), np.int32), ok)
    assert ok.all()
    ledger.advance(
        step, handle, np.zeros((len(handle), 1), np.int32), np.ones(len(handle), np.int32)
    )
    ledger.complete_step(step)


def test_a_decode_step_moves_only_the_entries_that_changed(library: Path) -> None:
    """Of 64 sequences of all lengths four begin a block: 64 bytes are read, 4 entries written."""
    ledger, handle = serving()
    records = np.zeros((1000, 4), np.int32)
    ledger.updates(records)  # the prompts
    table = np.zeros((1, BATCH, ledger.row_width), np.int32)
    destination = np.zeros((2, BATCH, 2, ledger.row_width), np.int32)
    watched = {"records": records, "table": table, "destination": destination}
    total = 0
    for position in range(PROMPT, PROMPT + BLOCK):
        decode(ledger, handle)
        count = ledger.updates(records)
        lengths = position + np.arange(BATCH)
        assert count == int((lengths % BLOCK == 0).sum()) == BATCH // BLOCK
        total += count
        counter = harness.AccessCount(library, watched)
        with harness.Shim(library).installed(), counter:
            apply_block_table_updates(
                records, count=count, table=table, groups=GROUPS, destination=destination
            )
        assert counter.loaded == {"records": RECORD_BYTES * count, "table": 0, "destination": 0}
        assert counter.stored == {
            "records": 0,
            "table": INDEX_BYTES * count,
            "destination": 2 * len(GROUPS) * INDEX_BYTES * count,
        }
    assert int((table > 0).sum()) == total  # each entry was written once in these steps


def test_a_full_copy_reads_each_used_entry_once_per_group(library: Path) -> None:
    ledger, handle = serving()
    width = ledger.row_width
    pages, used = np.zeros((1, BATCH, width), np.int32), np.zeros((1, BATCH), np.int32)
    ledger.table(handle, pages, used)
    index = np.arange(BATCH, dtype=np.int32)
    destination = np.zeros((2, BATCH, 2, width), np.int32)
    counter = harness.AccessCount(library, {"pages": pages, "destination": destination})
    with harness.Shim(library).installed(), counter:
        copy_batch_block_offsets(pages, index, GROUPS, destination, used=used)
    assert counter.loaded == {
        "pages": len(GROUPS) * INDEX_BYTES * int(used.sum()),
        "destination": 0,
    }
    assert counter.stored == {"pages": 0, "destination": destination.nbytes}


def test_moves_read_and_write_each_byte_of_the_named_tokens_once(library: Path) -> None:
    moved = 0
    for seed in range(40):
        case = random_moves(np.random.default_rng([12, seed]))
        count = case.arguments["count"]
        moves = case.arguments["moves"][: len(case.arguments["moves"]) if count is None else int(
            np.asarray(count).item())]  # fmt: skip
        expected = 0
        for number, _, destination, tokens in moves.tolist():
            for segment in case.arguments["segments"]:
                if segment.class_index == number:
                    one = token_bytes(segment, destination, 0, 0)
                    expected += segment.num_rows * tokens * (one.stop - one.start)
        counter = harness.AccessCount(
            library, {str(number): pool for number, pool in enumerate(case.pools)}
        )
        with harness.Shim(library).installed(), counter:
            apply_page_moves(**case.arguments)
        case.check()
        assert sum(counter.loaded.values()) == sum(counter.stored.values()) == expected
        moved += expected
    assert moved > 100_000


def test_the_counter_counts(library: Path) -> None:
    """One row of three used columns in a table of eight: 12 bytes in, 64 out."""
    pages, index = np.ones((1, 1, 8), np.int32), np.zeros(1, np.int32)
    destination, used = np.zeros((1, 1, 2, 8), np.int32), np.array([[3]], np.int32)
    watched = {"pages": pages, "index": index, "used": used, "destination": destination}
    counter = harness.AccessCount(library, watched)
    groups = OffsetGroups([0], [2], [1], [10])
    with harness.Shim(library).installed(), counter:
        copy_batch_block_offsets(pages, index, groups, destination, used=used)
    assert counter.loaded["pages"] == 12
    assert counter.stored == {"pages": 0, "index": 0, "used": 0, "destination": 64}

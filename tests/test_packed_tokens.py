"""`Ledger.advance` takes tokens in rows or packed, and means the same by both."""

from __future__ import annotations

import numpy as np
import pytest

from tandemkv._core import Ledger
from tandemkv.errors import LedgerError

WIDTH = 4


def open_three() -> tuple[Ledger, int, np.ndarray]:
    """Return a ledger with three requests of 5 tokens that run 4 tokens in an open step."""
    ledger = Ledger(
        tokens_per_block=4, num_pages=[40], max_sequences=3, max_seq_len=32, reserve_tokens=3
    )
    handle, hit, ok = np.zeros(3, np.int64), np.zeros(3, np.int32), np.zeros(3, np.uint8)
    prompts = [np.full(5, item + 1, np.int32) for item in range(3)]
    scope, first, total = np.zeros(3, np.int32), np.full(3, 5, np.int32), np.full(3, 20, np.int64)
    step = ledger.begin_step()
    assert ledger.admit(step, prompts, scope, first, total, None, handle, hit) == 3
    ledger.complete_step(step)
    ledger.advance(step, handle, np.full((3, 1), 9, np.int32), np.ones(3, np.int32))
    step = ledger.begin_step()
    assert ledger.grow(step, handle, np.full(3, WIDTH, np.int32), ok) == 3
    return ledger, step, handle


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("counts", [[1, 2, 3], [4, 0, 1], [2, 2, 2], [0, 0, 0]])
def test_packed_tokens_and_rows_lead_to_the_same_state(
    counts: list[int], dtype: type[np.signedinteger]
) -> None:
    count = np.array(counts, np.int32)
    rows = np.arange(3 * WIDTH, dtype=dtype).reshape(3, WIDTH)
    packed = np.concatenate([row[:size] for row, size in zip(rows, counts, strict=True)])
    digests = []
    for tokens in (rows, packed):
        ledger, step, handle = open_three()
        ledger.advance(step, handle, tokens, count)
        ledger.validate()
        digests.append(ledger.digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("tokens", "counts", "message"),
    [
        ([1, 2, 3], [1, 1, 0], "tokens holds 3, but the counts add up to 2"),
        ([1, 2], [1, 1, 1], "tokens holds 2, but the counts add up to 3"),
        ([1, 2], [3, -1, 0], "tokens holds 2, but the counts add up to 3"),
        ([1, 2, 3], [4, -1, 0], "tokens holds 3, but the counts add up to 4"),
        ([1, 2], [2, -1, 0], r"count\[1\] is -1"),
        ([1, 2, -3, 4], [1, 2, 1], "token 1 of item 1 is -3"),
        ([1, 2], [1, 1], "count has 2 items, expected 3"),
    ],
)
def test_packed_tokens_that_do_not_add_up_are_refused(
    tokens: list[int], counts: list[int], message: str
) -> None:
    ledger, step, handle = open_three()
    before = ledger.digest()
    with pytest.raises(LedgerError, match=message):
        ledger.advance(step, handle, np.array(tokens, np.int32), np.array(counts, np.int32))
    assert ledger.digest() == before


def test_tokens_have_one_or_two_dimensions() -> None:
    ledger, step, handle = open_three()
    with pytest.raises(LedgerError, match="2 dimensions, got 3"):
        ledger.advance(step, handle, np.zeros((3, 1, 1), np.int32), np.zeros(3, np.int32))

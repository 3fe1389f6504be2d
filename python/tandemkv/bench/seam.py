"""The ledger as an engine calls it: arrays made once, one call per kind and step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandemkv import _core
from tandemkv.bench.measure import BenchmarkError, verify

TOKENS_PER_BLOCK = 16

Prompts = Sequence[NDArray[np.int32]]


class Admission:
    """The arrays of a batch of prompts; made once per batch size, as an engine does."""

    def __init__(self, size: int, max_total: int) -> None:
        self.size = size
        self.scope = np.zeros(size, np.int32)
        self.first = np.full(size, np.iinfo(np.int32).max, np.int32)
        self.max_total = np.full(size, max_total, np.int64)
        self.handle = np.zeros(size, np.int64)
        self.hit = np.zeros(size, np.int32)
        self.no_tokens = np.empty((size, 0), np.int32)
        self.no_count = np.zeros(size, np.int32)
        self.no_tail = np.zeros(size, np.uint8)


class Decode:
    """The arrays of a decoding batch: `width` tokens per sequence and step."""

    def __init__(self, handle: NDArray[np.int64], width: int) -> None:
        self.handle = handle.copy()
        self.width = np.full(len(handle), width, np.int32)
        self.ok = np.zeros(len(handle), np.uint8)


class Seam:
    """One ledger of 16-token blocks, with or without a draft (lookahead 1, as EAGLE has).

    Args:
        blocks: pages that sequences can use.
        max_sequences: rows.
        max_seq_len: tokens of the longest sequence.
        pair: whether a draft runs beside the target.
        reuse: whether blocks are published and matched.
    """

    def __init__(
        self, *, blocks: int, max_sequences: int, max_seq_len: int, pair: bool, reuse: bool = True
    ) -> None:
        self.max_seq_len = max_seq_len
        self.lookahead = 1 if pair else 0
        self.ledger = _core.Ledger(
            tokens_per_block=TOKENS_PER_BLOCK,
            num_pages=[blocks + 1],
            max_sequences=max_sequences,
            max_seq_len=max_seq_len,
            has_draft=pair,
            lookahead=self.lookahead,
            reuse=reuse,
        )
        self.moves = np.zeros((max_sequences, 4), np.int32)

    def admission(self, size: int) -> Admission:
        """Return the arrays for `size` prompts that may grow to `max_seq_len`."""
        return Admission(size, self.max_seq_len)

    def place(self, batch: Admission, prompts: Prompts) -> None:
        """Admit prompts, run them whole and publish them: one step.

        Raises:
            BenchmarkError: a prompt found no room.
        """
        ledger = self.ledger
        step = ledger.begin_step()
        admitted = ledger.admit(
            step, prompts, batch.scope, batch.first, batch.max_total, None, batch.handle, batch.hit
        )
        if admitted != batch.size:
            raise BenchmarkError(f"{batch.size - admitted} of {batch.size} prompts found no room")
        ledger.moves(self.moves)
        ledger.complete_step(step)
        ledger.advance(step, batch.handle, batch.no_tokens, batch.no_count)

    def release(self, batch: Admission) -> None:
        """End the sequences; what they published stays cached."""
        self.ledger.release(batch.handle, batch.no_tail)

    def extend(self, batch: Admission, width: NDArray[np.int32], ok: NDArray[np.uint8]) -> None:
        """Give each sequence room for `width` more tokens, in a step of its own."""
        ledger = self.ledger
        step = ledger.begin_step()
        grown = ledger.grow(step, batch.handle, width, ok)
        ledger.complete_step(step)
        if grown != batch.size:
            raise BenchmarkError(f"{batch.size - grown} of {batch.size} sequences found no room")

    def step(self, batch: Decode, tokens: NDArray[np.int32], count: NDArray[np.int32]) -> None:
        """One decode step: room for the batch, then its results."""
        ledger = self.ledger
        step = ledger.begin_step()
        ledger.grow(step, batch.handle, batch.width, batch.ok)
        ledger.complete_step(step)
        ledger.advance(step, batch.handle, tokens, count)

    def free_blocks(self) -> int:
        """Blocks that an allocation could use, cached ones included."""
        state = self.ledger.stats()["classes"][0]
        return int(state["free"] + state["evictable"])

    def expected_hit(self, tokens: int) -> int:
        """Hit of a prompt of whole blocks that is in the tree as it is.

        One token must run, and the last block is in the tree only if its lookahead was known.
        """
        return tokens - (TOKENS_PER_BLOCK if self.lookahead else 1)

    def scatter(self, rng: np.random.Generator) -> None:
        """Hand out all pages one by one and take them back in random order.

        Afterwards the pages and records of a sequence are scattered, as after hours of service. The
        ledger needs as many rows as pages.
        """
        blocks = self.free_blocks()
        batch = Admission(blocks, 1)
        step = self.ledger.begin_step()
        prompts = (np.ones(blocks, np.int32), np.arange(blocks + 1))
        admitted = self.ledger.admit(
            step, prompts, batch.scope, batch.first, batch.max_total, None, batch.handle, batch.hit
        )
        verify("sequences of one block", admitted, blocks)
        self.ledger.complete_step(step)
        rng.shuffle(batch.handle)
        self.release(batch)

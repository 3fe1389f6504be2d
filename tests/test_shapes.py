"""Shapes that a tree of prefixes could be made to suffer from: its nodes and its work stay bounded.

Nodes are counted, and so are the blocks published, evicted, copied and rebased: what a shape costs
is known in closed form. `make test` runs 10,000 blocks or sequences of each shape, the long
versions 1,000,000 (100,000 sequences), where anything quadratic would run into the limit of time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandemkv._core import Ledger

TPB = 4
BATCH = 500
LONG = [pytest.mark.full, pytest.mark.timeout(900)]
COUNTS = [10_000, pytest.param(1_000_000, marks=LONG)]
CHAIN = 100  # blocks of a chain; more blocks are more chains


class Server:
    """A ledger on which batches of prompts run in one step each."""

    def __init__(self, num_pages: list[int], max_seq_len: int, **options: Any) -> None:
        self.ledger = Ledger(
            num_pages=num_pages,
            max_seq_len=max_seq_len,
            **{"tokens_per_block": TPB, "max_sequences": BATCH, **options},
        )

    def open(self, prompts: np.ndarray, scope: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Admit prompts of equal length and run them; return their handles and hits."""
        count, length = prompts.shape
        handles, hits = np.zeros(count, np.int64), np.zeros(count, np.int32)
        step = self.ledger.begin_step()
        admitted = self.ledger.admit(
            step,
            (prompts.astype(np.int32).reshape(-1), np.arange(count + 1, dtype=np.int64) * length),
            np.full(count, scope, np.int32),
            np.full(count, length, np.int32),
            np.full(count, length, np.int64),
            None,
            handles,
            hits,
        )
        assert admitted == count
        self.ledger.moves(np.zeros((self.ledger.pending_moves, 4), np.int32))
        self.ledger.complete_step(step)
        none = np.zeros(count, np.int32)
        self.ledger.advance(step, handles, np.zeros(0, np.int32), none)
        return handles, hits

    def close(self, handles: np.ndarray, publish: int = 1) -> None:
        self.ledger.release(handles, np.full(len(handles), publish, np.uint8))

    def serve(self, prompts: np.ndarray, publish: int = 1, scope: int = 0) -> np.ndarray:
        handles, hits = self.open(prompts, scope)
        self.close(handles, publish)
        return hits

    def match(self, prompt: np.ndarray) -> int:
        return self.ledger.match(prompt.astype(np.int32))

    def check(self, cls: int = 0, **expected: int) -> None:
        """Compare counts, of pages by state and of the whole ledger, and all invariants."""
        stats = self.ledger.stats()
        found = {**stats, **stats["classes"][cls]}
        found["nodes"] -= found["nodes"] > 0  # the root of the scope, which holds no block
        assert {name: found[name] for name in expected} == expected
        assert all(pages["fenced"] == 0 for pages in stats["classes"])


def batches(prompts: np.ndarray) -> list[np.ndarray]:
    return [prompts[at : at + BATCH] for at in range(0, len(prompts), BATCH)]


@pytest.mark.parametrize("count", COUNTS)
def test_root_children(count: int) -> None:
    """As many first blocks as there are pages: one node each, and evicting one is one eviction."""
    server = Server([count + 1], TPB)
    prompts = np.arange(count)[:, None] + np.zeros(TPB, np.int64)
    for batch in batches(prompts):
        server.serve(batch)
    server.check(nodes=count, cached=count, evictable=count, published_blocks=count, free=0)
    server.ledger.validate()
    assert [server.match(prompts[at]) for at in range(0, count, count // 100)] == [TPB] * 100
    # A tenth more pushes out the oldest tenth and nothing else.
    more = count // 10
    for batch in batches(prompts[:more] + count):
        server.serve(batch)
    server.check(nodes=count, cached=count, evicted_blocks=more)
    edge = [server.match(prompts[at]) for at in (0, more - 1, more, count - 1)]
    assert edge == [0, 0, TPB, TPB]
    server.ledger.reset_reuse_state()
    server.check(nodes=0, cached=0, free=count)


@pytest.mark.parametrize("count", COUNTS)
def test_one_node_per_block(count: int) -> None:
    """A branch after every block of a chain cuts it into single blocks, and no further."""
    chains = count // (2 * CHAIN)
    server = Server([2 * chains * CHAIN + BATCH * 2], CHAIN * TPB)
    texts = np.arange(CHAIN * TPB) + np.zeros((chains, 1), np.int64)
    texts[:, 0] = 10_000 + np.arange(chains)
    for batch in batches(texts):
        server.serve(batch)
    server.check(nodes=chains, cached=chains * CHAIN)
    for block in range(1, CHAIN):
        branch = texts[:, : (block + 1) * TPB].copy()
        branch[:, block * TPB] = 50_000
        for batch in batches(branch):
            assert (server.serve(batch) == block * TPB).all()
    blocks = chains * (2 * CHAIN - 1)
    server.check(nodes=blocks, cached=blocks, published_blocks=blocks, rebased_blocks=0)
    server.check(evictable=blocks, evicted_blocks=0, copied_blocks=0)
    server.ledger.validate()
    # The whole chain is found through all its nodes.
    assert server.match(texts[0]) == server.match(texts[-1]) == CHAIN * TPB


@pytest.mark.parametrize("count", COUNTS)
def test_holes_in_every_other_block_of_a_window(count: int) -> None:
    """Turns of two blocks leave a window's page at every second block; the others are taken."""
    chains = count // CHAIN
    total = chains * CHAIN
    turns = range(2, CHAIN + 1, 2)
    server = Server(
        [2 * total + BATCH, total + 1],
        CHAIN * TPB,
        max_sequences=max(BATCH, chains),
        lifetimes=[("full_attention", 0, 0), ("sliding_window", TPB, 0)],
    )
    texts = np.arange(CHAIN * TPB) + np.zeros((chains, 1), np.int64)
    texts[:, 0] = 10_000 + np.arange(chains)
    few = min(BATCH, 40)
    for turn in turns:
        for at in range(0, chains, few):
            hits = server.serve(texts[at : at + few, : turn * TPB])
            assert (hits == (turn - 2) * TPB).all()
    server.check(cls=1, cached=total, free=0, evicted_side_pages=0, published_blocks=total)
    # Prompts that keep nothing take the pages left behind, all half of them in one step.
    server.serve(texts[: chains // 2], scope=-1)
    half = total // 2
    server.check(cls=1, cached=half, evictable=half, free=half, evicted_side_pages=half)
    server.check(nodes=chains, cached=total, evicted_blocks=0, published_blocks=total)
    server.ledger.validate()
    # A sequence may start where a turn ended, at the last of them if it knows one block more.
    for text in (texts[0], texts[-1]):
        found = [server.match(text[: blocks * TPB]) for blocks in range(1, CHAIN + 1)]
        assert found == [blocks // 2 * 2 * TPB for blocks in range(1, CHAIN + 1)]


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=LONG)])
def test_sequences_that_share_one_prefix(count: int) -> None:
    """All hit the whole prefix, which is one node throughout; each has one page of its own."""
    shared = 32
    server = Server([shared + 1 + count], (shared + 1) * TPB, max_sequences=count)
    prompts = np.arange((shared + 1) * TPB) + np.zeros((count, 1), np.int64)
    server.serve(prompts[:1, : shared * TPB])
    prompts[:, shared * TPB] = 1_000 + np.arange(count)
    # A few rows, over and over.
    for batch in batches(prompts[:, :-1]):
        assert (server.serve(batch, publish=0) == shared * TPB).all()
        server.check(nodes=1, cached=shared, evictable=shared, live=0)
    # All at once.
    handles = []
    for batch in batches(prompts[:, :-1]):
        opened, hits = server.open(batch)
        handles.append(opened)
        assert (hits == shared * TPB).all()
    server.check(nodes=1, cached=shared, evictable=0, live=count, free=0, open_sequences=count)
    server.ledger.validate()
    for opened in handles:
        server.close(opened, publish=0)
    server.check(nodes=1, cached=shared, evictable=shared, live=0, free=count)
    server.check(copied_blocks=0, evicted_blocks=0, published_blocks=shared, released=2 * count + 1)
    # And each leaves its last block: one more node per sequence.
    for batch in batches(prompts):
        server.serve(batch)
    server.check(nodes=1 + count, cached=shared + count, evicted_blocks=0)

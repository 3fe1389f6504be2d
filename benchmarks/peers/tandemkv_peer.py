"""tandemkv's batch seam as a peer of the page-manager workloads W1 to W8.

The workloads come from a folder with `peer.py` on the path; run them with
`--extra tandemkv=benchmarks/peers/tandemkv_peer.py:Tandemkv`. A handle is an index into the arrays
of this adapter, as an engine keeps its batch; every timed call is one call of the seam per batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from peer import Peer

from tandemkv import _core


class Request:
    """What an engine keeps per request: its handle, its row in the batch, and its hit."""

    __slots__ = ("handle", "hit", "prompt")

    def __init__(self, prompt: np.ndarray) -> None:
        self.prompt = prompt
        self.handle = 0
        self.hit = 0


class Batch:
    """What an engine keeps per batch across decode steps: arrays, no objects."""

    def __init__(self, requests: list[Request], spec: int) -> None:
        n = len(requests)
        self.handle = np.array([request.handle for request in requests], np.int64)
        self.one = np.ones(n, np.int32)
        self.width = np.full(n, spec + 1, np.int32)
        self.ok = np.zeros(n, np.uint8)
        self.spec = spec


class Tandemkv(Peer):
    """One class, as for a target alone; `TandemkvPair` adds a draft."""

    name = "tandemkv"
    has_draft = False
    has_phases = False

    def __init__(self, **kw: Any) -> None:
        super().__init__(**kw)
        self.ledger = _core.Ledger(
            tokens_per_block=self.block_size,
            num_pages=[self.num_blocks + 1],
            max_sequences=self.max_reqs,
            max_seq_len=self.max_len,
            has_draft=self.has_draft,
            lookahead=1 if self.has_draft else 0,
            reuse=self.caching,
        )
        self.records = np.zeros((1 << 16, 4), np.int32)
        self.arrays: dict[int, tuple[np.ndarray, ...]] = {}

    @classmethod
    def info(cls) -> dict[str, Any]:
        return {
            "name": cls.name,
            "version": _core.__version__,
            "path": "_core.Ledger: admit, advance, grow, release, table, updates",
            "debug_build": _core.DEBUG_BUILD,
        }

    def make_prompt(self, toks: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(toks, np.int32)

    def make_step_tokens(self, toks: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(toks, np.int32).reshape(-1, 1)

    def make_spec_tokens(
        self, toks: np.ndarray, accepted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # A verifier hands over the tokens and how many of them stand, the bonus token included.
        return np.ascontiguousarray(toks, np.int32), accepted.astype(np.int32) + 1

    def prepare_batch(self, handles: list[Request]) -> Batch:
        return Batch(handles, 4)

    def start_many(self, prompts: list[np.ndarray], rids: list[str]) -> list[Request]:
        return [Request(prompt) for prompt in prompts]

    def start(self, prompt: np.ndarray, rid: str) -> Request:
        return Request(prompt)

    def place_many(self, handles: list[Request]) -> None:
        """Admit, run and publish the whole prompts: one admit and one advance."""
        n = len(handles)
        ledger = self.ledger
        # Made once per batch size, as an engine does.
        handle, hit, scope, first, max_total, no_tokens = self.arrays.get(n) or self.make_arrays(n)
        prompts = [request.prompt for request in handles]
        step = ledger.begin_step()
        admitted = ledger.admit(step, prompts, scope, first, max_total, None, handle, hit)
        if admitted != n:
            raise MemoryError(f"tandemkv: no room for {n - admitted} of {n}")
        ledger.moves(self.records)
        ledger.complete_step(step)
        ledger.advance(step, handle, no_tokens, scope)  # nothing was sampled: counts of 0
        for request, value, tokens in zip(handles, handle.tolist(), hit.tolist(), strict=True):
            request.handle = value
            request.hit = tokens

    def make_arrays(self, n: int) -> tuple[np.ndarray, ...]:
        """Make handles and hits to be written, scopes (all 0), and what else is read."""
        self.arrays[n] = (
            np.empty(n, np.int64),
            np.empty(n, np.int32),
            np.zeros(n, np.int32),
            np.full(n, 1 << 30, np.int32),
            np.full(n, self.max_len, np.int64),
            np.empty((n, 0), np.int32),
        )
        return self.arrays[n]

    def alloc(self, h: Request) -> None:
        self.place_many([h])

    def extend(self, h: Request, n: int) -> None:
        """Room for `n` more tokens."""
        ok = np.zeros(1, np.uint8)
        step = self.ledger.begin_step()
        self.ledger.grow(step, np.array([h.handle]), np.array([n], np.int32), ok)
        self.ledger.complete_step(step)
        if not ok[0]:
            raise MemoryError("tandemkv: no room to grow")

    def free(self, h: Request) -> None:
        self.free_many([h])

    def free_many(self, handles: list[Request]) -> None:
        handle = np.array([request.handle for request in handles], np.int64)
        self.ledger.release(handle, np.zeros(len(handles), np.uint8))

    def decode_step(self, batch: Batch, toks: np.ndarray) -> None:
        ledger = self.ledger
        step = ledger.begin_step()
        ledger.grow(step, batch.handle, batch.one, batch.ok)
        ledger.complete_step(step)
        ledger.advance(step, batch.handle, toks, batch.one)

    def spec_step(
        self, batch: Batch, toks: tuple[np.ndarray, np.ndarray], accepted: list[int]
    ) -> None:
        ledger = self.ledger
        step = ledger.begin_step()
        ledger.grow(step, batch.handle, batch.width, batch.ok)
        ledger.complete_step(step)
        ledger.advance(step, batch.handle, *toks)

    def table_full(self, handles: list[Request], out: np.ndarray) -> None:
        handle = np.array([request.handle for request in handles], np.int64)
        used = np.empty((1, len(handles)), np.int32)
        self.ledger.table(handle, out.reshape(1, *out.shape), used)
        self.rows = handle & 0xFFFFFFFF
        self.ledger.updates(np.empty((out.size, 4), np.int32))

    def table_step(self, batch: Batch, step_result: None, out: np.ndarray) -> int:
        n = self.ledger.updates(self.records)
        row, _, column, page = self.records[:n].T
        out[row, column] = page
        return n

    def cached_blocks(self) -> int:
        return int(self.ledger.stats()["cached_blocks"])

    def free_blocks(self) -> int:
        state = self.ledger.stats()["classes"][0]
        return int(state["free"] + state["evictable"])


class TandemkvPair(Tandemkv):
    """The same with a draft role beside the target (EAGLE-like: lookahead 1)."""

    name = "tandemkv-pair"
    has_draft = True

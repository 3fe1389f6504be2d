"""A process with a `MooncakeStore`: reads calls as lines of JSON, writes an answer to each.

Payloads are made from tokens, so that two processes agree on them without talking.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from store_engine import Engine, prompt, store_prompts

import tandemkv as tkv
from tandemkv._core import Ledger
from tandemkv.errors import StoreError
from tandemkv.stores import MooncakeConfig, MooncakeStore, Outcome, ValueLayout

TOKENS_PER_BLOCK = 16
LAYOUT = ValueLayout(hashlib.sha256(b"the layout of both").digest(), 200_000)


def blocks_of(tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and payloads of the full blocks of some tokens."""
    ledger = Ledger(
        tokens_per_block=TOKENS_PER_BLOCK,
        num_pages=[8],
        max_sequences=1,
        max_seq_len=4096,
        fingerprint=b"weights, bf16",
    )
    keys = ledger.keys(np.array(tokens, np.int32), ledger.intern_scope(("sql", 3), "tenant"))
    rows = [
        np.random.default_rng(list(tokens[: (place + 1) * TOKENS_PER_BLOCK])).integers(
            0, 256, LAYOUT.payload_bytes, np.uint8
        )
        for place in range(len(keys))
    ]
    return keys, np.array(rows)


class Calls:
    """What the tests may ask for."""

    def __init__(self, config: dict[str, Any]) -> None:
        options = {name: config.pop(name) for name in ("max_failures",) if name in config}
        config = {"local_hostname": "127.0.0.1", "segment_bytes": 16 << 20, **config}
        config = {"buffer_bytes": 16 << 20, "lease_s": 5.0, **config}
        self.store = MooncakeStore(MooncakeConfig(**config), batch_values=8, **options)

    def ready(self) -> dict[str, Any]:
        return {"ready": tkv.__version__ != ""}

    def put(self, tokens: list[int], timeout_s: float = 60.0) -> dict[str, Any]:
        keys, payloads = blocks_of(tokens)
        ticket = self.store.put(LAYOUT, keys, payloads, timeout_s=timeout_s)
        return {"keys": [key.tobytes().hex() for key in keys], **_ended(ticket)}

    def get(self, tokens: list[int], timeout_s: float = 60.0) -> dict[str, Any]:
        keys, payloads = blocks_of(tokens)
        out = np.zeros_like(payloads)
        ticket = self.store.get(LAYOUT, keys, out, timeout_s=timeout_s)
        answer = _ended(ticket)
        equal = [bool(np.array_equal(*rows)) for rows in zip(out, payloads, strict=True)]
        return {"keys": [key.tobytes().hex() for key in keys], "equal": equal, **answer}

    def exists(self, tokens: list[int], timeout_s: float = 60.0) -> dict[str, Any]:
        return _ended(self.store.exists(LAYOUT, blocks_of(tokens)[0], timeout_s=timeout_s))

    def spoil(self, tokens: list[int], num_bytes: int) -> dict[str, Any]:
        """Store other bytes under the names of values, past all checks."""
        client = self.store._backend._client
        names = [f"tandemkv/{LAYOUT.name(key.tobytes())}" for key in blocks_of(tokens)[0]]
        return {"codes": [client.put(name, bytes(num_bytes)) for name in names]}

    def compute(self, starts: list[int]) -> dict[str, Any]:
        """Let an engine compute prompts until all of them have been evicted and offered."""
        engine = Engine(self.store)
        store_prompts(engine, *starts)
        while "pending" in self.store.stats().outcomes["put"]:
            self.store.exists(LAYOUT, np.zeros((1, 32), np.uint8), timeout_s=60.0).wait()
        return {"offered": engine.bridge.stats().offered}

    def reuse(self, start: int) -> dict[str, Any]:
        """Let another engine take a prompt over, check its pages and run it."""
        engine = Engine(self.store, arrangement="per_layer", get_timeout_s=60.0)
        asked = engine.bridge.fetch("x", prompt(start))
        while engine.bridge.is_pending("x"):
            engine.bridge.poll()
            self.store.exists(LAYOUT, np.zeros((1, 32), np.uint8), timeout_s=60.0).wait()
        return {"asked": asked, "hit": engine.serve(prompt(start))}

    def stats(self) -> dict[str, Any]:
        stats = self.store.stats()
        return {
            "outcomes": stats.outcomes,
            "errors": stats.errors,
            "dropped": stats.dropped,
            "suspended": stats.suspended,
        }

    def close(self, timeout_s: float = 60.0) -> dict[str, Any]:
        return {"closed": self.store.close(timeout_s)}


def _ended(ticket) -> dict[str, Any]:
    ticket.wait()
    return {"outcomes": [Outcome(code).name for code in ticket.outcomes]}


def main() -> None:
    try:
        calls = Calls(json.loads(sys.argv[1]))
    except StoreError as error:
        print("answer", json.dumps({"refused": str(error)}), flush=True)
        return
    for line in sys.stdin:
        call, arguments = json.loads(line)
        # Mooncake may write to stdout too.
        print("answer", json.dumps(getattr(calls, call)(**arguments)), flush=True)


if __name__ == "__main__":
    main()

"""An engine on a store: managers whose pages hold what only their tokens leave there."""

from __future__ import annotations

from typing import Any

import managers_setup
import numpy as np
from managers_setup import TPB, layers, new

import tandemkv as tkv
from tandemkv.managers import build_managers
from tandemkv.stores import StoreBridge

PAYLOAD = TPB * (managers_setup.TARGET_BYTES + managers_setup.DRAFT_BYTES)


def tiered_plan(host_pages: int = 16, **changes: Any) -> tkv.Plan:
    """Return a plan with 8 usable pages on the device."""
    target = changes.pop("target", layers(2))
    config = {
        "max_gpu_total_bytes": 9 * PAYLOAD,
        "host_cache_size": host_pages * PAYLOAD,
        "tokens_per_block": TPB,
        "max_batch_size": 4,
        "max_seq_len": 26,
        **changes,
    }
    return tkv.plan(
        tkv.ModelGeometry(layers=target, name="target"),
        tkv.ModelGeometry(layers=layers(1), name="draft", role="draft"),
        config=tkv.KvCacheConfig(**config),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=1),
    )


class Engine:
    """Managers on a store, that write into each page what only its tokens leave there."""

    def __init__(
        self, store: Any, *, host_pages: int = 16, arrangement: Any = "interleaved", **options: Any
    ) -> None:
        plan = tiered_plan(host_pages)
        self.managers = build_managers(
            plan, num_dummy_requests=0, arrangement=arrangement, fingerprint=b"weights"
        )
        self.bridge = StoreBridge(self.managers, plan, store, **options)

    def cells(self, request_id: str, position: int) -> list[np.ndarray]:
        """Return what both roles keep of a token, all layers."""
        row = self.managers.block_tables([request_id])[0][0, 0]
        return [
            view.pools[0].view(layer, name)[row[position // TPB], position % TPB]
            for view in self.managers.views
            for layer in range(view.num_layers)
            for name in ("key", "value")
        ]

    def serve(self, tokens: list[int], request_id: str = "x") -> int:
        """Run a prompt in one step and free it; return what it reused, which is what it must be."""
        batch = new(request_id, tokens, max_total=len(tokens) + 2)
        assert self.managers.prepare_resources(batch).all(), self.managers.refusals
        self.managers.run_moves()
        hit = int(self.managers.hit_lengths([request_id])[0])
        seed = 0
        for position, token in enumerate(tokens):
            seed = (seed * 31 + token) % 1_000_003  # of all tokens so far
            for place, cell in enumerate(self.cells(request_id, position)):
                if position < hit:
                    assert (cell == seed + place).all(), (position, place)
                cell[...] = seed + place
        self.managers.update_resources(batch, [[7]])
        self.managers.free_resources(request_id)
        return hit

    def fetch(self, tokens: list[int], request_id: str = "x") -> int:
        """Ask for a prompt and take what has come; return how many blocks are entries now."""
        self.bridge.fetch(request_id, tokens)
        return self.bridge.poll()


def prompt(start: int, length: int = 21) -> list[int]:
    return list(range(start, start + length))


def store_prompts(engine: Engine, *starts: int) -> None:
    """Let an engine compute prompts, and evict all of them to the host."""
    for start in (*starts, 9000, 9100):
        engine.serve(prompt(start))

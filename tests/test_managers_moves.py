"""The managers really copy: KV written through one request is read through another.

A model of the engine writes, for each position, bytes that depend on the whole text up to it, as
attention does. What every block of every request holds is hashed and compared with that.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from managers_setup import TPB, decode, new, small_managers

import tandemkv as tkv
from tandemkv.errors import PoolError


def kv_bytes(role: str, spec: Any, text: list[int], size: int) -> np.ndarray[Any, Any]:
    """Return what a layer's buffer holds for the last token of a text."""
    seed = f"{role} {spec.layer} {spec.name} {text}".encode()
    return np.frombuffer(hashlib.shake_128(seed).digest(size), np.uint8)


class Engine:
    """Writes the KV of a text, and hashes what the pages of a request hold."""

    def __init__(self, managers: tkv.Managers) -> None:
        self.managers = managers
        self.texts: dict[str, list[int]] = {}

    def tokens(self, request_id: str) -> Any:
        """Yield role, buffer, position and the bytes there, for each token that has a place."""
        pages, used = self.managers.block_tables([request_id])
        for view in self.managers.views:
            for spec in view.pool.layout.buffers:
                rows = view.pool.view(spec.layer, spec.name).view(np.uint8)
                rows = rows.reshape(view.num_pages, TPB, -1)
                for position in range(int(used[0, 0]) * TPB):
                    page = int(pages[0, 0, position // TPB])
                    yield view.role, spec, position, rows[page, position % TPB]

    def write(self, request_id: str, start: int, end: int) -> None:
        text = self.texts[request_id]
        for role, spec, position, place in self.tokens(request_id):
            if start <= position < end:
                place[:] = kv_bytes(role, spec, text[: position + 1], place.size)

    def check(self, request_id: str, length: int) -> None:
        have, want = hashlib.sha256(), hashlib.sha256()
        for role, spec, position, place in self.tokens(request_id):
            if position < length:
                have.update(place.tobytes())
                want.update(
                    kv_bytes(
                        role, spec, self.texts[request_id][: position + 1], place.size
                    ).tobytes()
                )
        assert have.digest() == want.digest(), request_id

    def step(self, batch: tkv.Batch, sampled: list[list[int]]) -> None:
        """Run one step: copies first, then the KV of what runs, then the result."""
        granted = self.managers.prepare_resources(batch)
        self.managers.run_moves()
        for number, request_id in enumerate(batch.request_ids):
            if not granted[number]:
                self.texts.pop(request_id)
                sampled[number] = []
                continue
            self.check(request_id, self.managers.sequence(request_id)["history"])
            history = self.managers.sequence(request_id)["history"]
            self.texts[request_id] += sampled[number]
            self.write(request_id, history, len(self.texts[request_id]) - 1)
        self.managers.update_resources(batch, sampled)
        for request_id in self.texts:
            self.check(request_id, self.managers.sequence(request_id)["history"])


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_a_copied_block_holds_the_shared_tokens(arrangement: Any) -> None:
    managers = small_managers(arrangement=arrangement)
    engine = Engine(managers)
    engine.texts["a"] = list(range(100, 118))
    engine.step(new("a", engine.texts["a"]), [[7]])
    managers.free_resources("a")
    del engine.texts["a"]
    engine.texts["b"] = [*range(100, 114), 50, 51, 52]
    assert managers.ledger.stats()["copied_blocks"] == 0
    engine.step(new("b", engine.texts["b"]), [[8]])
    assert managers.ledger.stats()["copied_blocks"] == 1
    assert managers.hit_lengths(["b"])[0] % TPB != 0


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_hit_reads_what_its_text_says(data: st.DataObject) -> None:
    """Two different tokens, so that prompts share starts; small pools, so that pages are reused."""
    managers = small_managers(num_pages=data.draw(st.sampled_from([14, 33]), label="pages"))
    engine = Engine(managers)
    for number in range(data.draw(st.integers(2, 8), label="steps")):
        if engine.texts and data.draw(st.booleans(), label="decode"):
            ids = sorted(engine.texts)
            batch = decode(ids, 2)
            engine.step(batch, [[1, 2][: data.draw(st.integers(1, 2))] for _ in ids])
        elif engine.texts and data.draw(st.booleans(), label="free"):
            request_id = data.draw(st.sampled_from(sorted(engine.texts)))
            managers.free_resources(request_id)
            del engine.texts[request_id]
        elif len(engine.texts) < 4:
            prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=14), label="prompt")
            engine.texts[f"r{number}"] = list(prompt)
            engine.step(new(f"r{number}", prompt, max_total=30), [[1]])


def test_managers_without_pools_hand_the_moves_over() -> None:
    managers = small_managers(materialize=False)
    with pytest.raises(PoolError, match="materialize=False"):
        managers.run_moves()

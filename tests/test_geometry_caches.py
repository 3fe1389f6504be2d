"""The geometry of small models against the caches that transformers builds for them."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

import tandemkv as tkv

_FILE = Path(__file__).parent / "data" / "caches" / "transformers.json"
CACHES: list[dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
TOKENS = 11  # of the forward pass that filled the caches
ITEM_BYTES = 4  # everything is read as fp32 here, so bytes are four times the elements


@pytest.mark.parametrize("entry", CACHES, ids=lambda entry: str(entry["model_type"]))
def test_layers_keep_what_the_reference_model_keeps(entry: dict[str, Any]) -> None:
    config = {**entry["config"], "model_type": entry["model_type"], "torch_dtype": "float32"}
    geometry = tkv.ModelGeometry.from_hf(config)
    assert geometry.num_layers == len(entry["layers"])
    for index, (layer, cache) in enumerate(zip(geometry.layers, entry["layers"], strict=True)):
        what = (index, layer, cache)
        tokens = [part for part in layer.parts if part.kv_dtype is not None]
        states = [part for part in layer.parts if part.kind == "state"]
        assert bool(tokens) == ("keys" in cache), what
        assert bool(states) == ("conv_states" in cache or "recurrent_states" in cache), what
        for part in tokens:
            # (heads, tokens, elements) of keys and of values; of the two parts of a latent.
            kept = [prod(cache[name]) // cache[name][1] for name in ("keys", "values")]
            assert part.bytes_per_token() == sum(kept) * ITEM_BYTES, what
            limit = part.window or part.chunk
            assert cache["keys"][1] == (TOKENS if limit is None else limit - 1), what
        for part in states:
            elements = prod(cache.get("recurrent_states", [0]))
            if "conv_states" in cache:
                channels, kernel = cache["conv_states"]
                elements += channels * (kernel - 1)
            assert part.state_bytes() == elements * ITEM_BYTES, what


def test_the_reference_covers_every_kind_of_cache() -> None:
    keys = {frozenset(layer) for entry in CACHES for layer in entry["layers"]}
    tokens, state = {"keys", "values"}, {"conv_states", "recurrent_states"}
    assert {frozenset(one) for one in (tokens, state, tokens | state, set())} <= keys

"""The budget functions of the extension: what they answer and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tandemkv import _core
from tandemkv.errors import BudgetError, GeometryError

GQA = {"kind": "attention", "kv_dtype": "bf16", "num_kv_heads": 8, "head_dim": 128}
MLA = {"kind": "mla", "kv_dtype": "bf16", "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def price(layer: dict[str, Any], **change: Any) -> int:
    return _core.layer_bytes_per_token(**(layer | change))


@pytest.mark.parametrize(
    ("heads", "tp_size", "bytes_per_token"),
    # tenstorrent/vllm #50 (8 on 32), transformers #47811 (4 on 8), omlx #2954 (1 on 2).
    [(8, 1, 4096), (8, 32, 512), (4, 8, 512), (1, 2, 512), (10, 4, 1536), (8, 6, 1024)],
)
def test_every_rank_holds_whole_heads(heads: int, tp_size: int, bytes_per_token: int):
    assert price(GQA, num_kv_heads=heads, tp_size=tp_size) == bytes_per_token


def test_side_bytes_do_not_follow_the_dtype():
    # DeepSeek-V3.2: a latent of 576 and an indexer of 132 B per token.
    assert [price(MLA, kv_dtype=d, side_bytes=132) for d in ("bf16", "fp8", "nvfp4")] == [
        1284,
        708,
        456,
    ]
    assert price(MLA, side_bytes=132, tp_size=8) == 1284


@pytest.mark.parametrize(
    ("layer", "change", "field", "value"),
    [
        (GQA, {"kind": "window"}, "kind", "window"),
        (GQA, {"kv_dtype": "int3"}, "kv_dtype", "int3"),
        (GQA, {"num_kv_heads": None}, "num_kv_heads", None),
        (GQA, {"kv_lora_rank": 512}, "kv_lora_rank", 512),
        (GQA, {"num_kv_heads": 6, "tp_size": 8}, "num_kv_heads", 6),
        (GQA, {"head_dim": 0}, "head_dim", 0),
        (GQA, {"head_dim": 127, "kv_dtype": "nvfp4"}, "head_dim", 127),
        (GQA, {"num_kv_heads": 2**62}, "", None),
        (MLA, {"head_dim": 128}, "head_dim", 128),
        (MLA, {"v_head_dim": 128}, "v_head_dim", 128),
        (MLA, {"qk_rope_head_dim": None}, "qk_rope_head_dim", None),
        (MLA, {"qk_rope_head_dim": 60, "kv_dtype": "nvfp4"}, "kv_dtype", "nvfp4"),
        (MLA, {"tp_size": 0}, "tp_size", 0),
    ],
)
def test_a_layer_that_cannot_be_priced_names_field_and_value(
    layer: dict[str, Any], change: dict[str, Any], field: str, value: object
):
    with pytest.raises(GeometryError) as caught:
        price(layer, **change)
    assert (caught.value.field, caught.value.value) == (field, value)


def test_tokens_of_a_cost():
    assert _core.cost_tokens((80, 100), 99) == 0
    assert _core.cost_tokens((80, 100), 260) == 2
    assert _core.cost_tokens((0, 100), 99) == 0
    assert _core.cost_tokens((0, 100), 100) is None


def split(**change: Any) -> Any:
    arguments = {
        "tier": "device",
        "tokens_per_block": 32,
        "budget_bytes": [2**20, 2**20],
        "target": [(10, 0), (10, 0)],
        "draft": [(0, 0), (2, 0)],
    }
    return _core.split_pages(**(arguments | change))


def test_pages_of_ranks_that_differ():
    pages, ranks = split(budget_bytes=[2**20, 2**19])
    assert pages == 2**19 // (32 * 12)
    assert [alone for alone, *_ in ranks] == [2**20 // 320, 2**19 // 384]
    assert [sum(shares) for _, *shares in ranks] == [2**20, 2**19]


def test_nothing_limits_ranks_where_tokens_cost_nothing():
    pages, ranks = split(target=[(0, 100), (0, 100)], draft=[(0, 0), (0, 7)])
    assert pages is None
    assert ranks == [(None, 100, 0, 2**20 - 100), (None, 100, 7, 2**20 - 107)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tier": "tape"}, 'tier "tape" is not one of device, host, disk'),
        ({"target": [(10, 0)]}, "one entry per rank: 2 budgets, 1 target costs"),
        ({"bytes_per_sequence": [1]}, "1 sizes of a sequence"),
    ],
)
def test_misuse_of_the_split_is_a_value_error(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        split(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens_per_block": 0}, "tokens_per_block is 0"),
        ({"budget_bytes": [], "target": [], "draft": []}, "no rank"),
        ({"target": [(2**63, 0), (1, 0)]}, "exceeds 64 bits"),
        ({"target": [(10, 2**63), (1, 0)], "draft": [(0, 2**63), (0, 0)]}, "exceeds 64 bits"),
    ],
)
def test_a_split_that_cannot_be_computed_has_no_numbers(change: dict[str, Any], message: str):
    with pytest.raises(BudgetError, match=message) as caught:
        split(**change)
    assert caught.value.tier is None
    assert caught.value.fixed_bytes is None

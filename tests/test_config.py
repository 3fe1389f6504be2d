"""What configurations accept, refuse and derive."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from typing import Any

import pytest

import tandemkv as tkv
from tandemkv.modes import ALIASES, MODES


def refused(call: Any, field: str, *words: str) -> None:
    with pytest.raises(tkv.ConfigError) as caught:
        call()
    assert caught.value.field == field
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_gpu_total_bytes": 0}, "max_gpu_total_bytes"),
        ({"max_gpu_total_bytes": -1}, "max_gpu_total_bytes"),
        ({"max_gpu_total_bytes": "lots"}, "max_gpu_total_bytes"),
        ({"host_cache_size": -1}, "host_cache_size"),
        ({"disk_cache_size": "1 furlong"}, "disk_cache_size"),
        ({"tokens_per_block": 0}, "tokens_per_block"),
        ({"tokens_per_block": 32.0}, "tokens_per_block"),
        ({"tokens_per_block": True}, "tokens_per_block"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": 2**31}, "max_batch_size"),
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"max_seq_len": 60160.0}, "max_seq_len"),
        ({"max_seq_len": "long"}, "max_seq_len"),
        ({"kernel_page_tokens": 0}, "kernel_page_tokens"),
        ({"kernel_page_tokens": 24}, "kernel_page_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"cached_endpoints": -1}, "cached_endpoints"),
        ({"state_snapshot_interval": 0}, "state_snapshot_interval"),
        # TensorRT-LLM#16545: a utilisation of 0 was accepted.
        ({"max_util_for_resume": 0}, "max_util_for_resume"),
        ({"max_util_for_resume": 1.5}, "max_util_for_resume"),
        ({"max_util_for_resume": "1/0"}, "max_util_for_resume"),
        ({"max_encoder_len": 0}, "max_encoder_len"),
        ({"num_dummy_requests": -1}, "num_dummy_requests"),
        ({"max_num_tokens": 0}, "max_num_tokens"),
        ({"max_num_tokens": 255}, "max_num_tokens"),
        ({"enable_block_reuse": 1}, "enable_block_reuse"),
        ({"enable_partial_reuse": None}, "enable_partial_reuse"),
        ({"eviction_policy": "fifo"}, "eviction_policy"),
        ({"max_pinned_fraction": 1.5}, "max_pinned_fraction"),
        ({"cache_ttl_ms": -1}, "cache_ttl_ms"),
    ],
)
def test_a_cache_config_refuses(change: dict[str, object], field: str):
    values = {"max_gpu_total_bytes": "1GiB", "max_batch_size": 256} | change
    refused(lambda: tkv.KvCacheConfig(**values), field, field, repr(change[field]))


def test_a_cache_config_stores_bytes_and_is_immutable():
    config = tkv.KvCacheConfig(max_gpu_total_bytes="40GiB", host_cache_size="64GB")
    assert config.max_gpu_total_bytes == 40 * 2**30
    assert config.host_cache_size == 64 * 10**9
    assert config == tkv.KvCacheConfig(
        max_gpu_total_bytes=42949672960, host_cache_size=64_000_000_000
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.max_batch_size = 1
    assert dataclasses.replace(config, tokens_per_block=64).tokens_per_block == 64
    assert json.loads(json.dumps(config.to_dict()))["max_gpu_total_bytes"] == 42949672960


def test_a_fraction_is_exact_however_it_was_written():
    for value in (0.95, "0.95", "19/20", Fraction(19, 20)):
        config = tkv.KvCacheConfig(max_gpu_total_bytes=1, max_util_for_resume=value)
        assert config.max_util_for_resume == Fraction(19, 20)
        assert config.to_dict()["max_util_for_resume"] == "19/20"


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"tp_size": 0}, "tp_size", ("0",)),
        ({"pp_size": "2"}, "pp_size", ("'2'",)),
        ({"cp_size": 0}, "cp_size", ("0",)),
        ({"tp_size": 512, "pp_size": 256}, "tp_size", ("131072 ranks", "65536")),
        ({"tp_size": 256, "pp_size": 256, "cp_size": 2}, "tp_size", ("131072 ranks",)),
        ({"pp_size": 2, "pp_partition": [1, 2, 3]}, "pp_partition", ("3 entries", "2")),
        ({"pp_size": 2, "pp_partition": "11"}, "pp_partition", ("'11'",)),
        ({"pp_size": 2, "pp_partition": [4, 0]}, "an entry of pp_partition", ("0",)),
        ({"tp_size": 4, "draft_tp_size": 3}, "draft_tp_size", ("3", "4")),
        ({"tp_size": 4, "draft_tp_size": 8}, "draft_tp_size", ("8", "4")),
        (
            {"tp_size": 4, "draft_tp_size": 2, "enable_attention_dp": True},
            "draft_tp_size",
            ("attention data parallelism",),
        ),
        ({"enable_attention_dp": "yes"}, "enable_attention_dp", ("'yes'",)),
    ],
)
def test_a_mapping_refuses(values: dict[str, Any], field: str, words: tuple[str, ...]):
    refused(lambda: tkv.Mapping(**values), field, *words)


def test_widths_of_a_mapping():
    assert tkv.Mapping(tp_size=8).target_width == tkv.Mapping(tp_size=8).draft_width == 8
    assert tkv.Mapping(tp_size=8, draft_tp_size=2).draft_width == 2
    attention_dp = tkv.Mapping(tp_size=8, enable_attention_dp=True)
    assert attention_dp.target_width == attention_dp.draft_width == 1
    assert tkv.Mapping(tp_size=4, pp_size=2).world_size == 8


# TensorRT-LLM, K = 4: extra, tokens per step, reserve, headroom, lookahead. PARD's reserve follows
# TensorRT-LLM#18988; suffix-automaton drafts have no layers, so nothing looks ahead.
MODE_NUMBERS = {
    "eagle3_one_model": (3, 5, 4, 8, 1),
    "mtp_one_model": (3, 5, 4, 8, 1),
    "mtp_vanilla": (3, 5, 4, 8, 4),
    "pard": (3, 8, 7, 11, 0),
    "dflash": (3, 5, 4, 8, 0),
    "dspark": (3, 5, 4, 8, 1),
    "draft_target_one_model": (3, 5, 4, 8, 0),
    "two_model": (0, 5, 4, 5, 1),
    "ngram": (0, 5, 4, 5, 0),
    "sa": (3, 5, 4, 8, 0),
    "user_provided": (0, 5, 4, 5, 0),
    "shared_kv_mtp": (0, 5, 4, 5, 0),
}


def test_every_mode_has_its_numbers():
    assert set(MODES) == set(MODE_NUMBERS)
    for mode, numbers in MODE_NUMBERS.items():
        spec = tkv.SpeculativeConfig(mode=mode, max_draft_len=4)
        assert numbers == (
            spec.extra_tokens,
            spec.tokens_per_step,
            spec.reserve_tokens,
            spec.headroom_tokens,
            spec.lookahead,
        ), mode
        assert spec.to_dict()["headroom_tokens"] == numbers[3]


def test_an_alias_is_the_mode_it_names():
    assert ALIASES == {"eagle3": "eagle3_one_model", "mtp": "mtp_one_model"}
    assert tkv.SpeculativeConfig(mode="eagle3", max_draft_len=1) == tkv.SpeculativeConfig(
        mode="eagle3_one_model", max_draft_len=1
    )


def test_a_tree_runs_every_branch():
    spec = tkv.SpeculativeConfig(mode="eagle3", max_draft_len=4, top_k=8)
    # TensorRT-LLM reserves top_k * K for a dynamic tree.
    assert spec.reserve_tokens == 32
    assert spec.tokens_per_step == 33
    assert spec.extra_tokens == 3


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"mode": "medusa", "max_draft_len": 4}, "mode", ("'medusa'", "eagle3_one_model", "ngram")),
        ({"mode": None, "max_draft_len": 4}, "mode", ("None",)),
        ({"mode": "eagle3", "max_draft_len": 0}, "max_draft_len", ("0",)),
        ({"mode": "eagle3", "max_draft_len": 2.5}, "max_draft_len", ("2.5",)),
        ({"mode": "pard", "max_draft_len": 4, "top_k": 2}, "top_k", ("2", "'pard'")),
        ({"mode": "eagle3", "max_draft_len": 4, "top_k": 0}, "top_k", ("0",)),
    ],
)
def test_a_speculative_config_refuses(values: dict[str, Any], field: str, words: tuple[str, ...]):
    refused(lambda: tkv.SpeculativeConfig(**values), field, *words)

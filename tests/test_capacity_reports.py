"""What real engines printed at start-up, explained by the geometry alone.

`tests/data/capacity_reports.csv` holds the KV memory of one rank and the tokens that fit in it, as
engines logged them; `expected_bytes_per_token` is the arithmetic of whoever published the log. The
tolerance is that of the print: memory is rounded to 0.01 GiB, tokens are the minimum over ranks.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from tandemkv import KvCacheConfig, Mapping, ModelGeometry, Plan, SideBuffer, plan

DATA = Path(__file__).parent / "data"

with (DATA / "capacity_reports.csv").open(encoding="utf-8", newline="") as _file:
    REPORTS = {int(row["id"]): row for row in csv.DictReader(_file)}


def available_bytes(printed: str) -> int:
    number, unit = printed.split()
    assert unit == "GiB"
    return int(Fraction(number) * 2**30)


def test_the_reports_in_scope_are_all_here() -> None:
    assert set(REPORTS) == {3, 7, 23, 26, 34, 41, 67, 69, 71, 77, 87, 89, 91}


def read(report: dict[str, str]) -> ModelGeometry:
    path = DATA / "configs" / f"{report['config_file']}.json"
    return ModelGeometry.from_hf(path, kv_dtype=report["kv_dtype"])


def vllm_padded_groups(geometry: ModelGeometry, tp_size: int) -> int:
    """Return what vLLM charged per token of a model with windows, before it kept windows apart.

    Layers of a kind were put into groups as large as the rarer kind, the last one padded: 52
    windows and 10 full layers make 6 + 1 groups of 10, so 8 of 70 layers held nothing.
    """
    windows = sum(one.window is not None for one in geometry.layers)
    full = geometry.num_layers - windows
    size = min(windows, full)
    groups = -(-windows // size) + -(-full // size)
    (bytes_per_layer,) = {one.bytes_per_token(tp_size) for one in geometry.layers}
    return groups * size * bytes_per_layer


def packed_sparse_latent(geometry: ModelGeometry, tp_size: int) -> int:
    """Return the bytes of the fp8 layout of FlashMLA, and no indexer.

    656 bytes per layer: 512 elements in fp8 with 4 fp32 scales, and 64 rotary ones left in bf16.
    The engine's print left the 132 bytes of the indexer out (sglang#11309: 65.49 GB in truth).
    """
    scales = SideBuffer(name="scales", bytes_per_token=4 * 4)
    rotary = SideBuffer(name="rotary_bf16", bytes_per_token=64 * (2 - 1))
    layers = [replace(one, side_buffers=(scales, rotary)) for one in geometry.layers]
    return ModelGeometry(layers=layers).bytes_per_token(tp_size)


def eighth_of_the_tokens(geometry: ModelGeometry, tp_size: int) -> int:
    """Return the bytes per token where decode context parallelism of 8 shares the tokens."""
    whole = geometry.bytes_per_token(tp_size)
    assert whole % 8 == 0
    return whole // 8


# Reports whose engine keeps something else than each layer's own bytes, and how to count that.
ENGINE_LAYOUTS = {34: vllm_padded_groups, 41: eighth_of_the_tokens, 69: packed_sparse_latent}


@pytest.mark.parametrize("report_id", sorted(REPORTS))
def test_geometry_explains_what_the_engine_printed(report_id: int) -> None:
    report = REPORTS[report_id]
    count = ENGINE_LAYOUTS.get(report_id, ModelGeometry.bytes_per_token)

    bytes_per_token = count(read(report), int(report["tp"]))
    assert bytes_per_token == int(report["expected_bytes_per_token"])

    tokens = available_bytes(report["available"]) // bytes_per_token
    printed = int(report["tokens"])
    assert abs(tokens - printed) <= Fraction(report["tolerance"]) * printed


@pytest.mark.parametrize("report_id", [23, 67])
def test_more_ranks_than_heads_save_nothing(report_id: int) -> None:
    """4 heads on 4 ranks are one each; on 8 ranks each still keeps one whole head."""
    report = REPORTS[report_id]
    geometry = ModelGeometry.from_hf(DATA / "configs" / f"{report['config_file']}.json")
    assert geometry.bytes_per_token(tp_size=8) == geometry.bytes_per_token(tp_size=4) == 48_128


def test_an_fp8_cache_costs_half_of_the_bf16_cache_of_the_same_model() -> None:
    """Report 91 is the fp8 run of the model of report 7."""
    path = DATA / "configs" / f"{REPORTS[91]['config_file']}.json"
    fp8 = ModelGeometry.from_hf(path, kv_dtype="fp8").bytes_per_token()
    assert 2 * fp8 == ModelGeometry.from_hf(path, kv_dtype="bf16").bytes_per_token() == 147_456


def test_the_indexer_is_the_gap_between_the_print_and_the_truth() -> None:
    """sglang#11309: 54.52 reported and 65.49 GB kept, which is 656 and 788 bytes per layer."""
    geometry = read(REPORTS[69])
    (indexer,) = {one.side_buffers[0].bytes_per_token for one in geometry.layers}
    packed = packed_sparse_latent(geometry, 8)
    assert Fraction(packed + 61 * indexer, packed) == Fraction(788, 656)
    assert abs(Fraction("65.49") / Fraction("54.52") - Fraction(788, 656)) < Fraction(1, 10_000)


def test_the_states_of_report_77() -> None:
    """Its engine printed 0.63 GB of states for 8 slots on each of 2 ranks, at fp32.

    One slot more holds the padding of its graphs; the convolutions were printed apart.
    """
    report = REPORTS[77]
    path = DATA / "configs" / f"{report['config_file']}.json"
    geometry = ModelGeometry.from_hf(path, kv_dtype="fp8", state_dtype="fp32")
    convolutions = 48 * (48 * 128 + 2 * 16 * 128) * 3 * 2 // 2
    matrices = geometry.state_bytes(tp_size=2) - convolutions
    assert round(9 * matrices / 2**30, 2) == 0.63


def planned(report_id: int, tokens_per_block: int, max_seq_len: int, **layout: int) -> Plan:
    """Return the plan of the run that a report is of."""
    report = REPORTS[report_id]
    return plan(
        read(report),
        config=KvCacheConfig(
            max_gpu_total_bytes=available_bytes(report["available"]),
            tokens_per_block=tokens_per_block,
            max_seq_len=max_seq_len,
            max_batch_size=8,
        ),
        mapping=Mapping(**layout),
    )


# Block size and layout of each run; a context-parallel rank of report 41 is a tensor rank as well.
RUNS = {
    3: (16, {}),
    7: (16, {}),
    23: (16, {"tp_size": 4}),
    26: (16, {}),
    41: (64, {"tp_size": 1, "cp_size": 8}),
    67: (1, {"tp_size": 4}),
    71: (1, {"tp_size": 8}),
    87: (32, {}),
    89: (32, {"tp_size": 8}),
    91: (32, {}),
}


@pytest.mark.parametrize("report_id", sorted(RUNS))
def test_a_plan_holds_the_tokens_that_the_engine_printed(report_id: int) -> None:
    tokens_per_block, layout = RUNS[report_id]
    made = planned(report_id, tokens_per_block, 2048, **layout)
    printed = int(REPORTS[report_id]["tokens"])
    assert made.max_tokens is not None
    # The reserved block is ours.
    off = abs(made.max_tokens + made.block_tokens - printed)
    assert off <= Fraction(REPORTS[report_id]["tolerance"]) * printed + made.block_tokens


def test_what_keeping_windows_apart_saves_in_report_34() -> None:
    """VLLM's padded groups held 205,696 tokens; windows kept apart leave room for six times that.

    Full layers are 10 of its 70 layer slots; the windows of 8 sequences come off first.
    """
    made = planned(34, 16, 4096)
    [rank] = made.ranks
    full, windows = rank.target.groups
    assert (len(full.layers), len(windows.layers)) == (10, 52)
    # 1,024 tokens touch 65 blocks of 16.
    assert rank.target.fixed_bytes == (8 * 65 + 1) * 16 * 52 * 8192
    available = available_bytes(REPORTS[34]["available"])
    assert made.num_blocks == (available - rank.target.fixed_bytes) // (16 * 81920)
    assert made.max_tokens is not None
    assert made.max_tokens > 6 * int(REPORTS[34]["tokens"])


@pytest.mark.parametrize(
    ("report_id", "max_model_len", "concurrency"),
    [(7, 32768, "1.34"), (26, 8192, "8.66"), (26, 16384, "4.33")],
)
def test_concurrency_in_the_words_of_vllm(
    report_id: int, max_model_len: int, concurrency: str
) -> None:
    text = str(planned(report_id, 16, max_model_len))
    printed = f"maximum concurrency for {max_model_len:,} tokens per request: {concurrency}x"
    assert printed in text

"""`tandemkv replay`: exit status, the one line of an error, JSON keys and the printed report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tandemkv.cli import main
from tandemkv.replay.render import sparkline

TRACES = Path(__file__).parent / "data" / "traces"
MOONCAKE = str(TRACES / "mooncake_fast25_synthetic_trace.jsonl")
TAUBENCH = str(TRACES / "lmcache_agent_taubench_blk16_hashed.jsonl")
AZURE = str(TRACES / "azure_llm_2023_code_head200.csv")
SESSION = str(TRACES / "kv_cache_tester" / "trace_0693.json")

WITHOUT_MODEL = ["--gpu-memory", "9", "--cache-only", "--capacity-tokens", "64"]

SMALL_CACHE = ["--trace", SESSION, "--cache-only", "--capacity-tokens", "64"]

# Keys that stay.
KEYS = {
    "requests",
    "full_blocks",
    "prompt_blocks",
    "hit_blocks",
    "hit_ratio_full_blocks",
    "hit_ratio_blocks",
    "hit_ratio_tokens",
    "evicted_blocks",
    "refused_requests",
    "accepted_tokens",
    "rewound_tokens",
    "peak_used_pages",
    "ledger_us_per_step",
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Write a small dense model: 2 layers, 2 KV heads of 16 elements, 256 bytes per token."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 64,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "num_hidden_layers": 2,
                "max_position_embeddings": 4096,
                "torch_dtype": "bfloat16",
            }
        )
    )
    return str(path)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["replay", *arguments, "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    answer: dict[str, Any] = json.loads(output.out)
    return answer


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run bad input: status 2, nothing on stdout, one line on stderr."""
    assert main(["replay", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def test_cache_only_gives_the_published_hit_ratio(capsys):
    arguments = ["--trace", MOONCAKE, "--cache-only", "--tokens-per-block", "512"]
    answer = run_json(capsys, *arguments, "--capacity-tokens", "1000000")
    assert set(answer) >= KEYS
    assert answer["hit_ratio_full_blocks"] == pytest.approx(0.1521, abs=0.002)
    assert answer["usable_pages"] == 1_000_000 // 512


def test_cache_only_is_unlimited_on_request(capsys):
    answer = run_json(capsys, "--trace", SESSION, "--cache-only", "--capacity-tokens", "unlimited")
    assert answer["tokens_per_block"] == 64  # the trace's own
    assert answer["evicted_blocks"] == 0
    assert 0 < answer["hit_ratio_tokens"] < answer["hit_ratio_full_blocks"] <= 1


def test_serving_gives_every_key_and_counts_every_request(capsys, model):
    arguments = ["--trace", TAUBENCH, "--time-unit", "ms", "--tokens-per-block", "16"]
    arguments += ["--model", model, "--gpu-memory", "2MiB", "--max-batch-size", "16"]
    answer = run_json(capsys, *arguments)
    assert set(answer) >= KEYS | {"preemptions", "served_requests", "pages_over_time", "plan"}
    assert answer["served_requests"] + answer["refused_requests"] == answer["requests"] == 471
    # 2 MiB / (256 bytes * 16) = 512 pages, one of them reserved.
    assert answer["usable_pages"] == 511
    assert answer["peak_used_pages"] <= 511


def test_a_draft_is_served_beside_its_target(capsys, model):
    arguments = ["--trace", TAUBENCH, "--time-unit", "ms", "--tokens-per-block", "16"]
    arguments += ["--model", model, "--draft", model, "--spec", "draft_target_one_model:3"]
    arguments += ["--gpu-memory", "4MiB", "--max-batch-size", "16", "--acceptance", "1"]
    answer = run_json(capsys, *arguments)
    assert answer["usable_pages"] == 511
    assert answer["mean_accept_length"] == 4.0
    assert answer["accepted_tokens"] > 0
    zero = run_json(capsys, *arguments[:-1], "0")
    assert zero["mean_accept_length"] == 1.0
    assert zero["accepted_tokens"] == 0
    assert zero["steps"] > answer["steps"]


def test_the_report_is_readable_and_says_its_definitions(capsys, model):
    arguments = ["replay", "--trace", AZURE, "--tokens-per-block", "16"]
    arguments += ["--model", model, "--gpu-memory", "4MiB", "--max-seq-len", "8192"]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert output.err == ""  # no progress bar: it is no terminal
    flat = " ".join(output.out.replace("│", " ").split())
    for text in ("hit ratio full blocks", "floor(input", "preemptions", "pages over time"):
        assert text in flat


def test_a_budget_that_does_not_fit_is_status_1(capsys, model):
    arguments = ["--trace", AZURE, "--tokens-per-block", "16", "--model", model]
    assert main(["replay", *arguments, "--gpu-memory", "100B"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1


def test_a_trace_of_which_nothing_can_be_served_is_status_1(capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"input_length": 64, "output_length": 1, "hash_ids": [1, 2, 3, 4]}\n')
    arguments = ["--trace", str(path), "--tokens-per-block", "16", "--cache-only"]
    assert main(["replay", *arguments, "--capacity-tokens", "32"]) == 1
    assert "request 0 can never be served: needs 4 pages" in capsys.readouterr().out
    assert main(["replay", *arguments, "--capacity-tokens", "64"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--trace"]),
        (["--trace", "/nonexistent/a.jsonl", "--tokens-per-block", "16"], ["a.jsonl", "No such"]),
        (["--trace", MOONCAKE], ["mooncake", "--trace-block-size"]),
        (["--trace", AZURE, "--cache-only", "--capacity-tokens", "99"], ["--tokens-per-block"]),
        (["--trace", AZURE, "--model", "x", "--gpu-memory", "9"], ["--tokens-per-block"]),
        (["--trace", AZURE], ["--model", "--gpu-memory", "--cache-only"]),
        (["--trace", AZURE, "--model", "x", "--gpu-memory", "9"], ["azure", "has no block"]),
        (["--trace", MOONCAKE, "--model", "x", "--gpu-memory", "9"], ["--trace-block-size"]),
        (
            ["--trace", TAUBENCH, "--trace-block-size", "16", "--model", "x", "--gpu-memory", "9"],
            ["tokens_per_block 32", "16", "--tokens-per-block"],
        ),
        (["--trace", SESSION], ["--model", "--gpu-memory", "--cache-only"]),
        (["--trace", SESSION, "--cache-only"], ["--capacity-tokens", "--model"]),
        (["--trace", SESSION, "--capacity-tokens", "64"], ["--capacity-tokens", "--cache-only"]),
        (["--trace", SESSION, "--gpu-memory", "1GiB", "--cache-only"], ["--gpu-memory"]),
        (["--trace", SESSION, "--draft", "x", "--cache-only"], ["--draft", "--model"]),
        (["--trace", SESSION, "--model", "x"], ["--gpu-memory"]),
        (["--trace", SESSION, "--cache-only", "--capacity-tokens", "63"], ["'63'", "64"]),
        (["--trace", SESSION, "--cache-only", "--capacity-tokens", "-5"], ["'-5'"]),
        (["--trace", SESSION, "--cache-only", "--capacity-tokens", "1e6"], ["'1e6'"]),
        (["--trace", SESSION, "--cache-only", "--capacity-tokens", "9" * 5000], ["--capacity"]),
        (
            ["--trace", SESSION, "--cache-only", "--capacity-tokens", "9" * 18],
            ["--capacity-tokens"],
        ),
        (["--trace", "a\0b.jsonl", "--cache-only"], ["'a\\x00b.jsonl'"]),
        (
            ["--trace", SESSION, "--model", "x", *WITHOUT_MODEL],
            ["--capacity-tokens", "--model"],
        ),
        (["--trace", SESSION, "--tokens-per-block", "48"], ["48", "64"]),
        (["--trace", SESSION, "--tokens-per-block", "0"], ["tokens_per_block is 0"]),
        (["--trace", SESSION, "--policy", "fifo"], ["--policy", "fifo", "lru"]),
        (["--trace", SESSION, "--hash-ids", "some"], ["--hash-ids", "some"]),
        (
            ["--trace", SESSION, "--host-memory", "1GiB", "--cache-only"],
            ["--host-memory", "--model"],
        ),
        (
            ["--trace", SESSION, "--disk-memory", "1GiB", "--cache-only"],
            ["--disk-memory", "--model"],
        ),
        (["--trace", SESSION, "--host-memory", "1G"], ["--host-memory", "'1G'"]),
        (
            ["--trace", SESSION, "--host-tokens", "64", "--cache-only"],
            ["--host-tokens", "'64'", "--capacity-tokens"],
        ),
        ([*SMALL_CACHE, "--host-tokens", "63"], ["--host-tokens", "'63'", "64"]),
        ([*SMALL_CACHE, "--disk-tokens", "unlimited"], ["--disk-tokens", "'unlimited'"]),
        ([*SMALL_CACHE, "--host-bandwidth", "9"], ["--host-bandwidth is 9", "--cache-only"]),
        (
            ["--trace", SESSION, "--model", "x", "--gpu-memory", "9", "--host-bandwidth", "9"],
            ["--host-bandwidth is 9", "--host-memory"],
        ),
        (
            ["--trace", SESSION, "--model", "x", "--gpu-memory", "9", "--disk-bandwidth", "0"],
            ["--disk-bandwidth is 0"],
        ),
        ([*SMALL_CACHE, "--html", "no/such/folder/a.html"], ["no/such/folder/a.html"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, words):
    line = error_line(capsys, *arguments)
    for word in words:
        assert word in line


def test_a_malformed_row_is_named_with_file_line_field_and_value(capsys, tmp_path):
    path = tmp_path / "trace.jsonl"
    good = '{"input_length": 20, "output_length": 1, "hash_ids": [1, 2]}'
    path.write_text(f"{good}\n{good.replace('20', '-20')}\n")
    arguments = ["--trace", str(path), "--tokens-per-block", "16", "--cache-only"]
    line = error_line(capsys, *arguments, "--capacity-tokens", "64")
    assert f"{path}:2: field 'input_length' is -20:" in line


def test_cache_only_refuses_by_the_pool_alone(capsys, tmp_path, model):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"input_length": 64, "output_length": 1, "hash_ids": [1, 2, 3, 4]}\n')
    arguments = ["--trace", str(path), "--tokens-per-block", "16", "--time-unit", "s", "--json"]
    arguments += ["--model", model, "--gpu-memory", "4MiB", "--max-seq-len", "32"]
    assert main(["replay", *arguments, "--cache-only"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["refused_requests"] == 0
    assert "serving mode only" in answer["definitions"]["refused_requests"]
    assert main(["replay", *arguments]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["unservable"][0]["reason"] == "has 65 tokens, max_seq_len is 32"


def test_an_open_time_unit_is_asked_for_before_anything_runs(capsys, model):
    arguments = ["--trace", TAUBENCH, "--tokens-per-block", "16", "--model", model]
    line = error_line(capsys, *arguments, "--gpu-memory", "4MiB")
    assert "--time-unit" in line


@pytest.mark.parametrize("option", [["--acceptance", "2"], ["--step-ms", "0"], ["--seed", "-1"]])
def test_serving_options_out_of_range(capsys, model, option):
    arguments = ["--trace", AZURE, "--tokens-per-block", "16", "--model", model]
    line = error_line(capsys, *arguments, "--gpu-memory", "4MiB", *option)
    assert option[1].removeprefix("-") in line


def test_sparklines_show_the_largest_value_of_each_bar():
    assert sparkline([0, 1, 4, 8], 8) == " ▁▄█"
    assert sparkline([1], 1_000_000) == "▁"  # never hidden
    assert sparkline([0] * 99 + [8] + [0] * 28, 8).count("█") == 1
    assert len(sparkline([1] * 1000, 8)) == 56


def test_an_encoding_without_bars_prints_the_rest():
    """A terminal whose encoding lacks a character gets `?`, not a traceback."""
    command = str(Path(sys.executable).with_name("tandemkv"))
    done = subprocess.run(
        [command, "replay", "--trace", SESSION, "--cache-only", "--capacity-tokens", "unlimited"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"ledger, ?s per request" in done.stdout


def test_snapshots_let_a_model_with_states_be_found_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bamba has attention and Mamba layers; turns of the session begin with those before."""
    bamba = str(Path(__file__).parent / "data/configs/ibm-ai-platform__Bamba-9B-v2.json")
    common = ["replay", "--trace", SESSION, "--model", bamba, "--gpu-memory", "40GiB", "--json"]
    common += ["--max-batch-size", "4", "--max-seq-len", "131072"]
    assert main(common) == 0
    without = json.loads(capsys.readouterr().out)
    assert main([*common, "--state-snapshot-interval", "2048", "--cached-endpoints", "64"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert without["hit_ratio_tokens"] < 0.05
    assert found["hit_ratio_tokens"] > 0.5


def test_cache_only_refuses_models_whose_layers_drop_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gemma = str(Path(__file__).parent / "data/configs/google__gemma-3-1b-it.json")
    given = ["--trace", TAUBENCH, "--tokens-per-block", "16", "--cache-only", "--model", gemma]
    assert main(["replay", *given, "--gpu-memory", "8GiB"]) == 2
    assert "the model has a sliding_window group" in capsys.readouterr().err


# What host and disk did; keys that stay as well.
TIER_KEYS = {
    *("host_pages", "disk_pages", "hit_tokens_by_tier", "loaded_blocks", "offloaded_blocks"),
    *("rejected", "lost", "moved_blocks", "moved_bytes"),
    *("loading_requests", "loading_ms_p50", "loading_ms_p95"),
}


def test_cache_only_takes_tiers_in_tokens(capsys):
    arguments = ["--trace", SESSION, "--cache-only", "--capacity-tokens", "38_400"]
    alone = run_json(capsys, *arguments)
    assert alone["tiers"] is None
    both = run_json(capsys, *arguments, "--host-tokens", "6400", "--disk-tokens", "12,800")
    tiers = both["tiers"]
    assert set(tiers) == TIER_KEYS <= set(both["definitions"]) | TIER_KEYS
    assert (tiers["host_pages"], tiers["disk_pages"], tiers["moved_bytes"]) == (100, 200, None)
    assert sum(tiers["hit_tokens_by_tier"].values()) == both["hit_tokens"] >= alone["hit_tokens"]


def test_serving_takes_tiers_in_bytes(capsys, model):
    """A block of 16 tokens has 4 KiB, so a page on disk with its trailer has 8."""
    arguments = ["--trace", TAUBENCH, "--time-unit", "ms", "--tokens-per-block", "16"]
    arguments += ["--model", model, "--gpu-memory", "404KiB", "--max-batch-size", "2"]
    arguments += ["--max-seq-len", "1024", "--host-memory", "160KiB", "--disk-memory", "4MiB"]
    answer = run_json(capsys, *arguments)
    tiers = answer["tiers"]
    assert tiers["host_pages"] == 40
    assert 500 <= tiers["disk_pages"] < 512
    assert sum(tiers["hit_tokens_by_tier"].values()) == answer["hit_tokens"]
    assert tiers["hit_tokens_by_tier"]["disk"] > 0
    assert tiers["moved_bytes"] == {
        name: blocks * 4096 for name, blocks in tiers["moved_blocks"].items()
    }
    assert tiers["loading_requests"] == 0
    slow = run_json(capsys, *arguments, "--host-bandwidth", "400KiB", "--disk-bandwidth", "40KiB")
    assert slow["tiers"]["loading_requests"] > 0
    assert slow["tiers"]["loading_ms_p95"] >= slow["tiers"]["loading_ms_p50"] > 0
    assert slow["served_requests"] == answer["served_requests"]


def test_the_report_shows_tiers(capsys, model):
    arguments = ["replay", "--trace", TAUBENCH, "--time-unit", "ms", "--tokens-per-block", "16"]
    arguments += ["--model", model, "--gpu-memory", "404KiB", "--max-batch-size", "2"]
    arguments += ["--max-seq-len", "1024", "--host-memory", "1MiB", "--host-bandwidth", "400KiB"]
    assert main(arguments) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("hit tokens by tier", "device to host", "loading requests", "KiB with all"):
        assert words in text


def test_the_page_needs_nothing_else_and_shows_every_figure(capsys, tmp_path):
    path = tmp_path / "replay.html"
    arguments = ["--trace", SESSION, "--cache-only", "--capacity-tokens", "38400"]
    answer = run_json(capsys, *arguments, "--host-tokens", "6400", "--html", str(path))
    page = path.read_text()
    for figure in (answer["hit_tokens"], answer["evicted_blocks"], answer["requests"]):
        assert f"{figure:,}" in page
    for tier, tokens in answer["tiers"]["hit_tokens_by_tier"].items():
        assert f"{tier}: {tokens:,}" in page
    assert page.count("<polyline") == 2
    # Tags are closed, and nothing is fetched.
    ElementTree.fromstring(
        page.partition("<body>")[2].partition("</body>")[0].join(("<b>", "</b>"))
    )
    assert not re.search(r"<script|<link|<img|https?:|url\(", page)


def test_a_page_of_a_replay_in_which_nothing_ran(capsys, tmp_path):
    trace, page = tmp_path / "<trace>.jsonl", tmp_path / "replay.html"
    trace.write_text('{"input_length": 64, "output_length": 1, "hash_ids": [1, 2, 3, 4]}\n')
    arguments = ["--trace", str(trace), "--tokens-per-block", "16", "--cache-only"]
    assert main(["replay", *arguments, "--capacity-tokens", "32", "--html", str(page)]) == 1
    capsys.readouterr()
    text = page.read_text()
    assert "Nothing ran" in text
    assert "request 0: needs 4 pages" in text
    assert "&lt;trace&gt;" in text


def test_lower_tiers_need_a_group_that_keeps_every_token(capsys, tmp_path, model):
    path = tmp_path / "mamba.json"
    path.write_text(
        json.dumps(
            json.loads(Path(model).read_text()) | {"sliding_window": 64, "model_type": "mistral"}
        )
    )
    arguments = ["--trace", TAUBENCH, "--time-unit", "ms", "--tokens-per-block", "16"]
    arguments += ["--model", str(path), "--gpu-memory", "64MiB", "--host-memory", "64MiB"]
    arguments += ["--max-batch-size", "2", "--cached-endpoints", "4"]
    assert "--host-memory is 67108864; lower tiers need" in error_line(capsys, *arguments)

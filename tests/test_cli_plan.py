"""`tandemkv plan`: exit status, JSON, messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tandemkv as tkv
from tandemkv.cli import main
from tandemkv.modes import ALIASES, MODES

CONFIGS = Path(__file__).resolve().parent / "data" / "configs"
LLAMA = str(CONFIGS / "meta-llama__Meta-Llama-3.1-8B.json")
EAGLE3 = str(CONFIGS / "DRAFT__SpecForge__llama3-8B-eagle3.json")
PUBLISHED = Path(__file__).parent / "data" / "configs"
DEEPSEEK = str(PUBLISHED / "deepseek-ai__DeepSeek-V3.json")
JAMBA = str(PUBLISHED / "ai21labs__Jamba-v0.1.json")
GPT_OSS = str(PUBLISHED / "openai__gpt-oss-120b.json")
PAIR = ["--model", LLAMA, "--draft", EAGLE3, "--spec", "eagle3:4"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["plan", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def answer(run: Run, *arguments: str) -> Any:
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def refusal(run: Run, status: int, *arguments: str) -> str:
    """Return the one line on stderr; nothing may be on stdout."""
    got, out, err = run(*arguments)
    assert (got, out) == (status, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_json_is_the_plan(run: Run):
    arguments = ["--gpu-memory", "40GiB", "--host-memory", "64GiB", "--max-seq-len", "8192"]
    got = answer(run, *PAIR, *arguments, "--tp", "4", "--pp", "2")
    plan = tkv.plan(
        tkv.ModelGeometry.from_hf(LLAMA),
        tkv.ModelGeometry.from_hf(EAGLE3, role="draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="40GiB", host_cache_size="64GiB", max_seq_len=8192
        ),
        mapping=tkv.Mapping(tp_size=4, pp_size=2),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=4),
    )
    assert got == json.loads(json.dumps(plan.to_dict()))
    # 16 target layers and the draft's one, 8 heads over 4 ranks, bf16: 17,408 B per token.
    assert got["num_blocks"] == 40 * 2**30 // (32 * 17408)
    assert [rank["draft"] is None for rank in got["ranks"]] == [True] * 4 + [False] * 4


def test_every_option_reaches_the_plan(run: Run):
    got = answer(
        run,
        *PAIR,
        *("--gpu-memory", "42949672960", "--host-memory", "1GB", "--disk-memory", "2GB"),
        *("--tp", "4", "--pp", "2", "--pp-partition", "20,12", "--draft-tp", "2"),
        *("--kv-dtype", "fp8", "--draft-kv-dtype", "fp16", "--tokens-per-block", "64"),
        *("--max-batch-size", "16", "--max-seq-len", "1000", "--max-num-tokens", "4096"),
        *("--max-tokens", "1000000", "--cached-endpoints", "3", "--max-encoder-len", "1500"),
        *("--state-snapshot-interval", "512", "--max-util-for-resume", "0.95"),
        *("--request-len", "100"),
    )
    assert got["config"] == {
        "max_gpu_total_bytes": 42949672960,
        "host_cache_size": 10**9,
        "disk_cache_size": 2 * 10**9,
        "tokens_per_block": 64,
        "kernel_page_tokens": None,
        "max_batch_size": 16,
        "max_seq_len": 1000,
        "max_num_tokens": 4096,
        "max_tokens": 1_000_000,
        "cached_endpoints": 3,
        "state_snapshot_interval": 512,
        "max_util_for_resume": "19/20",
        "max_encoder_len": 1500,
        "num_dummy_requests": None,
        "enable_block_reuse": True,
        "enable_partial_reuse": True,
        "eviction_policy": "lru",
        "max_pinned_fraction": None,
        "cache_ttl_ms": 0,
    }
    assert [rank["target"]["layers"] for rank in got["ranks"]] == [20] * 4 + [12] * 4
    # fp8 over 4 ranks: 512 B per layer; the draft's fp16 over 2 ranks: 2,048 B.
    assert got["ranks"][0]["target"]["bytes_per_token"] == 20 * 512
    assert got["ranks"][7]["draft"]["bytes_per_token"] == 2048
    assert got["request_len"] == 100
    # cdiv(100 + 3 + 4 + 1, 64) = 2 blocks per request.
    assert got["concurrency_at_request_len"] == (got["num_blocks"] - 1) // 2
    assert got["running_requests_at_request_len"] == 2 * 16


def test_attention_dp_keeps_whole_heads(run: Run):
    sizes = ["--model", LLAMA, "--gpu-memory", "40GiB", "--tp", "4"]
    assert answer(run, *sizes)["ranks"][0]["target"]["bytes_per_token"] == 32768
    got = answer(run, *sizes, "--attention-dp")
    assert got["ranks"][0]["target"]["bytes_per_token"] == 131072
    assert got["data_parallel_size"] == 4


def test_a_draft_never_inherits_the_targets_dtype(run: Run):
    got = answer(run, *PAIR, "--gpu-memory", "40GiB", "--kv-dtype", "fp8")
    assert got["ranks"][0]["target"]["bytes_per_token"] == 65536
    assert got["ranks"][0]["draft"]["bytes_per_token"] == 4096


@pytest.mark.parametrize("pp_size", [1, 2])
def test_no_more_requests_are_shown_than_were_planned_for(run: Run, pp_size: int):
    # States are there for the batch (times the stages) alone, however many tokens fit.
    sizes = [
        *("--model", JAMBA, "--gpu-memory", "10GiB", "--max-seq-len", "8192"),
        *("--max-batch-size", "1", "--request-len", "1000", "--pp", str(pp_size)),
    ]
    got = answer(run, *sizes)
    pages = got["num_blocks"] - 1
    # cdiv(8,192 + 1, 32) and cdiv(1,000 + 1, 32) blocks of each request.
    assert got["max_concurrency"] == pages // 257 > pp_size
    assert got["concurrency_at_request_len"] == pages // 32
    assert got["max_running_requests"] == got["running_requests_at_request_len"] == pp_size
    _, out, _ = run(*sizes)
    limit = "max_batch_size 1" + (" times pp_size 2" if pp_size == 2 else "")
    for length, fits in (("8,192", pages // 257), ("1,000", pages // 32)):
        assert f"{pp_size} of {length} tokens (memory for {fits:,}; {limit} limits)" in out
    for name in ("max_batch_size", "max-batch-size", "--max-batch-size"):
        assert answer(run, *sizes, "--sweep", f"{name}=1")["sweep"] == "max_batch_size"
    _, out, _ = run(*sizes, "--sweep", "max_batch_size=1")
    assert f" {pp_size} of 1,000 " in out


def test_help_lists_the_modes(capsys: pytest.CaptureFixture[str]):
    for verb in ("plan", "replay"):
        assert main([verb, "--help"]) == 0
        words = set(re.findall(r"\w+", capsys.readouterr().out))
        assert {*MODES, *ALIASES} <= words


def test_mtp_reads_its_layers_from_the_target(run: Run):
    got = answer(
        run,
        *("--model", DEEPSEEK, "--kv-dtype", "fp8", "--draft-kv-dtype", "bf16"),
        *("--spec", "mtp_one_model:3", "--gpu-memory", "40GiB", "--pp", "2"),
    )
    # 61 latent layers of 576 B in fp8; one module of 1,152 B in bf16 on the last rank.
    assert [rank["target"]["bytes_per_token"] for rank in got["ranks"]] == [31 * 576, 30 * 576]
    assert got["ranks"][0]["draft"] is None
    assert got["ranks"][1]["draft"]["bytes_per_token"] == 1152


def test_the_table_shows_ranks_roles_and_capacity(run: Run):
    status, out, err = run(
        *PAIR, "--gpu-memory", "40GiB", "--max-seq-len", "8192", "--request-len", "512"
    )
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["ranks", "role", "layers", "bytes/token", "page", "pages", "device"] in rows
    assert ["0", "draft", "1", "4,096", "128.00", "KiB", "9,929", "1.21", "GiB"] in rows
    assert "317,696 tokens" in out
    assert "38 of 8,192 tokens" in out
    # cdiv(512 + 3 + 4 + 1, 32) = 17 blocks: 9,928 // 17 requests.
    assert "256 of 512 tokens (memory for 584; max_batch_size 256 limits)" in out
    assert "maximum concurrency for 8,192 tokens per request: 38.78x" in out


@pytest.mark.parametrize("option", ["--gpu-memory", "--host-memory", "--disk-memory"])
def test_does_not_fit_is_status_1(run: Run, option: str):
    sizes = {"--gpu-memory": "40GiB", option: "1MiB"}
    arguments = [part for pair in sizes.items() for part in pair]
    line = refusal(run, 1, *PAIR, *arguments)
    tier = {"--gpu": "device", "--host": "host", "--disk": "disk"}[option.rsplit("-", 1)[0]]
    assert f"the {tier} budget of rank 0 is 1048576 bytes" in line
    assert "4194304 (target) + 131072 (draft)" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu-memory", "40G"], ["--gpu-memory", "'40G'"]),
        (["--gpu-memory", "0"], ["--gpu-memory", "0"]),
        (["--gpu-memory", "-1"], ["--gpu-memory", "'-1'"]),
        (["--host-memory", "much"], ["--host-memory", "'much'"]),
        (["--tp", "0"], ["--tp is 0"]),
        (["--tp", "two"], ["--tp", "'two'"]),
        (["--tp", "12"], ["8 KV heads", "12"]),
        (["--pp", "33"], ["33", "32 layers"]),
        (["--pp", "2", "--pp-partition", "31"], ["1 entries", "2"]),
        (["--pp", "2", "--pp-partition", "30,1"], ["31", "32"]),
        (["--pp", "2", "--pp-partition", "16;16"], ["--pp-partition", "'16;16'"]),
        (["--pp", "2", "--pp-partition", "33,-1"], ["--pp-partition", "'33,-1'"]),
        (["--kv-dtype", "int3"], ["int3", "nvfp4"]),
        (["--draft-kv-dtype", "int3"], ["int3", "nvfp4"]),
        (["--draft-tp", "3"], ["--draft-tp is 3", "--tp 1"]),
        (["--spec", "eagle3"], ["--spec", "'eagle3'", "eagle3:4"]),
        (["--spec", "eagle3:0"], ["--spec", "'eagle3:0'", "max_draft_len"]),
        (["--spec", "medusa:4"], ["--spec", "'medusa'", "eagle3_one_model"]),
        (["--spec", "ngram:4"], ["draft", "'ngram'"]),
        (["--tokens-per-block", "0"], ["--tokens-per-block is 0"]),
        (["--max-batch-size", "0"], ["--max-batch-size is 0"]),
        (["--max-seq-len", "0"], ["--max-seq-len is 0"]),
        (["--max-num-tokens", "8"], ["--max-num-tokens is 8", "256"]),
        (["--request-len", "200000"], ["--request-len is 200000", "--max-seq-len 131072"]),
        (["--model", "nowhere.json"], ["nowhere.json"]),
        (["--draft", "nowhere.json"], ["nowhere.json"]),
        (["--model", __file__], [Path(__file__).name, "JSON"]),
        (["--cp", "0"], ["--cp is 0"]),
        (["--max-seq-len", "long"], ["--max-seq-len", "'long'", "auto"]),
        (["--max-tokens", "16"], ["--max-tokens is 16", "32"]),
        (["--max-util-for-resume", "0"], ["--max-util-for-resume is '0'"]),
        (["--cached-endpoints", "-1"], ["--cached-endpoints is -1"]),
        (["--gpu-memory", "40GiB,38GiB"], ["--gpu-memory has 2 entries", "1 ranks"]),
        (["--sweep", "colour=16"], ["--sweep", "'colour=16'", "tokens_per_block"]),
        (["--sweep", "tokens_per_block="], ["--sweep", "'tokens_per_block='"]),
        (["--sweep", "tokens_per_block=16,x"], ["--tokens-per-block", "'x'"]),
        (["--sweep", "tp=1,2", "--explain"], ["--explain", "--sweep"]),
        (["--sweep", "tp=1,2", "--html", "plan.html"], ["--html", "--sweep"]),
        (["--html", "no/such/folder/plan.html"], ["no/such/folder/plan.html"]),
        # Python converts no strings of more than 4,300 digits.
        (["--host-memory", "9" * 5000], ["--host-memory", "KiB"]),
        (["--max-seq-len", "9" * 5000], ["--max-seq-len"]),
        (["--pp", "2", "--pp-partition", f"{'9' * 5000},1"], ["--pp-partition"]),
        (["--spec", f"eagle3:{'9' * 5000}"], ["--spec", "MODE:DRAFT_LEN"]),
    ],
)
def test_bad_input_is_status_2(run: Run, arguments: list[str], words: list[str]):
    line = refusal(run, 2, *PAIR, "--gpu-memory", "40GiB", *arguments)
    for word in words:
        assert word in line


def test_a_missing_field_is_named_with_its_file(run: Run, tmp_path: Path):
    config = json.loads(Path(LLAMA).read_text())
    del config["num_hidden_layers"]
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(config))
    line = refusal(run, 2, "--model", str(broken), "--gpu-memory", "40GiB")
    assert str(broken) in line
    assert "num_hidden_layers" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", LLAMA], ["--gpu-memory"]),
        (["--gpu-memory", "40GiB"], ["--model"]),
        (["--model", LLAMA, "--gpu-memory", "1GiB", "--draft", EAGLE3], ["no --spec is given"]),
        (["--model", LLAMA, "--gpu-memory", "1GiB", "--spec", "eagle3:4"], ["no --draft is given"]),
        (["--model", LLAMA, "--gpu-memory", "1GiB", "--spec", "mtp_vanilla:1"], [LLAMA]),
        (["--model", GPT_OSS, "--gpu-memory", "1GiB"], ["openai__gpt-oss", "pass --kv-dtype"]),
        (
            ["--model", DEEPSEEK, "--gpu-memory", "40GiB", "--spec", "mtp_vanilla:3"],
            ["the draft length of --spec is 3", "has 1;", "mtp_one_model"],
        ),
        (
            ["--model", LLAMA, "--gpu-memory", "1GiB", "--draft-kv-dtype", "fp8"],
            ["--draft-kv-dtype", "no draft"],
        ),
    ],
)
def test_incomplete_input_is_status_2(run: Run, arguments: list[str], words: list[str]):
    line = refusal(run, 2, *arguments)
    for word in words:
        assert word in line


def test_an_unknown_verb_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["plann"]) == 2
    assert "'plann'" in capsys.readouterr().err


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == main([]) == 0
    out = capsys.readouterr().out
    assert out.count("plan ") >= 2
    assert main(["--version"]) == 0
    assert tkv.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("module", ["click", "rich"])
def test_a_missing_cli_package_is_one_clear_line(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # None in sys.modules makes an import fail as if the package were not installed.
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["env"]) == 2
    message = f"error: {module} is not installed: pip install '.[cli]' in a checkout of tandemkv\n"
    assert capsys.readouterr().err == message


def test_the_installed_command_reports_its_status():
    command = str(Path(sys.executable).with_name("tandemkv"))
    done = subprocess.run(
        [command, "plan", "--model", LLAMA, "--gpu-memory", "1MiB"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the device budget of rank 0")


def test_python_runs_the_package() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tandemkv", "--version"], capture_output=True, text=True, check=True
    )
    assert answer.stdout == f"tandemkv, version {tkv.__version__}\n"


def test_the_plan_of_a_hybrid_says_what_its_batch_takes(run: Run) -> None:
    sizes = ("--model", JAMBA, "--gpu-memory", "40GiB", "--max-seq-len", "8192")
    notes = answer(run, *sizes, "--pp", "2")["notes"]
    assert any(
        "512 sequences" in note and "max_batch_size 256 x pp_size 2" in note for note in notes
    )
    fewer = answer(run, *sizes, "--max-batch-size", "8")
    assert any("8 sequences" in note for note in fewer["notes"])
    assert fewer["num_blocks"] > answer(run, *sizes)["num_blocks"]

"""What-if questions: the longest length that fits, sweeps, every term, engine words, HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from budget_cases import GIB, byte_layer, gqa, model, state

import tandemkv as tkv
from tandemkv.cli import main
from tandemkv.planning.html import plan_html

CONFIGS = Path(__file__).resolve().parent / "data" / "configs"
LLAMA = str(CONFIGS / "meta-llama__Meta-Llama-3.1-8B.json")
EAGLE3 = str(CONFIGS / "DRAFT__SpecForge__llama3-8B-eagle3.json")
PAIR = ["plan", "--model", LLAMA, "--draft", EAGLE3, "--spec", "eagle3:4"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main([*PAIR, *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


# --- max_seq_len="auto" ------------------------------------------------------------------------


def longest(layers: tuple[tkv.Layer, ...], positions: int | None = None, **config: Any) -> tkv.Plan:
    values = {"max_seq_len": "auto", "max_batch_size": 1, "num_dummy_requests": 0} | config
    return tkv.plan(model(layers, positions=positions), config=tkv.KvCacheConfig(**values))


def test_the_longest_length_fits_and_one_more_does_not():
    # vllm#25350: 49,169 B per token; a suggested length must be reachable.
    made = longest(gqa(12), positions=221_000, max_gpu_total_bytes=6_002_216_960)
    pages = 6_002_216_960 // (32 * 12 * 4096)
    assert made.max_seq_len == (pages - 1) * 32 - 1
    for length, concurrency in ((made.max_seq_len, 1), (made.max_seq_len + 1, 0)):
        again = longest(
            gqa(12), positions=221_000, max_gpu_total_bytes=6_002_216_960, max_seq_len=length
        )
        assert again.max_concurrency == concurrency


def test_it_is_at_most_what_the_model_declares():
    assert longest(gqa(1), positions=8192, max_gpu_total_bytes="8GiB").max_seq_len == 8192
    made = longest(gqa(1), max_gpu_total_bytes="1GiB")
    assert made.max_seq_len == made.max_request_len == (2**30 // 131072 - 1) * 32 - 1


def test_passing_a_window_can_make_longer_sequences_fit():
    # Up to 512 tokens both layers keep everything; beyond, one keeps a window for each of the
    # batch, which is cheaper for one long sequence.
    layers = gqa(1) + gqa(1, window=512)
    made = longest(layers, positions=10_000, max_gpu_total_bytes=32 * 4096 * 100)
    # 18 pages of the window (one reserved), 82 of the other layer: 81 usable ones.
    assert made.ranks[0].target.groups[1].num_pages == 18
    assert made.max_seq_len == 81 * 32 - 1
    # A batch that the windows do not fit: only lengths below them do.
    short = longest(layers, positions=10_000, max_gpu_total_bytes=32 * 4096 * 100, max_batch_size=8)
    assert short.max_seq_len == 512
    assert len(short.ranks[0].target.groups) == 1


@pytest.mark.parametrize("size", range(9, 60, 5))
def test_it_is_what_trying_every_length_finds(size: int):
    layers = (byte_layer(64), byte_layer(64, window=20), byte_layer(64, window=50), *state(1, 99))
    sizes = {"max_gpu_total_bytes": 8 * 64 * size, "tokens_per_block": 8}

    def fits(length: int) -> bool:
        try:
            return longest(layers, max_seq_len=length, **sizes).max_concurrency > 0
        except tkv.BudgetError:
            return False

    expected = [length for length in range(1, 120) if fits(length)]
    made = longest(layers, positions=119, **sizes)
    assert made.max_seq_len == max(expected)


def test_no_length_fits():
    with pytest.raises(tkv.BudgetError):
        longest(gqa(32), positions=4096, max_gpu_total_bytes="1MiB")
    with pytest.raises(tkv.BudgetError, match="no max_seq_len fits"):
        tkv.plan(
            model(gqa(1)),
            model(gqa(1), "draft"),
            config=tkv.KvCacheConfig(
                max_gpu_total_bytes=2 * 32 * 8192, max_seq_len="auto", tokens_per_block=32
            ),
            speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=40),
        )


def test_auto_on_the_command_line(run: Run):
    status, out, _ = run("--gpu-memory", "2GiB", "--max-seq-len", "auto", "--json")
    answer = json.loads(out)
    assert status == 0
    # 496 pages, 495 usable of 32 tokens; 8 tokens of headroom.
    assert answer["max_seq_len"] == 495 * 32 - 8
    assert answer["max_concurrency"] == 1


# --- sweep, explain, engine words --------------------------------------------------------------


def test_a_sweep_is_one_plan_per_value(run: Run):
    status, out, _ = run(
        *("--gpu-memory", "40GiB", "--max-seq-len", "8192", "--request-len", "100"),
        *("--sweep", "tokens_per_block=16,32,64", "--json"),
    )
    answer = json.loads(out)
    assert (status, answer["sweep"]) == (0, "tokens_per_block")
    for entry, size in zip(answer["results"], (16, 32, 64), strict=True):
        _, single, _ = run(
            *("--gpu-memory", "40GiB", "--max-seq-len", "8192", "--tokens-per-block", str(size)),
            "--json",
        )
        assert entry["value"] == str(size)
        assert entry["plan"] == json.loads(single)
        blocks = -(-(100 + 8) // size)
        assert entry["concurrency_at_request_len"] == (entry["plan"]["num_blocks"] - 1) // blocks


def test_a_sweep_says_which_values_do_not_fit(run: Run):
    status, out, err = run("--gpu-memory", "40GiB", "--sweep", "gpu_memory=1MiB,20GiB")
    assert (status, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["1MiB", "does", "not", "fit"] in rows
    assert ["20GiB", "4,964", "158,816", "1", "of", "131,072", "3.50", "MiB"] in rows
    status, out, _ = run("--gpu-memory", "40GiB", "--sweep", "gpu_memory=1MiB,2MiB", "--json")
    assert status == 1
    assert all("budget of rank 0" in entry["error"] for entry in json.loads(out)["results"])


def test_every_term_adds_up_on_the_command_line(run: Run):
    arguments = ["--gpu-memory", "40GiB", "--host-memory", "64GiB", "--pp", "2", "--explain"]
    _, out, _ = run(*arguments, "--json")
    terms = json.loads(out)["explain"]
    for ranks in ("0", "1"):
        for tier, budget in (("device", 40 * GIB), ("host", 64 * GIB)):
            own = [term for term in terms if (term["ranks"], term["tier"]) == (ranks, tier)]
            assert sum(term["bytes"] for term in own) == budget
            assert own[-1]["term"] == "slack"
    _, text, _ = run(*arguments)
    [draft] = [row for row in text.splitlines() if re.search(r"device +draft .*tokens", row)]
    # One layer of 4,096 B, 32 tokens to a page, one page reserved.
    assert draft.split()[-3:] == [
        f"{int(draft.split()[-3].replace(',', '')):,}",
        "131,072",
        f"{int(draft.split()[-3].replace(',', '')) * 131072:,}",
    ]


def test_the_words_of_other_engines():
    made = tkv.plan(
        model(gqa(32)),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="8GiB",
            host_cache_size="2GiB",
            max_seq_len=4096,
            max_num_tokens=2048,
        ),
    )
    text = str(made)
    # 2,048 blocks of 4 MiB, one of them reserved.
    assert "GPU KV cache size: 65,504 tokens" in text
    assert "maximum concurrency for 4,096 tokens per request: 15.99x" in text
    assert (
        "max_total_num_tokens=65504, chunked_prefill_size=2048, max_running_requests=256, "
        "context_len=4096"
    ) in text
    assert (
        "Max KV cache blocks per sequence: 129 [window size=4096], tokens per block=32, "
        "primary blocks=2048, secondary blocks=512"
    ) in text
    assert "Allocated 8.00 GiB for max tokens in paged KV cache (65536)" in text


# --- HTML --------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects the widths of the bars and anything that would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[float] = []
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.loads += [name for name in ("src", "href") if name in values]
        self.loads += [tag] if tag in {"script", "link", "img"} else []
        if tag not in {"meta"}:
            self.open.append(tag)
        if values.get("class") == "bar":
            self.bars.append(0.0)
        width = re.match(r"width:([\d.]+)%", values.get("style") or "")
        if width:
            self.bars[-1] += float(width.group(1))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_a_full_bar_per_rank_and_loads_nothing():
    made = tkv.plan(
        model(gqa(4) + gqa(2, window=512) + state(2, 100_000)),
        model(gqa(1), "draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="8GiB", host_cache_size="1GiB", max_seq_len=4096, max_batch_size=4
        ),
        mapping=tkv.Mapping(pp_size=2),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=4),
    )
    page = Page()
    page.feed(plan_html(made))
    assert (page.open, page.loads) == ([], [])
    assert page.bars == pytest.approx([100.0] * 4, abs=1e-3)


def test_names_in_the_page_are_escaped():
    layers = model(gqa(2))
    target = tkv.ModelGeometry(layers=layers.layers, name="<b>&</b>")
    config = tkv.KvCacheConfig(max_gpu_total_bytes=GIB, max_seq_len=4096)
    text = plan_html(tkv.plan(target, config=config))
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in text


def test_the_page_is_written_beside_the_other_output(run: Run, tmp_path: Path):
    file = tmp_path / "plan.html"
    status, out, _ = run("--gpu-memory", "40GiB", "--html", str(file), "--json")
    assert status == 0
    assert json.loads(out)["num_blocks"] == 9929
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "9,929" in text

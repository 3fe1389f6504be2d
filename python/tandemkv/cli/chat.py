"""`tandemkv chat`: talk to a small model whose KV is in tandemkv's pools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from tandemkv.integrations.engine.smollm2 import load_smollm2, model_folder

SMOLLM2_LAYERS = 30


@click.command("chat")
@click.option("--prompt", "prompts", multiple=True, help="Say this, and end; may be repeated.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Most tokens of an answer.",
)
@click.option(
    "--draft-layers",
    type=click.IntRange(0, SMOLLM2_LAYERS),
    default=28,
    show_default=True,
    help="First layers of the model that draft; 0: no drafts.",
)
@click.option(
    "--draft-len",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    help="Tokens to guess in a step.",
)
@click.option(
    "--memory",
    default="512MiB",
    show_default=True,
    metavar="SIZE",
    help="Memory for the KV of target and draft.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the turns as JSON, when all are over.")
def chat(
    *,
    prompts: tuple[str, ...],
    max_new_tokens: int,
    draft_layers: int,
    draft_len: int,
    memory: str,
    as_json: bool,
) -> None:
    """Talk to SmolLM2-135M on the CPU, its first layers drafting for all of them.

    Lines of standard input are what you say. Each turn reuses the KV of the turns before it. The
    model comes in a package of its own; without it, the error says how to install it.
    """
    model_folder()  # what is missing is said before anything is loaded
    os.environ.setdefault("TQDM_DISABLE", "1")
    model, tokenizer = load_smollm2()
    from tandemkv.integrations.engine.serve import build  # noqa: PLC0415 (needs torch)

    engine = build(
        model,
        draft_layers=draft_layers,
        draft_len=draft_len,
        memory=memory,
        max_seq_len=4096,
        max_batch_size=1,
        eos_token_ids=[tokenizer.eos_token_id],
    )
    turns = converse(engine, tokenizer, prompts or _lines(), max_new_tokens, show=not as_json)
    if as_json:
        click.echo(json.dumps({"turns": turns}, indent=2))


def converse(
    engine: Any, tokenizer: Any, said: Iterable[str], max_new_tokens: int, *, show: bool = True
) -> list[dict[str, Any]]:
    """Answer every text of `said` in turn, and return what each turn took.

    Args:
        engine: an `Engine` with no other requests.
        tokenizer: the model's.
        said: what the user says.
        max_new_tokens: most tokens of an answer.
        show: whether to print answers as they come, and each turn's report on standard error.
    """
    from tandemkv.integrations.engine.engine import Request  # noqa: PLC0415 (needs torch)
    from tandemkv.integrations.engine.serve import chat_tokens  # noqa: PLC0415

    messages: list[dict[str, str]] = []
    turns: list[dict[str, Any]] = []
    before = (0, 0)
    for turn, text in enumerate(said):
        messages.append({"role": "user", "content": text})
        request = Request(turn, chat_tokens(tokenizer, messages), max_new_tokens)
        shown = ""
        for output in engine.stream([request]):
            answer = tokenizer.decode(output.request.generated, skip_special_tokens=True)
            # A character may be spread over tokens; it is shown when it is whole.
            if not answer.endswith("\ufffd") or output.is_last:
                if show:
                    click.echo(answer[len(shown) :], nl=False)
                shown = answer
        messages.append({"role": "assistant", "content": shown})
        drafted, accepted = engine.stats.drafted_tokens, engine.stats.accepted_tokens
        took = {
            "said": text,
            "answer": shown,
            "prompt_tokens": len(request.prompt),
            "reused_tokens": request.reused[0],
            "new_tokens": len(request.generated),
            "drafted_tokens": drafted - before[0],
            "accepted_draft_tokens": accepted - before[1],
        }
        before = (drafted, accepted)
        turns.append(took)
        if show:
            click.echo()
            click.echo(_report(took), err=True)
    return turns


def _report(took: dict[str, Any]) -> str:
    return (
        f"({took['reused_tokens']} of {took['prompt_tokens']} prompt tokens reused, "
        f"{took['accepted_draft_tokens']} of {took['drafted_tokens']} drafted tokens accepted)"
    )


def _lines() -> Iterator[str]:
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()

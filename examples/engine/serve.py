"""Serve a few requests at a time on SmolLM2, drafting with its own first layers.

Run it with `python examples/engine/serve.py`; it needs the model's package, see `smollm2.py`.
Words on the command line are the requests; without any, a few are built in.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tandemkv as tkv
from tandemkv.integrations.engine.drafting import ModelDrafter, first_layers
from tandemkv.integrations.engine.engine import Engine, Request
from tandemkv.integrations.engine.smollm2 import load_smollm2
from tandemkv.integrations.transformers import geometry_of

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
)


def build(
    model: Any,
    *,
    draft_layers: int = 28,
    draft_len: int = 3,
    memory: int | str = "512MiB",
    host_memory: int | str = 0,
    max_seq_len: int = 2048,
    max_batch_size: int = 16,
    tokens_per_block: int = 16,
    eos_token_ids: Sequence[int] = (),
    step_tokens: int = 256,
) -> Engine:
    """Return an engine for a model of the Llama kind.

    Args:
        model: the target.
        draft_layers: first layers that draft; 0: no drafts.
        draft_len: most tokens to guess.
        memory: device bytes of both roles, as in `KvCacheConfig`.
        host_memory: host bytes of both roles, to which pages go that the device has no room for.
        max_seq_len: longest request.
        max_batch_size: most requests at a time.
        tokens_per_block: tokens of a page.
        eos_token_ids: tokens that end a request.
        step_tokens: most tokens that a step runs.
    """
    draft = first_layers(model, draft_layers) if draft_layers else None
    speculative = tkv.SpeculativeConfig(mode="draft_target_one_model", max_draft_len=draft_len)
    plan = tkv.plan(
        geometry_of(model),
        None if draft is None else geometry_of(draft, role="draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=memory,
            host_cache_size=host_memory,
            tokens_per_block=tokens_per_block,
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
        ),
        speculative=None if draft is None else speculative,
    )
    managers = tkv.build_managers(plan, backend="torch")
    return Engine(
        model,
        managers,
        drafter=None if draft is None else ModelDrafter(draft, managers),
        draft_len=draft_len if draft is not None else 0,
        eos_token_ids=eos_token_ids,
        step_tokens=step_tokens,
    )


def chat_tokens(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """Return the tokens of a conversation, ready for the model's next answer."""
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def main(questions: Sequence[str]) -> None:
    """Serve the questions and report."""
    model, tokenizer = load_smollm2()
    engine = build(model, eos_token_ids=[tokenizer.eos_token_id])
    prompts = [chat_tokens(tokenizer, [{"role": "user", "content": text}]) for text in questions]
    requests = [Request(text, tokens, 60) for text, tokens in zip(questions, prompts, strict=True)]
    for output in engine.stream(requests):
        if output.is_last:
            answer = tokenizer.decode(output.request.generated, skip_special_tokens=True)
            print(f"{output.request.name}\n  {answer}")
    stats = engine.stats
    print(
        f"{stats.steps} steps, {stats.reused_tokens} of {stats.prompt_tokens} prompt tokens "
        f"reused, {stats.acceptance_rate:.0%} of {stats.drafted_tokens} drafted tokens accepted"
    )


if __name__ == "__main__":
    main(sys.argv[1:] or QUESTIONS)

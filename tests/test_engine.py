"""The example engine says what the model says alone: token for token, however it is served."""

from __future__ import annotations

import math
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from paged_models import VOCAB, assert_empty, make_draft, make_managers, make_model

import tandemkv as tkv
from tandemkv.integrations.engine import attention
from tandemkv.integrations.engine.attention import paged_attention
from tandemkv.integrations.engine.drafting import (
    ModelDrafter,
    NoDrafter,
    PromptLookup,
    first_layers,
)
from tandemkv.integrations.engine.engine import Engine, EngineError, Request
from tandemkv.integrations.engine.runner import ModelRunner, Run
from tandemkv.integrations.transformers import PagedCacheError, geometry_of

NEW = 12
_models: dict[str, Any] = {}


def model_of(name: str) -> Any:
    if name not in _models:
        _models[name] = make_model(name, num_layers=3 if name == "llama" else None)
    return _models[name]


def random_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (count,), generator=generator).tolist()


def make_requests(count: int, *, seed: int = 0) -> list[Request]:
    """Return requests of mixed lengths, of which every second begins with the same 20 tokens."""
    system = random_tokens(20, seed)
    requests = []
    for number in range(count):
        own = random_tokens(3 + 7 * number % 31, 100 * seed + number + 1)
        prompt = system + own if number % 2 else own
        requests.append(Request(f"{seed}-{number}", prompt, NEW - number % 3))
    return requests


def alone(model: Any, request: Request) -> list[int]:
    """Return what transformers generates on its own cache for the same prompt."""
    ids = torch.tensor([request.prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
    )
    return output[0, len(request.prompt) :].tolist()


def assert_served(engine: Engine, model: Any, requests: list[Request]) -> None:
    assert engine.serve(requests) == [alone(model, request) for request in requests]
    assert all(request.is_done for request in requests)


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "deepseek_v3", "mistral_window", "gemma3", "gpt_oss"]
)
@pytest.mark.parametrize("tokens_per_block", [1, 16, 64])
def test_without_drafts(name: str, tokens_per_block: int) -> None:
    model = model_of(name)
    managers = make_managers(model, tokens_per_block=tokens_per_block, max_tokens=2048)
    engine = Engine(model, managers, step_tokens=40)
    assert_served(engine, model, make_requests(7))
    # The shared 20 tokens were computed once per block that was full when the next one came.
    assert engine.stats.reused_tokens >= (0 if tokens_per_block == 64 else 16)
    assert_empty(managers)


@pytest.mark.parametrize("draft_len", range(1, 9))
def test_drafts_of_a_model(draft_len: int) -> None:
    model = model_of("llama")
    draft = make_draft(model, noise=0.01)
    managers = make_managers(
        model, draft, tokens_per_block=(1, 16, 64)[draft_len % 3], max_draft_len=draft_len
    )
    drafter = ModelDrafter(draft, managers)
    engine = Engine(model, managers, drafter=drafter, draft_len=draft_len, step_tokens=40)
    assert_served(engine, model, make_requests(5))
    # Some guesses were right and some were wrong, or rewinding was not tried.
    assert 0 < engine.stats.acceptance_rate < 1
    assert engine.stats.accept_length > 1
    assert managers.ledger.stats()["target_only_hits"] == 0
    assert_empty(managers)


def test_drafts_of_the_first_layers() -> None:
    model = model_of("llama")
    draft = first_layers(model, 2)
    assert draft.base_model.layers[1] is model.base_model.layers[1]
    managers = make_managers(model, draft, max_draft_len=3)
    engine = Engine(model, managers, drafter=ModelDrafter(draft, managers), draft_len=3)
    assert_served(engine, model, make_requests(5))
    assert engine.stats.drafted_tokens
    with pytest.raises(PagedCacheError, match=r"first_layers\(4\): the model has 3 layers"):
        first_layers(model, 4)


def test_all_layers_as_the_draft_are_always_right() -> None:
    model = model_of("llama")
    managers = make_managers(model, model, max_draft_len=4)
    engine = Engine(model, managers, drafter=ModelDrafter(model, managers), draft_len=4)
    requests = make_requests(5)
    assert_served(engine, model, requests)
    assert engine.stats.acceptance_rate == 1
    # The second time the draft reads its KV from pages that were reused.
    again = [Request(f"again {r.name}", r.prompt, r.max_new_tokens) for r in requests]
    assert_served(engine, model, again)
    assert engine.stats.acceptance_rate == 1
    assert all(request.reused == [len(request.prompt) - 1] for request in again)


def test_drafts_from_the_prompt() -> None:
    model = model_of("llama")
    plan = tkv.plan(
        geometry_of(model),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes="16MiB", tokens_per_block=16, max_batch_size=8, max_seq_len=256
        ),
        speculative=tkv.SpeculativeConfig(mode="ngram", max_draft_len=4),
    )
    managers = tkv.build_managers(plan, backend="torch")
    engine = Engine(model, managers, drafter=PromptLookup(1), draft_len=4)
    requests = [Request("repeats", random_tokens(5, 3) * 6, 40), *make_requests(3)]
    assert_served(engine, model, requests)
    assert engine.stats.drafted_tokens
    assert_empty(managers)


@pytest.mark.parametrize("with_draft", [False, True])
def test_preempted_and_readmitted(with_draft: bool) -> None:
    """In a pool of the smallest size that holds the longest request, all are served in turn."""
    model = model_of("llama")
    draft = make_draft(model, noise=0.01) if with_draft else None
    draft_len = 2 if with_draft else 0
    requests = make_requests(6)
    # The last token is never written; a step holds room for its drafts, and the plan for one less.
    extra = draft_len - 1 if with_draft else 0
    longest = max(request.max_total for request in requests) - 1 + draft_len + extra
    blocks = -(-longest // 4)
    sizes = {"tokens_per_block": 4, "max_draft_len": draft_len or 1}
    managers = make_managers(model, draft, max_tokens=blocks * 4, **sizes)
    drafter = None if draft is None else ModelDrafter(draft, managers)
    engine = Engine(model, managers, drafter=drafter, draft_len=draft_len, step_tokens=24)
    assert_served(engine, model, requests)
    assert engine.stats.preemptions
    assert any(len(request.reused) > 1 for request in requests)
    assert_empty(managers)
    small = make_managers(model, draft, max_tokens=(blocks - 1) * 4, **sizes)
    with pytest.raises(EngineError, match="never_fits"):
        Engine(model, small, step_tokens=24).serve(make_requests(6))


def test_a_second_turn_computes_only_what_is_new() -> None:
    model = model_of("qwen3")
    managers = make_managers(model)
    engine = Engine(model, managers)
    first = Request("first", random_tokens(30, 1), NEW)
    engine.serve([first])
    ran = engine.target.tokens
    assert ran == 30 + NEW - 1
    second = Request("second", first.tokens + random_tokens(6, 2), NEW)
    assert_served(engine, model, [second])
    assert second.reused == [30 + NEW - 1]
    assert engine.target.tokens - ran == 1 + 6 + NEW - 1


def test_streams_in_order_and_ends_at_an_end_token() -> None:
    model = model_of("llama")
    request = Request("whole", random_tokens(9, 4), NEW)
    said = alone(model, request)
    end = said[5]
    count = said.index(end) + 1
    managers = make_managers(model, make_draft(model), max_draft_len=3)
    draft = make_draft(model, noise=0.0)
    drafter = ModelDrafter(draft, managers)
    engine = Engine(model, managers, drafter=drafter, draft_len=3, eos_token_ids={end})
    outputs = list(engine.stream([request]))
    assert [token for output in outputs for token in output.tokens] == said[:count]
    assert [output.is_last for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert max(len(output.tokens) for output in outputs) > 1
    assert_empty(managers)


def test_logits_are_those_of_the_own_cache() -> None:
    model = model_of("llama")
    managers = make_managers(model, tokens_per_block=4)
    prompts = [random_tokens(11, 1), random_tokens(6, 2)]
    batch = tkv.Batch(["a", "b"], chunk_lens=[11, 6], prompts=prompts, max_total_tokens=[20, 20])
    assert managers.prepare_resources(batch).all()
    runner = ModelRunner(model, managers, managers.target)
    logits = runner.run(
        [Run("a", 0, prompts[0], num_logits=11), Run("b", 0, prompts[1], num_logits=2)]
    )
    with torch.no_grad():
        for mine, prompt in zip(logits, prompts, strict=True):
            theirs = model(torch.tensor([prompt])).logits[0, -len(mine) :]
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("sinks", [None, (0.5, -1.0, 2.0, 0.0)])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_paged_attention(window: int | None, sinks: tuple[float, ...] | None) -> None:
    """Against the definition, element by element."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = [3, 1, 4], [5, 7, 4]
    q = torch.randn(1, 4, sum(queries), 8, generator=generator)
    k = torch.randn(1, 2, sum(keys), 8, generator=generator)
    v = torch.randn(1, 2, sum(keys), 8, generator=generator)
    output, _ = paged_attention(
        None, q, k, v, None,
        scaling=0.5,
        sliding_window=window,
        s_aux=None if sinks is None else torch.tensor(sinks),
        cu_seq_lens_q=torch.tensor([0, 3, 4, 8]),
        cu_seq_lens_k=torch.tensor([0, 5, 12, 16]),
    )  # fmt: skip
    token = 0
    for count, length, base in zip(queries, keys, (0, 5, 12), strict=True):
        for item in range(count):
            position = length - count + item
            first = 0 if window is None else max(0, position + 1 - window)
            seen = slice(base + first, base + position + 1)
            for head in range(4):
                scores = (k[0, head // 2, seen] @ q[0, head, token]) * 0.5
                weights = scores.exp() / (
                    scores.exp().sum() + (0 if sinks is None else math.exp(sinks[head]))
                )
                expected = weights @ v[0, head // 2, seen]
                torch.testing.assert_close(output[0, token, head], expected, rtol=0, atol=1e-5)
            token += 1


def test_what_cannot_be_served_is_refused() -> None:
    model = model_of("llama")
    managers = make_managers(model)
    engine = Engine(model, managers)
    with pytest.raises(EngineError, match="can come to 260 tokens; max_seq_len is 256"):
        engine.submit(Request("long", random_tokens(10, 1), 250))
    with pytest.raises(EngineError, match="no prompt"):
        engine.submit(Request("empty", [], 5))
    with pytest.raises(EngineError, match="draft_len is 2; the plan has max_draft_len 0"):
        Engine(model, managers, drafter=NoDrafter(), draft_len=2)
    with pytest.raises(PagedCacheError, match="the plan has no draft"):
        ModelDrafter(model, managers)
    with pytest.raises(PagedCacheError, match="'softcap'"):
        paged_attention(model, *(torch.zeros(1, 1, 1, 1),) * 3, None, softcap=30.0)
    with pytest.raises(PagedCacheError, match="under a ModelRunner only"):
        paged_attention(model, *(torch.zeros(1, 1, 1, 1),) * 3, None)


def test_the_package_holds_the_files_of_the_example() -> None:
    root = Path(__file__).parents[1]
    sources = {path.name: path for path in (root / "examples" / "engine").glob("*.py")}
    links = {
        path.name: path for path in (root / "python/tandemkv/integrations/engine").glob("*.py")
    }
    assert links.keys() == sources.keys()
    for name, link in links.items():
        # A link for each file: a link to a folder is dropped from the wheel.
        assert link.is_symlink()
        assert link.resolve() == sources[name]


def fake_flash_attention(calls: list[dict[str, Any]]) -> ModuleType:
    """Return a module with the arguments of flash-attn 2, computed by their definition."""

    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> torch.Tensor:
        calls.append({"max": (max_seqlen_q, max_seqlen_k), "window": window_size})
        assert causal
        assert not dropout_p
        bounds = zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)
        output, (first_q, first_k) = torch.zeros_like(q), next(bounds)
        for end_q, end_k in bounds:
            for token in range(first_q, end_q):
                last = end_k - end_q + token  # aligned at the ends
                first = first_k if window_size[0] < 0 else max(first_k, last - window_size[0])
                keys, values = (x[first : last + 1].repeat_interleave(2, dim=1) for x in (k, v))
                scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
                weights = (torch.einsum("hd,khd->hk", q[token], keys) * scale).softmax(-1)
                output[token] = torch.einsum("hk,khd->hd", weights, values)
            first_q, first_k = end_q, end_k
        return output

    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func
    module.__spec__ = ModuleSpec("flash_attn", None)
    return module


@pytest.mark.parametrize("window", [None, 3])
def test_flash_attention_where_it_is_installed(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 8, 16, generator=generator).bfloat16()
    k, v = (torch.randn(1, 2, 16, 16, generator=generator).bfloat16() for _ in range(2))
    bounds = {
        "cu_seq_lens_q": torch.tensor([0, 3, 4, 8]),
        "cu_seq_lens_k": torch.tensor([0, 5, 12, 16]),
    }

    def attend(**options: Any) -> torch.Tensor:
        return paged_attention(None, q, k, v, None, sliding_window=window, **bounds, **options)[0]

    expected = attend(), attend(scaling=0.5)
    monkeypatch.setattr(attention, "_is_on_gpu", lambda _: True)
    assert torch.equal(attend(), expected[0])  # not installed: SDPA
    monkeypatch.setitem(sys.modules, "flash_attn", fake_flash_attention(calls))
    for mine, theirs in zip((attend(), attend(scaling=0.5)), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)
    assert calls == [{"max": (4, 7), "window": (-1, -1) if window is None else (2, 0)}] * 2
    # What it cannot do is left to SDPA: sinks, keys longer than values, float32, the CPU.
    attend(s_aux=torch.zeros(4))
    assert attention.flash_attention_of(q, v[..., :8]) is None
    assert attention.flash_attention_of(q.float(), v.float()) is None
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "flash_attn", fake_flash_attention(calls))
    attend()
    assert len(calls) == 2

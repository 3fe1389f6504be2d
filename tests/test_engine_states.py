"""The example engine with recurrent states: drafts are taken back, states are found again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from paged_models import STATE_CONFIGS, STATE_LAYERS, assert_empty, make_draft, make_managers
from test_engine import NEW, alone, assert_served, make_requests, model_of, random_tokens

import tandemkv as tkv
from tandemkv.integrations.engine.drafting import ModelDrafter, PromptLookup, first_layers
from tandemkv.integrations.engine.engine import Engine, Request
from tandemkv.integrations.engine.runner import ModelRunner, Run
from tandemkv.integrations.transformers import geometry_of

FAMILIES = ["bamba", "falcon_h1", "nemotron_h", "qwen3_next"]


@pytest.mark.parametrize("name", STATE_CONFIGS)
@pytest.mark.parametrize("tokens_per_block", [1, 16, 64])
def test_without_drafts(name: str, tokens_per_block: int) -> None:
    model = model_of(name)
    managers = make_managers(model, tokens_per_block=tokens_per_block, max_tokens=2048)
    engine = Engine(model, managers, step_tokens=40)
    assert_served(engine, model, make_requests(7))
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("draft_len", [1, 3, 8])
def test_drafts_of_a_model(name: str, draft_len: int) -> None:
    model = model_of(name)
    draft = make_draft(model, noise=0.01)
    managers = make_managers(
        model, draft, tokens_per_block=(1, 16, 64)[draft_len % 3], max_draft_len=draft_len
    )
    drafter = ModelDrafter(draft, managers)
    engine = Engine(model, managers, drafter=drafter, draft_len=draft_len, step_tokens=40)
    assert_served(engine, model, make_requests(5))
    # Some guesses were right and some were wrong, or going back was not tried.
    assert 0 < engine.stats.acceptance_rate < 1
    assert engine.stats.accept_length > 1
    assert_empty(managers)


@pytest.mark.parametrize("name", STATE_CONFIGS)
def test_drafts_of_the_first_layers(name: str) -> None:
    model = model_of(name)
    draft = first_layers(model, STATE_LAYERS[name] - 1)
    managers = make_managers(model, draft, max_draft_len=2)
    engine = Engine(model, managers, drafter=ModelDrafter(draft, managers), draft_len=2)
    assert_served(engine, model, make_requests(3))
    assert 0 < engine.stats.acceptance_rate < 1
    assert_empty(managers)


def test_drafts_from_the_prompt() -> None:
    model = model_of("falcon_h1")
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
    assert 0 < engine.stats.acceptance_rate < 1
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("with_draft", [False, True])
def test_preempted_and_readmitted(name: str, with_draft: bool) -> None:
    """In a pool that holds the longest request and no more, all are served in turn."""
    model = model_of(name)
    draft = make_draft(model, noise=0.01) if with_draft else None
    draft_len = 2 if with_draft else 0
    requests = make_requests(5)
    # The last token is never written; a step holds room for its drafts, and the plan for one less.
    extra = draft_len - 1 if with_draft else 0
    longest = max(request.max_total for request in requests) - 1 + draft_len + extra
    blocks = -(-longest // 4)
    managers = make_managers(
        model,
        draft,
        max_tokens=blocks * 4,
        tokens_per_block=4,
        max_draft_len=draft_len or 1,
        state_snapshot_interval=8,
    )
    drafter = None if draft is None else ModelDrafter(draft, managers)
    engine = Engine(model, managers, drafter=drafter, draft_len=draft_len, step_tokens=24)
    assert_served(engine, model, requests)
    assert engine.stats.preemptions
    # A request that was preempted starts from a snapshot of its own, where one was left.
    if not with_draft:
        assert any(len(request.reused) > 1 and request.reused[-1] for request in requests)
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
def test_preempted_and_resumed_where_it_was(name: str) -> None:
    model = model_of(name)
    managers = make_managers(model)
    engine = Engine(model, managers)
    requests = make_requests(2)
    for request in requests:
        engine.submit(request)
    for _step in range(5):
        engine.step()
    known = len(requests[1].tokens)
    engine._preempt()
    assert [request.preemptions for request in requests] == [0, 1]
    while engine.waiting or engine.running:
        engine.step()
    # Only the last token had not run.
    assert requests[1].reused[1:] == [known - 1]
    for request in requests:
        assert request.generated == alone(model, request)
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_state_at_a_time(name: str) -> None:
    """With one state in the pool, requests are served one after the other."""
    model = model_of(name)
    managers = make_managers(model, max_batch_size=1)
    assert managers.target.pools[-1].num_pages == 2
    engine = Engine(model, managers, step_tokens=40)
    assert_served(engine, model, make_requests(3))
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("with_draft", [False, True])
def test_a_second_turn_computes_only_what_is_new(name: str, with_draft: bool) -> None:
    model = model_of(name)
    draft = make_draft(model, noise=0.01) if with_draft else None
    managers = make_managers(model, draft, max_draft_len=2)
    drafter = None if draft is None else ModelDrafter(draft, managers)
    engine = Engine(model, managers, drafter=drafter, draft_len=2 if with_draft else 0)
    first = Request("first", random_tokens(30, 1), NEW)
    engine.serve([first])
    assert first.generated == alone(model, first)
    ran = engine.target.tokens
    second = Request("second", first.tokens + random_tokens(6, 2), NEW)
    assert_served(engine, model, [second])
    assert second.reused == [30 + NEW - 1]
    if not with_draft:
        assert engine.target.tokens - ran == 1 + 6 + NEW - 1


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_share_the_snapshots_on_their_way(name: str) -> None:
    model = model_of(name)
    managers = make_managers(
        model, tokens_per_block=4, state_snapshot_interval=8, cached_endpoints=8
    )
    engine = Engine(model, managers, step_tokens=40)
    system = random_tokens(20, 1)
    requests = [Request(f"{n}", system + random_tokens(5, 2 + n), NEW) for n in range(3)]
    for request in requests:
        assert_served(engine, model, [request])
    # The last snapshot inside the common 20 tokens is that after 16.
    assert [request.reused for request in requests] == [[0], [16], [16]]
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_own_cache(name: str) -> None:
    model = model_of(name)
    managers = make_managers(model, tokens_per_block=4)
    prompts = [random_tokens(11, 1), random_tokens(6, 2), random_tokens(11, 3)]
    batch = tkv.Batch(
        ["a", "b", "c"], chunk_lens=[11, 6, 11], prompts=prompts, max_total_tokens=[20] * 3
    )
    assert managers.prepare_resources(batch).all()
    runner = ModelRunner(model, managers, managers.target)
    runs = [Run(name, 0, prompt) for name, prompt in zip("abc", prompts, strict=True)]
    logits = runner.run(
        [replace(run, num_logits=n) for run, n in zip(runs, (5, 2, 5), strict=True)]
    )
    with torch.no_grad():
        for mine, prompt in zip(logits, prompts, strict=True):
            theirs = model(torch.tensor([prompt])).logits[0, -len(mine) :]
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
    # Each goes back to another length, and runs the rest again.
    ends = {"a": 7, "b": 6, "c": 9}
    runner.settle(ends)
    rest = [
        Run(run.request_id, ends[run.request_id], run.tokens[ends[run.request_id] :])
        for run in (runs[0], runs[2])
    ]
    for mine, theirs in zip(runner.run(rest), (logits[0], logits[2]), strict=True):
        torch.testing.assert_close(mine[-1], theirs[-1], rtol=0, atol=1e-4)

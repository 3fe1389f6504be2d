"""Generation on tandemkv's pages equals generation on transformers' own cache.

The oracle is transformers' `DynamicCache`: greedy tokens must be equal, logits within 1e-4. Random
models give nearly equal tokens some chance of passing by luck, so logits are always compared too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from paged_models import (
    CONFIGS,
    assert_empty,
    make_draft,
    make_managers,
    make_model,
    make_prompts,
)

import tandemkv as tkv
from tandemkv.integrations.transformers import (
    KvStore,
    OutOfPagesError,
    PagedBatch,
    PagedCacheError,
    PagedGenerator,
    geometry_of,
)

NEW = 14
GREEDY = {
    "max_new_tokens": NEW,
    "do_sample": False,
    "return_dict_in_generate": True,
    "output_logits": True,
}
_models: dict[str, Any] = {}


def model_of(name: str) -> Any:
    if name not in _models:
        _models[name] = make_model(name)
    return _models[name]


def assert_equal(output: Any, expected: Any) -> None:
    assert torch.equal(output.sequences, expected.sequences)
    assert len(output.logits) == len(expected.logits)
    for mine, theirs in zip(output.logits, expected.logits, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tokens_per_block", [1, 16, 64])
@pytest.mark.parametrize("lens", [(21,), (21, 5, 33)], ids=["single", "batched"])
def test_tokens_and_logits_are_those_of_the_own_cache(
    name: str, tokens_per_block: int, lens: tuple[int, ...]
) -> None:
    model = model_of(name)
    ids, mask = make_prompts(*lens)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model, tokens_per_block=tokens_per_block)
    generator = PagedGenerator(model, managers)
    assert_equal(generator.generate(ids, mask, **GREEDY), expected)
    assert generator.report is not None
    assert generator.report.reused_tokens == 0
    # Once more, on the pages that the first run left: only the last prompt token is computed.
    assert_equal(generator.generate(ids, mask, **GREEDY), expected)
    assert generator.report.reused_tokens == sum(length - 1 for length in lens)
    assert generator.report.computed_tokens == len(lens) * NEW
    assert_empty(managers)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("reuse", [True, False])
def test_a_second_turn_computes_only_what_is_new(name: str, reuse: bool) -> None:
    model = model_of(name)
    managers = make_managers(model, reuse=reuse)
    generator = PagedGenerator(model, managers)
    ids, mask = make_prompts(19)
    first = generator.generate(ids, mask, **GREEDY).sequences
    question, _ = make_prompts(9, seed=2)
    second = torch.cat((first, question), dim=1)
    expected = model.generate(second, attention_mask=torch.ones_like(second), **GREEDY)
    assert_equal(generator.generate(second, **GREEDY), expected)
    assert generator.report is not None
    # Of the first turn the last token was sampled and never run.
    ran = first.shape[1] - 1
    new = second.shape[1] - (ran if reuse else 0)
    assert generator.report.reused_tokens == (ran if reuse else 0)
    assert generator.report.computed_tokens == new + NEW - 1
    assert_empty(managers)


# Beams of the random Gemma never change places.
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"gemma3"}))
@pytest.mark.parametrize("tokens_per_block", [1, 16])
def test_beam_search(name: str, tokens_per_block: int) -> None:
    model = model_of(name)
    ids, mask = make_prompts(17, 6)
    expected = model.generate(ids, attention_mask=mask, num_beams=3, **GREEDY)
    managers = make_managers(model, tokens_per_block=tokens_per_block)
    output = PagedGenerator(model, managers).generate(ids, mask, num_beams=3, **GREEDY)
    assert_equal(output, expected)
    assert torch.equal(output.beam_indices, expected.beam_indices)
    # The oracle must have moved beams to other rows, or nothing was shown.
    assert len(set(expected.beam_indices[0].tolist())) > 1
    assert_empty(managers)


def test_sampled_rows_of_one_prompt() -> None:
    model = model_of("llama")
    ids, mask = make_prompts(13, 8)
    options = {"max_new_tokens": NEW, "do_sample": True, "num_return_sequences": 3}
    torch.manual_seed(3)
    expected = model.generate(ids, attention_mask=mask, **options)
    managers = make_managers(model)
    torch.manual_seed(3)
    assert torch.equal(PagedGenerator(model, managers).generate(ids, mask, **options), expected)
    assert_empty(managers)


@pytest.mark.parametrize(
    ("name", "tokens_per_block", "draft_len"),
    [
        *(("llama", (1, 16, 64)[draft_len % 3], draft_len) for draft_len in range(1, 9)),
        ("qwen3", 64, 3),
        ("mistral_window", 4, 4),
        ("gemma3", 16, 3),
        ("gpt_oss", 4, 2),
        ("deepseek_v3", 4, 2),
        ("deepseek_v3", 16, 5),
    ],
)
def test_assisted_generation(name: str, tokens_per_block: int, draft_len: int) -> None:
    model = model_of(name)
    draft = make_draft(model)
    draft.generation_config.num_assistant_tokens = draft_len
    managers = make_managers(
        model, draft, tokens_per_block=tokens_per_block, max_draft_len=draft_len
    )
    generator = PagedGenerator(model, managers, assistant_model=draft)
    ids, mask = make_prompts(18)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    assert_equal(generator.generate(ids, **GREEDY), expected)
    report = generator.report
    assert report is not None
    assert report.tokens_per_forward > 1
    assert report.rewound_tokens
    # The second turn finds the KV of both roles.
    second = torch.cat((expected.sequences, make_prompts(4, seed=5)[0]), dim=1)
    expected = model.generate(second, attention_mask=torch.ones_like(second), **GREEDY)
    assert_equal(generator.generate(second, **GREEDY), expected)
    assert generator.report is not None
    # The last token never ran; at the end, without room for drafts, neither did the draft.
    assert 18 + NEW - 4 <= generator.report.reused_tokens < 18 + NEW
    assert_empty(managers)


def test_assisted_generation_where_a_block_depends_on_the_next_token() -> None:
    """A plan with lookahead publishes a block when the token after it is known, and reuses less."""
    model = model_of("llama")
    draft = make_draft(model)
    draft.generation_config.num_assistant_tokens = 3
    managers = make_managers(model, draft, tokens_per_block=4, max_draft_len=3, mode="two_model")
    generator = PagedGenerator(model, managers, assistant_model=draft)
    ids, _ = make_prompts(18)
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    for reused in (0, 17):
        assert_equal(generator.generate(ids, **GREEDY), expected)
        assert generator.report is not None
        assert generator.report.reused_tokens == reused
    other = ids.clone()
    other[0, 12] += 1  # the block before it was told apart by this token
    expected = model.generate(other, attention_mask=torch.ones_like(ids), **GREEDY)
    assert_equal(generator.generate(other, **GREEDY), expected)
    assert generator.report is not None
    assert generator.report.reused_tokens == 11
    assert_empty(managers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = make_model("llama").to(dtype)
    ids, mask = make_prompts(21, 12)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model)
    output = PagedGenerator(model, managers).generate(ids, mask, **GREEDY)
    assert torch.equal(output.sequences, expected.sequences)
    for mine, theirs in zip(output.logits, expected.logits, strict=True):
        assert torch.equal(mine, theirs)


def test_the_draft_finds_its_own_kv_on_reused_pages() -> None:
    """The draft's guesses on reused pages are those that it makes alone."""
    model = model_of("llama")
    draft = make_draft(model)
    draft.generation_config.num_assistant_tokens = 4
    ids, _ = make_prompts(40)
    reports = []
    for reuse in (False, True):
        managers = make_managers(model, draft, reuse=reuse, tokens_per_block=8)
        generator = PagedGenerator(model, managers, assistant_model=draft)
        for _turn in range(2):
            generator.generate(ids, **GREEDY)
        assert generator.report is not None
        assert generator.report.reused_tokens == (39 if reuse else 0)
        reports.append(generator.report.forwards)
    assert reports[0] == reports[1]


def test_prompt_lookup() -> None:
    model = model_of("llama")
    ids = make_prompts(9)[0].repeat(1, 4)
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    draft = make_draft(model)
    managers = make_managers(model, draft, max_draft_len=3)
    generator = PagedGenerator(model, managers)
    assert_equal(generator.generate(ids, prompt_lookup_num_tokens=3, **GREEDY), expected)
    assert_empty(managers)


def test_prefill_in_chunks() -> None:
    model = model_of("llama")
    ids, mask = make_prompts(50, 41)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model)
    output = PagedGenerator(model, managers).generate(ids, mask, prefill_chunk_size=7, **GREEDY)
    assert torch.equal(output.sequences, expected.sequences)
    assert_empty(managers)


def test_the_smallest_pool_serves_and_a_smaller_one_refuses() -> None:
    model = model_of("llama")
    ids, mask = make_prompts(21)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    for tokens_per_block in (1, 4, 16):
        # The last token is sampled and never written.
        blocks = -(-(21 + NEW - 1) // tokens_per_block)
        fits, short = (
            make_managers(
                model, tokens_per_block=tokens_per_block, max_tokens=count * tokens_per_block
            )
            for count in (blocks, blocks - 1)
        )
        assert fits.target.num_pages == blocks + 1
        generator = PagedGenerator(model, fits)
        assert_equal(generator.generate(ids, mask, **GREEDY), expected)
        # A stranger takes the pages; then the first prompt is computed again.
        generator.generate(make_prompts(21, seed=9)[0], **GREEDY)
        assert_equal(generator.generate(ids, mask, **GREEDY), expected)
        assert_empty(fits)
        with pytest.raises(OutOfPagesError) as error:
            PagedGenerator(model, short).generate(ids, mask, **GREEDY)
        assert error.value.reason == "never_fits"
        assert_empty(short)


def test_a_batch_that_runs_out_of_pages_ends_and_leaves_nothing() -> None:
    model = model_of("llama")
    ids, mask = make_prompts(16, 16)
    managers = make_managers(model, max_tokens=3 * 16)
    with pytest.raises(OutOfPagesError) as error:
        PagedGenerator(model, managers).generate(ids, mask, **GREEDY)
    assert error.value.reason == "no_pages_now"
    assert_empty(managers)
    # One of them alone fits, and is right.
    expected = model.generate(ids[:1], attention_mask=mask[:1], **GREEDY)
    assert_equal(PagedGenerator(model, managers).generate(ids[:1], **GREEDY), expected)


def test_stopped_in_the_middle_and_resumed() -> None:
    """A run that ends early leaves its pages; the rest is generated on them, or on what is left."""
    model = model_of("qwen3")
    ids, mask = make_prompts(30)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model, tokens_per_block=4, max_tokens=44)
    generator = PagedGenerator(model, managers)
    half = generator.generate(ids, mask, **{**GREEDY, "max_new_tokens": 6}).sequences
    assert torch.equal(half, expected.sequences[:, :36])
    for stranger in (0, 24):
        if stranger:  # takes some of the pages in between
            generator.generate(make_prompts(stranger, seed=4)[0], max_new_tokens=2, do_sample=False)
        rest = generator.generate(half, **{**GREEDY, "max_new_tokens": NEW - 6})
        assert torch.equal(rest.sequences, expected.sequences)
        assert generator.report is not None
        assert 0 < generator.report.reused_tokens <= 35
        for mine, theirs in zip(rest.logits, expected.logits[6:], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
    assert generator.report.reused_tokens < 35
    assert_empty(managers)


def test_only_equal_salts_share() -> None:
    model = model_of("llama")
    managers = make_managers(model)
    generator = PagedGenerator(model, managers)
    ids, _ = make_prompts(20)
    for cache_salt, share, reused in (
        (None, True, 0),
        ("a", True, 0),
        ("b", True, 0),
        ("a", True, 19),
        (None, True, 19),
        (None, False, 0),
        (None, False, 0),
    ):
        generator.generate(ids, cache_salt=cache_salt, share=share, **GREEDY)
        assert generator.report is not None
        assert generator.report.reused_tokens == reused


@pytest.mark.parametrize("with_draft", [False, True])
def test_the_pools_take_what_the_plan_says(with_draft: bool) -> None:
    model = model_of("llama")
    draft = make_draft(model) if with_draft else None
    managers = make_managers(model, draft)
    for view in managers.views:
        buffer = view.pool.buffer
        assert buffer.untyped_storage().nbytes() == view.device_bytes == view.plan.device_bytes
        keys = view.pool.view(0, "key")
        assert keys.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def test_forwards_without_generate() -> None:
    model = model_of("llama")
    managers = make_managers(model, tokens_per_block=4)
    ids, _ = make_prompts(10)
    with (
        torch.no_grad(),
        PagedBatch(managers, ids.tolist(), model, max_new_tokens=4) as batch,
    ):
        logits = model(ids[:, :6], cache=batch.cache).logits
        more = model(ids[:, 6:], cache=batch.cache).logits
        whole = model(ids).logits
        torch.testing.assert_close(torch.cat((logits, more), 1), whole, rtol=0, atol=1e-4)
        token = whole[:, -1].argmax(-1, keepdim=True)
        follow = model(token, cache=batch.cache).logits
        whole = model(torch.cat((ids, token), 1)).logits
        torch.testing.assert_close(follow[:, -1], whole[:, -1], rtol=0, atol=1e-4)
        assert batch.cache.get_seq_length() == 11
    assert_empty(managers)


def test_rows_are_repeated_and_selected() -> None:
    model = model_of("llama")
    managers = make_managers(model, tokens_per_block=4)
    ids, _ = make_prompts(10, 10)
    nexts = torch.tensor([[5], [6], [7]])
    with (
        torch.no_grad(),
        PagedBatch(managers, ids.tolist(), model, max_new_tokens=4) as batch,
    ):
        model(ids, cache=batch.cache)
        batch.cache.batch_repeat_interleave(2)
        batch.cache.batch_select_indices(torch.tensor([3, 0, 1]))
        logits = model(nexts, cache=batch.cache).logits[:, -1]
        assert batch.cache.batch_size == 3
        whole = model(torch.cat((ids[[1, 0, 0]], nexts), 1)).logits[:, -1]
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-4)
    assert_empty(managers)


def test_what_does_not_fit_is_refused() -> None:
    model = model_of("llama")
    managers = make_managers(model)
    ids, mask = make_prompts(6, 6)
    generator = PagedGenerator(model, managers)
    with pytest.raises(PagedCacheError, match="row 0 of attention_mask"):
        generator.generate(ids, mask.flip(1) * torch.tensor([1, 1, 1, 1, 1, 0]), **GREEDY)
    for prompts in ([], [[3], []]):
        with pytest.raises(PagedCacheError, match="each needs a token"):
            PagedBatch(managers, prompts, model, max_new_tokens=4)
    with pytest.raises(PagedCacheError, match=r"num_kv_heads 1, head_dim 24"):
        PagedGenerator(model_of("qwen3"), managers).generate(ids, mask, **GREEDY)
    with pytest.raises(PagedCacheError, match="the plan has no draft"):
        PagedGenerator(model, managers, assistant_model=make_draft(model)).generate(
            ids[:1], **GREEDY
        )
    with PagedBatch(managers, ids.tolist(), model, max_new_tokens=4) as batch:
        with pytest.raises(PagedCacheError, match="outside a forward"):
            batch.cache.update(torch.zeros(2, 2, 6, 16), torch.zeros(2, 2, 6, 16), 0)
        for refused in (lambda: batch.cache.layers[0].crop(-1), batch.cache.reset):
            with pytest.raises(PagedCacheError):
                refused()
        with torch.no_grad():
            model(ids, cache=batch.cache)
            with pytest.raises(PagedCacheError, match=r"runs 3 tokens at once .* 0 drafts"):
                model(ids[:, :3], cache=batch.cache)
        with pytest.raises(PagedCacheError, match="6 are committed"):
            batch.cache.crop(-1)
    assert_empty(managers)
    plan = tkv.plan(
        geometry_of(model), config=tkv.KvCacheConfig(max_gpu_total_bytes="1MiB", max_seq_len=64)
    )
    view = tkv.build_managers(plan).target
    with pytest.raises(PagedCacheError, match="backend='torch'"):
        KvStore(view)


@pytest.mark.parametrize("name", ["gemma3", "gpt_oss"])
def test_a_window_gives_back_the_pages_behind_it(name: str) -> None:
    model = model_of(name)
    managers = make_managers(model, tokens_per_block=4, reuse=False)
    lifetimes = [item.lifetime[0] for item in managers.limits.classes]
    assert lifetimes == ["full_attention", "sliding_window"]
    ids, _ = make_prompts(40)
    live = []
    with torch.no_grad(), PagedBatch(managers, ids.tolist(), model, max_new_tokens=20) as batch:
        token, text = ids, ids
        for _step in range(16):
            logits = model(token, cache=batch.cache).logits[:, -1]
            whole = model(text).logits[:, -1]
            torch.testing.assert_close(logits, whole, rtol=0, atol=1e-4)
            token = logits.argmax(-1, keepdim=True)
            text = torch.cat((text, token), dim=1)
            live.append([pages["live"] for pages in managers.ledger.stats()["classes"]])
    # 8 tokens lie in at most 3 blocks of 4, and one more token may begin a block.
    assert max(pages[1] for pages in live[2:]) <= 4
    assert live[-1][0] >= 55 // 4
    assert_empty(managers)


@pytest.mark.parametrize("name", ["mistral_window", "gemma3"])
def test_a_plan_may_keep_every_token_of_a_window(name: str) -> None:
    model = model_of(name)
    ids, mask = make_prompts(21, 33)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model, keep_all_tokens=True)
    assert [item.lifetime[0] for item in managers.limits.classes] == ["full_attention"]
    assert_equal(PagedGenerator(model, managers).generate(ids, mask, **GREEDY), expected)
    assert_empty(managers)

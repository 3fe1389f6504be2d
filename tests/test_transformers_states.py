"""Models with recurrent states generate in tandemkv's pools what they generate on their own cache.

The oracle is transformers' `DynamicCache`, as in test_transformers_cache.py.
"""

from __future__ import annotations

import pytest
import torch
from paged_models import (
    STATE_CONFIGS,
    assert_empty,
    make_managers,
    make_model,
    make_prompts,
)
from test_transformers_cache import GREEDY, NEW, assert_equal, model_of
from transformers import AutoModelForCausalLM, Mamba2Config

from tandemkv.integrations.transformers import (
    OutOfPagesError,
    PagedCacheError,
    PagedGenerator,
    StateStore,
)

FAMILIES = ["bamba", "falcon_h1", "nemotron_h", "qwen3_next"]


@pytest.mark.parametrize("name", STATE_CONFIGS)
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
    assert_empty(managers)


@pytest.mark.parametrize("name", STATE_CONFIGS)
@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("lens", [(19,), (19, 19)], ids=["single", "batched"])
def test_a_second_turn_starts_from_the_state_of_the_first(
    name: str, reuse: bool, lens: tuple[int, ...]
) -> None:
    model = model_of(name)
    managers = make_managers(model, reuse=reuse)
    generator = PagedGenerator(model, managers)
    ids, mask = make_prompts(*lens)
    first = generator.generate(ids, mask, **GREEDY).sequences
    question, _ = make_prompts(*(9 for _ in lens), seed=2)
    second = torch.cat((first, question), dim=1)
    expected = model.generate(second, attention_mask=torch.ones_like(second), **GREEDY)
    assert_equal(generator.generate(second, **GREEDY), expected)
    assert generator.report is not None
    # Of the first turn the last token was sampled and never run.
    ran = first.shape[1] - 1 if reuse else 0
    assert generator.report.reused_tokens == ran * len(lens)
    assert generator.report.computed_tokens == (second.shape[1] - ran + NEW - 1) * len(lens)
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_a_batch_start_where_all_their_states_are(name: str) -> None:
    """A state in the middle of a row that starts from nothing is of no use, and does no harm."""
    model = model_of(name)
    ids, _ = make_prompts(20)
    first = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY).sequences
    known = first.shape[1] - 1
    second = torch.cat((first, make_prompts(6, seed=2)[0]), 1)
    short, long = make_prompts(6, seed=2)[0], make_prompts(17, seed=3)[0]
    for start, rows in ((known, [second, short]), (0, [second, long, short])):
        width = second.shape[1]
        padded = [torch.nn.functional.pad(row, (width - row.shape[1], 0)) for row in rows]
        batch = torch.cat(padded)
        mask = (batch != 0).long()
        expected = model.generate(batch, attention_mask=mask, **GREEDY)
        managers = make_managers(model, tokens_per_block=4)
        generator = PagedGenerator(model, managers)
        generator.generate(ids, **GREEDY)
        assert_equal(generator.generate(batch, mask, **GREEDY), expected)
        assert generator.report is not None
        assert generator.report.reused_tokens == known
        assert generator.report.computed_tokens == len(rows) * (width - start + NEW - 1)
        assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
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


@pytest.mark.parametrize("name", FAMILIES)
def test_prefill_in_chunks(name: str) -> None:
    model = model_of(name)
    ids, mask = make_prompts(50, 41)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model)
    output = PagedGenerator(model, managers).generate(ids, mask, prefill_chunk_size=7, **GREEDY)
    assert_equal(output, expected)
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_smallest_pool_serves_and_a_smaller_one_refuses(name: str) -> None:
    model = model_of(name)
    ids, mask = make_prompts(21)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    for tokens_per_block in (1, 4, 16):
        # The last token is sampled and never written.
        blocks = -(-(21 + NEW - 1) // tokens_per_block)
        fits, short = (
            make_managers(
                model,
                tokens_per_block=tokens_per_block,
                max_tokens=count * tokens_per_block,
                max_batch_size=1,
            )
            for count in (blocks, blocks - 1)
        )
        # One state, and the reserved page of each pool.
        assert [pool.num_pages for pool in fits.target.pools] == [blocks + 1, 2]
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


@pytest.mark.parametrize("name", FAMILIES)
def test_stopped_in_the_middle_and_resumed(name: str) -> None:
    """A run that ends early leaves its state; the rest is generated from it, while it is there."""
    model = model_of(name)
    ids, mask = make_prompts(30)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model, tokens_per_block=4, max_tokens=80, max_batch_size=2)
    generator = PagedGenerator(model, managers)
    half = generator.generate(ids, mask, **{**GREEDY, "max_new_tokens": 6}).sequences
    assert torch.equal(half, expected.sequences[:, :36])
    for strangers, reused in ((0, 35), (2, 0)):
        for seed in range(strangers):
            prompt = make_prompts(10, seed=4 + seed)[0]
            generator.generate(prompt, max_new_tokens=2, do_sample=False)
        rest = generator.generate(half, **{**GREEDY, "max_new_tokens": NEW - 6})
        assert torch.equal(rest.sequences, expected.sequences)
        assert generator.report is not None
        assert generator.report.reused_tokens == reused
        for mine, theirs in zip(rest.logits, expected.logits[6:], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
    assert_empty(managers)


@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision(name: str) -> None:
    model = make_model(name).to(torch.bfloat16)
    ids, mask = make_prompts(21, 12)
    expected = model.generate(ids, attention_mask=mask, **GREEDY)
    managers = make_managers(model)
    output = PagedGenerator(model, managers).generate(ids, mask, **GREEDY)
    assert torch.equal(output.sequences, expected.sequences)
    for mine, theirs in zip(output.logits, expected.logits, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pools_take_what_the_plan_says(name: str) -> None:
    managers = make_managers(model_of(name), cached_endpoints=3, state_snapshot_interval=16)
    view = managers.target
    built = [pool.buffer.untyped_storage().nbytes() for pool in view.pools]
    planned = [group.device_bytes for group in view.plan.groups]
    assert built == planned
    assert sum(built) == view.device_bytes - view.plan.unused_bytes
    (states,) = [pool for pool in view.pools if pool.layout.holds_states]
    # Convolutions keep one input less than their kernel is wide; all of the state is 4-byte floats.
    (*_, ssm) = states.layout.names(states.layout.layers[0])
    assert states.view(states.layout.layers[0], ssm).dtype == torch.float32


@pytest.mark.parametrize("name", FAMILIES)
def test_assisted_generation_is_refused(name: str) -> None:
    """Transformers refuses it too: no cache can take back tokens of a recurrent state."""
    model = model_of(name)
    ids, mask = make_prompts(6)
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(ids, attention_mask=mask, assistant_model=model_of(name), **GREEDY)
    managers = make_managers(model, model)
    match = f"assisted generation with '{model.config.model_type}'"
    with pytest.raises(PagedCacheError, match=match):
        PagedGenerator(model, managers, assistant_model=model).generate(ids, **GREEDY)
    with pytest.raises(PagedCacheError, match=match):
        PagedGenerator(model, managers).generate(ids, prompt_lookup_num_tokens=2, **GREEDY)
    assert_empty(managers)


def test_what_does_not_fit_is_refused() -> None:
    model = model_of("bamba")
    mamba = Mamba2Config(
        num_hidden_layers=1, hidden_size=64, num_heads=4, head_dim=32, n_groups=2, state_size=16
    )
    alone = AutoModelForCausalLM.from_config(mamba)
    with pytest.raises(PagedCacheError, match="the target has no layer with attention"):
        PagedGenerator(alone, make_managers(alone)).generate(make_prompts(6)[0], **GREEDY)
    managers = make_managers(model)
    with pytest.raises(PagedCacheError, match=r"has state with .* ssm 4 \* 512 fp32"):
        PagedGenerator(model_of("qwen3_next"), managers).generate(make_prompts(6)[0], **GREEDY)
    states = StateStore(managers.target, model)
    held = states.read(0, torch.tensor([1]))
    with pytest.raises(PagedCacheError, match=r"its pool holds torch\.float32 and torch\.float32"):
        states.write(0, torch.tensor([1]), held._replace(recurrent=held.recurrent.double()))

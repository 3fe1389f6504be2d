"""The comparisons of the other tests see a single fault: each page, table entry, rewind, in turn.

A scenario is run as it is, which must pass, and then once per fault, which must fail: tokens or
logits differ from transformers' own cache, something is counted wrongly, or an error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from paged_models import make_draft, make_managers, make_model, make_prompts

import tandemkv as tkv
from tandemkv.errors import TandemkvError
from tandemkv.integrations.engine.drafting import ModelDrafter
from tandemkv.integrations.engine.engine import Engine, Request
from tandemkv.integrations.transformers import PagedGenerator
from tandemkv.integrations.transformers.rows import PagedRows
from tandemkv.managers.tables import KernelTables

TOKENS_PER_BLOCK = 4
PROMPT, NEW = 18, 10
GREEDY = {
    "max_new_tokens": NEW,
    "do_sample": False,
    "return_dict_in_generate": True,
    "output_logits": True,
}


class Scenario:
    """Two turns of a target with a draft, compared in both models' logits."""

    def __init__(self) -> None:
        self.model = make_model("llama")
        self.draft = make_draft(self.model)
        self.draft.generation_config.num_assistant_tokens = 3
        self.said: list[torch.Tensor] = []
        self.draft.register_forward_hook(lambda *args: self.said.append(args[2].logits[:, -1]))
        self.ids, _ = make_prompts(PROMPT)
        self.first = self.own(self.ids)
        question, _ = make_prompts(5, seed=2)
        self.question = torch.cat((self.first.sequences, question), dim=1)
        self.second = self.own(self.question)
        # What the draft says on its own cache: a wrong guess is seen nowhere else.
        self.guesses = self.said

    def own(self, ids: torch.Tensor) -> Any:
        return self.model.generate(
            ids, attention_mask=torch.ones_like(ids), assistant_model=self.draft, **GREEDY
        )

    def passes(self, between: Callable[[tkv.Managers], None] = lambda _: None) -> bool:
        """Run both turns, `between` in between, and compare all there is to compare."""
        managers = make_managers(
            self.model, self.draft, tokens_per_block=TOKENS_PER_BLOCK, max_draft_len=3
        )
        generator = PagedGenerator(self.model, managers, assistant_model=self.draft)
        self.said = []
        for ids, expected in ((self.ids, self.first), (self.question, self.second)):
            try:
                output = generator.generate(ids, **GREEDY)
            except (TandemkvError, IndexError, RuntimeError):
                return False
            if not torch.equal(output.sequences, expected.sequences):
                return False
            if not all_close(output.logits, expected.logits):
                return False
            if ids is self.ids:
                between(managers)
        managers.ledger.validate()
        assert generator.report is not None
        if generator.report.reused_tokens < PROMPT + NEW - 4:
            return False
        return len(self.said) == len(self.guesses) and all_close(self.said, self.guesses)


def all_close(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return all((one - other).abs().max() <= 1e-4 for one, other in zip(mine, theirs, strict=True))


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    intact = Scenario()
    assert intact.passes()
    assert intact.passes()  # the same again: what is compared does not vary by itself
    return intact


def cached_pages(managers: tkv.Managers) -> list[int]:
    return [page for node in managers.ledger.dump()["nodes"] for page in node["pages"][0]]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_every_page_matters(scenario: Scenario, role: str) -> None:
    count = -(-(PROMPT + NEW - 2) // TOKENS_PER_BLOCK)
    for number in range(count):

        def corrupt(managers: tkv.Managers, number: int = number) -> None:
            pages = cached_pages(managers)
            assert len(pages) >= count
            view = managers.target if role == "target" else managers.draft
            assert view is not None
            view.pool.pages[pages[number]].view(torch.float32).neg_()

        assert not scenario.passes(corrupt), f"page {number} may hold anything"


def test_every_layer_of_a_page_matters(scenario: Scenario) -> None:
    for layer in range(2):
        for name in ("key", "value"):

            def corrupt(managers: tkv.Managers, layer: int = layer, name: str = name) -> None:
                page = cached_pages(managers)[1]
                managers.target.pool.view(layer, name)[page, 2].mul_(1.5)

            assert not scenario.passes(corrupt), f"{name} of layer {layer} may be anything"


def test_every_table_entry_matters(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    intact = KernelTables.token_rows
    blocks = -(-(PROMPT + NEW) // TOKENS_PER_BLOCK)
    for block in range(blocks):

        def token_rows(self: KernelTables, *args: Any, block: int = block, **kwargs: Any) -> Any:
            """Another page for one block, and only where it is read: the write went elsewhere."""
            rows = intact(self, *args, **kwargs)
            tokens = slice(block * TOKENS_PER_BLOCK, (block + 1) * TOKENS_PER_BLOCK)
            if rows.shape[1] >= tokens.stop + 2:
                rows[:, tokens] = np.roll(rows, TOKENS_PER_BLOCK, axis=1)[:, tokens]
            return rows

        with monkeypatch.context() as patch:
            patch.setattr(KernelTables, "token_rows", token_rows)
            assert not scenario.passes(), f"the table may say anything for block {block}"


def test_every_rewind_matters(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token short, each; two in the draft, which takes back one more than it must."""
    intact = PagedRows.crop
    short = {"target": 1, "draft": 2}
    rewinds: list[tuple[str, int]] = []
    wrong: int | None = None

    def crop(self: PagedRows, role: str, tokens: int) -> None:
        if tokens >= short[role]:
            rewinds.append((role, tokens))
            if wrong == len(rewinds) - 1:
                tokens -= short[role]
        intact(self, role, tokens)

    monkeypatch.setattr(PagedRows, "crop", crop)
    assert scenario.passes()
    intact_run = list(rewinds)
    assert {role for role, _ in intact_run} == {"target", "draft"}
    for wrong in range(len(intact_run)):
        rewinds.clear()
        assert not scenario.passes(), f"rewind {wrong} may be short: {intact_run[wrong]}"


def test_the_copy_of_a_partial_block_matters(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tkv.Managers, "run_moves", lambda self, _: len(self.moves()))
        assert not scenario.passes()


@pytest.mark.parametrize("fault", ["token", "valid"])
def test_what_the_engine_commits_matters(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A token that is not the one that ran, or an end of valid KV that is one too far."""
    prompt = scenario.ids[0].tolist()
    said = scenario.first.sequences[0, PROMPT:].tolist()
    intact = tkv.Managers.update_resources

    def passes() -> bool:
        managers = make_managers(
            scenario.model, scenario.draft, tokens_per_block=TOKENS_PER_BLOCK, max_draft_len=3
        )
        drafter = ModelDrafter(scenario.draft, managers)
        engine = Engine(scenario.model, managers, drafter=drafter, draft_len=3)
        first = Request("first", prompt, NEW)
        try:
            if engine.serve([first]) != [said]:
                return False
            second = Request("second", scenario.question[0].tolist(), NEW)
            expected = scenario.second.sequences[0, scenario.question.shape[1] :].tolist()
            if engine.serve([second]) != [expected]:
                return False
        except (TandemkvError, RuntimeError):
            return False
        return second.reused[0] >= PROMPT + NEW - 4

    assert passes()
    calls = 0

    def update(self: tkv.Managers, batch: Any, accepted: Any, *, valid: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 and fault == "token":
            accepted = [[*accepted[0][:-1], (accepted[0][-1] + 1) % 100]]
        if calls == 2 and fault == "valid":
            valid = valid + 1
        intact(self, batch, accepted, valid=valid)

    with monkeypatch.context() as patch:
        patch.setattr(tkv.Managers, "update_resources", update)
        assert not passes()

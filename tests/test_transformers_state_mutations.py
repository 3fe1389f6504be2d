"""The comparisons of the other tests see a single fault of a recurrent state, each in turn.

As in test_transformers_mutations.py: the scenario passes as it is, and fails once per fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from paged_models import make_draft, make_managers, make_model, make_prompts
from test_engine import random_tokens
from test_transformers_mutations import all_close

import tandemkv as tkv
from tandemkv.errors import TandemkvError
from tandemkv.integrations.engine.drafting import ModelDrafter
from tandemkv.integrations.engine.engine import Engine, Request
from tandemkv.integrations.engine.runner import ModelRunner
from tandemkv.integrations.engine.states import StateSteps
from tandemkv.integrations.transformers import PagedGenerator, StateStore

NEW, DRAFT_LEN = 8, 2
Between = Callable[[int, tkv.Managers], None]
"""Called after each step, with the number of steps so far."""


class Scenario:
    """Two requests at a time with drafts, in two turns; compared in tokens and in all logits."""

    def __init__(self) -> None:
        self.model = make_model("falcon_h1")
        self.draft = make_draft(self.model, noise=0.01)
        self.logits: list[torch.Tensor] = []
        for model in (self.model, self.draft):
            model.register_forward_hook(lambda *args: self.logits.append(args[2].logits))
        first = [random_tokens(13, 1), random_tokens(18, 2)]
        said = [self.own(prompt) for prompt in first]
        second = [
            prompt + tokens + random_tokens(4, 3)
            for prompt, tokens in zip(first, said, strict=True)
        ]
        self.turns = [
            list(zip(first, said, strict=True)),
            [(prompt, self.own(prompt)) for prompt in second],
        ]
        self.intact: list[torch.Tensor] = []

    def own(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        output = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
        )
        said: list[int] = output[0, len(prompt) :].tolist()
        return said

    def passes(self, between: Between = lambda *_: None) -> bool:
        managers = make_managers(
            self.model, self.draft, tokens_per_block=4, max_draft_len=DRAFT_LEN
        )
        drafter = ModelDrafter(self.draft, managers)
        engine = Engine(self.model, managers, drafter=drafter, draft_len=DRAFT_LEN)
        self.logits, self.compared, steps = [], 0, 0
        for number, turn in enumerate(self.turns):
            requests = [Request((number, *prompt), prompt, NEW) for prompt, _ in turn]
            for request in requests:
                engine.submit(request)
            while engine.waiting or engine.running:
                try:
                    engine.step()
                except (TandemkvError, KeyError, RuntimeError):
                    return False
                if not self.said_the_same():
                    return False
                steps += 1
                between(steps, managers)
            if [request.generated for request in requests] != [said for _, said in turn]:
                return False
        if [request.reused for request in requests] != [[13 + NEW - 1], [18 + NEW - 1]]:
            return False
        self.intact = self.intact or self.logits
        return len(self.logits) == len(self.intact)

    def said_the_same(self) -> bool:
        """Compare the logits of a run so far, the newest ones, with those of the intact run."""
        if not self.intact:
            return True
        start, self.compared = self.compared, len(self.logits)
        mine, theirs = (logits[start : self.compared] for logits in (self.logits, self.intact))
        return [x.shape for x in mine] == [x.shape for x in theirs] and all_close(mine, theirs)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    intact = Scenario()
    assert intact.passes()
    assert intact.passes()  # the same again: what is compared does not vary by itself
    return intact


def states_of(managers: tkv.Managers, role: str) -> Any:
    view = managers.target if role == "target" else managers.draft
    assert view is not None
    (pool,) = [pool for pool in view.pools if pool.layout.holds_states]
    return pool


def used_pages(managers: tkv.Managers) -> list[int]:
    """Return the pages of open requests, then those of snapshots that the second turn reads."""
    number = states_of(managers, "target").class_index
    ids = managers.request_ids
    live = managers.block_tables(ids)[0][number, :, 0].tolist() if ids else []
    if any(turn for turn, *_ in ids):
        return live
    nodes = managers.ledger.dump()["nodes"]
    return [*live, *(page for node in nodes for page in node["pages"][number] if page)]


def steps_of(scenario: Scenario) -> list[int]:
    """Return how many pages with states there are after each step but the last."""
    counts: list[int] = []
    assert scenario.passes(lambda _, managers: counts.append(len(used_pages(managers))))
    return counts[:-1]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_every_state_page_matters(scenario: Scenario, role: str) -> None:
    """After each step, of each request that runs, and of each that left a snapshot."""
    counts = steps_of(scenario)
    assert len(counts) > 5
    assert set(counts) <= {1, 2}
    assert counts.count(2) > 4
    for step, count in enumerate(counts, 1):
        for page in range(count):

            def corrupt(
                number: int, managers: tkv.Managers, step: int = step, page: int = page
            ) -> None:
                if number == step:
                    used = used_pages(managers)[page]
                    states_of(managers, role).pages[used].view(torch.float32).neg_()

            assert not scenario.passes(corrupt), f"state {page} may be anything after step {step}"


@pytest.mark.parametrize("role", ["target", "draft"])
def test_every_tensor_of_a_state_matters(scenario: Scenario, role: str) -> None:
    for layer in range(2):
        for name in ("conv_x", "conv_bc", "ssm"):

            def corrupt(
                number: int, managers: tkv.Managers, layer: int = layer, name: str = name
            ) -> None:
                if number == 3:
                    page = used_pages(managers)[0]
                    states_of(managers, role).view(layer, name)[page].mul_(1.5)

            assert not scenario.passes(corrupt), f"{name} of layer {layer} may be anything"


@pytest.mark.parametrize("role", ["target", "draft"])
def test_every_way_back_matters(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """The state of one token less, of one request in one step."""
    intact = ModelRunner.settle
    faults: list[tuple[int, Any]] = []
    wrong: tuple[int, Any] | None = None
    calls = 0

    def settle(self: ModelRunner, ends: Mapping[Any, int]) -> None:
        nonlocal calls
        if self._store.role == role:
            calls += 1
            for name in ends:
                faults.append((calls, name))
                if wrong == (calls, name):
                    ends = {**ends, name: ends[name] - 1}
        intact(self, ends)

    monkeypatch.setattr(ModelRunner, "settle", settle)
    assert scenario.passes()
    for wrong in tuple(faults):
        calls = 0
        assert not scenario.passes(), f"call {wrong[0]} may settle one token less"


@pytest.mark.parametrize("fault", ["no copies", "no way back", "other rows"])
def test_other_faults_of_states_are_seen(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "no copies":
        monkeypatch.setattr(tkv.Managers, "run_moves", lambda self, _: len(self.moves()))
    elif fault == "no way back":
        monkeypatch.setattr(StateSteps, "settle", lambda self, _: self._kept.clear())
    else:
        intact = StateStore.read
        monkeypatch.setattr(
            StateStore, "read", lambda self, layer, pages: intact(self, layer, pages.roll(1))
        )
    assert not scenario.passes()


def test_the_state_that_a_beam_takes_over_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("falcon_h1")
    ids, mask = make_prompts(17, 6)
    options: dict[str, Any] = {
        "max_new_tokens": NEW,
        "num_beams": 3,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    expected = model.generate(ids, attention_mask=mask, **options)

    def passes() -> bool:
        output = PagedGenerator(model, make_managers(model)).generate(ids, mask, **options)
        return torch.equal(output.sequences, expected.sequences) and all_close(
            output.logits, expected.logits
        )

    assert passes()
    monkeypatch.setattr(StateStore, "copy", lambda *_: None)
    assert not passes()

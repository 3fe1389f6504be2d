"""Guessing tokens: with a draft model on the draft's pages, or by looking into the text."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tandemkv.integrations.engine.runner import ModelRunner, Run
from tandemkv.integrations.transformers import PagedCacheError
from tandemkv.integrations.transformers.states import has_states
from tandemkv.managers import Managers


@dataclass(frozen=True, slots=True)
class DraftWork:
    """What a drafter needs to know of one request in one step.

    Attributes:
        request_id: whose tokens they are.
        tokens: all tokens that are known.
        valid: positions whose draft KV is there.
        stop: position after the last token that the drafter must have run, if it keeps KV.
        draft_len: tokens to guess; 0 in a chunk of a prompt.
    """

    request_id: Hashable
    tokens: Sequence[int]
    valid: int
    stop: int
    draft_len: int


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens, and the position up to which the draft's KV is now there."""

    tokens: list[int]
    valid: int


class Drafter(Protocol):
    """Guesses tokens for all requests of a step."""

    keeps_kv: bool
    """Whether it writes KV, so that requests have a draft in the ledger."""

    def draft(self, work: Sequence[DraftWork]) -> Mapping[Hashable, Draft]:
        """Return guesses, at most `draft_len` for each request."""

    def settle(self, ends: Mapping[Hashable, int]) -> None:
        """Hear up to which position the draft's KV of each request is valid."""


class NoDrafter:
    """Guesses nothing."""

    keeps_kv = False

    def draft(self, work: Sequence[DraftWork]) -> Mapping[Hashable, Draft]:
        """See `Drafter.draft`."""
        return {item.request_id: Draft([], 0) for item in work}

    def settle(self, ends: Mapping[Hashable, int]) -> None:
        """Nothing to do."""


class PromptLookup:
    """Guesses that the text goes on as it went on after the same last words.

    Args:
        num_words: tokens at the end that must have been there before.
    """

    keeps_kv = False

    def __init__(self, num_words: int = 2) -> None:
        self._num_words = num_words

    def draft(self, work: Sequence[DraftWork]) -> Mapping[Hashable, Draft]:
        """See `Drafter.draft`."""
        return {item.request_id: Draft(self._look_up(item), 0) for item in work}

    def settle(self, ends: Mapping[Hashable, int]) -> None:
        """Nothing to do."""

    def _look_up(self, item: DraftWork) -> list[int]:
        tokens, words = list(item.tokens), self._num_words
        if not item.draft_len:
            return []
        for start in range(len(tokens) - words - 1, -1, -1):
            if tokens[start : start + words] == tokens[-words:]:
                return tokens[start + words : start + words + item.draft_len]
        return []


class ModelDrafter:
    """A model that runs ahead on the draft's pages.

    Args:
        model: the draft, such as `first_layers(target, n)` or a smaller model of one vocabulary.
        managers: with a draft of the model's layers.

    Raises:
        PagedCacheError: the managers have no draft, or one of other layers.
    """

    keeps_kv = True

    def __init__(self, model: Any, managers: Managers) -> None:
        if managers.draft is None:
            raise PagedCacheError("a draft model is given, but the plan has no draft")
        self.runner = ModelRunner(model, managers, managers.draft)
        # A snapshot of states is taken where both roles have run the same tokens.
        self._runs_last_guess = any(has_states(view) for view in managers.views)

    def draft(self, work: Sequence[DraftWork]) -> Mapping[Hashable, Draft]:
        """See `Drafter.draft`. The first forward runs what is known, chunks of prompts included."""
        guesses: dict[Hashable, list[int]] = {item.request_id: [] for item in work}
        ends = {item.request_id: max(item.valid, item.stop) for item in work}
        behind = [item for item in work if item.valid < item.stop]
        runs = [
            Run(item.request_id, item.valid, item.tokens[item.valid : item.stop]) for item in behind
        ]
        going = behind
        while runs:
            logits = self.runner.run(runs)
            following = []
            for item, run, row in zip(going, runs, logits, strict=True):
                guess = guesses[item.request_id]
                ends[item.request_id] = run.stop
                if len(guess) == item.draft_len:
                    continue
                guess.append(int(row[-1].argmax()))
                if len(guess) < item.draft_len or self._runs_last_guess:
                    following.append((item, Run(item.request_id, run.stop, guess[-1:])))
            going = [item for item, _ in following]
            runs = [run for _, run in following]
        return {name: Draft(guess, ends[name]) for name, guess in guesses.items()}

    def settle(self, ends: Mapping[Hashable, int]) -> None:
        """See `Drafter.settle`."""
        self.runner.settle(ends)


def first_layers(model: Any, num_layers: int) -> Any:
    """Return a model of the first layers of `model` with its embedding, norm and head, not copied.

    Raises:
        PagedCacheError: the model has no such list of layers, or not so many.
    """
    base = model.base_model
    layers = getattr(base, "layers", None)
    if layers is None or not 1 <= num_layers <= len(layers):
        count = "no list of" if layers is None else len(layers)
        raise PagedCacheError(f"first_layers({num_layers}): the model has {count} layers")
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = num_layers
    for kinds in ("layer_types", "layers_block_type"):
        if vars(config).get(kinds):  # some configs derive it from others
            setattr(config, kinds, vars(config)[kinds][:num_layers])
    with torch.device("meta"):
        draft = type(model)(config)
    for name, module in base.named_children():
        part = torch.nn.ModuleList(list(layers)[:num_layers]) if name == "layers" else module
        setattr(draft.base_model, name, part)
    for name, module in model.named_children():
        if module is not base:
            setattr(draft, name, module)
    return draft.eval()

"""Recurrent states of many sequences at a time, with a way back from rejected tokens.

Attention and feed-forward layers run all tokens of a step in one row. A mixer, which carries a
state from token to token, is given batches instead: sequences that run equally many tokens, one per
row.

Tokens that may be rejected run one by one in a mixer, and the state after each is kept until the
step is accepted; then the right one is written to the sequence's page. So a page always holds the
state of what is accepted, as the ledger says. The price is memory outside the pools while a step
runs: a state for each token of a sequence that it may stop behind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache

from tandemkv.integrations.transformers.layers import PagedStateLayer
from tandemkv.integrations.transformers.slots import state_pages
from tandemkv.integrations.transformers.states import States, StateStore
from tandemkv.managers import Managers
from tandemkv.managers.views import RoleView

if TYPE_CHECKING:
    from tandemkv.integrations.engine.runner import Run


@dataclass(frozen=True, slots=True)
class _Group:
    """Runs of one shape, whose states come from one place.

    Attributes:
        runs: the rows.
        places: int64 `[runs, tokens]`, where their tokens lie in the step.
        source: `nothing`, `page`, or `kept`: from a forward before, in the same step.
        pages: int64 `[runs]`.
    """

    runs: list[Run]
    places: torch.Tensor
    source: str
    pages: torch.Tensor


class StateSteps:
    """The recurrent states of one role, from the pages into a step and back.

    Args:
        model: whose mixers run.
        managers: what owns the pages.
        view: `managers.target` or `managers.draft`, whose layers are the model's.
    """

    def __init__(self, model: Any, managers: Managers, view: RoleView) -> None:
        self._store = StateStore(view, model)
        self._managers = managers
        self._num_layers = view.num_layers
        self._mixers = [module for module in model.modules() if hasattr(module, "conv1d")]
        # After how many tokens of which request: per layer the states of a group, and the row.
        self._kept: dict[tuple[Hashable, int], dict[int, tuple[States, int]]] = {}

    @contextmanager
    def mixing(self, runs: Sequence[Run]) -> Iterator[None]:
        """Let the mixers run `runs`, each from its own state, while the context is open."""
        groups = self._groups(runs) if self._mixers else []
        before = [vars(mixer).get("forward") for mixer in self._mixers]
        try:
            for mixer in self._mixers:
                mixer.forward = partial(self._mix, groups, mixer.layer_idx, mixer.forward)
            yield
        finally:
            for mixer, forward in zip(self._mixers, before, strict=True):
                del mixer.forward
                if forward is not None:  # of someone else who wraps it
                    mixer.forward = forward

    def settle(self, ends: Mapping[Hashable, int]) -> None:
        """Write the states after the accepted tokens to the pages, and forget all others.

        Args:
            ends: per request the tokens that are accepted, of those that ran.
        """
        ran = dict.fromkeys(name for name, _ in self._kept)
        if ran:
            pages = self._pages(list(ran))
            for layer in self._store.layers:
                states = self._stack(layer, [(name, ends[name]) for name in ran])
                self._store.write(layer, pages, states)
        self._kept.clear()

    def _groups(self, runs: Sequence[Run]) -> list[_Group]:
        found: dict[tuple[int, int, str], list[tuple[int, Run]]] = {}
        first = 0
        for run in runs:
            source = "page" if run.start else "nothing"
            if (run.request_id, run.start) in self._kept:
                source = "kept"
            key = len(run.tokens), run.num_logits, source
            found.setdefault(key, []).append((first, run))
            first += len(run.tokens)
        groups = []
        for (length, _, source), items in found.items():
            rows = [run for _, run in items]
            places = torch.tensor([[start] for start, _ in items]) + torch.arange(length)
            groups.append(
                _Group(rows, places, source, self._pages([row.request_id for row in rows]))
            )
        return groups

    def _mix(
        self,
        groups: list[_Group],
        layer: int,
        forward: Callable[..., torch.Tensor],
        hidden_states: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        """Run one mixer on `[1, tokens, size]`, group by group."""
        output = torch.empty_like(hidden_states)
        for group in groups:
            state = PagedStateLayer()
            state.load(self._load(layer, group))
            cache = Cache(layers=[state] * self._num_layers)
            inputs = hidden_states[0, group.places]
            ends = group.runs[0].num_logits
            lens = [inputs.shape[1] - ends + 1] + [1] * (ends - 1)
            parts = []
            for part in torch.split(inputs, lens, dim=1):
                parts.append(forward(part, cache=cache))
                ends -= 1
                self._keep(layer, group, state.save(), ends)
            output[0, group.places] = torch.cat(parts, dim=1)
        return output

    def _load(self, layer: int, group: _Group) -> States | None:
        if group.source == "nothing":
            return None
        if group.source == "page":
            return self._store.read(layer, group.pages)
        return self._stack(layer, [(run.request_id, run.start) for run in group.runs])

    def _keep(self, layer: int, group: _Group, states: States, left: int) -> None:
        """Remember the states of a group that has `left` tokens to run."""
        states = States(*(state.clone() for state in states))
        for row, run in enumerate(group.runs):
            self._kept.setdefault((run.request_id, run.stop - left), {})[layer] = states, row

    def _stack(self, layer: int, keys: Sequence[tuple[Hashable, int]]) -> States:
        rows = [self._kept[key][layer] for key in keys]
        return States(
            torch.stack([states.conv[row] for states, row in rows]),
            torch.stack([states.recurrent[row] for states, row in rows]),
        )

    def _pages(self, ids: Sequence[Hashable]) -> torch.Tensor:
        assert self._store.class_index is not None
        return torch.from_numpy(state_pages(self._managers, ids, self._store.class_index))

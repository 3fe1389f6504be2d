"""Runs a model of transformers on the pages of one role."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from tandemkv.integrations.engine.attention import attention_of
from tandemkv.integrations.engine.states import StateSteps
from tandemkv.integrations.transformers import KvStore, check_model
from tandemkv.integrations.transformers.store import Slots
from tandemkv.managers import Managers
from tandemkv.managers.views import RoleView


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of one sequence in one forward.

    Attributes:
        request_id: whose they are.
        start: position of the first one; the KV of all before it is there.
        tokens: what runs.
        num_logits: how many of the last tokens the caller wants logits of, and may stop behind.
    """

    request_id: Hashable
    start: int
    tokens: Sequence[int]
    num_logits: int = 1

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)


class ModelRunner:
    """Forwards of several sequences at a time, without padding.

    Args:
        model: a `PreTrainedModel` for causal language modelling.
        managers: what owns the pages.
        view: `managers.target` or `managers.draft`, whose layers are the model's.

    Attributes:
        forwards: so far.
        tokens: that ran so far.
    """

    def __init__(self, model: Any, managers: Managers, view: RoleView) -> None:
        check_model(model, view)
        self._model = model
        self._managers = managers
        self._store = KvStore(view)
        self._states = StateSteps(model, managers, view)
        self.forwards = 0
        self.tokens = 0

    def run(self, runs: Sequence[Run]) -> list[torch.Tensor]:
        """Run tokens, keep their KV in the pages, and return logits, `[num_logits, vocabulary]`.

        The step must have been prepared with room for them.
        """
        lens_q = np.array([len(run.tokens) for run in runs])
        lens_k = np.array([run.stop for run in runs], np.int32)
        ids = [run.request_id for run in runs]
        positions = [np.arange(run.start, run.stop) for run in runs]
        write, read = {}, {}
        for number in self._store.classes:
            rows = self._managers.tables.token_rows(ids, kv_lens=lens_k, class_index=number)
            write[number] = self._slots([rows[i, where] for i, where in enumerate(positions)])
            read[number] = self._slots([rows[i, :length] for i, length in enumerate(lens_k)])
        cache = _StepCache(self._store, write=write, read=read)
        ends = np.cumsum(lens_q)
        wanted = [np.arange(end - run.num_logits, end) for end, run in zip(ends, runs, strict=True)]
        device = self._store.device
        with torch.no_grad(), attention_of(self._model), self._states.mixing(runs):
            logits = self._model(
                input_ids=_row([run.tokens for run in runs]).to(device),
                position_ids=_row(positions).to(device),
                cache=cache,
                use_cache=True,
                logits_to_keep=torch.from_numpy(np.concatenate(wanted)).to(device),
                cu_seq_lens_q=_bounds(lens_q),
                cu_seq_lens_k=_bounds(lens_k),
            ).logits[0]
        self.forwards += 1
        self.tokens += int(lens_q.sum())
        return list(logits.split([run.num_logits for run in runs]))

    def settle(self, ends: Mapping[Hashable, int]) -> None:
        """Say how many tokens of each request are accepted, before the ledger hears of it.

        Of the KV behind them nothing is read; a recurrent state goes back to them.
        """
        self._states.settle(ends)

    def _slots(self, numbers: list[Any]) -> Slots:
        return self._store.slots(torch.from_numpy(np.concatenate(numbers).astype(np.int64)))


class _StepCache(Cache):
    """Where the layers of one forward write and read, per cache class."""

    def __init__(
        self, store: KvStore, *, write: Mapping[int, Slots], read: Mapping[int, Slots]
    ) -> None:
        super().__init__(layers=[])
        self._store = store
        self._write = write
        self._read = read

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[1, heads, tokens, size]`, and return `[1, heads, KV tokens, size]`."""
        keys, values = (state[0].transpose(0, 1) for state in (key_states, value_states))
        number = self._store.class_of(layer_idx)
        self._store.write(layer_idx, self._write[number], keys, values)
        # What is behind a window comes from page 0, and is masked.
        keys, values = self._store.gather(layer_idx, self._read[number])
        return keys.transpose(0, 1)[None], values.transpose(0, 1)[None]


def _row(parts: Sequence[Any]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in parts]))[None]


def _bounds(lens: Any) -> torch.Tensor:
    bounds = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=bounds[1:])
    return torch.from_numpy(bounds)

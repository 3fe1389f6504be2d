"""The example engine with a host tier: what comes back from there gives the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged_models import assert_empty, make_managers
from test_engine import alone as generated_alone
from test_engine import make_requests, model_of

from tandemkv.integrations.engine.drafting import ModelDrafter, first_layers
from tandemkv.integrations.engine.engine import Engine, Request


class Late:
    """An executor whose results are told one call later."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self._held = (np.zeros(0, np.int64), np.zeros(0, np.uint8))

    def submit(self, plan: Any, stream: object | None = None) -> None:
        self._executor.submit(plan, stream)

    def poll(self, wait: bool = False) -> Any:
        told, self._held = self._held, self._executor.poll(wait)
        return told

    def close(self) -> None:
        self._executor.close()


@pytest.mark.parametrize(
    ("name", "with_draft", "late"),
    [
        ("llama", True, True),
        ("llama", False, False),
        ("gemma3", True, False),
        ("mistral_window", False, False),
        ("bamba", False, True),
        ("bamba", True, False),
    ],
)
def test_conversations_come_back_from_the_host(name: str, with_draft: bool, late: bool) -> None:
    model = model_of(name)
    draft = first_layers(model, 2) if with_draft else None
    managers = make_managers(
        model,
        draft,
        tokens_per_block=4,
        max_tokens=160,
        host_cache_size="4MiB",
        max_batch_size=4,
        cached_endpoints=8,
        state_snapshot_interval=8,
    )
    assert managers.tiers is not None
    if late:
        managers.tiers._executor = Late(managers.tiers.executor)
    engine = Engine(
        model,
        managers,
        drafter=None if draft is None else ModelDrafter(draft, managers),
        draft_len=3 if with_draft else 0,
        step_tokens=64,
    )
    # The pool of windows alone is larger: a page of it is all that a request holds for long.
    requests = make_requests(36 if name == "mistral_window" else 8)
    assert engine.serve(requests) == [generated_alone(model, request) for request in requests]
    # The second turns, the newest first, so that small tiers have some of them still.
    turns = [
        Request(f"again {request.name}", [*request.tokens, 5, 6, 7, 8, 9], 6)
        for request in reversed(requests)
    ]
    assert engine.serve(turns) == [generated_alone(model, request) for request in turns]
    stats = managers.stats()
    assert stats.ledger["loaded_blocks"] > 0
    assert stats.tiers["counters"]["failed"] == 0
    managers.tiers.drain()
    managers.reset_reuse_state()
    assert_empty(managers)


def test_a_corrupted_host_page_changes_what_is_said() -> None:
    """The same run with one byte pattern wrong on the host is noticed."""
    model = model_of("llama")
    managers = make_managers(
        model, tokens_per_block=4, max_tokens=96, host_cache_size="4MiB", max_batch_size=1
    )
    assert managers.tiers is not None
    engine = Engine(model, managers, step_tokens=64)
    prompt = [7 * number % 50 + 1 for number in range(60)]
    first = engine.serve([Request("first", prompt, 6)])
    engine.serve([Request("other", [9] * 70, 6)])
    host = managers.tiers.executor.host
    host.buffer(0).view(np.float32)[...] *= -3
    before = managers.stats().ledger["loaded_blocks"]
    again = engine.serve([Request("again", prompt, 6)])
    assert managers.stats().ledger["loaded_blocks"] > before
    assert again != first

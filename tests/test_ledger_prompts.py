"""Prompts are checked and copied once per call, whatever is decided about them later."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tandemkv import _core
from tandemkv.errors import LedgerError

PROMPTS = [np.arange(start, start + 10, dtype=np.int32) for start in (100, 200, 300)]
"""Two blocks of four tokens and half of one each."""


def _ledger(num_pages: int = 33, **changed: int) -> _core.Ledger:
    return _core.Ledger(
        tokens_per_block=4,
        num_pages=[num_pages],
        **{"max_sequences": 4, "max_seq_len": 32, **changed},
    )


def _place(
    core: _core.Ledger,
    prompts: list[NDArray[np.int32]],
    max_total: list[int],
    first: list[int] | None = None,
) -> list[int]:
    """Admit prompts, run what `first` lets run, and return the handles."""
    n = len(prompts)
    handle = np.zeros(n, np.int64)
    step = core.begin_step()
    core.admit(
        step,
        prompts,
        np.zeros(n, np.int32),
        np.array(first or [32] * n, np.int32),
        np.array(max_total, np.int64),
        None,
        handle,
        np.zeros(n, np.int32),
    )
    core.moves(np.zeros((16, 4), np.int32))
    core.complete_step(step)
    admitted = handle[handle > 0]
    none = np.zeros((len(admitted), 0), np.int32)
    core.advance(step, admitted, none, np.zeros(len(admitted), np.int32))
    core.validate()
    return handle.tolist()


def _release(core: _core.Ledger, handles: list[int]) -> None:
    open_ = np.array([handle for handle in handles if handle > 0], np.int64)
    core.release(open_, np.ones(len(open_), np.uint8))
    core.validate()


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_refused_prompt_leaves_the_others_their_tokens(refused: int) -> None:
    """31 tokens need eight blocks, and there are seven: this one can never fit."""
    core = _ledger(num_pages=8)
    max_total = [10, 10, 10]
    max_total[refused] = 31
    handles = _place(core, PROMPTS, max_total)
    assert [handle if handle < 0 else 0 for handle in handles] == [
        -2 if at == refused else 0 for at in range(3)
    ]
    _release(core, handles)
    found = [core.match(prompt) for prompt in PROMPTS]
    assert found == [0 if at == refused else 10 for at in range(3)]


def test_prompts_that_evict_keep_their_tokens() -> None:
    """Nine pages, six of them cached: three more prompts evict, and the last two stay whole."""
    core = _ledger(num_pages=10)
    old = [prompt + 1000 for prompt in PROMPTS[:2]]
    _release(core, _place(core, old, [10, 10]))
    handles = _place(core, PROMPTS, [10, 10, 10])
    assert min(handles) > 0
    assert core.stats()["evicted_blocks"] == 6
    _release(core, handles)
    assert [core.match(prompt) for prompt in PROMPTS] == [10, 10, 10]


def test_a_hit_that_gives_up_its_copy_keeps_its_tokens() -> None:
    """There is no room to protect the source, so a prompt runs from a block boundary on."""
    core = _ledger(num_pages=4)
    _release(core, _place(core, PROMPTS[:1], [10]))
    handles = _place(core, PROMPTS[:1], [10], [1])
    assert core.sequence(handles[0])["committed"] == 8
    assert core.stats()["copied_blocks"] == 0
    _release(core, handles)
    assert core.match(PROMPTS[0]) == 9


def test_the_part_of_a_prompt_without_blocks_is_checked_too() -> None:
    core = _ledger()
    bad = PROMPTS[1].copy()
    bad[9] = -1
    with pytest.raises(LedgerError, match="-1") as caught:
        _place(core, [PROMPTS[0], bad, PROMPTS[2]], [10] * 3, [1] * 3)
    assert (caught.value.details["item"], caught.value.details["position"]) == (1, 9)
    assert core.stats()["open_sequences"] == 0


def test_a_refused_call_leaves_no_trace() -> None:
    """Tokens that were copied before a wrong one was found are nobody's."""
    core = _ledger()
    _release(core, _place(core, PROMPTS[:1], [10]))
    step = core.begin_step()
    before = core.digest()
    bad = PROMPTS[2].copy()
    bad[0] = -7
    arrays = (np.zeros(3, np.int32), np.full(3, 32, np.int32), np.full(3, 10, np.int64), None)
    with pytest.raises(LedgerError, match="-7") as caught:
        core.admit(step, [*PROMPTS[:2], bad], *arrays, np.zeros(3, np.int64), np.zeros(3, np.int32))
    assert caught.value.details["item"] == 2
    assert core.digest() == before
    assert [core.match(prompt) for prompt in PROMPTS] == [10, 0, 0]


def test_the_first_wrong_item_is_named() -> None:
    core = _ledger()
    step = core.begin_step()
    bad = PROMPTS[0].copy()
    bad[3] = -5
    rest = (np.full(2, 10, np.int64), None, np.zeros(2, np.int64), np.zeros(2, np.int32))
    with pytest.raises(LedgerError, match="-5"):
        core.admit(
            step, [bad, PROMPTS[1]], np.zeros(2, np.int32), np.array([32, 0], np.int32), *rest
        )
    with pytest.raises(LedgerError, match="first"):
        core.admit(
            step, [PROMPTS[0], bad], np.zeros(2, np.int32), np.array([0, 32], np.int32), *rest
        )

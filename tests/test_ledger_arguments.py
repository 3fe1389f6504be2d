"""Arguments of the ledger that are out of what it supports: an error that names them, always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tandemkv import _core
from tandemkv.errors import LedgerError

I64, I32, U8 = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8)
ONE = np.zeros(1, np.int32)
BIGGEST = 2**31 - 1


def ledger(**options: Any) -> _core.Ledger:
    plain = {"tokens_per_block": 4, "num_pages": [9], "max_sequences": 2, "max_seq_len": 32}
    return _core.Ledger(**{**plain, **options})


@pytest.mark.parametrize(
    "options",
    [
        # More bytes than any address space has, so that no system grants them.
        {"num_pages": [BIGGEST], "tokens_per_block": BIGGEST},
        {"num_pages": [BIGGEST] * 3, "tokens_per_block": BIGGEST, "max_sequences": BIGGEST},
    ],
)
def test_memory_that_cannot_be_had_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(LedgerError, match=r"needs about \d+ bytes") as caught:
        ledger(**options)
    assert caught.value.code == "memory"
    assert caught.value.details["bytes"] > 2**63


def test_a_pool_that_cannot_be_had_is_not_resized() -> None:
    one = ledger(tokens_per_block=2**20)
    digest = one.digest()
    with pytest.raises(LedgerError) as caught:
        one.resize([BIGGEST])
    assert caught.value.code == "memory"
    assert one.digest() == digest


@pytest.mark.parametrize("now", [float("inf"), float("-inf"), float("nan")])
def test_the_clock_is_finite(now: float) -> None:
    one = ledger()
    with pytest.raises(LedgerError, match="must be a finite number"):
        one.begin_step(now)
    assert one.begin_step(-1e300) == 1


@pytest.mark.parametrize(
    ("lifetime", "message"),
    [
        (("full_attention", 4, 0), "full_attention has no tokens"),
        (("full_attention", 0, 4), "full_attention has no tokens"),
        (("recurrent_state", 1, 0), "recurrent_state has no tokens"),
        (("chunked_attention", 4, 1), "chunked_attention has no sink tokens"),
        (("cross_attention", 4, 1), "cross_attention has no sink tokens"),
        (("sliding", 4, 1), "is not one of full_attention"),
    ],
)
def test_a_lifetime_has_only_its_own_numbers(lifetime: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ledger(lifetimes=[lifetime])


def test_publish_is_0_or_1() -> None:
    one = ledger()
    step = one.begin_step(0.0)
    handle, hit = np.zeros(1, np.int64), ONE.copy()
    one.admit(step, [np.arange(4, dtype=np.int32)], ONE, ONE + 4, handle + 8, None, handle, hit)
    one.complete_step(step)
    one.advance(step, handle, ONE.reshape(1, 1), ONE)
    digest = one.digest()
    for call in (one.release, one.suspend):
        with pytest.raises(LedgerError, match=r"publish\[0\] is 2, must be in 0\.\.=1"):
            call(handle, np.array([2], np.uint8))
    assert one.digest() == digest


Call = Callable[[_core.Ledger, Any], object]
INTEGERS: dict[str, tuple[str, Call]] = {
    "complete_step": ("step", lambda one, value: one.complete_step(value)),
    "grow": ("step", lambda one, value: one.grow(value, I64, I32, U8)),
    "spans step": ("step", lambda one, value: _core.spans(one, value, I64, I32, I32)),
    "spans role": ("role", lambda one, value: _core.spans(one, 1, I64, I32, I32, value)),
    "csr scale": (
        "scale",
        lambda one, value: _core.csr(one, I64, I32, ONE, I32, I32, scale=value),
    ),
    "csr class": (
        "class_index",
        lambda one, value: _core.csr(one, I64, I32, ONE, I32, I32, class_index=value),
    ),
    "slot_mapping pad": (
        "pad",
        lambda one, value: _core.slot_mapping(one, I64, I32, I32, I64, pad=value),
    ),
    "token_rows pad": (
        "pad",
        lambda one, value: _core.token_rows(one, I64, I32, np.zeros((0, 1), np.int32), pad=value),
    ),
    "path_moves role": (
        "role",
        lambda one, value: _core.path_moves(
            one, 1, I64, I32, I32, np.zeros((0, 5), np.int32), value
        ),
    ),
    "resize": ("num_pages", lambda one, value: one.resize([value])),
    "set_quota": ("floor_blocks", lambda one, value: one.set_quota(0, value)),
    "lifetimes": (
        "lifetime tokens",
        lambda _, value: ledger(lifetimes=[("sliding_window", value, 0)]),
    ),
}


@pytest.mark.parametrize("value", [2**70, -(2**70), -7, "x", None, 1.5])
@pytest.mark.parametrize("call", INTEGERS)
def test_numbers_that_are_none_are_named(call: str, value: object) -> None:
    argument, run = INTEGERS[call]
    with pytest.raises(LedgerError) as caught:
        run(ledger(), value)
    assert argument in str(caught.value)
    assert str(value) in str(caught.value)

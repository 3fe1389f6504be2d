"""The bare byte split of one budget between target and draft."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tandemkv import _core
from tandemkv.errors import ConfigError
from tandemkv.sizes import MAX_BYTES

TIERS: tuple[str, ...] = ("device", "host", "disk")
"""Where KV memory lies, warm to cold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteSplit:
    """The shares of one budget; `target_bytes + draft_bytes` is the budget.

    Attributes:
        split: whether the budget was divided.
        target_bytes, draft_bytes: the shares; where nothing was divided, the whole budget and 0.
        reason: None if divided, else `no_budget`, `no_target_cost` or `no_draft_cost`.
        target_tokens, draft_tokens: tokens that each share holds; None where tokens cost nothing,
            and where nothing was divided.
    """

    split: bool
    target_bytes: int
    draft_bytes: int
    reason: str | None = None
    target_tokens: int | None = None
    draft_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def split_budget(
    total_bytes: int, target: tuple[int, int], draft: tuple[int, int], tier: str = "device"
) -> ByteSplit:
    """Divide a budget between two affine costs, as TensorRT-LLM's KV cache manager does.

    With `x = total_bytes - fixed bytes of both`, the draft gets its fixed bytes and
    `x * slope // (sum of slopes)`, the target the rest. It is the split of bytes alone: the pools
    of a plan hold equal whole pages and may differ from it by less than a page.

    Args:
        total_bytes: the budget of both roles, in bytes. Zero or less: there is no budget.
        target: `(slope, intercept)`, bytes per token and fixed bytes.
        draft: the same of the draft. A cost of (0, 0), or with a negative number, is no cost: the
            target keeps the whole budget.
        tier: `device`, `host` or `disk`. Fixed bytes are charged on the device only.

    Raises:
        BudgetError: the fixed bytes leave nothing for a role that grows with tokens.
        ConfigError: an unknown tier, or a number that is not an integer of at most 63 bits.
    """
    _check_int("total_bytes", total_bytes)
    target, draft = _check_cost("target", target), _check_cost("draft", draft)
    if tier not in TIERS:
        raise ConfigError(
            f"tier is {tier!r}; supported: {', '.join(TIERS)}", field="tier", value=tier
        )
    # The core knows no negative bytes. The reference meets them when it prices a draft as total
    # minus target, and takes them for "no budget" and "no cost".
    if total_bytes <= 0:
        return ByteSplit(split=False, target_bytes=total_bytes, draft_bytes=0, reason="no_budget")
    if min(target) < 0:
        target = (0, 0)
    if min(draft) < 0:
        draft = (0, 0)
    reason, target_bytes, draft_bytes = _core.split_bytes(total_bytes, target, draft, tier)
    if reason is not None:
        return ByteSplit(
            split=False, target_bytes=target_bytes, draft_bytes=draft_bytes, reason=reason
        )
    if tier != "device":
        target, draft = (target[0], 0), (draft[0], 0)
    return ByteSplit(
        split=True,
        target_bytes=target_bytes,
        draft_bytes=draft_bytes,
        target_tokens=_core.cost_tokens(target, target_bytes),
        draft_tokens=_core.cost_tokens(draft, draft_bytes),
    )


def _check_int(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_BYTES:
        raise ConfigError(
            f"{field} is {value!r}; an integer of at most 63 bits is needed",
            field=field,
            value=value,
        )


def _check_cost(field: str, cost: object) -> tuple[int, int]:
    if not isinstance(cost, tuple | list) or len(cost) != 2:
        raise ConfigError(
            f"{field} is {cost!r}; a pair (slope, intercept) is needed", field=field, value=cost
        )
    slope, intercept = cost
    _check_int(f"the slope of {field}", slope)
    _check_int(f"the intercept of {field}", intercept)
    return slope, intercept

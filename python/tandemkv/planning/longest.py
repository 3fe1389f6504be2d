"""`max_seq_len="auto"`: the longest sequence for which a plan succeeds and holds one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tandemkv.config import MAX_INT32
from tandemkv.errors import BudgetError
from tandemkv.planning.result import Plan


def longest_plan(
    solve: Callable[[int], Plan], *, limit: int | None, least: int, turns: Iterable[int]
) -> Plan:
    """Return the plan with the largest `max_seq_len` in `least ..= limit` that fits.

    A longer sequence needs more blocks, but where `max_seq_len` passes a window the layer turns
    from one that keeps everything into one that does not, and more may fit again. Between two such
    turns the need only grows, so each stretch is searched by halving, the longest first.

    Args:
        solve: plans for one `max_seq_len`; raises `BudgetError` where it does not fit.
        limit: the longest that the model declares; None: it declares none.
        least: the shortest that makes sense.
        turns: lengths up to which a layer keeps everything.

    Raises:
        BudgetError: no length fits.
    """
    ceiling = MAX_INT32 if limit is None else limit
    ends = sorted({ceiling, *(turn for turn in turns if least <= turn < ceiling)}, reverse=True)
    for end, before in zip(ends, [*ends[1:], least - 1], strict=True):
        found = _longest_between(solve, before + 1, end)
        if found is not None:
            return found
    refused = solve(min(least, ceiling))
    raise BudgetError(
        f"no max_seq_len fits: {refused.num_blocks - 1} usable blocks of {refused.block_tokens} "
        f"tokens, {refused.blocks_of(refused.max_seq_len)} needed for {refused.max_seq_len} tokens "
        f"with {refused.headroom_tokens} tokens of headroom"
    )


def _longest_between(solve: Callable[[int], Plan], low: int, high: int) -> Plan | None:
    """Return the plan of the largest length in `low ..= high` that fits, or None."""
    best = _fitting(solve, high)
    if best is not None or low > high:
        return best
    best = _fitting(solve, low)
    if best is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        plan = _fitting(solve, middle)
        if plan is None:
            high = middle
        else:
            low, best = middle, plan
    return best


def _fitting(solve: Callable[[int], Plan], max_seq_len: int) -> Plan | None:
    try:
        plan = solve(max_seq_len)
    except BudgetError:
        return None
    return plan if plan.max_concurrency >= 1 else None

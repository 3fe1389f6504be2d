"""Planning: which rank holds which layers, and what a byte buys for target and draft.

* `placement`: layers of each pipeline stage.
* `solver`: `plan`, the one way to a `Plan`.
* `result`: `Plan` and its parts.
* `split`: `split_budget`, the bare byte split of one budget.
"""

from __future__ import annotations

from tandemkv.planning.result import GroupPlan, Plan, RankPlan, RolePlan, TierPlan, Tiers
from tandemkv.planning.solver import plan
from tandemkv.planning.split import ByteSplit, split_budget

__all__ = [
    "ByteSplit",
    "GroupPlan",
    "Plan",
    "RankPlan",
    "RolePlan",
    "TierPlan",
    "Tiers",
    "plan",
    "split_budget",
]

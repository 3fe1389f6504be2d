"""Planning: which rank holds which layers, and what a byte buys for target and draft.

* `placement`: layers of each pipeline stage.
* `groups`: layers of one lifetime, priced together by the core.
* `solver`: `plan`, the one way to a `Plan`; `checks` its arguments, `assembly` its answer,
  `longest` the search of `max_seq_len="auto"`.
* `result`, `roles`: `Plan` and its parts. `report`, `engines`, `explain`, `html` show them.
* `distributed`: `plan_distributed`, the same plan on every rank of a process group.
* `memory`: from a device's memory to a budget, and the size of a host tier.
* `split`: `split_budget`, the bare byte split of one budget. `quota`: bytes from tokens alone.
"""

from __future__ import annotations

from tandemkv.planning.distributed import plan_distributed
from tandemkv.planning.groups import FixedPages
from tandemkv.planning.memory import MemoryEstimate, estimate_budget, estimate_host_bytes
from tandemkv.planning.quota import TokenCost
from tandemkv.planning.result import Plan, RankPlan, TierPlan, Tiers
from tandemkv.planning.roles import GroupPlan, RolePlan
from tandemkv.planning.solver import plan
from tandemkv.planning.split import ByteSplit, split_budget

__all__ = [
    "ByteSplit",
    "FixedPages",
    "GroupPlan",
    "MemoryEstimate",
    "Plan",
    "RankPlan",
    "RolePlan",
    "TierPlan",
    "Tiers",
    "TokenCost",
    "estimate_budget",
    "estimate_host_bytes",
    "plan",
    "plan_distributed",
    "split_budget",
]

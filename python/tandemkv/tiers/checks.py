"""Refuses plans that no tier could carry out, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandemkv.errors import TierError
from tandemkv.tiers.transfers import DEVICE, DIRECTIONS, TIER_NAMES, TransferPlan


def check_plan(plan: TransferPlan, num_pages: Sequence[Sequence[int]]) -> None:
    """Check the directions, classes and pages of every row.

    Args:
        plan: the plan.
        num_pages: pages of each class, for each tier.

    Raises:
        TierError: names the first row at fault, and what there is.
    """
    if len(plan) == 0:
        return
    rows = plan.rows
    known = np.zeros(len(rows), np.bool_)
    for direction in DIRECTIONS:
        known |= (rows[:, (2, 4)] == direction).all(axis=1)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        source, target = rows[row, (2, 4)].tolist()
        raise TierError(f"row {row} goes from tier {source} to {target}; tiers are 0, 1 and 2")
    num_classes = len(num_pages[DEVICE])
    known = (plan.classes >= 0) & (plan.classes < num_classes)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise TierError(
            f"row {row} has class {plan.classes[row]}; there are 0 to {num_classes - 1}"
        )
    for tiers, pages in ((rows[:, 2], plan.source_pages), (rows[:, 4], plan.destination_pages)):
        for tier, sizes in enumerate(num_pages):
            # Page 0 of the device is reserved and holds nothing.
            least, most = int(tier == DEVICE), np.array(sizes)[plan.classes]
            wrong = (tiers == tier) & ((pages < least) | (pages >= most))
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise TierError(
                    f"row {row} names page {pages[row]} on the {TIER_NAMES[tier]}, where class "
                    f"{plan.classes[row]} has pages {least} to {most[row] - 1}",
                    tier=TIER_NAMES[tier],
                )

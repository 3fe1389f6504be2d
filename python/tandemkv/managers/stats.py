"""What the managers report about themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandemkv.managers.views import RoleView

# What a dummy adds to these counters of the ledger is taken out again.
DUMMY_COUNTERS = ("admitted", "prompt_tokens", "released")


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counts now and counters since the start; requests only, dummies taken out.

    Attributes:
        ledger: counts and counters of the ledger: see `Ledger.stats`. `refused_rows` includes
            what the managers refused to keep rows for dummies.
        open_requests: open requests.
        open_dummies: open dummies; their pages are live.
        usage: per role, bytes by state: see `RoleView.usage`.
    """

    ledger: Mapping[str, Any]
    open_requests: int
    open_dummies: int
    usage: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(
        cls,
        ledger: dict[str, Any],
        *,
        views: Sequence[RoleView],
        open_requests: int,
        open_dummies: int,
        dummy_totals: Mapping[str, int],
        refused_rows: int,
    ) -> ManagerStats:
        """Return the statistics from those of the ledger."""
        usage = {view.role: view.usage_of(ledger) for view in views}
        own = {name: ledger[name] - dummy_totals[name] for name in DUMMY_COUNTERS}
        own["refused_rows"] = ledger["refused_rows"] + refused_rows
        return cls({**ledger, **own}, open_requests, open_dummies, usage)

    @property
    def hit_ratio_tokens(self) -> float:
        """Prompt tokens reused / prompt tokens admitted; 0 before the first."""
        prompt_tokens = int(self.ledger["prompt_tokens"])
        return int(self.ledger["hit_tokens"]) / prompt_tokens if prompt_tokens else 0.0

    @property
    def usage_ratio(self) -> float:
        """Pages that nothing new can take / pages that requests can own, in the fullest class."""
        classes: list[dict[str, int]] = self.ledger["classes"]
        return max(
            1 - (pages["free"] + pages["evictable"]) / (pages["total"] - pages["reserved"])
            for pages in classes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **self.ledger,
            "open_requests": self.open_requests,
            "open_dummies": self.open_dummies,
            "hit_ratio_tokens": self.hit_ratio_tokens,
            "usage_ratio": self.usage_ratio,
            "usage": {role: dict(states) for role, states in self.usage.items()},
        }

"""What the managers report about themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandemkv.managers.views import RoleView


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counts now and counters since the start; requests only, dummies taken out.

    Attributes:
        ledger: counts and counters of the ledger: see `Ledger.stats`. `refused_rows` includes
            what the managers refused to keep rows for dummies.
        open_requests: open requests.
        open_dummies: open dummies; their pages are live.
        role_bytes: per role, bytes by state: see `RoleView.usage`.
        preempted: requests preempted.
        readmitted: how many of them came back.
        readmitted_prompt_tokens: tokens of their prompts, which `prompt_tokens` counts as well.
        readmitted_hit_tokens: how many of those were reused, which `hit_tokens` counts as well.
    """

    ledger: Mapping[str, Any]
    open_requests: int
    open_dummies: int
    role_bytes: Mapping[str, Mapping[str, int]]
    preempted: int
    readmitted: int
    readmitted_prompt_tokens: int
    readmitted_hit_tokens: int

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
        preemptions: Mapping[str, int],
    ) -> ManagerStats:
        """Return the statistics from those of the ledger."""
        role_bytes = {view.role: view.usage_of(ledger) for view in views}
        own = {name: ledger[name] - dummy_totals[name] for name in dummy_totals}
        own["refused_rows"] = ledger["refused_rows"] + refused_rows
        return cls(
            {**ledger, **own},
            open_requests,
            open_dummies,
            role_bytes,
            **preemptions,
        )

    @property
    def hit_rate_tokens(self) -> float:
        """Prompt tokens reused / prompt tokens, at the first admission of each request.

        What a preempted request reuses of its own when it comes back does not count. 0 before the
        first admission.
        """
        prompt_tokens = int(self.ledger["prompt_tokens"]) - self.readmitted_prompt_tokens
        hit_tokens = int(self.ledger["hit_tokens"]) - self.readmitted_hit_tokens
        return hit_tokens / prompt_tokens if prompt_tokens else 0.0

    @property
    def pages(self) -> tuple[dict[str, int], ...]:
        """Pages by state, per class; the states of a class add up to its pages.

        `live` belongs to open requests alone, `protected` is cached and in use by one, `cached`
        is reusable and in use by none, `fenced` waits for a step, `free` is empty, `reserved` is
        page 0.
        """
        return tuple(
            {
                **{state: pages[state] for state in ("live", "protected")},
                "cached": pages["cached"] - pages["protected"],
                **{state: pages[state] for state in ("fenced", "free", "reserved")},
            }
            for pages in self.ledger["classes"]
        )

    @property
    def usage(self) -> tuple[float, ...]:
        """Pages that nothing new can take / pages that requests can own, per class; 0 to 1."""
        return tuple(
            1 - (pages["free"] + pages["evictable"]) / (pages["total"] - pages["reserved"])
            for pages in self.ledger["classes"]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **self.ledger,
            "open_requests": self.open_requests,
            "open_dummies": self.open_dummies,
            "preempted": self.preempted,
            "readmitted": self.readmitted,
            "readmitted_prompt_tokens": self.readmitted_prompt_tokens,
            "readmitted_hit_tokens": self.readmitted_hit_tokens,
            "hit_rate_tokens": self.hit_rate_tokens,
            "pages": list(self.pages),
            "usage": list(self.usage),
            "role_bytes": {role: dict(states) for role, states in self.role_bytes.items()},
        }

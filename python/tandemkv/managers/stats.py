"""What the managers report about themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.managers.batch import Batch
from tandemkv.managers.views import RoleView


@dataclass(slots=True)
class DecodeSteps:
    """Counts decode steps of requests, and the tokens that came of prompts instead.

    Attributes:
        steps: decode steps that yielded tokens, one per request and step.
        prompt_end_tokens: tokens sampled after the last chunk of a prompt.
    """

    steps: int = 0
    prompt_end_tokens: int = 0

    def note(
        self,
        batch: Batch,
        live: NDArray[np.intp] | None,
        counts: NDArray[np.int32],
        num_yielding: int,
    ) -> None:
        """Count one update: `counts` of the requests at `live` (None: all) of the batch."""
        self.steps += num_yielding
        if batch.num_chunks:
            chunk_lens = batch.chunk_lens if live is None else batch.chunk_lens[live]
            ends = counts[chunk_lens > 0]
            self.steps -= int(np.count_nonzero(ends))
            self.prompt_end_tokens += int(ends.sum())


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
        decode_steps: decode steps that yielded tokens, one per request and step.
        prompt_end_tokens: tokens sampled after a prompt; part of the ledger's `accepted_tokens`.
        tiers: pages and counters of host and disk, see `Ledger.tier_stats`, and `waiting_requests`,
            whose pages are on their way; None without such tiers.
    """

    ledger: Mapping[str, Any]
    open_requests: int
    open_dummies: int
    role_bytes: Mapping[str, Mapping[str, int]]
    preempted: int
    readmitted: int
    readmitted_prompt_tokens: int
    readmitted_hit_tokens: int
    decode_steps: int
    prompt_end_tokens: int
    tiers: Mapping[str, Any] | None = None

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
        decodes: DecodeSteps,
        tiers: Mapping[str, Any] | None,
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
            decode_steps=decodes.steps,
            prompt_end_tokens=decodes.prompt_end_tokens,
            tiers=tiers,
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
    def mean_acceptance_length(self) -> float:
        """Tokens per decode step: accepted drafts and the bonus token; 0 before the first.

        What a prompt yields does not count, nor does what was trimmed before it was passed.
        """
        tokens = int(self.ledger["accepted_tokens"]) - self.prompt_end_tokens
        return tokens / self.decode_steps if self.decode_steps else 0.0

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
            "decode_steps": self.decode_steps,
            "prompt_end_tokens": self.prompt_end_tokens,
            "hit_rate_tokens": self.hit_rate_tokens,
            "mean_acceptance_length": self.mean_acceptance_length,
            "pages": list(self.pages),
            "usage": list(self.usage),
            "tiers": None if self.tiers is None else dict(self.tiers),
            "role_bytes": {role: dict(states) for role, states in self.role_bytes.items()},
        }

"""Short words for hand-written tests, on the real ledger or on the reference."""

from __future__ import annotations

from typing import Any

from reference.binding import CoreLedger
from reference.ledger import ReferenceLedger
from reference.lifetimes import CHUNKED, FULL, SLIDING
from reference.state import Config, Request

ENGINES = {"reference": ReferenceLedger, "core": CoreLedger}


def tokens(count: int, start: int = 0) -> tuple[int, ...]:
    """Return `count` different tokens."""
    return tuple(range(start, start + count))


class Scenario:
    """One ledger with one clock. Options left out are those of a plain target-only ledger."""

    def __init__(self, engine: str, **options: Any) -> None:
        plain = {"tokens_per_block": 4, "num_pages": (33,), "max_sequences": 8, "max_seq_len": 256}
        self.config = Config(**{**plain, **options})
        self.ledger = ENGINES[engine](self.config)
        self.draft_from = 0 if self.config.has_draft else -1
        self.now = 0.0

    def begin(self) -> int:
        return self.ledger.begin_step(self.now)

    def complete(self, step: int) -> None:
        """Complete a step whose copies the engine has run."""
        self.ledger.moves()
        self.ledger.complete_step(step)

    def longest(self) -> int:
        """Return the largest `max_total` that the pools can ever hold."""
        c = self.config
        rules = c.lifetimes or ((FULL, 0, 0),) * len(c.num_pages)
        blocks = [
            pages - 1
            for pages, (name, _, _) in zip(c.num_pages, rules, strict=True)
            if name == FULL or (name in {SLIDING, CHUNKED} and c.max_step_tokens == 0)
        ]
        blocks += [c.num_blocks] if c.num_blocks is not None else []
        room = min(blocks) * c.tokens_per_block - c.extra_tokens
        return min(c.max_seq_len, room - c.reserve_tokens + 1)

    def request(self, prompt: tuple[int, ...], **options: Any) -> Request:
        fields = {
            "scope": 0,
            "first": len(prompt),
            "max_total": max(self.longest(), len(prompt)),
            "draft_from": self.draft_from,
        }
        return Request(prompt, **{**fields, **options})

    def try_admit(self, step: int, prompt: tuple[int, ...], **options: Any) -> tuple[int, int]:
        """Return the handle or the reason of refusal, and the hit."""
        _, handles, hits = self.ledger.admit(step, [self.request(prompt, **options)])
        return handles[0], hits[0]

    def admit(self, step: int, prompt: tuple[int, ...], **options: Any) -> int:
        handle, _ = self.try_admit(step, prompt, **options)
        assert handle > 0, f"refused with reason {handle}"
        return handle

    def grow(self, step: int, handle: int, width: int) -> bool:
        return self.ledger.grow(step, [(handle, width)])[1] == [1]

    def advance(self, step: int, handle: int, *new: int, valid: list[int] | None = None) -> None:
        self.ledger.advance(step, [(handle, new, len(new))], None if valid is None else [valid])

    def release(self, handle: int, publish: int = 1) -> None:
        self.ledger.release([(handle, publish)])

    def prefill(self, prompt: tuple[int, ...], *sampled: int, **options: Any) -> int:
        """Admit a prompt and run it in one step; return its open sequence."""
        step = self.begin()
        handle = self.admit(step, prompt, **options)
        self.complete(step)
        self.advance(step, handle, *sampled)
        return handle

    def prefill_in_chunks(
        self, prompt: tuple[int, ...], chunk: int, *sampled: int, **options: Any
    ) -> int:
        """Run a prompt in steps of at most `chunk` tokens; return its open sequence."""
        handle = self.prefill(prompt, first=chunk, **options)
        while (ahead := len(prompt) - self.sequence(handle)["history"]) > 0:
            self.decode(handle, *(sampled if ahead <= chunk else ()), width=min(chunk, ahead))
        return handle

    def decode(self, handle: int, *accepted: int, width: int = 1) -> None:
        """Run one step of `width` tokens that appends the accepted ones."""
        step = self.begin()
        assert self.grow(step, handle, width)
        self.complete(step)
        self.advance(step, handle, *accepted)

    def serve(self, prompt: tuple[int, ...], **options: Any) -> None:
        """Run a prompt and releases it, its tail published."""
        self.release(self.prefill(prompt, **options))

    # Tiers below the device

    def take(self, capacity: int = 1024) -> list[tuple[int, ...]]:
        """Return the rows of the transfers planned, without their keys."""
        return [tuple(row[:6]) for row in self.ledger.transfers(capacity)]

    def finish(self, rows: list[tuple[int, ...]], ok: int = 1) -> None:
        """Report transfers, each once whatever its rows."""
        numbers = dict.fromkeys(row[0] for row in rows)
        self.ledger.complete_transfers([(number, ok) for number in numbers])

    def copy(self) -> list[tuple[int, ...]]:
        """Run all that is planned; return its rows."""
        rows = self.take()
        self.finish(rows)
        return rows

    def demote(self, *prompts: tuple[int, ...]) -> None:
        """Compute prompts one after the other, each driven off the device before the next."""
        for prompt in prompts:
            self.serve((*prompt, 9999))
            self.ledger.offload(64)
            self.copy()

    def below(self, prompt: tuple[int, ...], **options: Any) -> tuple[int, int, int]:
        """Return the tokens of a prompt, and one after it, on the device, the host and disk."""
        draft_from = options.get("draft_from", self.draft_from)
        return self.ledger.match_tiers((*prompt, 9999), options.get("scope", 0), draft_from)

    def prefill_from_below(self, prompt: tuple[int, ...], *sampled: int, **options: Any) -> int:
        """Admit a prompt of which a part is loaded, and run the rest; return its sequence."""
        step = self.begin()
        handle = self.admit(step, prompt, **options)
        assert self.is_loading(handle)
        self.copy()
        self.complete(step)
        self.decode(handle, *sampled, width=len(prompt) - self.sequence(handle)["history"])
        return handle

    def is_loading(self, handle: int) -> bool:
        return self.ledger.loading([handle])[1] == [1]

    def tiers(self, counter: str) -> int:
        return self.ledger.tier_stats()["counters"][counter]

    def shelf(self, tier: str, at: int = 0) -> dict[str, Any]:
        shelves = self.ledger.tier_stats()["shelves"]
        return [shelf for shelf in shelves if shelf["tier"] == tier][at]

    def match(self, prompt: tuple[int, ...], scope: int = 0, draft_from: int | None = None) -> int:
        return self.ledger.match(
            prompt, scope, self.draft_from if draft_from is None else draft_from
        )

    def held(self, handle: int, cls: int = 0) -> list[int]:
        """Return the columns of a sequence's row that have a page."""
        return [column for column, page in enumerate(self.pages(handle, cls)) if page]

    def pages(self, handle: int, cls: int = 0) -> list[int]:
        return self.ledger.table(handle)[cls]

    def sequence(self, handle: int) -> dict[str, Any]:
        return self.ledger.sequence(handle)

    def stats(self) -> dict[str, Any]:
        return self.ledger.stats()

    def count(self, state: str, cls: int = 0) -> int:
        return self.stats()["classes"][cls][state]

    def counts(self, cls: int = 0) -> dict[str, int]:
        """Return the pages by state; check that they add up."""
        counts = dict(self.stats()["classes"][cls])
        total = counts.pop("total")
        assert counts.pop("promised") >= 0, "a promise is no state of a page"
        parts = {name: counts.pop(name) for name in ("protected", "evictable")}
        assert sum(counts.values()) == total
        assert min(parts.values()) >= 0
        assert sum(parts.values()) <= counts["cached"]
        return {**counts, "evictable": parts["evictable"]}

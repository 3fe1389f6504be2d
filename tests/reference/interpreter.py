"""Drives the real ledger and the reference with the same operations and compares them after each.

An operation is a tuple: the method's name, then its arguments as `ReferenceLedger` takes them
(`updates` takes the capacity of the buffer). A failure prints the operations that led to it, ready
to be passed to `apply_ops`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from reference.binding import CoreLedger
from reference.ledger import ReferenceLedger
from reference.mirror import Mirror
from reference.state import BufferTooSmall, Config, Misuse, SequencesOpen
from tandemkv.errors import BufferTooSmallError, LedgerError, SequencesOpenError

Operation = tuple[Any, ...]

# What only answers, and leaves the digest as it was.
READ_ONLY = {
    "keys",
    "block_keys",
    "match",
    "fits",
    "fits_blocks",
    "reclaimable",
    "victims",
    "explain_match",
    "match_tiers",
    "pending_transfers",
    "loading",
    "path_moves",
}


def apply_ops(config: Config, operations: Iterable[Operation], **options: Any) -> Comparison:
    """Apply the operations one after the other; return the pair in its final state."""
    pair = Comparison(config, **options)
    for operation in operations:
        pair.apply(*operation)
    return pair


# Which operations log what.
_LOGS = {
    "stored": {"advance", "release", "suspend", "complete_transfers"},
    "evicted": {"begin_step", "admit", "grow", "fork", "resume", "offload", "resize"},
    "dropped": {"drop_scope"},
    "cleared": {"reset_reuse_state"},
}


class Comparison:
    """A real ledger and a reference that must stay equal.

    Args:
        config: the arguments of both ledgers.
        validate_every: operations between two calls of `validate()` and `dump()`.
        flat: whether tokens are passed in one array for all items.
        dtype: the integer type of token arrays.

    """

    def __init__(
        self, config: Config, validate_every: int = 1, flat: bool = False, dtype: type = np.int32
    ) -> None:
        self.config = config
        self.model = ReferenceLedger(config)
        self.core = CoreLedger(config, flat=flat, dtype=dtype)
        self.validate_every = validate_every
        self.applied: list[Operation] = []
        # The rows as a reader of `updates` alone would know them.
        rows = (len(config.num_pages), config.max_sequences, self.core.core.row_width)
        self.mirror = np.zeros(rows, np.int32)
        # Per class: the core's page of each page of the model.
        self.pages: list[dict[int, int]] = [{} for _ in config.num_pages]
        self.moves: list[tuple[int, int, int, int]] = []
        # The core's device pages of transfers not handed out, by id and the model's page.
        self.ends: dict[tuple[int, int], int] = {}
        self.outcomes: Counter[str] = Counter()
        self.reader = Mirror()

    def apply(self, *operation: Any) -> Any:
        """Apply one operation to both; return the answer, or None after an error."""
        self.applied.append(operation)
        try:
            return self._apply(*operation)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"{self.config!r}\noperations: {self.applied!r}")
            raise

    def _apply(self, name: str, *args: Any) -> Any:
        before = self.core.digest()
        if name == "updates":
            return self._apply_updates(before, *args)
        try:
            expected, error = getattr(self.model, name)(*args), None
        except Misuse as misuse:
            expected, error = None, misuse
        if error is not None:
            self._expect_error(name, args, error)
        else:
            answer = getattr(self.core, name)(*args)
            if name == "moves":
                expected = self._expected_moves(answer)
            elif name == "transfers":
                expected = self._expected_transfers(expected)
            elif name == "resize":
                expected = self._expected_rows(answer)
            elif name == "path_moves":
                expected = [
                    (cls, self.pages[cls][source], at, self.pages[cls][destination], to)
                    for cls, source, at, destination, to in expected
                ]
            assert answer == expected, f"{name}: core {answer}, reference {expected}"
        if error is not None or name in READ_ONLY or self._all_refused(name, expected):
            self._check_unchanged(before, name)
        self._count(name, args, error, expected)
        self._translate_ends()
        self.check()
        if error is None:
            self._translate_moves()
            self._translate_ends()
        return expected

    def _translate_ends(self) -> None:
        """Write down which pages transfers read or fill, before those are given to others."""
        for transfer in self.model.planned:
            for cls, page in zip(transfer.shelf.classes, transfer.pages, strict=False):
                if page in self.pages[cls]:
                    self.ends.setdefault((transfer.number, page), self.pages[cls][page])

    def _expected_transfers(self, rows: list[Any]) -> list[Any]:
        """Return rows with the core's pages on the device."""
        expected = []
        for number, cls, source, source_page, tier, page, key in rows:
            ends = [
                self.ends.pop((number, end)) if at == 0 else end
                for at, end in ((source, source_page), (tier, page))
            ]
            expected.append((number, cls, source, ends[0], tier, ends[1], key))
        return expected

    def _translate_moves(self) -> None:
        """Write the model's new moves down with the core's pages, while both are known."""
        for _, (cls, *ends, count) in self.model.queued_moves[len(self.moves) :]:
            # No row shows the page of a snapshot: what the core calls it is learnt from its moves.
            source, destination = (self.pages[cls].get(name, -name) for name in ends)
            self.moves.append((cls, source, destination, count))

    def _expected_moves(self, answer: list[tuple[int, int, int, int]]) -> list[Any]:
        """Return the moves written down, with pages that only the core knows taken from it."""
        expected, self.moves = self.moves, []
        for index, (given, (cls, *ends, count)) in enumerate(zip(answer, expected, strict=False)):
            for end, theirs in enumerate(given[1:3]):
                if ends[end] < 0:
                    name, ends[end] = -ends[end], theirs
                    if name in self.model.cached_pages(cls):
                        self._check_pages(cls, [name], [theirs])
            expected[index] = (cls, *ends, count)
        return expected

    def _expected_rows(self, answer: list[tuple[int, int, int, int]]) -> list[Any]:
        """Follow the pages that a resize moved; return the rows by the rules of docs/ledger.md."""
        expected = []
        self._translate_ends()
        for cls, pages in enumerate(self.model.num_pages):
            self._forget_dead_pages(cls)
            moved = {source: to for at, source, to, _ in answer if at == cls}
            named = self.pages[cls]
            assert {page for page in named.values() if page >= pages} <= moved.keys()
            kept = {page for page in named.values() if page < pages}
            assert not kept & {*moved.values()}, "a page that is owned is written"
            self.pages[cls] = {name: moved.get(page, page) for name, page in named.items()}
            count = 1 if cls in self.model.state_classes else self.config.tokens_per_block
            expected += [(cls, source, moved[source], count) for source in sorted(moved)]
            assert sorted(moved.values()) == [moved[source] for source in sorted(moved)]
            assert all(page < pages for page in moved.values())
        self.outcomes["pages moved"] += bool(expected)
        return expected

    def _expect_error(self, name: str, args: Any, error: Misuse) -> None:
        kinds = {SequencesOpen: SequencesOpenError, BufferTooSmall: BufferTooSmallError}
        kind = kinds.get(type(error), LedgerError)
        with pytest.raises(kind) as caught:
            getattr(self.core, name)(*args)
        raised = caught.value
        assert raised.code, f"{raised!r} has no code"
        assert str(raised), "an error without a message"
        if isinstance(raised, SequencesOpenError):
            assert raised.details["open_sequences"] == error.args[0]
        if isinstance(raised, BufferTooSmallError):
            assert raised.details["required"] == error.args[0]

    def _all_refused(self, name: str, answer: Any) -> bool:
        if name in {"offload", "flush", "restore", "transfers"}:
            return not answer
        return name in {"admit", "fork", "grow", "resume"} and answer is not None and answer[0] == 0

    def _check_unchanged(self, before: bytes, name: str) -> None:
        assert self.core.digest() == before, f"{name} changed the state"

    def _count(self, name: str, args: Any, error: Misuse | None, answer: Any) -> None:
        """Note what happened, so that drivers can assert that they reach every kind."""
        self.outcomes[f"{name} error" if error is not None else name] += 1
        if name == "admit" and answer is not None:
            self.outcomes.update(f"admit {handle}" for handle in answer[1] if handle < 0)
        if name == "fork" and answer is not None:
            self.outcomes.update(f"fork {handle}" for handle in answer[1] if handle < 0)
            owners = [b[0] for seq in self.model.sequences.values() for b in seq.private]
            self.outcomes["unpublished pages shared"] += len(owners) > len(set(owners))
        if name == "grow" and answer is not None:
            self.outcomes["grow refused"] += answer[1].count(0)
        if name == "admit" and answer is not None:
            for item, hit in zip(self.applied[-1][2], answer[2], strict=True):
                self.outcomes["hit with media"] += any(t < 0 for t in item.prompt[:hit])
                self.outcomes["hit in a scope"] += hit > 0 and item.scope > 0
        if name in {"fits", "fits_blocks"} and answer is not None:
            self.outcomes.update(f"{name} {reason}" for reason in answer[1])
        if name == "victims" and answer is not None:
            self.outcomes[f"victims {min(answer[0], 2)}"] += 1
        if name == "explain_match" and answer is not None:
            self.outcomes.update(f"missed {miss['reason']}" for miss in answer["missed"])
        if name == "set_quota" and error is None:
            self.outcomes["ceiling"] += args[2] is not None
        if name == "path_moves" and answer is not None:
            self.outcomes["path moved"] += bool(answer)
        if name == "resume" and answer is not None:
            self.outcomes["resume refused"] += answer[1].count(0)
        if name == "moves" and answer:
            self.outcomes["moves queued"] += 1
        if self.model.shelves and error is None:
            self._count_below(name, answer)

    def _count_below(self, name: str, answer: Any) -> None:
        """Note what happened to tiers below the device."""
        if name == "transfers":
            self.outcomes.update(f"transfer {row[2]} to {row[4]}" for row in answer)
        if name == "loading":
            self.outcomes.update(f"loading {state}" for state in answer[1])
        if name in {"admit", "resume"}:
            sources = {transfer.pair[0] for transfer in self.model.planned if transfer.load}
            self.outcomes["loads from two tiers"] += len(sources) == 2
        if name == "resume":
            loads = [seq.load for seq in self.model.sequences.values() if seq.load is not None]
            self.outcomes["resume that loads"] += any(load.is_resumed for load in loads)
        if name == "release":
            self.outcomes["released while loading"] += bool(self.model.left_loads())

    def _apply_updates(self, before: bytes, capacity: int) -> None:
        rows = np.zeros_like(self.mirror)
        handles = [s.handle for s in self.model.sequences.values() if not s.is_suspended]
        tables, _ = self.core.tables(handles)
        for index, handle in enumerate(handles):
            rows[:, handle & 0xFFFFFFFF] = tables[:, index]
        changed = np.argwhere((rows != self.mirror).transpose(1, 0, 2))
        expected = [(r, c, o, int(rows[c, r, o])) for r, c, o in changed.tolist()]
        if len(expected) > capacity:
            with pytest.raises(BufferTooSmallError) as caught:
                self.core.updates(capacity)
            assert caught.value.details["required"] == len(expected)
            self._check_unchanged(before, "updates")
            self.outcomes["updates too small"] += 1
            return
        answer = self.core.updates(capacity)
        assert answer == expected, f"updates: core {answer}, reference {expected}"
        for row, cls, column, page in answer:
            self.mirror[cls, row, column] = page

    # Checks after each operation

    def check(self) -> None:
        """Compare all that both ledgers can be asked; check the invariants of the core."""
        self._check_stats()
        self._check_sequences()
        if self.config.events:
            self._check_events()
        if len(self.applied) % self.validate_every == 0:
            self.core.validate()
            self._check_ownership()
            if self.config.events:
                snapshot = Mirror.of_snapshot(self.core.core.event_snapshot())
                assert vars(snapshot) == vars(self.reader)
                self.reader.check_closed()

    def _check_events(self) -> None:
        events = self.core.core.events(self.reader.number)
        for event in events:
            self.reader.apply(event)
            kind = event.get("reason", event["kind"])
            if event["tier"] != "device":
                self.outcomes[f"{kind} below"] += 1
                continue
            assert self.applied[-1][0] in _LOGS[kind], f"{kind} by {self.applied[-1]}"
            self.outcomes[kind] += 1
            self.outcomes["media stored"] += bool(event.get("media"))
        expected = self.model.cached_keys()
        assert self.reader.blocks == expected, f"reader {self.reader.blocks}, tree {expected}"
        assert self.reader.below == self.model.keys_below()
        full = sum(not block.is_partial for block in self.model.tree.blocks)
        self.outcomes["copies of a key"] += full > len(expected)

    def _check_stats(self) -> None:
        actual, expected = self.core.stats(), self.model.stats()
        if self.model.shelves:
            tiers, below = self.core.tier_stats(), self.model.tier_stats()
            assert tiers == below, f"tier_stats: core {tiers}, reference {below}"
        differing = {
            key: (actual.get(key), expected.get(key))
            for key in actual.keys() | expected.keys()
            if actual.get(key) != expected.get(key)
        }
        assert not differing, f"stats (core, reference): {differing}"
        assert self.core.quotas() == self.model.quotas()
        self.outcomes["guarded"] += expected["guarded_blocks"] > 0
        for cls in actual["classes"]:
            parts = [cls[state] for state in ("free", "fenced", "live", "cached", "reserved")]
            assert sum(parts) == cls["total"], f"states do not add up: {cls}"
            assert min(parts) >= 0

    def _check_sequences(self) -> None:
        sequences = sorted(self.model.sequences.values(), key=lambda seq: seq.handle)
        for seq in sequences:
            actual, expected = self.core.sequence(seq.handle), self.model.sequence(seq.handle)
            assert actual == expected, f"sequence: core {actual}, reference {expected}"
        sequences = [seq for seq in sequences if not seq.is_suspended]
        tables, used = self.core.tables([seq.handle for seq in sequences])
        for cls in range(self.model.num_classes):
            self._forget_dead_pages(cls)
        for index, seq in enumerate(sequences):
            for cls, pages in enumerate(self.model.table(seq.handle)):
                assert used[cls, index] == len(pages)
                row = tables[cls, index]
                assert not row[len(pages) :].any(), "columns past the end are not page 0"
                self._check_pages(cls, pages, row[: len(pages)].tolist())

    def _forget_dead_pages(self, cls: int) -> None:
        live = {*self.model.private_pages(cls), *self.model.cached_pages(cls)}
        known = self.pages[cls]
        self.pages[cls] = {page: known[page] for page in known.keys() & live}

    def _check_pages(self, cls: int, model_pages: list[int], core_pages: list[int]) -> None:
        known = self.pages[cls]
        owner = {page: name for name, page in known.items()}
        for name, page in zip(model_pages, core_pages, strict=True):
            assert (name == 0) == (page == 0), f"core page {page}, reference page {name}"
            if name == 0:
                continue
            assert 0 < page < self.model.num_pages[cls], f"page {page} is not usable"
            assert known.setdefault(name, page) == page, f"page {page} is not the shared one"
            assert owner.setdefault(page, name) == name, f"page {page} has two owners"

    def _check_ownership(self) -> None:
        owned_pages = self.core.owned_pages()
        for cls, total in enumerate(self.model.num_pages):
            # Nothing but the transfers that fill them names the pages of a load that was left.
            filled = self.model.left_pages(cls)
            owned = owned_pages[cls] + [self.pages[cls][page] for page in filled]
            assert sorted(owned) == list(range(1, total)), "a page is lost or owned twice"

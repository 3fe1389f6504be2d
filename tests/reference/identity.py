"""Scopes and media of the reference ledger; see docs/identity.md."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from reference.state import MAX_TOKEN, SequencesOpen, require

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger

PLAIN_SCOPE = (None, None)
MIN_MADE, PAGES_PER_NUMBER = 16, 256


class Numbers:
    """The numbers of one kind of thing."""

    def __init__(self, num_pages: tuple[int, ...], *known: Hashable) -> None:
        self.values: dict[int, Hashable] = dict(enumerate(known))
        self.holds: dict[int, int] = dict.fromkeys(self.values, 1)
        self.made = 0
        self.trial: list[int] | None = None  # the numbers made in it
        self.kept = len(known)
        self.swept = 0  # numbers freed by interning, for drivers to see that it happens
        self.least = max(MIN_MADE, min(num_pages) // PAGES_PER_NUMBER)

    def intern(self, value: Hashable, used: Callable[[], set[int]]) -> int:
        """Return the number of a value; `used` tells which ones cached blocks or sequences have."""
        for number, known in self.values.items():
            if known == value:
                return number
        if self.trial is None:
            self.sweep_if_due(used)
        number = next(n for n in range(len(self.values) + 1) if n not in self.values)
        self.values[number] = value
        self.holds[number] = 0
        self.made += 1
        if self.trial is not None:
            self.trial.append(number)
        return number

    def sweep_if_due(self, used: Callable[[], set[int]]) -> None:
        """Free what nothing has, if enough numbers were made since."""
        if self.made >= max(self.least, self.kept):
            keep = used()
            for number in list(self.values):
                if self.holds[number] == 0 and number not in keep:
                    self.free(number)
                    self.swept += 1
            self.made, self.kept = 0, len(self.values)

    def end_trial(self, used: Callable[[], set[int]], may_be_used: bool) -> None:
        """Unmake what was made in the trial and is not used; if something stays, sweep if due."""
        made, self.trial = self.trial or [], None
        stays = False
        for number in made:
            if self.holds.get(number, 0) == 0 and not (may_be_used and number in used()):
                self.made -= 1
                if number in self.values:
                    self.free(number)
            else:
                stays = True
        if stays:
            self.sweep_if_due(used)

    def is_held(self, number: int) -> bool:
        return self.holds.get(number, 0) > 0

    def free(self, number: int) -> None:
        del self.values[number], self.holds[number]


class Identity:
    """What `ReferenceLedger` does with scopes and media."""

    def begin_trial(self: ReferenceLedger) -> None:
        require(self.scopes.trial is None, "a trial has begun")
        self.scopes.trial, self.media.trial = [], []
        self.trial_admitted = self.counters["admitted"]

    def end_trial(self: ReferenceLedger) -> None:
        require(self.scopes.trial is not None, "no trial has begun")
        self.scopes.end_trial(self._used_scopes, may_be_used=True)
        admitted = self.counters["admitted"] > self.trial_admitted
        if admitted and self.media.trial:
            # Not searched for: all of them stay.
            self.media.trial = None
            self.media.sweep_if_due(self._used_media)
        else:
            self.media.end_trial(self._used_media, may_be_used=False)

    def intern_scope(
        self: ReferenceLedger, adapter: tuple | None = None, salt: bytes | str | None = None
    ) -> int:
        number = self.scopes.intern((adapter, salt), self._used_scopes)
        if number != 0:
            self.scopes.holds[number] += 1
        return number

    def release_scope(self: ReferenceLedger, scope: int) -> None:
        require(self.scopes.is_held(scope), "scope")
        if scope != 0:
            self.scopes.holds[scope] -= 1

    def drop_scope(self: ReferenceLedger, scope: int) -> None:
        require(self.scopes.is_held(scope), "scope")
        count = sum(seq.scope == scope for seq in self.sequences.values())
        if count:
            raise SequencesOpen(count)
        self.give_up_blocks([block for block in self.tree.blocks if block.scope == scope])
        if scope != 0:
            self.scopes.holds[scope] -= 1
            if self.scopes.holds[scope] == 0:
                self.scopes.free(scope)
                self.quota_of.pop(scope, None)

    def _used_scopes(self: ReferenceLedger) -> set[int]:
        used = {seq.scope for seq in self.sequences.values()} | set(self.quota_of)
        return used | {block.scope for block in self.tree.blocks}

    def intern_media(self: ReferenceLedger, digest: bytes, length: int) -> int:
        require(len(digest) == 32, "digest")
        require(1 <= length < MAX_TOKEN, "length")
        number = self.media.intern((digest, length), self._used_media)
        self.media.holds[number] += 1
        return -1 - number

    def release_media(self: ReferenceLedger, reference: int) -> None:
        require(reference < 0 and self.media.is_held(-1 - reference), "reference")
        self.media.holds[-1 - reference] -= 1

    def _used_media(self: ReferenceLedger) -> set[int]:
        texts = [block.text for block in self.tree.blocks]
        texts += [seq.tokens for seq in self.sequences.values() if self.publishes(seq)]
        return {-1 - token for text in texts for token in text if token < 0}

    def check_scope(self: ReferenceLedger, scope: int) -> None:
        require(scope == -1 or self.scopes.is_held(scope), "scope")

    def check_prompt(self: ReferenceLedger, tokens: tuple[int, ...]) -> None:
        for token in tokens:
            require(token < MAX_TOKEN, "token out of range")
            require(token >= 0 or self.media.is_held(-1 - token), "unknown media reference")

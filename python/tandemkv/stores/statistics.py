"""What stores count."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tandemkv.stores.outcomes import Outcome
from tandemkv.stores.tickets import Outcomes, Record

CALLS = ("put", "get", "exists")


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counters of a store since it was made. Keys, not calls, are counted.

    Attributes:
        asked: keys per call: `put`, `get`, `exists`.
        outcomes: per call, keys by the name of their `Outcome` in lower case, `ok` among them, and
            `pending`. They add up to `asked`.
        stored_bytes: payload bytes of puts that were stored.
        loaded_bytes: payload bytes that were read and verified.
        dropped: invalid values that were removed from the store.
        errors: failed calls to the store below, by what it said.
        suspended: whether calls are answered `BUSY` at once, since the store failed repeatedly.
    """

    asked: Mapping[str, int]
    outcomes: Mapping[str, Mapping[str, int]]
    stored_bytes: int
    loaded_bytes: int
    dropped: int
    errors: Mapping[str, int]
    suspended: bool

    @property
    def misses(self) -> int:
        """Keys of gets that ended in anything but a verified value."""
        gets = self.outcomes["get"]
        return self.asked["get"] - gets.get("ok", 0) - gets.get("pending", 0)


class Counters:
    """Counts for `StoreStats`, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._outcomes = {call: np.zeros(256, np.int64) for call in CALLS}
        self._bytes = {"put": 0, "get": 0}
        self._dropped = 0
        self._errors: Counter[str] = Counter()

    def ask(self, call: str, num_keys: int, payload_bytes: int) -> Record:
        """Count keys that are asked for; return what to tell their outcomes."""
        with self._lock:
            self._asked[call] += num_keys

        def record(outcomes: Outcomes) -> None:
            with self._lock:
                self._outcomes[call] += np.bincount(outcomes, minlength=256)
                if call in self._bytes:
                    good = int(np.count_nonzero(outcomes == Outcome.OK))
                    self._bytes[call] += good * payload_bytes

        return record

    def drop(self, num_values: int) -> None:
        """Count values that were removed."""
        with self._lock:
            self._dropped += num_values

    def error(self, text: str, count: int = 1) -> None:
        """Count failures of the store below."""
        with self._lock:
            self._errors[text] += count

    def snapshot(self, *, below: Mapping[str, int], suspended: bool) -> StoreStats:
        """Return the counts so far, with the errors that the store below counted."""
        with self._lock:
            outcomes = {}
            for call, counts in self._outcomes.items():
                named = {item.name.lower(): int(counts[item]) for item in Outcome if counts[item]}
                pending = self._asked[call] - int(counts.sum())
                outcomes[call] = {**named, **({"pending": pending} if pending else {})}
            return StoreStats(
                asked={call: self._asked[call] for call in CALLS},
                outcomes=outcomes,
                stored_bytes=self._bytes["put"],
                loaded_bytes=self._bytes["get"],
                dropped=self._dropped,
                errors=dict(self._errors + Counter(below)),
                suspended=suspended,
            )

"""What lies in the slots of a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.tiers.disk.slots import Trailer

Entries = list[tuple[int, NDArray[np.uint8], NDArray[np.int32]]]


@dataclass(frozen=True, slots=True)
class Damage:
    """A page that cannot be used.

    Attributes:
        class_index, page: where it is.
        problem: what is wrong with it.
    """

    class_index: int
    page: int
    problem: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"class": self.class_index, "page": self.page, "problem": self.problem}


@dataclass(slots=True)
class Scan:
    """The slots of a store by what their trailers say.

    Attributes:
        found: the trailer of each page that has a valid one; of several with one key the newest.
        older: pages whose key was stored again later.
        empty: pages that were never written, per class.
        damaged: pages with anything else.
    """

    found: list[Trailer] = field(default_factory=list)
    older: list[Trailer] = field(default_factory=list)
    empty: dict[int, int] = field(default_factory=dict)
    damaged: list[Damage] = field(default_factory=list)

    def settle(self) -> None:
        """Order what was found, oldest first, and keep the newest page of each key."""
        newest: dict[tuple[int, bytes], Trailer] = {}
        for trailer in sorted(self.found, key=lambda item: item.generation):
            older = newest.pop((trailer.class_index, trailer.key), None)
            if older is not None:
                self.older.append(older)
            newest[trailer.class_index, trailer.key] = trailer
        self.found = list(newest.values())

    @property
    def last_generation(self) -> int:
        """The largest generation of any page; 0 where there is none."""
        return max((item.generation for item in (*self.found, *self.older)), default=0)

    def entries(self) -> Entries:
        """Return (class, keys uint8 `[n, 32]`, pages int32 `[n]`) of the classes with pages."""
        answer: Entries = []
        for number in sorted({trailer.class_index for trailer in self.found}):
            mine = [trailer for trailer in self.found if trailer.class_index == number]
            keys = np.frombuffer(b"".join(trailer.key for trailer in mine), np.uint8)
            pages = np.array([trailer.page for trailer in mine], np.int32)
            answer.append((number, keys.reshape(len(mine), -1).copy(), pages))
        return answer


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a store holds.

    Attributes:
        path: its folder.
        fingerprint: what it was made for, in hex.
        file_bytes: bytes of its files.
        classes: per class: `page_bytes`, `slot_bytes`, `pages`, and of these `entries`, `older`
            (their key was stored again later), `empty` and `damaged`.
        damaged: the damaged pages: by their trailers or, where contents were read, by those too.
    """

    path: str
    fingerprint: str
    file_bytes: int
    classes: tuple[dict[str, int], ...]
    damaged: tuple[Damage, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "path": self.path,
            "fingerprint": self.fingerprint,
            "file_bytes": self.file_bytes,
            "classes": [dict(item) for item in self.classes],
            "damaged": [item.to_dict() for item in self.damaged],
        }

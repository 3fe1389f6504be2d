"""What lies in the tiers below the device: see "What lies there" in docs/tiers.md.

An entry is named by all that identifies a block, written out; only what was restored from disk is
known by its key alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

HOST, DISK = 1, 2
TIER_NAMES = {HOST: "host", DISK: "disk"}

Token = int | tuple[bytes, int]
"""A token, or the (digest, length) of the item of media that begins there."""


class Name(NamedTuple):
    """All that identifies a block below the device.

    Attributes:
        scope: adapter and salt.
        tokens: from the start of the text to the end of the block.
        following: the D tokens after them.
        draft_valid: whether its draft KV is valid.

    """

    scope: tuple[object, object]
    tokens: tuple[Token, ...]
    following: tuple[Token, ...]
    draft_valid: bool


@dataclass(eq=False)
class TierCopy:
    """A page of a tier that is in use.

    Attributes:
        entry: whose copy it is; None once that was dropped while a transfer used the page.
        is_writing: whether a transfer writes it.
        readers: the transfers that read it.

    """

    tier: int
    page: int
    entry: Entry | None
    is_writing: bool
    readers: int = 0


@dataclass(eq=False)
class Entry:
    """What is known of one block.

    Attributes:
        value: orders entries, the smallest goes first.
        is_loaded: whether it came to the device since it was offered last.

    """

    name: Name | bytes
    value: tuple[float, ...]
    copies: dict[int, TierCopy] = field(default_factory=dict)
    is_loaded: bool = False

    def valid_copy(self) -> TierCopy | None:
        """Return the copy to read, in the warmest tier that has one."""
        valid = [self.copies[tier] for tier in sorted(self.copies)]
        return next((copy for copy in valid if not copy.is_writing), None)


class Shelf:
    """The pages below the device that move together.

    Args:
        classes: those whose blocks share a page.
        pages: the pages of each tier.
        key_of: the tier key of a name.

    """

    def __init__(
        self, classes: list[int], pages: dict[int, int], key_of: Callable[[Name], bytes]
    ) -> None:
        self.classes = classes
        self.pages = pages
        self.key_of = key_of
        self.entries: dict[Name | bytes, Entry] = {}
        self.lost = 0  # copies pushed out that were not spare
        self.used: dict[int, dict[int, TierCopy]] = {tier: {} for tier in pages}

    @property
    def warmest(self) -> int:
        return min(self.pages)

    def find(self, name: Name) -> Entry | None:
        """Return the entry of this name; one that was restored is found by its key."""
        if name in self.entries:
            return self.entries[name]
        restored = any(isinstance(known, bytes) for known in self.entries)
        return self.entries.get(self.key_of(name)) if restored else None

    def key(self, entry: Entry) -> bytes:
        return entry.name if isinstance(entry.name, bytes) else self.key_of(entry.name)

    def find_key(self, key: bytes) -> Entry | None:
        return next((entry for entry in self.entries.values() if self.key(entry) == key), None)

    def is_alive(self, entry: Entry) -> bool:
        """Tell whether an entry was not dropped, and perhaps made anew, since it was seen."""
        return self.entries.get(entry.name) is entry

    def is_spare(self, copy: TierCopy) -> bool:
        """Tell whether losing this copy loses little."""
        if copy.entry is None or copy.is_writing:
            return False
        if copy.readers:
            return False
        colder = [other for tier, other in copy.entry.copies.items() if tier > copy.tier]
        return copy.entry.is_loaded or any(not other.is_writing for other in colder)

    def take(self, tier: int, value: tuple[float, ...], claimed: set[int]) -> int | None:
        """Return a page for something of this value, whose copy was pushed out if it had one."""
        used = self.used[tier]
        for page in range(self.pages[tier]):
            if page not in used:
                return page
        movable = [
            copy
            for copy in used.values()
            if copy.entry is not None
            and not copy.is_writing
            and not copy.readers
            and id(copy) not in claimed
        ]
        spare = [copy for copy in movable if self.is_spare(copy)]
        worth_less = [copy for copy in movable if copy.entry.value < value]
        victim = min(spare or worth_less, key=lambda copy: copy.entry.value, default=None)
        if victim is None:
            return None
        self.lost += not spare
        self.remove_copy(victim)
        return victim.page

    def put(self, entry: Entry, tier: int, page: int, is_writing: bool) -> TierCopy:
        """Give an entry, new or known, a copy."""
        copy = TierCopy(tier, page, entry, is_writing)
        self.entries[entry.name] = entry
        entry.copies[tier] = self.used[tier][page] = copy
        return copy

    def remove_copy(self, copy: TierCopy) -> None:
        """Take a copy from its entry; its page is free unless a transfer uses it."""
        entry, copy.entry = copy.entry, None
        del entry.copies[copy.tier]
        if not entry.copies:
            del self.entries[entry.name]
        self.free_if_idle(copy)

    def free_if_idle(self, copy: TierCopy) -> None:
        if copy.entry is None and not copy.is_writing and not copy.readers:
            del self.used[copy.tier][copy.page]

    def drop(self, entry: Entry) -> None:
        for copy in list(entry.copies.values()):
            self.remove_copy(copy)

    def counts(self, tier: int) -> dict[str, int]:
        """Count the pages of a tier by state."""
        copies, total = list(self.used.get(tier, {}).values()), self.pages.get(tier, 0)
        return {
            "total": total,
            "free": total - len(copies),
            "writing": sum(copy.is_writing for copy in copies),
            "valid": sum(not copy.is_writing for copy in copies),
            "spare": sum(self.is_spare(copy) for copy in copies),
            "pinned": sum(copy.readers > 0 for copy in copies),
        }


class Found(NamedTuple):
    """An entry with something to read for a block, and the name under which it was looked for."""

    shelf: Shelf
    ordinal: int
    name: Name
    entry: Entry


def claims(found: list[Found]) -> set[int]:
    """Return the `id()` of every copy that may be read."""
    copies = [copy for one in found for copy in one.entry.copies.values()]
    return {id(copy) for copy in copies if not copy.is_writing}

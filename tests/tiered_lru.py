"""A plain-Python cache of three tiers, for requests one after the other: flat lists and counters.

The device evicts the least recently used leaf. What it evicts goes to the host, in that order; the
host and the disk are lists ordered by when a block came from the device last. Every transfer ends
with the request that caused it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

Path = tuple[Hashable, ...]


@dataclass
class Entry:
    """What lower tiers know of a block: a place in the order, and where its copies are."""

    offer: int
    is_loaded: bool = False
    host: str = ""  # "", "writing" or "valid"
    disk: str = ""
    reads: str = ""  # the tier from which it is being loaded
    is_claimed: bool = False  # found by the running request, which has not planned its loads yet

    def can_go(self, tier: str) -> bool:
        """Tell whether its copy there may be given up."""
        return getattr(self, tier) == "valid" and self.reads != tier and not self.is_claimed

    def is_spare(self, tier: str) -> bool:
        return self.is_loaded or (tier == "host" and self.disk == "valid")


class TieredLru:
    """Counts hits by tier.

    Args:
        device: blocks on the device.
        host: blocks on the host, 0 for none.
        disk: blocks on disk, 0 for none.
    """

    def __init__(self, device: int, host: int, disk: int) -> None:
        self.size = {"device": device, "host": host, "disk": disk}
        self.first = "host" if host else "disk"
        self.used: dict[Path, int] = {}
        self.children: Counter[Path] = Counter()
        self.entries: dict[Path, Entry] = {}
        self.clock = self.offers = 0
        self.counts: Counter[str] = Counter()

    def request(self, blocks: list[Hashable]) -> None:
        paths = [tuple(blocks[: end + 1]) for end in range(len(blocks))]
        if len(paths) > self.size["device"]:
            return
        here = self._agree(paths, 0, self.used)
        found = self._agree(paths, here, self.entries)
        for path in paths[here:found]:
            tier = "host" if self.entries[path].host else "disk"
            self.counts[tier] += 1
            self.entries[path].reads = tier
            self.entries[path].is_claimed = True
        self.counts["device"] += here
        while len(self.used) + len(paths) - here > self.size["device"]:
            self._evict(set(paths))
        for path in paths[here:found]:
            self.entries[path].is_claimed = False
        if any(entry.reads or "writing" in (entry.host, entry.disk) for entry in self.every()):
            self._copy_ahead()
            self._complete()
        self.clock += 1
        for path in paths[here:]:
            self.children[path[:-1]] += 1
        self.used.update(dict.fromkeys(paths, self.clock))

    def every(self) -> list[Entry]:
        return list(self.entries.values())

    @staticmethod
    def _agree(paths: list[Path], start: int, known: dict[Path, object]) -> int:
        end = start
        while end < len(paths) and paths[end] in known:
            end += 1
        return end

    def _evict(self, own: set[Path]) -> None:
        leaves = [path for path in self.used if not self.children[path] and path not in own]
        path = min(leaves, key=self.used.__getitem__)
        del self.used[path]
        self.children[path[:-1]] -= 1
        self.offers += 1
        entry = self.entries.get(path)
        if entry is not None:
            entry.offer, entry.is_loaded = self.offers, False
        elif self._take(self.first, self.offers):
            entry = self.entries[path] = Entry(self.offers)
            setattr(entry, self.first, "writing")
            self.counts["offloaded"] += 1
        else:
            self.counts["rejected"] += 1

    def _take(self, tier: str, offer: int) -> bool:
        """Find a page for a block: a free one, a spare copy's, or that of one worth less."""
        if sum(getattr(entry, tier) != "" for entry in self.every()) < self.size[tier]:
            return True
        can_go = [
            (not entry.is_spare(tier), entry.offer, path)
            for path, entry in self.entries.items()
            if entry.can_go(tier)
        ]
        if not can_go:
            return False
        is_needed, other, path = min(can_go, key=lambda item: item[:2])
        if is_needed and other > offer:
            return False
        self.counts["lost"] += is_needed
        setattr(self.entries[path], tier, "")
        if not (self.entries[path].host or self.entries[path].disk):
            del self.entries[path]
        return True

    def _copy_ahead(self) -> None:
        """Copy from host to disk until an eighth of the host can go."""
        if not (self.size["host"] and self.size["disk"]):
            return
        while True:
            held = [entry for entry in self.every() if entry.host]
            going = sum(
                entry.disk == "writing" or (entry.can_go("host") and entry.is_spare("host"))
                for entry in held
            )
            if self.size["host"] - len(held) + going >= -(-self.size["host"] // 8):
                return
            can_go = [
                entry
                for entry in held
                if entry.can_go("host") and not entry.disk and not entry.is_loaded
            ]
            if not can_go:
                return
            entry = min(can_go, key=lambda item: item.offer)
            if not self._take("disk", entry.offer):
                return
            entry.disk = "writing"
            self.counts["host to disk"] += 1

    def _complete(self) -> None:
        for entry in self.every():
            entry.host = entry.host and "valid"
            entry.disk = entry.disk and "valid"
            entry.is_loaded = entry.is_loaded or entry.reads != ""
            entry.reads = ""

"""The tiers of the reference ledger below the device: see docs/tiers.md.

Everything is found by looking at all entries; `loading.py` has the way up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from reference.shelves import DISK, HOST, TIER_NAMES, Entry, Name, Shelf, TierCopy
from reference.state import BufferTooSmall, Load, Misuse, cdiv, require
from reference.tree import DEFAULT_PRIORITY, Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger

DEVICE, PRIVATE = 0, -1
NAMES = {DEVICE: "device", **TIER_NAMES}
PAIRS = ((DEVICE, HOST), (DEVICE, DISK), (HOST, DISK), (HOST, DEVICE), (DISK, DEVICE))


@dataclass(eq=False)
class Transfer:
    """A copy between two tiers.

    Attributes:
        pages: on the device, the page in each class of the shelf.
        source, destination: the copies of the entry that it reads and writes; None: the device.
        load, ordinal: which block of which load it fills.

    """

    number: int
    shelf: Shelf
    entry: Entry
    source: TierCopy | None
    destination: TierCopy | None
    pages: list[int] = field(default_factory=list)
    load: Load | None = None
    ordinal: int = 0

    @property
    def pair(self) -> tuple[int, int]:
        ends = (self.source, self.destination)
        source, destination = (DEVICE if copy is None else copy.tier for copy in ends)
        return source, destination

    def rows(self) -> list[tuple[int, int, int, int, int, int, bytes]]:
        """Return (id, class, source tier, its page, destination tier, its page, key) per class."""
        source, destination = self.pair
        rows = []
        for index, cls in enumerate(self.shelf.classes):
            ends = [
                self.pages[index] if copy is None else copy.page
                for copy in (self.source, self.destination)
            ]
            key = self.shelf.key(self.entry)
            rows.append((self.number, cls, source, ends[0], destination, ends[1], key))
        return rows


class Leaving(NamedTuple):
    """A full block that is evicted, or one of its side pages.

    Attributes:
        worth: its place among others.
        pages: those that may be kept, by class.
        wanted: classes in which its page was not merely left behind.
    """

    name: Name
    worth: tuple[float, ...]
    pages: dict[int, int]
    wanted: frozenset[int]


class Tiers:
    """What `ReferenceLedger` does with host and disk."""

    def build_tiers(self: ReferenceLedger) -> None:
        """Lay out the shelves: the full classes are one."""
        tiers = {HOST: self.config.host_pages, DISK: self.config.disk_pages}
        given = {tier: pages for tier, pages in tiers.items() if pages is not None}
        sides = [[cls] for cls in self.side_classes]
        groups = [self.full_classes, *sides] if given else []
        self.shelves = []
        for group in groups:
            least = {tier: min(pages[cls] for cls in group) for tier, pages in given.items()}
            there = {tier: pages for tier, pages in least.items() if pages > 0}
            self.shelves.append(Shelf(group, there, self.tier_key))
        self.offers = 0
        self.newest_transfer = 0
        self.planned: list[Transfer] = []
        self.handed_out: dict[int, Transfer] = {}
        self.claimed_copies: set[int] = set()  # `id()`, during `admit` and `resume`

    def open_transfers(self: ReferenceLedger) -> list[Transfer]:
        return [*self.planned, *self.handed_out.values()]

    def _shelf_of(self: ReferenceLedger, cls: int) -> Shelf | None:
        return next((shelf for shelf in self.shelves if cls in shelf.classes), None)

    def plan_transfer(self: ReferenceLedger, transfer: Transfer) -> None:
        transfer.number = self.newest_transfer = self.newest_transfer + 1
        if transfer.source is not None:
            transfer.source.readers += 1
        self.planned.append(transfer)

    # Down

    def name_of(self: ReferenceLedger, block: Block) -> Name:
        """Name a full block of the tree by all that identifies it."""
        tokens = tuple(t for b in block.path() for t in b.tokens)
        return self._name(block.scope, tokens, block.following, block.draft_valid)

    def offer_all(self: ReferenceLedger, leaving: Leaving | None) -> None:
        """Offer what is evicted by need to the first tier: a block, then its pages by class."""
        if leaving is None:
            return
        name, worth, pages, wanted = leaving
        for shelf in self.shelves:
            if all(pages.get(cls, 0) for cls in shelf.classes):
                is_side = shelf is not self.shelves[0]
                given = [pages[cls] for cls in shelf.classes]
                side_worth = (int(shelf.classes[0] in wanted), 0, 0)
                self._offer(shelf, name, side_worth if is_side else worth, given)

    def leaving(self: ReferenceLedger, block: Block, classes: list[int]) -> Leaving | None:
        """Return what of a block that is evicted may be kept below: nothing of a partial one."""
        if block.is_partial or not self.shelves:
            return None
        pages = {cls: block.pages[cls] for cls in classes if self._may_be_kept(cls, block)}
        value = (block.priority, block.rank, block.last_use)
        return Leaving(self.name_of(block), value, pages, frozenset(block.wanted))

    def _may_be_kept(self: ReferenceLedger, cls: int, block: Block) -> bool:
        if cls in self.full_classes:
            return True
        covers_all = block.snapshots.get(cls, block.covered) == block.covered
        return covers_all and not self._fence_is_open(block.side_stamps.get(cls, 0))

    def _offer(
        self: ReferenceLedger,
        shelf: Shelf,
        name: Name,
        worth: tuple[float, ...],
        pages: list[int],
    ) -> None:
        if not shelf.pages:
            return
        self.offers += 1
        value, entry = (*worth, self.offers), shelf.find(name)
        if entry is not None:
            entry.value, entry.is_loaded = value, False
            self.tier_counters["renewed"] += 1
            return
        page = shelf.take(shelf.warmest, value, self.claimed_copies)
        if page is None:
            self.tier_counters["rejected"] += 1
            return
        entry = Entry(name, value)
        copy = shelf.put(entry, shelf.warmest, page, is_writing=True)
        self.plan_transfer(Transfer(0, shelf, entry, None, copy, pages))

    def _plan_ahead(self: ReferenceLedger, room: int) -> None:
        """Plan copies from host to disk before they are needed, as far as their rows fit."""
        for shelf in self._with_both_tiers():
            while self._lacks_spare(shelf) and room >= len(shelf.classes):
                waiting = [c for c in self._only_on_host(shelf) if not shelf.is_spare(c)]
                if not waiting or not self._copy_down(shelf, min(waiting, key=_value)):
                    break
                room -= len(shelf.classes)

    def _with_both_tiers(self: ReferenceLedger) -> list[Shelf]:
        return [shelf for shelf in self.shelves if shelf.pages.keys() == {HOST, DISK}]

    def _lacks_spare(self: ReferenceLedger, shelf: Shelf) -> bool:
        used = shelf.used[HOST].values()
        leaving = {id(t.source) for t in self.open_transfers() if t.pair == (HOST, DISK)}
        ready = shelf.pages[HOST] - len(used)
        ready += sum(shelf.is_spare(copy) or id(copy) in leaving for copy in used)
        return ready < cdiv(shelf.pages[HOST], 8)

    def _only_on_host(self: ReferenceLedger, shelf: Shelf) -> list[TierCopy]:
        """Return the valid copies on the host that nothing reads, of entries not on disk."""
        return [
            copy
            for copy in shelf.used[HOST].values()
            if not copy.is_writing and not copy.readers
            if copy.entry is not None and DISK not in copy.entry.copies
        ]

    def _copy_down(self: ReferenceLedger, shelf: Shelf, copy: TierCopy) -> bool:
        """Plan to copy from host to disk, if there is a page for it."""
        assert copy.entry is not None
        page = shelf.take(DISK, copy.entry.value, self.claimed_copies)
        if page is None:
            return False
        below = shelf.put(copy.entry, DISK, page, is_writing=True)
        self.plan_transfer(Transfer(0, shelf, copy.entry, copy, below))
        return True

    def flush(self: ReferenceLedger) -> int:
        """Plan a copy on disk for all that lies on the host only, as far as there is room."""
        count = 0
        for shelf in self._with_both_tiers():
            for copy in sorted(self._only_on_host(shelf), key=_value, reverse=True):
                if not self._copy_down(shelf, copy):
                    break
                count += 1
        return count

    def offload(self: ReferenceLedger, blocks: int) -> int:
        """Evict up to so many blocks; return how many."""
        require(blocks >= 0, "blocks")
        count = 0
        while count < blocks and any(
            not block.children and self.may_evict(PRIVATE, block) for block in self.evictable()
        ):
            self.evict_one(PRIVATE)
            count += 1
        return count

    def restore(
        self: ReferenceLedger, tier: str, cls: int, keys: list[bytes], pages: list[int]
    ) -> int:
        """Make entries of what was found below."""
        at = next((number for number, name in TIER_NAMES.items() if name == tier), DEVICE)
        shelf = self._shelf_of(cls)
        if shelf is None or at not in shelf.pages:
            raise Misuse("no pages of this class there")
        require(len(keys) == len(pages), "lengths")
        require(len(set(keys)) == len(keys) and len(set(pages)) == len(pages), "repeated")
        entries = [shelf.find_key(key) for key in keys]
        require(entries == [None] * len(keys), "known key")
        for page in pages:
            require(0 <= page < shelf.pages[at], "page")
            require(page not in shelf.used[at], "page in use")
        for key, page in zip(keys, pages, strict=True):
            self.offers += 1
            shelf.put(Entry(key, (0, 0, 0, self.offers)), at, page, is_writing=False)
        self.tier_counters["restored"] += len(keys)
        return len(keys)

    def adopt(self: ReferenceLedger, cls: int, keys: list[bytes]) -> tuple[int, list[int]]:
        """Make entries on the host of what came from elsewhere; return how many and which pages."""
        shelf = self._shelf_of(cls)
        if shelf is None or HOST not in shelf.pages:
            raise Misuse("no pages of this class there")
        used_now = (DEFAULT_PRIORITY, self.policy.fresh_rank(), self.tick)
        worth = used_now if shelf is self.shelves[0] else (0, 0, 0)
        self.offers += len(keys)
        kept: set[int] = set()
        pages = []
        for place, key in enumerate(keys):
            value = (*worth, self.offers - place)
            entry, page = shelf.find_key(key), None
            if entry is not None:
                entry.value, entry.is_loaded = value, False
                self.tier_counters["renewed"] += 1
            else:
                page = shelf.take(HOST, value, kept)
                if page is None:
                    self.tier_counters["rejected"] += 1
                else:
                    entry = Entry(key, value)
                    shelf.put(entry, HOST, page, is_writing=False)
                    self.tier_counters["adopted"] += 1
            if entry is not None:
                kept |= {id(copy) for copy in entry.copies.values()}
            pages.append(-1 if page is None else page)
        return len([page for page in pages if page >= 0]), pages

    def drop_entries(self: ReferenceLedger) -> None:
        for shelf in self.shelves:
            for entry in list(shelf.entries.values()):
                shelf.drop(entry)

    # Transfers

    def transfers(
        self: ReferenceLedger, capacity: int
    ) -> list[tuple[int, int, int, int, int, int, bytes]]:
        """Return the rows of all that is planned; consumed."""
        rows = [row for transfer in self.planned for row in transfer.rows()]
        if len(rows) > capacity:
            raise BufferTooSmall(len(rows))
        self._plan_ahead(capacity - len(rows))
        rows = [row for transfer in self.planned for row in transfer.rows()]
        self.handed_out |= {transfer.number: transfer for transfer in self.planned}
        self.planned = []
        self.seen_keys += sorted({key for *_, key in rows} - {*self.seen_keys})
        return rows

    def pending_transfers(self: ReferenceLedger) -> int:
        return sum(len(transfer.shelf.classes) for transfer in self.planned)

    def complete_transfers(self: ReferenceLedger, items: list[tuple[int, int]]) -> None:
        """Items are (id, ok)."""
        numbers = [number for number, _ in items]
        require(len(set(numbers)) == len(numbers), "repeated id")
        require(all(number in self.handed_out for number in numbers), "unknown id")
        for number, ok in items:
            self._complete(self.handed_out.pop(number), bool(ok))

    def _complete(self: ReferenceLedger, transfer: Transfer, ok: bool) -> None:
        shelf, entry = transfer.shelf, transfer.entry
        self.tier_counters[transfer.pair if ok else "failed"] += 1
        if transfer.source is not None:
            transfer.source.readers -= 1
            shelf.free_if_idle(transfer.source)
        if transfer.destination is not None:
            transfer.destination.is_writing = False
            shelf.free_if_idle(transfer.destination)
            if not ok and transfer.destination.entry is not None:
                shelf.remove_copy(transfer.destination)
        elif shelf.is_alive(entry):
            entry.is_loaded = ok
            if not ok:
                shelf.drop(entry)
        if transfer.load is not None:
            self.note_arrival(transfer.load, transfer.ordinal, ok)

    # Reading

    def tier_stats(self: ReferenceLedger) -> dict[str, Any]:
        """Count the pages by state and the transfers by their tiers."""
        counted = {f"{NAMES[source]}_to_{NAMES[end]}": (source, end) for source, end in PAIRS}
        counted |= {name: name for name in ("failed", "renewed", "rejected", "restored", "adopted")}
        counters = {name: self.tier_counters[key] for name, key in counted.items()}
        return {
            "shelves": [
                {"tier": TIER_NAMES[tier], "classes": shelf.classes, **shelf.counts(tier)}
                for tier in TIER_NAMES
                for shelf in self.shelves
            ],
            "counters": {**counters, "lost": sum(shelf.lost for shelf in self.shelves)},
            "open_transfers": len(self.open_transfers()),
        }


def _value(copy: TierCopy) -> tuple[float, ...]:
    assert copy.entry is not None
    return copy.entry.value

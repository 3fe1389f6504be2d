"""What `admit` and `resume` of the reference find below the device: "Up" in docs/tiers.md."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING

from reference.keys import chained_key, named_key
from reference.shelves import DISK, HOST, TIER_NAMES, Found, Name, Shelf, Token
from reference.state import Load, Request, Sequence, require
from reference.tiers import DEVICE, Transfer
from reference.tree import Block

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger


class Loading:
    """What `ReferenceLedger` does to bring back what it once evicted."""

    def tier_key(self: ReferenceLedger, name: Name) -> bytes:
        """Return the key of a name, by which others know the block."""
        config = self.config
        return named_key(
            config.fingerprint, config.tokens_per_block, name, self._keys_differ_by_tier()
        )

    def _keys_differ_by_tier(self: ReferenceLedger) -> bool:
        return self.config.has_draft or self.config.lookahead > 0

    def keys_below(self: ReferenceLedger) -> dict[str, set[bytes]]:
        """Return the keys of blocks, as events name them, that each lower tier has or gets."""
        keys: dict[str, set[bytes]] = {name: set() for name in TIER_NAMES.values()}
        for entry in self.shelves[0].entries.values() if self.shelves else []:
            for tier in entry.copies:
                if isinstance(entry.name, Name):
                    size = self.config.tokens_per_block
                    key = chained_key(self.config.fingerprint, size, entry.name)
                    keys[TIER_NAMES[tier]].add(key)
                elif not self._keys_differ_by_tier():
                    keys[TIER_NAMES[tier]].add(entry.name)
        return keys

    def _name(
        self: ReferenceLedger,
        scope: int,
        tokens: Iterable[int],
        following: Iterable[int],
        draft_valid: bool,
    ) -> Name:
        return Name(
            self.scopes.values[scope],
            tuple(self._written_out(t) for t in tokens),
            tuple(self._written_out(t) for t in following),
            draft_valid,
        )

    def _written_out(self: ReferenceLedger, token: int) -> Token:
        return token if token >= 0 else self.media.values[-1 - token]

    def find_loads(self: ReferenceLedger, item: Request) -> list[Found]:
        """Return what an item loads: blocks, then pages of windows, then states."""
        if not self.shelves or not self.publishes(item):
            return []
        path = self._match(item.prompt, item.scope, item.draft_from)
        tpb = self.config.tokens_per_block
        first = path.usable // tpb
        blocks = self._find_blocks(item, first)
        for count in range(len(blocks), 0, -1):
            sides = self._find_sides(list(path.path[:first]), blocks[:count])
            if sides is not None:
                return [*blocks[:count], *sides]
        return []

    def _find_blocks(self: ReferenceLedger, item: Request, first: int) -> list[Found]:
        """Return the blocks that go on from an ordinal."""
        tokens, shelf, found = item.prompt, self.shelves[0], []
        tpb, lookahead = self.config.tokens_per_block, self.config.lookahead
        while True:
            ordinal = first + len(found)
            end = (ordinal + 1) * tpb
            if end > len(tokens) - 1 or end + lookahead > len(tokens):
                return found
            # Draft KV above `draft_from` must be there; below it, either will do.
            needs_draft = 0 <= item.draft_from < end
            either = self.config.has_draft and not needs_draft
            names = [
                self._name(item.scope, tokens[:end], tokens[end : end + lookahead], draft_valid)
                for draft_valid in ((True, False) if either else (True,))
            ]
            entries = [self._find_one(shelf, ordinal, name) for name in names]
            readable = [entry for entry in entries if entry is not None]
            if not readable:
                return found
            found.append(readable[0])

    def _find_one(self: ReferenceLedger, shelf: Shelf, ordinal: int, name: Name) -> Found | None:
        entry = shelf.find(name)
        is_there = entry is not None and entry.valid_copy() is not None
        return Found(shelf, ordinal, name, entry) if is_there else None

    def _find_sides(
        self: ReferenceLedger, path: list[Block], blocks: list[Found]
    ) -> list[Found] | None:
        """Return the pages of windows and states to continue at the end of the blocks found.

        None: a class does not accept that end.
        """
        tpb, first = self.config.tokens_per_block, len(path)
        end = (first + len(blocks)) * tpb
        sides: list[Found] = []
        for shelf in self.shelves[1:]:
            [cls] = shelf.classes
            rule = self.lifetimes[cls]
            if cls in self.state_classes:
                below = [self._find_one(shelf, blocks[-1].ordinal, blocks[-1].name)]
                is_needed = [True]
            else:
                below = [
                    self._find_one(shelf, block.ordinal, block.name)
                    if self._is_kept(cls, block.ordinal, end)
                    else None
                    for block in blocks
                ]
                is_needed = [rule.is_live(b.ordinal, tpb, end, lookahead=0) for b in blocks]
                for ordinal, block in enumerate(path):
                    if rule.is_live(ordinal, tpb, end, lookahead=0) and not block.pages[cls]:
                        return None
            if any(need and page is None for need, page in zip(is_needed, below, strict=True)):
                return None
            sides += [page for page in below if page is not None]
        return sides

    def is_coming(self: ReferenceLedger, found: list[Found]) -> bool:
        """Tell whether one of them is on its way to the device already."""
        coming = [t.entry for t in self.open_transfers() if t.pair[1] == DEVICE]
        return any(one.entry in coming for one in found)

    def num_blocks_in(self: ReferenceLedger, found: list[Found]) -> int:
        return sum(one.shelf is self.shelves[0] for one in found)

    def left_out(self: ReferenceLedger, found: Sequence_[Found]) -> set[tuple[int, int]]:
        """Return the (class, ordinal) of loaded blocks into whose windows nothing is loaded."""
        come = {(cls, one.ordinal) for one in found for cls in one.shelf.classes}
        blocks = [one.ordinal for one in found if one.shelf is self.shelves[0]]
        return {(cls, at) for cls in self.windowed_classes for at in blocks} - come

    def plan_load(self: ReferenceLedger, seq: Sequence, found: list[Found]) -> None:
        """Fill the first private blocks of a sequence, and its states, from below."""
        if not found:
            return
        first, count = len(seq.path), self.num_blocks_in(found)
        seq.load = Load(first, seq.private[:count], dict(seq.own))
        for one in found:
            own = seq.private[one.ordinal - first]
            pages = [seq.own[cls][0] if cls in seq.own else own[cls] for cls in one.shelf.classes]
            copy = one.entry.valid_copy()
            transfer = Transfer(0, one.shelf, one.entry, copy, None, pages, seq.load, one.ordinal)
            self.plan_transfer(transfer)

    def is_loading(self: ReferenceLedger, load: Load) -> bool:
        return any(transfer.load is load for transfer in self.open_transfers())

    def left_loads(self: ReferenceLedger) -> list[Load]:
        """Return the loads that nobody waits for and that are not over."""
        loads = [transfer.load for transfer in self.open_transfers()]
        left = [load for load in loads if load is not None and load.is_left]
        return list({id(load): load for load in left}.values())

    def _look_up_ready(self: ReferenceLedger, handles: list[int]) -> list[Sequence]:
        """Return the sequences of handles that may run."""
        sequences = self._look_up(handles)
        require(all(seq.load is None for seq in sequences), "loading")
        return sequences

    def loading(self: ReferenceLedger, handles: list[int]) -> tuple[int, list[int]]:
        """Return how many load, and for each: 0 ready, 1 loading, 2 suspended."""
        by_handle = {seq.handle: seq for seq in self.sequences.values()}
        require(all(handle in by_handle for handle in handles), "stale handle")
        sequences = [by_handle[handle] for handle in handles]
        out = [2 if seq.is_suspended else int(seq.load is not None) for seq in sequences]
        return out.count(1), out

    def leave_load(self: ReferenceLedger, seq: Sequence) -> list[list[int]]:
        """Leave the blocks that a load fills; return the other private blocks."""
        if seq.load is None:
            return seq.private
        seq.load.is_left = True
        self._count_missed(seq.load, len(seq.load.blocks))
        return [pages for pages in seq.private if pages not in seq.load.blocks]

    def note_arrival(self: ReferenceLedger, load: Load, ordinal: int, ok: bool) -> None:
        """Settle what a load filled, once nothing of it is on its way."""
        if not ok:
            load.failed.append(ordinal)
        if self.is_loading(load):
            return
        if load.is_left:
            for pages in load.blocks:
                self._give_up(pages, self._stamp())
            for cls in self.state_classes:
                self._give_up_page(cls, self._stamp())
            return
        [seq] = [seq for seq in self.sequences.values() if seq.load is load]
        seq.load = None
        tpb, end = self.config.tokens_per_block, load.first + len(load.blocks)
        arrived = min(load.failed, default=end) - load.first
        if load.failed and self.side_classes:
            self._count_missed(load, len(load.blocks))
            self.suspend_one(seq, publish=False)
            return
        for role in seq.used_roles:
            seq.valid[role] = (load.first + arrived) * tpb
        self.counters["loaded_blocks"] += arrived
        self.counters["resumed_hit_tokens" if load.is_resumed else "hit_tokens"] += arrived * tpb
        self._count_missed(load, len(load.blocks) - arrived)
        self._publish_full_blocks(seq)

    def _count_missed(self: ReferenceLedger, load: Load, blocks: int) -> None:
        if not load.is_resumed:
            self.counters["missed_load_tokens"] += blocks * self.config.tokens_per_block

    def match_tiers(
        self: ReferenceLedger, tokens: tuple[int, ...], scope: int, draft_from: int
    ) -> tuple[int, int, int]:
        """Return the tokens that an admission would find on the device, the host and on disk."""
        self.match(tokens, scope, draft_from)  # the same errors
        item = Request(tokens, scope, 1, len(tokens), draft_from)
        found, tpb = self.find_loads(item), self.config.tokens_per_block
        blocks = found[: self.num_blocks_in(found)]
        tiers = [copy.tier for one in blocks if (copy := one.entry.valid_copy()) is not None]
        on_device = blocks[0].ordinal * tpb if blocks else self._match_item(item).usable
        return on_device, tiers.count(HOST) * tpb, tiers.count(DISK) * tpb

"""`resize` of the reference ledger: see docs/ledger.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.state import MAX_TOKEN, Request, require

if TYPE_CHECKING:
    from reference.ledger import ReferenceLedger

NOBODY = -1


class Resizing:
    """What `ReferenceLedger` does to change pools. Its pages have names, not places."""

    def resize(self: ReferenceLedger, num_pages: list[int]) -> None:
        require(not self.open_steps, "steps are open")
        loads = [transfer for transfer in self.open_transfers() if transfer.load is not None]
        require(not self.planned and not loads, "pages are on their way")
        require(len(num_pages) == self.num_classes, "one size per class")
        require(all(2 <= pages < MAX_TOKEN for pages in num_pages), "num_pages")
        usable = [*(pages - 1 for pages in num_pages), *self.usable[self.num_classes :]]
        # Records of a ledger without a full class stay as they are, so nothing is asked of them.
        for cls, most in enumerate(usable[: self.num_classes]):
            require(self._must_stay(cls) <= most, "what is held does not fit")
            floors = self.floors_against(NOBODY) if cls in self.full_classes else 0
            require(floors <= most, "the floors do not fit")
            for seq in self.sequences.values():
                item = Request(tuple(seq.tokens), seq.scope, 1, seq.max_total, seq.draft_from)
                against = self.floors_against(seq.scope) if cls in self.full_classes else 0
                require(self._worst(cls, item) + against <= most, "an open sequence needs more")
        before, self.usable = self.usable, usable
        gone = [max(old - new, 0) for old, new in zip(before, usable, strict=True)]
        self._make_room(NOBODY, gone)
        for cls, (old, new) in enumerate(zip(before, usable, strict=True)):
            self.free[cls] += new - old
        self.num_pages = list(num_pages)

    def _must_stay(self: ReferenceLedger, cls: int) -> int:
        """Count the pages of a class that are owned for good, or promised."""
        owned = self.usable[cls] - self.free[cls]
        promised = sum(self.promise(seq, cls) for seq in self.sequences.values())
        return owned - self.num_evictable_for(NOBODY, cls) + promised

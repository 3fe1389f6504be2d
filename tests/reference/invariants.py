"""What must hold in the reference ledger after every operation, checked by itself."""

from __future__ import annotations

from collections import Counter

from reference.ledger import ReferenceLedger
from reference.shelves import Shelf
from reference.state import Load, Sequence


def check(model: ReferenceLedger) -> None:
    """Check all that docs/ledger.md and docs/groups.md call always true."""
    _check_counts(model)
    _check_tree(model)
    for cls, queue in model.queues.items():
        unpinned = [
            block
            for block in model.tree.blocks
            if block.pages[cls] and not model.is_pinned(cls, block)
        ]
        assert {id(block) for block in queue} == {id(block) for block in unpinned}
        assert len(queue) == len(unpinned), "a side page stands in its queue twice"
    for seq in model.sequences.values():
        _check_sequence(model, seq)
    for shelf in model.shelves:
        _check_shelf(model, shelf)


def _check_shelf(model: ReferenceLedger, shelf: Shelf) -> None:
    transfers = model.open_transfers()
    read = Counter(id(transfer.source) for transfer in transfers)
    written = Counter(id(transfer.destination) for transfer in transfers)
    for tier, used in shelf.used.items():
        counts = shelf.counts(tier)
        parts = [counts[state] for state in ("free", "writing", "valid")]
        assert sum(parts) == counts["total"]
        assert counts["free"] >= 0
        assert counts["spare"] + counts["pinned"] <= counts["valid"]
        for page, copy in used.items():
            assert 0 <= page < shelf.pages[tier]
            assert (copy.tier, copy.page) == (tier, page)
            assert copy.readers == read[id(copy)]
            assert copy.is_writing == (written[id(copy)] == 1)
            assert not (copy.readers and copy.is_writing), "what is not there is read"
            if copy.entry is None:
                assert copy.readers or copy.is_writing, "a page is lost"
            else:
                assert copy.entry.copies[tier] is copy
    for name, entry in shelf.entries.items():
        assert entry.name == name
        assert entry.copies, "an entry has nothing left"
        assert all(shelf.used[tier][c.page] is c for tier, c in entry.copies.items())
    values = [entry.value for entry in shelf.entries.values()]
    assert len(set(values)) == len(values), "two entries are worth the same"
    keys = [shelf.key(entry) for entry in shelf.entries.values()]
    assert len(set(keys)) == len(keys), "a block has two entries"


def _check_counts(model: ReferenceLedger) -> None:
    for cls, usable in enumerate(model.usable):
        live, cached = model.private_pages(cls), model.cached_pages(cls)
        fenced = sum(at == cls for at, _ in model.fenced)
        owned = len(set(live)) + len(cached)
        assert model.free[cls] >= 0
        assert model.free[cls] + fenced + owned == usable, f"class {cls} lost or gained a page"
        assert not set(live) & set(cached)
        assert len(set(cached)) == len(cached)


def _check_tree(model: ReferenceLedger) -> None:
    protected = model.protected()
    for block in model.tree.blocks:
        assert all(block.pages[cls] for cls in model.full_classes)
        assert not any(block.pages[cls] for cls in model.cross_classes)
        assert block.snapshots.keys() == {cls for cls in model.state_classes if block.pages[cls]}
        assert all(0 < tokens <= block.covered for tokens in block.snapshots.values())
        assert block.parent is None or not block.parent.is_partial
        for cls in model.side_classes:
            if id(block) not in protected and block.pages[cls]:
                assert not model.is_pinned(cls, block), "a block could go under a pinned page"


def _loaded(seq: Sequence, load: Load) -> list[tuple[int, list[int]]]:
    return list(enumerate(load.blocks, start=load.first - len(seq.path)))


def _end(model: ReferenceLedger, seq: Sequence) -> int:
    """Return the history of a sequence, if all that it loads arrives."""
    coming = 0 if seq.load is None else len(seq.load.blocks)
    return seq.history + coming * model.config.tokens_per_block


def _check_sequence(model: ReferenceLedger, seq: Sequence) -> None:
    committed = len(seq.path) * model.config.tokens_per_block
    assert committed <= seq.history <= len(seq.tokens)
    assert seq.history <= seq.reach <= seq.num_blocks * model.config.tokens_per_block
    assert len(set(seq.pins)) == len(seq.pins)
    if seq.load is not None:
        assert model.is_loading(seq.load), "nothing is left to wait for"
        assert not seq.outstanding, "a sequence runs before it is loaded"
        assert seq.history == seq.load.first * model.config.tokens_per_block
        assert all(seq.private[at] is own for at, own in _loaded(seq, seq.load))
        assert not seq.load.is_left
    for cls, block in seq.pins:
        assert block in seq.path
        assert block.pages[cls]
        assert model._is_kept(cls, seq.path.index(block), _end(model, seq))
    for cls in model.windowed_classes:
        for ordinal, pages in enumerate(seq.private, start=len(seq.path)):
            # A page just outside the window may not have been there to be loaded.
            assert pages[cls] == 0 or model._is_kept(cls, ordinal, _end(model, seq))
            if seq.load is None:
                assert pages[cls] != 0 or not model._is_kept(cls, ordinal, seq.history)

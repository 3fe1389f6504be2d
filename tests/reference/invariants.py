"""What must hold in the reference ledger after every operation, checked by itself."""

from __future__ import annotations

from reference.ledger import ReferenceLedger
from reference.state import Sequence


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


def _check_sequence(model: ReferenceLedger, seq: Sequence) -> None:
    committed = len(seq.path) * model.config.tokens_per_block
    assert committed <= seq.history <= len(seq.tokens)
    assert seq.history <= seq.reach <= seq.num_blocks * model.config.tokens_per_block
    assert len(set(seq.pins)) == len(seq.pins)
    for cls, block in seq.pins:
        assert block in seq.path
        assert block.pages[cls]
        assert model._is_kept(cls, seq.path.index(block), seq.history)
    for cls in model.windowed_classes:
        for ordinal, pages in enumerate(seq.private, start=len(seq.path)):
            assert (pages[cls] != 0) == model._is_kept(cls, ordinal, seq.history)

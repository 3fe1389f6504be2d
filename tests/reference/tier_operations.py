"""Random operations on the tiers below the device; see operations.py."""

from __future__ import annotations

from collections.abc import Callable

from reference.configs import Pick
from reference.interpreter import Comparison, Operation
from reference.operations import (
    WEIGHTS,
    _handle,
    _repeat_one,
    _some,
    admit,
    advance,
    complete_step,
    fits,
    match,
    resume,
    suspend,
)
from reference.shelves import HOST, TIER_NAMES


def transfers(pair: Comparison, pick: Pick) -> Operation:
    """Take what is planned; now and then with too small a buffer."""
    return ("transfers", 4096 if pick(0, 3) < 3 else pick(0, 3))


def complete_transfers(pair: Comparison, pick: Pick) -> Operation:
    """Report some of what was handed out, in any order; now and then what was not."""
    numbers = sorted(pair.model.handed_out)
    if not numbers and pair.model.planned and pick(0, 9) < 9:
        return transfers(pair, pick)
    count = len(numbers) if pick(0, 1) == 1 else pick(0, len(numbers))
    items = []
    for _ in range(count):
        number = numbers.pop(pick(0, len(numbers) - 1))
        items.append((number, 1 if pick(0, 7) < 7 else 0))
    if pick(0, 49) == 49:
        items.append((pick(-1, pair.model.newest_transfer + 1), 1))
    return ("complete_transfers", _repeat_one(pick, items))


def pending_transfers(pair: Comparison, pick: Pick) -> Operation:
    return ("pending_transfers",)


def loading(pair: Comparison, pick: Pick) -> Operation:
    chosen = _some(pick, list(pair.model.sequences.values()))
    return ("loading", _repeat_one(pick, [_handle(pair, pick, seq.handle) for seq in chosen]))


def match_tiers(pair: Comparison, pick: Pick) -> Operation:
    return ("match_tiers", *match(pair, pick)[1:])


def offload(pair: Comparison, pick: Pick) -> Operation:
    return ("offload", pick(0, 9) if pick(0, 29) < 29 else -1)


def flush(pair: Comparison, pick: Pick) -> Operation:
    return ("flush",)


def restore(pair: Comparison, pick: Pick) -> Operation:
    """Bring back what was known once, most of the time; now and then what cannot be."""
    model = pair.model
    shelves = [(shelf, tier) for shelf in model.shelves for tier in shelf.pages]
    if not shelves:
        return ("restore", "disk", 0, [], [])
    shelf, tier = shelves[pick(0, len(shelves) - 1)]
    known = {shelf.key(entry) for entry in shelf.entries.values()}
    lost = [key for key in model.seen_keys if key not in known]
    free = [page for page in range(shelf.pages[tier]) if page not in shelf.used[tier]]
    keys, pages = [], []
    for _ in range(min(pick(0, 4), len(free))):
        key = bytes([pick(0, 255)]) * 32
        keys.append(lost.pop(pick(0, len(lost) - 1)) if lost and pick(0, 9) < 9 else key)
        pages.append(free.pop(pick(0, len(free) - 1)))
    name, cls = TIER_NAMES[tier], shelf.classes[pick(0, len(shelf.classes) - 1)]
    if pick(0, 9) == 9:
        name, cls, keys, pages = (
            ("tape", cls, keys, pages),
            ("device", cls, keys, pages),
            (name, len(pair.config.num_pages), keys, pages),
            (name, cls, keys, pages[:-1]),
            (name, cls, [*keys, *keys[:1]], [*pages, *free[:1]]),
            (name, cls, [*keys, bytes(32)], [*pages, *pages[:1]]),
            (name, cls, [*keys, bytes(32)], [*pages, pick(-1, shelf.pages[tier])]),
            (name, cls, [*keys, *sorted(known)[:1]], [*pages, *free[:1]]),
        )[pick(0, 7)]
    return ("restore", name, cls, keys, pages)


def adopt(pair: Comparison, pick: Pick) -> Operation:
    """Bring in what was known once, or is; now and then for a class that cannot have it."""
    model = pair.model
    shelves = [shelf for shelf in model.shelves if HOST in shelf.pages]
    if not shelves or pick(0, 19) == 19:
        return ("adopt", len(pair.config.num_pages) - pick(0, 1), [bytes(32)])
    shelf = shelves[pick(0, len(shelves) - 1)]
    keys = []
    for _ in range(pick(0, 5)):
        seen = model.seen_keys
        other = bytes([pick(0, 255)]) * 32
        keys.append(seen[pick(0, len(seen) - 1)] if seen and pick(0, 9) < 9 else other)
    return ("adopt", shelf.classes[pick(0, len(shelf.classes) - 1)], keys)


def serve(pair: Comparison, pick: Pick) -> Operation:
    """Do what an engine would do next, so that much is computed, evicted and asked for again."""
    model = pair.model
    if model.queued_moves:
        return ("moves",)
    if model.planned and pick(0, 2) > 0:
        return ("transfers", 4096)
    if model.handed_out and pick(0, 2) > 0:
        return complete_transfers(pair, pick)
    if not model.open_steps:
        return ("begin_step", max(model.now, 0.0))
    suspended = [seq for seq in model.sequences.values() if seq.is_suspended]
    waiting = [(seq.handle, len(seq.tokens)) for seq in suspended]
    if waiting and pick(0, 3) == 3:
        return ("resume", max(model.open_steps), waiting)
    ready = [s for s in model.sequences.values() if not s.is_suspended and s.load is None]
    if any(seq.outstanding for seq in ready):
        return advance(pair, pick)
    done = [(seq.handle, 1) for seq in ready if seq.history >= len(seq.tokens) - 1]
    if done:
        return ("release", done)
    if len(model.open_steps) > 1 or (not ready and pick(0, 1) == 1):
        return complete_step(pair, pick)
    if ready:
        ahead = [(seq.handle, max(len(seq.tokens) - seq.reach, 1)) for seq in ready]
        return ("grow", max(model.open_steps), ahead, False)
    return admit(pair, pick)


# How often each is tried by the seeded driver on a ledger with tiers.
TIER_WEIGHTS: dict[Callable[[Comparison, Pick], Operation], float] = {
    **WEIGHTS,
    serve: 280,
    transfers: 14,
    complete_transfers: 24,
    pending_transfers: 2,
    loading: 12,
    match_tiers: 16,
    fits: 12,
    suspend: 8,
    resume: 12,
    offload: 14,
    flush: 6,
    restore: 8,
    adopt: 6,
}

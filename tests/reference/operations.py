"""Random operations for both drivers, Hypothesis and the seeded one.

Each function looks at the reference to find what is worth trying and returns one operation for
`Comparison.apply`. `pick(low, high)` chooses an integer, both ends included; the smaller, the
plainer the operation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reference.configs import Pick
from reference.interpreter import Comparison, Operation
from reference.shelves import Name
from reference.state import Request, Sequence, cdiv

ALPHABET = 2
ROW_BITS = 32


def _oldest_steps(pair: Comparison) -> dict[int, list[Sequence]]:
    """Return the sequences that may advance, by the step they have to advance for."""
    by_step: dict[int, list[Sequence]] = {}
    for seq in pair.model.sequences.values():
        if seq.outstanding:
            by_step.setdefault(seq.outstanding[0][0], []).append(seq)
    return by_step


def _running(pair: Comparison, pick: Pick) -> list[Sequence]:
    """Return the sequences that are neither suspended nor loading; now and then all."""
    sequences = list(pair.model.sequences.values())
    if pick(0, 39) == 39:
        return sequences
    return [seq for seq in sequences if not seq.is_suspended and seq.load is None]


def _some(pick: Pick, items: list[Sequence]) -> list[Sequence]:
    """Choose a subset in rotated order."""
    count = len(items) if pick(0, 2) < 2 else pick(0, len(items))
    start = pick(0, len(items) - 1) if items else 0
    return [items[(start + i) % len(items)] for i in range(count)]


def _step(pair: Comparison, pick: Pick) -> int:
    """Choose an open step, the newest most of the time; now and then one that is not open."""
    steps = sorted(pair.model.open_steps)
    if not steps or pick(0, 39) == 39:
        return pick(0, pair.model.newest + 1)
    return steps[-1] if pick(0, 4) < 4 else steps[pick(0, len(steps) - 1)]


def begin_step(pair: Comparison, pick: Pick) -> Operation:
    if len(pair.model.open_steps) > 2 and pick(0, 9) < 9:
        return complete_step(pair, pick)
    now = max(pair.model.now, 0.0)
    if pick(0, 59) == 59:
        return ("begin_step", (float("inf"), float("nan"))[pick(0, 1)])
    return ("begin_step", now + pick(0, 2) if pick(0, 29) < 29 else now - 0.5)


def complete_step(pair: Comparison, pick: Pick) -> Operation:
    if pair.model.queued_moves and pick(0, 9) < 9:
        return ("moves",)
    steps = sorted(pair.model.open_steps)
    if pick(0, 29) == 29:
        return ("complete_step", pick(0, pair.model.newest + 1))
    if not steps:
        return ("begin_step", max(pair.model.now, 0.0))
    return ("complete_step", steps[pick(0, len(steps) - 1)])


def prompt(pair: Comparison, pick: Pick, longest: int) -> tuple[int, ...]:
    """Choose tokens that share a prefix with something seen before, most of the time."""
    texts = [tuple(seq.tokens) for seq in pair.model.sequences.values()]
    texts += [tuple(t for b in x.path() for t in b.tokens) + x.following for x in _leaves(pair)]
    length = pick(1, longest if pick(0, 2) == 2 else cdiv(longest, 2))
    start: tuple[int, ...] = ()
    ends, below = _snapshot_ends(pair), _texts_below(pair)
    if below and pick(0, 2) > 0:
        start = below[pick(0, len(below) - 1)]
        length = min(len(start) + pick(0, 2), longest)
    elif ends and pick(0, 1) == 1:
        start = ends[pick(0, len(ends) - 1)]
        length = min(len(start) + pick(1, 2), longest)
    elif texts and pick(0, 5) > 0:
        text = texts[pick(0, len(texts) - 1)]
        start = text if pick(0, 1) == 1 else text[: pick(0, len(text))]
    tokens = start + tuple(pick(0, ALPHABET - 1) for _ in range(length - len(start)))
    return _with_media(pair, pick, tokens[:length])


def _snapshot_ends(pair: Comparison) -> list[tuple[int, ...]]:
    """Return the texts that have a snapshot at their end: where states can be reused."""
    return [
        tuple(t for b in block.path() for t in b.tokens)[: -len(block.tokens)]
        + block.tokens[:covered]
        for block in pair.model.tree.blocks
        for covered in block.snapshots.values()
    ]


def _texts_below(pair: Comparison) -> list[tuple[int, ...]]:
    """Return the texts of what lies below the device, as far as they can be written now."""
    numbers = {item: -1 - number for number, item in pair.model.media.values.items()}
    names = [entry.name for shelf in pair.model.shelves for entry in shelf.entries.values()]
    return [
        tuple(t if isinstance(t, int) else numbers.get(t, 0) for t in name.tokens + name.following)
        for name in names
        if isinstance(name, Name)
    ]


def _with_media(pair: Comparison, pick: Pick, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Put a reference somewhere, often; leave out those that nobody holds, most of the time."""
    held = [-1 - number for number in pair.model.media.values if pair.model.media.is_held(number)]
    if held and pick(0, 3) == 3:
        at = pick(0, len(tokens) - 1)
        tokens = (*tokens[:at], held[pick(0, len(held) - 1)], *tokens[at + 1 :])
    if pick(0, 29) == 29:
        return tokens
    return tuple(t if t >= 0 or t in held else 0 for t in tokens)


def _scope(pair: Comparison, pick: Pick) -> int:
    """Choose a scope that is held, seldom one that is not."""
    if pick(0, 39) == 39:
        return pick(0, 20)
    held = [number for number in pair.model.scopes.values if pair.model.scopes.is_held(number)]
    return (0, 0, 0, held[min(1, len(held) - 1)], held[pick(0, len(held) - 1)], -1)[pick(0, 5)]


ADAPTERS = (None, ("7", 1), (7, 1), (7, 2), (0, 0), ("", 0))
SALTS = (None, "", b"", "7", b"7")


def intern_scope(pair: Comparison, pick: Pick) -> Operation:
    """Choose fields that are easily taken for others; often many different ones."""
    salt = SALTS[pick(0, len(SALTS) - 1)] if pick(0, 1) == 0 else f"tenant-{pick(0, 60)}"
    return ("intern_scope", ADAPTERS[pick(0, len(ADAPTERS) - 1)], salt)


def _number(pick: Pick, holds: dict[int, int]) -> int:
    """Choose a number that is held; seldom any."""
    held = [number for number, count in holds.items() if count > 0]
    return held[pick(0, len(held) - 1)] if held and pick(0, 19) < 19 else pick(0, 30)


def trial(pair: Comparison, pick: Pick) -> Operation:
    """Begin a trial or end it; seldom one in another, or none."""
    is_open = pair.model.scopes.trial is not None
    return ("end_trial",) if is_open == (pick(0, 19) < 19) else ("begin_trial",)


def release_scope(pair: Comparison, pick: Pick) -> Operation:
    return ("release_scope", _number(pick, pair.model.scopes.holds))


def drop_scope(pair: Comparison, pick: Pick) -> Operation:
    return ("drop_scope", _number(pick, pair.model.scopes.holds))


def intern_media(pair: Comparison, pick: Pick) -> Operation:
    known = list(pair.model.media.values.values())
    if known and pick(0, 3) == 3:
        return ("intern_media", *known[pick(0, len(known) - 1)])
    length = pick(1, 2) if pick(0, 29) < 29 else 0
    return ("intern_media", bytes([pick(0, 60)]) * (32 if pick(0, 29) < 29 else 31), length)


def keys(pair: Comparison, pick: Pick) -> Operation:
    tokens = prompt(pair, pick, pair.config.max_seq_len)
    return ("keys", tokens, _scope(pair, pick))


def block_keys(pair: Comparison, pick: Pick) -> Operation:
    handles = [seq.handle for seq in pair.model.sequences.values()]
    return ("block_keys", _handle(pair, pick, handles[pick(0, len(handles) - 1)] if handles else 0))


def release_media(pair: Comparison, pick: Pick) -> Operation:
    return ("release_media", -1 - _number(pick, pair.model.media.holds))


def _leaves(pair: Comparison) -> list:
    return [block for block in pair.model.tree.blocks if not block.children]


def _request(pair: Comparison, pick: Pick) -> Request:
    limits = pair.config
    tokens = prompt(pair, pick, limits.max_seq_len)
    draft_from = -1
    if limits.has_draft:
        draft_from = (0, 0, 0, -1, pick(0, len(tokens)))[pick(0, 4)]
    return Request(
        prompt=tokens,
        scope=_scope(pair, pick),
        first=len(tokens) if pick(0, 1) == 0 else pick(1, len(tokens)),
        max_total=min(len(tokens) + pick(0, limits.tokens_per_block * 2), limits.max_seq_len),
        draft_from=draft_from,
    )


def admit(pair: Comparison, pick: Pick) -> Operation:
    if not pair.model.open_steps and pick(0, 19) < 19:
        return begin_step(pair, pick)
    items = [_request(pair, pick) for _ in range(1 if pick(0, 2) < 2 else pick(0, 3))]
    if items and pick(0, 19) == 19:
        items[pick(0, len(items) - 1)] = _broken_request(pair, pick, items[0])
    return ("admit", _step(pair, pick), items, pick(0, 3) == 3)


def _broken_request(pair: Comparison, pick: Pick, item: Request) -> Request:
    """Return a request with one field that may be out of its range."""
    too_large = 2**31 if pair.core.dtype is np.int64 else -(2**31)
    return (
        item._replace(prompt=()),
        item._replace(prompt=(-1,)),
        item._replace(prompt=(*item.prompt[:-1], too_large)),
        item._replace(prompt=(*item.prompt[:-1], 2**31 - 1)),
        item._replace(scope=-2),
        item._replace(first=0),
        item._replace(first=2**31 - 1),
        item._replace(max_total=len(item.prompt) - 1),
        item._replace(max_total=pair.config.max_seq_len + 1),
        item._replace(draft_from=-2),
        item._replace(draft_from=0),
    )[pick(0, 10)]


def _handle(pair: Comparison, pick: Pick, handle: int) -> int:
    """Return the handle; now and then one that is stale or was never given."""
    if pick(0, 59) < 59:
        return handle
    row, generation = handle & ((1 << ROW_BITS) - 1), handle >> ROW_BITS
    return (
        (generation + 1) << ROW_BITS | row,
        (generation - 1) << ROW_BITS | row,
        generation << ROW_BITS | (row + 1),
        row,
        -1,
    )[pick(0, 4)]


def _repeat_one(pick: Pick, items: list) -> list:
    return [*items, items[0]] if items and pick(0, 59) == 59 else items


def _may_grow(pick: Pick, seq: Sequence, step: int) -> bool:
    """Choose mostly those without a width, often those with an older one, seldom the others."""
    if not seq.outstanding:
        return True
    newest = seq.outstanding[-1][0]
    return pick(0, 2) == 2 if newest < step else pick(0, 39) == 39


def _width(pair: Comparison, pick: Pick, seq: Sequence) -> int:
    """Choose a chunk of the prompt or a token and some drafts; seldom what is not allowed."""
    limits = pair.config
    room = limits.max_seq_len + limits.reserve_tokens + 1 - seq.reach - seq.pending
    if pick(0, 59) == 59:
        return pick(0, 1) * (room + 1)
    ahead = len(seq.tokens) - seq.reach - seq.pending
    widest = ahead if ahead > 0 else 1 + pick(0, 3)
    if pick(0, 19) == 19:
        widest = 3 * limits.tokens_per_block
    widest = max(min(widest, room), 1)
    return widest if pick(0, 2) < 2 else pick(1, widest)


def grow(pair: Comparison, pick: Pick) -> Operation:
    if not pair.model.open_steps and pick(0, 19) < 19:
        return begin_step(pair, pick)
    step = _step(pair, pick)
    idle = [seq for seq in _running(pair, pick) if _may_grow(pick, seq, step)]
    items = [(_handle(pair, pick, s.handle), _width(pair, pick, s)) for s in _some(pick, idle)]
    return ("grow", step, _repeat_one(pick, items), pick(0, 3) == 3)


def pin(pair: Comparison, pick: Pick) -> Operation:
    """Lease a prefix for a while, or for good; now and then until a time that has passed."""
    _, tokens, scope, draft_from = match(pair, pick)
    now = max(pair.model.now, 0.0)
    until = (float("inf"), now + pick(1, 4), now + pick(-1, 1))[pick(0, 20) // 10]
    return ("pin", tokens, scope, until, draft_from)


def unpin(pair: Comparison, pick: Pick) -> Operation:
    """End a lease; now and then one that has ended, or that never was."""
    leases = sorted(pair.model.leases)
    if not leases or pick(0, 9) == 9:
        return ("unpin", pick(-1, pair.model.newest_lease + 1))
    return ("unpin", leases[pick(0, len(leases) - 1)])


def set_quota(pair: Comparison, pick: Pick) -> Operation:
    """Give a scope a floor, a ceiling or both; often none, so that floors do not pile up."""
    scope = max(_scope(pair, pick), 0) if pick(0, 29) < 29 else -1
    most = pair.model.most_blocks()
    floor = pick(0, most // 2) if pick(0, 2) < 2 else 0
    if pick(0, 19) == 19:
        floor = (most + 1, -1, 2**31)[pick(0, 2)]
    ceiling = (None, floor + pick(-1 if pick(0, 9) == 9 else 0, most // 2))[pick(0, 1)]
    return ("set_quota", scope, floor, ceiling)


def resize(pair: Comparison, pick: Pick) -> Operation:
    """Make pools a little larger or smaller, when no step is open; seldom by what cannot be."""
    model = pair.model
    if model.open_steps and pick(0, 19) < 19:
        return complete_step(pair, pick)
    if model.planned and pick(0, 9) < 9:
        return ("transfers", 64)
    sizes = [max(pages + pick(-4, 4), 2) for pages in model.num_pages]
    # Around the sizes that they began with, so that they stay tiny.
    start = pair.config.num_pages
    sizes = [min(size, 2 * pages) for size, pages in zip(sizes, start, strict=True)]
    if pick(0, 29) == 29:
        sizes = [*sizes[1:], *((1,), (2**31,), ())[pick(0, 2)]]
    return ("resize", sizes)


def retain(pair: Comparison, pick: Pick) -> Operation:
    """Hint at ranges of open sequences; now and then with a number out of range."""
    sequences, longest = list(pair.model.sequences.values()), pair.config.max_seq_len
    items = []
    for _ in range(pick(1, 3) if sequences else 0):
        seq = sequences[pick(0, len(sequences) - 1)]
        start = pick(0, len(seq.tokens)) if pick(0, 39) < 39 else pick(-1, longest + 1)
        end = (-1, pick(start, max(start, longest)), pick(start - 2, longest + 1))[
            pick(0, 40) // 20
        ]
        priority = (0, 34, 35, 36, 100, pick(-1, 101))[pick(0, 5)]
        duration_ms = (-1, pick(0, 3) * 1000, pick(-2, 2500))[pick(0, 20) // 10]
        items.append((_handle(pair, pick, seq.handle), start, end, priority, duration_ms))
    return ("retain", items)


def fork(pair: Comparison, pick: Pick) -> Operation:
    if not pair.model.open_steps and pick(0, 19) < 19:
        return begin_step(pair, pick)
    if pair.model.queued_moves and pick(0, 3) < 3:
        return ("moves",)
    sequences = _running(pair, pick)
    settled = [seq for seq in sequences if not seq.outstanding]
    if not settled and pick(0, 9) < 9:
        return advance(pair, pick)
    parents = settled if settled and pick(0, 29) < 29 else sequences
    count = pick(1, 3) if parents else 0
    chosen = [parents[pick(0, len(parents) - 1)] for _ in range(count)]
    return ("fork", _step(pair, pick), [_handle(pair, pick, seq.handle) for seq in chosen])


def advance(pair: Comparison, pick: Pick) -> Operation:
    by_step = _oldest_steps(pair)
    if not by_step:
        if pick(0, 19) < 19:
            sequences = pair.model.sequences.values()
            some_run = any(not seq.is_suspended and seq.load is None for seq in sequences)
            return grow(pair, pick) if some_run else admit(pair, pick)
        sequences = list(pair.model.sequences.values())
        return ("advance", _step(pair, pick), [(seq.handle, (), 0) for seq in sequences], None)
    steps = sorted(by_step)
    step = steps[pick(0, len(steps) - 1)]
    chosen = _some(pick, by_step[step])
    if pick(0, 39) == 39:
        step = pick(0, pair.model.newest + 1)
    give_ends = pick(0, 3) == 3
    items, ends = [], []
    for seq in chosen:
        known, run = len(seq.tokens), seq.reach + seq.outstanding[0][1]
        most = max(min(run + 1, seq.max_total) - known, 0) if known <= run else 0
        count = min(pick(0, most + 1), most) if pick(0, 29) < 29 else most + 1
        tokens = tuple(pick(0, ALPHABET - 1) for _ in range(count))
        if tokens and pick(0, 79) == 79:
            tokens = (*tokens[:-1], -1)
        items.append((_handle(pair, pick, seq.handle), tokens, count))
        ends.append(_ends(pair, pick, seq, min(known + count, run)))
    return ("advance", step, _repeat_one(pick, items), ends if give_ends and items else None)


def path_moves(pair: Comparison, pick: Pick) -> Operation:
    """Keep some nodes of what the oldest steps run; now and then a path that is none."""
    by_step = _oldest_steps(pair)
    if not by_step:
        return grow(pair, pick)
    step = sorted(by_step)[pick(0, len(by_step) - 1)]
    items = []
    for seq in _some(pick, by_step[step]):
        width = seq.outstanding[0][1]
        nodes = [0, *(node for node in range(1, width) if pick(0, 1) == 0)]
        if len(seq.outstanding) > 1 and pick(0, 3) < 3:
            nodes = []
        if pick(0, 29) == 29:
            nodes = [[], [1], [0, width], [0, 0], [0, 2, 1], list(range(width + 1))][pick(0, 5)]
        items.append((_handle(pair, pick, seq.handle), tuple(nodes)))
    if pick(0, 39) == 39:
        step = pick(0, pair.model.newest + 1)
    role = pick(0, int(pair.config.has_draft)) if pick(0, 39) < 39 else 2
    return ("path_moves", step, _repeat_one(pick, items), role)


def _ends(pair: Comparison, pick: Pick, seq: Sequence, highest: int) -> list[int]:
    """Choose a valid end per role: the highest, one that lags, or one just out of range."""
    ends = [0, 0]
    for role in seq.used_roles:
        low = min(seq.valid[role], highest)
        ends[role] = highest if pick(0, 1) == 0 else pick(low, highest)
        if pick(0, 59) == 59:
            ends[role] = (highest + 1, seq.valid[role] - 1)[pick(0, 1)]
    if pick(0, 59) == 59:
        ends[-1] += 1
    return ends


def _publish(pick: Pick) -> int:
    """Choose mostly to publish; seldom what is no flag."""
    return (1 if pick(0, 4) < 4 else 0) if pick(0, 79) < 79 else 2


def release(pair: Comparison, pick: Pick) -> Operation:
    sequences = list(pair.model.sequences.values())
    count = min(len(sequences), max(pick(-3, 2), 1))
    start = pick(0, len(sequences) - 1) if sequences else 0
    items = [
        (_handle(pair, pick, seq.handle), _publish(pick))
        for seq in (sequences[start:] + sequences[:start])[:count]
    ]
    return ("release", _repeat_one(pick, items))


def suspend(pair: Comparison, pick: Pick) -> Operation:
    sequences = _running(pair, pick)
    settled = [seq for seq in sequences if not seq.outstanding]
    if not settled and pick(0, 19) < 19:
        return advance(pair, pick)
    chosen = _some(pick, settled if pick(0, 39) < 39 else sequences)[: pick(1, 2)]
    items = [(_handle(pair, pick, seq.handle), 1 if pick(0, 4) < 4 else 0) for seq in chosen]
    return ("suspend", _repeat_one(pick, items))


def resume(pair: Comparison, pick: Pick) -> Operation:
    if not pair.model.open_steps and pick(0, 19) < 19:
        return begin_step(pair, pick)
    sequences = list(pair.model.sequences.values())
    waiting = [seq for seq in sequences if seq.is_suspended]
    if not waiting and pick(0, 19) < 19:
        return suspend(pair, pick)
    chosen = _some(pick, waiting if pick(0, 39) < 39 else sequences)
    items = [
        (_handle(pair, pick, seq.handle), pick(1, len(seq.tokens)) if pick(0, 59) < 59 else 0)
        for seq in chosen
    ]
    return ("resume", _step(pair, pick), _repeat_one(pick, items))


def match(pair: Comparison, pick: Pick) -> Operation:
    tokens = prompt(pair, pick, pair.config.max_seq_len)
    draft_from = pick(-1, len(tokens)) if pair.config.has_draft else -1
    return ("match", tokens, _scope(pair, pick), draft_from)


def fits(pair: Comparison, pick: Pick) -> Operation:
    items = [_request(pair, pick) for _ in range(pick(1, 3))]
    if pick(0, 19) == 19:
        items[pick(0, len(items) - 1)] = _broken_request(pair, pick, items[0])
    return ("fits", items)


def fits_blocks(pair: Comparison, pick: Pick) -> Operation:
    limits = pair.config
    items = []
    for _ in range(pick(1, 3)):
        length = pick(1, limits.max_seq_len)
        hit = pick(0, length - 1) if limits.reuse else 0
        hit -= 0 if limits.partial_reuse else hit % limits.tokens_per_block
        max_total = min(length + pick(0, limits.tokens_per_block * 2), limits.max_seq_len)
        items.append((length, hit, pick(1, length), max_total))
    if pick(0, 19) == 19:
        length, hit, first, max_total = items[-1]
        items[-1] = (
            (0, 0, first, max_total),
            (length, length, first, max_total),
            (length, -1, first, max_total),
            (length, 1, first, max_total),
            (length, hit, 0, max_total),
            (length, hit, first, length - 1),
            (length, hit, first, limits.max_seq_len + 1),
        )[pick(0, 6)]
    scopes = [max(_scope(pair, pick), 0) for _ in items] if pick(0, 1) == 1 else None
    if scopes and pick(0, 39) == 39:
        scopes[0] = -1
    return ("fits_blocks", items, scopes)


def reclaimable(pair: Comparison, pick: Pick) -> Operation:
    chosen = _some(pick, list(pair.model.sequences.values()))
    return ("reclaimable", _repeat_one(pick, [_handle(pair, pick, seq.handle) for seq in chosen]))


def victims(pair: Comparison, pick: Pick) -> Operation:
    chosen = _some(pick, list(pair.model.sequences.values()))
    handles = _repeat_one(pick, [_handle(pair, pick, seq.handle) for seq in chosen])
    # Around what all of them together would give.
    need = [pick(0, pages + 1) for pages in pair.model.gain(chosen)]
    if pick(0, 29) == 29:
        need[0] = -1
    return ("victims", handles, need)


def explain_match(pair: Comparison, pick: Pick) -> Operation:
    return ("explain_match", *match(pair, pick)[1:])


def moves(pair: Comparison, pick: Pick) -> Operation:
    return ("moves",)


def updates(pair: Comparison, pick: Pick) -> Operation:
    return ("updates", 4096 if pick(0, 9) < 9 else pick(0, 3))


def reset_reuse_state(pair: Comparison, pick: Pick) -> Operation:
    return ("reset_reuse_state", pick(0, 1) == 1)


IDENTITY = (
    trial,
    intern_media,
    release_media,
    intern_scope,
    release_scope,
    drop_scope,
    keys,
    block_keys,
)

# How often each is tried by the seeded driver.
WEIGHTS: dict[Callable[[Comparison, Pick], Operation], float] = {
    begin_step: 8,
    complete_step: 10,
    admit: 20,
    fork: 6,
    retain: 8,
    pin: 6,
    unpin: 5,
    set_quota: 4,
    resize: 5,
    grow: 20,
    advance: 30,
    path_moves: 5,
    release: 14,
    suspend: 4,
    resume: 6,
    match: 4,
    fits: 4,
    fits_blocks: 2,
    reclaimable: 3,
    victims: 4,
    explain_match: 4,
    moves: 2,
    updates: 2,
    reset_reuse_state: 0.5,
    intern_scope: 5,
    release_scope: 4,
    trial: 4,
    drop_scope: 2,
    intern_media: 8,
    release_media: 6,
    keys: 1,
    block_keys: 2,
}

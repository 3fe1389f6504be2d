"""A fake device with every kind of class: what a step reads is what its tokens left there.

The ledger only names pages. Here an engine runs its steps on them: each token of an attention class
writes which text it stands at the end of, a state the text it has read. A step checks all that it
would read: every position of a full class, the window, the sinks, the chunk, the state.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from reference import configs
from reference.lifetimes import CHUNKED, CROSS, FULL, SLIDING, STATE
from reference.scenario import ENGINES, Scenario

Text = tuple[int, ...]


@dataclass
class Running:
    """A request on the device: its text, and where it stops."""

    text: list[int]
    prompt_length: int
    max_total: int
    draft: bool


@dataclass
class Device:
    """Pages of all classes. What is copied or written over loses what it held."""

    s: Scenario
    attention: dict[tuple[int, int, int], dict[int, Text]] = field(default_factory=dict)
    states: dict[tuple[int, int], Text] = field(default_factory=dict)

    def run_moves(self, rng: random.Random) -> None:
        """Run all copies at once: none may read what another writes."""
        moves = self.s.ledger.moves()
        rng.shuffle(moves)
        written = {(cls, destination) for cls, _, destination, _ in moves}
        assert len(written) == len(moves)
        assert not written & {(cls, source) for cls, source, _, _ in moves}
        for cls, source, destination, count in moves:
            if self.rule(cls)[0] == STATE:
                assert count == 1
                self.states[cls, destination] = self.states[cls, source]
                continue
            for role in (0, 1):
                held = self.attention.get((cls, role, source), {})
                copy = {at: text for at, text in held.items() if at < count}
                self.attention[cls, role, destination] = copy

    def run_token_moves(self, moves: list[tuple[int, int, int, int, int]]) -> None:
        """Bring the accepted nodes of the target's draft tree together, one after the other."""
        for cls, source, offset, destination, place in moves:
            text = self.attention[cls, 0, source][offset]
            self.attention.setdefault((cls, 0, destination), {})[place] = text

    def write_draft(self, rows: list[list[int]], request: Running, start: int, end: int) -> None:
        """Write the draft's KV in line, as a draft does that runs over accepted tokens."""
        tpb, lookahead = self.s.config.tokens_per_block, self.s.config.lookahead
        for cls, row in enumerate(rows):
            if self.rule(cls)[0] != CROSS:
                for position in range(start, end):
                    page = self.attention.setdefault((cls, 1, row[position // tpb]), {})
                    page[position % tpb] = tuple(request.text[: position + 1 + lookahead])

    def write_nodes(self, rows: list[list[int]], start: int, texts: list[Text]) -> None:
        """Write the target's KV of a draft tree: each node knows its own branch only."""
        tpb = self.s.config.tokens_per_block
        for cls, row in enumerate(rows):
            if self.rule(cls)[0] != CROSS:
                for position, text in enumerate(texts, start):
                    page = self.attention.setdefault((cls, 0, row[position // tpb]), {})
                    page[position % tpb] = text

    def rule(self, cls: int) -> tuple[str, int, int]:
        rules = self.s.config.lifetimes
        return (FULL, 0, 0) if rules is None else rules[cls]

    def reads(self, cls: int, position: int) -> list[int]:
        """Return the earlier positions that the token at `position` attends to."""
        name, length, sinks = self.rule(cls)
        if name == FULL:
            return list(range(position))
        if name == SLIDING:
            first = max(position + 1 - length, 0)
            return [*range(min(sinks, first)), *range(first, position)]
        assert name == CHUNKED
        return list(range(position // length * length, position))

    def read(
        self, handle: int, request: Running, text: list[int], starts: list[int], end: int
    ) -> None:
        """Check all that a step of one sequence reads, position by position in both roles."""
        for cls, rows in enumerate(self.rows(handle)):
            if self.rule(cls)[0] == STATE:
                assert self.states.get((cls, rows[0]), ()) == tuple(text[: starts[0]])
            elif self.rule(cls)[0] != CROSS:
                for role in range(1 + request.draft):
                    self._attend(cls, role, rows, text, range(starts[role], end))

    def _attend(self, cls: int, role: int, row: list[int], text: list[int], run: range) -> None:
        tpb = self.s.config.tokens_per_block
        for position in run:
            assert row[position // tpb], f"class {cls} writes position {position}: no page"
            for at in self.reads(cls, position):
                assert row[at // tpb], f"class {cls} reads position {at} at {position}: no page"
                if at < run.start:
                    held = self.attention[cls, role, row[at // tpb]][at % tpb]
                    is_whole = len(held) == at + 1 if role == 0 else len(held) > at
                    assert is_whole, f"class {cls} reads junk"
                    assert held == tuple(text[: len(held)]), f"class {cls} reads another text"

    def rows(self, handle: int) -> list[list[int]]:
        return [self.s.pages(handle, cls) for cls in range(len(self.s.config.num_pages))]

    def write(
        self, rows: list[list[int]], request: Running, starts: list[int], end: int, ran: int
    ) -> None:
        """Write tokens up to `ran`, right ones below `end`, and leave the states there.

        What a draft writes depends on the next tokens too.
        """
        tpb, lookahead = self.s.config.tokens_per_block, self.s.config.lookahead
        for cls, row in enumerate(rows):
            if self.rule(cls)[0] == STATE:
                self.states[cls, row[0]] = tuple(request.text[:end])
            elif self.rule(cls)[0] != CROSS:
                for role in range(1 + request.draft):
                    for position in range(starts[role], ran):
                        text = request.text[: position + 1 + role * lookahead]
                        page = self.attention.setdefault((cls, role, row[position // tpb]), {})
                        page[position % tpb] = tuple(text) if position < end else ()


class Engine:
    """Admits, runs, verifies drafts and releases at random."""

    def __init__(self, s: Scenario, rng: random.Random) -> None:
        self.s, self.rng, self.device = s, rng, Device(s)
        rules = s.config.lifetimes or ()
        self.draws_trees = not any(name == STATE for name, _, _ in rules)
        self.num_moved = 0
        self.running: dict[int, Running] = {}
        self.texts: list[list[int]] = []
        self.unfinished: list[int] = []

    def step(self) -> None:
        rng, s = self.rng, self.s
        step = s.begin()
        self.unfinished.append(step)
        widths = self._grow(step)
        if rng.random() < 0.6:
            self._admit(step, widths)
        self.device.run_moves(rng)
        for handle, width in widths.items():
            self._run(step, handle, width)
        # Later steps begin before this one is complete, so fences hold pages back.
        while len(self.unfinished) > rng.randint(0, 2):
            s.ledger.complete_step(self.unfinished.pop(0))
        for handle in list(self.running):
            request = self.running[handle]
            is_done = len(request.text) >= request.max_total or rng.random() < 0.05
            if is_done:
                self.texts.append(self.running.pop(handle).text)
                s.release(handle, publish=rng.random() < 0.9)

    def _grow(self, step: int) -> dict[int, int]:
        widths = {}
        for handle, request in self.running.items():
            history = self.s.sequence(handle)["reach"]
            ahead = request.prompt_length - history
            width = self.rng.randint(1, ahead) if ahead > 0 else 1 + self.rng.randint(0, 3)
            width = min(width, self.s.config.max_seq_len - history)
            if self.s.grow(step, handle, width):
                widths[handle] = width
        return widths

    def _admit(self, step: int, widths: dict[int, int]) -> None:
        rng, config = self.rng, self.s.config
        text = list(rng.choice(self.texts)) if self.texts and rng.random() < 0.8 else []
        text = text[: rng.randint(0, len(text))] if rng.random() < 0.5 else text
        text += [rng.randrange(2) for _ in range(rng.randint(1, 4))]
        text = text[: config.max_seq_len - 4]
        draft = config.has_draft and rng.random() < 0.8
        max_total = min(len(text) + rng.randint(1, 12), config.max_seq_len)
        handle, hit = self.s.try_admit(
            step,
            tuple(text),
            first=rng.randint(1, len(text)),
            max_total=max_total,
            draft_from=0 if draft else -1,
            scope=0 if rng.random() < 0.9 else -1,
        )
        if handle < 0:
            return
        self.running[handle] = Running(text, len(text), max_total, draft)
        widths[handle] = self.s.sequence(handle)["outstanding"][0][1]
        for cls in range(len(config.num_pages)):
            if hit == 0 and self.device.rule(cls)[0] == STATE:
                self.device.states[cls, self.s.pages(handle, cls)[0]] = ()

    def _run(self, step: int, handle: int, width: int) -> None:
        request, rng = self.running[handle], self.rng
        starts, rows = self.s.sequence(handle)["valid"], self.device.rows(handle)
        end, known = starts[0] + width, len(request.text)
        if starts[0] == known - 1 and self.draws_trees and rng.random() < 0.7:
            self._run_tree(step, handle, width)
            return
        guesses = [rng.randrange(2) for _ in range(max(end - known, 0))]
        self.device.read(handle, request, [*request.text, *guesses], starts, end)
        new: list[int] = []
        if end >= known:
            accepted = rng.randint(0, len(guesses))
            new = [*guesses[:accepted], rng.randrange(2)][: request.max_total - known]
            request.text += new
        self.s.advance(step, handle, *new)
        self.device.write(rows, request, starts, self.s.sequence(handle)["history"], end)

    def _run_tree(self, step: int, handle: int, width: int) -> None:
        """Run a draft tree and keep one of its branches; the draft runs over what is kept again."""
        request, rng, s = self.running[handle], self.rng, self.s
        starts, rows = s.sequence(handle)["valid"], self.device.rows(handle)
        known = len(request.text)
        parents = [0, *(rng.randrange(node) for node in range(1, width))]
        texts = [tuple(request.text)]
        texts += [() for _ in range(1, width)]
        for node in range(1, width):
            texts[node] = (*texts[parents[node]], rng.randrange(2))
        path, node = [0], 0
        while (children := [at for at in range(node + 1, width) if parents[at] == node]) and (
            rng.random() < 0.8
        ):
            node = rng.choice(children)
            path.append(node)
        path = path[: request.max_total - known]
        new = [*(texts[node][-1] for node in path[1:]), rng.randrange(2)]
        end = starts[0] + width
        self.device.read(handle, request, [*request.text, *([0] * width)], starts, end)
        self.device.write_nodes(rows, starts[0], texts)
        request.text += new
        moves = s.ledger.path_moves(step, [(handle, tuple(path))], 0)
        self.num_moved += len(moves)
        s.advance(step, handle, *new)
        self.device.run_token_moves(moves)
        if request.draft:
            self.device.write_draft(rows, request, starts[1], s.sequence(handle)["history"])


@pytest.mark.parametrize("kind", configs.CLASS_KINDS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_read_what_their_tokens_left(engine: str, kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    tpb = (1, 2, 4)[seed]
    makers = configs.CLASS_KINDS[kind]
    lifetimes = tuple(maker(rng.randint, tpb) for maker in makers)
    has_draft = rng.random() < 0.6
    has_full = any(name == FULL for name, _, _ in lifetimes)
    has_state = any(name == STATE for name, _, _ in lifetimes)
    s = Scenario(
        engine,
        tokens_per_block=tpb,
        num_pages=tuple(9 if name == STATE else 60 // tpb + 10 for name, _, _ in lifetimes),
        max_sequences=4,
        max_seq_len=40,
        has_draft=has_draft,
        lookahead=rng.choice((0, 1, 3)) if has_draft else 0,
        reserve_tokens=3,
        lifetimes=lifetimes,
        num_blocks=None if has_full else 80 // tpb,
        snapshot_interval=tpb if has_state else 0,
        partial_reuse=rng.random() < 0.7,
    )
    device = Engine(s, rng)
    for _ in range(150):
        device.step()
    stats = s.stats()
    assert stats["hit_tokens"] > 0
    assert stats["rewound_tokens"] > 0
    assert (device.num_moved > 0) == device.draws_trees
    assert stats["evicted_blocks"] > 0

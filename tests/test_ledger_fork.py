"""`fork`: what is shared, what is copied, and that nobody writes into what another one reads."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv.errors import LedgerError

ERRORS = (LedgerError, Misuse)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def fork(s: Scenario, step: int, *parents: int) -> list[int]:
    return s.ledger.fork(step, list(parents))[1]


def parent_of_ten_pages(engine: str, usable: int, scope: int) -> tuple[Scenario, int]:
    """Return a sequence of 9 full blocks and a partial one that has run all it knows but one."""
    s = Scenario(engine, num_pages=(1 + usable,), max_sequences=4)
    return s, s.prefill(tokens(38), 99, max_total=40, scope=scope)


@pytest.mark.parametrize("scope", [0, -1])
def test_the_third_fork_does_not_fit(engine: str, scope: int) -> None:
    """10 pages (9 full, 1 partial), 3 forks, 2 free pages: two fit (transformers#46117)."""
    s, parent = parent_of_ten_pages(engine, 12, scope)
    step = s.begin()
    answers = fork(s, step, parent, parent, parent)
    assert [answer > 0 for answer in answers] == [True, True, False]
    assert answers[2] == -1
    after = s.counts()
    assert (after["free"], after["live"] + after["cached"]) == (0, 12)
    assert fork(s, step, parent) == [-1]
    assert s.counts() == after
    assert (s.stats()["forked"], s.stats()["refused_forks"]) == (2, 2)


@pytest.mark.parametrize("scope", [0, -1])
def test_three_forks_share_nine_pages_and_copy_one_each(engine: str, scope: int) -> None:
    s, parent = parent_of_ten_pages(engine, 13, scope)
    step = s.begin()
    children = fork(s, step, parent, parent, parent)
    rows = [s.pages(handle) for handle in (parent, *children)]
    assert all(row[:9] == rows[0][:9] for row in rows)
    assert len({row[9] for row in rows}) == 4
    assert sorted(s.ledger.moves()) == sorted((0, rows[0][9], row[9], 2) for row in rows[1:])
    assert s.count("free") == 0
    # Whoever ends first, the shared pages stay until the last one ends.
    s.complete(step)
    for handle, free in zip((parent, *children), (1, 2, 3, 13), strict=True):
        s.release(handle, publish=0)
        assert s.count("free") + s.count("evictable") == free
    assert s.count("live") == 0


def test_a_fork_continues_its_parent(engine: str) -> None:
    s = Scenario(engine, has_draft=True, lookahead=1, reserve_tokens=2, extra_tokens=1)
    parent = s.prefill(tokens(10), 99, draft_from=4)
    s.decode(parent, 98, 97, width=3)
    [child] = fork(s, s.begin(), parent)
    assert s.sequence(child) == s.sequence(parent)
    assert (child & 0xFFFFFFFF, child >> 32) == (1, 1)
    s.decode(child, 1)
    s.decode(parent, 2)
    assert s.sequence(child)["known"] == 14
    s.release(child)
    assert s.match((*tokens(10), 99, 98, 97, 1), draft_from=4) == 13
    assert s.match((*tokens(10), 99, 98, 97, 2), draft_from=4) == 12


def test_full_blocks_that_wait_for_their_lookahead_are_copied(engine: str) -> None:
    """12 tokens, of which only 4 are published: the next 3 of the others are not known yet."""
    s = Scenario(engine, has_draft=True, lookahead=6)
    parent = s.prefill(tokens(10), first=9)
    step = s.begin()
    [child] = fork(s, step, parent)
    assert s.sequence(parent)["committed"] == 4
    mine, theirs = s.pages(child), s.pages(parent)
    assert mine[0] == theirs[0]
    assert not set(mine[1:]) & set(theirs[1:])
    assert s.ledger.moves() == [(0, theirs[1], mine[1], 4), (0, theirs[2], mine[2], 1)]


def test_a_role_that_lags_keeps_its_blocks_private(engine: str) -> None:
    """The draft still has to write positions 5 to 9 of both, so these blocks are not shared."""
    s = Scenario(engine, has_draft=True)
    step = s.begin()
    parent = s.admit(step, tokens(10), scope=-1)
    s.complete(step)
    s.advance(step, parent, valid=[10, 5])
    [child] = fork(s, s.begin(), parent)
    assert s.pages(child)[0] == s.pages(parent)[0]
    assert not set(s.pages(child)[1:]) & set(s.pages(parent)[1:])
    assert [count for _, _, _, count in s.ledger.moves()] == [4, 2]


def test_equal_continuations_share_again(engine: str) -> None:
    s = Scenario(engine)
    parent = s.prefill(tokens(6), 6)
    [child] = fork(s, s.begin(), parent)
    s.ledger.moves()
    for token in (7, 8):
        s.decode(parent, token)
        s.decode(child, token)
    assert s.pages(parent)[:2] == s.pages(child)[:2]
    assert s.stats()["rebased_blocks"] == 1


def test_a_promise_is_kept_for_every_fork(engine: str) -> None:
    """A parent in the middle of its prompt: its fork needs the rest of the prompt as well."""
    s = Scenario(engine, num_pages=(11,))
    parent = s.prefill(tokens(20), first=8, max_total=20)
    assert (s.sequence(parent)["promise"], s.count("free")) == (3, 8)
    step = s.begin()
    first, second = fork(s, step, parent, parent)
    # 8 free pages are promised to the rest of three prompts, 3 each.
    assert first > 0
    assert second == -1
    assert s.stats()["promised"] == 6


def test_no_row_is_an_answer(engine: str) -> None:
    s = Scenario(engine, max_sequences=2)
    parent = s.prefill(tokens(6), 6)
    assert [answer if answer < 0 else 1 for answer in fork(s, s.begin(), parent, parent)] == [1, -3]


def test_forks_evict_before_they_are_refused(engine: str) -> None:
    s = Scenario(engine, num_pages=(9,))
    s.serve(tokens(20, 100))
    parent = s.prefill(tokens(10), 99, max_total=12)
    assert (s.count("free"), s.count("evictable")) == (0, 5)
    assert fork(s, s.begin(), parent)[0] > 0
    assert s.stats()["evicted_blocks"] == 1


def test_misuse_names_its_reason_and_changes_nothing() -> None:
    s = Scenario("core")
    parent = s.prefill(tokens(6), 6)
    running = s.prefill(tokens(6, 50), 6)
    step = s.begin()
    assert s.grow(step, running, 1)
    before = s.ledger.digest()

    def refuse(code: str, words: str, *handles: int, at: int = step) -> None:
        with pytest.raises(LedgerError, match=words) as caught:
            fork(s, at, *handles)
        assert caught.value.code == code
        assert s.ledger.digest() == before

    refuse("step_in_flight", rf"handle\[1\] = {running} runs step {step}", parent, running)
    refuse("stale_handle", r"handle\[0\] = 77", 77, parent)
    refuse("step_not_open", "step 99", parent, at=99)
    with pytest.raises(LedgerError, match="out has 1 items, expected 2"):
        s.ledger.core.fork(step, np.array([parent, parent]), np.zeros(1, np.int64))
    same = np.array([parent])
    with pytest.raises(LedgerError, match="out shares memory with handle"):
        s.ledger.core.fork(step, same, same)
    assert s.ledger.digest() == before


def test_a_page_that_waits_for_its_copy_is_not_copied_further(engine: str) -> None:
    """All copies that `moves` hands out together may run at once."""
    s = Scenario(engine)
    parent = s.prefill(tokens(6), 6)
    step = s.begin()
    [child] = fork(s, step, parent)
    with pytest.raises(ERRORS, match=r"copies wait|waits for 1 page copies"):
        fork(s, step, child)
    assert len(s.ledger.moves()) == 1
    assert fork(s, step, child)[0] > 0


@pytest.mark.parametrize("same_stream", [False, True])
def test_a_source_is_not_reused_before_its_copy_has_run(engine: str, same_stream: bool) -> None:
    s = Scenario(engine, num_pages=(4,), same_stream=same_stream)
    parent = s.prefill(tokens(2), 2, scope=-1, max_total=4)
    step = s.begin()
    [child] = fork(s, step, parent)
    s.release(parent)
    assert (s.count("free"), s.count("fenced")) == (1, 1)
    s.release(child)
    assert (s.count("free"), s.count("fenced")) == (1, 2)
    s.complete(step)
    assert (s.count("free"), s.count("fenced")) == (3, 0)


class Memory:
    """A device whose pages hold the tokens written to them; copies run in a random order."""

    def __init__(self, s: Scenario, rng: random.Random) -> None:
        self.s, self.rng = s, rng
        self.size = s.config.tokens_per_block
        self.pages: dict[tuple[int, int], list[int]] = {}

    def page(self, page: int, role: int) -> list[int]:
        return self.pages.setdefault((page, role), [-1] * self.size)

    def run_moves(self) -> None:
        moves = self.s.ledger.moves()
        self.rng.shuffle(moves)
        assert len({destination for _, _, destination, _ in moves}) == len(moves)
        for _, source, destination, count in moves:
            for role in (0, 1):
                self.page(destination, role)[:] = [-1] * self.size
                self.page(destination, role)[:count] = self.page(source, role)[:count]

    def write(self, handle: int, role: int, start: int, values: Iterable[int]) -> None:
        table = self.s.pages(handle)
        for position, value in enumerate(values, start):
            self.page(table[position // self.size], role)[position % self.size] = value

    def check(self, handle: int, text: list[int]) -> None:
        table, ends = self.s.pages(handle), self.s.sequence(handle)["valid"]
        for role, end in enumerate(ends):
            held = [self.page(table[at // self.size], role)[at % self.size] for at in range(end)]
            assert held == text[:end], f"role {role} of {handle}"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scope", [0, -1])
def test_every_beam_reads_what_it_wrote(seed: int, scope: int) -> None:
    """Beam search with drafts on a fake device: 60 steps of forks, releases and rejected tokens."""
    rng = random.Random(seed)
    s = Scenario(
        "core",
        num_pages=(40,),
        max_seq_len=100,
        reserve_tokens=3,
        has_draft=True,
        lookahead=rng.choice((0, 1, 3)),
        same_stream=seed % 2 == 1,
    )
    memory = Memory(s, rng)
    step = s.begin()
    root = s.admit(step, tokens(11), scope=scope, max_total=90)
    for role in (0, 1):
        memory.write(root, role, 0, tokens(11))
    s.complete(step)
    s.advance(step, root, 500)
    beams = {root: [*tokens(11), 500]}
    for _ in range(60):
        step = s.begin()
        parents = [rng.choice([*beams]) for _ in range(2)]
        children = fork(s, step, *parents)
        for parent, child in zip(parents, children, strict=True):
            if child > 0:
                beams[child] = list(beams[parent])
        while len(beams) > 4:
            loser = rng.choice([*beams])
            del beams[loser]
            s.release(loser, publish=rng.randrange(2))
        running = [handle for handle in beams if s.grow(step, handle, 4)]
        memory.run_moves()
        ends: list[list[int]] = []
        for handle in running:
            state, text = s.sequence(handle), beams[handle]
            accepted = [rng.randrange(1000, 2000) for _ in range(rng.randint(1, 4))]
            accepted = accepted[: 90 - len(text)]
            # The first token to run is the last one known; then accepted drafts, then junk.
            for role in (0, 1):
                start = state["valid"][role]
                known = (text + accepted)[start : state["reach"] + 4]
                junk = [-5] * (state["reach"] + 4 - start - len(known))
                memory.write(handle, role, start, known + junk)
            text += accepted
            highest = len(text) - 1 if accepted else state["reach"]
            ends.append([highest, max(highest - rng.randint(0, 2), state["valid"][1])])
        s.complete(step)
        if running:
            items = [
                (handle, tuple(beams[handle][s.sequence(handle)["known"] :]), 0)
                for handle in running
            ]
            s.ledger.advance(step, [(h, t, len(t)) for h, t, _ in items], ends)
        for handle, text in beams.items():
            memory.check(handle, text)
        s.ledger.validate()
    assert s.stats()["forked"] > 50

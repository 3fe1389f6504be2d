"""`resize`: other sizes of pools while sequences are open; see docs/ledger.md."""

from __future__ import annotations

import random

import numpy as np
import pytest
from reference.binding import CoreLedger
from reference.lifetimes import FULL, SLIDING, STATE
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv import _core
from tandemkv.errors import LedgerError

ERRORS = (LedgerError, Misuse)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_larger_pool_takes_more(engine: str) -> None:
    s = Scenario(engine, num_pages=(5,))
    handle = s.prefill(tokens(8), 8, max_total=16)
    assert s.try_admit(s.begin(), tokens(24, 50), max_total=24) == (-2, 0)
    s.complete(2)
    s.ledger.resize([9])
    assert (s.count("free"), s.count("cached"), s.count("total")) == (6, 2, 9)
    step = s.begin()
    other = s.admit(step, tokens(24, 50), max_total=24)
    assert len(set(s.pages(handle) + s.pages(other))) == 8
    s.complete(step)
    s.advance(step, other)
    s.ledger.release([(handle, 1), (other, 1)])
    assert s.match(tokens(24, 50)) == 24


@pytest.mark.parametrize("engine", ENGINES)
def test_a_smaller_pool_evicts_what_is_least_valuable(engine: str) -> None:
    s = Scenario(engine, num_pages=(11,))
    old, new = tokens(16), tokens(16, 50)
    s.serve(old, max_total=16)
    s.serve(new, max_total=16)
    s.ledger.resize([7])
    assert s.count("free") == 0
    assert (s.match(old), s.match(new)) == (8, 16)
    assert s.stats()["evicted_blocks"] == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_what_does_not_fit_is_refused_with_numbers(engine: str) -> None:
    s = Scenario(engine, num_pages=(17,))
    handle = s.prefill(tokens(20), max_total=32)  # 5 blocks, 8 at worst
    s.serve(tokens(8, 90), max_total=8)
    before = s.stats()
    for pages in (8, 2):
        with pytest.raises(ERRORS) as caught:
            s.ledger.resize([pages])
        if isinstance(caught.value, LedgerError):
            expected = {"class_index": 0, "needed": 9, "given": pages}
            assert (caught.value.code, caught.value.details) == ("pool_too_small", expected)
    assert s.stats() == before
    s.ledger.resize([9])
    s.release(handle)
    s.ledger.resize([4])
    s.ledger.set_quota(0, 3, None)
    with pytest.raises(ERRORS):
        s.ledger.resize([3])


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_must_be_complete_and_sizes_right(engine: str) -> None:
    s = Scenario(engine)
    for sizes in ([], [33, 33], [1], [0], [-1], [2**31]):
        with pytest.raises(ERRORS):
            s.ledger.resize(sizes)
    step = s.begin()
    with pytest.raises(ERRORS):
        s.ledger.resize([40])
    s.complete(step)
    s.ledger.resize([40])


RULES = ((FULL, 0, 0), (SLIDING, 8, 0), (STATE, 0, 0))


def test_moved_pages_hold_what_they_held() -> None:
    """Every page is marked with its content; the rows are run on arrays of the old and new size."""
    s = Scenario(
        "core", num_pages=(41, 41, 21), lifetimes=RULES, snapshot_interval=4, max_seq_len=64
    )
    assert isinstance(s.ledger, CoreLedger)
    core, rng = s.ledger.core, random.Random(3)
    memory = [np.zeros((pages, 4), np.int64) for pages in s.config.num_pages]
    handles, serial, refused = [], 1, set[str]()
    for number in range(40):
        count = rng.randint(4, 12)
        handle, _ = s.try_admit(s.begin(), tokens(count, 100 * number), max_total=count + 8)
        newest = core.stats()["newest_step"]
        if handle > 0:
            handles.append(handle)
        s.complete(newest)
        if handle > 0:
            s.advance(newest, handle, 5)
        if len(handles) > 4:
            s.release(handles.pop(rng.randrange(len(handles))))
        if number % 4:
            continue
        contents: dict[tuple[int, int, int], int] = {}
        for handle in handles:
            for cls, pages in enumerate(s.ledger.table(handle)):
                for column, page in enumerate(pages):
                    if page:
                        memory[cls][page] = contents[handle, cls, column] = serial
                        serial += 1
        core.updates(np.zeros((4096, 4), np.int32))
        sizes = [rng.randint(20, 44), rng.randint(20, 44), rng.randint(9, 22)]
        try:
            rows = core.resize(sizes)
        except LedgerError as error:
            refused.add(error.code)
            continue
        assert rows.dtype == np.int32
        assert rows[:, :2].tolist() == sorted(rows[:, :2].tolist())
        for cls, source, destination, count in rows.tolist():
            assert destination < sizes[cls] <= source
            assert count == (1 if cls == 2 else 4)
            memory[cls][destination] = memory[cls][source]
        memory = [
            np.concatenate([old[:pages], np.zeros((max(pages - len(old), 0), 4), np.int64)])
            for old, pages in zip(memory, sizes, strict=True)
        ]
        core.validate()
        for (handle, cls, column), content in contents.items():
            assert memory[cls][s.pages(handle, cls)[column]].tolist() == [content] * 4
        changed = np.zeros((4096, 4), np.int32)
        count = core.updates(changed)
        moved = {(cls, to) for cls, _, to, _ in rows.tolist()}
        held = {(cls, int(page)) for _, cls, _, page in changed[:count].tolist()}
        assert held <= moved
    assert serial > 100
    assert refused <= {"pool_too_small"}
    assert len(handles) > 2


def test_pages_that_forks_share_move_once() -> None:
    s = Scenario("core", num_pages=(17,))
    blocker = s.prefill(tokens(12, 50), scope=-1, max_total=12)
    handle = s.prefill(tokens(9), 8, scope=-1, max_total=16)
    step = s.begin()
    _, [fork] = s.ledger.fork(step, [handle])
    s.complete(step)
    s.release(blocker)
    first, second, third = s.pages(handle)
    assert s.pages(fork)[:2] == [first, second]
    rows = s.ledger.resize([second])
    assert [source for _, source, _, _ in rows] == [second, third, third + 1]
    assert s.pages(handle)[:2] == s.pages(fork)[:2] == [first, rows[0][2]]
    s.ledger.core.validate()
    s.ledger.release([(handle, 0), (fork, 0)])
    assert s.count("free") == second - 1


def test_tiers_must_not_be_under_way() -> None:
    ledger = _core.Ledger(
        tokens_per_block=4, num_pages=[5], max_sequences=2, max_seq_len=32, host_pages=[8]
    )
    handle, hit, step = np.zeros(1, np.int64), np.zeros(1, np.int32), 0
    for start in (0, 100):
        step = ledger.begin_step(0.0)
        prompt = np.arange(start, start + 16, dtype=np.int32)
        one = np.ones(1, np.int32)
        ledger.admit(step, [prompt], one - 1, one * 16, np.full(1, 16), None, handle, hit)
        ledger.complete_step(step)
        ledger.advance(step, handle, np.zeros((1, 1), np.int32), np.zeros(1, np.int32))
        ledger.release(handle, np.ones(1, np.uint8))
    with pytest.raises(LedgerError, match="4 loads and transfers are under way") as caught:
        ledger.resize([9])
    assert caught.value.code == "transfers_open"
    rows, keys = np.zeros((16, 6), np.int64), np.zeros((16, 32), np.uint8)
    count = ledger.transfers(rows, keys)
    assert count == 4
    ledger.resize([9])
    ledger.complete_transfers(rows[:count, 0].copy(), np.ones(count, np.uint8))
    ledger.validate()

"""Whatever a store does wrong is a miss and is counted; nothing is raised."""

from __future__ import annotations

import numpy as np
import pytest
from store_faults import (
    LAYOUT,
    OTHER_LAYOUT,
    SHORT_LAYOUT,
    FakeClock,
    FaultyBackend,
    ManualExecutor,
    faulty_store,
    keys,
    payloads,
    put_all,
    read,
)

from tandemkv.stores import Outcome


def name_of(*names: object) -> str:
    return LAYOUT.name(keys(*names)[0].tobytes())


def flip(place: int):
    def edit(value: np.ndarray) -> np.ndarray:
        value = value.copy()
        value[place] ^= 1
        return value

    return edit


def another(value: np.ndarray) -> np.ndarray:
    """Return a good value of another key."""
    other = value.copy()
    LAYOUT.seal(other, keys("another")[0].tobytes())
    return other


EDITS = {
    "empty": (lambda value: value[:0], Outcome.LENGTH),
    "header only": (lambda value: value[:128], Outcome.LENGTH),
    "one byte short": (lambda value: value[:-1], Outcome.LENGTH),
    "one byte long": (lambda value: np.append(value, np.uint8(0)), Outcome.LENGTH),
    "zeros": (np.zeros_like, Outcome.FOREIGN),
    "magic": (flip(0), Outcome.FOREIGN),
    "version": (flip(8), Outcome.FOREIGN),
    "length": (flip(16), Outcome.FOREIGN),
    "fingerprint": (flip(40), Outcome.FOREIGN),
    "another key": (another, Outcome.FOREIGN),
    "checksum": (flip(100), Outcome.CORRUPT),
    "first byte of the payload": (flip(128), Outcome.CORRUPT),
    "last byte of the payload": (flip(1127), Outcome.CORRUPT),
    "half written": (
        lambda value: np.concatenate([value[:600], np.zeros(528, np.uint8)]),
        Outcome.CORRUPT,
    ),
}


@pytest.mark.parametrize("fault", EDITS)
def test_a_value_that_is_not_what_was_stored_is_a_miss_and_is_dropped(fault: str):
    edit, outcome = EDITS[fault]
    backend = FaultyBackend()
    store = faulty_store(backend)
    put_all(store, LAYOUT, ["a", "b", "c"], [1, 2, 3])
    backend.edits[name_of("b")] = edit
    outcomes, out = read(store, LAYOUT, "a", "b", "c")
    assert outcomes == [Outcome.OK, outcome, Outcome.OK]
    assert np.array_equal(out[[0, 2]], payloads(1, 3))
    assert store.stats().outcomes["get"] == {"ok": 2, outcome.name.lower(): 1}
    assert (store.stats().misses, store.stats().dropped) == (1, 1)
    # It gave way: what is computed again takes its place, and is found.
    assert store.exists(LAYOUT, keys("a", "b", "c"), timeout_s=1).poll().tolist() == [1, 0, 1]
    backend.edits.clear()
    put_all(store, LAYOUT, ["b"], [4])
    assert np.array_equal(read(store, LAYOUT, "b")[1], payloads(4))


def test_a_value_of_another_layout_is_never_read():
    store = faulty_store(FaultyBackend())
    put_all(store, LAYOUT, ["a"], [1])
    assert read(store, OTHER_LAYOUT, "a")[0] == [Outcome.ABSENT]
    assert read(store, SHORT_LAYOUT, "a")[0] == [Outcome.FOREIGN]


@pytest.mark.parametrize("error", [OSError("gone"), MemoryError(), ValueError("no"), KeyError(1)])
def test_an_error_is_a_miss(error: Exception):
    backend = FaultyBackend()
    store = faulty_store(backend, max_failures=100)
    put_all(store, LAYOUT, ["a"], [1])
    backend.raises = error
    assert read(store, LAYOUT, "a", "b")[0] == [Outcome.FAILED] * 2
    put = store.put(LAYOUT, keys("b"), payloads(2), timeout_s=1)
    assert put.outcomes.tolist() == [Outcome.FAILED]
    assert not put.poll().any()
    assert not store.exists(LAYOUT, keys("a"), timeout_s=1).poll().any()
    assert store.stats().errors == {type(error).__name__: 3}
    assert store.close()
    assert store.stats().errors == {type(error).__name__: 4}


def test_too_few_answers_are_no_answers():
    backend = FaultyBackend()
    store = faulty_store(backend)
    put_all(store, LAYOUT, ["a", "b"], [1, 2])
    backend.answers_cut = 1
    assert read(store, LAYOUT, "a", "b")[0] == [Outcome.FAILED] * 2
    assert not store.put(LAYOUT, keys("c", "d"), payloads(3, 4), timeout_s=1).poll().any()
    assert not store.exists(LAYOUT, keys("a", "b"), timeout_s=1).poll().any()
    assert store.stats().errors == {"1 answers for 2 keys": 3}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(Outcome.OK, Outcome.FAILED), (Outcome.PENDING, Outcome.FAILED), ("text", Outcome.FAILED)],
)
def test_an_answer_without_a_value_is_no_hit(answer, outcome):
    backend = FaultyBackend()
    store = faulty_store(backend)
    put_all(store, LAYOUT, ["a"], [1])
    backend.edits[name_of("a")] = lambda value: answer
    assert read(store, LAYOUT, "a")[0] == [outcome]


def test_errors_that_the_store_below_counts_are_shown():
    backend = FaultyBackend()
    backend.counted = {"code -900": 2, "OSError": 1}
    store = faulty_store(backend)
    backend.raises = OSError()
    read(store, LAYOUT, "a")
    assert store.stats().errors == {"code -900": 2, "OSError": 2}


def test_a_drop_that_fails_leaves_a_miss():
    backend = FaultyBackend()
    store = faulty_store(backend)
    put_all(store, LAYOUT, ["a"], [1])
    backend.edits[name_of("a")] = flip(500)

    def fail(names):
        raise OSError

    backend.drop = fail
    assert read(store, LAYOUT, "a")[0] == [Outcome.CORRUPT]
    assert read(store, LAYOUT, "a")[0] == [Outcome.CORRUPT]
    assert (store.stats().dropped, store.stats().errors) == (0, {"OSError": 2})


def test_a_full_store_rejects_and_the_value_may_be_offered_again():
    # Mooncake#3331: rejected puts were never offered again.
    backend = FaultyBackend(2 * 1128, evict=False)
    store = faulty_store(backend)
    ticket = store.put(LAYOUT, keys("a", "b", "c"), payloads(1, 2, 3), timeout_s=1)
    assert ticket.poll().tolist() == [True, True, False]
    assert ticket.outcomes.tolist() == [Outcome.OK, Outcome.OK, Outcome.REJECTED]
    assert store.stats().outcomes["put"] == {"ok": 2, "rejected": 1}
    assert store.stats().stored_bytes == 2000
    backend.drop([name_of("a")])
    put_all(store, LAYOUT, ["c"], [3])
    assert np.array_equal(read(store, LAYOUT, "c")[1], payloads(3))


def test_a_store_that_fails_again_and_again_is_left_alone_for_a_while():
    backend, clock = FaultyBackend(), FakeClock()
    store = faulty_store(backend, clock=clock, max_failures=3, retry_after_s=5.0)
    put_all(store, LAYOUT, ["a"], [1])
    backend.raises = OSError("gone")
    for _ in range(3):
        assert not store.stats().suspended
        assert read(store, LAYOUT, "a")[0] == [Outcome.FAILED]
    assert store.stats().suspended
    calls = len(backend.calls)
    assert read(store, LAYOUT, "a")[0] == [Outcome.BUSY]
    assert store.put(LAYOUT, keys("b"), payloads(2), timeout_s=1).outcomes == [Outcome.BUSY]
    assert len(backend.calls) == calls
    clock.now += 5.0
    assert read(store, LAYOUT, "a")[0] == [Outcome.FAILED]  # one try, and it is left alone again
    assert read(store, LAYOUT, "a")[0] == [Outcome.BUSY]
    clock.now += 5.0
    backend.raises = None
    for _ in range(3):
        assert read(store, LAYOUT, "a")[0] == [Outcome.OK]
    assert not store.stats().suspended


def test_an_answer_between_failures_counts_them_anew():
    backend = FaultyBackend()
    store = faulty_store(backend, max_failures=3)
    for failing in (True, True, False, True, True):
        backend.raises = OSError() if failing else None
        read(store, LAYOUT, "a")
    assert not store.stats().suspended
    backend.raises = OSError()
    read(store, LAYOUT, "a")
    assert store.stats().suspended


def test_misses_do_not_suspend_a_store():
    store = faulty_store(FaultyBackend(), max_failures=1)
    for _ in range(3):
        assert read(store, LAYOUT, "a")[0] == [Outcome.ABSENT]
    assert not store.stats().suspended


def test_batches_are_cut_and_one_that_fails_spoils_no_other():
    backend = FaultyBackend()
    store = faulty_store(backend, batch_values=3)
    put_all(store, LAYOUT, range(8), range(8))
    assert backend.calls == [("put", 3), ("put", 3), ("put", 2)]
    backend.calls.clear()

    def fail_second() -> None:
        backend.raises = OSError() if len(backend.calls) == 2 else None

    backend.before = fail_second
    outcomes, out = read(store, LAYOUT, *range(8))
    assert outcomes == [Outcome.OK] * 3 + [Outcome.FAILED] * 3 + [Outcome.OK] * 2
    assert np.array_equal(out[[0, 1, 2, 6, 7]], payloads(0, 1, 2, 6, 7))


def test_every_interleaving_of_a_put_and_a_get_reads_the_value_or_misses():
    # LMCache#4385: a read while the write was under way.
    for first in (0, 1):
        for memory_changes in (False, True):
            executor = ManualExecutor()
            store = faulty_store(FaultyBackend(), executor)
            memory, out = payloads(1), np.zeros((1, 1000), np.uint8)
            put = store.put(LAYOUT, keys("a"), memory, timeout_s=1)
            get = store.get(LAYOUT, keys("a"), out, timeout_s=1)
            if memory_changes:
                memory[:] = 0  # its page belongs to somebody else from here on
            executor.run(first)
            executor.run(0)
            assert put.poll().all()
            assert get.outcomes == [Outcome.ABSENT if first else Outcome.OK]
            if not first:
                assert np.array_equal(out, payloads(1))

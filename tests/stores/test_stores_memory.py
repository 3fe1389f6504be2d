"""The store in memory against a dictionary in the order of use."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_faults import LAYOUT, OTHER_LAYOUT, VALUE_BYTES, keys, payloads, put_all, read

from tandemkv.errors import ArrayError, StoreError
from tandemkv.stores import MemoryBackend, MemoryStore, Outcome

ROOM = 5
NAMES = st.lists(st.integers(0, 9), max_size=4)


class MemoryStoreMachine(RuleBasedStateMachine):
    """Any calls, one after the other, as a dictionary would answer them."""

    @initialize(evict=st.booleans())
    def make(self, evict: bool) -> None:
        self.evict = evict
        self.store = MemoryStore(ROOM * VALUE_BYTES + 1, evict=evict)
        self.values: OrderedDict[tuple[int, int], int] = OrderedDict()
        self.asked = {"put": 0, "get": 0, "exists": 0}
        self.seed = 0

    def layout(self, other: bool):
        return OTHER_LAYOUT if other else LAYOUT

    @rule(names=NAMES, other=st.booleans())
    def put(self, names: list[int], other: bool) -> None:
        seeds = [self.seed + place for place in range(len(names))]
        self.seed += len(names)
        expected = []
        for name, seed in zip(names, seeds, strict=True):
            slot = (other, name)
            if slot not in self.values and len(self.values) == ROOM and not self.evict:
                expected.append(Outcome.REJECTED)
                continue
            if slot not in self.values and len(self.values) == ROOM:
                self.values.popitem(last=False)
            self.values.setdefault(slot, seed)
            self.values.move_to_end(slot)
            expected.append(Outcome.OK)
        ticket = self.store.put(self.layout(other), keys(*names), payloads(*seeds), timeout_s=1.0)
        assert ticket.poll().tolist() == [outcome == Outcome.OK for outcome in expected]
        assert ticket.outcomes.tolist() == expected
        self.asked["put"] += len(names)

    @rule(names=NAMES, other=st.booleans())
    def get(self, names: list[int], other: bool) -> None:
        outcomes, out = read(self.store, self.layout(other), *names)
        for name, outcome, row in zip(names, outcomes, out, strict=True):
            seed = self.values.get((other, name))
            assert outcome == (Outcome.ABSENT if seed is None else Outcome.OK)
            if seed is not None:
                assert np.array_equal(row, payloads(seed)[0])
                self.values.move_to_end((other, name))
        self.asked["get"] += len(names)

    @rule(names=NAMES, other=st.booleans())
    def exists(self, names: list[int], other: bool) -> None:
        ticket = self.store.exists(self.layout(other), keys(*names), timeout_s=1.0)
        assert ticket.poll().tolist() == [(other, name) in self.values for name in names]
        self.asked["exists"] += len(names)

    @invariant()
    def outcomes_add_up(self) -> None:
        stats = self.store.stats()
        assert stats.asked == self.asked
        for call, asked in self.asked.items():
            assert sum(stats.outcomes[call].values()) == asked
        assert not stats.errors
        assert not stats.suspended


TestMemoryStore = MemoryStoreMachine.TestCase


def test_probes_do_not_keep_values_from_being_evicted():
    # Mooncake#2187: 1,000 keys probed in every tick made everything unevictable, and puts failed.
    store = MemoryStore(1000 * VALUE_BYTES)
    assert not store.probe_extends_lease
    put_all(store, LAYOUT, range(1000), [0] * 1000)
    for tick in range(10):
        # Those stored first are probed last, and give way all the same.
        backwards = keys(*reversed(range(1000)))
        found = store.exists(LAYOUT, backwards, timeout_s=1.0).poll()
        assert np.flatnonzero(~found[::-1]).tolist() == list(range(tick))
        put_all(store, LAYOUT, [("new", tick)], [tick])


def test_a_value_that_fits_nowhere_is_rejected():
    store = MemoryStore(VALUE_BYTES - 1)
    ticket = store.put(LAYOUT, keys("a"), payloads(1), timeout_s=1.0)
    assert ticket.outcomes.tolist() == [Outcome.REJECTED]
    assert store.stats().outcomes["put"] == {"rejected": 1}


def test_the_caller_may_reuse_its_memory_when_put_returns():
    store = MemoryStore(1 << 20)
    memory = payloads(1, 2)
    store.put(LAYOUT, keys("a", "b"), memory, timeout_s=1.0)
    memory[:] = 0
    outcomes, out = read(store, LAYOUT, "a", "b")
    assert outcomes == [Outcome.OK] * 2
    assert np.array_equal(out, payloads(1, 2))


def test_the_backend_keeps_values_of_its_own():
    backend = MemoryBackend(1 << 20)
    value = np.ones(10, np.uint8)
    assert backend.put(["a"], [value]) == [Outcome.OK]
    value[:] = 2
    (found,) = backend.get(["a"], 10)
    assert found.tolist() == [1] * 10
    assert not found.flags.writeable


def test_payloads_may_be_written_by_a_function():
    store = MemoryStore(1 << 20)

    def fill(rows: np.ndarray) -> None:
        rows[:] = payloads(3, 4)

    assert store.put(LAYOUT, keys("a", "b"), fill, timeout_s=1.0).poll().all()
    assert np.array_equal(read(store, LAYOUT, "b", "a")[1], payloads(4, 3))

    def fail(rows: np.ndarray) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put(LAYOUT, keys("c"), fail, timeout_s=1.0)
    assert store.stats().outcomes["put"] == {"ok": 2, "cancelled": 1}
    assert read(store, LAYOUT, "c")[0] == [Outcome.ABSENT]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keys": [b"a"]}, "keys: dtype uint8 is needed, not list"),
        ({"keys": np.zeros((1, 32), np.int8)}, "keys: dtype uint8 is needed, not int8"),
        ({"keys": np.zeros((1, 31), np.uint8)}, r"keys: shape \(any, 32\) is needed"),
        ({"keys": np.zeros(32, np.uint8)}, r"keys: shape \(any, 32\) is needed"),
        ({"out": np.zeros((1, 1000), np.float32)}, "out: dtype uint8 is needed, not float32"),
        ({"out": np.zeros((2, 1000), np.uint8)}, r"out: shape \(1, 1000\) is needed"),
        ({"out": np.zeros((1, 999), np.uint8)}, r"out: shape \(1, 1000\) is needed"),
        ({"out": np.zeros((1, 2000), np.uint8)[:, ::2]}, "out: it must be writable, each row"),
        ({"out": np.broadcast_to(np.uint8(0), (1, 1000))}, "out: it must be writable, each row"),
    ],
)
def test_arrays_of_another_form_are_refused(given, message):
    store = MemoryStore(1 << 20)
    arguments = {"keys": keys("a"), "out": np.zeros((1, 1000), np.uint8), **given}
    with pytest.raises(ArrayError, match=message):
        store.get(LAYOUT, **arguments, timeout_s=1.0)
    assert store.stats().asked == {"put": 0, "get": 0, "exists": 0}


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), True, "1", None])
def test_a_timeout_is_needed(timeout_s):
    store = MemoryStore(1 << 20)
    with pytest.raises(StoreError, match="a number >= 0 is needed"):
        store.exists(LAYOUT, keys("a"), timeout_s=timeout_s)
    with pytest.raises(StoreError, match="a number >= 0 is needed"):
        store.close(timeout_s)


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, True])
def test_a_size_is_needed(max_bytes):
    with pytest.raises(StoreError, match="an int >= 1 is needed"):
        MemoryStore(max_bytes)

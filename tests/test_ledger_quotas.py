"""Quotas of scopes: floors that others do not evict below, and ceilings; see docs/eviction.md."""

from __future__ import annotations

import pytest
from reference.scenario import ENGINES, Scenario, tokens
from reference.state import Misuse

from tandemkv.errors import LedgerError, SequencesOpenError

ERRORS = (LedgerError, Misuse)


class Tenants(Scenario):
    """A ledger of 12 usable pages of 4 tokens with scopes by name."""

    def __init__(self, engine: str, **options: object) -> None:
        super().__init__(engine, num_pages=(13,), **options)
        self.names: dict[str, int] = {}
        self.served = 0

    def scope(self, name: str) -> int:
        if name not in self.names:
            self.names[name] = self.ledger.intern_scope(None, name)
        return self.names[name]

    def cache(self, name: str, blocks: int) -> tuple[int, ...]:
        """Serve a new prompt of so many blocks in the scope of a tenant; return its tokens."""
        prompt = tokens(4 * blocks, 100 * self.served)
        self.served += 1
        self.serve(prompt, scope=self.scope(name), max_total=len(prompt))
        return prompt

    def quota(self, name: str, floor: int, ceiling: int | None = None) -> None:
        self.ledger.set_quota(self.scope(name), floor, ceiling)

    def cached(self, name: str) -> int:
        """Return the blocks of a tenant's quota that are cached."""
        [quota] = [q for q in self.ledger.quotas() if q["scope"] == self.scope(name)]
        return quota["cached_blocks"]


@pytest.mark.parametrize("engine", ENGINES)
def test_others_do_not_evict_below_the_floor(engine: str) -> None:
    s = Tenants(engine)
    old = s.cache("a", 5)
    s.quota("a", 3)
    for _ in range(6):
        s.cache("b", 4)
    assert s.cached("a") == 3
    assert s.match(old, scope=s.scope("a")) == 12, "the end of the path went"
    # 12 pages less 3 guarded ones.
    s.cache("b", 9)
    assert s.cached("a") == 3
    step = s.begin()
    assert s.try_admit(step, tokens(40, 5000), scope=s.scope("b"), max_total=40) == (-2, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_floor_they_do(engine: str) -> None:
    s = Tenants(engine)
    old = s.cache("a", 5)
    for _ in range(6):
        s.cache("b", 4)
    assert s.match(old, scope=s.scope("a")) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_scope_evicts_its_own_blocks_below_the_floor(engine: str) -> None:
    s = Tenants(engine)
    s.cache("b", 4)
    s.quota("a", 6)
    old = s.cache("a", 6)
    s.quota("b", 4)
    # Nothing is free but 2 pages, and of "b" nothing may go: "a" takes its own.
    new = s.cache("a", 8)
    assert s.match(old, scope=s.scope("a")) == 0
    assert s.match(new, scope=s.scope("a")) == 32
    assert s.cached("b") == 4


@pytest.mark.parametrize("engine", ENGINES)
def test_protected_blocks_count_towards_the_floor(engine: str) -> None:
    """Of 6 blocks with floor 4, 3 protected: only 1 of the other 3 is guarded."""
    s = Tenants(engine)
    prompt = s.cache("a", 3)
    s.cache("a", 3)
    s.quota("a", 4)
    assert s.ledger.quotas()[0]["guarded_blocks"] == 4
    s.prefill((*prompt, 1), scope=s.scope("a"), max_total=13)
    [quota] = s.ledger.quotas()
    assert (quota["cached_blocks"], quota["evictable_blocks"], quota["guarded_blocks"]) == (6, 3, 1)
    assert s.stats()["guarded_blocks"] == 1
    # Free are 12 - 6 - 1; of the evictable 3 others get 2.
    answers = [
        s.ledger.fits([s.request(tokens(4 * n, 900), scope=s.scope("b"), max_total=4 * n)])[1]
        for n in (7, 8)
    ]
    assert answers == [[0], [-1]]
    mine = [s.request(tokens(32, 900), scope=s.scope("a"), max_total=32)]
    assert s.ledger.fits(mine)[1] == [0], "the scope itself gets all 3"
    items = [(28, 0, 28, 28), (32, 0, 32, 32)]
    assert s.ledger.fits_blocks(items, [s.scope("b")] * 2) == (1, [0, -1])
    assert s.ledger.fits_blocks(items, [s.scope("a")] * 2) == (2, [0, 0])
    assert s.ledger.fits_blocks(items) == (1, [0, -1])


@pytest.mark.parametrize("engine", ENGINES)
def test_above_its_ceiling_a_scope_goes_first(engine: str) -> None:
    s = Tenants(engine)
    oldest = s.cache("b", 3)
    s.quota("a", 0, 4)
    s.cache("a", 4)
    s.cache("a", 5)
    assert s.cached("a") == 9, "nobody needed the room"
    s.cache("c", 2)
    assert s.cached("a") == 7
    assert s.match(oldest, scope=s.scope("b")) == 12
    s.cache("c", 3)
    assert s.cached("a") == 4
    s.cache("c", 1)
    # At its ceiling it is one of many: the least recently used block goes.
    assert s.cached("a") == 4
    assert s.match(oldest, scope=s.scope("b")) == 8


@pytest.mark.parametrize("engine", ENGINES)
def test_a_running_sequence_grows_at_the_cost_of_scopes_above_their_floors(engine: str) -> None:
    s = Tenants(engine)
    s.cache("a", 6)
    s.quota("a", 5)
    handle = s.prefill(tokens(20, 700), 7, scope=s.scope("b"), max_total=29)
    assert s.count("free") == 1
    s.decode(handle, 7, 7, 7, 7, width=4)  # takes the last free page
    assert s.count("free") == 0
    s.decode(handle, 7, 7, 7, 7, width=4)
    assert s.cached("a") == 5
    step = s.begin()
    assert not s.grow(step, handle, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_floors_leave_room_for_what_is_open(engine: str) -> None:
    s = Tenants(engine, reserve_tokens=3)
    handle = s.prefill(tokens(8), 8, max_total=13)  # 15 tokens at most: 4 blocks
    with pytest.raises(ERRORS):
        s.quota("a", 9)
    s.quota("a", 5)
    with pytest.raises(ERRORS):
        s.quota("b", 4)
    s.quota("b", 3)
    s.quota("a", 2)
    s.quota("b", 6)
    s.ledger.set_quota(0, 4, None)  # the sequence's own scope: no floor is against itself
    s.release(handle)
    with pytest.raises(ERRORS):
        s.quota("c", 1)
    s.quota("a", 1)
    s.quota("c", 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_quotas_end_with_their_scope_or_by_call(engine: str) -> None:
    s = Tenants(engine)
    s.cache("a", 3)
    s.quota("a", 2, 5)
    s.ledger.reset_reuse_state()
    assert [(q["floor_blocks"], q["cached_blocks"]) for q in s.ledger.quotas()] == [(2, 0)]
    number = s.scope("a")
    s.ledger.release_scope(number)
    for at in range(40):  # a number with a quota is in use: it is not given to another one
        s.ledger.release_scope(s.ledger.intern_scope(None, f"other {at}"))
    assert s.ledger.intern_scope(None, "a") == number
    s.ledger.drop_scope(number)
    assert s.ledger.quotas() == []
    s.names.clear()
    s.quota("b", 1)
    s.quota("b", 0)
    assert s.ledger.quotas() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_wrong_quotas_change_nothing(engine: str) -> None:
    s = Tenants(engine)
    number = s.scope("a")
    for scope, floor, ceiling in (
        *((-1, 1, None), (number + 1, 1, None), (number, -1, None), (number, 13, None)),
        *((number, 4, 3), (number, 2**31, None), (number, 0, 2**31)),
    ):
        with pytest.raises(ERRORS):
            s.ledger.set_quota(scope, floor, ceiling)
    assert s.ledger.quotas() == []
    without = Tenants(engine, reuse=False)
    with pytest.raises(ERRORS):
        without.quota("a", 1)
    s.quota("a", 12)
    s.prefill(tokens(4), scope=number, max_total=4)
    with pytest.raises((SequencesOpenError, Misuse)):
        s.ledger.drop_scope(number)
    assert s.cached("a") == 1


def test_the_message_says_what_is_left() -> None:
    s = Tenants("core")
    s.quota("a", 5)
    with pytest.raises(LedgerError, match=r"floor_blocks of scope 2 is 8, must be in 0\.\.=7"):
        s.quota("b", 8)

"""Thousands of moves between device, host and disk: every page is hashed before and after."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tier_setup import (
    DEVICE_PAGES,
    FULL_CLASS,
    NUM_CLASSES,
    STATE_CLASS,
    WINDOW_CLASS,
    device_row,
    digest,
    key_of,
    load_row,
    make_pools,
    move,
    open_pool_store,
    plan_of,
    wait_for_all,
    write_page,
)

from tandemkv.managers.pools import Pool
from tandemkv.tiers import (
    DEVICE,
    DISK,
    HOST,
    HostTier,
    TierExecutor,
    device_group,
)
from tandemkv.tiers.copies import HostCopier
from tandemkv.tiers.transfers import DIRECTIONS

HOST_PAGES = (11, 7, 4)
DISK_PAGES = (17, 9, 6)
NUM_PAGES = (DEVICE_PAGES, HOST_PAGES, DISK_PAGES)

Place = tuple[int, int, int]  # tier, class, page


class Tiers:
    """Pools, both tiers and the executor, and what every page must hold."""

    def __init__(self, folder: Path, arrangement: Any, *, seed: int = 0, host: bool = True) -> None:
        self.pools: list[Pool] = make_pools(arrangement)
        groups = [device_group(pool) for pool in self.pools]
        self.host = HostTier(groups, HOST_PAGES) if host else None
        self.store = open_pool_store(folder, self.pools, DISK_PAGES)
        self.executor = TierExecutor(
            groups,
            NUM_CLASSES,
            copier=HostCopier(),
            host=self.host,
            disk=self.store,
            threads=3,
            staging_pages=3,
            when_full="wait",
        )
        self.random = random.Random(seed)
        self.held: dict[Place, int] = {}  # the content of each page, by its seed
        self.digests: dict[int, bytes] = {}
        self.next_id = 1

    def fill(self, class_index: int, page: int) -> None:
        """Compute new content into a page of the device."""
        seed = len(self.digests)
        write_page(self.pools, class_index, page, seed)
        self.digests[seed] = digest(self.pools, class_index, page)
        self.held[DEVICE, class_index, page] = seed

    def hash_of(self, place: Place) -> bytes:
        """Hash what a page holds, wherever it is."""
        tier, class_index, page = place
        if tier == DEVICE:
            return digest(self.pools, class_index, page)
        if tier == HOST:
            assert self.host is not None
            parts = self.host.parts(class_index, page)
        else:
            parts = [
                np.empty(pool.page_bytes, np.uint8)
                for pool in self.pools
                if pool.class_index == class_index
            ]
            self.store.read(class_index, page, key_of(self.held[place]), parts)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()

    def random_rows(self, count: int) -> Iterator[tuple[Place, Place]]:
        """Choose moves that do not touch each other's pages, as a ledger would."""
        used: set[Place] = set()
        for _ in range(count):
            source_tier, target_tier = self.random.choice(DIRECTIONS)
            class_index = self.random.choice((FULL_CLASS, WINDOW_CLASS, STATE_CLASS))
            sources = [
                place
                for place in self.held
                if place[:2] == (source_tier, class_index) and place not in used
            ]
            targets = [
                place
                for page in range(int(target_tier == DEVICE), NUM_PAGES[target_tier][class_index])
                if (place := (target_tier, class_index, page)) not in used
            ]
            if sources and targets:
                source, target = self.random.choice(sources), self.random.choice(targets)
                used |= {source, target}
                yield source, target

    def round_of_moves(self, count: int) -> int:
        """Run random moves in one or two plans, and check every page that took part."""
        for class_index, pages in enumerate(DEVICE_PAGES):
            if self.random.random() < 0.8:
                self.fill(class_index, self.random.randrange(1, pages))
        moves = list(self.random_rows(count))
        for source, _ in moves:
            assert self.hash_of(source) == self.digests[self.held[source]]
        rows, keys = [], []
        for source, target in moves:
            same = self.random.random() < 0.2 and rows  # a transfer of several rows
            self.next_id += not same
            rows.append([self.next_id, source[1], source[0], source[2], target[0], target[2]])
            keys.append(key_of(self.held[source]))
        ids = [row[0] for row in rows]
        middle = len(rows) // 2
        while 0 < middle < len(rows) and ids[middle] == ids[middle - 1]:
            middle += 1
        self.executor.submit(plan_of(rows[:middle], keys[:middle]))
        self.executor.submit(plan_of(rows[middle:], keys[middle:]))
        assert wait_for_all(self.executor) == dict.fromkeys(ids, True)
        for source, target in moves:
            self.held[target] = self.held[source]
        for place in {place for pair in moves for place in pair}:
            assert self.hash_of(place) == self.digests[self.held[place]]
        return len(moves)

    def run(self, count: int) -> None:
        done = 0
        while done < count:
            done += self.round_of_moves(self.random.randint(1, 12))
        for place, seed in self.held.items():
            assert self.hash_of(place) == self.digests[seed]


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_five_thousand_moves_keep_every_page(tmp_path: Path, arrangement: Any) -> None:
    tiers = Tiers(tmp_path, arrangement)
    tiers.run(5_000)
    rows = tiers.executor.stats()["directions"]
    assert len(rows) == 6
    assert all(item["rows"] > 300 and item["failed"] == 0 for item in rows.values())
    tiers.executor.close()


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_fifty_thousand_moves_keep_every_page(tmp_path: Path, arrangement: Any) -> None:
    tiers = Tiers(tmp_path, arrangement, seed=1)
    tiers.run(50_000)
    tiers.executor.close()


def test_pages_survive_a_restart_in_pools_of_another_arrangement(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, "interleaved")
    tiers.run(200)
    tiers.executor.close()
    again = Tiers(tmp_path, "per_layer")
    kept = {place: seed for place, seed in tiers.held.items() if place[0] == DISK}
    newest = {key_of(seed): place for place, seed in kept.items()}
    count = 0
    for class_index, keys, pages in again.store.entries():
        for key, page in zip(keys, pages.tolist(), strict=True):
            seed = kept[DISK, class_index, page]
            assert key.tobytes() == key_of(seed)
            row = load_row(count + 1, class_index, DISK, page, 1 + count % 4)
            assert move(again.executor, [row], keys=[key_of(seed)]) == {count + 1: True}
            assert digest(again.pools, class_index, row[5]) == tiers.digests[seed]
            count += 1
    assert count == len(newest) > 5
    again.executor.close()


def test_without_a_host_tier_pages_go_to_disk_and_come_back(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, "per_layer", host=False)
    for page in range(1, 9):
        tiers.fill(FULL_CLASS, page)
    before = [tiers.digests[seed] for seed in range(8)]
    tiers.executor.submit(
        plan_of([device_row(page, FULL_CLASS, page, DISK, page) for page in range(1, 9)])
    )
    # The device's pages belong to somebody else from here on.
    for page in range(1, 9):
        tiers.fill(FULL_CLASS, page)
    assert wait_for_all(tiers.executor) == dict.fromkeys(range(1, 9), True)
    rows = [load_row(page, FULL_CLASS, DISK, page, 9 - page) for page in range(1, 9)]
    assert move(tiers.executor, rows) == dict.fromkeys(range(1, 9), True)
    assert [digest(tiers.pools, FULL_CLASS, 9 - page) for page in range(1, 9)] == before
    tiers.executor.close()


def test_where_staging_is_full_an_eviction_to_disk_is_a_miss(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, "interleaved", host=False)
    tiers.executor._when_full = "fail"
    for page in range(1, 9):
        tiers.fill(FULL_CLASS, page)
    rows = [device_row(page, FULL_CLASS, page, DISK, page) for page in range(1, 9)]
    done = move(tiers.executor, rows, keys=[key_of(page - 1) for page in range(1, 9)])
    assert [done[page] for page in range(1, 9)] == [True] * 3 + [False] * 5  # 3 staging pages
    assert tiers.executor.stats()["last_error"] == "no staging page is free"
    for page in range(1, 9):
        tiers.held[DISK, FULL_CLASS, page] = page - 1
        if done[page]:
            assert tiers.hash_of((DISK, FULL_CLASS, page)) == tiers.digests[page - 1]
    tiers.executor.close()


def test_a_page_that_is_not_there_is_a_failed_transfer(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, "interleaved")
    tiers.fill(FULL_CLASS, 1)
    keys = [key_of(0)] * 2
    rows = [device_row(1, FULL_CLASS, 1, HOST, 0)]
    assert move(tiers.executor, rows) == {1: True}
    assert move(tiers.executor, [[2, FULL_CLASS, HOST, 0, DISK, 5]], keys=keys[:1]) == {2: True}
    # Another key, another page, and one transfer of which a row fails.
    rows = [[3, FULL_CLASS, DISK, 5, HOST, 1], load_row(4, FULL_CLASS, DISK, 5, 2)]
    assert move(tiers.executor, rows) == {3: False, 4: False}
    rows = [[5, FULL_CLASS, DISK, 6, HOST, 1], load_row(6, FULL_CLASS, DISK, 6, 2)]
    assert move(tiers.executor, rows, keys=keys) == {5: False, 6: False}
    rows = [[7, FULL_CLASS, DISK, 5, HOST, 1], [7, FULL_CLASS, DISK, 6, HOST, 2]]
    assert move(tiers.executor, rows, keys=keys) == {7: False}
    assert move(tiers.executor, [load_row(8, FULL_CLASS, DISK, 5, 3)], keys=keys[:1]) == {8: True}
    assert digest(tiers.pools, FULL_CLASS, 3) == tiers.digests[0]
    assert tiers.executor.stats()["directions"]["disk_to_host"] == {"rows": 4, "failed": 3}
    tiers.executor.close()


def test_clearing_the_disk_waits_for_what_is_on_its_way(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, "interleaved")
    tiers.fill(FULL_CLASS, 1)
    move(tiers.executor, [device_row(1, FULL_CLASS, 1, HOST, 0)])
    rows = [[2, FULL_CLASS, HOST, 0, DISK, page] for page in range(17)]
    tiers.executor.submit(plan_of(rows))
    with pytest.raises(Exception, match="transfer 2 is on its way"):
        tiers.executor.submit(plan_of(rows[:1]))
    tiers.executor.clear_disk()
    assert wait_for_all(tiers.executor) == {2: True}
    assert move(tiers.executor, [load_row(3, FULL_CLASS, DISK, 0, 1)], keys=[key_of(2)]) == {
        3: False
    }
    assert [line.split(":")[0] for line in tiers.executor.describe().splitlines()] == [
        "host",
        "disk",
        "staging",
    ]
    tiers.executor.close()
    assert Tiers(tmp_path, "interleaved").store.entries() == []

"""Whatever fails, and wherever a process is killed: a page is its content, or it is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_setup import (
    CLASSES,
    STEPS,
    FaultyFiles,
    StepFiles,
    content_of,
    found,
    key_of,
    open_store,
    read,
    write,
)
from tier_setup import (
    FULL_CLASS,
    NUM_CLASSES,
    device_row,
    digest,
    load_row,
    make_pools,
    move,
    open_pool_store,
    write_page,
)
from tier_setup import (
    key_of as key_of_content,
)

from tandemkv.errors import TierError
from tandemkv.tiers import (
    DISK,
    HOST,
    DiskStore,
    build_executor,
)

KEYS = [key_of(seed) for seed in range(30)]


def check(path: Path) -> dict[tuple[int, bytes], int]:
    """Open a store, read all it lists, and return those; a page with another content fails."""
    right = {}
    with open_store(path) as store:
        for (class_index, key), page in found(store).items():
            assert key in KEYS
            try:
                content = read(store, class_index, page, key)
            except TierError:
                continue
            assert content == content_of(key, class_index)
            right[class_index, key] = page
        # Every page can be used again.
        for class_index in range(2):
            for page in range(CLASSES[class_index].num_pages):
                write(store, class_index, page, key_of(29))
                content = read(store, class_index, page, key_of(29))
                assert content == content_of(key_of(29), class_index)
    return right


def put(store: DiskStore, stored: dict[tuple[int, int], bytes], place: Any, seed: int) -> None:
    """Write a page, and note whether that went well."""
    stored.pop(place, None)
    with suppress(OSError, TierError):
        write(store, *place, key_of(seed))
        stored[place] = key_of(seed)


def get_all(store: DiskStore, stored: dict[tuple[int, int], bytes]) -> None:
    for (class_index, page), key in stored.items():
        with suppress(OSError, TierError):
            content = read(store, class_index, page, key)
            assert content == content_of(key, class_index)


def scenario(path: Path, files: StepFiles) -> dict[tuple[int, int], bytes]:
    """Use a store in every way, going on after errors; return the key of each stored page."""
    stored: dict[tuple[int, int], bytes] = {}
    for run in range(3):
        try:
            store = open_store(path, files=files)
        except (OSError, TierError):
            continue  # refused as a whole; the next run tries again
        with store:
            known = found(store)
            for (class_index, _), key in stored.items():
                # Nothing gets lost unless something failed.
                assert (class_index, key) in known or files.hit
            get_all(store, stored)
            for number in range(3):
                put(store, stored, (0, (run + number) % 4), 3 * run + number)
                put(store, stored, (1, (run + number) % 5), 3 * run + number)
            get_all(store, stored)
            if run == 1:
                stored.clear()
                with suppress(OSError, TierError):
                    store.clear()
                    put(store, stored, (1, 0), 20)
    return stored


def by_key(stored: dict[tuple[int, int], bytes]) -> dict[tuple[int, bytes], int]:
    return {(class_index, key): page for (class_index, page), key in stored.items()}


def test_nothing_fails_where_nothing_is_broken(tmp_path: Path) -> None:
    files = StepFiles()
    stored = scenario(tmp_path, files)
    assert set(files.calls) == STEPS
    assert check(tmp_path) == by_key(stored)
    assert len(stored) == 7


KINDS = ["EIO", "ENOSPC", "short", "corrupt", "lost"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_call_is_never_a_wrong_page(tmp_path: Path, kind: str) -> None:
    files = StepFiles()
    scenario(tmp_path / "whole", files)
    hits, refused = set(), []
    reported = {"lost": {"write"}, "short": {"read", "write"}, "corrupt": {"read", "write"}}
    for number, name in enumerate(files.calls):
        if name not in reported.get(kind, STEPS):
            continue
        faulty = FaultyFiles(number, kind)
        path = tmp_path / str(number)
        stored = scenario(path, faulty)
        hits.add(faulty.hit)
        try:
            right = check(path)
        except TierError as error:
            refused.append(str(error))
            continue
        if kind in ("EIO", "ENOSPC", "short"):
            # What was stored without an error is there.
            assert by_key(stored).items() <= right.items()
    assert hits == reported.get(kind, STEPS)
    # Only a header that did not arrive as it was written refuses the whole store, and says so.
    assert bool(refused) == (kind in ("corrupt", "lost"))
    assert all("store.json is damaged" in message for message in refused)


@pytest.mark.timeout(600)
def test_a_process_that_is_killed_anywhere_leaves_no_wrong_page(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_child.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    killed = int(child.stdout)
    assert killed > 150
    sizes = []
    for number in range(killed + 1):
        path = tmp_path / str(number)
        path.mkdir(exist_ok=True)  # killed before it was made
        right = check(path)
        # Cleared pages do not come back beside those that were stored after it.
        newer = {key for key in right if key in {(0, key_of(20))}}
        assert not newer or set(right) <= {(0, key_of(20)), (1, key_of(0))}
        sizes.append(len(right))
    assert sizes[0] == 0
    assert sizes[-1] == 2
    assert max(sizes) == 7  # six pages and then four more, three of them over others


@pytest.mark.parametrize("class_index", [0, 1])
def test_a_write_that_is_torn_at_any_byte_is_no_hit(tmp_path: Path, class_index: int) -> None:
    item = CLASSES[class_index]
    old, new = key_of(1), key_of(2)
    images = []
    for key in (old, new):
        with open_store(tmp_path) as store:
            write(store, class_index, 0, key)
        images.append((tmp_path / f"class-{class_index}.pages").read_bytes()[: item.slot_bytes])
    sizes = {*range(0, item.slot_bytes, 61), *range(item.slot_bytes - 200, item.slot_bytes + 1)}
    cuts = [np.arange(item.slot_bytes) < size for size in sorted(sizes)]
    random = np.random.default_rng(0)
    # A disk may write sectors in any order.
    sectors = random.integers(0, 2, (100, item.slot_bytes // 512), bool)
    cuts += list(np.repeat(sectors, 512, axis=1))
    images_read = [np.frombuffer(image, np.uint8) for image in images]
    outcomes = set()
    with open_store(tmp_path, direct=False) as store:
        descriptor = os.open(tmp_path / f"class-{class_index}.pages", os.O_WRONLY)
        for arrived in cuts:
            torn = np.where(arrived, images_read[1], images_read[0])
            os.pwrite(descriptor, torn.tobytes(), 0)
            for key in (old, new):
                try:
                    content = read(store, class_index, 0, key)
                except TierError:
                    outcomes.add(b"")
                    continue
                assert content == content_of(key, class_index)
                outcomes.add(key)
        os.close(descriptor)
    assert outcomes == {b"", old, new}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_the_disk_is_a_failed_transfer(tmp_path: Path, kind: str) -> None:
    """Through the executor: a page is right after a transfer that succeeded, whatever happened."""
    failures = 0
    for number in range(12, 40):
        pools = make_pools()
        files = FaultyFiles(number, kind)
        try:
            store = open_pool_store(tmp_path / str(number), pools, (6, 2, 2), files=files)
        except (OSError, TierError):
            continue
        executor = build_executor(pools, NUM_CLASSES, host_pages=(6, 1, 1), disk=store)
        digests = {}
        for page in range(1, 6):
            write_page(pools, FULL_CLASS, page, page)
            digests[page] = digest(pools, FULL_CLASS, page)
        keys = [key_of_content(page) for page in range(1, 6)]
        rows = [device_row(page, FULL_CLASS, page, HOST, page) for page in range(1, 6)]
        assert all(move(executor, rows, keys=keys).values())
        rows = [[10 + page, FULL_CLASS, HOST, page, DISK, page] for page in range(1, 6)]
        stored = move(executor, rows, keys=keys)
        for page in range(1, 6):
            write_page(pools, FULL_CLASS, page, 100 + page)
        rows = [load_row(20 + page, FULL_CLASS, DISK, page, page) for page in range(1, 6)]
        loaded = move(executor, rows, keys=keys)
        for page in range(1, 6):
            if loaded[20 + page]:
                assert digest(pools, FULL_CLASS, page) == digests[page]
            else:
                failures += 1
            if kind not in ("corrupt", "lost") and not stored[10 + page]:
                assert not loaded[20 + page]
        executor.close()
    assert failures >= 5

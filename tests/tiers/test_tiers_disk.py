"""The store: what was written is read back, and found again; everything else is refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_setup import (
    CLASSES,
    FINGERPRINT,
    StepFiles,
    content_of,
    found,
    key_of,
    open_store,
    parts_of,
    read,
    write,
)
from tier_setup import make_pools

import tandemkv as tkv
from tandemkv import _core
from tandemkv.errors import TierError
from tandemkv.tiers import (
    DiskStore,
    StoreClass,
    geometry_fingerprint,
    open_disk_store,
    remove_store,
    tier_pages,
)
from tandemkv.tiers.disk import OsFiles, slot_bytes
from tandemkv.tiers.disk.slots import TRAILER_BYTES
from tandemkv.tiers.disk_tier import pool_layouts


def folder_bytes(path: Path) -> int:
    return sum(item.stat().st_size for item in path.iterdir())


@pytest.mark.parametrize("direct", [True, False])
def test_pages_are_read_back_and_found_again(tmp_path: Path, direct: bool) -> None:
    with open_store(tmp_path, direct=direct, files=None) as store:
        for class_index in range(2):
            for page in range(4):
                write(store, class_index, page, key_of(10 * class_index + page))
        write(store, 0, 1, key_of(77))  # over what is there
        assert store.entries() == []  # what `open` found
    with open_store(tmp_path, direct=direct) as store:
        assert [
            (class_index, [key.tobytes() for key in keys], pages.tolist())
            for class_index, keys, pages in store.entries()
        ] == [
            (0, [key_of(0), key_of(2), key_of(3), key_of(77)], [0, 2, 3, 1]),
            (1, [key_of(10), key_of(11), key_of(12), key_of(13)], [0, 1, 2, 3]),
        ]
        for (class_index, key), page in found(store).items():
            assert read(store, class_index, page, key) == content_of(key, class_index)
        write(store, 1, 4, key_of(11))  # stored twice: the later one counts
    with open_store(tmp_path, direct=not direct) as store:
        assert found(store)[1, key_of(11)] == 4
        _, keys, pages = store.entries()[1]
        assert (keys[-1].tobytes(), pages[-1]) == (key_of(11), 4)
        assert (keys.dtype, pages.dtype, len(keys)) == (np.uint8, np.int32, 4)


def test_only_the_page_of_the_key_is_read(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write(store, 0, 1, key_of(1))
        with pytest.raises(TierError, match=f"holds key {key_of(1).hex()}, not {key_of(2).hex()}"):
            read(store, 0, 1, key_of(2))
        with pytest.raises(TierError, match="was not written whole"):
            read(store, 0, 2, key_of(1))
        with pytest.raises(TierError, match="page 4 of class 0; there are 4"):
            read(store, 0, 4, key_of(1))
        with pytest.raises(TierError, match=r"parts have \(100,\) bytes; class 1 has \(100, 31\)"):
            store.read(1, 0, key_of(1), parts_of(1)[:1])
        store.close()
        with pytest.raises(TierError, match="is closed"):
            read(store, 0, 1, key_of(1))


@pytest.mark.parametrize("class_index", [0, 1])
def test_a_page_of_another_place_or_store_is_refused(tmp_path: Path, class_index: int) -> None:
    """A slot that is copied to where it does not belong has the right checksums, and is no hit."""
    item = CLASSES[class_index]
    path = tmp_path / f"class-{class_index}.pages"
    with open_store(tmp_path) as store:
        write(store, class_index, 1, key_of(1))
    raw = path.read_bytes()[item.slot_bytes : 2 * item.slot_bytes]
    with path.open("r+b") as file:
        file.seek(2 * item.slot_bytes)
        file.write(raw)
    with open_store(tmp_path) as store:
        assert found(store) == {(class_index, key_of(1)): 1}
        with pytest.raises(
            TierError, match=rf"\({class_index}, 1, \d+\), not \({class_index}, 2, "
        ):
            read(store, class_index, 2, key_of(1))
        (damage,) = store.report().damaged
        assert (damage.class_index, damage.page) == (class_index, 2)
    other = DiskStore.open(tmp_path / "other", CLASSES, bytes(32))
    other.close()
    (tmp_path / "other" / path.name).write_bytes(path.read_bytes())
    with DiskStore.open(tmp_path / "other", CLASSES, bytes(32)) as store:
        assert store.entries() == []
        with pytest.raises(TierError, match=f"has fingerprint {FINGERPRINT.hex()}, not 0000"):
            read(store, class_index, 1, key_of(1))


def test_other_geometries_and_versions_are_refused_by_name(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with pytest.raises(TierError, match=f"{FINGERPRINT.hex()}; asked for is {bytes(32).hex()}"):
        DiskStore.open(tmp_path, CLASSES, bytes(32))
    with pytest.raises(TierError, match=r"pages of \(\(8192, 4096\), .* asked for are \(\(100,\),"):
        DiskStore.open(tmp_path, [StoreClass((100,), 3)], FINGERPRINT)
    header = tmp_path / "store.json"
    good = header.read_bytes()
    body = good.split(b"\n")[0].replace(b'"version": 1', b'"version": 7')
    header.write_bytes(body + b"\n" + _core.checksum(body).hex().encode() + b"\n")
    with pytest.raises(TierError, match="version 7; supported: 'tandemkv pages', version 1"):
        open_store(tmp_path)
    header.write_bytes(good.replace(b"8192", b"8193"))
    with pytest.raises(TierError, match="is damaged"):
        open_store(tmp_path)
    header.write_bytes(good)
    open_store(tmp_path).close()  # nothing above took the lock along
    with pytest.raises(TierError, match="fingerprint has 3 bytes; 32 are needed"):
        DiskStore.open(tmp_path, CLASSES, b"abc")
    with pytest.raises(TierError, match=f"class 0: a page has {2**31} bytes; at most "):
        DiskStore.open(tmp_path, [StoreClass((2**31,), 1)], FINGERPRINT)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); from store_setup import open_store\n"
        "open_store(pathlib.Path(sys.argv[2])); print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    with pytest.raises(TierError, match="is in use by another store"):
        open_store(tmp_path)
    with pytest.raises(TierError, match="is in use by another store"):
        remove_store(tmp_path)
    child.communicate()
    open_store(tmp_path).close()  # the lock goes with the process


def test_files_have_exactly_the_size_of_their_pages(tmp_path: Path) -> None:
    # A page, 152 bytes about it, whole blocks of 4096.
    assert [item.slot_bytes for item in CLASSES] == [12288 + 4096, 4096]
    assert slot_bytes(4096 - TRAILER_BYTES) == 4096
    assert slot_bytes(4096 - TRAILER_BYTES + 1) == 8192
    sizes = {"class-0.pages": 4 * 16384, "class-1.pages": 5 * 4096}
    with open_store(tmp_path) as store:
        assert store.num_bytes == sum(sizes.values())
        for page in range(4):
            write(store, 0, page, key_of(page))
        for name, size in sizes.items():
            status = (tmp_path / name).stat()
            assert status.st_size == size
            assert status.st_blocks * 512 >= size  # the room is taken
            assert status.st_mode & 0o077 == 0
    smaller = [StoreClass((8192, 4096), 2), StoreClass((100, 31), 9)]
    with DiskStore.open(tmp_path, smaller, FINGERPRINT) as store:
        assert found(store) == {(0, key_of(0)): 0, (0, key_of(1)): 1}
        assert (tmp_path / "class-0.pages").stat().st_size == 2 * 16384
        assert (tmp_path / "class-1.pages").stat().st_size == 9 * 4096
    with open_store(tmp_path) as store:
        assert len(found(store)) == 2
        assert (tmp_path / "class-0.pages").stat().st_size == 4 * 16384


def test_without_persistence_nothing_is_left(tmp_path: Path) -> None:
    with open_store(tmp_path, persistent=False) as store:
        write(store, 0, 3, key_of(1))
        assert read(store, 0, 3, key_of(1)) == content_of(key_of(1), 0)
        # The files have no name, so nothing is left of a process that is killed either.
        assert [item.name for item in tmp_path.iterdir()] == ["lock"]
    with open_store(tmp_path) as store:
        assert store.entries() == []
        write(store, 0, 3, key_of(1))
    with pytest.raises(TierError, match="holds pages that are kept"):
        open_store(tmp_path, persistent=False)
    with open_store(tmp_path) as store:
        assert found(store) == {(0, key_of(1)): 3}


def test_clear_forgets_every_page(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        write(store, 0, 3, key_of(1))
        store.clear()
        with pytest.raises(TierError, match="not written whole"):
            read(store, 0, 3, key_of(1))
        write(store, 1, 2, key_of(2))
        assert read(store, 1, 2, key_of(2)) == content_of(key_of(2), 1)
    with open_store(tmp_path) as store:
        assert found(store) == {(1, key_of(2)): 2}
        assert folder_bytes(tmp_path) == store.num_bytes + (tmp_path / "store.json").stat().st_size
    assert remove_store(tmp_path) > 0
    assert [item.name for item in tmp_path.iterdir()] == ["lock"]
    with pytest.raises(TierError, match="holds no pages"):
        remove_store(tmp_path)


@pytest.mark.parametrize("where", ["open", "read"])
def test_a_file_system_without_direct_access_is_used_all_the_same(
    tmp_path: Path, where: str
) -> None:
    class Refusing(OsFiles):
        direct: int | None = None

        def open(self, path: Path, flags: int) -> int:
            if flags & os.O_DIRECT and where == "open":
                raise OSError(errno.EINVAL, "no O_DIRECT")
            descriptor = super().open(path, flags)
            self.direct = descriptor if flags & os.O_DIRECT else None
            return descriptor

        def read(self, descriptor: int, parts: Any, offset: int) -> int:
            if descriptor == self.direct:
                raise OSError(errno.EINVAL, "no O_DIRECT")
            return super().read(descriptor, parts, offset)

    with open_store(tmp_path, files=Refusing()) as store:
        assert "buffered, O_DIRECT is not supported" in store.describe()
        write(store, 1, 0, key_of(1))
        assert read(store, 1, 0, key_of(1)) == content_of(key_of(1), 1)
    with open_store(tmp_path) as store:
        assert found(store) == {(1, key_of(1)): 0}
        assert store.describe().startswith(f"disk: {tmp_path}, 84.00 KiB, ")


def test_aligned_pages_are_read_and_written_where_they_are(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Seeing(StepFiles):
        def at_step(self, name: str, call: Any, arguments: Any) -> Any:
            if name in ("read", "write"):
                seen.append([part.nbytes for part in arguments[1]])
            return call(*arguments)

    with open_store(tmp_path, files=Seeing()) as store:
        if "O_DIRECT," not in store.describe():
            pytest.skip("the file system has no O_DIRECT")
        seen.clear()
        write(store, 0, 0, key_of(1))
        assert read(store, 0, 0, key_of(1)) == content_of(key_of(1), 0)
        write(store, 1, 0, key_of(1))
        assert seen == [[8192, 4096, 4096], [8192, 4096, 4096], [4096]]


def test_a_rank_without_groups_of_a_class_keeps_nothing_of_it(tmp_path: Path) -> None:
    classes = [StoreClass((), 6), StoreClass((100,), 0)]
    with DiskStore.open(tmp_path, classes, FINGERPRINT) as store:
        store.write(0, 5, key_of(1), [])
        store.read(0, 5, key_of(1), [])
        assert store.num_bytes == 0
    assert not list(tmp_path.glob("*.pages"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "write", "read", "reopen", "clear"]),
            st.integers(0, 1),
            st.integers(0, 3),
            st.integers(0, 5),
        ),
        max_size=30,
    )
)
def test_the_store_is_a_dict_that_survives(steps: list[tuple[str, int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        model: dict[tuple[int, int], bytes] = {}
        order: list[tuple[int, int]] = []
        store = open_store(Path(name))
        for step, class_index, page, seed in steps:
            place, key = (class_index, page), key_of(seed)
            if step == "write":
                write(store, class_index, page, key)
                model[place] = key
                order = [*(item for item in order if item != place), place]
            elif step == "read" and model.get(place) == key:
                assert read(store, class_index, page, key) == content_of(key, class_index)
            elif step == "read":
                with pytest.raises(TierError):
                    read(store, class_index, page, key)
            elif step == "clear":
                store.clear()
                model, order = {}, []
            else:
                store.close()
                store = open_store(Path(name))
                # Of several pages with one key the newest is found.
                newest = {(item[0], model[item]): item[1] for item in order}
                assert found(store) == newest
                for number, keys, pages in store.entries():
                    expected = [p for c, p in order if c == number and newest[c, model[c, p]] == p]
                    assert pages.tolist() == expected
                    assert [key.tobytes() for key in keys] == [model[number, p] for p in expected]
        store.close()


def test_the_fingerprint_names_all_that_is_stored() -> None:
    layouts = pool_layouts(make_pools())
    base = geometry_fingerprint(layouts)
    assert len(base) == 32
    assert geometry_fingerprint(pool_layouts(make_pools("per_layer"))) == base
    others = [
        geometry_fingerprint(layouts, rank=1, num_ranks=2),
        geometry_fingerprint(layouts, num_ranks=2),
        geometry_fingerprint(layouts, fingerprint=b"weights"),
        geometry_fingerprint(layouts[:3]),
        geometry_fingerprint(layouts[::-1]),
        geometry_fingerprint([(1, layout) for _, layout in layouts]),
    ]
    assert len({base, *others}) == 7


@pytest.mark.parametrize("extra_bytes", [0, 4095, 4096, 12345])
def test_the_store_of_a_plan_stays_within_its_bytes(tmp_path: Path, extra_bytes: int) -> None:
    # A layer of 8 heads of 64 in fp32, blocks of 16 tokens: 64 KiB, and as many of the draft.
    layer = tkv.Layer(kind="attention", kv_dtype="fp32", num_kv_heads=8, head_dim=64)
    budget = 10 * 2**17 + extra_bytes
    plan = tkv.plan(
        tkv.ModelGeometry(layers=(layer,), name="target"),
        tkv.ModelGeometry(layers=(layer,), name="draft", role="draft"),
        config=tkv.KvCacheConfig(
            max_gpu_total_bytes=2**22,
            disk_cache_size=budget,
            tokens_per_block=16,
            max_batch_size=1,
            max_seq_len=64,
        ),
        speculative=tkv.SpeculativeConfig(mode="eagle3", max_draft_len=2),
    )
    # A slot has 128 KiB and a block about them, so that 9 of them fit, and the header.
    assert tier_pages(plan).disk == (9,)
    with open_disk_store(plan, tmp_path) as store:
        assert 9 * 2**17 < folder_bytes(tmp_path) <= budget
        managers = tkv.build_managers(plan, disk=store)
        assert managers.draft is not None
        pools = pool_layouts([*managers.target.pools, *managers.draft.pools])
        assert store.report().fingerprint == geometry_fingerprint(pools).hex()
    with pytest.raises(TierError, match="of another model"):
        open_disk_store(plan, tmp_path, kv_layout="HND")
    with pytest.raises(TierError, match="of another model"):
        open_disk_store(plan, tmp_path, fingerprint=b"other weights")
    assert managers.tiers is not None
    managers.tiers.close()

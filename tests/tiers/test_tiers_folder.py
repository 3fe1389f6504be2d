"""What is found in a store's folder in place of its files."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from store_setup import open_store

import tandemkv as tkv
from tandemkv import _core
from tandemkv.errors import ConfigError, TierError
from tandemkv.tiers import DiskStore, StoreClass


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["lock", "store.json", "class-0.pages"])
def test_only_plain_files_are_opened_and_nothing_elsewhere_is_touched(
    tmp_path: Path, name: str, kind: str, kept: bool
) -> None:
    folder, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious" * 1000)
    folder.mkdir()
    if kept:
        open_store(folder).close()
        (folder / name).unlink()
    path = folder / name
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    if (name, kind) == ("lock", "pipe"):
        open_store(folder).close()  # it is only locked
    else:
        with pytest.raises(OSError, match=r"\[Errno"):
            open_store(folder)
    assert elsewhere.read_bytes() == b"precious" * 1000
    path.rmdir() if kind == "folder" else path.unlink()
    open_store(folder).close()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (b"{", "JSONDecodeError"),
        (b"5", "TypeError"),
        (b"[]", "TypeError"),
        ({"format": None}, "supported: 'tandemkv pages', version 1"),
        ({"version": "1"}, "version '1'"),
        ({"fingerprint": 3}, "TypeError"),
        ({"fingerprint": "zz"}, "non-hexadecimal"),
        ({"fingerprint": "ab"}, "fingerprint has 1 bytes"),
        ({"part_bytes": None}, "TypeError"),
        ({"part_bytes": [[-5]]}, "sizes are 1 or more"),
        ({"part_bytes": [["x"]]}, "TypeError"),
        ({"part_bytes": [[1.5]]}, "TypeError"),
    ],
)
def test_a_header_that_nobody_here_wrote_is_refused(
    tmp_path: Path, change: bytes | dict[str, Any], problem: str
) -> None:
    open_store(tmp_path).close()
    path = tmp_path / "store.json"
    body = path.read_bytes().split(b"\n")[0]
    body = (
        change if isinstance(change, bytes) else json.dumps({**json.loads(body), **change}).encode()
    )
    path.write_bytes(body + b"\n" + _core.checksum(body).hex().encode() + b"\n")
    for call in (open_store, DiskStore.reopen):
        with pytest.raises(TierError, match=r"store\.json") as raised:
            call(tmp_path)
        assert problem in str(raised.value)


@pytest.mark.parametrize("disk", [5, True, b"folder", "", "a\0b", [], object()])
def test_only_a_folder_or_a_store_is_a_place_for_the_disk_tier(disk: Any) -> None:
    layer = tkv.Layer(kind="attention", kv_dtype="bf16", num_kv_heads=2, head_dim=64)
    config = tkv.KvCacheConfig(
        max_gpu_total_bytes="1MiB", disk_cache_size="1MiB", tokens_per_block=16, max_seq_len=64
    )
    plan = tkv.plan(tkv.ModelGeometry(layers=(layer,), name="target"), config=config)
    with pytest.raises(ConfigError, match="the name of a folder") as raised:
        tkv.build_managers(plan, disk=disk)
    assert str(raised.value).startswith(f"disk is {disk!r}")
    assert raised.value.field == "disk"


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preallocation that fails half way would leave the disk full for everybody."""
    real = os.fstatvfs

    class Full:
        def __init__(self, descriptor: int) -> None:
            self.f_frsize = real(descriptor).f_frsize
            self.f_bavail = 2

    monkeypatch.setattr(os, "fstatvfs", Full)
    path = tmp_path / "pages"
    with pytest.raises(OSError, match="bytes more are needed, and 8192 are free") as refused:
        DiskStore.open(path, [StoreClass((4096,), 64)], bytes(32))
    assert refused.value.errno == errno.ENOSPC
    assert sum(item.stat().st_blocks for item in path.iterdir()) * 512 <= 8192
    monkeypatch.undo()
    DiskStore.open(path, [StoreClass((4096,), 64)], bytes(32)).close()

"""Stores with pages that the system can read in place and pages that it cannot; faulty files."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tandemkv.tiers import DiskStore, StoreClass
from tandemkv.tiers.disk import OsFiles
from tandemkv.tiers.host import aligned_bytes

FINGERPRINT = hashlib.sha256(b"a geometry").digest()
CLASSES = (StoreClass((8192, 4096), 4), StoreClass((100, 31), 5))


def key_of(seed: int) -> bytes:
    return hashlib.sha256(b"key %d" % seed).digest()


def content_of(key: bytes, class_index: int) -> bytes:
    """Return the only right content of a key: what a page holds is a function of its key."""
    size = CLASSES[class_index].page_bytes
    return hashlib.shake_256(key + bytes([class_index])).digest(size)


def parts_of(class_index: int, content: bytes | None = None) -> list[np.ndarray[Any, Any]]:
    """Return memory for a page, aligned, with this content."""
    item = CLASSES[class_index]
    memory = aligned_bytes(item.page_bytes)
    memory[...] = 255 if content is None else np.frombuffer(content, np.uint8)
    return np.split(memory, np.cumsum(item.part_bytes)[:-1])


def write(store: DiskStore, class_index: int, page: int, key: bytes) -> None:
    store.write(class_index, page, key, parts_of(class_index, content_of(key, class_index)))


def read(store: DiskStore, class_index: int, page: int, key: bytes) -> bytes:
    parts = parts_of(class_index)
    store.read(class_index, page, key, parts)
    return b"".join(part.tobytes() for part in parts)


class QuickFiles(OsFiles):
    """Does not wait for the disk: what is written outlives the process, if not the machine."""

    def sync(self, descriptor: int) -> None:
        os.fstat(descriptor)

    def sync_folder(self, path: Path) -> None:
        path.stat()


def open_store(path: Path, **options: Any) -> DiskStore:
    return DiskStore.open(path, CLASSES, FINGERPRINT, **{"files": QuickFiles(), **options})


def found(store: DiskStore) -> dict[tuple[int, bytes], int]:
    """Return the page of every entry that a store found."""
    return {
        (class_index, key.tobytes()): page
        for class_index, keys, pages in store.entries()
        for key, page in zip(keys, pages.tolist(), strict=True)
    }


class StepFiles(QuickFiles):
    """Calls `at_step` before each call to the system, with its name; what it returns is done."""

    hit = ""  # the call that failed, where one does

    def __init__(self) -> None:
        self.calls: list[str] = []

    def at_step(self, name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return call(*arguments)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in STEPS:
            return found

        def step(*arguments: Any) -> Any:
            self.calls.append(name)
            return self.at_step(name, found, arguments)

        return step


STEPS = frozenset(
    (
        *("open", "close", "lock", "size", "truncate", "allocate"),
        *("read", "write", "sync", "replace", "remove", "sync_folder"),
    )
)


def cut(parts: Sequence[Any], num_bytes: int) -> list[Any]:
    """Return the first bytes of arrays that follow each other."""
    answer = []
    for part in parts:
        answer.append(part[: max(0, num_bytes)])
        num_bytes -= part.nbytes
    return [part for part in answer if part.nbytes]


class FaultyFiles(StepFiles):
    """Fails at one call.

    Kinds: the name of an errno; `short` moves half of the bytes, whole blocks; `corrupt` changes a
    byte on the way; `lost` writes nothing and says that it did.
    """

    def __init__(self, number: int, kind: str) -> None:
        super().__init__()
        self.number, self.kind = number, kind

    def at_step(self, name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if len(self.calls) - 1 != self.number:
            return call(*arguments)
        if self.kind.startswith("E"):
            self.hit = name
            if name == "close":
                call(*arguments)  # as the system does: the descriptor is gone
            raise OSError(getattr(errno, self.kind), os.strerror(getattr(errno, self.kind)))
        if name not in ("read", "write") or (self.kind, name) == ("lost", "read"):
            return call(*arguments)
        self.hit = name
        descriptor, parts, offset = arguments
        size = sum(part.nbytes for part in parts)
        if self.kind == "lost":
            return size
        if self.kind == "short":
            half = size // 2 // 4096 * 4096
            return call(descriptor, cut(parts, half), offset) if half else 0
        if name == "read":
            count = call(*arguments)
            parts[0][parts[0].nbytes // 2] ^= 1
            return count
        changed = [part.copy() for part in parts]
        changed[0][changed[0].nbytes // 2] ^= 1
        buffered = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
        try:
            return call(buffered, changed, offset)
        finally:
            os.close(buffered)


class KillingFiles(StepFiles):
    """Kills the process with SIGKILL: before a call, in the middle of a write, or after it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def at_step(self, name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self._kill_here()
        if name == "write":
            descriptor, parts, offset = arguments
            size = sum(part.nbytes for part in parts)
            for count in sorted({size // 3, size // 4096 * 2048, size - 1}):
                # Blocks where the file is open past the page cache, else any byte.
                if self.left == 0:
                    self._write_some(call, descriptor, parts, offset, count)
                self._kill_here()
        answer = call(*arguments)
        self._kill_here()
        return answer

    def _write_some(
        self, call: Callable[..., Any], descriptor: int, parts: Any, offset: int, count: int
    ) -> None:
        buffered = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
        call(buffered, cut(parts, count), offset)
        os.close(buffered)

    def _kill_here(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

"""Pages on disk: one preallocated file per class, found again after a restart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from tandemkv.errors import TierError
from tandemkv.sizes import format_size
from tandemkv.tiers.disk.files import Files, OsFiles
from tandemkv.tiers.disk.header import Header, read_header, remove_header, write_header
from tandemkv.tiers.disk.scan import Entries, Scan, StoreReport
from tandemkv.tiers.disk.slot_file import SlotFile
from tandemkv.tiers.disk.slots import DIGEST_BYTES, MAX_SLOT_BYTES, TRAILER_BYTES, StoreClass
from tandemkv.tiers.protocols import Part

_LOCK = "lock"


class DiskStore:
    """Pages of several classes in the files of one folder; made by `open` or `reopen`.

    A page is all groups of its class, so target and draft are stored together or not at all. Pages
    are read and written by any thread, different ones at the same time.
    """

    def __init__(
        self,
        path: Path,
        classes: Sequence[StoreClass],
        fingerprint: bytes,
        *,
        persistent: bool,
        direct: bool,
        files: Files,
    ) -> None:
        self._path, self._classes, self._fingerprint = path, tuple(classes), fingerprint
        self._persistent, self._files = persistent, files
        self._written = False  # whether there may be something that the disk does not have yet
        self._slots = [
            SlotFile(
                files,
                _file(path, number),
                class_index=number,
                shape=shape,
                fingerprint=fingerprint,
                direct=direct,
            )
            for number, shape in enumerate(classes)
        ]
        self._scan = Scan()
        self._generations = count(1)
        self._lock = _locked(files, path)

    @classmethod
    def open(
        cls,
        path: str | Path,
        classes: Sequence[StoreClass],
        fingerprint: bytes,
        *,
        persistent: bool = True,
        direct: bool = True,
        files: Files | None = None,
    ) -> DiskStore:
        """Open the store in a folder, or make one there.

        The number of pages may differ from the last time: files are cut or extended, and what lay
        beyond the end is gone.

        Args:
            path: the folder; it is made where it is missing.
            classes: what is kept, class by class.
            fingerprint: 32 bytes that name what must be equal for pages to be readable.
            persistent: whether pages are found again after `close`; else the files are gone then,
                and when the process ends.
            direct: whether to keep out of the system's page cache, where the file system can.
            files: calls to the system; None: those of the operating system.

        Raises:
            TierError: the store has another fingerprint, other pages or another version, is in use
                or damaged; or the fingerprint or a page is too large.
            OSError: the files cannot be had: no room, no right.
        """
        folder, files = Path(path), OsFiles() if files is None else files
        if len(fingerprint) != DIGEST_BYTES:
            raise TierError(f"fingerprint has {len(fingerprint)} bytes; 32 are needed", tier="disk")
        for number, item in enumerate(classes):
            if item.slot_bytes > MAX_SLOT_BYTES:
                raise TierError(
                    f"class {number}: a page has {item.page_bytes} bytes; at most "
                    f"{MAX_SLOT_BYTES - TRAILER_BYTES} can be written at a time",
                    tier="disk",
                )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = cls(folder, classes, fingerprint, persistent=persistent, direct=direct, files=files)
        store._start()
        return store

    @classmethod
    def reopen(cls, path: str | Path, *, files: Files | None = None) -> DiskStore:
        """Open the store in a folder for reading, whatever it was made for.

        Raises:
            TierError: there is no store, it is damaged, of another version or in use.
            OSError: it cannot be read.
        """
        folder, files = Path(path), OsFiles() if files is None else files
        header = read_header(files, folder)
        if header is None:
            raise TierError(f"{folder} holds no pages: it has no header", tier="disk")
        classes = []
        for number, part_bytes in enumerate(header.part_bytes):
            size = 0
            with suppress(FileNotFoundError):
                size = _file(folder, number).stat().st_size
            classes.append(StoreClass(part_bytes, size // StoreClass(part_bytes, 0).slot_bytes))
        store = cls(folder, classes, header.fingerprint, persistent=True, direct=False, files=files)
        store._start_reading(header)
        return store

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages of each class."""
        return tuple(item.num_pages for item in self._classes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that hold pages."""
        return sum(item.file_bytes for item in self._classes)

    def entries(self) -> Entries:
        """Return what was found by `open`: (class, keys uint8 `[n, 32]`, pages int32 `[n]`).

        Oldest first. That a page holds what its key says is checked when it is read.
        """
        return self._scan.entries()

    def write(self, class_index: int, page: int, key: bytes, parts: Sequence[Part]) -> None:
        """Store a page under a key, over what is there.

        Args:
            class_index: the class.
            page: the page; nobody else uses it meanwhile.
            key: 32 bytes.
            parts: the bytes of each group; they must not change meanwhile.

        Raises:
            OSError, TierError: it is not stored, and the page may hold nothing any more.
        """
        self._written = True
        self._slots[class_index].write(page, next(self._generations), key, parts)

    def read(self, class_index: int, page: int, key: bytes, parts: Sequence[Part]) -> None:
        """Read the page that is stored under a key, and check that it is that.

        Args:
            class_index: the class.
            page: the page; nobody writes it meanwhile.
            key: 32 bytes.
            parts: what the bytes of each group are read into; after an error they hold anything.

        Raises:
            OSError, TierError: the page is not there, or not whole.
        """
        self._slots[class_index].read(page, key, parts)

    def report(self, *, contents: bool = False) -> StoreReport:
        """Return what the store held when it was opened.

        Args:
            contents: whether to read every page, and check it.
        """
        damaged, found = list(self._scan.damaged), self._scan.found
        if contents:
            problems = [self._slots[item.class_index].problem(item) for item in found]
            found = [item for item, bad in zip(found, problems, strict=True) if bad is None]
            damaged += [bad for bad in problems if bad is not None]
            damaged.sort(key=lambda item: (item.class_index, item.page))
        groups: tuple[tuple[str, Sequence[Any]], ...] = (
            ("entries", found),
            ("older", self._scan.older),
            ("damaged", damaged),
        )
        classes = []
        for number, item in enumerate(self._classes):
            counts = {
                name: sum(entry.class_index == number for entry in group) for name, group in groups
            }
            classes.append(
                {
                    "page_bytes": item.page_bytes,
                    "slot_bytes": item.slot_bytes,
                    "pages": item.num_pages,
                    **counts,
                    "empty": self._scan.empty.get(number, 0),
                }
            )
        return StoreReport(
            path=str(self._path),
            fingerprint=self._fingerprint.hex(),
            file_bytes=self.num_bytes,
            classes=tuple(classes),
            damaged=tuple(damaged),
        )

    def describe(self) -> str:
        """Return one line about the store."""
        direct = all(
            slots.direct
            for slots, item in zip(self._slots, self._classes, strict=True)
            if item.file_bytes
        )
        access = "O_DIRECT" if direct else "buffered, O_DIRECT is not supported or not asked for"
        kept = "persistent" if self._persistent else "until closed"
        pages = ", ".join(map(str, self.num_pages))
        return (
            f"disk: {self._path}, {format_size(self.num_bytes)}, {access}, {kept}, pages per "
            f"class: {pages}"
        )

    def clear(self) -> None:
        """Forget every page; nobody uses the store meanwhile.

        Raises:
            OSError, TierError: not all was changed; open the store again to use it.
        """
        if self._persistent:
            remove_header(self._files, self._path)
        for slots in self._slots:
            slots.clear()
            if self._persistent:
                slots.sync()
        self._scan = Scan()
        if self._persistent:
            self._write_header()

    def close(self) -> None:
        """Give the files up; nobody uses the store meanwhile. Again, it does nothing."""
        for slots in self._slots:
            if self._persistent and self._written:
                with suppress(OSError):  # what is not on disk fails its check when it is read
                    slots.sync()
            slots.close()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            with suppress(OSError):
                self._files.close(lock)

    def __enter__(self) -> DiskStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        """Open the files and look at what is there; closes everything on an error."""
        try:
            header = read_header(self._files, self._path)
            if header is not None:
                self._check_header(header)
            for number, slots in enumerate(self._slots):
                slots.start(fresh=header is None)
                if not self._persistent:
                    self._files.remove(_file(self._path, number))  # it lives until it is closed
                elif header is None:
                    slots.sync()
            if header is None:
                if self._persistent:
                    self._write_header()
                return
            self._look()
        except BaseException:
            self.close()
            raise

    def _start_reading(self, header: Header) -> None:
        """Open the files as they are; closes everything on an error."""
        try:
            if read_header(self._files, self._path) != header:
                raise TierError(f"{self._path} was changed while it was opened", tier="disk")
            for slots in self._slots:
                slots.start_reading()
            self._look()
        except BaseException:
            self.close()
            raise

    def _look(self) -> None:
        """Find out what is stored."""
        for slots in self._slots:
            slots.look(self._scan)
        self._scan.settle()
        self._generations = count(self._scan.last_generation + 1)

    def _check_header(self, header: Header) -> None:
        if not self._persistent:
            raise TierError(
                f"{self._path} holds pages that are kept; open it as persistent, or clear it",
                tier="disk",
            )
        if header.fingerprint != self._fingerprint:
            raise TierError(
                f"{self._path} has fingerprint {header.fingerprint.hex()}; asked for is "
                f"{self._fingerprint.hex()}, of another model, layout or `fingerprint`",
                tier="disk",
            )
        parts = tuple(item.part_bytes for item in self._classes)
        if header.part_bytes != parts:
            raise TierError(
                f"{self._path} has pages of {header.part_bytes} bytes; asked for are {parts}",
                tier="disk",
            )

    def _write_header(self) -> None:
        parts = tuple(item.part_bytes for item in self._classes)
        write_header(self._files, self._path, Header(self._fingerprint, parts))


def remove_store(path: str | Path, *, files: Files | None = None) -> int:
    """Remove the files of the store in a folder, damaged or not; return their bytes.

    Raises:
        TierError: there is none, or it is in use.
        OSError: a file cannot be removed.
    """
    folder, files = Path(path), OsFiles() if files is None else files
    pages = sorted(folder.glob("class-*.pages"))
    header = [item for item in folder.glob("store.json*") if item.is_file()]
    if not pages and not header:
        raise TierError(f"{folder} holds no pages", tier="disk")
    lock = _locked(files, folder)
    try:
        size = sum(item.stat().st_size for item in (*pages, *header))
        remove_header(files, folder)
        for item in pages:
            files.remove(item)
    finally:
        files.close(lock)
    return size


def _file(folder: Path, class_index: int) -> Path:
    return folder / f"class-{class_index}.pages"


def _locked(files: Files, folder: Path) -> int:
    """Open and lock the lock file of a folder."""
    descriptor = files.open(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        if files.lock(descriptor):
            return descriptor
        raise TierError(f"{folder} is in use by another store, here or elsewhere", tier="disk")
    except BaseException:
        files.close(descriptor)
        raise

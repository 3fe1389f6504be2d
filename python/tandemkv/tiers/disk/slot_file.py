"""The file of one class: slots that are written and read whole, and checked."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import local

import numpy as np

from tandemkv import _core
from tandemkv.errors import TierError
from tandemkv.tiers.disk.files import DIRECT, Files
from tandemkv.tiers.disk.scan import Damage, Scan
from tandemkv.tiers.disk.slots import BLOCK_BYTES, TRAILER_BYTES, StoreClass, Trailer, unpack
from tandemkv.tiers.host import aligned_bytes
from tandemkv.tiers.protocols import Part


class SlotFile:
    """The pages of one class; nothing is open before `start`.

    Args:
        files: calls to the system.
        path: the file.
        class_index, shape: the class, and what is kept of it.
        fingerprint: of the store.
        direct: whether to keep out of the page cache, where the file system can.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        *,
        class_index: int,
        shape: StoreClass,
        fingerprint: bytes,
        direct: bool,
    ) -> None:
        self._files, self._path = files, path
        self._class_index, self._shape, self._fingerprint = class_index, shape, fingerprint
        self._wants_direct = direct
        self._descriptor = -1
        self._direct = False
        self._buffers = local()

    @property
    def direct(self) -> bool:
        """Whether the file is open past the page cache."""
        return self._direct

    def start_reading(self) -> None:
        """Open the file as it is, for reading only.

        Raises:
            OSError: it cannot be had.
        """
        if self._shape.file_bytes:
            self._open(direct=False, flags=os.O_RDONLY)

    def start(self, *, fresh: bool) -> None:
        """Open the file with exactly its size.

        Args:
            fresh: whether what is there is thrown away.

        Raises:
            OSError: it cannot be had.
        """
        if self._shape.file_bytes == 0:
            self._files.remove(self._path)
            return
        self._open(direct=self._wants_direct and DIRECT != 0)
        if fresh:
            self._files.truncate(self._descriptor, 0)
        elif self._files.size(self._descriptor) > self._shape.file_bytes:
            self._files.truncate(self._descriptor, self._shape.file_bytes)
        self._files.allocate(self._descriptor, self._shape.file_bytes)
        if self._direct and not self._direct_works():
            self._files.close(self._descriptor)
            self._open(direct=False)

    def clear(self) -> None:
        """Empty every slot."""
        if self._descriptor >= 0:
            self._files.truncate(self._descriptor, 0)
            self._files.allocate(self._descriptor, self._shape.file_bytes)

    def sync(self) -> None:
        """Wait until the disk has the file."""
        if self._descriptor >= 0:
            self._files.sync(self._descriptor)

    def close(self) -> None:
        """Close the file. Again, it does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # what is not on disk fails its check when it is read
                self._files.close(descriptor)

    def write(self, page: int, generation: int, key: bytes, parts: Sequence[Part]) -> None:
        """See `DiskStore.write`."""
        self._check_parts(page, parts)
        if not parts:
            return
        shape = self._shape
        trailer = Trailer(
            self._class_index,
            page,
            generation,
            shape.page_bytes,
            self._fingerprint,
            key,
            _core.page_checksum(*parts),
        )
        slot = self._buffer(shape.slot_bytes)
        slot[shape.page_bytes : -TRAILER_BYTES] = 0
        slot[-TRAILER_BYTES:] = np.frombuffer(trailer.pack(), np.uint8)
        pieces = [slot]
        if self._in_place(parts):
            pieces = [*parts, slot[shape.page_bytes :]]
        else:
            np.concatenate(parts, out=slot[: shape.page_bytes])
        count = self._files.write(self._descriptor, pieces, page * shape.slot_bytes)
        if count != shape.slot_bytes:
            raise TierError(f"{count} of {shape.slot_bytes} bytes were written", tier="disk")

    def read(self, page: int, key: bytes, parts: Sequence[Part]) -> None:
        """See `DiskStore.read`."""
        self._check_parts(page, parts)
        if not parts:
            return
        shape = self._shape
        slot = self._buffer(shape.slot_bytes)
        in_place = self._in_place(parts)
        pieces = [*parts, slot[shape.page_bytes :]] if in_place else [slot]
        count = self._files.read(self._descriptor, pieces, page * shape.slot_bytes)
        if count != shape.slot_bytes:
            raise TierError(f"{count} of {shape.slot_bytes} bytes were read", tier="disk")
        trailer = self._checked(unpack(slot[-TRAILER_BYTES:].tobytes()), page)
        if trailer.key != key:
            raise TierError(f"the page holds key {trailer.key.hex()}, not {key.hex()}", tier="disk")
        content = parts if in_place else [slot[: shape.page_bytes]]
        if _core.page_checksum(*content) != trailer.checksum:
            raise TierError("the page's checksum is not that of its bytes", tier="disk")
        if not in_place:
            start = 0
            for part in parts:
                part[...] = slot[start : start + part.nbytes]
                start += part.nbytes

    def look(self, scan: Scan) -> None:
        """Add what the trailers of all pages say to `scan`."""
        block = self._buffer(BLOCK_BYTES)
        for page in range(self._shape.num_pages if self._descriptor >= 0 else 0):
            end = (page + 1) * self._shape.slot_bytes
            try:
                count = self._files.read(self._descriptor, [block], end - BLOCK_BYTES)
                if count != BLOCK_BYTES:
                    raise TierError(f"{count} of {BLOCK_BYTES} bytes were read", tier="disk")
                raw = block[-TRAILER_BYTES:]
                if raw.any():
                    scan.found.append(self._checked(unpack(raw.tobytes()), page))
                else:
                    scan.empty[self._class_index] = scan.empty.get(self._class_index, 0) + 1
            except (OSError, TierError) as error:
                scan.damaged.append(Damage(self._class_index, page, str(error)))

    def problem(self, trailer: Trailer) -> Damage | None:
        """Read the page of a trailer, and return what is wrong with it."""
        parts = [np.empty(size, np.uint8) for size in self._shape.part_bytes]
        try:
            self.read(trailer.page, trailer.key, parts)
        except (OSError, TierError) as error:
            return Damage(self._class_index, trailer.page, str(error))
        return None

    def _open(self, *, direct: bool, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        try:
            self._descriptor = self._files.open(self._path, flags | (DIRECT if direct else 0))
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
            direct = False
            self._descriptor = self._files.open(self._path, flags)
        self._direct = direct

    def _direct_works(self) -> bool:
        """Whether blocks can be read past the page cache; some systems only open like that."""
        try:
            self._files.read(self._descriptor, [self._buffer(BLOCK_BYTES)], 0)
        except OSError as error:
            return error.errno != errno.EINVAL
        return True

    def _check_parts(self, page: int, parts: Sequence[Part]) -> None:
        if not 0 <= page < self._shape.num_pages:
            raise TierError(
                f"page {page} of class {self._class_index}; there are {self._shape.num_pages}",
                tier="disk",
            )
        sizes = tuple(part.nbytes for part in parts)
        if sizes != self._shape.part_bytes:
            raise TierError(
                f"parts have {sizes} bytes; class {self._class_index} has {self._shape.part_bytes}",
                tier="disk",
            )
        if parts and self._descriptor < 0:
            raise TierError(f"{self._path} is closed", tier="disk")

    def _checked(self, trailer: Trailer | None, page: int) -> Trailer:
        """Refuse what is no trailer, or that of another page or store."""
        if trailer is None:
            raise TierError("the page was not written whole", tier="disk")
        place = (trailer.class_index, trailer.page, trailer.page_bytes)
        wanted = (self._class_index, page, self._shape.page_bytes)
        if place != wanted:
            raise TierError(f"the page has (class, page, bytes) {place}, not {wanted}", tier="disk")
        if trailer.fingerprint != self._fingerprint:
            raise TierError(
                f"the page has fingerprint {trailer.fingerprint.hex()}, not "
                f"{self._fingerprint.hex()}",
                tier="disk",
            )
        return trailer

    def _in_place(self, parts: Sequence[Part]) -> bool:
        """Whether the system can read and write the parts where they are."""
        return not self._direct or all(
            part.nbytes % BLOCK_BYTES == 0
            and part.__array_interface__["data"][0] % BLOCK_BYTES == 0
            for part in parts
        )

    def _buffer(self, num_bytes: int) -> Part:
        """Return aligned memory of this thread's own."""
        memory: Part | None = getattr(self._buffers, "memory", None)
        if memory is None or memory.nbytes < num_bytes:
            memory = self._buffers.memory = aligned_bytes(num_bytes)
        return memory[:num_bytes]

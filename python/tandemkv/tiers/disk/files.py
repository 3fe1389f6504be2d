"""Every call to the system that the disk tier makes, in one place that tests can replace."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tandemkv.tiers.protocols import Part

DIRECT: int = getattr(os, "O_DIRECT", 0)
"""The flag that keeps the system's page cache out of it; 0 where there is none."""


class Files(Protocol):
    """Files by descriptor; every method raises OSError."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file, readable by its owner only where it is created."""

    def close(self, descriptor: int) -> None:
        """Close it."""

    def lock(self, descriptor: int) -> bool:
        """Lock the file until it is closed; False: another process has."""

    def size(self, descriptor: int) -> int:
        """Return its bytes."""

    def truncate(self, descriptor: int, num_bytes: int) -> None:
        """Cut it."""

    def allocate(self, descriptor: int, num_bytes: int) -> None:
        """Make sure that the disk has room for its first `num_bytes`, > 0."""

    def read(self, descriptor: int, parts: Sequence[Part], offset: int) -> int:
        """Read into arrays, one after the other; return the bytes read."""

    def write(self, descriptor: int, parts: Sequence[Part], offset: int) -> int:
        """Write arrays, one after the other; return the bytes written."""

    def sync(self, descriptor: int) -> None:
        """Wait until the disk has it."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, in one step, over what is there."""

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""

    def sync_folder(self, path: Path) -> None:
        """Wait until the disk has the names in a folder."""


class OsFiles:
    """The files of the operating system."""

    def open(self, path: Path, flags: int) -> int:
        """See `Files.open`.

        A symbolic link is an error, so that no file elsewhere is cut; a pipe keeps nobody waiting.
        """
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(path, flags, 0o600)

    def close(self, descriptor: int) -> None:
        """See `Files.close`."""
        os.close(descriptor)

    def lock(self, descriptor: int) -> bool:
        """See `Files.lock`."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def size(self, descriptor: int) -> int:
        """See `Files.size`."""
        return os.fstat(descriptor).st_size

    def truncate(self, descriptor: int, num_bytes: int) -> None:
        """See `Files.truncate`."""
        os.ftruncate(descriptor, num_bytes)

    def allocate(self, descriptor: int, num_bytes: int) -> None:
        """See `Files.allocate`.

        Raises:
            OSError: there is no room; the file is as it was.
        """
        state, system = os.fstat(descriptor), os.fstatvfs(descriptor)
        missing = num_bytes - state.st_blocks * 512
        free = system.f_bavail * system.f_frsize
        # Asked first: a call that fails half way leaves the disk full, for everybody on it.
        if missing > free:
            raise OSError(
                errno.ENOSPC, f"{missing} bytes more are needed, and {free} are free on the disk"
            )
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, state.st_size)
            raise

    def read(self, descriptor: int, parts: Sequence[Part], offset: int) -> int:
        """See `Files.read`."""
        return os.preadv(descriptor, [part.data for part in parts], offset)

    def write(self, descriptor: int, parts: Sequence[Part], offset: int) -> int:
        """See `Files.write`."""
        return os.pwritev(descriptor, [part.data for part in parts], offset)

    def sync(self, descriptor: int) -> None:
        """See `Files.sync`."""
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """See `Files.replace`."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """See `Files.remove`."""
        path.unlink(missing_ok=True)

    def sync_folder(self, path: Path) -> None:
        """See `Files.sync_folder`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

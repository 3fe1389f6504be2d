"""What a store says about itself: a small file that is written last and replaced in one step."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from tandemkv import _core
from tandemkv.errors import TierError
from tandemkv.tiers.disk.files import Files
from tandemkv.tiers.disk.slots import DIGEST_BYTES

HEADER = "store.json"
HEADER_BYTES_MAX = 4096
_NEW_HEADER = "store.json.new"
_FORMAT = "tandemkv pages"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Header:
    """What a store was made for.

    Attributes:
        fingerprint: 32 bytes: what must be equal for its pages to be readable.
        part_bytes: for each class, bytes of each of its groups in a page.
    """

    fingerprint: bytes
    part_bytes: tuple[tuple[int, ...], ...]


def read_header(files: Files, folder: Path) -> Header | None:
    """Return the header of a folder; None: it has none, and so no pages.

    Raises:
        TierError: it is damaged, or of another version; names both.
        OSError: it cannot be read.
    """
    path = folder / HEADER
    try:
        descriptor = files.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        raw = np.zeros(HEADER_BYTES_MAX, np.uint8)
        count = files.read(descriptor, [raw], 0)
    finally:
        files.close(descriptor)
    body, _, digest = raw[:count].tobytes().rstrip(b"\n").rpartition(b"\n")
    if digest != _core.checksum(body).hex().encode():
        raise TierError(f"{path} is damaged: its checksum is another one", tier="disk")
    try:
        return _parse(path, json.loads(body))
    except TierError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise TierError(
            f"{path} is damaged: {type(error).__name__}: {error}", tier="disk"
        ) from None


def _parse(path: Path, fields: dict[str, Any]) -> Header:
    if (fields["format"], fields["version"]) != (_FORMAT, VERSION):
        raise TierError(
            f"{path} has format {fields['format']!r}, version {fields['version']!r}; supported: "
            f"{_FORMAT!r}, version {VERSION}",
            tier="disk",
        )
    header = Header(
        fingerprint=bytes.fromhex(fields["fingerprint"]),
        part_bytes=tuple(tuple(map(index, parts)) for parts in fields["part_bytes"]),
    )
    if any(size < 1 for parts in header.part_bytes for size in parts):
        raise ValueError(f"part_bytes is {header.part_bytes}; sizes are 1 or more")
    if len(header.fingerprint) != DIGEST_BYTES:
        raise ValueError(f"fingerprint has {len(header.fingerprint)} bytes, not {DIGEST_BYTES}")
    return header


def write_header(files: Files, folder: Path, header: Header) -> None:
    """Write the header: from then on the folder has pages.

    Raises:
        TierError: more classes than a header has room for, or less was written.
        OSError: it cannot be written; what was there before is there still.
    """
    fields = {
        "format": _FORMAT,
        "version": VERSION,
        "fingerprint": header.fingerprint.hex(),
        "part_bytes": header.part_bytes,
    }
    body = json.dumps(fields).encode()
    raw = np.frombuffer(body + b"\n" + _core.checksum(body).hex().encode() + b"\n", np.uint8)
    if raw.nbytes > HEADER_BYTES_MAX:
        raise TierError(
            f"the header of {folder} has {raw.nbytes} bytes; at most {HEADER_BYTES_MAX} are "
            "supported",
            tier="disk",
        )
    path = folder / _NEW_HEADER
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        count = files.write(descriptor, [raw], 0)
        if count != raw.nbytes:
            raise TierError(f"{path}: {count} of {raw.nbytes} bytes were written", tier="disk")
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.replace(path, folder / HEADER)
    files.sync_folder(folder)


def remove_header(files: Files, folder: Path) -> None:
    """Remove the header: from then on the folder has no pages."""
    files.remove(folder / _NEW_HEADER)
    files.remove(folder / HEADER)
    files.sync_folder(folder)

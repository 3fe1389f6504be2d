"""The disk tier: `store.py` keeps pages in files, one per class, that survive a restart.

`slots.py` says where a page lies in its file and what makes it valid, `header.py` what a folder of
files says about itself, `files.py` is every call to the system, and `scan.py` reads what is there.
"""

from __future__ import annotations

from tandemkv.tiers.disk.files import Files, OsFiles
from tandemkv.tiers.disk.scan import Damage, StoreReport
from tandemkv.tiers.disk.slots import StoreClass, slot_bytes
from tandemkv.tiers.disk.store import DiskStore, remove_store

__all__ = [
    "Damage",
    "DiskStore",
    "Files",
    "OsFiles",
    "StoreClass",
    "StoreReport",
    "remove_store",
    "slot_bytes",
]

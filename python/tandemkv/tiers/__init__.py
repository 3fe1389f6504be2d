"""The movers of pages between device, host and disk. The ledger decides, an executor copies.

    pages = tier_pages(plan)                     # what the ledger is built with
    store = open_disk_store(plan, path)          # or None
    executor = build_executor(pools, num_classes, host_pages=pages.host, disk=store)
    restore_entries(ledger, full_classes, store.entries())
    executor.submit(TransferPlan(rows, keys), stream)   # what `Ledger.transfers` handed out
    ids, ok = executor.poll()                    # for `Ledger.complete_transfers`
    executor.close()

* `TransferPlan(rows, keys)`: int64 `[k, 6]` and uint8 `[k, 32]` as the ledger writes them.
* `tier_pages(plan)`: pages of each class on host and disk, the same on every rank.
* `build_executor(pools, num_classes, ...)`: host memory and an executor for the pools of one rank,
  the target's before the draft's. Pools without memory get a `BookkeepingExecutor`.
* `open_disk_store(plan, path, rank=0, persistent=True)`: the disk tier of a rank, in a folder of
  its own; `entries()` is what it found there. It can be left out.
* `Executor`: `submit(plan, stream=None)`, `poll(wait=False)`, `close()`.

What moves is whole pages of a class, both roles together. Copies between device and host, and reads
of the device for the disk, take effect in the order of the rows: before `submit` returns where the
pools are in CPU memory, on the caller's stream on a GPU. Everything else is asynchronous. A
transfer that fails, for whatever reason, is reported as such; its destination holds anything.
"""

from __future__ import annotations

from tandemkv.tiers.bookkeeping import BookkeepingExecutor
from tandemkv.tiers.build import TierPages, build_executor, tier_pages
from tandemkv.tiers.disk import DiskStore, StoreClass, remove_store
from tandemkv.tiers.disk_tier import geometry_fingerprint, open_disk_store
from tandemkv.tiers.executor import TierExecutor
from tandemkv.tiers.host import HostTier
from tandemkv.tiers.limits import HostLimits, check_host_memory, host_limits
from tandemkv.tiers.options import TierOptions
from tandemkv.tiers.pages import DeviceGroup, device_group
from tandemkv.tiers.protocols import Executor, PageStore, TransferObserver
from tandemkv.tiers.restoring import restore_entries
from tandemkv.tiers.transfers import DEVICE, DISK, HOST, TransferPlan

__all__ = [
    "DEVICE",
    "DISK",
    "HOST",
    "BookkeepingExecutor",
    "DeviceGroup",
    "DiskStore",
    "Executor",
    "HostLimits",
    "HostTier",
    "PageStore",
    "StoreClass",
    "TierExecutor",
    "TierOptions",
    "TierPages",
    "TransferObserver",
    "TransferPlan",
    "build_executor",
    "check_host_memory",
    "device_group",
    "geometry_fingerprint",
    "host_limits",
    "open_disk_store",
    "remove_store",
    "restore_entries",
    "tier_pages",
]

"""From a plan to the tiers of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandemkv.errors import TierError
from tandemkv.managers.classes import CacheClass, cache_classes
from tandemkv.managers.memory import device_number
from tandemkv.managers.pools import Pool
from tandemkv.planning import Plan
from tandemkv.tiers.bookkeeping import BookkeepingExecutor
from tandemkv.tiers.copies import HostCopier, PageCopier
from tandemkv.tiers.cuda import CudaCopier
from tandemkv.tiers.disk import slot_bytes
from tandemkv.tiers.disk.header import HEADER_BYTES_MAX
from tandemkv.tiers.executor import TierExecutor, WhenFull
from tandemkv.tiers.host import HostTier, Pinner
from tandemkv.tiers.limits import HostLimits
from tandemkv.tiers.pages import device_group
from tandemkv.tiers.protocols import Executor, PageStore


@dataclass(frozen=True, slots=True)
class TierPages:
    """Pages of each class on the lower tiers, none reserved, the same on every rank.

    Attributes:
        host: pages in host memory.
        disk: pages on disk.
    """

    host: tuple[int, ...]
    disk: tuple[int, ...]


def tier_pages(plan: Plan) -> TierPages:
    """Return the pages that host and disk have for each class of a plan, in the ledger's order.

    A class has as many on the host as the smallest of its groups. On disk it has as many as fit
    into the planned bytes of each rank, which also hold what a page says about itself (see
    `slot_bytes`) and the store's header. Cross-attention has none: its pages are private.
    """
    classes = cache_classes(plan)
    host, disk = [], []
    for item in classes:
        groups = [group for group in plan.groups() if group.rule == item.lifetime]
        private = item.lifetime[0] == "cross_attention"
        host.append(0 if private else min(group.num_host_pages for group in groups))
        disk.append(0 if private else min(group.num_disk_pages for group in groups))
    return TierPages(host=tuple(host), disk=_within_bytes(plan, classes, disk))


def _within_bytes(
    plan: Plan, classes: Sequence[CacheClass], pages: Sequence[int]
) -> tuple[int, ...]:
    """Return how many pages of each class have room on every rank, trailers and header included."""
    limits = list(pages)
    for rank in plan.ranks:
        room_for_header = HEADER_BYTES_MAX
        for number, item in enumerate(classes):
            groups = [
                group
                for role in (rank.target, rank.draft)
                if role is not None
                for group in role.groups
                if group.rule == item.lifetime
            ]
            budget = sum(group.disk_bytes for group in groups)
            if not pages[number] or not budget:
                continue
            slots = max(0, budget - room_for_header) // slot_bytes(
                sum(group.page_bytes for group in groups)
            )
            room_for_header = 0  # it is in the first class that keeps something
            limits[number] = min(limits[number], slots)
    return tuple(limits)


def build_executor(
    pools: Sequence[Pool],
    num_classes: int,
    *,
    host_pages: Sequence[int] | None = None,
    disk: PageStore | None = None,
    pin: bool | None = None,
    local_ranks: int = 1,
    reserved_bytes: int = 0,
    limits: HostLimits | None = None,
    threads: int = 4,
    staging_pages: int = 16,
    when_full: WhenFull = "fail",
) -> Executor:
    """Build what moves the pages of one rank, and its host memory.

    Args:
        pools: the pools of the rank, the target's before the draft's.
        num_classes: classes of the ledger.
        host_pages: pages of each class in host memory; None: no host tier.
        disk: the disk tier, which the executor then owns; None: none.
        pin: whether host memory is pinned; None: where the pools are on a GPU, whose copies then
            run beside the host.
        local_ranks: ranks on this host that have a host tier of this size.
        reserved_bytes: what comes off the host's memory first; see `check_host_memory`.
        limits: what the machine leaves; None: what it says now.
        threads: threads that read and write the disk.
        staging_pages: pages on their way between device and disk, each way.
        when_full: what becomes of an eviction to disk without a staging page; see `TierExecutor`.

    Raises:
        TierError: the memory cannot be had, or not be pinned, or some pools hold memory and others
            do not.
    """
    materialized = {pool.materialized for pool in pools}
    if materialized == {False}:
        return BookkeepingExecutor()
    if materialized != {True}:
        raise TierError("pools with and without memory, or none at all; all need memory, or none")
    copier: PageCopier = HostCopier()
    pinner: Pinner | None = None
    if pools[0].device != "cpu":
        cuda = copier = CudaCopier(device_number(pools[0].device))
        pinner = None if pin is False else cuda.pin
    elif pin:
        raise TierError("pin is True; memory is pinned for pools on a GPU, these are on the CPU")
    groups = [device_group(pool) for pool in pools]
    host = None
    if host_pages is not None:
        host = HostTier(
            groups,
            host_pages,
            pin=pinner,
            local_ranks=local_ranks,
            reserved_bytes=reserved_bytes,
            limits=limits,
        )
    try:
        return TierExecutor(
            groups,
            num_classes,
            copier=copier,
            host=host,
            disk=disk,
            threads=threads,
            staging_pages=staging_pages,
            when_full=when_full,
            pin=pinner,
        )
    except BaseException:
        if host is not None:
            host.close()
        raise

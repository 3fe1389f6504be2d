"""From a plan to the tiers of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandemkv.errors import TierError
from tandemkv.managers.classes import cache_classes
from tandemkv.managers.pools import Pool
from tandemkv.planning import Plan
from tandemkv.tiers.bookkeeping import BookkeepingExecutor
from tandemkv.tiers.copies import HostCopier
from tandemkv.tiers.executor import TierExecutor, WhenFull
from tandemkv.tiers.host import HostTier
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

    A class has as many as the smallest of its groups. Cross-attention has none: its pages are
    private.
    """
    classes = cache_classes(plan)
    host, disk = [], []
    for item in classes:
        groups = [group for group in plan.groups() if group.rule == item.lifetime]
        private = item.lifetime[0] == "cross_attention"
        host.append(0 if private else min(group.num_host_pages for group in groups))
        disk.append(0 if private else min(group.num_disk_pages for group in groups))
    return TierPages(host=tuple(host), disk=tuple(disk))


def build_executor(
    pools: Sequence[Pool],
    num_classes: int,
    *,
    host_pages: Sequence[int] | None = None,
    disk: PageStore | None = None,
    local_ranks: int = 1,
    reserved_bytes: int = 0,
    limits: HostLimits | None = None,
    threads: int = 2,
    staging_pages: int = 16,
    when_full: WhenFull = "fail",
) -> Executor:
    """Build what moves the pages of one rank, and its host memory.

    Args:
        pools: the pools of the rank, the target's before the draft's.
        num_classes: classes of the ledger.
        host_pages: pages of each class in host memory; None: no host tier.
        disk: the disk tier, which the executor then owns; None: none.
        local_ranks: ranks on this host that have a host tier of this size.
        reserved_bytes: what comes off the host's memory first; see `check_host_memory`.
        limits: what the machine leaves; None: what it says now.
        threads: threads that read and write the disk.
        staging_pages: pages on their way between device and disk, each way.
        when_full: what becomes of an eviction to disk without a staging page; see `TierExecutor`.

    Raises:
        TierError: the memory cannot be had, or some pools hold memory and others do not.
    """
    materialized = {pool.materialized for pool in pools}
    if materialized == {False}:
        return BookkeepingExecutor()
    if materialized != {True}:
        raise TierError("pools with and without memory, or none at all; all need memory, or none")
    groups = [device_group(pool) for pool in pools]
    host = None
    if host_pages is not None:
        host = HostTier(
            groups,
            host_pages,
            local_ranks=local_ranks,
            reserved_bytes=reserved_bytes,
            limits=limits,
        )
    return TierExecutor(
        groups,
        num_classes,
        copier=HostCopier(),
        host=host,
        disk=disk,
        threads=threads,
        staging_pages=staging_pages,
        when_full=when_full,
    )

"""From a plan to the managers of one rank."""

from __future__ import annotations

from pathlib import Path

from tandemkv._core import Ledger
from tandemkv.config import check_count
from tandemkv.errors import ConfigError
from tandemkv.managers.classes import cache_classes
from tandemkv.managers.layout import Arrangement, KvLayout
from tandemkv.managers.limits import Limits, limits_of
from tandemkv.managers.lower import DiskPlace, check_arguments, lower_pages, tier_executor
from tandemkv.managers.managers import Managers
from tandemkv.managers.memory import Backend, check_device
from tandemkv.managers.resizing import PoolOptions, Resizing, build_pools
from tandemkv.managers.transfers import Transfers
from tandemkv.managers.views import RoleView
from tandemkv.planning import Plan
from tandemkv.planning.roles import RolePlan
from tandemkv.tiers import (
    DiskStore,
    Executor,
    TierOptions,
    TierPages,
)


def build_managers(
    plan: Plan,
    rank: int = 0,
    device: str = "cpu",
    *,
    materialize: bool = True,
    backend: Backend | None = None,
    kv_layout: KvLayout = "NHD",
    arrangement: Arrangement = "interleaved",
    same_stream: bool = False,
    disaggregated: bool = False,
    num_dummy_requests: int | None = None,
    watermark_blocks: int = 0,
    events: int = 0,
    fingerprint: bytes = b"",
    tiers: bool | None = None,
    executor: Executor | None = None,
    disk: str | Path | DiskStore | None = None,
    persistent: bool = False,
    tier_options: TierOptions | None = None,
) -> Managers:
    """Build the ledger, the pools and the views of one rank.

    Every rank's ledger counts for both roles, so that all ranks decide alike; a rank without draft
    layers has no draft view and no draft memory.

    Args:
        plan: what `tandemkv.plan` returned.
        rank: the rank, `pp_rank * tp_size + tp_rank`.
        device: where the pools and the engine's tables are: `cpu` or `cuda:N`.
        materialize: False builds no pools, for engines that own the memory and for replays.
        backend: what holds the pools: `numpy`, `torch` or `cupy`; None for NumPy on the CPU and
            CuPy on a GPU.
        kv_layout: order inside a key or value buffer: tokens first (`NHD`), heads first (`HND`).
        arrangement: order in a pool: page by page (`interleaved`), where a page is one piece and
            layers are reached by kernel indices, or layer by layer (`per_layer`).
        same_stream: the engine runs all steps in order on one stream, so freed pages need not
            wait for the steps that were running.
        disaggregated: prefill and decode run on different engines, so that requests in transfer
            keep their rows: twice the rows.
        num_dummy_requests: rows kept for `add_dummy_requests`; None: as many as the plan has, see
            `KvCacheConfig.num_dummy_requests`.
        watermark_blocks: blocks that admissions leave to the growth of open requests, so that
            fewer of them are preempted; an idle ledger admits whatever fits.
        events: how many events about cached blocks the ledger keeps for `Ledger.events`; 0 logs
            none.
        fingerprint: what keys of blocks name besides tokens, adapter and salt, so that blocks of
            other weights, dtypes or layouts have other keys; see `docs/identity.md`.
        tiers: whether host and disk of the plan are used; None: if the plan has them and something
            moves their pages: the pools built here, or `executor`.
        executor: what moves pages between tiers, for engines that own the memory; None: one for
            the pools built here.
        disk: the folder of the disk tier, in which each rank has one of its own, or what
            `open_disk_store` opened, which belongs to the managers then; needed where the plan has
            a disk tier and no `executor` is given.
        persistent: of a folder, whether what lies there is found again by the next managers that
            are built for it, the same plan and fingerprint; else it is gone when the process ends.
        tier_options: how lower tiers are had and moved: pinning, ranks per host, threads.

    Raises:
        ConfigError: no such rank, `num_dummy_requests`, `watermark_blocks` or `events` is not an
            int >= 0, `fingerprint` is not bytes, or a plan with context parallelism.
        PoolError: an unknown device, backend or layout, or a pool that differs from the plan or is
            too large for 32-bit page indices.
        DeviceUnavailableError: pools on a CUDA device that is not there.
        TierError: the host memory of the plan or its place on disk cannot be had, or what lies
            there is another engine's.
    """
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < len(plan.ranks):
        raise ConfigError(
            f"rank is {rank!r}; the plan has ranks 0 to {len(plan.ranks) - 1}",
            field="rank",
            value=rank,
        )
    classes = cache_classes(plan)
    check_device(device, materialize=materialize)
    check_count("watermark_blocks", watermark_blocks, least=0)
    if not isinstance(fingerprint, bytes):
        raise ConfigError(
            f"fingerprint is {fingerprint!r}; bytes are needed",
            field="fingerprint",
            value=fingerprint,
        )
    check_arguments(tiers, executor, tier_options)
    lower = lower_pages(plan, classes, tiers, movable=materialize or executor is not None)
    place = DiskPlace(
        disk=disk, rank=rank, kv_layout=kv_layout, fingerprint=fingerprint, persistent=persistent
    )
    moving = TierOptions() if tier_options is None else tier_options
    place.check(plan, lower, executor, moving)
    limits = limits_of(plan, classes, disaggregated, num_dummy_requests, watermark_blocks)
    ledger = _ledger(
        plan,
        limits,
        lower,
        same_stream=same_stream,
        events=check_count("events", events, least=0),
        fingerprint=fingerprint,
    )
    share = plan.ranks[rank]
    options = PoolOptions(
        rank=rank,
        device=device,
        materialize=materialize,
        backend=backend,
        kv_layout=kv_layout,
        arrangement=arrangement,
        disaggregated=disaggregated,
    )

    def view(role: RolePlan) -> RoleView:
        pools = build_pools(plan, classes, role, options)
        return RoleView(role, pools=pools, ledger=ledger, device=device)

    target = view(share.target)
    draft = None if share.draft is None else view(share.draft)
    views = (target,) if draft is None else (target, draft)
    transfers = None
    if lower is not None:
        if executor is None:
            pools = [pool for role in views for pool in role.pools]
            executor = tier_executor(ledger, plan, lower, pools, place=place, options=moving)
        on = device if materialize else "cpu"
        transfers = Transfers(ledger, executor, on)
    return Managers(
        ledger,
        limits,
        target=target,
        draft=draft,
        transfers=transfers,
        resizing=Resizing(ledger, limits, views, plan, options),
    )


def _ledger(
    plan: Plan,
    limits: Limits,
    lower: TierPages | None,
    *,
    same_stream: bool,
    events: int,
    fingerprint: bytes,
) -> Ledger:
    """Return the ledger of a plan, the same on every rank."""
    num_blocks: int | None = None
    if plan.config.enable_block_reuse and not any(item.keeps_all_tokens for item in limits.classes):
        # Nothing but the block records then bounds what is reusable: one for every block that open
        # requests can have, and for every page that can be cached beside them.
        num_blocks = limits.max_sequences * plan.row_width + max(limits.num_pages)
    return Ledger(
        tokens_per_block=limits.tokens_per_block,
        num_pages=limits.num_pages,
        lifetimes=[item.lifetime for item in limits.classes],
        max_step_tokens=plan.terms.step_tokens,
        num_blocks=num_blocks,
        snapshot_interval=limits.snapshot_interval,
        max_sequences=limits.max_sequences,
        max_seq_len=limits.max_seq_len,
        has_draft=limits.has_draft,
        extra_tokens=limits.extra_tokens,
        reserve_tokens=limits.reserve_tokens,
        lookahead=plan.terms.lookahead,
        reuse=plan.config.enable_block_reuse,
        partial_reuse=plan.config.enable_partial_reuse,
        same_stream=same_stream,
        watermark_blocks=limits.watermark_blocks,
        policy=plan.config.eviction_policy,
        ttl_ms=plan.config.cache_ttl_ms,
        max_leased_blocks=int((plan.config.max_pinned_fraction or 0) * limits.usable_pages),
        events=events,
        fingerprint=fingerprint,
        host_pages=lower.host if lower is not None and any(lower.host) else None,
        disk_pages=lower.disk if lower is not None and any(lower.disk) else None,
    )

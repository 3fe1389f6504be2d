"""From a plan to the managers of one rank."""

from __future__ import annotations

from tandemkv._core import Ledger
from tandemkv.config import check_count
from tandemkv.errors import ConfigError, PoolError
from tandemkv.managers.layout import Arrangement, KvLayout, page_layout
from tandemkv.managers.limits import Limits
from tandemkv.managers.managers import Managers
from tandemkv.managers.memory import Backend, check_device
from tandemkv.managers.pools import Pool
from tandemkv.managers.views import RoleView
from tandemkv.planning import Plan
from tandemkv.planning.explain import group_name
from tandemkv.planning.roles import RolePlan


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

    Raises:
        ConfigError: no such rank, `num_dummy_requests`, `watermark_blocks` or `events` is not an
            int >= 0, `fingerprint` is not bytes, or a plan with layers that do not keep every
            token, or with context parallelism.
        PoolError: an unknown device, backend or layout, or a pool that differs from the plan or is
            too large for 32-bit page indices.
        DeviceUnavailableError: pools on a CUDA device that is not there.
    """
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < len(plan.ranks):
        raise ConfigError(
            f"rank is {rank!r}; the plan has ranks 0 to {len(plan.ranks) - 1}",
            field="rank",
            value=rank,
        )
    _check_groups(plan)
    check_device(device, materialize=materialize)
    check_count("watermark_blocks", watermark_blocks, least=0)
    if not isinstance(fingerprint, bytes):
        raise ConfigError(
            f"fingerprint is {fingerprint!r}; bytes are needed",
            field="fingerprint",
            value=fingerprint,
        )
    limits = _limits(plan, disaggregated, num_dummy_requests, watermark_blocks)
    ledger = Ledger(
        tokens_per_block=limits.tokens_per_block,
        num_pages=limits.num_pages,
        max_sequences=limits.max_sequences,
        max_seq_len=limits.max_seq_len,
        has_draft=limits.has_draft,
        extra_tokens=limits.extra_tokens,
        reserve_tokens=limits.reserve_tokens,
        lookahead=plan.lookahead,
        reuse=plan.config.enable_block_reuse,
        partial_reuse=plan.config.enable_partial_reuse,
        same_stream=same_stream,
        watermark_blocks=watermark_blocks,
        policy=plan.config.eviction_policy,
        ttl_ms=plan.config.cache_ttl_ms,
        max_leased_blocks=int((plan.config.max_pinned_fraction or 0) * limits.usable_pages),
        events=check_count("events", events, least=0),
        fingerprint=fingerprint,
    )
    share = plan.ranks[rank]

    def view(role: RolePlan) -> RoleView:
        layout = page_layout(
            role.kept_layers,
            tp_size=role.tp_size,
            tokens_per_block=plan.tokens_per_block,
            kv_layout=kv_layout,
            arrangement=arrangement,
        )
        if role.num_pages != plan.num_blocks:
            raise PoolError(
                f"the {role.role} has {role.num_pages} pages, the plan {plan.num_blocks} blocks"
            )
        pool = Pool(
            layout,
            num_pages=role.num_pages,
            planned_bytes=role.device_bytes - role.fixed_bytes,
            backend=backend,
            device=device,
            materialize=materialize,
        )
        return RoleView(role, pool=pool, ledger=ledger, device=device)

    draft = None if share.draft is None else view(share.draft)
    return Managers(ledger, limits, target=view(share.target), draft=draft)


def _check_groups(plan: Plan) -> None:
    """Refuse plans that the ledger cannot keep: it has one class, which keeps every token.

    Every rank's ledger carries all groups of the pair, so a group of any rank counts.

    Raises:
        ConfigError: names the group, or the context-parallel size.
    """
    for share in plan.ranks:
        for role in (share.target, share.draft):
            if role is None:
                continue
            for group in role.groups:
                if group.fixed is not None:
                    raise ConfigError(
                        f"the {role.role} has a group "
                        f"{group_name(group)} (layers {group.layer_indices[0]} to "
                        f"{group.layer_indices[-1]}, rank {share.rank}); managers are built for "
                        "full_attention groups only",
                        field="plan",
                        value=group.lifetime,
                    )
    if not plan.num_blocks:
        raise ConfigError("the plan has no group that keeps tokens", field="plan")
    if plan.mapping.cp_size != 1:
        raise ConfigError(
            f"the plan has cp_size {plan.mapping.cp_size}; managers are built for 1",
            field="plan",
            value=plan.mapping.cp_size,
        )


def _limits(
    plan: Plan, disaggregated: bool, num_dummies: int | None, watermark_blocks: int
) -> Limits:
    if num_dummies is None:
        num_dummies = plan.terms.dummies
    check_count("num_dummy_requests", num_dummies, least=0)
    # Each pipeline stage has a micro-batch in flight, and all of them hold rows on every rank.
    max_requests = plan.max_sequences * (2 if disaggregated else 1)
    return Limits(
        tokens_per_block=plan.tokens_per_block,
        num_pages=(plan.num_blocks,),
        max_requests=check_count("max_batch_size * pp_size", max_requests),
        max_dummies=num_dummies,
        max_seq_len=plan.max_seq_len,
        extra_tokens=plan.extra_tokens,
        reserve_tokens=plan.reserve_tokens,
        has_draft=plan.has_draft,
        watermark_blocks=watermark_blocks,
    )

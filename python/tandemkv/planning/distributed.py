"""One plan for all ranks of a process group."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from tandemkv.config import KvCacheConfig, Mapping, SpeculativeConfig
from tandemkv.errors import ConfigError, DeviceUnavailableError, PlanMismatchError
from tandemkv.geometry.layers import ModelGeometry
from tandemkv.planning.result import Plan
from tandemkv.planning.solver import plan
from tandemkv.sizes import parse_size


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a rank brings: bytes, or why it has none to offer."""

    device_bytes: int | None
    host_bytes: int | None
    problem: str | None


def plan_distributed(
    target: ModelGeometry,
    draft: ModelGeometry | None = None,
    *,
    config: KvCacheConfig,
    mapping: Mapping,
    speculative: SpeculativeConfig | None = None,
    device_bytes: int | str,
    host_bytes: int | str | None = None,
    group: Any = None,
) -> Plan:
    """Plan for all ranks of a `torch.distributed` group, from what each of them has.

    A collective call: every rank of the group makes it, with the same models and configuration and
    its own bytes. The bytes are gathered, every rank computes the plan of all, and the digests are
    compared, so that no rank goes on with another plan. Where one rank has too little, all raise
    the same error, which names it. A rank's part is `plan.ranks[rank]`.

    Args:
        target: as for `plan`, equal on all ranks; so are the next four.
        draft: the drafter's layers, or None.
        config: caps and sizes, per rank.
        mapping: the layout.
        speculative: the mode, or None.
        device_bytes: what this rank has for KV; the budget is at most `max_gpu_total_bytes`.
        host_bytes: what this rank has for a host tier; None: `host_cache_size`.
        group: the process group; None: the default one. Ranks are those of the group.

    Raises:
        BudgetError: some rank has too little; the same on all ranks.
        ConfigError: the group and the layout differ in size, or some rank's bytes are no size.
        PlanMismatchError: the ranks were not called alike.
        DeviceUnavailableError: torch is not installed, or `torch.distributed` not initialised.
    """
    distributed = _initialised()
    size = distributed.get_world_size(group)
    if size != mapping.world_size:
        # All ranks of the group see the same size, so all leave here.
        raise ConfigError(
            f"the process group has {size} ranks, but mapping has {mapping.world_size}",
            field="mapping",
            value=mapping.world_size,
        )
    offers: list[_Offer] = [_Offer(None, None, None)] * size
    distributed.all_gather_object(offers, _offer(device_bytes, host_bytes, config), group=group)
    for rank, offer in enumerate(offers):
        if offer.problem is not None:
            raise ConfigError(f"rank {rank}: {offer.problem}", field="device_bytes", value=rank)
    result = _outcome(
        lambda: plan(
            target,
            draft,
            config=config,
            mapping=mapping,
            speculative=speculative,
            device_bytes=[offer.device_bytes or 0 for offer in offers],
            host_bytes=[offer.host_bytes or 0 for offer in offers],
        )
    )
    # An error has a digest as well: a rank that fails alone must not leave the others waiting.
    digest = result.digest() if isinstance(result, Plan) else f"{type(result).__name__}: {result}"
    digests: list[str] = [""] * size
    distributed.all_gather_object(digests, digest, group=group)
    different = [rank for rank in range(size) if digests[rank] != digests[0]]
    if different:
        names = ", ".join(map(str, different))
        raise PlanMismatchError(
            f"ranks {names} have another plan than rank 0: every rank must give the same models "
            f"and configuration (rank 0: {digests[0]}; rank {different[0]}: "
            f"{digests[different[0]]})",
            ranks=tuple(different),
        )
    if isinstance(result, Plan):
        return result
    raise result


def _initialised() -> Any:
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError:
        raise DeviceUnavailableError(
            "plan_distributed needs torch, which is not installed"
        ) from None
    if not (distributed.is_available() and distributed.is_initialized()):
        raise DeviceUnavailableError(
            "torch.distributed is not initialised; call init_process_group first"
        )
    return distributed


def _offer(device_bytes: int | str, host_bytes: int | str | None, config: KvCacheConfig) -> _Offer:
    try:
        host = (
            config.host_cache_size if host_bytes is None else parse_size(host_bytes, "host_bytes")
        )
        return _Offer(parse_size(device_bytes, "device_bytes"), host, None)
    except ConfigError as error:
        return _Offer(None, None, str(error))


def _outcome(compute: Any) -> Plan | Exception:
    try:
        result: Plan = compute()
    except Exception as error:
        return error
    return result

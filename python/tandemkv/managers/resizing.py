"""Another plan for managers that run: the pools of both roles grow or shrink together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.device.cuda_backend import as_stream
from tandemkv.device.kernels import require_cupy
from tandemkv.errors import ConfigError
from tandemkv.managers.classes import CacheClass, cache_classes, class_of
from tandemkv.managers.layout import Arrangement, KvLayout, page_layout
from tandemkv.managers.limits import Limits, limits_of
from tandemkv.managers.memory import Backend, device_number
from tandemkv.managers.moves import PageMover
from tandemkv.managers.pools import Pool
from tandemkv.managers.views import RoleView
from tandemkv.planning import Plan
from tandemkv.planning.roles import RolePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """How the pools of a rank are built: arguments of `build_managers`, which explains them."""

    rank: int
    device: str
    materialize: bool
    backend: Backend | None
    kv_layout: KvLayout
    arrangement: Arrangement
    disaggregated: bool


def build_pools(
    plan: Plan, classes: tuple[CacheClass, ...], role: RolePlan, options: PoolOptions
) -> list[Pool]:
    """Build the pools of a role, one per cache group.

    Raises:
        PoolError, DeviceUnavailableError: see `build_managers`.
    """
    return [
        Pool(
            page_layout(
                group.layers,
                tp_size=role.tp_size,
                tokens_per_block=plan.tokens_per_block,
                kv_layout=options.kv_layout,
                arrangement=options.arrangement,
                numbers=[index - role.layer_indices[0] for index in group.layer_indices],
            ),
            num_pages=group.num_pages,
            planned_bytes=group.device_bytes,
            class_index=class_of(classes, group.rule),
            backend=options.backend,
            device=options.device,
            materialize=options.materialize,
        )
        for group in role.groups
    ]


class Resizing:
    """What `Managers` does to take another plan."""

    def __init__(
        self,
        ledger: Ledger,
        limits: Limits,
        views: Sequence[RoleView],
        plan: Plan,
        options: PoolOptions,
    ) -> None:
        self._ledger = ledger
        self._limits = limits
        self._views = views
        self._plan = plan
        self._options = options

    def apply(self, plan: Plan, stream: object | None) -> NDArray[np.int32]:
        """See `Managers.apply_plan`."""
        options = self._options
        if options.materialize and options.device != "cpu":
            as_stream(stream)  # raises before anything has changed
        classes = cache_classes(plan)
        limits = limits_of(
            plan,
            classes,
            options.disaggregated,
            self._limits.max_dummies,
            self._limits.watermark_blocks,
        )
        self._check_only_sizes_differ(plan, limits)
        share = plan.ranks[options.rank]
        roles = {"target": share.target, "draft": share.draft}
        new: list[tuple[RoleView, RolePlan, list[Pool]]] = []
        for view in self._views:
            role = roles[view.role]
            assert role is not None  # the layers were compared
            new.append((view, role, build_pools(plan, classes, role, options)))
        moves = self._ledger.resize([item.num_pages for item in classes])
        if options.materialize:
            self._fill(moves, [pool for _, _, pools in new for pool in pools], stream)
        for view, role, pools in new:
            view.replace(role, pools)
        self._limits.classes = classes
        self._plan = plan
        return moves

    def _fill(self, moves: NDArray[np.int32], pools: list[Pool], stream: object | None) -> None:
        """Run the moves in the old pools, then copy what stays into the new ones."""
        old = [pool for view in self._views for pool in view.pools]
        PageMover(old, self._options.device).run(moves, stream)
        self._wait()
        for source, destination in zip(old, pools, strict=True):
            # Page 0 stays as it was built.
            pages = slice(1, min(source.num_pages, destination.num_pages))
            for spec in source.layout.buffers:
                place = destination.view(spec.layer, spec.name)
                place[pages] = source.view(spec.layer, spec.name)[pages]
        self._wait()

    def _wait(self) -> None:
        """Wait for the GPU: the old pools are given back when this returns."""
        if self._options.device != "cpu":
            cupy = require_cupy()
            with cupy.cuda.Device(device_number(self._options.device)):
                cupy.cuda.runtime.deviceSynchronize()

    def _check_only_sizes_differ(self, plan: Plan, limits: Limits) -> None:
        """Refuse a plan that differs in more than the sizes of pools.

        Raises:
            ConfigError: names what differs.
        """
        old = {**_fixed(self._plan, self._options.rank), **_bounds(self._limits)}
        for field, value in {**_fixed(plan, self._options.rank), **_bounds(limits)}.items():
            if value != old[field]:
                raise ConfigError(
                    f"{field} of the new plan is {value}, that of the managers is {old[field]}: "
                    "apply_plan changes the sizes of pools only; build new managers",
                    field=field,
                    value=value,
                )


def _fixed(plan: Plan, rank: int) -> dict[str, Any]:
    """Return what of a plan the ledger and the layouts are built from, but for sizes."""
    fixed: dict[str, Any] = {"ranks": len(plan.ranks)}
    share = plan.ranks[rank] if rank < len(plan.ranks) else None
    for name in ("target", "draft"):
        role = None if share is None else getattr(share, name)
        fixed |= {f"{name} {field}": value for field, value in _of_role(role)}
    return {
        **fixed,
        "enable_block_reuse": plan.config.enable_block_reuse,
        "enable_partial_reuse": plan.config.enable_partial_reuse,
        "eviction_policy": plan.config.eviction_policy,
        "cache_ttl_ms": plan.config.cache_ttl_ms,
        "lookahead": plan.terms.lookahead,
        "max_step_tokens": plan.terms.step_tokens,
        "state_snapshot_interval": plan.terms.snapshot_interval,
    }


def _of_role(role: RolePlan | None) -> Iterator[tuple[str, Any]]:
    yield "tp_size", None if role is None else role.tp_size
    yield "layers", None if role is None else role.layers
    yield "cache groups", None if role is None else [group.rule for group in role.groups]


def _bounds(limits: Limits) -> dict[str, Any]:
    """Return what binds requests, but for the pages."""
    same = replace(limits, classes=())
    fields = {name: getattr(same, name) for name in Limits.__slots__ if name != "classes"}
    lifetimes = [(item.lifetime, item.bound_blocks) for item in limits.classes]
    return {**fields, "classes": lifetimes}

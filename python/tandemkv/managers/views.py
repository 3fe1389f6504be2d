"""What one role has on one rank: a view of the shared ledger with pools of its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any

from tandemkv._core import Ledger
from tandemkv.errors import PoolError
from tandemkv.geometry.layers import Layer
from tandemkv.managers.offsets import BlockOffsets, BlockTables, KernelGroup, kernel_groups
from tandemkv.managers.pools import Pool
from tandemkv.planning.groups import FULL
from tandemkv.planning.roles import RolePlan

_USAGE = ("live", "cached", "evictable", "free", "fenced", "reserved")


class RoleView:
    """The target's or the draft's part of a rank; `build_managers` makes it.

    Both roles share page numbers: page p of a class holds, in the draft's pool, the draft KV of the
    tokens whose target KV is in page p of the target's pool of that class.

    Args:
        plan: the role's share of the rank.
        pools: its memory on the device, one pool per cache group, in the order of `plan.groups`.
        ledger: the ledger that both roles share.
        device: where the tables of this role are read: `cpu`, or `cuda:N`.
    """

    def __init__(
        self, plan: RolePlan, *, pools: Sequence[Pool], ledger: Ledger, device: str = "cpu"
    ) -> None:
        self._plan = plan
        self._device = device
        self._block_tables: BlockTables | None = None
        self._pools = tuple(pools)
        self._ledger = ledger
        self._layer_bytes = _layer_bytes(plan)

    def __repr__(self) -> str:
        pools = ", ".join(map(repr, self._pools))
        return f"RoleView({self.role}, {self.num_layers} layers, {pools})"

    @property
    def role(self) -> str:
        """`target` or `draft`."""
        return self._plan.role

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of this role on this rank, in order, those that keep nothing included."""
        return self._plan.layers

    @property
    def layer_indices(self) -> tuple[int, ...]:
        """The number of each of `layers` in its model, from 0."""
        return self._plan.layer_indices

    @property
    def plan(self) -> RolePlan:
        """What the plan gives this role on this rank."""
        return self._plan

    @property
    def num_layers(self) -> int:
        """Layers of this role on this rank."""
        return len(self._plan.layers)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The memory of the device tier: a pool per cache group, in the order of `plan.groups`."""
        return self._pools

    @property
    def pool(self) -> Pool:
        """The memory of a role with one cache group.

        Raises:
            PoolError: the role has several: see `pools` and `pools_of`.
        """
        if len(self._pools) != 1:
            raise PoolError(
                f"the {self.role} has {len(self._pools)} cache groups, each with a pool; "
                "use pools or pools_of(layer)"
            )
        return self._pools[0]

    def pools_of(self, layer: int) -> tuple[Pool, ...]:
        """Return the pools that hold something of a layer: several where it keeps a state besides.

        Args:
            layer: its number on this rank, from 0.

        Raises:
            PoolError: no such layer, or one that keeps nothing.
        """
        found = tuple(pool for pool in self._pools if layer in pool.layout.layers)
        if not found:
            raise PoolError(
                f"layer is {layer!r}; none of the pools of the {self.role}, which has "
                f"{self.num_layers} layers on this rank, holds anything of it"
            )
        return found

    def replace(self, plan: RolePlan, pools: Sequence[Pool]) -> None:
        """Take the pools of another plan; for `Managers.apply_plan`."""
        self._plan = plan
        self._pools = tuple(pools)
        self.__dict__.pop("block_offsets", None)

    @property
    def device(self) -> str:
        """Where the tables of this role are read: `cpu`, or `cuda:N`."""
        return self._device

    @property
    def num_pages(self) -> int:
        """Pages of the group that keeps every token, the reserved page 0 included; 0 if none."""
        return self._plan.num_pages

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of a role with one cache group; `pool` says what is raised else."""
        return self.pool.page_bytes

    @property
    def device_bytes(self) -> int:
        """Planned bytes on the device."""
        return self._plan.device_bytes

    @property
    def host_bytes(self) -> int:
        """Planned bytes in host memory."""
        return self._plan.host_bytes

    @property
    def disk_bytes(self) -> int:
        """Planned bytes on disk."""
        return self._plan.disk_bytes

    def get_cache_size_per_token(self, num_layers: int | None = None) -> int:
        """Return the bytes that one more token takes in this role on this rank.

        Those of layers that keep every token: what windows, states and cross attention keep does
        not grow with a sequence.

        Args:
            num_layers: count the first so many layers only, 0 to all; None: all.

        Raises:
            ValueError: `num_layers` is not an int in that range.
        """
        if num_layers is None:
            return sum(self._layer_bytes)
        if (
            not isinstance(num_layers, int)
            or isinstance(num_layers, bool)
            or not 0 <= num_layers <= self.num_layers
        ):
            raise ValueError(
                f"num_layers is {num_layers!r}; the {self.role} has {self.num_layers} layers on "
                "this rank"
            )
        return sum(self._layer_bytes[:num_layers])

    def attach(self, block_tables: BlockTables) -> None:
        """Say who reads the tables of requests; `Managers` does, when it is built."""
        self._block_tables = block_tables

    @cached_property
    def block_offsets(self) -> BlockOffsets:
        """What writes this role's kernel indices; built when it is first used.

        Raises:
            PoolError: the pool's layout has no kernel indices, or the view has no managers.
            DeviceUnavailableError: the device is a GPU and there is none.
        """
        if self._block_tables is None:
            raise PoolError(f"the view of the {self.role} belongs to no managers")
        return BlockOffsets(self._pools, self._ledger, self._block_tables, self._device)

    @property
    def kernel_groups(self) -> tuple[KernelGroup, ...]:
        """The groups of this role in `copy_batch_block_offsets`, in order; states have none.

        Raises:
            PoolError: a layer that no whole index reaches.
        """
        return tuple(
            group for pool in self._pools for group in kernel_groups(pool.layout, pool.class_index)
        )

    def copy_batch_block_offsets(
        self,
        dst: object,
        request_ids: Iterable[Hashable],
        *,
        num_padding_rows: int = 0,
        stream: object | None = None,
    ) -> None:
        """Write the kernel indices of a batch, as attention kernels read them.

        `dst[g, i, 0, b]` becomes the K index of block b of request i in kernel group g, and
        `dst[g, i, 1, b]` its V index; blocks that a request does not have give 0 in both. Rows
        after the batch stay as they are, except for the padding rows, which become 0.

        Args:
            dst: int32 [kernel groups, requests + padding rows or more, 2, row width], in memory of
                the managers' device.
            request_ids: the open requests, in batch order.
            num_padding_rows: rows to clear after them, for a captured graph's larger batch.
            stream: the engine's stream, needed on a GPU: the write is queued there.

        Raises:
            ArrayError: `dst` has another form, or lies elsewhere; nothing was written.
            RequestError: an id that is not open.
            ValueError: more rows than the ledger has, or a negative number of padding rows.
            PoolError: a layer that no whole index reaches.
            DeviceUnavailableError: the device is a GPU and there is none.
        """
        self.block_offsets.copy(dst, request_ids, num_padding_rows=num_padding_rows, stream=stream)

    def usage(self) -> dict[str, int]:
        """Return what this role's pages hold now, in bytes, from the ledger that decides.

        `live_bytes` belongs to one open request each, `cached_bytes` to the prefix tree, of which
        `evictable_bytes` no open request stands on; `free_bytes` is allocatable now,
        `fenced_bytes` waits for a step, and `reserved_bytes` is page 0, and pages of states that
        other ranks do not have. Without `evictable_bytes` they add up to the bytes of the pools.
        """
        return self.usage_of(self._ledger.stats())

    def usage_of(self, stats: dict[str, Any]) -> dict[str, int]:
        """Return `usage()` for statistics of the ledger already at hand."""
        usage = dict.fromkeys(_USAGE, 0)
        for pool in self._pools:
            pages = stats["classes"][pool.class_index]
            for state in _USAGE:
                usage[state] += pages[state] * pool.page_bytes
            usage["reserved"] += (pool.num_pages - pages["total"]) * pool.page_bytes
        return {f"{state}_bytes": num_bytes for state, num_bytes in usage.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return what the plan gives this role, as plain values."""
        return {"role": self.role, **self._plan.to_dict()}


def _layer_bytes(plan: RolePlan) -> tuple[int, ...]:
    """Return the bytes per token that each layer of the rank keeps for every token."""
    prices = dict.fromkeys(plan.layer_indices, 0)
    for group in plan.groups:
        if group.rule == FULL:
            for index, part in zip(group.layer_indices, group.layers, strict=True):
                prices[index] += part.bytes_per_token(plan.tp_size)
    return tuple(prices.values())

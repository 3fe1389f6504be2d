"""What one role has on one rank: a view of the shared ledger with a pool of its own."""

from __future__ import annotations

from typing import Any

from tandemkv._core import Ledger
from tandemkv.geometry.layers import Layer
from tandemkv.managers.pools import Pool


class RoleView:
    """The target's or the draft's part of a rank; `build_managers` makes it.

    Both roles share page numbers: page p of the draft holds the draft KV of the tokens whose
    target KV is in page p of the target.

    Args:
        role: `target` or `draft`.
        layers: its layers on this rank, in order.
        layer_ids: their indices in the whole model.
        tp_size: width of its attention group.
        num_host_pages: pages that the plan gives it in host memory.
        num_disk_pages: pages that the plan gives it on disk.
        pool: its memory on the device.
        ledger: the ledger that both roles share.
    """

    def __init__(
        self,
        role: str,
        layers: tuple[Layer, ...],
        *,
        layer_ids: tuple[int, ...],
        tp_size: int,
        num_host_pages: int,
        num_disk_pages: int,
        pool: Pool,
        ledger: Ledger,
    ) -> None:
        self._role = role
        self._layers = layers
        self._layer_ids = layer_ids
        self._pool = pool
        self._ledger = ledger
        self._num_host_pages = num_host_pages
        self._num_disk_pages = num_disk_pages
        self._layer_bytes = tuple(layer.bytes_per_token(tp_size) for layer in layers)

    def __repr__(self) -> str:
        return f"RoleView({self._role}, {self.num_layers} layers, {self._pool!r})"

    @property
    def role(self) -> str:
        """`target` or `draft`."""
        return self._role

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of this role on this rank, in order."""
        return self._layers

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The index of each of `layers` in the whole model."""
        return self._layer_ids

    @property
    def num_layers(self) -> int:
        """Layers of this role on this rank."""
        return len(self._layers)

    @property
    def pool(self) -> Pool:
        """The memory of the device tier."""
        return self._pool

    @property
    def num_pages(self) -> int:
        """Pages on the device, the reserved page 0 included."""
        return self._pool.num_pages

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self._pool.page_bytes

    @property
    def device_bytes(self) -> int:
        """Bytes on the device."""
        return self._pool.num_bytes

    @property
    def host_bytes(self) -> int:
        """Planned bytes in host memory."""
        return self._num_host_pages * self.page_bytes

    @property
    def disk_bytes(self) -> int:
        """Planned bytes on disk."""
        return self._num_disk_pages * self.page_bytes

    def get_cache_size_per_token(self, num_layers: int | None = None) -> int:
        """Return the bytes that one token takes in this role on this rank.

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
                f"num_layers is {num_layers!r}; the {self._role} has {self.num_layers} layers on "
                "this rank"
            )
        return sum(self._layer_bytes[:num_layers])

    def usage(self) -> dict[str, int]:
        """Return what this role's pages hold now, in bytes, from the ledger that decides.

        `live_bytes` belongs to open requests, `cached_bytes` can be reused by later ones,
        `free_bytes` is allocatable now, `fenced_bytes` waits for a step, and `reserved_bytes` is
        page 0. They add up to `device_bytes`.
        """
        return self.usage_of(self._ledger.stats())

    def usage_of(self, stats: dict[str, Any]) -> dict[str, int]:
        """Return `usage()` for statistics of the ledger already at hand."""
        (pages,) = stats["classes"]  # every layer keeps all tokens: one class
        states = ("live", "cached", "free", "fenced", "reserved")
        return {f"{state}_bytes": pages[state] * self.page_bytes for state in states}

    def to_dict(self) -> dict[str, Any]:
        """Return sizes as plain values."""
        return {
            "role": self._role,
            "num_layers": self.num_layers,
            "layer_ids": list(self._layer_ids),
            "bytes_per_token": self.get_cache_size_per_token(),
            "num_pages": self.num_pages,
            "page_bytes": self.page_bytes,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "disk_bytes": self.disk_bytes,
        }

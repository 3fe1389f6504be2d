"""Keys and values of a role, by page and offset in the page, as tensors over its pool."""

from __future__ import annotations

from typing import Any

import torch

from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.managers import Managers
from tandemkv.managers.pools import Pool
from tandemkv.managers.views import RoleView

Slots = tuple[torch.Tensor, torch.Tensor]
"""Page and offset in the page of tokens, int64 tensors of one shape."""


def stream_of(managers: Managers) -> Any:
    """Return the stream that models run on: torch's current one on a GPU, None on the CPU."""
    device = managers.target.device
    return None if device == "cpu" else torch.cuda.current_stream(device)


class KvStore:
    """Reads and writes the KV of one role where its pool keeps it.

    Args:
        view: `managers.target` or `managers.draft`, built with `backend="torch"` and the token
            axis first (`kv_layout="NHD"`).

    Raises:
        PagedCacheError: a pool that holds no torch memory, or has another order.
    """

    def __init__(self, view: RoleView) -> None:
        self.role = view.role
        self.num_layers = view.num_layers
        self.tokens_per_block = view.pools[0].layout.tokens_per_block
        self._buffers: list[list[torch.Tensor]] = []
        self._latent_rank: list[int] = []
        self._classes: list[int] = []
        for index, layer in enumerate(view.layers):
            pools = view.pools_of(index)
            names = pools[0].layout.names(index)
            if len(pools) > 1 or names not in (("key", "value"), ("latent",)):
                found = ", ".join(name for pool in pools for name in pool.layout.names(index))
                raise PagedCacheError(
                    f"layer {index} of the {view.role} keeps {found}; supported: key and value, or "
                    "a latent"
                )
            _check_pool(pools[0], view.role)
            self._buffers.append([pools[0].view(index, name) for name in names])
            self._latent_rank.append(layer.kv_lora_rank or 0)
            self._classes.append(pools[0].class_index)

    @property
    def classes(self) -> tuple[int, ...]:
        """The cache classes of its layers, ascending."""
        return tuple(sorted(set(self._classes)))

    def class_of(self, layer: int) -> int:
        """Return the cache class of a layer, whose block table says where its tokens are."""
        return self._classes[layer]

    @property
    def device(self) -> torch.device:
        """Where the pool lies."""
        return self._buffers[0][0].device

    def slots(self, numbers: torch.Tensor) -> Slots:
        """Return page and offset of slot numbers, `page * tokens_per_block + offset`, int64."""
        numbers = numbers.to(self.device)
        pages = torch.div(numbers, self.tokens_per_block, rounding_mode="floor")
        return pages, numbers % self.tokens_per_block

    def write(self, layer: int, slots: Slots, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write tokens of one layer.

        Args:
            layer: its number, from 0.
            slots: `[tokens]` each.
            keys: `[tokens, heads, head size]`; of a latent `[tokens, 1, rank]`.
            values: the same; of a latent the rotary part, `[tokens, 1, size]`.

        Raises:
            PagedCacheError: another dtype than the pool's.
        """
        buffers = self._buffers[layer]
        if keys.dtype != buffers[0].dtype:
            raise PagedCacheError(
                f"layer {layer} of the {self.role} has keys of {keys.dtype}; its pool holds "
                f"{buffers[0].dtype}"
            )
        if len(buffers) == 1:
            buffers[0][slots] = torch.cat((keys, values), dim=-1).squeeze(1)
            return
        buffers[0][slots] = keys
        buffers[1][slots] = values

    def gather(self, layer: int, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of the keys and values of one layer.

        Args:
            layer: its number, from 0.
            slots: of any shape `[...]`.

        Returns:
            `[..., heads, size]` each; a latent and its rotary part count as one head.
        """
        buffers = self._buffers[layer]
        if len(buffers) == 1:
            latent = buffers[0][slots].unsqueeze(-2)
            rank = self._latent_rank[layer]
            return latent[..., :rank], latent[..., rank:]
        return buffers[0][slots], buffers[1][slots]

    def copy(self, class_index: int, source: Slots, destination: Slots) -> None:
        """Copy tokens of all layers of a class from slot to slot."""
        for layer, buffers in enumerate(self._buffers):
            if self._classes[layer] == class_index:
                for buffer in buffers:
                    buffer[destination] = buffer[source]


def _check_pool(pool: Pool, role: str) -> None:
    if not pool.materialized or pool.backend != "torch":
        raise PagedCacheError(
            f"the pool of the {role} is {pool!r}; build_managers(..., backend='torch') is needed"
        )
    if any(spec.token_axis for spec in pool.layout.buffers):
        raise PagedCacheError("kv_layout is HND; NHD is needed")

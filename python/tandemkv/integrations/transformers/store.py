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

    Attributes:
        device: where the pools lie.

    Raises:
        PagedCacheError: a pool that holds no torch memory, or has another order; or layers that
            keep something else.
    """

    def __init__(self, view: RoleView) -> None:
        self.role = view.role
        self.num_layers = view.num_layers
        self._buffers: dict[int, list[torch.Tensor]] = {}
        self._latent_rank: dict[int, int] = {}
        self._classes: dict[int, int] = {}
        pools = [pool for pool in view.pools if not pool.layout.holds_states]
        for pool in pools:
            check_pool(pool, view.role)
            for index in pool.layout.layers:
                names = pool.layout.names(index)
                if index in self._buffers or names not in (("key", "value"), ("latent",)):
                    raise PagedCacheError(
                        f"layer {index} of the {view.role} keeps {', '.join(names)} in class "
                        f"{pool.class_index}; supported: key and value, or a latent"
                    )
                self._buffers[index] = [pool.view(index, name) for name in names]
                self._latent_rank[index] = view.layers[index].kv_lora_rank or 0
                self._classes[index] = pool.class_index
        if not pools:
            raise PagedCacheError(f"the {view.role} has no layer with attention")
        self.tokens_per_block = pools[0].layout.tokens_per_block
        self.device: torch.device = pools[0].buffer.device

    @property
    def classes(self) -> tuple[int, ...]:
        """The cache classes of its layers, ascending."""
        return tuple(sorted(set(self._classes.values())))

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that keep KV, ascending."""
        return tuple(sorted(self._classes))

    def class_of(self, layer: int) -> int:
        """Return the cache class of a layer, whose block table says where its tokens are."""
        return self._classes[layer]

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
        for layer, buffers in self._buffers.items():
            if self._classes[layer] == class_index:
                for buffer in buffers:
                    buffer[destination] = buffer[source]


def check_pool(pool: Pool, role: str) -> None:
    """Refuse a pool whose memory models cannot use.

    Raises:
        PagedCacheError: it holds no torch memory, or has another order.
    """
    if not pool.materialized or pool.backend != "torch":
        raise PagedCacheError(
            f"the pool of the {role} is {pool!r}; build_managers(..., backend='torch') is needed"
        )
    if any(spec.token_axis for spec in pool.layout.buffers):
        raise PagedCacheError("kv_layout is HND; NHD is needed")

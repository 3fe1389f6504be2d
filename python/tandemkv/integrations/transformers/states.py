"""Recurrent states of a role, by page, as tensors over its pool.

transformers keeps as many inputs of a convolution as its kernel is wide, and never reads the
oldest: a page holds one less.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from tandemkv.integrations.transformers.errors import PagedCacheError
from tandemkv.integrations.transformers.store import check_pool
from tandemkv.managers.layout import BufferSpec
from tandemkv.managers.views import RoleView

# The tensors of a convolution in the order of its channels; see tandemkv.geometry.families.states.
_CHANNELS = ("conv_x", "conv_bc", "conv_qk", "conv_v")

# Per model type the fields that hold the kernel's width and the last dimension of the state.
_FIELDS = {
    "bamba": ("mamba_d_conv", "mamba_d_state"),
    "falcon_h1": ("mamba_d_conv", "mamba_d_state"),
    "granitemoehybrid": ("mamba_d_conv", "mamba_d_state"),
    "nemotron_h": ("conv_kernel", "ssm_state_size"),
    "qwen3_5_moe_text": ("linear_conv_kernel_dim", "linear_value_head_dim"),
    "qwen3_5_text": ("linear_conv_kernel_dim", "linear_value_head_dim"),
    "qwen3_next": ("linear_conv_kernel_dim", "linear_value_head_dim"),
}


class States(NamedTuple):
    """The states of one layer in some sequences.

    Attributes:
        conv: `[rows, channels, kernel]`, the last inputs of the convolution; the oldest is 0.
        recurrent: `[rows, heads, ..., ...]`.
    """

    conv: torch.Tensor
    recurrent: torch.Tensor


class StateStore:
    """Reads and writes the recurrent states of one role where its pool keeps them.

    Args:
        view: `managers.target` or `managers.draft`, built with `backend="torch"`.
        model: whose layers they are.

    Attributes:
        layers: the layers that keep a state.
        class_index: the cache class of the states, or None where there are none.

    Raises:
        PagedCacheError: a pool that holds no torch memory, or a model type whose states are not
            supported.
    """

    def __init__(self, view: RoleView, model: Any) -> None:
        self.role = view.role
        self.class_index: int | None = None
        self._pools = [pool for pool in view.pools if pool.layout.holds_states]
        self._conv: dict[int, list[tuple[BufferSpec, torch.Tensor]]] = {}
        self._recurrent: dict[int, torch.Tensor] = {}
        self._kernel = self._last = 1
        for pool in self._pools:
            check_pool(pool, view.role)
            self._kernel, self._last = state_sizes(model)
            self.class_index = pool.class_index
            for layer in pool.layout.layers:
                buffers = {name: pool.view(layer, name) for name in pool.layout.names(layer)}
                self._conv[layer] = [
                    (pool.layout.find(layer, name), buffers.pop(name))
                    for name in _CHANNELS
                    if name in buffers
                ]
                (self._recurrent[layer],) = buffers.values()
        self.layers = tuple(sorted(self._recurrent))

    def read(self, layer: int, pages: torch.Tensor) -> States:
        """Return copies of the states of one layer.

        Args:
            layer: its number, from 0.
            pages: int64 `[rows]`; page 0 gives a state of a sequence without tokens.
        """
        pages = pages.to(self._recurrent[layer].device)
        num_rows, heads = len(pages), self._recurrent[layer].shape[1]
        parts = [buffer[pages].flatten(1) for _, buffer in self._conv[layer]]
        conv = torch.cat(parts, dim=1).reshape(num_rows, -1, self._kernel - 1)
        recurrent = self._recurrent[layer][pages].reshape(num_rows, heads, -1, self._last)
        return States(torch.nn.functional.pad(conv, (1, 0)), recurrent)

    def write(self, layer: int, pages: torch.Tensor, states: States) -> None:
        """Write the states of one layer.

        Args:
            layer: its number, from 0.
            pages: int64 `[rows]`.
            states: of those rows.

        Raises:
            PagedCacheError: other dtypes or sizes than the pool's.
        """
        recurrent = self._recurrent[layer]
        pages = pages.to(recurrent.device)
        buffers = self._conv[layer]
        sizes = [prod(spec.shape) for spec, _ in buffers]
        conv = states.conv[..., 1:].flatten(1)
        given = conv.dtype, states.recurrent.dtype, conv.shape[1]
        held = buffers[0][1].dtype, recurrent.dtype, sum(sizes)
        if given != held:
            raise PagedCacheError(
                f"layer {layer} of the {self.role} has states of {given[0]} and {given[1]} with "
                f"{given[2]} inputs; its pool holds {held[0]} and {held[1]} with {held[2]}"
            )
        parts = torch.split(conv, sizes, dim=1)
        for (spec, buffer), part in zip(buffers, parts, strict=True):
            buffer[pages] = part.reshape(-1, *spec.shape)
        recurrent[pages] = states.recurrent.flatten(2)

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy the states of all layers from page to page, int64 `[rows]` each."""
        for layer in self.layers:
            self.write(layer, destination, self.read(layer, source))


def has_states(view: RoleView) -> bool:
    """Return whether any layer of a role keeps a recurrent state."""
    return any(pool.layout.holds_states for pool in view.pools)


def state_sizes(model: Any) -> tuple[int, int]:
    """Return the width of a model's convolutions, and the last dimension of its states.

    Raises:
        PagedCacheError: names a model type whose states are not supported.
    """
    config = model.config.get_text_config(decoder=True)
    if config.model_type not in _FIELDS:
        raise PagedCacheError(
            f"states of {config.model_type!r} are not supported; supported: {', '.join(_FIELDS)}"
        )
    kernel, last = _FIELDS[config.model_type]
    return getattr(config, kernel), getattr(config, last)

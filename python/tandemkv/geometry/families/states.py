"""Recurrent states, as the engines keep them: per sequence, and divided like heads over ranks.

A causal convolution of kernel k keeps its last k - 1 inputs, in the dtype of the model; reference
code that keeps k of them recomputes the newest.
"""

from __future__ import annotations

from tandemkv.geometry.buffers import StateBuffer, StateDtype
from tandemkv.geometry.config import ConfigView
from tandemkv.geometry.layers import Layer


def _convolution(
    config: ConfigView, name: str, units: int, unit_channels: int, kernel: int
) -> list[StateBuffer]:
    """Return what a convolution keeps; nothing for a kernel of 1."""
    if kernel == 1:
        return []
    return [
        StateBuffer(
            name=name,
            split_units=units,
            unit_elements=unit_channels * (kernel - 1),
            dtype=config.convolution_dtype(),
        )
    ]


def _recurrent(name: str, units: int, unit_elements: int, dtype: StateDtype) -> StateBuffer:
    return StateBuffer(name=name, split_units=units, unit_elements=unit_elements, dtype=dtype)


def mamba1(config: ConfigView, *, channels: int, state_size: int, kernel: int) -> Layer:
    """Return a Mamba 1 layer: `channels * (kernel - 1)` inputs and `channels * state_size`.

    Mamba (Gu and Dao, 2023), section 3; ranks share the channels.
    """
    buffers = _convolution(config, "conv", channels, 1, kernel)
    buffers.append(_recurrent("ssm", channels, state_size, config.recurrent_dtype()))
    return Layer(kind="state", state_buffers=tuple(buffers))


def mamba2(
    config: ConfigView, *, heads: int, head_dim: int, groups: int, state_size: int, kernel: int
) -> Layer:
    """Return a Mamba 2 layer: inputs of x, B and C, and a matrix per head.

    `(heads * head_dim + 2 * groups * state_size) * (kernel - 1)` inputs and
    `heads * head_dim * state_size` elements of state (Dao and Gu, 2024). Ranks share heads and
    groups; a group is kept whole by every rank that has a head of it.
    """
    buffers = _convolution(config, "conv_x", heads, head_dim, kernel)
    buffers += _convolution(config, "conv_bc", groups, 2 * state_size, kernel)
    buffers.append(_recurrent("ssm", heads, head_dim * state_size, config.recurrent_dtype()))
    return Layer(kind="state", state_buffers=tuple(buffers))


def gated_delta_net(
    config: ConfigView,
    *,
    key_heads: int,
    key_dim: int,
    value_heads: int,
    value_dim: int,
    kernel: int,
) -> Layer:
    """Return a gated delta net: inputs of q, k and v, and a key x value matrix per value head.

    Gated Delta Networks (Yang et al., 2024); `linear_*` fields of Qwen3-Next.
    """
    buffers = _convolution(config, "conv_v", value_heads, value_dim, kernel)
    buffers += _convolution(config, "conv_qk", key_heads, 2 * key_dim, kernel)
    dtype = config.recurrent_dtype()
    buffers.append(_recurrent("recurrent", value_heads, key_dim * value_dim, dtype))
    return Layer(kind="state", state_buffers=tuple(buffers))


def kimi_delta_attention(config: ConfigView, *, heads: int, head_dim: int, kernel: int) -> Layer:
    """Return a Kimi Delta Attention layer: inputs of q, k and v, and a square matrix per head.

    Kimi Linear technical report (2025). Its state is fp32 in every engine, unless the caller says
    otherwise.
    """
    buffers = _convolution(config, "conv_qkv", heads, 3 * head_dim, kernel)
    dtype = config.state_dtype or "fp32"
    buffers.append(_recurrent("recurrent", heads, head_dim * head_dim, dtype))
    return Layer(kind="state", state_buffers=tuple(buffers))


def lightning_attention(config: ConfigView, *, heads: int, head_dim: int) -> Layer:
    """Return a lightning attention layer: a square matrix per head (MiniMax-01, section 2.2)."""
    dtype = config.recurrent_dtype()
    return Layer(
        kind="state",
        state_buffers=(_recurrent("recurrent", heads, head_dim * head_dim, dtype),),
    )


def short_convolution(config: ConfigView, *, channels: int, kernel: int) -> Layer:
    """Return a gated short convolution, which keeps its last inputs and nothing else (LFM2).

    Raises:
        GeometryError: a kernel of 1, which keeps nothing.
    """
    buffers = _convolution(config, "conv", channels, 1, kernel)
    if not buffers:
        return Layer(kind="none")
    return Layer(kind="state", state_buffers=tuple(buffers))

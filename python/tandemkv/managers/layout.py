"""Where each buffer of each layer lies inside a page.

A page holds one block of `tokens_per_block` tokens, or one sequence's state, for all layers of a
cache group: layer by layer, and inside a layer its buffers, in the order listed by `layer_buffers`
and `state_buffers`. An `interleaved` pool
keeps each page in one piece, so a buffer of page p starts at `p * page_bytes + offset_bytes`. A
`per_layer` pool keeps each layer's part of all pages in one piece, as engines do that allocate a
tensor per layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Literal, get_args

from tandemkv.errors import PoolError
from tandemkv.geometry.layers import Layer

KvLayout = Literal["NHD", "HND"]
KV_LAYOUTS: tuple[str, ...] = get_args(KvLayout)
Arrangement = Literal["interleaved", "per_layer"]
ARRANGEMENTS: tuple[str, ...] = get_args(Arrangement)

# Bytes of one stored element; `packed` is two 4-bit values per byte, `raw` has no dtype.
_ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "packed": 1, "raw": 1}
_NVFP4_GROUP = 16  # elements that share one fp8 scale


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One buffer of one layer inside a page.

    Attributes:
        layer: number of the layer on this rank, from 0.
        name: what it holds: `key`, `value`, `latent`, their `..._scales`, the name of a side
            buffer, or that of a state's tensor.
        dtype: `bf16`, `fp16`, `fp32`, `fp8`, `packed` (two nvfp4 elements per byte) or `raw`.
        shape: of one page. Heads: `(tokens, heads, dim)` for NHD, `(heads, tokens, dim)` for HND;
            else `(tokens, dim)`. A state: `(units, elements)`, or `(elements,)` where some of them
            belong to no unit.
        offset_bytes: where it starts in the page.
        token_axis: which dimension of `shape` counts tokens; None in a state, which has none.
    """

    layer: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    token_axis: int | None = 0

    @property
    def item_bytes(self) -> int:
        """Bytes of one stored element."""
        return _ITEM_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        """Bytes of this buffer in one page."""
        return prod(self.shape) * self.item_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "layer": self.layer,
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "offset_bytes": self.offset_bytes,
        }


@dataclass(frozen=True)
class PageLayout:
    """The buffers of a page, in byte order, and its size; see `page_layout`."""

    buffers: tuple[BufferSpec, ...]
    page_bytes: int
    tokens_per_block: int
    arrangement: Arrangement = "interleaved"

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The numbers of its layers on this rank, in byte order."""
        return tuple(dict.fromkeys(spec.layer for spec in self.buffers))

    @property
    def holds_states(self) -> bool:
        """Whether a page holds one sequence's states, and not tokens."""
        return self.buffers[0].token_axis is None

    def page_stride_bytes(self, layer: int) -> int:
        """Return the distance of a layer's buffers from page to page in a pool."""
        if self.arrangement == "interleaved":
            return self.page_bytes
        return sum(spec.num_bytes for spec in self.buffers if spec.layer == layer)

    def start_bytes(self, spec: BufferSpec, num_pages: int) -> int:
        """Return where a buffer of page 0 starts in a pool of `num_pages` pages."""
        if self.arrangement == "interleaved":
            return spec.offset_bytes
        first = min(other.offset_bytes for other in self.buffers if other.layer == spec.layer)
        return first * num_pages + spec.offset_bytes - first

    def find(self, layer: int, name: str) -> BufferSpec:
        """Return the buffer `name` of `layer`.

        Raises:
            PoolError: no such layer or buffer; the message lists what there is.
        """
        for spec in self.buffers:
            if spec.layer == layer and spec.name == name:
                return spec
        raise PoolError(
            f"layer {layer} has no buffer {name!r}; it has {', '.join(self.names(layer))}"
        )

    def names(self, layer: int) -> tuple[str, ...]:
        """Return the buffer names of `layer`, in byte order.

        Raises:
            PoolError: `layer` is not one of `layers`.
        """
        if isinstance(layer, bool) or layer not in self.layers:
            here = ", ".join(map(str, self.layers))
            raise PoolError(f"layer is {layer!r}; the pool holds layers {here}")
        return tuple(spec.name for spec in self.buffers if spec.layer == layer)


def page_layout(
    layers: Sequence[Layer],
    *,
    tp_size: int,
    tokens_per_block: int,
    kv_layout: KvLayout = "NHD",
    arrangement: Arrangement = "interleaved",
    numbers: Sequence[int] | None = None,
) -> PageLayout:
    """Lay out a page of `tokens_per_block` tokens, or of one sequence's states, of `layers`.

    The size of each layer is compared with what the planner charges for it,
    `Layer.bytes_per_token` or `Layer.state_bytes`, so that a pool cannot differ from its plan.

    Args:
        layers: the parts of layers of one cache group on one rank, in order: all with tokens, or
            all states.
        tp_size: width of the attention group, >= 1.
        tokens_per_block: tokens of a page, >= 1.
        kv_layout: order inside a key or value buffer, tokens first (`NHD`) or heads first (`HND`).
        arrangement: order in a pool: page by page (`interleaved`) or layer by layer (`per_layer`).
        numbers: the layers' numbers on this rank; None: 0, 1, 2 ...

    Raises:
        PoolError: an unknown `kv_layout` or `arrangement`; a layer that keeps nothing, or something
            beside it (give its parts); states beside layers with tokens; a layer whose buffers do
            not add up to its planned bytes; or a buffer that starts at an odd byte for its dtype.
    """
    if kv_layout not in KV_LAYOUTS:
        raise PoolError(f"kv_layout is {kv_layout!r}; supported: {', '.join(KV_LAYOUTS)}")
    if arrangement not in ARRANGEMENTS:
        raise PoolError(f"arrangement is {arrangement!r}; supported: {', '.join(ARRANGEMENTS)}")
    buffers: list[BufferSpec] = []
    offset = 0
    for index, layer in zip(
        range(len(layers)) if numbers is None else numbers, layers, strict=True
    ):
        if layer.kind == "none" or layer.beside:
            raise PoolError(
                f"layer {index} of kind {layer.kind!r} keeps nothing, or something beside it; "
                "pools hold the parts of layers"
            )
        if (layer.kind == "state") != (layers[0].kind == "state"):
            raise PoolError(f"layer {index} of kind {layer.kind!r}: states have pools of their own")
        start = offset
        for name, dtype, shape, token_axis in _page_buffers(
            layer, tp_size, tokens_per_block, kv_layout
        ):
            spec = BufferSpec(index, name, dtype, shape, offset, token_axis)
            if offset % spec.item_bytes:
                raise PoolError(
                    f"layer {index}: buffer {name!r} starts at byte {offset} of the page, which is "
                    f"not a multiple of the {spec.item_bytes} bytes of {dtype}"
                )
            buffers.append(spec)
            offset += spec.num_bytes
        planned = (
            layer.state_bytes(tp_size)
            if layer.kind == "state"
            else layer.bytes_per_token(tp_size) * tokens_per_block
        )
        if offset - start != planned:
            raise PoolError(
                f"layer {index}: its buffers take {offset - start} bytes of a page, the plan has "
                f"{planned}"
            )
    return PageLayout(tuple(buffers), offset, tokens_per_block, arrangement)


def _page_buffers(
    layer: Layer, tp_size: int, tokens: int, kv_layout: KvLayout
) -> Iterator[tuple[str, str, tuple[int, ...], int | None]]:
    """Yield `(name, dtype, shape of one page, token axis)` for each buffer of a layer."""
    if layer.kind == "state":
        for name, dtype, shape in state_buffers(layer, tp_size):
            yield name, dtype, shape, None
        return
    for name, dtype, per_token in layer_buffers(layer, tp_size):
        if kv_layout == "HND" and len(per_token) == 2:
            yield name, dtype, (per_token[0], tokens, per_token[1]), 1
        else:
            yield name, dtype, (tokens, *per_token), 0


def state_buffers(layer: Layer, tp_size: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield `(name, dtype, shape)` for each tensor that a rank keeps of a layer's state.

    A rank holds `ceil(split_units / tp_size)` whole units, and all replicated elements.
    """
    for buffer in layer.state_buffers:
        units = -(-buffer.split_units // tp_size)
        if buffer.replicated_elements:
            yield (
                buffer.name,
                buffer.dtype,
                (units * buffer.unit_elements + buffer.replicated_elements,),
            )
        else:
            yield buffer.name, buffer.dtype, (units, buffer.unit_elements)


def layer_buffers(layer: Layer, tp_size: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield `(name, dtype, shape of one token)` for each buffer that a rank keeps of a layer.

    A rank holds `ceil(num_kv_heads / tp_size)` whole heads, and all of a latent and of the side
    buffers. nvfp4 keeps two elements per byte and one fp8 scale per 16 elements.

    Raises:
        PoolError: nvfp4 with a head size that is not a multiple of 16, so that scale groups would
            cross heads; or a layer that keeps no tokens of its own.
    """
    if layer.kind in ("attention", "cross_attention"):
        assert layer.num_kv_heads is not None
        assert layer.head_dim is not None
        heads = -(-layer.num_kv_heads // tp_size)
        yield from _tensor(layer, "key", (heads, layer.head_dim))
        if not layer.shared_kv:
            yield from _tensor(layer, "value", (heads, layer.v_head_dim or layer.head_dim))
    elif layer.kind == "mla":
        assert layer.kv_lora_rank is not None
        assert layer.qk_rope_head_dim is not None
        yield from _tensor(layer, "latent", (layer.kv_lora_rank + layer.qk_rope_head_dim,))
    else:
        raise PoolError(f"a layer of kind {layer.kind!r} has no pages of tokens")
    for side in layer.side_buffers:
        yield side.name, "raw", (side.bytes_per_token,)


def _tensor(
    layer: Layer, name: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    assert layer.kv_dtype is not None
    if layer.kv_dtype != "nvfp4":
        yield name, layer.kv_dtype, shape
        return
    *outer, dim = shape
    if dim % _NVFP4_GROUP:
        raise PoolError(
            f"{name} has {dim} elements in a row; nvfp4 pools need a multiple of {_NVFP4_GROUP}"
        )
    yield name, "packed", (*outer, dim // 2)
    yield f"{name}_scales", "fp8", (*outer, dim // _NVFP4_GROUP)

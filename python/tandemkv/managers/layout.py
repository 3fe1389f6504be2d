"""Where each buffer of each layer lies inside a page.

A page holds one block of `tokens_per_block` tokens for all layers of a role on a rank: layer by
layer, and inside a layer its buffers, in the order listed by `layer_buffers`. An `interleaved` pool
keeps each page in one piece, so a buffer of page p starts at `p * page_bytes + offset_bytes`. A
`per_layer` pool keeps each layer's part of all pages in one piece, as engines do that allocate a
tensor per layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
        layer: index of the layer on this rank, from 0.
        name: what it holds: `key`, `value`, `latent`, their `..._scales`, or a side buffer's name.
        dtype: `bf16`, `fp16`, `fp32`, `fp8`, `packed` (two nvfp4 elements per byte) or `raw`.
        shape: of one page. Heads: `(tokens, heads, dim)` for NHD, `(heads, tokens, dim)` for HND;
            else `(tokens, dim)`.
        offset_bytes: where it starts in the page.
        token_axis: which dimension of `shape` counts tokens.
    """

    layer: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    token_axis: int = 0

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


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The buffers of a page, in byte order, and its size; see `page_layout`."""

    buffers: tuple[BufferSpec, ...]
    page_bytes: int
    tokens_per_block: int
    num_layers: int
    arrangement: Arrangement = "interleaved"

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
            PoolError: `layer` is not in `0 .. num_layers`.
        """
        if not isinstance(layer, int) or not 0 <= layer < self.num_layers:
            raise PoolError(f"layer is {layer!r}; layers 0 to {self.num_layers - 1} are here")
        return tuple(spec.name for spec in self.buffers if spec.layer == layer)


def page_layout(
    layers: Sequence[Layer],
    *,
    tp_size: int,
    tokens_per_block: int,
    kv_layout: KvLayout = "NHD",
    arrangement: Arrangement = "interleaved",
) -> PageLayout:
    """Lay out a page of `tokens_per_block` tokens of `layers`.

    The size of each layer is compared with what the planner charges for it,
    `Layer.bytes_per_token`, so that a pool cannot differ from its plan.

    Args:
        layers: the layers of one role on one rank, in order.
        tp_size: width of the attention group, >= 1.
        tokens_per_block: tokens of a page, >= 1.
        kv_layout: order inside a key or value buffer, tokens first (`NHD`) or heads first (`HND`).
        arrangement: order in a pool: page by page (`interleaved`) or layer by layer (`per_layer`).

    Raises:
        PoolError: an unknown `kv_layout` or `arrangement`; a layer that does not keep every token,
            or keeps more than its own keys and values; a layer whose buffers do not add up to its
            planned bytes; or a buffer that starts at an odd byte for its dtype.
    """
    if kv_layout not in KV_LAYOUTS:
        raise PoolError(f"kv_layout is {kv_layout!r}; supported: {', '.join(KV_LAYOUTS)}")
    if arrangement not in ARRANGEMENTS:
        raise PoolError(f"arrangement is {arrangement!r}; supported: {', '.join(ARRANGEMENTS)}")
    buffers: list[BufferSpec] = []
    offset = 0
    for index, layer in enumerate(layers):
        if not layer.keeps_all_tokens or layer.shared_kv or layer.beside:
            raise PoolError(
                f"layer {index} of kind {layer.kind!r} is not full attention with keys and values, "
                "or a latent, alone; pools hold only those"
            )
        start = offset
        for name, dtype, per_token in layer_buffers(layer, tp_size):
            shape = _page_shape(per_token, tokens_per_block, kv_layout)
            heads_first = kv_layout == "HND" and len(per_token) == 2
            spec = BufferSpec(index, name, dtype, shape, offset, int(heads_first))
            if offset % spec.item_bytes:
                raise PoolError(
                    f"layer {index}: buffer {name!r} starts at byte {offset} of the page, which is "
                    f"not a multiple of the {spec.item_bytes} bytes of {dtype}"
                )
            buffers.append(spec)
            offset += spec.num_bytes
        planned = layer.bytes_per_token(tp_size) * tokens_per_block
        if offset - start != planned:
            raise PoolError(
                f"layer {index}: its buffers take {offset - start} bytes of a page, the plan has "
                f"{planned}"
            )
    return PageLayout(tuple(buffers), offset, tokens_per_block, len(layers), arrangement)


def _page_shape(per_token: tuple[int, ...], tokens: int, kv_layout: KvLayout) -> tuple[int, ...]:
    if kv_layout == "HND" and len(per_token) == 2:
        return (per_token[0], tokens, per_token[1])
    return (tokens, *per_token)


def layer_buffers(layer: Layer, tp_size: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield `(name, dtype, shape of one token)` for each buffer that a rank keeps of a layer.

    A rank holds `ceil(num_kv_heads / tp_size)` whole heads, and all of a latent and of the side
    buffers. nvfp4 keeps two elements per byte and one fp8 scale per 16 elements.

    Raises:
        PoolError: nvfp4 with a head size that is not a multiple of 16, so that scale groups would
            cross heads; or a layer that keeps no tokens of its own.
    """
    if layer.kind == "attention":
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

"""The memory behind the pages: one contiguous buffer per cache group, of the planned size."""

from __future__ import annotations

from math import prod
from typing import Any

from tandemkv.device import PageSegment
from tandemkv.errors import PoolError
from tandemkv.managers.layout import BufferSpec, PageLayout
from tandemkv.managers.memory import Backend, memory_of

# Kernels index buffers of a page with int32: page * buffers per page + buffer.
_MAX_KERNEL_INDEX = 2**31 - 1


class Pool:
    """The pages of one cache group on one rank, in one contiguous buffer.

    Page 0 is the reserved page: zero when built, owned by no sequence.

    Args:
        layout: where each buffer lies in a page.
        num_pages: pages, the reserved page 0 included.
        planned_bytes: what the plan gives this pool.
        class_index: the ledger's class whose pages these are.
        backend: `numpy`, `torch` or `cupy`; None for NumPy on the CPU and CuPy on a GPU.
        device: where it lies: `cpu` or `cuda:N`.
        materialize: False keeps the bookkeeping and allocates nothing.

    Raises:
        PoolError: the pages do not add up to `planned_bytes`; an index of the pool would not fit
            the 32-bit indices of kernels; an unknown backend, or one that does not serve the
            device, or torch is not installed.
        DeviceUnavailableError: a GPU that is not there.
    """

    def __init__(
        self,
        layout: PageLayout,
        *,
        num_pages: int,
        planned_bytes: int,
        class_index: int = 0,
        backend: Backend | None = None,
        device: str = "cpu",
        materialize: bool = True,
    ) -> None:
        num_bytes = layout.page_bytes * num_pages
        if num_bytes != planned_bytes:
            raise PoolError(
                f"{num_pages} pages of {layout.page_bytes} bytes are {num_bytes} bytes; the plan "
                f"has {planned_bytes}"
            )
        _check_index_range(layout, num_pages)
        self._layout = layout
        self._num_pages = num_pages
        self._class_index = class_index
        self._device = device
        self._buffer: Any = None
        self._backend: Backend | None = backend
        if materialize:
            self._backend, self._memory = memory_of(backend, device)
            self._buffer = self._memory.zeros(num_bytes)
            if self._buffer.nbytes != planned_bytes:
                raise PoolError(
                    f"the pool took {self._buffer.nbytes} bytes; the plan has {planned_bytes}"
                )

    def __repr__(self) -> str:
        state = f"{self._backend} on {self._device}" if self.materialized else "bookkeeping only"
        return f"Pool({self.num_pages} pages of {self.page_bytes} bytes, {state})"

    @property
    def layout(self) -> PageLayout:
        """Where each buffer lies in a page."""
        return self._layout

    @property
    def num_pages(self) -> int:
        """Pages, the reserved page 0 included."""
        return self._num_pages

    @property
    def class_index(self) -> int:
        """The ledger's class whose pages these are."""
        return self._class_index

    @property
    def page_bytes(self) -> int:
        """Bytes of one page; the stride between pages."""
        return self._layout.page_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages, allocated or not."""
        return self._layout.page_bytes * self._num_pages

    @property
    def backend(self) -> Backend | None:
        """What holds the buffer; None where nothing does and none was named."""
        return self._backend

    @property
    def device(self) -> str:
        """Where it lies, or would lie: `cpu` or `cuda:N`."""
        return self._device

    @property
    def materialized(self) -> bool:
        """Whether there is a buffer."""
        return self._buffer is not None

    @property
    def buffer(self) -> Any:
        """All bytes, uint8 `[num_pages * page_bytes]`, an array or tensor of the backend.

        Raises:
            PoolError: the pool was built with `materialize=False`.
        """
        if self._buffer is None:
            raise PoolError("the pool holds no memory: it was built with materialize=False")
        return self._buffer

    @property
    def pages(self) -> Any:
        """The bytes by page, uint8 `[num_pages, page_bytes]`, without a copy.

        Raises:
            PoolError: a `per_layer` pool, which has no page in one piece, or one without memory.
        """
        if self._layout.arrangement != "interleaved":
            raise PoolError("a per_layer pool keeps no page in one piece; use view()")
        return self.buffer.reshape(self._num_pages, self.page_bytes)

    def view(self, layer: int, name: str) -> Any:
        """Return one buffer of one layer in all pages, without a copy.

        Shape `(num_pages, *BufferSpec.shape)`; the stride between pages is `page_bytes`, or that
        of the layer's part alone in a `per_layer` pool. bf16, fp8 and packed nvfp4 are their bits
        (uint16, uint8) in NumPy and CuPy; torch has bf16 and fp8.

        Raises:
            PoolError: no such layer or buffer, or the pool holds no memory.
        """
        return self._strided(self._layout.find(layer, name), 1)

    def kv(self, layer: int) -> Any:
        """Return keys and values of one attention layer as one array.

        Shape `(num_pages, 2, *shape of one page)`: the form that FlashInfer and similar kernels
        read. Only for layers whose keys and values lie side by side in equal shapes.

        Raises:
            PoolError: the layer keeps no such pair, or the pool holds no memory.
        """
        names = self._layout.names(layer)
        if names[:2] != ("key", "value"):
            raise PoolError(f"layer {layer} keeps {', '.join(names)}, not a key beside a value")
        key, value = (self._layout.find(layer, name) for name in names[:2])
        if key.shape != value.shape:
            raise PoolError(
                f"layer {layer}: a key page is {key.shape}, a value page {value.shape}; use view()"
            )
        return self._strided(key, 2)

    def _strided(self, spec: BufferSpec, count: int) -> Any:
        """Return `count` buffers that follow each other from `spec` on, in all pages."""
        self.buffer  # noqa: B018 - raises where there is no memory
        shape = (self._num_pages, *((count,) if count > 1 else ()), *spec.shape)
        inner = [spec.item_bytes]
        for size in reversed(shape[2:]):
            inner.insert(0, inner[0] * size)
        strides = (self._layout.page_stride_bytes(spec.layer), *inner)
        start = self._layout.start_bytes(spec, self._num_pages)
        return self._memory.typed(self.buffer, spec.dtype, shape, strides, start)

    def segments(self) -> list[PageSegment]:
        """Return the pool's buffers as what page moves copy, in byte order.

        A tensor of a state is one row of one unit: a move copies it whole.

        Raises:
            PoolError: the pool holds no memory.
        """
        segments = []
        for spec in self._layout.buffers:
            # A state is as one token of everything: moves of its class copy one.
            shape, axis = (spec.shape, spec.token_axis) if spec.token_axis is not None else (
                (1, *spec.shape),
                0,
            )  # fmt: skip
            segments.append(
                PageSegment(
                    memory=self.buffer,
                    offset_bytes=self._layout.start_bytes(spec, self._num_pages),
                    page_stride_bytes=self._layout.page_stride_bytes(spec.layer),
                    num_rows=prod(shape[:axis]),
                    row_stride_bytes=prod(shape[axis:]) * spec.item_bytes,
                    token_bytes=prod(shape[axis + 1 :]) * spec.item_bytes,
                    tokens_per_block=shape[axis],
                    num_pages=self._num_pages,
                    class_index=self._class_index,
                )
            )
        return segments


def _check_index_range(layout: PageLayout, num_pages: int) -> None:
    """Refuse a pool of more buffers than kernels can index.

    Raises:
        PoolError: names the size.
    """
    for spec in layout.buffers:
        stride = layout.page_stride_bytes(spec.layer)
        if num_pages * stride // spec.num_bytes - 1 > _MAX_KERNEL_INDEX:
            raise PoolError(
                f"{num_pages} pages of {stride} bytes hold {num_pages * stride // spec.num_bytes} "
                f"buffers of {spec.num_bytes} bytes; kernels index at most {_MAX_KERNEL_INDEX + 1}"
            )

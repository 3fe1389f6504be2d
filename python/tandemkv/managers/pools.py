"""The memory behind the pages: one contiguous buffer per role, of exactly the planned size."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import DeviceUnavailableError, PoolError
from tandemkv.managers.layout import BufferSpec, PageLayout

Backend = Literal["numpy", "torch"]
BACKENDS: tuple[str, ...] = get_args(Backend)

# Kernels index buffers of a page with int32: page * buffers per page + buffer.
_MAX_KERNEL_INDEX = 2**31 - 1

# bf16, fp8 and packed values have no NumPy dtype: they appear as their bits.
_NUMPY_DTYPES: dict[str, Any] = {
    "bf16": np.uint16,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp8": np.uint8,
    "packed": np.uint8,
    "raw": np.uint8,
}
_TORCH_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "packed": "uint8",
    "raw": "uint8",
}


def check_device(device: str, *, materialize: bool) -> None:
    """Refuse a device on which pools cannot be built.

    Bookkeeping without buffers (`materialize=False`) needs no device, so any well-formed name is
    taken: the engine owns the memory then.

    Raises:
        PoolError: `device` is neither `cpu` nor `cuda:N`.
        DeviceUnavailableError: pools on a CUDA device; the message says what is missing.
    """
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda:\d+", device):
        raise PoolError(f"device is {device!r}; supported: 'cpu', 'cuda:N'")
    if device == "cpu" or not materialize:
        return
    raise DeviceUnavailableError(
        f"pools on device {device!r} cannot be built: {_missing_for_cuda(device)}; "
        "use device='cpu', or materialize=False where the engine allocates them"
    )


def _missing_for_cuda(device: str) -> str:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return "CuPy is not installed (extras cuda12, cuda13)"
    if not cupy.cuda.is_available():
        return "CuPy finds no CUDA device"
    count = cupy.cuda.runtime.getDeviceCount()
    if int(device.removeprefix("cuda:")) >= count:
        return f"there are {count} CUDA devices"
    return "this version builds pools in CPU memory only"


class Pool:
    """The pages of one role on one rank, in one contiguous buffer.

    Page 0 is the reserved page: zero when built, owned by no sequence.

    Args:
        layout: where each buffer lies in a page.
        num_pages: pages, the reserved page 0 included.
        planned_bytes: what the plan gives this pool.
        backend: `numpy`, or `torch` where torch is installed.
        materialize: False keeps the bookkeeping and allocates nothing.

    Raises:
        PoolError: the pages do not add up to `planned_bytes`; an index of the pool would not fit
            the 32-bit indices of kernels; an unknown backend, or torch is not installed.
    """

    def __init__(
        self,
        layout: PageLayout,
        *,
        num_pages: int,
        planned_bytes: int,
        backend: Backend = "numpy",
        materialize: bool = True,
    ) -> None:
        if backend not in BACKENDS:
            raise PoolError(f"backend is {backend!r}; supported: {', '.join(BACKENDS)}")
        num_bytes = layout.page_bytes * num_pages
        if num_bytes != planned_bytes:
            raise PoolError(
                f"{num_pages} pages of {layout.page_bytes} bytes are {num_bytes} bytes; the plan "
                f"has {planned_bytes}"
            )
        smallest = min((spec.num_bytes for spec in layout.buffers), default=layout.page_bytes)
        if smallest and num_bytes // smallest - 1 > _MAX_KERNEL_INDEX:
            raise PoolError(
                f"{num_pages} pages of {layout.page_bytes} bytes hold {num_bytes // smallest} "
                f"buffers of {smallest} bytes; kernels index at most {_MAX_KERNEL_INDEX + 1}"
            )
        self._layout = layout
        self._num_pages = num_pages
        self._backend: Backend = backend
        self._torch = _import_torch() if backend == "torch" else None
        self._buffer: Any = None
        if materialize:
            self._buffer = self._allocate(num_bytes)
            if self._buffer.nbytes != planned_bytes:
                raise PoolError(
                    f"the pool took {self._buffer.nbytes} bytes; the plan has {planned_bytes}"
                )

    def _allocate(self, num_bytes: int) -> Any:
        if self._torch is not None:
            return self._torch.zeros(num_bytes, dtype=self._torch.uint8)
        return np.zeros(num_bytes, np.uint8)

    def __repr__(self) -> str:
        state = self._backend if self.materialized else "bookkeeping only"
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
    def page_bytes(self) -> int:
        """Bytes of one page; the stride between pages."""
        return self._layout.page_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages, allocated or not."""
        return self._layout.page_bytes * self._num_pages

    @property
    def backend(self) -> Backend:
        """What holds the buffer."""
        return self._backend

    @property
    def materialized(self) -> bool:
        """Whether there is a buffer."""
        return self._buffer is not None

    @property
    def buffer(self) -> Any:
        """All bytes, uint8 `[num_pages * page_bytes]`, a NumPy array or a torch tensor.

        Raises:
            PoolError: the pool was built with `materialize=False`.
        """
        if self._buffer is None:
            raise PoolError("the pool holds no memory: it was built with materialize=False")
        return self._buffer

    @property
    def pages(self) -> Any:
        """The bytes by page, uint8 `[num_pages, page_bytes]`, without a copy."""
        return self.buffer.reshape(self._num_pages, self.page_bytes)

    def view(self, layer: int, name: str) -> Any:
        """Return one buffer of one layer in all pages, without a copy.

        Shape `(num_pages, *BufferSpec.shape)`; the stride between pages is `page_bytes`. bf16, fp8
        and packed nvfp4 are their bits (uint16, uint8) in NumPy; torch has bf16 and fp8.

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
        shape = (self._num_pages, *((count,) if count > 1 else ()), *spec.shape)
        inner = [spec.item_bytes]
        for size in reversed(shape[2:]):
            inner.insert(0, inner[0] * size)
        strides = (self.page_bytes, *inner)
        if self._torch is None:
            dtype = _NUMPY_DTYPES[spec.dtype]
            return np.ndarray(shape, dtype, self.buffer, spec.offset_bytes, strides)
        if self.page_bytes % spec.item_bytes:
            raise PoolError(
                f"torch views of {spec.dtype} need pages of a multiple of {spec.item_bytes} bytes; "
                f"a page has {self.page_bytes}"
            )
        typed = self.buffer.view(getattr(self._torch, _TORCH_DTYPES[spec.dtype]))
        steps = [stride // spec.item_bytes for stride in strides]
        return typed.as_strided(shape, steps, spec.offset_bytes // spec.item_bytes)

    def copy_pages(self, moves: Iterable[tuple[int, int]] | NDArray[np.int32]) -> None:
        """Copy whole pages, `(source, destination)` each, in order.

        Raises:
            PoolError: a page outside the pool, or a copy onto page 0; nothing was copied.
        """
        pairs = [(int(source), int(destination)) for source, destination in moves]
        for source, destination in pairs:
            if not (0 <= source < self._num_pages and 1 <= destination < self._num_pages):
                raise PoolError(
                    f"cannot copy page {source} to page {destination} in a pool of "
                    f"{self._num_pages} pages whose page 0 is reserved"
                )
        pages = self.pages
        for source, destination in pairs:
            pages[destination] = pages[source]


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise PoolError("backend 'torch' needs torch, which is not installed") from None

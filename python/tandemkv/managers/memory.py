"""Where pools lie: NumPy arrays, torch tensors or CuPy arrays, and typed views of them.

| backend | devices | bf16 and fp8 appear as |
|---|---|---|
| `numpy` | `cpu` | their bits (uint16, uint8) |
| `torch` | `cpu`, `cuda:N` | bfloat16, float8_e4m3fn |
| `cupy` | `cuda:N` | their bits (uint16, uint8) |
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Literal, Protocol, get_args

import numpy as np

from tandemkv.device.kernels import require_cupy
from tandemkv.errors import DeviceUnavailableError, PoolError

Backend = Literal["numpy", "torch", "cupy"]
BACKENDS: tuple[str, ...] = get_args(Backend)

# bf16, fp8 and packed values have no dtype of NumPy or CuPy: they appear as their bits.
_BIT_DTYPES: dict[str, Any] = {
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


class Memory(Protocol):
    """Allocates pools of one backend on one device, and looks into them."""

    def zeros(self, num_bytes: int) -> Any:
        """Return a zeroed uint8 array of exactly `num_bytes`; it is zero when this returns."""

    def typed(
        self, buffer: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], start: int
    ) -> Any:
        """Return a view of `buffer` without a copy: strides and start are in bytes."""


def check_device(device: str, *, materialize: bool) -> None:
    """Refuse a device on which pools cannot be built.

    Bookkeeping without buffers (`materialize=False`) needs no device, so any well-formed name is
    taken: the engine owns the memory then.

    Raises:
        PoolError: `device` is neither `cpu` nor `cuda:N`.
        DeviceUnavailableError: pools on a CUDA device that is not there; the message says what is
            missing.
    """
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda:\d+", device):
        raise PoolError(f"device is {device!r}; supported: 'cpu', 'cuda:N'")
    if device == "cpu" or not materialize:
        return
    try:
        count = require_cupy().cuda.runtime.getDeviceCount()
    except DeviceUnavailableError as error:
        raise DeviceUnavailableError(
            f"pools on device {device!r} cannot be built: {error}\n"
            "hint: use device='cpu', or materialize=False where the engine allocates them"
        ) from None
    if device_number(device) >= count:
        raise DeviceUnavailableError(
            f"pools on device {device!r} cannot be built: there are {count} CUDA devices"
        )


def device_number(device: str) -> int:
    """Return N of `cuda:N`."""
    return int(device.removeprefix("cuda:"))


def memory_of(backend: Backend | None, device: str) -> tuple[Backend, Memory]:
    """Return the backend to use and what allocates for it.

    Args:
        backend: None for NumPy on the CPU and CuPy on a GPU.
        device: `cpu` or `cuda:N`.

    Raises:
        PoolError: an unknown backend, one that does not serve the device, or torch is missing.
        DeviceUnavailableError: a GPU that is not there.
    """
    on_cpu = device == "cpu"
    if backend is None:
        backend = "numpy" if on_cpu else "cupy"
    if backend not in BACKENDS:
        raise PoolError(f"backend is {backend!r}; supported: {', '.join(BACKENDS)}")
    if backend == "torch":
        return backend, TorchMemory(_import_torch(), device)
    if on_cpu != (backend == "numpy"):
        raise PoolError(
            f"backend {backend!r} cannot hold a pool on device {device!r}; supported there: "
            f"{'numpy' if on_cpu else 'cupy'}, torch"
        )
    if backend == "numpy":
        return backend, NumpyMemory()
    return backend, CupyMemory(require_cupy(), device_number(device))


class NumpyMemory:
    """Pools in CPU memory, as NumPy arrays."""

    def zeros(self, num_bytes: int) -> Any:
        """See `Memory.zeros`."""
        return np.zeros(num_bytes, np.uint8)

    def typed(
        self, buffer: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], start: int
    ) -> Any:
        """See `Memory.typed`."""
        return np.ndarray(shape, _BIT_DTYPES[dtype], buffer, start, strides)


class CupyMemory:
    """Pools on a GPU, as CuPy arrays.

    Args:
        cupy: the module.
        device: number of the GPU.
    """

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy = cupy
        self._device = device

    def zeros(self, num_bytes: int) -> Any:
        """See `Memory.zeros`."""
        with self._cupy.cuda.Device(self._device):
            buffer = self._cupy.zeros(num_bytes, np.uint8)
            # The engine's stream is another one, and not ordered after this one.
            self._cupy.cuda.get_current_stream().synchronize()
        return buffer

    def typed(
        self, buffer: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], start: int
    ) -> Any:
        """See `Memory.typed`."""
        return self._cupy.ndarray(shape, _BIT_DTYPES[dtype], buffer.data + start, strides)


class TorchMemory:
    """Pools as torch tensors.

    Args:
        torch: the module.
        device: `cpu` or `cuda:N`.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = device

    def zeros(self, num_bytes: int) -> Any:
        """See `Memory.zeros`."""
        buffer = self._torch.zeros(num_bytes, dtype=self._torch.uint8, device=self._device)
        if self._device != "cpu":
            self._torch.cuda.current_stream(self._device).synchronize()
        return buffer

    def typed(
        self, buffer: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], start: int
    ) -> Any:
        """See `Memory.typed`.

        Raises:
            PoolError: a stride or the start is not a whole number of elements.
        """
        name = _TORCH_DTYPES[dtype]
        item_bytes = getattr(self._torch, name).itemsize
        for what, size in (("pages", strides[0]), ("a start", start), ("a pool", buffer.numel())):
            if size % item_bytes:
                raise PoolError(
                    f"torch views of {dtype} need {what} of a multiple of {item_bytes} bytes, "
                    f"not {size}"
                )
        typed = buffer.view(getattr(self._torch, name))
        steps = [stride // item_bytes for stride in strides]
        return typed.as_strided(shape, steps, start // item_bytes)


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise PoolError("backend 'torch' needs torch, which is not installed") from None

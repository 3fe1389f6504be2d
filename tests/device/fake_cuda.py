"""A GPU that is not there: enough of CuPy, in CPU memory, to run the cuda backend on the CPU.

Work is queued on streams and runs when a stream is waited for, not before, so that a buffer which
is overwritten too early or work on the wrong stream shows in the results. Kernels are those of the
package, compiled for the CPU. Memory is known by its address, as on a GPU: only what was allocated
here, on the device or pinned, may be read by a kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import kernel_harness as harness
import numpy as np

from tandemkv.device import kernels
from tandemkv.device.launches import Launch

UNREGISTERED, HOST, DEVICE = 0, 1, 2


class FakeStream:
    """A queue of work, run in order when it is waited for."""

    def __init__(self, non_blocking: bool = True, *, ptr: int | None = None) -> None:
        self.ptr = id(self) if ptr is None else ptr
        self.queue: list[Callable[[], None]] = []
        FakeCuda.streams[self.ptr] = self

    def __enter__(self) -> FakeStream:
        FakeCuda.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        FakeCuda.current.pop()

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)

    def synchronize(self) -> None:
        self.run(len(self.queue))

    def run(self, count: int) -> None:
        """Run the first `count` pieces of work."""
        for _ in range(count):
            self.queue.pop(0)()

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append(event.synchronize)

    @staticmethod
    def from_external(stream: Any) -> FakeStream:
        return FakeCuda.streams[stream.__cuda_stream__()[1]]


class FakeEvent:
    """Passed once the work queued before it has run."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.done = False

    def record(self, stream: FakeStream) -> None:
        self.stream = stream
        stream.queue.append(self._pass)

    def _pass(self) -> None:
        self.done = True

    def synchronize(self) -> None:
        while not self.done:
            self.stream.run(1)


class FakePointer(int):
    """An address with the offset arithmetic of CuPy's memory pointers."""

    @property
    def ptr(self) -> int:
        return int(self)

    def __add__(self, offset: int) -> FakePointer:
        return FakePointer(int(self) + offset)


class FakeArray:
    """An array "on the GPU": NumPy cannot read it, its address can be had."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self._host = host
        self.data = FakePointer(host.ctypes.data)
        self.shape, self.dtype, self.strides = host.shape, host.dtype, host.strides
        self.nbytes = host.nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": None if self._host.flags.c_contiguous else self.strides,
            "data": (int(self.data), False),
            "version": 3,
        }

    def reshape(self, *shape: int) -> FakeArray:
        return FakeArray(self._host.reshape(*shape))

    def __getitem__(self, key: Any) -> FakeArray:
        return FakeArray(self._host[key])

    def get(self) -> np.ndarray[Any, Any]:
        """Copy it to the host; whoever calls has waited for the stream."""
        return self._host.copy()

    def set(self, values: Any) -> None:
        self._host[...] = values


class FakeCuda:
    """The module `cupy` and, as `empty_pinned`, what is used of `cupyx`."""

    current: list[FakeStream]
    streams: dict[int, FakeStream] = {}  # noqa: RUF012 (anew for each fake)

    def __init__(self, shim: harness.Shim | None) -> None:
        self._shim = shim
        self._regions: list[tuple[int, int, int]] = []
        self._kept: list[Any] = []
        self.launches: list[tuple[str, FakeStream]] = []
        self.copies = 0
        FakeCuda.streams = {}
        FakeCuda.current = [FakeStream(ptr=0)]
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            Device=self._device,
            Stream=FakeStream,
            Event=FakeEvent,
            get_current_stream=lambda: FakeCuda.current[-1],
            runtime=SimpleNamespace(
                getDeviceCount=lambda: 1,
                pointerGetAttributes=self._attributes,
                memcpyAsync=self._copy,
                memcpy2DAsync=self._copy_rows,
                hostRegister=self._register,
                hostUnregister=self._unregister,
                CUDARuntimeError=RuntimeError,
                memoryTypeUnregistered=UNREGISTERED,
                memoryTypeDevice=DEVICE,
                memcpyHostToDevice=1,
                memcpyDeviceToHost=2,
            ),
        )

    def stream(self) -> FakeStream:
        """Return a new stream, known by its address as well."""
        return FakeStream()

    def place(self, host: np.ndarray[Any, Any], kind: int) -> None:
        """Note memory that was allocated here."""
        self._kept.append(host)
        self._regions.append((host.ctypes.data, host.ctypes.data + max(host.nbytes, 1), kind))

    def zeros(self, shape: Any, dtype: Any = np.float64) -> FakeArray:
        host = np.zeros(shape, dtype)
        self.place(host, DEVICE)
        return FakeArray(host)

    def asarray(self, values: Any) -> FakeArray:
        array = self.zeros(values.shape, values.dtype)
        array.set(values)
        return array

    def ndarray(self, shape: Any, dtype: Any, memptr: FakePointer, strides: Any) -> FakeArray:
        size = np.dtype(dtype).itemsize + sum(
            (count - 1) * stride for count, stride in zip(shape, strides, strict=True)
        )
        memory = np.frombuffer((ctypes.c_uint8 * size).from_address(int(memptr)), np.uint8)
        return FakeArray(np.ndarray(shape, dtype, memory, 0, strides))

    def empty_pinned(self, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        host = np.full(shape, 99, dtype)
        self.place(host, HOST)
        return host

    def RawModule(self, code: str, options: Any) -> Any:  # noqa: N802 (CuPy's name)
        def get_function(name: str) -> Any:
            assert code == kernels.source(name)

            def run(grid: Any, block: Any, args: Any) -> None:
                stream = FakeCuda.current[-1]
                self.launches.append((name, stream))
                stream.queue.append(lambda: self._shim.launch(Launch(name, grid, block, args)))

            kernel = mock.Mock(side_effect=run)
            kernel.compile = lambda: None
            return kernel

        return SimpleNamespace(get_function=get_function)

    @contextmanager
    def _device(self, number: int) -> Iterator[None]:
        assert number == 0
        yield

    def _attributes(self, pointer: int) -> Any:
        kinds = [kind for start, end, kind in self._regions if start <= pointer < end]
        return SimpleNamespace(type=kinds[-1] if kinds else UNREGISTERED, device=0)

    def _copy(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        self._copy_rows(target, size, source, size, size, 1, kind, stream)

    def _copy_rows(  # noqa: PLR0917 (CuPy's order)
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        height: int,
        kind: int,
        stream: int,
    ) -> None:
        assert width <= min(target_pitch, source_pitch)
        ends = {1: (DEVICE, HOST), 2: (HOST, DEVICE)}[kind]
        starts = ((target, target_pitch), (source, source_pitch))
        for (start, pitch), end in zip(starts, ends, strict=True):
            assert self._attributes(start).type == end
            assert self._attributes(start + (height - 1) * pitch + width - 1).type == end
        self.copies += 1

        def run() -> None:
            for row in range(height):
                ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)

        FakeCuda.streams[stream].queue.append(run)

    def _register(self, pointer: int, size: int, flags: int) -> None:
        assert flags == 0
        self._regions.append((pointer, pointer + size, HOST))

    def _unregister(self, pointer: int) -> None:
        (region,) = [region for region in self._regions if region[0] == pointer]
        self._regions.remove(region)


@contextmanager
def installed(shim: harness.Shim | None) -> Iterator[FakeCuda]:
    """Put the fake in CuPy's place, and forget afterwards what was compiled with it."""
    fake = FakeCuda(shim)
    kernels.load.cache_clear()
    with mock.patch.dict("sys.modules", {"cupy": fake, "cupyx": fake}):
        yield fake
    kernels.load.cache_clear()

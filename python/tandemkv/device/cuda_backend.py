"""CuPy backend: the kernels of `cuda/` on the caller's stream.

Launches are asynchronous. Arrays that the kernel reads, pinned host arrays above all, must stay
unchanged until the stream has passed the launch: `ring.StagingRing` guards exactly that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tandemkv.device.arrays import ArrayView
from tandemkv.device.groups import OffsetGroups
from tandemkv.device.kernels import load, require_cupy
from tandemkv.device.launches import (
    CopyArguments,
    Launch,
    MoveArguments,
    TokenMoveArguments,
    UpdateArguments,
    copy_launch,
    move_launch,
    token_move_launch,
    update_launch,
)
from tandemkv.errors import ArrayError

if TYPE_CHECKING:
    from tandemkv.device.page_moves import PageSegments


def copy_batch_block_offsets(
    arguments: CopyArguments, groups: OffsetGroups, stream: object
) -> None:
    """Queue the copy on `stream`; see `block_offsets.copy_batch_block_offsets`."""
    device = device_of(
        arguments.destination,
        (arguments.source, arguments.copy_index, arguments.used, arguments.count),
    )
    descriptors = groups.on_device(device)
    _run(copy_launch(arguments, descriptors.data.ptr, len(groups)), device, stream)


def apply_block_table_updates(
    arguments: UpdateArguments, groups: OffsetGroups | None, stream: object
) -> None:
    """Queue the scatter on `stream`; see `block_offsets.apply_block_table_updates`."""
    written = arguments.table if arguments.destination is None else arguments.destination
    if written is None:
        raise ArrayError("destination", "a table or a destination is needed")
    device = device_of(
        written,
        (
            arguments.table,
            arguments.destination,
            arguments.records,
            arguments.count,
            arguments.row_position,
        ),
    )
    pointer = 0 if groups is None else groups.on_device(device).data.ptr
    _run(update_launch(arguments, pointer, 0 if groups is None else len(groups)), device, stream)


def apply_page_moves(arguments: MoveArguments, segments: PageSegments, stream: object) -> None:
    """Queue the copies on `stream`; see `page_moves.apply_page_moves`."""
    device = device_of(segments.memory, (*segments.pools, arguments.moves, arguments.count))
    descriptors = segments.on_device(device)
    launch = move_launch(arguments, descriptors.data.ptr, len(segments), segments.units_max)
    _run(launch, device, stream)


def apply_token_moves(
    arguments: TokenMoveArguments, segments: PageSegments, stream: object
) -> None:
    """Queue the copies on `stream`; see `token_moves.apply_token_moves`."""
    device = device_of(segments.memory, (*segments.pools, arguments.moves, arguments.chains))
    descriptors = segments.on_device(device)
    units_max = segments.token_units_max
    _run(
        token_move_launch(arguments, descriptors.data.ptr, len(segments), units_max), device, stream
    )


def as_stream(stream: object) -> Any:
    """Return the engine's stream as a CuPy stream.

    It may be a CuPy or torch stream, any object with `__cuda_stream__`, or a `cudaStream_t` as an
    int.

    Raises:
        ArrayError: `stream` is None or of another type. There is no default: work on the wrong
            stream is not ordered before the engine's kernels.
    """
    cupy = require_cupy()
    if isinstance(stream, cupy.cuda.Stream):
        return stream
    if isinstance(stream, int) and not isinstance(stream, bool):
        return cupy.cuda.Stream.from_external(_RawStream(stream))
    if not hasattr(stream, "__cuda_stream__"):
        raise ArrayError(
            "stream",
            "the cuda backend needs the engine's stream: a CuPy or torch stream, an object with "
            f"__cuda_stream__ or a cudaStream_t as an int, not {type(stream).__name__}",
        )
    return cupy.cuda.Stream.from_external(stream)


def copy_to_device(
    output: ArrayView, staged: NDArray[Any], count: int, device: int, stream: Any
) -> None:
    """Queue a copy of the first `count` items of a pinned array into `output` on a CuPy stream."""
    cupy = require_cupy()
    num_bytes = count * output.dtype.itemsize
    if num_bytes == 0:
        return
    with cupy.cuda.Device(device):
        cupy.cuda.runtime.memcpyAsync(
            output.pointer,
            staged.ctypes.data,
            num_bytes,
            cupy.cuda.runtime.memcpyHostToDevice,
            stream.ptr,
        )


class _RawStream:
    """The CUDA stream protocol around a bare `cudaStream_t`."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._pointer)


def device_of(written: ArrayView, others: tuple[ArrayView | None, ...]) -> int:
    """Return the GPU that holds the written array, after checking that it can read the others.

    Raises:
        ArrayError: one of them is in pageable host memory, or on another GPU.
        DeviceUnavailableError: there is no GPU.
    """
    runtime = require_cupy().cuda.runtime
    device = int(runtime.pointerGetAttributes(written.pointer).device)
    for array in others:
        if array is None or array.pointer == 0:
            continue
        attributes = runtime.pointerGetAttributes(array.pointer)
        if attributes.type == runtime.memoryTypeUnregistered:
            raise ArrayError(
                array.name,
                "the GPU cannot read pageable host memory\n"
                "hint: allocate it with StagingRing, cupyx.empty_pinned or torch pin_memory",
            )
        if attributes.type == runtime.memoryTypeDevice and attributes.device != device:
            raise ArrayError(
                array.name, f"it lies on GPU {attributes.device}, {written.name} on GPU {device}"
            )
    return device


def _run(launch: Launch, device: int, stream: object) -> None:
    cupy = require_cupy()
    kernel = load(launch.kernel, device)
    with cupy.cuda.Device(device), as_stream(stream):
        kernel(launch.grid, launch.block, launch.args)

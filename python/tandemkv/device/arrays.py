"""Looks at arrays of NumPy, PyTorch, CuPy and others without copying or converting them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import ArrayError


@dataclass(frozen=True, slots=True)
class ArrayView:
    """An array's memory, as a kernel sees it.

    Attributes:
        name: the argument's name, for messages.
        pointer: address of the first element.
        shape: the dimensions.
        dtype: the element type.
        contiguous: whether it is C-contiguous.
        writable: whether it may be written.
        host: the same memory as a NumPy array; None when it lives on a GPU.
        owner: the array this is a view of, kept alive by it.
    """

    name: str
    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contiguous: bool
    writable: bool
    host: NDArray[Any] | None
    owner: object


def view(name: str, array: object) -> ArrayView:
    """Return the view of a NumPy array, a torch tensor or a CUDA array interface.

    Raises:
        ArrayError: `array` is none of these.
    """
    if isinstance(array, np.ndarray):
        return _host_view(name, array, array)
    # A CPU tensor raises AttributeError for the CUDA interface, so the order of tests is safe.
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _device_view(name, array, interface)
    if getattr(getattr(array, "device", None), "type", None) == "cpu" and hasattr(array, "numpy"):
        return _host_view(name, array.numpy(), array)
    raise ArrayError(
        name,
        f"a NumPy array, a torch tensor or an array with __cuda_array_interface__ is needed, "
        f"not {type(array).__name__}",
    )


def int32_view(
    name: str, array: object, *, shape: tuple[int | None, ...], writable: bool = False
) -> ArrayView:
    """Return the view of an int32, C-contiguous array of the given shape; see `typed_view`."""
    return typed_view(name, array, np.int32, shape=shape, writable=writable)


def typed_view(
    name: str,
    array: object,
    dtype: type[np.signedinteger[Any]],
    *,
    shape: tuple[int | None, ...],
    writable: bool = False,
) -> ArrayView:
    """Return the view of a C-contiguous array of the given dtype and shape.

    Args:
        name: the argument's name, for messages.
        array: the array.
        dtype: the dtype it must have.
        shape: the size per dimension; None where any size is accepted.
        writable: whether it will be written.

    Raises:
        ArrayError: dtype, layout, a dimension or its protection differ. Nothing is converted:
            a narrowing copy would hide an index that does not fit.
    """
    result = view(name, array)
    if result.dtype != dtype:
        raise ArrayError(name, f"dtype {np.dtype(dtype)} is needed, not {result.dtype}")
    if len(result.shape) != len(shape):
        raise ArrayError(
            name,
            f"{len(shape)} dimensions are needed ({_pattern(shape)}), not shape {result.shape}",
        )
    if any(
        want is not None and want != have for want, have in zip(shape, result.shape, strict=True)
    ):
        raise ArrayError(name, f"shape {_pattern(shape)} is needed, not {result.shape}")
    if not result.contiguous:
        raise ArrayError(name, "a C-contiguous array is needed")
    if writable and not result.writable:
        raise ArrayError(name, "the array is read-only")
    return result


def _pattern(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"


def _host_view(name: str, host: NDArray[Any], owner: object) -> ArrayView:
    return ArrayView(
        name=name,
        pointer=host.ctypes.data,
        shape=host.shape,
        dtype=host.dtype,
        contiguous=host.flags.c_contiguous,
        writable=host.flags.writeable,
        host=host,
        owner=owner,
    )


def _device_view(name: str, array: object, interface: dict[str, Any]) -> ArrayView:
    pointer, read_only = interface["data"]
    shape = tuple(interface["shape"])
    dtype = np.dtype(interface["typestr"])
    return ArrayView(
        name=name,
        pointer=pointer,
        shape=shape,
        dtype=dtype,
        contiguous=_is_contiguous(shape, interface.get("strides"), dtype.itemsize),
        writable=not read_only,
        host=None,
        owner=array,
    )


def _is_contiguous(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, item_bytes: int
) -> bool:
    """Whether byte strides describe C order; the interface says None for C order."""
    if strides is None or 0 in shape:
        return True
    expected = item_bytes
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True

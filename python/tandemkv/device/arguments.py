"""Checks that the device calls share: ranges, counts and the choice of a backend."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tandemkv.device.arrays import ArrayView, int32_view
from tandemkv.device.kernels import require_cupy
from tandemkv.errors import ArrayError

Backend = Literal["auto", "cpu", "cuda"]


def check_range(name: str, values: NDArray[np.int32], lowest: int, highest: int) -> None:
    """Refuse values outside `[lowest, highest]`.

    Raises:
        ArrayError: names the first offending position and its value.
    """
    if values.size == 0 or (values.min() >= lowest and values.max() <= highest):
        return
    position = np.argwhere((values < lowest) | (values > highest))[0]
    where = int(position[0]) if len(position) == 1 else tuple(int(i) for i in position)
    raise ArrayError(name, f"{values[tuple(position)]} at {where} is outside [{lowest}, {highest}]")


def as_count(count: object | int | None, most: int) -> tuple[int, ArrayView | None]:
    """Return the most items a call can touch, and the array that holds their number, if any.

    Raises:
        ArrayError: the number exceeds `most`, or the array is not int32 [1].
    """
    if count is None:
        return most, None
    if isinstance(count, int | np.integer):
        if not 0 <= count <= most:
            raise ArrayError("count", f"{count} is outside [0, {most}]")
        return int(count), None
    return most, int32_view("count", count, shape=(1,))


def choose_backend(backend: str, written: ArrayView) -> Literal["cpu", "cuda"]:
    """Return the backend to use.

    Raises:
        ArrayError: an unknown name, or a backend that cannot write this memory.
        DeviceUnavailableError: the cuda backend was asked for and there is none.
    """
    if backend not in ("auto", "cpu", "cuda"):
        raise ArrayError("backend", f"'auto', 'cpu' or 'cuda' is needed, not {backend!r}")
    if backend == "cuda" and written.host is not None:
        require_cupy()
        raise ArrayError(written.name, "the cuda backend writes GPU memory, this is host memory")
    if backend == "cpu" and written.host is None:
        raise ArrayError(written.name, "the cpu backend writes host memory, this is on a GPU")
    return "cpu" if written.host is not None else "cuda"

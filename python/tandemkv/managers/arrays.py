"""Turning what callers hand over into arrays of one exact dtype and length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import BatchError

TOKEN_LIMIT = 2**31
"""Tokens are integers in `[0, TOKEN_LIMIT)`."""


class ArrayLike(Protocol):
    """A tensor of another library that NumPy can read."""

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Return it as a NumPy array."""


Ints: TypeAlias = Sequence[int] | NDArray[np.integer[Any]] | ArrayLike
"""One-dimensional integers: an array of the named dtype, a CPU tensor, or Python ints."""


def is_array(value: object) -> bool:
    """Whether `value` is an array with a dtype of its own: NumPy, or a CPU tensor."""
    return isinstance(value, np.ndarray) or hasattr(value, "__array__")


def as_array(field: str, value: object) -> NDArray[Any]:
    """Return an array, or a tensor that NumPy can read, as an array.

    Raises:
        BatchError: a tensor on a device, of a dtype that NumPy lacks, or that needs a gradient.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BatchError(f"{field} is no array on the CPU: {error}", field=field) from None


def int_array(field: str, value: object, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """Return `value` as a one-dimensional, contiguous array of exactly `dtype`.

    An array must have that dtype already: a conversion would hide a mistake. A Python sequence of
    ints is converted.

    Raises:
        BatchError: another dtype, not one-dimensional, not integers, or out of the dtype's range.
    """
    if is_array(value):
        array = as_array(field, value)
        if array.dtype != dtype:
            raise BatchError(
                f"{field} has dtype {array.dtype}; {np.dtype(dtype)} is needed", field=field
            )
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        array = _from_sequence(field, value, dtype)
    else:
        raise BatchError(
            f"{field} is {type(value).__name__}; an array or a sequence of ints is needed",
            field=field,
        )
    if array.ndim != 1:
        raise BatchError(f"{field} has {array.ndim} dimensions; 1 is needed", field=field)
    if not array.flags.c_contiguous:
        raise BatchError(f"{field} is not contiguous", field=field)
    return array


def _from_sequence(
    field: str, value: Sequence[Any], dtype: type[np.signedinteger[Any]]
) -> NDArray[Any]:
    if len(value) == 0:
        return np.zeros(0, dtype)
    try:
        array = np.array(value)
    except ValueError:  # rows of unequal length
        array = np.zeros(0, object)
    # NumPy gives uint64 or object for ints that int64 cannot hold, bool for bools.
    if array.dtype.kind != "i":
        raise BatchError(f"{field} holds values that are not integers of 64 bits", field=field)
    limits = np.iinfo(dtype)
    low, high = int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        raise BatchError(
            f"{field} holds {low if low < limits.min else high}, outside {np.dtype(dtype)}",
            field=field,
        )
    return array.astype(dtype)


def item_array(
    field: str, value: object, dtype: type[np.signedinteger[Any]], num_items: int
) -> NDArray[Any]:
    """Return a read-only copy of `value` with one entry per item; see `int_array`.

    Raises:
        BatchError: as `int_array`, or another length.
    """
    array = int_array(field, value, dtype)
    if len(array) != num_items:
        raise BatchError(f"{field} has {len(array)} items, expected {num_items}", field=field)
    # A copy, so that the checks done once stay true when the caller reuses its buffer.
    array = array.copy()
    array.setflags(write=False)
    return array


def token_array(field: str, value: object) -> NDArray[Any]:
    """Return tokens as int32 or int64, one-dimensional; an array is not copied.

    Raises:
        BatchError: another dtype, not one-dimensional, or a token outside `[0, 2^31)`.
    """
    dtype: type[np.signedinteger[Any]] = np.int64
    if is_array(value) and as_array(field, value).dtype == np.int32:
        dtype = np.int32
    try:
        tokens = int_array(field, value, dtype)
    except BatchError as error:
        if is_array(value) and np.asarray(value).dtype not in (np.int32, np.int64):
            raise BatchError(
                f"{field} has dtype {np.asarray(value).dtype}; int32 or int64 is needed",
                field=field,
            ) from None
        raise error from None
    check_tokens(field, tokens)
    return tokens


def check_tokens(field: str, tokens: NDArray[Any]) -> None:
    """Refuse tokens outside `[0, 2^31)`.

    Raises:
        BatchError: names the first offending position and its value.
    """
    if tokens.size == 0:
        return
    if int(tokens.min()) >= 0 and int(tokens.max()) < TOKEN_LIMIT:
        return
    position = int(np.flatnonzero((tokens < 0) | (tokens >= TOKEN_LIMIT))[0])
    raise BatchError(
        f"{field}[{position}] is {int(tokens.flat[position])}; tokens are in [0, 2^31)",
        field=field,
        item=position,
    )


def offset_array(field: str, value: object, num_items: int, num_tokens: int) -> NDArray[np.int64]:
    """Return int64 offsets `[num_items + 1]` that cut `num_tokens` tokens into ranges.

    Raises:
        BatchError: another length, a first offset that is not 0, offsets that fall, or a last
            offset that is not `num_tokens`.
    """
    offsets = int_array(field, value, np.int64)
    if len(offsets) != num_items + 1:
        raise BatchError(
            f"{field} has {len(offsets)} entries, expected {num_items + 1} "
            "(one more than there are requests)",
            field=field,
        )
    if offsets[0] != 0:
        raise BatchError(f"{field}[0] is {offsets[0]}; 0 is needed", field=field)
    if offsets[-1] != num_tokens:
        raise BatchError(
            f"{field}[-1] is {offsets[-1]}, but there are {num_tokens} tokens", field=field
        )
    if num_items and (offsets[1:] < offsets[:-1]).any():
        item = int(np.flatnonzero(offsets[1:] < offsets[:-1])[0])
        raise BatchError(
            f"{field} falls from {offsets[item]} to {offsets[item + 1]} at request {item}",
            field=field,
            item=item,
        )
    return offsets


def flatten(field: str, rows: Sequence[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return `(flat tokens, offsets)` of a Python list with one token sequence per request.

    Raises:
        BatchError: a row that is no sequence of tokens.
    """
    arrays = [token_array(f"{field}[{item}]", row) for item, row in enumerate(rows)]
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    if not arrays:
        return np.zeros(0, np.int64), offsets
    return np.concatenate([array.astype(np.int64, copy=False) for array in arrays]), offsets


def publish_flags(publish: bool | Sequence[bool], num_items: int) -> NDArray[np.uint8]:
    """Return `publish` as one uint8 flag per item.

    Raises:
        BatchError: it is neither a bool nor `num_items` bools.
    """
    if isinstance(publish, bool | np.bool_):
        return np.full(num_items, publish, np.uint8)
    flags = np.asarray(publish)
    if flags.dtype != np.bool_ or flags.shape != (num_items,):
        raise BatchError(
            f"publish has dtype {flags.dtype} and shape {flags.shape}; a bool, or {num_items} "
            "bools are needed",
            field="publish",
        )
    return flags.astype(np.uint8)

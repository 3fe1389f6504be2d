"""The tokens a step produced, as `Ledger.advance` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import BatchError
from tandemkv.managers.arrays import as_array, flatten, int_array, is_array, offset_array

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)

_Accepted = tuple[NDArray[Any], NDArray[np.int32]]


def read_accepted(accepted: object, num_items: int) -> _Accepted:
    """Return the accepted tokens of n requests, packed or in rows, and how many each has.

    Three forms are taken, the bonus token always included and nothing for a prompt chunk that
    does not end its prompt:

    * `(flat tokens int32 or int64, offsets int64 [n + 1])`: packed, one request after the other.
    * `(tokens int32 or int64 [n, m], counts int32 [n])`: padded rows, as samplers leave them.
      Entries at or beyond a count are not read.
    * a list with one token sequence per request, at its cost.

    Arrays are not copied. The values of the tokens are left to the ledger, which checks all of
    them before it changes anything.

    Returns:
        Tokens `[sum(counts)]` or `[n, m]`, and counts int32 `[n]`.

    Raises:
        BatchError: another form, or a wrong dtype or length.
    """
    if isinstance(accepted, tuple) and len(accepted) == 2:
        tokens, second = accepted
        if isinstance(tokens, np.ndarray) or is_array(tokens):
            tokens = as_array("accepted: tokens", tokens)
        elif isinstance(tokens, Sequence) and not isinstance(tokens, str | bytes):
            tokens = np.asarray(tokens if len(tokens) else np.zeros(0, np.int64))
        else:
            raise BatchError(
                f"accepted: tokens are {type(tokens).__name__}; an array or a sequence of ints is "
                "needed",
                field="accepted",
            )
        # Built-in dtypes are singletons, so the common case is found without comparing.
        dtype = tokens.dtype
        if dtype is not _INT32 and dtype is not _INT64 and dtype not in (np.int32, np.int64):
            raise BatchError(
                f"accepted: tokens have dtype {dtype}; int32 or int64 is needed", field="accepted"
            )
        if not tokens.flags.c_contiguous:
            raise BatchError("accepted: tokens are not contiguous", field="accepted")
        if tokens.ndim == 2:
            return _check_rows(tokens, second, num_items)
        if tokens.ndim == 1:
            return tokens, _counts(second, num_items, len(tokens))
        raise BatchError(
            f"accepted: tokens have {tokens.ndim} dimensions; 1 (with offsets) or 2 (with counts) "
            "are needed",
            field="accepted",
        )
    if isinstance(accepted, tuple | str | bytes) or not isinstance(accepted, Sequence):
        raise BatchError(
            f"accepted is {type(accepted).__name__}; (tokens, offsets), (padded tokens, counts) "
            "or a list with one token sequence per request is needed",
            field="accepted",
        )
    if len(accepted) != num_items:
        raise BatchError(
            f"accepted has {len(accepted)} items, expected {num_items}", field="accepted"
        )
    flat, offsets = flatten("accepted", accepted)
    return flat, (offsets[1:] - offsets[:-1]).astype(np.int32)


def select(tokens: NDArray[Any], counts: NDArray[np.int32], live: NDArray[np.intp]) -> _Accepted:
    """Return the tokens and counts of the requests at the positions `live`, ascending."""
    if tokens.ndim == 2:
        return tokens[live], counts[live]
    is_live = np.zeros(len(counts), np.bool_)
    is_live[live] = True
    return tokens[np.repeat(is_live, counts)], counts[live]


def _check_rows(tokens: NDArray[Any], counts: object, num_items: int) -> _Accepted:
    if len(tokens) != num_items:
        raise BatchError(
            f"accepted: tokens have {len(tokens)} rows, expected {num_items}", field="accepted"
        )
    if not isinstance(counts, np.ndarray) or counts.dtype is not _INT32 or counts.ndim != 1:
        counts = int_array("accepted: counts", counts, np.int32)
    if len(counts) != num_items:
        raise BatchError(
            f"accepted: counts have {len(counts)} items, expected {num_items}", field="accepted"
        )
    return tokens, counts


def _counts(offsets: object, num_items: int, num_tokens: int) -> NDArray[np.int32]:
    """Return the lengths of the ranges that `offsets` cut; see `offset_array`."""
    array = int_array("accepted: offsets", offsets, np.int64)
    if len(array) == num_items + 1 and array[0] == 0 and array[-1] == num_tokens:
        counts: NDArray[np.int64] = array[1:] - array[:-1]
        # As unsigned, a negative length is larger than any other; argmax is the cheap reduction.
        unsigned = counts.view(np.uint64)
        if num_items == 0 or unsigned[unsigned.argmax()] <= num_tokens:
            return counts.astype(np.int32)
    array = offset_array("accepted: offsets", array, num_items, num_tokens)  # says what is wrong
    return (array[1:] - array[:-1]).astype(np.int32)

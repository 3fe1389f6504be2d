"""The tokens a step produced, as `Ledger.advance` reads them: padded rows and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import BatchError
from tandemkv.managers.arrays import flatten, int_array, is_array, offset_array

_Padded = tuple[NDArray[Any], NDArray[np.int32]]


def padded(accepted: object, num_items: int) -> _Padded:
    """Return `(tokens [n, m], counts int32 [n])` of the accepted tokens of n requests.

    Three forms are taken, the bonus token always included and nothing for a prompt chunk that
    does not end its prompt:

    * `(tokens int32 or int64 [n, m], counts int32 [n])`: padded rows, as samplers leave them.
      Nothing is copied. Entries at or beyond a count are not read.
    * `(flat tokens int32 or int64, offsets int64 [n + 1])`: ragged. Not copied if all ranges are
      equally long.
    * a list with one token sequence per request, at its cost.

    The values of the tokens are left to the ledger, which checks all of them before it changes
    anything.

    Raises:
        BatchError: another form, a wrong dtype or length, or counts outside `0..=m`.
    """
    if isinstance(accepted, tuple) and len(accepted) == 2:
        tokens, second = accepted
        # The common form; the ledger checks dtypes, lengths and order in memory anyway.
        is_common = isinstance(tokens, np.ndarray) and isinstance(second, np.ndarray)
        if is_common and tokens.ndim == 2 and len(tokens) == len(second) == num_items:
            return tokens, second
        if not is_array(tokens):
            tokens = np.asarray(tokens if len(tokens) else np.zeros(0, np.int64))
        tokens = np.asarray(tokens)
        if tokens.dtype not in (np.int32, np.int64):
            raise BatchError(
                f"accepted: tokens have dtype {tokens.dtype}; int32 or int64 is needed",
                field="accepted",
            )
        if tokens.ndim == 2:
            return _check_padded(tokens, second, num_items)
        if tokens.ndim != 1:
            raise BatchError(
                f"accepted: tokens have {tokens.ndim} dimensions; 1 (with offsets) or 2 (with "
                "counts) are needed",
                field="accepted",
            )
        return _pad(tokens, second, num_items)
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
    return _pad(*flatten("accepted", accepted), num_items)


def _check_padded(tokens: NDArray[Any], counts: object, num_items: int) -> _Padded:
    if len(tokens) != num_items:
        raise BatchError(
            f"accepted: tokens have {len(tokens)} rows, expected {num_items}", field="accepted"
        )
    if not tokens.flags.c_contiguous:
        raise BatchError("accepted: tokens are not contiguous", field="accepted")
    counts = int_array("accepted: counts", counts, np.int32)
    if len(counts) != num_items:
        raise BatchError(
            f"accepted: counts have {len(counts)} items, expected {num_items}", field="accepted"
        )
    return tokens, counts


def _pad(tokens: NDArray[Any], offsets: object, num_items: int) -> _Padded:
    offsets = offset_array("accepted: offsets", offsets, num_items, len(tokens))
    counts = (offsets[1:] - offsets[:-1]).astype(np.int32)
    if len(tokens) == 0:
        return np.zeros((num_items, 1), np.int32), counts
    widest = int(counts.max())
    if widest * num_items == len(tokens):  # only if every range is as long as the widest
        return np.ascontiguousarray(tokens).reshape(num_items, widest), counts
    rows = np.zeros((num_items, widest), tokens.dtype)
    rows[np.arange(widest, dtype=np.int32) < counts[:, None]] = tokens
    return rows, counts

"""What a store found on disk, told to a new ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger

Found = tuple[int, NDArray[np.uint8], NDArray[np.int32]]
"""Class, keys uint8 `[n, 32]` and pages int32 `[n]`, oldest first."""


def restore_entries(ledger: Ledger, together: Sequence[int], found: Iterable[Found]) -> int:
    """Make entries of what lies on disk; return how many.

    Args:
        ledger: a new ledger.
        together: the classes that keep all tokens, whose pages of a block lie at one number: a
            block counts only if all of them have it.
        found: what `DiskStore.entries` returned.
    """
    by_class: dict[int, dict[bytes, int]] = {}
    for class_index, keys, pages in found:
        # Of two pages of one key the newer one counts.
        newest = by_class.setdefault(class_index, {})
        for key, page in zip(keys, pages.tolist(), strict=True):
            newest.pop(key.tobytes(), None)
            newest[key.tobytes()] = page
    restored = 0
    for class_index, newest in by_class.items():
        if class_index in together and class_index != together[0]:
            continue
        others = (
            [by_class.get(other, {}) for other in together[1:]] if class_index in together else []
        )
        kept = {
            key: page
            for key, page in newest.items()
            if all(other.get(key) == page for other in others)
        }
        if kept:
            keys = np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), -1)
            numbers = np.fromiter(kept.values(), np.int32, len(kept))
            restored += ledger.restore("disk", class_index, keys.copy(), numbers)
    return restored

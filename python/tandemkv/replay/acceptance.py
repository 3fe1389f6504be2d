"""Which draft tokens a target accepts: each with one probability, up to the first rejection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import ReplayError


class Acceptance:
    """Draws accepted lengths from PCG64.

    Every decode pass takes `draft_len` draws, used or not, in the order of the passes, so a run is
    the same for the same seed and the same decisions.

    Args:
        probability: of each draft token, given that the one before was accepted; in [0, 1].
        draft_len: draft tokens per pass, >= 0.
        seed: of the generator, >= 0.

    Raises:
        ReplayError: a value is out of range.
    """

    def __init__(self, probability: float, draft_len: int, seed: int) -> None:
        if not 0.0 <= probability <= 1.0:
            raise ReplayError(f"acceptance is {probability}; must be from 0 to 1")
        if seed < 0:
            raise ReplayError(f"seed is {seed}; must be at least 0")
        self._probability = probability
        self._draft_len = draft_len
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def draw(self, passes: int) -> NDArray[np.int64]:
        """Return how many draft tokens each of `passes` passes accepts, i64[passes]."""
        if self._draft_len == 0:
            return np.zeros(passes, dtype=np.int64)
        hits = self._generator.random((passes, self._draft_len)) < self._probability
        lengths: NDArray[np.int64] = np.logical_and.accumulate(hits, axis=1).sum(axis=1)
        return lengths

"""What a class keeps of a sequence, position by position: "Lifetimes" in docs/groups.md.

Written from the definitions, not as the core computes it: a block is live if one of its positions
is.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

FULL, SLIDING, CHUNKED = "full_attention", "sliding_window", "chunked_attention"
CROSS, STATE = "cross_attention", "recurrent_state"


class Lifetime(NamedTuple):
    """A rule for how long a token is kept; `tokens` is a window, a chunk or an encoder's length."""

    name: str
    tokens: int
    sinks: int

    @property
    def is_windowed(self) -> bool:
        return self.name in {SLIDING, CHUNKED}

    def is_live(self, ordinal: int, tpb: int, history: int, lookahead: int) -> bool:
        """Tell whether a block has a position that the token after `history` tokens may read.

        `lookahead` is how many tokens a later match may back off.
        """
        position = max(history - lookahead, 0)
        if self.name == SLIDING:
            first = position + 1 - self.tokens
        else:
            first = position - position % self.tokens
        last_of_block = (ordinal + 1) * tpb - 1
        return last_of_block >= first or ordinal * tpb < self.sinks


@cache
def most_live_blocks(lifetime: Lifetime, tpb: int, lookahead: int, ahead: int) -> int:
    """Count the blocks kept at the worst history, with room for `ahead` more tokens.

    Every history is tried, up to the length after which the pattern repeats.
    """
    period = tpb if lifetime.name == SLIDING else math.lcm(lifetime.tokens, tpb)
    horizon = lifetime.tokens + lifetime.sinks + lookahead + 2 * tpb + period
    return max(
        sum(
            lifetime.is_live(ordinal, tpb, history, lookahead)
            for ordinal in range(-(-(history + ahead) // tpb))
        )
        for history in range(horizon)
    )

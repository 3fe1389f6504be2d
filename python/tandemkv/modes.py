"""What each speculative mode asks of the KV cache.

K is `max_draft_len`. The numbers follow TensorRT-LLM's KV cache manager, except where a comment
says why not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Placement = Literal["last_rank", "all_ranks", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One speculative mode.

    Attributes:
        name: the mode's name.
        placement: which pipeline ranks hold draft layers. `last_rank`: layers that read the
            target's final hidden states and are numbered after its layers. `all_ranks`: a model
            of its own, spread like one. `none`: the mode has no draft KV.
        one_engine: draft and target run in one engine, so that a sequence keeps room for the
            K - 1 tokens that the draft writes ahead (extra tokens). A separate engine rewinds and
            recomputes instead.
        lookahead: how many later prompt tokens the draft's KV at a position depends on: an int,
            or `K`. It is 0 where a draft reads tokens up to the position alone.
        parallel_masks: the draft writes K - 1 mask tokens beside its K draft tokens (PARD), so
            that a step runs 2K tokens rather than 1 + K.
        from_target_config: the draft's layers are a module of the target's checkpoint (MTP).
        module_per_token: each of the K draft tokens comes from a module of its own, with its own
            KV; otherwise the same layers are replayed.
    """

    name: str
    placement: Placement
    one_engine: bool
    lookahead: int | Literal["K"] = 0
    parallel_masks: bool = False
    from_target_config: bool = False
    module_per_token: bool = False

    @property
    def has_draft(self) -> bool:
        """Whether the mode keeps draft KV of its own."""
        return self.placement != "none"


_MODES = (
    # An EAGLE head at position i reads the token at i + 1.
    Mode(name="eagle3_one_model", placement="last_rank", one_engine=True, lookahead=1),
    Mode(
        name="mtp_one_model",
        placement="last_rank",
        one_engine=True,
        lookahead=1,
        from_target_config=True,
    ),
    # The k-th of K chained modules reads the token at i + k.
    Mode(
        name="mtp_vanilla",
        placement="last_rank",
        one_engine=True,
        lookahead="K",
        from_target_config=True,
        module_per_token=True,
    ),
    Mode(name="pard", placement="all_ranks", one_engine=True, parallel_masks=True),
    Mode(name="dflash", placement="all_ranks", one_engine=True),
    # No source says what a DSpark block reads; one token more than it needs costs one token of
    # each hit, one less would reuse wrong KV.
    Mode(name="dspark", placement="all_ranks", one_engine=True, lookahead=1),
    Mode(name="draft_target_one_model", placement="all_ranks", one_engine=True),
    # The second engine may hold an EAGLE head (1) or a plain model (0): the larger is safe.
    Mode(name="two_model", placement="all_ranks", one_engine=False, lookahead=1),
    Mode(name="ngram", placement="none", one_engine=False),
    # Suffix automaton: drafts come from the tokens seen, so there are no layers to pay for.
    Mode(name="sa", placement="none", one_engine=True),
    Mode(name="user_provided", placement="none", one_engine=False),
    # The assistant reads the target's KV and writes none.
    Mode(name="shared_kv_mtp", placement="none", one_engine=False),
)

MODES: dict[str, Mode] = {mode.name: mode for mode in _MODES}
"""Every mode by name."""

ALIASES: dict[str, str] = {"eagle3": "eagle3_one_model", "mtp": "mtp_one_model"}
"""Other names that are accepted."""

"""Bytes to tokens and back, as TensorRT-LLM's KV cache manager counts them, in exact integers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tandemkv import _core
from tandemkv.config import check_count, to_fraction
from tandemkv.errors import ConfigError
from tandemkv.sizes import MAX_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCost:
    """`Q(T) = T * full + min(T, max_num_tokens) * context + num_sequences * per_sequence`.

    The estimate of the pools from tokens alone; a plan's pools are whole pages and take a page
    more here and there.

    Attributes:
        full_bytes: bytes per token of the layers that keep every token.
        context_bytes: bytes per token in flight of the layers with a window.
        per_sequence_bytes: bytes of one sequence that do not grow with it.
        num_sequences: sequences.
        max_num_tokens: most tokens in flight.

    Raises:
        ConfigError: a field that is not an integer >= 0 of at most 63 bits.
    """

    full_bytes: int
    context_bytes: int = 0
    per_sequence_bytes: int = 0
    num_sequences: int = 0
    max_num_tokens: int = 0

    def __post_init__(self) -> None:
        for field in ("full_bytes", "context_bytes", "per_sequence_bytes"):
            _check_number(field, getattr(self, field))
        for field in ("num_sequences", "max_num_tokens"):
            check_count(field, getattr(self, field), least=0)

    @property
    def _terms(self) -> tuple[int, int, int, int, int]:
        return (
            self.full_bytes,
            self.context_bytes,
            self.per_sequence_bytes,
            self.num_sequences,
            self.max_num_tokens,
        )

    def bytes(self, tokens: int) -> int:
        """Return Q(tokens).

        Raises:
            BudgetError: beyond 64 bits.
        """
        return _core.token_bytes(self._terms, _check_number("tokens", tokens))

    def tokens(self, budget_bytes: int) -> int | None:
        """Return the most tokens with `Q(tokens) <= budget_bytes`.

        0 where not even the sequences fit, None where nothing limits the tokens.
        """
        return _core.tokens_of_bytes(self._terms, _check_number("budget_bytes", budget_bytes))

    def quota_bytes(self, max_tokens: int, max_util: Fraction | float | str = 1) -> int:
        """Return the bytes of which `max_util` holds `max_tokens` tokens: `ceil(Q / max_util)`."""
        limit = to_fraction("max_util", max_util)
        whole, _ = _core.utilization((limit.numerator, limit.denominator), self.bytes(max_tokens))
        return whole

    def usable_tokens(self, quota_bytes: int, max_util: Fraction | float | str = 1) -> int | None:
        """Return the tokens that `max_util` of a quota holds; see `tokens`."""
        limit = to_fraction("max_util", max_util)
        _, used = _core.utilization(
            (limit.numerator, limit.denominator), _check_number("quota_bytes", quota_bytes)
        )
        return self.tokens(used)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "full_bytes": self.full_bytes,
            "context_bytes": self.context_bytes,
            "per_sequence_bytes": self.per_sequence_bytes,
            "num_sequences": self.num_sequences,
            "max_num_tokens": self.max_num_tokens,
        }


def _check_number(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
        raise ConfigError(
            f"{field} is {value!r}; an integer >= 0 of at most 63 bits is needed",
            field=field,
            value=value,
        )
    return value

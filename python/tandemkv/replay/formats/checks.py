"""Checks that the JSON formats share: each names the file, the line, the field and the value."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tandemkv.errors import TraceError
from tandemkv.replay.trace import MAX_TOKENS, HashRule

MAX_TIME = 1e15
"""Largest time of a row, in either unit: sums of times, in milliseconds, stay exact enough to count
steps."""

_ID_MIN, _ID_MAX = -(1 << 63), (1 << 64) - 1


@dataclass(frozen=True)
class Row:
    """One JSON object of a trace and where it stands.

    Attributes:
        path: the file.
        line: its line; None where the file is one JSON document.
        prefix: put before field names, such as `requests[3].`.
        fields: the object.
    """

    path: Path
    line: int | None
    prefix: str
    fields: dict[str, Any]

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise the error for field `name`."""
        raise TraceError(
            self.path,
            line=self.line,
            field=self.prefix + name,
            value=self.fields.get(name),
            problem=problem,
        )

    def tokens(self, name: str, minimum: int) -> int:
        """Check and return a number of tokens."""
        value = self.fields.get(name)
        if type(value) is not int or not minimum <= value <= MAX_TOKENS:
            self.refuse(name, f"must be an integer from {minimum} to {MAX_TOKENS}")
        return value

    def time(self, name: str) -> float | None:
        """Check and return a time, None where it is missing or null."""
        value = self.fields.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 <= value <= MAX_TIME:
            self.refuse(name, f"must be a number from 0 to {MAX_TIME:.0e}")
        return float(value)

    def ids(self, name: str) -> list[int]:
        """Check and return a list of 64-bit ids, signed or unsigned."""
        values = self.fields.get(name)
        if not isinstance(values, list):
            self.refuse(name, "must be a list of 64-bit integers")
        for position, value in enumerate(values):
            if type(value) is not int or not _ID_MIN <= value <= _ID_MAX:
                raise TraceError(
                    self.path,
                    line=self.line,
                    field=f"{self.prefix}{name}[{position}]",
                    value=value,
                    problem="must be a 64-bit integer",
                )
        return values

    def check_count(
        self, name: str, ids: list[int], tokens: int, block_tokens: int, rule: HashRule
    ) -> None:
        """Refuse a list of ids whose length does not follow from the number of tokens."""
        if len(ids) != expected_ids(tokens, block_tokens, rule):
            self.refuse_count(name, ids, tokens, block_tokens, (rule,))

    def refuse_count(
        self,
        name: str,
        ids: list[int],
        tokens: int,
        block_tokens: int,
        rules: tuple[HashRule, ...],
    ) -> NoReturn:
        """Raise the error for a list of ids of a wrong length."""
        wanted = " or ".join(
            f"{expected_ids(tokens, block_tokens, rule)} (one per "
            f"{'full' if rule == 'full' else 'started'} block)"
            for rule in rules
        )
        raise TraceError(
            self.path,
            line=self.line,
            field=self.prefix + name,
            value=ids,
            problem=f"{len(ids)} ids for {tokens} tokens; blocks of {block_tokens} tokens need "
            f"{wanted}; if the trace's block is another, pass --trace-block-size",
        )


def expected_ids(tokens: int, block_tokens: int, rule: HashRule) -> int:
    """Return how many ids a text of `tokens` tokens carries."""
    return tokens // block_tokens if rule == "full" else -(-tokens // block_tokens)


def parse_object(path: Path, line: int | None, text: bytes) -> dict[str, Any]:
    """Parse one JSON object; `NaN`, infinities and repeated keys are refused.

    Raises:
        TraceError: the text is anything else.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TraceError(path, line=line, problem=f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise TraceError(path, line=line, problem="not a JSON object")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"field '{key}' appears twice")
            seen.add(key)
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")

"""A request trace as arrays: when each request arrives, how long it is and which text it holds.

Every reader in `tandemkv.replay.formats` gives a `Trace`. Ids of hash blocks are interned: each
distinct id gets a dense *number* in order of first appearance, so ids of any width stay distinct.
`Trace.text` turns a request into tokens:

* a token of a hashed block is the number of its id, repeated over the block. Two blocks with
  different ids therefore differ in every token, the first one included, whatever ledger block size
  cuts them up and wherever a lookahead looks; two blocks with the same id are equal.
* a token that no id covers (the tail of a prompt, an output) is `UNIQUE_BASE` + the request's
  index, which no other request and no id uses.

All tokens lie in `[0, 2^31)`, the range the ledger accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tandemkv.errors import ReplayError, TraceError

HashRule = Literal["full", "ceil"]
TimeUnit = Literal["ms", "s"]

UNIQUE_BASE = 1 << 30
"""Tokens below it are numbers of ids; tokens from it on belong to one request each."""

MAX_TOKENS = (1 << 31) - 1
"""Longest prompt or output: the ledger counts tokens of a request in 32 bits."""

_MS_PER_UNIT = {"ms": 1.0, "s": 1000.0}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Requests in order of arrival, ties in order of the file.

    Attributes:
        path: the file.
        format_name: `mooncake`, `hashed-jsonl`, `kv-cache-tester` or `azure`.
        block_tokens: tokens per hash block; None where the trace holds no hashes.
        hash_rule: `ceil` = one id per started block, `full` = one id per full block; None likewise.
        time_unit: unit of `times`; None where the file leaves it open.
        times: f64[n], arrival in `time_unit`, not falling.
        input_tokens: i64[n], >= 1.
        output_tokens: i64[n], >= 0.
        hashed_tokens: i64[n], how many tokens of prompt and output ids cover, from the start.
        hash_offsets: i64[n + 1], where each request's numbers begin in `hash_numbers`.
        hash_numbers: i32[...], numbers of the ids.
        distinct_ids: how many different ids the trace holds.
    """

    path: Path
    format_name: str
    block_tokens: int | None
    hash_rule: HashRule | None
    time_unit: TimeUnit | None
    times: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    hashed_tokens: NDArray[np.int64]
    hash_offsets: NDArray[np.int64]
    hash_numbers: NDArray[np.int32]
    distinct_ids: int

    def __len__(self) -> int:
        return len(self.input_tokens)

    def arrival_ms(self) -> NDArray[np.float64]:
        """Arrivals in milliseconds, f64[n].

        Raises:
            ReplayError: the file does not say whether its times are milliseconds or seconds.
        """
        if self.time_unit is None:
            raise ReplayError(
                f"{self.path}: the unit of field 'timestamp' is not known; pass --time-unit ms or s"
            )
        return self.times * _MS_PER_UNIT[self.time_unit]

    def text(self, index: int, start: int, end: int) -> NDArray[np.int32]:
        """Tokens `start .. end` of a request's prompt followed by its output, i32[end - start]."""
        tokens = np.full(end - start, UNIQUE_BASE + index, dtype=np.int32)
        hashed_end = min(end, int(self.hashed_tokens[index]))
        if self.block_tokens is not None and start < hashed_end:
            first = start // self.block_tokens
            last = -(-hashed_end // self.block_tokens)
            row = int(self.hash_offsets[index])
            numbers = self.hash_numbers[row + first : row + last]
            skipped = start - first * self.block_tokens
            expanded = np.repeat(numbers, self.block_tokens)
            tokens[: hashed_end - start] = expanded[skipped : skipped + hashed_end - start]
        return tokens

    def tokens_at(
        self, index: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Return tokens of several requests at once.

        Args:
            index: i64[n], requests.
            positions: i64[n, m], positions in the prompt followed by the output of each.

        Returns:
            i32[n, m], the same tokens that `text` gives.
        """
        unique = np.repeat((UNIQUE_BASE + index).astype(np.int32), positions.shape[1])
        tokens = unique.reshape(positions.shape)
        hashed = positions < self.hashed_tokens[index][:, None]
        if self.block_tokens is not None and hashed.any():
            places = self.hash_offsets[index][:, None] + positions // self.block_tokens
            tokens[hashed] = self.hash_numbers[places[hashed]]
        return tokens

    def check_block(self, tokens_per_block: int) -> None:
        """Check that a ledger block never spans two hash blocks.

        Raises:
            ReplayError: `tokens_per_block` does not divide the trace's hash block.
        """
        if self.block_tokens is not None and self.block_tokens % tokens_per_block != 0:
            raise ReplayError(
                f"{self.path}: tokens_per_block {tokens_per_block} does not divide the trace's "
                f"hash block of {self.block_tokens} tokens; pass a divisor as --tokens-per-block"
            )

    def distinct_blocks(self, tokens_per_block: int) -> int:
        """Full ledger blocks of all prompts, equal ones (same text from the start) counted once."""
        full = self.input_tokens // tokens_per_block
        if self.block_tokens is None:
            return int(full.sum())
        per_hash = self.block_tokens // tokens_per_block
        deepest: dict[tuple[int, int], int] = {}
        children: dict[tuple[int, int], int] = {}
        unique = 0
        for index in range(len(self)):
            hashed = min(int(self.hashed_tokens[index]), int(self.input_tokens[index]))
            covered = hashed // tokens_per_block
            unique += int(full[index]) - covered
            row, node = int(self.hash_offsets[index]), 0
            for ordinal in range(-(-covered // per_hash)):
                edge = (node, int(self.hash_numbers[row + ordinal]))
                used = min(per_hash, covered - ordinal * per_hash)
                deepest[edge] = max(deepest.get(edge, 0), used)
                node = children.setdefault(edge, len(children) + 1)
        return unique + sum(deepest.values())


@dataclass
class TraceBuilder:
    """Collects rows as a reader meets them; `build` sorts them by arrival.

    A row without a time arrives with the row before it, the first at 0: a missing time never
    shifts the others.
    """

    path: Path
    _times: list[float] = field(default_factory=list)
    _lengths: list[tuple[int, int, int]] = field(default_factory=list)
    _numbers: list[list[int]] = field(default_factory=list)
    _intern: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._times)

    def add(
        self,
        time: float | None,
        input_tokens: int,
        output_tokens: int,
        ids: Sequence[int] = (),
        hashed_tokens: int = 0,
    ) -> None:
        """Append one checked row; `ids` cover the first `hashed_tokens` tokens of its text."""
        if time is None:
            time = self._times[-1] if self._times else 0.0
        intern = self._intern
        self._numbers.append([intern.setdefault(value, len(intern)) for value in ids])
        self._times.append(time)
        self._lengths.append((input_tokens, output_tokens, hashed_tokens))

    def build(
        self,
        *,
        format_name: str,
        block_tokens: int | None,
        hash_rule: HashRule | None,
        time_unit: TimeUnit | None,
    ) -> Trace:
        """Give the trace.

        Raises:
            TraceError: the file holds no request, or more of them or of ids than tokens tell apart.
        """
        if not self._times:
            raise TraceError(self.path, problem="holds no requests")
        if max(len(self._times), len(self._intern)) > UNIQUE_BASE:
            raise TraceError(
                self.path,
                problem=f"{len(self._times)} requests with {len(self._intern)} different ids; "
                f"at most {UNIQUE_BASE} of each can be told apart",
            )
        times = np.asarray(self._times, dtype=np.float64)
        order = np.argsort(times, kind="stable")
        lengths = np.asarray(self._lengths, dtype=np.int64)[order]
        rows = [self._numbers[index] for index in order]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        flat = np.fromiter((number for row in rows for number in row), np.int32, int(offsets[-1]))
        return Trace(
            path=self.path,
            format_name=format_name,
            block_tokens=block_tokens,
            hash_rule=hash_rule,
            time_unit=time_unit,
            times=times[order],
            input_tokens=lengths[:, 0].copy(),
            output_tokens=lengths[:, 1].copy(),
            hashed_tokens=lengths[:, 2].copy(),
            hash_offsets=offsets,
            hash_numbers=flat,
            distinct_ids=len(self._intern),
        )

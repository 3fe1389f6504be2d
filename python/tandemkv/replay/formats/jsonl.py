"""Hashed JSON lines: the Mooncake traces and the traces with one id per full block.

One request per line: `timestamp`, `input_length`, `output_length`, `hash_ids`, and in some files
`hash_ids_with_output`. Other fields are ignored. The rows of the two dialects have the same fields;
what tells them apart is how many ids a row holds:

* Mooncake (FAST'25 release): one id per *started* block, times in milliseconds;
* the 16-token traces (LMCache, LLMServingSim): one id per *full* block, times in either unit.

Neither names its block size, so the caller does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tandemkv.errors import ReplayError, TraceError
from tandemkv.replay.formats.checks import Row, expected_ids, parse_object
from tandemkv.replay.trace import HashRule, TimeUnit, Trace, TraceBuilder


def read(
    path: Path,
    *,
    block_tokens: int | None,
    hash_rule: HashRule | None = None,
    time_unit: TimeUnit | None = None,
) -> Trace:
    """Read the file row by row; the first row that is wrong ends it.

    Args:
        path: the file.
        block_tokens: tokens per hash block.
        hash_rule: which lengths of `hash_ids` are right; None infers it from the rows.
        time_unit: unit of `timestamp`; None means milliseconds in the Mooncake dialect, and left
            open in the other.

    Raises:
        ReplayError: `block_tokens` is None, or rows of both dialects are in the file.
        TraceError: a row is wrong.
    """
    if block_tokens is None:
        raise ReplayError(
            f"{path}: the format does not name its hash block; pass --trace-block-size"
        )
    rule = _RuleFinder(path, block_tokens, hash_rule)
    builder = TraceBuilder(path)
    for row in _rows(path):
        time = row.time("timestamp")
        input_tokens = row.tokens("input_length", 1)
        output_tokens = row.tokens("output_length", 0)
        ids = row.ids("hash_ids")
        rule.meet(row, ids, input_tokens)
        hashed = min(input_tokens, len(ids) * block_tokens)
        if "hash_ids_with_output" in row.fields:
            rule.needs_full(row)
            whole = row.ids("hash_ids_with_output")
            total = input_tokens + output_tokens
            row.check_count("hash_ids_with_output", whole, total, block_tokens, "full")
            if whole[: len(ids)] != ids:
                row.refuse("hash_ids_with_output", "does not start with the row's hash_ids")
            ids, hashed = whole, len(whole) * block_tokens
        builder.add(time, input_tokens, output_tokens, ids, hashed)
    found = rule.found()
    if time_unit is None and found == "ceil":
        time_unit = "ms"
    return builder.build(
        format_name="mooncake" if found == "ceil" else "hashed-jsonl",
        block_tokens=block_tokens,
        hash_rule=found,
        time_unit=time_unit,
    )


class _RuleFinder:
    """Which of the two rules the rows follow; the rules still possible shrink row by row."""

    def __init__(self, path: Path, block_tokens: int, given: HashRule | None) -> None:
        self._path = path
        self._block_tokens = block_tokens
        self._given = given
        self._decided_at: dict[HashRule, int | None] = {}
        self._output_at: int | None = None

    def meet(self, row: Row, ids: list[int], tokens: int) -> None:
        """Check a row against the rules; a row that fits one rule only decides for it."""
        if self._given is not None:
            row.check_count("hash_ids", ids, tokens, self._block_tokens, self._given)
            return
        full = len(ids) == expected_ids(tokens, self._block_tokens, "full")
        ceil = len(ids) == expected_ids(tokens, self._block_tokens, "ceil")
        if not full and not ceil:
            row.refuse_count("hash_ids", ids, tokens, self._block_tokens, ("full", "ceil"))
        if full != ceil:
            rule: HashRule = "full" if full else "ceil"
            self._decided_at.setdefault(rule, row.line)
            self._refuse_both()

    def needs_full(self, row: Row) -> None:
        """Ids over outputs exist in the dialect with full blocks only."""
        if self._given == "ceil" or "ceil" in self._decided_at:
            row.refuse("hash_ids_with_output", "needs rows with one id per full block")
        self._decided_at.setdefault("full", row.line)

    def found(self) -> HashRule:
        """Return the rule; `full` where every prompt is whole blocks and both agree."""
        if self._given is not None:
            return self._given
        return "ceil" if "ceil" in self._decided_at else "full"

    def _refuse_both(self) -> None:
        if len(self._decided_at) == 2:
            raise ReplayError(
                f"{self._path}: line {self._decided_at['full']} has one id per full block of "
                f"{self._block_tokens} tokens and line {self._decided_at['ceil']} one per started "
                "block; pass --hash-ids full or ceil to say which is right, and "
                "--trace-block-size if the block is another"
            )


def _rows(path: Path) -> Iterator[Row]:
    """Yield the objects of the file, one line each; blank lines are passed over."""
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
            if text.strip():
                fields = parse_object(path, line, text)
                if "hash_ids" not in fields:
                    raise TraceError(path, line=line, field="hash_ids", problem="a row needs it")
                yield Row(path, line, "", fields)

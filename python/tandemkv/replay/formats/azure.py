"""The Azure LLM inference traces: CSV with a time, prompt tokens and generated tokens per request.

They say nothing of shared prefixes, so every prompt is a text of its own.
"""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from tandemkv.errors import ReplayError, TraceError
from tandemkv.replay.trace import MAX_TOKENS, HashRule, TimeUnit, Trace, TraceBuilder

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(
    path: Path,
    *,
    block_tokens: int | None = None,
    hash_rule: HashRule | None = None,
    time_unit: TimeUnit | None = None,
) -> Trace:
    """Read the file row by row; times count from the first row's.

    Raises:
        ReplayError: an argument describes hashes or a time unit, which the format does not have.
        TraceError: a row is wrong.
    """
    for option, value in (
        ("--trace-block-size", block_tokens),
        ("--hash-ids", hash_rule),
        ("--time-unit", time_unit),
    ):
        if value is not None:
            raise ReplayError(f"{path}: {option} {value}: an Azure trace has nothing it applies to")
    builder = TraceBuilder(path)
    origin: datetime | None = None
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = tuple(next(reader, ()))
            if header != HEADER:
                raise TraceError(
                    path,
                    line=1,
                    problem=f"header is {','.join(header)!r}; must be {','.join(HEADER)}",
                )
            for cells in reader:
                if not cells:
                    continue
                line = reader.line_num
                if len(cells) != len(HEADER):
                    raise TraceError(
                        path, line=line, problem=f"{len(cells)} fields; a row has {len(HEADER)}"
                    )
                time = _time(path, line, cells[0])
                origin = time if origin is None else origin
                builder.add(
                    _seconds_since(path, line, cells[0], time, origin),
                    _tokens(path, line, HEADER[1], cells[1], 1),
                    _tokens(path, line, HEADER[2], cells[2], 0),
                )
        except (csv.Error, UnicodeDecodeError) as error:
            raise TraceError(path, line=reader.line_num + 1, problem=str(error)) from None
    return builder.build(format_name="azure", block_tokens=None, hash_rule=None, time_unit="s")


def _time(path: Path, line: int, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(
            path,
            line=line,
            field=HEADER[0],
            value=text,
            problem="must be a date and time such as 2023-11-16 18:17:03.9799600",
        ) from None


def _seconds_since(path: Path, line: int, text: str, time: datetime, origin: datetime) -> float:
    if (time.tzinfo is None) != (origin.tzinfo is None):
        raise TraceError(
            path,
            line=line,
            field=HEADER[0],
            value=text,
            problem="must have a UTC offset if and only if the first row has one",
        )
    return (time - origin).total_seconds()


def _tokens(path: Path, line: int, name: str, text: str, minimum: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not minimum <= value <= MAX_TOKENS:
        raise TraceError(
            path,
            line=line,
            field=name,
            value=text,
            problem=f"must be an integer from {minimum} to {MAX_TOKENS}",
        )
    return value

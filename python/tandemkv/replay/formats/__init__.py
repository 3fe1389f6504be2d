"""Readers of request traces, one module per format.

jsonl            Mooncake and the 16-token traces: one hashed request per line
kv_cache_tester  coding-agent sessions: one JSON document
azure            CSV without prefix information

`read_trace` looks into the file to choose; the file's name does not matter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tandemkv.errors import ReplayError, TraceError
from tandemkv.replay.formats import azure, jsonl, kv_cache_tester
from tandemkv.replay.formats.checks import parse_object
from tandemkv.replay.trace import HashRule, TimeUnit, Trace

_HEAD_BYTES = 4096


class _Reader(Protocol):
    def __call__(
        self,
        path: Path,
        *,
        block_tokens: int | None,
        hash_rule: HashRule | None,
        time_unit: TimeUnit | None,
    ) -> Trace: ...


def read_trace(
    path: str | Path,
    *,
    trace_block_tokens: int | None = None,
    tokens_per_block: int | None = None,
    hash_rule: HashRule | None = None,
    time_unit: TimeUnit | None = None,
) -> Trace:
    """Read a trace of any known format.

    Args:
        path: the file.
        trace_block_tokens: tokens per hash block, for formats that do not name it.
        tokens_per_block: the ledger's block; serves as the hash block where that is not known
            otherwise.
        hash_rule: `ceil` = one id per started block, `full` = one per full block; None infers it.
        time_unit: unit of the file's times where the format leaves it open.

    Returns:
        The trace, its hash block checked to be a multiple of `tokens_per_block`.

    Raises:
        ReplayError: something the format leaves open was not given, or what was given contradicts
            the file.
        TraceError: the file is not a trace, or a row of it is wrong.
    """
    path = Path(path)
    if "\0" in str(path):
        raise ReplayError(f"the trace is {str(path)!r}; a file name holds no null character")
    for name, value in (
        ("trace block size", trace_block_tokens),
        ("tokens_per_block", tokens_per_block),
    ):
        if value is not None and value < 1:
            raise ReplayError(f"{name} is {value}; must be at least 1")
    try:
        reader, names_block = _choose(path)
        block = trace_block_tokens
        if block is None and not names_block:
            block = tokens_per_block
        trace = reader(path, block_tokens=block, hash_rule=hash_rule, time_unit=time_unit)
    except OSError as error:
        raise TraceError(path, problem=error.strerror or str(error)) from error
    if tokens_per_block is not None:
        trace.check_block(tokens_per_block)
    return trace


def _choose(path: Path) -> tuple[_Reader, bool]:
    """Find the reader of a file, and whether its format names the hash block or has none."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(azure.HEADER[0].encode()):
        return azure.read, True
    if not head.startswith(b"{"):
        raise TraceError(
            path,
            problem="not a trace: neither JSON objects nor a CSV header "
            f"{','.join(azure.HEADER)} at its start",
        )
    return (kv_cache_tester.read, True) if _is_session(path) else (jsonl.read, False)


def _is_session(path: Path) -> bool:
    """Tell whether the file is one JSON document with `requests`, on one line or on many."""
    with path.open("rb") as file:
        first = next((text for text in file if text.strip()), b"")
    try:
        return "requests" in parse_object(path, None, first)
    except TraceError:
        pass  # not an object on one line: perhaps one that spans the file
    try:
        return "requests" in parse_object(path, None, path.read_bytes())
    except TraceError:
        return False

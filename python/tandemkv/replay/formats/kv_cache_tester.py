"""Coding-agent sessions as kv-cache-tester records them: one JSON document per session.

`block_size` names the hash block; `requests` holds, in order, requests (`t` in seconds since the
session began, `in`, `out`, `hash_ids` with one id per full block) and sub-agent entries
(`type: "subagent"`), whose own `requests` count `t` from the entry's `t`. Ids belong to the file,
sub-agents included.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandemkv.errors import ReplayError
from tandemkv.replay.formats.checks import Row, parse_object
from tandemkv.replay.trace import HashRule, TimeUnit, Trace, TraceBuilder

_MAX_DEPTH = 32


def read(
    path: Path,
    *,
    block_tokens: int | None = None,
    hash_rule: HashRule | None = None,
    time_unit: TimeUnit | None = None,
) -> Trace:
    """Read a session, sub-agents in line with its own requests by time.

    The file says everything itself: an argument that is given must agree with it.

    Raises:
        ReplayError: an argument contradicts the file.
        TraceError: a field is wrong.
    """
    document = Row(path, None, "", parse_object(path, None, path.read_bytes()))
    block = document.tokens("block_size", 1)
    if block_tokens is not None and block_tokens != block:
        raise ReplayError(
            f"{path}: field 'block_size' is {block}, --trace-block-size is {block_tokens}"
        )
    if hash_rule == "ceil":
        raise ReplayError(f"{path}: --hash-ids ceil: this format has one id per full block")
    if time_unit == "ms":
        raise ReplayError(f"{path}: --time-unit ms: this format counts time in seconds")
    if document.fields.get("hash_id_scope", "local") not in ("local", "global"):
        document.refuse("hash_id_scope", "must be 'local' or 'global'")
    builder = TraceBuilder(path)
    for row, start in _requests(document, 0.0, 1):
        time = row.time("t")
        input_tokens = row.tokens("in", 1)
        output_tokens = row.tokens("out", 0)
        ids = row.ids("hash_ids")
        row.check_count("hash_ids", ids, input_tokens, block, "full")
        builder.add(
            None if time is None else start + time,
            input_tokens,
            output_tokens,
            ids,
            len(ids) * block,
        )
    return builder.build(
        format_name="kv-cache-tester", block_tokens=block, hash_rule="full", time_unit="s"
    )


def _requests(parent: Row, start: float, depth: int) -> Iterator[tuple[Row, float]]:
    """Yield the requests below an object, each with the time its own time counts from."""
    entries = parent.fields.get("requests")
    if not isinstance(entries, list):
        parent.refuse("requests", "must be a list of requests")
    if depth > _MAX_DEPTH:
        parent.refuse("requests", f"sub-agents nest deeper than {_MAX_DEPTH}")
    for position, entry in enumerate(entries):
        fields: Any = entry
        name = f"{parent.prefix}requests[{position}]"
        if not isinstance(fields, dict):
            parent.fields[f"requests[{position}]"] = entry
            parent.refuse(f"requests[{position}]", "must be an object")
        row = Row(parent.path, None, f"{name}.", fields)
        if fields.get("type") == "subagent":
            yield from _requests(row, start + (row.time("t") or 0.0), depth + 1)
        elif "requests" in fields:
            row.refuse("type", "an entry with requests must be of type 'subagent'")
        else:
            yield row, start

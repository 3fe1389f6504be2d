"""Readers of request traces: what they read, and what they refuse and how they say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandemkv.errors import ReplayError, TraceError
from tandemkv.replay import read_trace

TRACES = Path(__file__).parent / "data" / "traces"
MOONCAKE = TRACES / "mooncake_fast25_synthetic_trace.jsonl"
TAUBENCH = TRACES / "lmcache_agent_taubench_blk16_hashed.jsonl"
SHAREGPT = TRACES / "llmservingsim_sharegpt300_qwen3_blk16_hashed.jsonl"
SESSION = TRACES / "kv_cache_tester" / "trace_0693.json"
SESSION_WITH_AGENTS = TRACES / "kv_cache_tester" / "trace_0291.json"
AZURE = TRACES / "azure_llm_2023_code_head200.csv"


def row(**fields: Any) -> dict[str, Any]:
    """Return a Mooncake row of 20 tokens in two started blocks of 16."""
    return {"timestamp": 0, "input_length": 20, "output_length": 4, "hash_ids": [1, 2]} | fields


def write_lines(tmp_path: Path, *rows: dict[str, Any] | str) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = (item if isinstance(item, str) else json.dumps(item) for item in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_session(tmp_path: Path, *requests: Any, **fields: Any) -> Path:
    path = tmp_path / "session.json"
    document = {"id": "a", "block_size": 16, "requests": list(requests)} | fields
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


# What the files hold, as their publishers say.


def test_mooncake_release_has_its_published_size_and_means():
    trace = read_trace(MOONCAKE, trace_block_tokens=512, tokens_per_block=32)
    assert (len(trace), trace.format_name, trace.hash_rule, trace.time_unit) == (
        3993,
        "mooncake",
        "ceil",
        "ms",
    )
    assert round(trace.input_tokens.mean()) == 15325
    assert round(trace.output_tokens.mean()) == 149
    assert trace.arrival_ms()[-1] == 1022025.0


def test_sixteen_token_traces_are_recognised_by_their_row_lengths():
    taubench = read_trace(TAUBENCH, tokens_per_block=16)
    assert (len(taubench), taubench.hash_rule, taubench.block_tokens) == (471, "full", 16)
    sharegpt = read_trace(SHAREGPT, tokens_per_block=16, time_unit="s")
    assert (len(sharegpt), sharegpt.hash_rule) == (300, "full")
    assert sharegpt.arrival_ms()[0] == pytest.approx(46927.0)


def test_an_output_with_ids_is_the_start_of_the_next_turn():
    trace = read_trace(SHAREGPT, tokens_per_block=16)
    first = json.loads(SHAREGPT.read_text().splitlines()[0])
    whole = first["hash_ids_with_output"]
    end = first["input_length"] + first["output_length"]
    assert trace.hashed_tokens[0] == 16 * len(whole)
    text = trace.text(0, 0, end)
    # Ids 0, 1, 2 ... are interned in order, so the text repeats the block's number.
    assert text[: 16 * len(whole)].tolist() == [n for n in range(len(whole)) for _ in range(16)]


def test_sessions_with_sub_agents_have_the_totals_the_file_names():
    totals = json.loads(SESSION_WITH_AGENTS.read_text())["totals"]["combined_tokens"]
    trace = read_trace(SESSION_WITH_AGENTS)
    assert (trace.block_tokens, trace.time_unit, len(trace)) == (64, "s", 32)
    assert trace.input_tokens.sum() == totals["input"]
    assert trace.output_tokens.sum() == totals["output"]
    assert (np.diff(trace.times) >= 0).all()


def test_sub_agents_count_time_from_their_entry_and_share_the_files_ids(tmp_path):
    nested = {"t": 1.0, "in": 16, "out": 0, "hash_ids": [7]}
    agent = {"t": 10.0, "type": "subagent", "requests": [nested]}
    path = write_session(
        tmp_path,
        {"t": 0.0, "in": 17, "out": 1, "hash_ids": [7]},
        agent | {"requests": [agent]},
        {"t": 15.5, "in": 15, "out": 1, "hash_ids": []},
    )
    trace = read_trace(path)
    assert trace.arrival_ms().tolist() == [0.0, 15500.0, 21000.0]
    assert trace.text(0, 0, 17)[:16].tolist() == trace.text(2, 0, 16).tolist()


def test_azure_times_count_from_the_first_row():
    trace = read_trace(AZURE, tokens_per_block=16)
    assert (len(trace), trace.block_tokens) == (200, None)
    assert trace.arrival_ms()[:3] == pytest.approx([0.0, 52.0, 98.189], abs=0.01)
    assert trace.input_tokens[:3].tolist() == [4808, 3180, 110]
    assert trace.output_tokens[:3].tolist() == [10, 8, 27]
    first, second = trace.text(0, 0, 4808), trace.text(1, 0, 3180)
    assert not np.isin(first, second).any()


def test_the_file_name_does_not_matter_and_indented_json_is_read(tmp_path):
    path = tmp_path / "noname"
    path.write_text(json.dumps(json.loads(SESSION.read_text()), indent=1), encoding="utf-8")
    assert len(read_trace(path)) == len(read_trace(SESSION)) == 8


# Ids to tokens.


def test_ids_of_64_bits_stay_distinct(tmp_path):
    # Pairs that agree in their low 32 or 53 bits, or as doubles, or up to the sign bit.
    ids = [0, 1 << 32, 1 << 53, (1 << 53) + 1, (1 << 64) - 1, -1, 1 << 63, -(1 << 63), 5]
    path = write_lines(tmp_path, *(row(hash_ids=[a], input_length=1) for a in ids))
    for tokens_per_block in (1, 16):
        trace = read_trace(path, trace_block_tokens=16, tokens_per_block=tokens_per_block)
        firsts = [int(trace.text(index, 0, 1)[0]) for index in range(len(ids))]
        assert len(set(firsts)) == len(ids)
        assert 0 <= min(firsts) <= max(firsts) < 1 << 31


def test_text_is_the_same_however_it_is_cut(tmp_path):
    rows = (
        row(input_length=40, hash_ids=[8, 9, 3]),
        row(input_length=37, output_length=9, hash_ids=[8, 9, 4]),
    )
    trace = read_trace(write_lines(tmp_path, *rows), tokens_per_block=16)
    for index in range(2):
        whole = trace.text(index, 0, 46)
        for start in range(46):
            for end in range(start, 47):
                assert trace.text(index, start, end).tolist() == whole[start:end].tolist()
    assert trace.text(0, 0, 32).tolist() == trace.text(1, 0, 32).tolist()
    assert not np.isin(trace.text(0, 32, 46), trace.text(1, 32, 46)).any()


def test_tails_that_no_id_covers_belong_to_one_request(tmp_path):
    rows = [row(input_length=20, hash_ids=[1]), row(input_length=20, hash_ids=[1])]
    trace = read_trace(write_lines(tmp_path, *rows), tokens_per_block=16)
    assert trace.text(0, 0, 16).tolist() == trace.text(1, 0, 16).tolist()
    assert not np.isin(trace.text(0, 16, 24), trace.text(1, 16, 24)).any()


@pytest.mark.parametrize("path", [TAUBENCH, SHAREGPT])
@pytest.mark.parametrize("tokens_per_block", [16, 8])
def test_distinct_blocks_counts_prefixes_once(path, tokens_per_block):
    trace = read_trace(path, trace_block_tokens=16, tokens_per_block=tokens_per_block)
    nodes: dict[tuple[int, bytes], int] = {}
    for index in range(len(trace)):
        parent = 0
        full = int(trace.input_tokens[index]) // tokens_per_block
        for ordinal in range(full):
            start = ordinal * tokens_per_block
            block = trace.text(index, start, start + tokens_per_block).tobytes()
            parent = nodes.setdefault((parent, block), len(nodes) + 1)
    assert trace.distinct_blocks(tokens_per_block) == len(nodes)


# Times.


def test_missing_times_do_not_shift_the_others(tmp_path):
    first = row()
    del first["timestamp"]
    rows = [first, row(timestamp=100), row(timestamp=None), row(timestamp=200)]
    trace = read_trace(write_lines(tmp_path, *rows), tokens_per_block=16)
    assert trace.arrival_ms().tolist() == [0.0, 100.0, 100.0, 200.0]


def test_rows_are_served_by_time_and_ties_by_place(tmp_path):
    rows = [row(timestamp=time, output_length=i) for i, time in enumerate([5, 0, 5, 0])]
    trace = read_trace(write_lines(tmp_path, *rows), tokens_per_block=16)
    assert trace.output_tokens.tolist() == [1, 3, 0, 2]


def test_a_unit_that_the_format_leaves_open_is_asked_for(tmp_path):
    trace = read_trace(write_lines(tmp_path, row(hash_ids=[1])), tokens_per_block=16)
    with pytest.raises(ReplayError, match=r"trace\.jsonl: .*--time-unit ms or s"):
        trace.arrival_ms()


# What is left open and what contradicts.


def test_the_hash_block_is_asked_for(tmp_path):
    with pytest.raises(ReplayError, match=r"trace\.jsonl: .*--trace-block-size"):
        read_trace(write_lines(tmp_path, row()))


def test_the_ledgers_block_must_divide_the_hash_block():
    with pytest.raises(ReplayError, match=r"tokens_per_block 48 does not divide .* 512 tokens"):
        read_trace(MOONCAKE, trace_block_tokens=512, tokens_per_block=48)
    with pytest.raises(ReplayError, match=r"tokens_per_block 128 does not divide .* 64 tokens"):
        read_trace(SESSION, tokens_per_block=128)


def test_a_wrong_hash_block_is_refused_at_the_first_row():
    message = (
        r"mooncake.*jsonl:1: field 'hash_ids' is \[0, 1.*: 79 ids for 40160 tokens; blocks of 16 "
        r"tokens need 2510 \(one per full block\) or 2510 \(one per started block\); .*"
        "--trace-block-size"
    )
    with pytest.raises(TraceError, match=message):
        read_trace(MOONCAKE, tokens_per_block=16)


def test_rows_of_both_kinds_need_a_decision(tmp_path):
    path = write_lines(tmp_path, row(), row(input_length=16, hash_ids=[1]), row(hash_ids=[1]))
    with pytest.raises(ReplayError, match=r"line 3 has one id per full .* line 1 one per started"):
        read_trace(path, tokens_per_block=16)
    with pytest.raises(TraceError, match=r"trace\.jsonl:3: .* need 2 \(one per started block\)"):
        read_trace(path, tokens_per_block=16, hash_rule="ceil")
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: .* need 1 \(one per full block\)"):
        read_trace(path, tokens_per_block=16, hash_rule="full")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace_block_tokens": 16}, "field 'block_size' is 64, --trace-block-size is 16"),
        ({"hash_rule": "ceil"}, "--hash-ids ceil"),
        ({"time_unit": "ms"}, "--time-unit ms"),
    ],
)
def test_options_that_contradict_a_session_are_refused(options, message):
    with pytest.raises(ReplayError, match=message):
        read_trace(SESSION, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace_block_tokens": 16}, "--trace-block-size 16"),
        ({"hash_rule": "full"}, "--hash-ids full"),
        ({"time_unit": "ms"}, "--time-unit ms"),
    ],
)
def test_options_about_hashes_are_refused_for_azure(options, message):
    with pytest.raises(ReplayError, match=message):
        read_trace(AZURE, **options)


@pytest.mark.parametrize("name", ["trace_block_tokens", "tokens_per_block"])
def test_block_sizes_below_one_are_refused(name):
    with pytest.raises(ReplayError, match="is 0; must be at least 1"):
        read_trace(MOONCAKE, **{name: 0})


# Malformed rows: file, line, field, value.

BAD_ROWS = [
    (row(input_length=-3), "input_length", -3),
    (row(input_length=0), "input_length", 0),
    (row(input_length="20"), "input_length", "20"),
    (row(input_length=20.0), "input_length", 20.0),
    (row(input_length=True), "input_length", True),
    (row(input_length=1 << 31), "input_length", 1 << 31),
    (row(output_length=-1), "output_length", -1),
    (row(output_length=None), "output_length", None),
    (row(timestamp=-1), "timestamp", -1),
    (row(timestamp="0"), "timestamp", "0"),
    (row(timestamp=False), "timestamp", False),
    (row(timestamp=1e300), "timestamp", 1e300),
    (row(hash_ids={"a": 1}), "hash_ids", {"a": 1}),
    (row(hash_ids=None), "hash_ids", None),
    (row(hash_ids=[1, 2.0]), "hash_ids[1]", 2.0),
    (row(hash_ids=[1, 1 << 64]), "hash_ids[1]", 1 << 64),
    (row(hash_ids=[1, True]), "hash_ids[1]", True),
    (row(hash_ids=[1, 2, 3]), "hash_ids", [1, 2, 3]),
    (row(hash_ids=[]), "hash_ids", []),
]


@pytest.mark.parametrize(("bad", "field", "value"), BAD_ROWS)
def test_a_malformed_row_is_named(tmp_path, bad, field, value):
    path = write_lines(tmp_path, row(), "", bad, row())
    with pytest.raises(TraceError) as caught:
        read_trace(path, tokens_per_block=16)
    error = caught.value
    assert (error.path, error.line, error.field, error.value) == (path, 3, field, value)
    shown = "missing" if value is None else repr(value)
    assert str(error).startswith(f"{path}:3: field '{field}' is {shown}: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"timestamp": NaN}', "NaN is not a number"),
        ('{"timestamp": 1, "timestamp": 2}', "field 'timestamp' appears twice"),
        ('{"timestamp": 0, "input_length": 20}', "field 'hash_ids' is missing"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "not valid JSON"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path, line, message):
    path = write_lines(tmp_path, row(), line)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path, tokens_per_block=16)
    assert caught.value.line == 2


def test_a_time_that_no_float_holds_is_named(tmp_path):
    path = write_lines(tmp_path, row(timestamp=10**400))
    with pytest.raises(
        TraceError, match=r"field 'timestamp' is 1000.*must be a number from 0 to 1e"
    ):
        read_trace(path, tokens_per_block=16)


def test_twenty_tokens_with_two_ids_are_no_row_of_512_token_blocks(tmp_path):
    with pytest.raises(TraceError, match=r":1: .* 2 ids for 20 tokens; .* need 0 .* or 1 "):
        read_trace(write_lines(tmp_path, row()), trace_block_tokens=512)


def test_ids_over_the_output_are_checked(tmp_path):
    good = row(hash_ids=[1], output_length=12, hash_ids_with_output=[1, 5])
    assert read_trace(write_lines(tmp_path, good), tokens_per_block=16).hashed_tokens[0] == 32
    for ids, message in (([1], "need 2 "), ([2, 5], "does not start with the row's hash_ids")):
        path = write_lines(tmp_path, good | {"hash_ids_with_output": ids})
        with pytest.raises(TraceError, match=message) as caught:
            read_trace(path, tokens_per_block=16)
        assert (caught.value.field, caught.value.line) == ("hash_ids_with_output", 1)
    path = write_lines(tmp_path, row(), good | {"hash_ids": [1, 5]})
    with pytest.raises(TraceError, match="needs rows with one id per full block"):
        read_trace(path, tokens_per_block=16)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"t": 0.0, "in": 0, "out": 1, "hash_ids": []}, "requests[1].in"),
        ({"t": "x", "in": 1, "out": 1, "hash_ids": []}, "requests[1].t"),
        ({"t": 0.0, "in": 20, "out": 1, "hash_ids": [1, 2]}, "requests[1].hash_ids"),
        ({"t": 0.0, "in": 20, "out": 1, "hash_ids": ["1"]}, "requests[1].hash_ids[0]"),
        ({"t": 0.0, "in": 20, "hash_ids": [1]}, "requests[1].out"),
        ({"t": 0.0, "type": "subagent"}, "requests[1].requests"),
        ({"t": 0.0, "type": "subagent", "requests": [5]}, "requests[1].requests[0]"),
        ({"t": 0.0, "type": "n", "requests": []}, "requests[1].type"),
        (5, "requests[1]"),
    ],
)
def test_a_malformed_request_of_a_session_is_named_by_its_path(tmp_path, request_, field):
    good = {"t": 0.0, "in": 20, "out": 1, "hash_ids": [1]}
    path = write_session(tmp_path, good, request_)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}: field '{field}' is ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"block_size": 0}, "block_size"),
        ({"block_size": None}, "block_size"),
        ({"requests": {}}, "requests"),
        ({"hash_id_scope": "other"}, "hash_id_scope"),
    ],
)
def test_a_malformed_session_is_refused(tmp_path, fields, field):
    with pytest.raises(TraceError) as caught:
        read_trace(write_session(tmp_path, **fields))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("2023-11-16 18:17:03.97,x,1", "ContextTokens"),
        ("2023-11-16 18:17:03.97,0,1", "ContextTokens"),
        ("2023-11-16 18:17:03.97,1,-1", "GeneratedTokens"),
        ("2023-11-16 18:17:03.97,1,", "GeneratedTokens"),
        ("yesterday,1,1", "TIMESTAMP"),
        ("2023-11-16 18:17:03.97+00:00,1,1", "TIMESTAMP"),
        ("2023-11-16 18:17:03.97,1", ""),
        ("2023-11-16 18:17:03.97,1,1,1", ""),
    ],
)
def test_a_malformed_azure_row_is_named(tmp_path, line, field):
    path = tmp_path / "azure.csv"
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    path.write_text(f"{head}{line}\n", encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert (caught.value.line, caught.value.field) == (3, field)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a trace"),
        (b"hello\n", "not a trace"),
        (b"\x80\x81{}", "not a trace"),
        (b"TIMESTAMP,Tokens\n", "header is 'TIMESTAMP,Tokens'"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff", "can't decode byte 0xff"),
        (b'{"block_size": 16, "requests": []}', "holds no requests"),
        (b'{"model_type": "llama"}', "field 'hash_ids' is missing"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path, tokens_per_block=16)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"nothing\.jsonl: No such file"):
        read_trace(tmp_path / "nothing.jsonl", tokens_per_block=16)
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path, tokens_per_block=16)

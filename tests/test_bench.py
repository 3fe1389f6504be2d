"""`tandemkv.bench`: the workloads verify themselves; here is what surrounds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandemkv import _core
from tandemkv.bench import BenchmarkError, Results, Summary, run
from tandemkv.bench.measure import verify
from tandemkv.bench.report import number
from tandemkv.cli import main
from tandemkv.errors import ConfigError

# No figure is checked against a limit: the machine may be busy.
release_only = pytest.mark.skipif(_core.DEBUG_BUILD, reason="a debug build is refused")


def test_summary_of_known_samples():
    summary = Summary.of([float(value) for value in range(200, 0, -1)])
    assert (summary.count, summary.median, summary.mean) == (200, 100.5, 100.5)
    assert (summary.min, summary.max, summary.p99) == (1, 200, 199)
    assert Summary.of([3.0]) == Summary(count=1, median=3, mean=3, p99=3, min=3, max=3)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.012"), (1.236, "1.24"), (12.34, "12.3"), (12345.6, "12,346")]
)
def test_numbers_have_three_digits(value: float, text: str):
    assert number(value) == text


def test_verify_names_what_differs():
    with pytest.raises(BenchmarkError, match="blocks used: found 3, expected 4"):
        verify("blocks used", 3, 4)


def test_rows_put_the_floor_beside_the_figure():
    mean = Summary.of([4.0, 8.0])
    results = Results(
        machine={},
        quick=False,
        figures={"w4": {"target": mean, "pair": Summary.of([9.0])}, "w1": {"pair": mean}},
        floor={"w4_decode_step": 1500.0, "w1_allocate_free": 0.5},
    )
    without_target, step = results.rows()
    assert without_target[0] == "W1"
    assert without_target[3:] == ("-", "-", "6.00", "8.00", "8.00", "-", "-")
    assert step[2:] == ("us/step", "6.00", "8.00", "9.00", "9.00", "6.00", "1.50", "4.0x")


@release_only
def test_quick_run_has_both_roles(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "--quick", "--only", "W1,W4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["figures"]) == ["w1", "w4", "w4_speculative"]
    for figure in report["figures"].values():
        for role in ("target", "pair"):
            assert 0 < figure[role]["min"] <= figure[role]["median"] <= figure[role]["max"]
    assert report["quick"] is True


@release_only
def test_trace_workload_replays_a_trace(tmp_path: Path):
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]},
        {"timestamp": 1, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = run(quick=True, workloads=["W6"], trace=trace)
    assert set(results.figures) == {"w6"}
    # Prompt blocks, hit blocks, output blocks. The pair ran last: its 64 blocks of the first prompt
    # are there but for the last one, which had no lookahead.
    assert results.requests == [(64, 0, 1), (69, 63, 1)]


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match="'W9' is not known"):
        run(workloads=["W9"])
    missing = str(tmp_path / "missing.jsonl")
    assert main(["bench", "--only", "W6", "--trace", missing]) == 2
    assert "missing.jsonl" in capsys.readouterr().err
    assert main(["bench", "--core", "100000"]) == 2
    assert "core 100000" in capsys.readouterr().err


def test_a_debug_build_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_core, "DEBUG_BUILD", True)
    with pytest.raises(BenchmarkError, match="debug build"):
        run(quick=True, workloads=["W1"])

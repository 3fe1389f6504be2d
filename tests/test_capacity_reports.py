"""What real engines printed at start-up, explained by the geometry alone.

`tests/data/capacity_reports.csv` holds the KV memory of one rank and the tokens that fit in it, as
engines logged them; `expected_bytes_per_token` is the arithmetic of whoever published the log. The
tolerance is that of the print: memory is rounded to 0.01 GiB, tokens are the minimum over ranks.
"""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from tandemkv import ModelGeometry

DATA = Path(__file__).parent / "data"

with (DATA / "capacity_reports.csv").open(encoding="utf-8", newline="") as _file:
    REPORTS = {int(row["id"]): row for row in csv.DictReader(_file)}


def available_bytes(printed: str) -> int:
    number, unit = printed.split()
    assert unit == "GiB"
    return int(Fraction(number) * 2**30)


def test_the_reports_in_scope_are_all_here() -> None:
    assert set(REPORTS) == {3, 7, 23, 67, 71, 87, 89, 91}


@pytest.mark.parametrize("report_id", sorted(REPORTS))
def test_geometry_explains_what_the_engine_printed(report_id: int) -> None:
    report = REPORTS[report_id]
    geometry = ModelGeometry.from_hf(
        DATA / "configs" / f"{report['config_file']}.json", kv_dtype=report["kv_dtype"]
    )

    bytes_per_token = geometry.bytes_per_token(tp_size=int(report["tp"]))
    assert bytes_per_token == int(report["expected_bytes_per_token"])

    tokens = available_bytes(report["available"]) // bytes_per_token
    printed = int(report["tokens"])
    assert abs(tokens - printed) <= Fraction(report["tolerance"]) * printed


@pytest.mark.parametrize("report_id", [23, 67])
def test_more_ranks_than_heads_save_nothing(report_id: int) -> None:
    """4 heads on 4 ranks are one each; on 8 ranks each still keeps one whole head."""
    report = REPORTS[report_id]
    geometry = ModelGeometry.from_hf(DATA / "configs" / f"{report['config_file']}.json")
    assert geometry.bytes_per_token(tp_size=8) == geometry.bytes_per_token(tp_size=4) == 48_128


def test_an_fp8_cache_costs_half_of_the_bf16_cache_of_the_same_model() -> None:
    """Report 91 is the fp8 run of the model of report 7."""
    path = DATA / "configs" / f"{REPORTS[91]['config_file']}.json"
    fp8 = ModelGeometry.from_hf(path, kv_dtype="fp8").bytes_per_token()
    assert 2 * fp8 == ModelGeometry.from_hf(path, kv_dtype="bf16").bytes_per_token() == 147_456

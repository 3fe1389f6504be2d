"""Byte sizes as users write them."""

from __future__ import annotations

import pytest

from tandemkv.errors import ConfigError
from tandemkv.sizes import MAX_BYTES, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (42949672960, 42949672960),
        (0, 0),
        ("42949672960", 42949672960),
        ("40GiB", 42949672960),
        ("40 GiB", 42949672960),
        ("40gib", 42949672960),
        ("64GB", 64_000_000_000),
        ("1TiB", 1_099_511_627_776),
        ("1TB", 1_000_000_000_000),
        ("512kB", 512_000),
        ("512KB", 512_000),
        ("512KiB", 524_288),
        ("7B", 7),
        ("1.5GiB", 1_610_612_736),
        # vLLM prints two decimals: 5.29 * 2^30 = 5,680,094,248.96, rounded down.
        ("5.29 GiB", 5_680_094_248),
        # 0.1 GB has no exact binary form, and is exact here.
        ("0.1GB", 100_000_000),
        (MAX_BYTES, MAX_BYTES),
    ],
)
def test_a_size_is_read_exactly(text: int | str, size_bytes: int):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "GiB", "40G", "40g", "40Gi", "40XB", "4 0GiB", "40GiB/s", "-1GiB", "+1GiB"),
        *("1e9", "0x10", "1_000", "1,000", "1.5", ".5GiB", "5.GiB", "nan", "inf", "\u0664GiB"),
        *("9" * 5000, f"{'9' * 5000}GiB", f"1.{'9' * 5000}GiB"),  # Python converts 4,300 digits
        *(-1, MAX_BYTES + 1, "8EiB", "9000000000GiB", True, 1.5, None, b"1GiB", [1]),
    ],
)
def test_anything_else_is_one_error_that_names_field_and_value(text: object):
    with pytest.raises(ConfigError) as caught:
        parse_size(text, "host_cache_size")  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"host_cache_size is {text!r}; ")
    assert (caught.value.field, caught.value.value) == ("host_cache_size", text)
    assert "'40GiB'" in str(caught.value)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (42949672960, "40.00 GiB"),
        (1099511627776, "1.00 TiB"),
        (10411311104, "9.70 GiB"),
    ],
)
def test_a_size_is_printed_with_its_unit(size_bytes: int, text: str):
    assert format_size(size_bytes) == text

"""The range of kernel indices, and descriptors of groups."""

from __future__ import annotations

import pytest

from tandemkv.device import OffsetGroups, check_offset_range
from tandemkv.errors import OffsetRangeError


def test_the_largest_index_is_returned() -> None:
    # 32 layers of K and V: page 999,999 begins at buffer 63,999,936.
    assert check_offset_range(1_000_000, 64, 1) == 63_999_937


def test_the_limit_is_exact() -> None:
    """2**31 - 1 = 64 * 33,554,431 + 63."""
    assert check_offset_range(2**25, 64, 63) == 2**31 - 1
    with pytest.raises(OffsetRangeError) as caught:
        check_offset_range(2**25, 64, 64, "pool 'draft'")
    assert str(caught.value) == (
        "pool 'draft': 33554432 pages with scale 64 and kv_offset 64 need kernel index 2147483648, "
        "above the int32 limit 2147483647"
    )
    assert (caught.value.largest, caught.value.limit) == (2**31, 2**31 - 1)


@pytest.mark.parametrize(
    ("pages", "scale", "offset", "message"),
    [
        (0, 1, 0, "pool: num_pages must be at least 1, not 0"),
        (1, 0, 0, "pool: scale must be at least 1, not 0"),
        (1, 1, -1, "pool: kv_offset must be at least 0, not -1"),
    ],
)
def test_bad_geometry(pages: int, scale: int, offset: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_offset_range(pages, scale, offset)


def test_groups_are_checked_when_built() -> None:
    with pytest.raises(OffsetRangeError, match="group 1: 33554432 pages"):
        OffsetGroups([0, 1], [64, 64], [1, 64], [10, 2**25])
    with pytest.raises(ValueError, match=r"group 0: class_index must be in \[0, 1\), not 1"):
        OffsetGroups([1], [1], [0], [10])
    with pytest.raises(ValueError, match="equal lengths, not 1, 2 and 1"):
        OffsetGroups([0], [1, 1], [0], [10])
    with pytest.raises(ValueError, match="at least one group"):
        OffsetGroups([], [], [], [10])


def test_descriptors_cannot_be_changed() -> None:
    groups = OffsetGroups([0, 1], [4, 6], [1, 0], [10, 20])
    assert groups.descriptors.tolist() == [[0, 4, 1, 0], [1, 6, 0, 0]]
    assert len(groups) == 2
    with pytest.raises(ValueError, match="read-only"):
        groups.descriptors[0, 1] = 5

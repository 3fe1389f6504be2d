"""A batch says clearly what is wrong with it, and holds what is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tandemkv.errors import BatchError
from tandemkv.managers.accepted import read_accepted, select
from tandemkv.managers.batch import Batch, RequestIds


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def mixed(**changes: Any) -> Batch:
    """Return a decode step, a new request of 5 tokens, a chunk and a new one of 2 tokens."""
    arguments: dict[str, Any] = {
        "request_ids": ["a", "b", "c", "d"],
        "chunk_lens": i32(0, 3, 4, 2),
        "draft_lens": i32(2, 0, 0, 0),
        "prompts": (i32(1, 2, 3, 4, 5, 6, 7), i64(0, 0, 5, 5, 7)),
        "max_total_tokens": i64(0, 9, 0, 2),
    }
    return Batch(**{**arguments, **changes})


def test_a_mixed_batch_is_read_as_given() -> None:
    batch = mixed()
    assert len(batch) == 4
    assert batch.widths.tolist() == [3, 3, 4, 2]  # 1 + 2 draft slots, then the chunks
    assert batch.num_tokens == 12
    assert batch.num_chunks == 3
    assert batch.num_new == 2
    assert batch.new_index.tolist() == [1, 3]
    assert batch.new_offsets.tolist() == [0, 5, 7]
    assert batch.max_draft_len == 2


def test_lists_and_arrays_give_the_same_batch() -> None:
    from_lists = Batch(
        ["a", "b"],
        chunk_lens=[2, 0],
        draft_lens=[0, 1],
        prompts=[[7, 8, 9], []],
        max_total_tokens=[4, 0],
        scopes=[5, 0],
        draft_from=[1, -1],
    )
    from_arrays = Batch(
        ("a", "b"),
        chunk_lens=i32(2, 0),
        draft_lens=i32(0, 1),
        prompts=(i64(7, 8, 9), i64(0, 3, 3)),
        max_total_tokens=i64(4, 0),
        scopes=i32(5, 0),
        draft_from=i32(1, -1),
    )
    for name in Batch.__slots__:
        assert np.array_equal(getattr(from_lists, name), getattr(from_arrays, name)), name


def test_defaults_are_a_decode_step_without_draft() -> None:
    batch = Batch([1, 2, 3])
    assert batch.widths.tolist() == [1, 1, 1]
    assert batch.num_new == batch.num_chunks == 0
    assert batch.scopes is batch.draft_from is batch.max_total_tokens is None


def test_an_empty_batch_is_a_batch() -> None:
    batch = Batch([], chunk_lens=[], prompts=(i32(), i64(0)))
    assert len(batch) == batch.num_tokens == 0


def test_a_batch_does_not_change_after_its_checks() -> None:
    drafts = i32(1, 2)
    batch = Batch(["a", "b"], draft_lens=drafts)
    drafts[0] = -9
    assert batch.draft_lens.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        batch.draft_lens[0] = 3
    with pytest.raises(ValueError, match="read-only"):
        batch.widths[0] = 3
    with pytest.raises(AttributeError, match="immutable"):
        batch.draft_lens = drafts


def test_checked_ids_are_taken_over() -> None:
    ids = Batch(["a", "b"]).request_ids
    assert Batch(ids).request_ids is ids
    assert RequestIds(ids) is ids


@pytest.mark.parametrize(
    ("changes", "field", "item", "message"),
    [
        ({"request_ids": ["a", "b", "a", "d"]}, "request_ids", 2, "'a' a second time"),
        ({"request_ids": ["a", "b", ["c"], "d"]}, "request_ids", None, "unhashable"),
        ({"request_ids": "abcd"}, "request_ids", None, "the string 'abcd'"),
        ({"request_ids": 4}, "request_ids", None, "not iterable"),
        ({"chunk_lens": i64(0, 3, 4, 2)}, "chunk_lens", None, "int64; int32 is needed"),
        ({"chunk_lens": np.zeros(4)}, "chunk_lens", None, "float64; int32 is needed"),
        ({"chunk_lens": [0, 3, 4, 2.5]}, "chunk_lens", None, "not integers"),
        ({"chunk_lens": [False] * 4}, "chunk_lens", None, "not integers"),
        ({"chunk_lens": [0, 3, 4, 2**31]}, "chunk_lens", None, "2147483648, outside int32"),
        ({"chunk_lens": [0, 3, 4, 2**80]}, "chunk_lens", None, "not integers"),
        ({"chunk_lens": [[0, 3], [4, 2]]}, "chunk_lens", None, "2 dimensions; 1"),
        ({"chunk_lens": [[0], [4, 2], 1, 1]}, "chunk_lens", None, "not integers"),
        ({"chunk_lens": 7}, "chunk_lens", None, "is int; an array or a sequence"),
        ({"chunk_lens": i32(0, 3, 4)}, "chunk_lens", None, "3 items, expected 4"),
        ({"chunk_lens": i32(0, 9, 3, 9, 4, 9, 2, 9)[::2]}, "chunk_lens", None, "contiguous"),
        ({"chunk_lens": i32(0, 3, -4, 2)}, "chunk_lens", 2, "-4; it must be >= 0"),
        ({"chunk_lens": i32(0, 0, 4, 2)}, "chunk_lens", 1, ">= 1 for a new request"),
        ({"draft_lens": i32(-1, 0, 0, 0)}, "draft_lens", 0, "-1; it must be >= 0"),
        ({"draft_lens": i32(1, 0, 1, 0)}, "draft_lens", 2, "'c'.*0 where a prompt chunk runs"),
        ({"max_total_tokens": i32(0, 9, 0, 2)}, "max_total_tokens", None, "int64 is needed"),
        ({"max_total_tokens": None}, "max_total_tokens", None, "missing, but 2 requests"),
        ({"max_total_tokens": i64(0, 4, 0, 2)}, "max_total_tokens", 1, "'b'.*length of the prompt"),
        ({"scopes": i32(0, -2, 0, 0)}, "scopes", 1, "-2 .*>= -1"),
        ({"draft_from": i32(0, 0, 0, -5)}, "draft_from", 3, "-5 .*>= -1"),
        ({"prompts": ([1] * 7, [0, 1, 5, 5])}, "prompts: offsets", None, "4 entries, expected 5"),
        ({"prompts": ([1] * 7, [1, 1, 5, 5, 7])}, "prompts: offsets", None, r"\[0\] is 1; 0"),
        ({"prompts": ([1] * 7, [0, 0, 5, 5, 6])}, "prompts: offsets", None, "6, but there are 7"),
        ({"prompts": ([1] * 7, [0, 5, 0, 5, 7])}, "prompts: offsets", 1, "falls from 5 to 0"),
        ({"prompts": ([1] * 6 + [-1], [0, 0, 5, 5, 7])}, "prompts: tokens", 6, "-1; tokens are in"),
        ({"prompts": ([2**31] * 7, [0, 0, 5, 5, 7])}, "prompts: tokens", 0, "2147483648"),
        ({"prompts": (np.ones(7), [0, 0, 5, 5, 7])}, "prompts: tokens", None, "int32 or int64"),
        ({"prompts": [[1], [2]]}, "prompts", None, "2 items, expected 4"),
        ({"prompts": [[], [1, "x"], [], [2]]}, "prompts[1]", None, "not integers"),
        ({"prompts": {}}, "prompts", None, "is dict"),
    ],
)
def test_a_malformed_batch_names_what_is_wrong(
    changes: dict[str, Any], field: str, item: int | None, message: str
) -> None:
    with pytest.raises(BatchError, match=message) as caught:
        mixed(**changes)
    assert caught.value.field == field
    assert caught.value.item == item


def rows(accepted: object, num_items: int) -> list[list[int]]:
    return cut(*read_accepted(accepted, num_items))


def cut(tokens: np.ndarray, counts: np.ndarray) -> list[list[int]]:
    assert counts.dtype == np.int32
    if tokens.ndim == 2:
        return [row[:count].tolist() for row, count in zip(tokens, counts, strict=True)]
    assert len(tokens) == counts.sum()
    return [part.tolist() for part in np.split(tokens, np.cumsum(counts)[:-1])][: len(counts)]


@pytest.mark.parametrize(
    "expected",
    [
        [[1], [2], [3]],
        [[1, 2], [3, 4], [5, 6]],
        [[1, 2], [], [3]],
        [[], [], []],
        [[], [1, 2, 3, 4, 5], [6]],
        [],
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_accepted_tokens_mean_the_same_in_every_form(
    expected: list[list[int]], dtype: type[np.signedinteger[Any]]
) -> None:
    flat = np.array([token for row in expected for token in row], dtype)
    offsets = np.cumsum([0, *map(len, expected)], dtype=np.int64)
    table = np.full((len(expected), 6), -7, dtype)
    for row, tokens in zip(table, expected, strict=True):
        row[: len(tokens)] = tokens
    counts = np.array([len(tokens) for tokens in expected], np.int32)
    assert rows((flat, offsets), len(expected)) == expected
    assert rows((flat.tolist(), offsets.tolist()), len(expected)) == expected
    assert rows((table, counts), len(expected)) == expected
    assert rows(expected, len(expected)) == expected


def test_arrays_of_accepted_tokens_are_not_copied() -> None:
    table = np.zeros((2, 3), np.int32)
    assert read_accepted((table, i32(1, 3)), 2)[0] is table
    flat = np.arange(6, dtype=np.int32)
    assert read_accepted((flat, i64(0, 2, 6)), 2)[0] is flat


@pytest.mark.parametrize("live", [[], [0], [1, 3], [0, 1, 2, 3]])
def test_tokens_of_some_requests_are_selected_in_both_forms(live: list[int]) -> None:
    expected = [[1, 2], [], [3], [4, 5, 6]]
    table = np.array([[1, 2, 9], [9, 9, 9], [3, 9, 9], [4, 5, 6]], np.int32)
    counts, index = i32(2, 0, 1, 3), np.array(live, np.intp)
    for tokens in (table, i32(1, 2, 3, 4, 5, 6)):
        assert cut(*select(tokens, counts, index)) == [expected[item] for item in live]


@pytest.mark.parametrize(
    ("accepted", "message"),
    [
        ((i32(1, 2), i64(0, 1)), "2 entries, expected 3"),
        ((i32(1, 2), i64(0, 1, 3)), "3, but there are 2 tokens"),
        ((i32(1, 2), i32(0, 1, 2)), "int64 is needed"),
        ((np.zeros((2, 2)), i32(1, 1)), "float64; int32 or int64"),
        ((np.zeros((3, 2), np.int32), i32(1, 1)), "3 rows, expected 2"),
        ((np.zeros((2, 2), np.int32), i32(1)), "1 items, expected 2"),
        ((np.zeros((2, 2), np.int32), i64(1, 1)), "int32 is needed"),
        ((np.zeros((2, 4), np.int32)[:, ::2], i32(1, 1)), "not contiguous"),
        ((np.zeros((1, 1, 1), np.int32), i32(1)), "3 dimensions"),
        ([[1]], "1 items, expected 2"),
        ([[1], [-1]], "-1; tokens are in"),
        ((i32(1), i64(0, 1), 3), "accepted is tuple"),
        (None, "accepted is NoneType"),
        ("ab", "accepted is str"),
    ],
)
def test_malformed_accepted_tokens_are_refused(accepted: object, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        read_accepted(accepted, 2)


class _Unreadable:
    """What a tensor on a device, of a foreign dtype, or with a gradient is to NumPy."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __array__(self, *_: object, **__: object) -> None:
        raise self._error


@pytest.mark.parametrize("error", [TypeError("on cuda:0"), RuntimeError("requires grad")])
@pytest.mark.parametrize("field", ["chunk_lens", "prompts", "max_total_tokens"])
def test_a_tensor_that_numpy_cannot_read_is_named(field, error):
    value = _Unreadable(error)
    arguments = {"chunk_lens": [1], "prompts": [[1]], "max_total_tokens": [9]}
    arguments[field] = [value] if field == "prompts" else value
    with pytest.raises(BatchError, match=f"{field}.* is no array on the CPU: {error}"):
        Batch([1], **arguments)


def test_accepted_tokens_that_numpy_cannot_read_are_named():
    with pytest.raises(BatchError, match="accepted: tokens is no array on the CPU: on cuda"):
        read_accepted((_Unreadable(TypeError("on cuda:0")), [0, 1]), 1)


@pytest.mark.parametrize("tokens", [None, 5, "12", {1, 2}])
def test_accepted_tokens_of_another_type_are_named(tokens):
    with pytest.raises(BatchError, match=f"tokens are {type(tokens).__name__};"):
        read_accepted((tokens, [0, 1]), 1)


def test_draft_slots_and_their_token_stay_within_32_bits():
    assert Batch([1], draft_lens=[2**31 - 2]).num_tokens == 2**31 - 1
    with pytest.raises(BatchError, match=r"draft_lens\[0\] is 2147483647 .* below 2\^31 - 1"):
        Batch([1], draft_lens=[2**31 - 1])

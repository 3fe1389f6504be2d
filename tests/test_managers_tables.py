"""Tables in other forms say the same as the padded table of the ledger.

Expected values are loops over `block_tables`, one token at a time, from each form's definition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from managers_setup import TPB, chunk, decode, new, run, small_managers

import tandemkv as tkv
from tandemkv import _core
from tandemkv.errors import (
    ArrayError,
    BatchError,
    BufferTooSmallError,
    LedgerError,
    RequestError,
    StepError,
)
from tandemkv.managers.offsets import KernelGroup
from tandemkv.managers.tables import Csr


def slot(managers: tkv.Managers, request_id: str, position: int) -> int:
    pages, used = managers.block_tables([request_id])
    assert position // TPB < used[0, 0]
    return int(pages[0, 0, position // TPB]) * TPB + position % TPB


@pytest.fixture
def managers() -> tkv.Managers:
    """Three requests: "a" and "b" decode, "c" has run one of two chunks and is in the next."""
    managers = small_managers(max_batch_size=6)
    run(managers, new("a", range(100, 118)), [[1]])
    run(managers, new("b", range(200, 205)), [[1]])
    run(managers, new("c", range(300, 311), chunk=6), [[]])
    run(managers, decode(["a", "b"], 2), [[2, 3], [4]])
    both = tkv.Batch(["b", "c", "a"], chunk_lens=[0, 5, 0], draft_lens=[3, 0, 1])
    assert managers.prepare_resources(both).all()
    managers.moves()
    return managers


LENGTHS = {"a": (20, 2), "b": (6, 4), "c": (6, 5)}  # KV written before the step, tokens it runs


def test_spans_follow_the_prompt_chunks_and_accepted_tokens(managers: tkv.Managers) -> None:
    for role in ("target", "draft"):
        start, width = managers.tables.spans(["a", "b", "c"], role=role)
        assert list(zip(start, width, strict=True)) == [LENGTHS[name] for name in "abc"]
    assert managers.tables.kv_lens(["c", "a"]).tolist() == [11, 22]


def test_a_slot_mapping_names_the_place_of_every_token(managers: tkv.Managers) -> None:
    expected = [
        slot(managers, name, position)
        for name in "bca"
        for position in range(LENGTHS[name][0], sum(LENGTHS[name]))
    ]
    slots = managers.tables.slot_mapping(["b", "c", "a"])
    assert slots.dtype == np.int64
    assert slots.tolist() == expected
    for pad in (0, -1):
        out = np.full(15, 77, np.int64)
        assert managers.tables.slot_mapping(["b", "c", "a"], pad=pad, out=out) is out
        assert out.tolist() == [*expected, *[pad] * 4]
    own = np.array([3, 0], np.int32), np.array([2, 1], np.int32)
    assert managers.tables.slot_mapping(["a", "c"], spans=own).tolist() == [
        slot(managers, "a", 3),
        slot(managers, "a", 4),
        slot(managers, "c", 0),
    ]


def test_csr_holds_the_pages_of_the_kv(managers: tkv.Managers) -> None:
    table = managers.tables.csr(["c", "a", "b"])
    pages, _ = managers.block_tables(["c", "a", "b"])
    rows = [pages[0, 0, :3], pages[0, 1, :6], pages[0, 2, :3]]  # of 11, 22 and 10 tokens
    assert table.indptr.tolist() == [0, 3, 9, 12]
    assert table.indices.tolist() == np.concatenate(rows).tolist()
    assert table.last_page_len.tolist() == [3, 2, 2]
    for length, num_pages, last in [(0, 0, 0), (1, 1, 1), (4, 1, 4), (5, 2, 1), (8, 2, 4)]:
        given = managers.tables.csr(["a"], kv_lens=np.array([length], np.int32))
        assert given.indptr.tolist() == [0, num_pages]
        assert given.last_page_len.tolist() == [last]


def test_csr_in_the_buffers_of_a_captured_graph(managers: tkv.Managers) -> None:
    """Rows beyond the batch are empty, and indices beyond the last one stay."""
    out = Csr(np.full(6, 9, np.int32), np.full(20, 9, np.int32), np.full(5, 9, np.int32))
    assert managers.tables.csr(["b", "c"], out=out) is out
    assert out.indptr.tolist() == [0, 3, 6, 6, 6, 6]
    assert out.last_page_len.tolist() == [2, 3, 0, 0, 0]
    assert (out.indices[:6] > 0).all()
    assert (out.indices[6:] == 9).all()


def test_token_rows_list_every_slot(managers: tkv.Managers) -> None:
    rows = managers.tables.token_rows(["b", "c"], pad=-1)
    assert rows.dtype == np.int32
    assert rows.shape == (2, 11)
    for name, row in zip("bc", rows, strict=True):
        length = sum(LENGTHS[name])
        assert row.tolist() == [
            *[slot(managers, name, position) for position in range(length)],
            *[-1] * (11 - length),
        ]
    wide = np.full((1, 40), 5, np.int32)
    managers.tables.token_rows(["a"], kv_lens=np.array([3], np.int32), out=wide)
    assert wide[0, :3].tolist() == [slot(managers, "a", position) for position in range(3)]
    assert not wide[0, 3:].any()


def test_a_padded_table_and_its_kernel_group(managers: tkv.Managers) -> None:
    pages, _ = managers.block_tables(["a", "b"])
    out = np.full((4, managers.ledger.row_width), 9, np.int32)
    managers.tables.block_table(["a", "b"], out=out)
    np.testing.assert_array_equal(out[:2], pages[0])
    assert not out[2:].any()
    (group,) = managers.target.kernel_groups
    np.testing.assert_array_equal(
        managers.tables.block_table(["a", "b"], group=group), group.scale * pages[0]
    )
    by_group = managers.tables.csr(["b"], group=group)
    np.testing.assert_array_equal(by_group.indices, group.scale * pages[0, 1, :3])


@pytest.mark.parametrize("arrangement", ["interleaved", "per_layer"])
def test_slots_and_groups_lead_into_the_pools(arrangement: Any) -> None:
    """What is written at slots through a layer's view is found at the group's indices."""
    managers = small_managers(arrangement=arrangement)
    assert managers.prepare_resources(new("a", range(100, 118))).all()
    managers.moves()
    slots = managers.tables.slot_mapping(["a"])
    table = managers.tables.csr(["a"])
    for view in managers.views:
        for group in view.kernel_groups:
            for layer in group.layers:
                key, value = view.pool.view(layer, "key"), view.pool.view(layer, "value")
                for array, sign in ((key, 1), (value, -1)):
                    array[slots // TPB, slots % TPB] = sign * (1 + np.arange(18))[:, None, None]
                indices = managers.tables.csr(["a"], group=group).indices
                base = key.ctypes.data
                for block, index in enumerate(indices.tolist()):
                    page = int(table.indices[block])
                    assert base + index * group.buffer_bytes == key[page].ctypes.data
                    later = base + (index + group.kv_offset) * group.buffer_bytes
                    assert later == value[page].ctypes.data
                    filled = min(TPB, 18 - TPB * block)
                    expected = 1 + TPB * block + np.arange(filled)
                    assert (key[page][:filled, 0, 0] == expected).all()
                    assert (value[page][:filled, 0, 0] == -expected).all()


def test_tensors_are_written_in_place(managers: tkv.Managers) -> None:
    torch = pytest.importorskip("torch")
    slots = torch.full((15,), 7, dtype=torch.int64)
    assert managers.tables.slot_mapping(["b", "c", "a"], out=slots, pad=-1) is slots
    assert slots[:11].tolist() == managers.tables.slot_mapping(["b", "c", "a"]).tolist()
    table = managers.tables.block_table(["a"])
    tensor = torch.from_numpy(table)
    assert tensor.data_ptr() == table.ctypes.data
    assert np.shares_memory(np.from_dlpack(tensor), table)


def test_overlapping_steps_count_what_may_have_run(managers: tkv.Managers) -> None:
    """Step N + 1 begins after all tokens of step N; once N is updated, after the accepted ones."""
    current = managers.step
    later = managers.begin_step()
    assert managers.prepare_resources(decode(["a"], 2), later).all()
    start, width = managers.tables.spans(["a"], later)
    assert (start[0], width[0]) == (22, 3)
    managers.update_resources(
        tkv.Batch(["b", "c", "a"], chunk_lens=[0, 5, 0], draft_lens=[3, 0, 1]), [[5], [6], [7]]
    )
    start, width = managers.tables.spans(["a"], later)
    assert (start[0], width[0]) == (21, 3)
    with pytest.raises(LedgerError, match=f"is not at step {current}"):
        managers.tables.spans(["a"], current)


def test_the_draft_of_a_request_without_one_runs_nothing() -> None:
    managers = small_managers()
    assert managers.prepare_resources(new("a", range(10), draft_from=-1)).all()
    start, width = managers.tables.spans(["a"], role="draft")
    assert (start[0], width[0]) == (0, 0)
    assert managers.tables.slot_mapping(["a"], role="draft").shape == (0,)
    assert managers.tables.csr(["a"], role="draft").indptr.tolist() == [0, 0]


def test_what_does_not_fit_is_refused_and_writes_nothing(managers: tkv.Managers) -> None:
    tables = managers.tables
    slots = np.full(10, 7, np.int64)
    with pytest.raises(BufferTooSmallError, match="out holds 10 rows, 11 are needed"):
        tables.slot_mapping(["b", "c", "a"], out=slots)
    assert (slots == 7).all()
    out = Csr(np.full(3, 7, np.int32), np.full(5, 7, np.int32), np.full(2, 7, np.int32))
    with pytest.raises(BufferTooSmallError, match="indices holds 5 rows, 6 are needed"):
        tables.csr(["b", "c"], out=out)
    with pytest.raises(BufferTooSmallError, match="last_page_len holds 2 rows, 3 are needed"):
        tables.csr(["b", "c", "a"], out=out)
    with pytest.raises(LedgerError, match="indptr has 4 items, expected 3"):
        tables.csr(["b"], out=out._replace(indptr=np.full(4, 7, np.int32)))
    assert all((array == 7).all() for array in out)
    rows = np.full((2, 10), 7, np.int32)
    with pytest.raises(LedgerError, match=r"kv_len\[1\] is 11, must be in 0..=10"):
        tables.token_rows(["b", "c"], out=rows)
    assert (rows == 7).all()
    with pytest.raises(ArrayError, match="1 rows cannot hold 2 requests"):
        tables.block_table(["a", "b"], out=rows[:1])
    with pytest.raises(LedgerError, match="blocks of row"):
        tables.block_table(["a"], out=np.empty((1, 2), np.int32))


def test_misuse_is_named(managers: tkv.Managers) -> None:
    tables = managers.tables
    with pytest.raises(RequestError, match="'x'"):
        tables.csr(["x"])
    with pytest.raises(BatchError, match="role is 'both'; supported: target, draft"):
        tables.spans(["a"], role="both")
    with pytest.raises(LedgerError, match=r"pad\[0\] is -2, must be in -1..=0"):
        tables.slot_mapping(["a"], pad=-2)
    with pytest.raises(LedgerError, match=r"pad\[0\] is 1"):
        tables.token_rows(["a"], pad=1)
    with pytest.raises(ArrayError, match="dtype int64 is needed, not int32"):
        tables.slot_mapping(["a"], out=np.empty(9, np.int32))
    room = 4 * int(managers.block_tables(["a"])[1][0, 0])
    for start, width, message in (
        (-1, 2, r"start\[0\] is -1"),
        (room, 1, r"width\[0\] is 1, must be in 0..=0"),
        (0, -1, r"width\[0\] is -1"),
        (0, room + 1, f"must be in 0..={room}"),
    ):
        spans = np.array([start], np.int32), np.array([width], np.int32)
        with pytest.raises(LedgerError, match=message):
            tables.slot_mapping(["a"], spans=spans, out=np.empty(100, np.int64))
    with pytest.raises(LedgerError, match=r"kv_len\[0\] is -1"):
        tables.csr(["a"], kv_lens=np.array([-1], np.int32))
    huge = KernelGroup(layers=(0,), buffer_bytes=16, scale=2**31 // 33 + 1, kv_offset=0)
    with pytest.raises(LedgerError, match=r"scale\[0\] is 65075263, must be in 1..=65075262"):
        tables.csr(["a"], group=huge)
    idle = small_managers()
    with pytest.raises(StepError, match="no step is prepared"):
        idle.tables.spans([])


def test_a_plan_without_a_draft_has_no_draft_tables() -> None:
    managers = small_managers(draft=False)
    assert managers.prepare_resources(new("a", range(5))).all()
    with pytest.raises(LedgerError, match=r"role\[0\] is 1, must be in 0..=0"):
        managers.tables.spans(["a"], role="draft")


def test_each_class_has_its_own_pages() -> None:
    ledger = _core.Ledger(
        tokens_per_block=4, num_pages=[50, 9], max_sequences=2, max_seq_len=32, reuse=False
    )
    step = ledger.begin_step()
    handle, hit = np.empty(2, np.int64), np.empty(2, np.int32)
    scope, first = np.full(2, -1, np.int32), np.full(2, 32, np.int32)
    prompts = [np.arange(6, dtype=np.int32), np.arange(9, dtype=np.int32)]
    totals = np.full(2, 12, np.int64)
    assert ledger.admit(step, prompts, scope, first, totals, None, handle, hit) == 2
    table, used = np.empty((2, 2, 8), np.int32), np.empty((2, 2), np.int32)
    ledger.table(handle, table, used)
    lens = np.array([6, 9], np.int32)
    for number in range(2):
        indptr, last = np.empty(3, np.int32), np.empty(2, np.int32)
        indices = np.empty(5, np.int32)
        total = _core.csr(ledger, handle, lens, indptr, indices, last, class_index=number)
        assert total == 5
        assert indices.tolist() == [*table[number, 0, :2], *table[number, 1, :3]]
    with pytest.raises(LedgerError, match=r"class\[0\] is 2, must be in 0..=1"):
        _core.slot_mapping(ledger, handle, lens, lens, np.empty(9, np.int64), class_index=2)
    with pytest.raises(LedgerError, match="shares memory"):
        _core.csr(ledger, handle, lens, indptr, indices, indptr[:2])


def test_chunks_after_the_first_begin_where_the_last_one_ended() -> None:
    managers = small_managers()
    run(managers, new("c", range(300, 311), chunk=6), [[]])
    assert managers.prepare_resources(chunk("c", 2)).all()
    start, width = managers.tables.spans(["c"])
    assert (start[0], width[0]) == (6, 2)

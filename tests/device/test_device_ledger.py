"""The ledger's reports, scattered one after the other, equal a full copy of its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from tandemkv._core import Ledger
from tandemkv.device import OffsetGroups, apply_block_table_updates, copy_batch_block_offsets

BLOCK, PAGES, ROWS, MAX_LEN, RESERVE = 4, 14, 3, 24, 2
# The target keeps 2 layers of K and V per page, the draft one; a latent group has no V.
GROUPS = OffsetGroups([0, 0, 1], [4, 2, 3], [1, 1, 0], [PAGES, PAGES])


class TableMachine(RuleBasedStateMachine):
    """Serves a few sequences and publishes their tables both ways after every change."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(
            tokens_per_block=BLOCK,
            num_pages=[PAGES, PAGES],
            max_sequences=ROWS,
            max_seq_len=MAX_LEN,
            has_draft=True,
            extra_tokens=1,
            reserve_tokens=RESERVE,
            lookahead=1,
        )
        self.width = self.ledger.row_width
        self.table = np.zeros((2, ROWS, self.width), np.int32)
        self.destination = np.zeros((len(GROUPS), ROWS, 2, self.width), np.int32)
        self.handles: list[int] = []

    def step(self) -> int:
        return self.ledger.begin_step()

    def complete(self, step: int) -> None:
        self.ledger.moves(np.zeros((2, 4), np.int32))
        self.ledger.complete_step(step)

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        first=st.integers(1, 12),
        room=st.integers(1, 12),
    )
    def admit(self, prompt: list[int], first: int, room: int) -> None:
        step = self.step()
        handle, hit = np.zeros(1, np.int64), np.zeros(1, np.int32)
        self.ledger.admit(
            step,
            [np.array(prompt, np.int32)],
            np.zeros(1, np.int32),
            np.array([first], np.int32),
            np.array([len(prompt) + room], np.int64),
            np.zeros(1, np.int32),
            handle,
            hit,
        )
        self.complete(step)
        if handle[0] >= 0:
            self.handles.append(int(handle[0]))
            self.run(int(handle[0]), step, min(first, len(prompt) - int(hit[0])), [])

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0), accepted=st.integers(1, 1 + RESERVE))
    def decode(self, which: int, accepted: int) -> None:
        """Run one more chunk, or 1 + RESERVE tokens of which some are accepted."""
        handle = self.handles[which % len(self.handles)]
        now = self.ledger.sequence(handle)
        if now["outstanding"]:
            return
        left = now["known"] - now["reach"]
        width = left if left > 0 else 1 + RESERVE
        room = now["max_total"] - now["known"]
        if room == 0:
            return
        step, ok = self.step(), np.zeros(1, np.uint8)
        array = np.array([handle], np.int64)
        try:
            self.ledger.grow(step, array, np.array([width], np.int32), ok)
        finally:
            self.complete(step)
        if ok[0]:
            most = min(accepted, room, width)
            self.run(handle, step, width, [1] * (1 if left > 0 else most))

    def run(self, handle: int, step: int, width: int, tokens: list[int]) -> None:
        now = self.ledger.sequence(handle)
        if not tokens and now["known"] <= now["reach"] + width:
            tokens = [0]  # the chunk ends the prompt: one token is sampled
        self.ledger.advance(
            step,
            np.array([handle], np.int64),
            np.array([tokens or [0]], np.int32),
            np.array([len(tokens)], np.int32),
        )

    @precondition(lambda self: self.handles)
    @rule(which=st.integers(0), publish=st.integers(0, 1))
    def release(self, which: int, publish: int) -> None:
        handle = self.handles.pop(which % len(self.handles))
        self.ledger.release(np.array([handle], np.int64), np.array([publish], np.uint8))

    @invariant()
    def scattered_equals_copied(self) -> None:
        records = np.zeros((2 * ROWS * self.width, 4), np.int32)
        count = self.ledger.updates(records)
        before = self.table.copy()
        apply_block_table_updates(
            records, count=count, table=self.table, groups=GROUPS, destination=self.destination
        )
        # The minimum: every record changes its entry, so none was moved for nothing.
        assert count == int((before != self.table).sum())

        handles = np.array(self.handles, np.int64)
        pages = np.zeros((2, len(handles), self.width), np.int32)
        used = np.zeros((2, len(handles)), np.int32)
        self.ledger.table(handles, pages, used)
        rows = (handles & 0xFFFFFFFF).astype(np.int32)
        by_row = np.full(ROWS, -1, np.int32)
        by_row[rows] = np.arange(len(handles))
        np.testing.assert_array_equal(self.table[:, rows], pages)
        np.testing.assert_array_equal(self.destination, self.full_copy(pages, used, by_row))
        # A batch in any order is a copy from the resident table, without the host's.
        batch = np.full_like(self.destination, 99)
        copy_batch_block_offsets(self.table, rows, GROUPS, batch, used=used)
        np.testing.assert_array_equal(batch[:, : len(rows)], self.destination[:, rows])

    def full_copy(
        self, pages: NDArray[np.int32], used: NDArray[np.int32], by_row: NDArray[np.int32]
    ) -> NDArray[Any]:
        full = np.full_like(self.destination, 99)
        lengths = np.zeros((2, ROWS), np.int32)
        lengths[:, by_row >= 0] = used[:, by_row[by_row >= 0]]
        copy_batch_block_offsets(pages, by_row, GROUPS, full, used=lengths)
        return full


TestTables = TableMachine.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_updates_that_do_not_fit_are_not_lost() -> None:
    """The error names the size, and the next call reports everything."""
    machine = TableMachine()
    machine.admit(prompt=[1] * 12, first=12, room=1)
    with pytest.raises(ValueError, match="8"):
        machine.ledger.updates(np.zeros((1, 4), np.int32))
    machine.scattered_equals_copied()
    assert (machine.table > 0).sum() == 8

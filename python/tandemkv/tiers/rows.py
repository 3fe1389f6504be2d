"""Rows on their way: single ones for the disk, and copies that a stream has to pass."""

from __future__ import annotations

from dataclasses import dataclass

from tandemkv.device.ring import Event
from tandemkv.tiers.transfers import Direction, TransferPlan


@dataclass(frozen=True, slots=True)
class DiskRow:
    """One row that the disk takes part in.

    Attributes:
        number: the transfer's id.
        class_index, direction, source_page, destination_page, key: the row.
        slot: its staging slot, where one end is the device.
        stream: where its copy to the device goes.
    """

    number: int
    class_index: int
    direction: Direction
    source_page: int
    destination_page: int
    key: bytes
    slot: int | None = None
    stream: object = None


def disk_rows(direction: Direction, part: TransferPlan) -> list[DiskRow]:
    """Return the rows of a plan of one direction."""
    return [
        DiskRow(number, class_index, direction, source_page, target_page, key.tobytes())
        for (number, class_index, _, source_page, _, target_page), key in zip(
            part.rows.tolist(), part.keys, strict=True
        )
    ]


@dataclass(slots=True, eq=False)
class QueuedCopies:
    """Copies on a stream, and what they belong to.

    Attributes:
        event: the point after them; None: it could not be had, and they count as failed.
        direction: of the rows `ids`.
        ids: the transfer of each row that is complete with these copies.
        row: a row of the disk that goes on from here.
        ok: whether they were queued without an error; False once their event says so.
    """

    event: Event | None
    direction: Direction
    ids: tuple[int, ...] = ()
    row: DiskRow | None = None
    ok: bool = True

    def passed(self, *, wait: bool = False) -> bool:
        """Whether the stream has passed them, or never will."""
        if self.event is None:
            return True
        try:
            if wait:
                self.event.wait()
            return self.event.done()
        except Exception:
            self.ok = False
            self.event = None
            return True

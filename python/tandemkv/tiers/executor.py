"""Runs the transfers that a ledger planned, and says what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tandemkv.config import MAX_INT32, check_count
from tandemkv.errors import ConfigError, TierError
from tandemkv.tiers.checks import check_plan
from tandemkv.tiers.completions import Completions
from tandemkv.tiers.copies import PageCopier
from tandemkv.tiers.host import HostTier, Pinner
from tandemkv.tiers.jobs import DiskJobs
from tandemkv.tiers.pages import DeviceGroup
from tandemkv.tiers.protocols import PageStore, Part
from tandemkv.tiers.rows import DiskRow, QueuedCopies, disk_rows
from tandemkv.tiers.staging import Staging
from tandemkv.tiers.transfers import DEVICE, DISK, HOST, TIER_NAMES, Direction, TransferPlan

WhenFull = Literal["fail", "wait"]


class TierExecutor:
    """The executor: copies by a copier, the disk through a pool of threads.

    One thread calls it. It owns `host` and `disk`: `close` closes them.

    Args:
        groups: the groups of a rank, as `device_group` makes them.
        num_classes: classes of the ledger.
        copier: copies between device and host.
        host: the host tier; None: there is none.
        disk: the disk tier; None: there is none.
        threads: threads that read and write the disk, >= 1.
        staging_pages: pages that can be on their way from device to disk, and as many from disk to
            device.
        when_full: what becomes of a row from device to disk where no staging page is free: it
            fails, which is a miss, or `submit` waits.
        pin: locks the staging pages for copies by the device.

    Raises:
        ConfigError: a count or `when_full` that is none of these.
        TierError: the staging memory cannot be had.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        num_classes: int,
        *,
        copier: PageCopier,
        host: HostTier | None = None,
        disk: PageStore | None = None,
        threads: int = 4,
        staging_pages: int = 16,
        when_full: WhenFull = "fail",
        pin: Pinner | None = None,
    ) -> None:
        check_count("threads", threads)
        check_count("staging_pages", staging_pages)
        if when_full not in ("fail", "wait"):
            raise ConfigError(
                f"when_full is {when_full!r}; supported: fail, wait",
                field="when_full",
                value=when_full,
            )
        self._groups = tuple(groups)
        self._copier, self._host, self._disk = copier, host, disk
        self._when_full, self._threads = when_full, threads
        # A class of which this rank has no group moves nothing here, so any page will do.
        device_pages = [MAX_INT32] * num_classes
        for group in groups:
            device_pages[group.class_index] = min(device_pages[group.class_index], group.num_pages)
        nothing = (0,) * num_classes
        self._num_pages: tuple[Sequence[int], ...] = (
            tuple(device_pages),
            nothing if host is None else host.num_pages,
            nothing if disk is None else disk.num_pages,
        )
        slots = 0 if disk is None else staging_pages
        self._outgoing = Staging(groups, num_classes, slots, pin=pin)
        self._incoming = Staging(groups, num_classes, slots, pin=pin)
        self._jobs = DiskJobs(threads, self._transfer)
        self._book = Completions()
        self._in_flight: list[QueuedCopies] = []
        self._waiting: list[DiskRow] = []  # loads from disk that have no slot yet
        self._counters: dict[Direction, list[int]] = {}
        self._last_error = ""
        self._closed = False

    def submit(self, plan: TransferPlan, stream: object | None = None) -> None:
        """Start transfers.

        Copies between device and host take effect in the order of the rows: before this returns
        where the pools are in CPU memory, on `stream` where they are on a GPU. So do the reads of
        rows from device to disk. A row that cannot be carried out is a failure that `poll` reports.

        Args:
            plan: rows of transfers that are not on their way.
            stream: the engine's stream; needed on a GPU, else not used.

        Raises:
            TierError: a row that no tier could carry out, an id that is on its way, or the executor
                is closed; nothing was started.
            ArrayError: no stream on a GPU.
        """
        if self._closed:
            raise TierError("the executor is closed")
        check_plan(plan, self._num_pages)
        known = next((number for number in plan.ids.tolist() if number in self._book), None)
        if known is not None:
            raise TierError(f"transfer {known} is on its way")
        self._copier.check_stream(stream)
        self._book.open(plan.ids)
        loads: object = None
        jobs: list[DiskRow] = []
        for direction, part in plan.stretches():
            if DISK not in direction:
                self._copy(direction, part, stream)
            elif direction == (DEVICE, DISK):
                for row in disk_rows(direction, part):
                    self._stage_out(row, stream)
            elif direction == (DISK, DEVICE):
                loads = self._copier.load_stream(stream) if loads is None else loads
                self._waiting += [replace(row, stream=loads) for row in disk_rows(direction, part)]
            else:
                jobs += disk_rows(direction, part)
        self._jobs.start(jobs)
        self._advance()

    def poll(self, wait: bool = False) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the transfers completed since the last call, each once.

        Args:
            wait: wait until there is one, if any is on its way.

        Returns:
            Their ids, int64 `[n]`, and whether each succeeded, uint8 `[n]`.
        """
        self._advance()
        while wait and not self._book.ready and self._book.outstanding:
            self._wait_for_one()
            self._advance()
        return self._book.take()

    def clear_disk(self) -> None:
        """Wait for what is on its way, then forget all that is on disk; `poll` still reports."""
        self._drain()
        if self._disk is not None:
            self._disk.clear()

    def close(self) -> None:
        """Wait for what is on its way, and give up memory and store. Again, it does nothing."""
        if self._closed:
            return
        self._closed = True
        self._drain()
        self._jobs.close()
        for owned in (self._outgoing, self._incoming, self._host, self._disk):
            if owned is not None:
                owned.close()

    def __enter__(self) -> TierExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def host(self) -> HostTier | None:
        """The host memory, None without a host tier."""
        return self._host

    @property
    def outstanding(self) -> int:
        """Transfers on their way."""
        return self._book.outstanding

    def stats(self) -> dict[str, Any]:
        """Return rows and failures per direction, such as `device_to_host`, and the last error."""
        return {
            "directions": {
                f"{TIER_NAMES[source]}_to_{TIER_NAMES[target]}": {"rows": rows, "failed": failed}
                for (source, target), (rows, failed) in sorted(self._counters.items())
            },
            "outstanding": self._book.outstanding,
            "last_error": self._last_error,
        }

    def describe(self) -> str:
        """Return one line per tier, and one about the staging memory."""
        lines = [tier.describe() for tier in (self._host, self._disk) if tier is not None]
        size = self._outgoing.num_bytes + self._incoming.num_bytes
        lines.append(f"staging: {size} bytes, {self._threads} threads")
        return "\n".join(lines)

    # Copies between device and host.

    def _copy(self, direction: Direction, part: TransferPlan, stream: object) -> None:
        """Copy rows between device and host, or queue that."""
        assert self._host is not None
        queued = QueuedCopies(None, direction, ids=tuple(part.ids.tolist()))
        try:
            for number, group in enumerate(self._groups):
                mine = part.select(part.classes == group.class_index)
                if len(mine) == 0:
                    continue
                source = np.ascontiguousarray(mine.source_pages)
                target = np.ascontiguousarray(mine.destination_pages)
                buffer = self._host.buffer(number)
                if direction[1] == HOST:
                    self._copier.to_host(group, buffer, source, target, stream)
                else:
                    self._copier.to_device(group, buffer, target, source, stream)
        except Exception as error:
            self._note(error)
            queued.ok = False
        self._follow(queued, stream)

    def _stage_out(self, row: DiskRow, stream: object) -> None:
        """Take a page from the device, for the disk."""
        slot = self._outgoing.acquire()
        while slot is None and self._when_full == "wait":
            self._wait_for_one()
            self._advance()
            slot = self._outgoing.acquire()
        if slot is None:
            self._last_error = "no staging page is free"
            self._finish(row, ok=False)
        else:
            self._pass(replace(row, slot=slot), stream)

    def _pass(self, row: DiskRow, stream: object) -> None:
        """Copy between a row's slot and the device, or queue that."""
        assert row.slot is not None
        outgoing = row.direction[0] == DEVICE
        staging = self._outgoing if outgoing else self._incoming
        copy = self._copier.to_host if outgoing else self._copier.to_device
        page = np.array([row.source_page if outgoing else row.destination_page], np.int64)
        queued = QueuedCopies(None, row.direction, row=row)
        try:
            for group, part in staging.parts(row.slot, row.class_index):
                copy(group, part, page, np.zeros(1, np.int64), stream)
        except Exception as error:
            self._note(error)
            queued.ok = False
        self._follow(queued, stream)

    def _follow(self, queued: QueuedCopies, stream: object) -> None:
        """Note copies on `stream`; they are over when it has passed them, even failed ones."""
        try:
            queued.event = self._copier.record(stream)
        except Exception as error:
            self._note(error)
            queued.ok = False
        self._in_flight.append(queued)

    # The disk, in the threads of the pool.

    def _transfer(self, row: DiskRow) -> None:
        assert self._disk is not None
        source, target = row.direction
        if target == DISK:
            parts = self._parts(self._outgoing, source, row, row.source_page)
            self._disk.write(row.class_index, row.destination_page, row.key, parts)
        else:
            parts = self._parts(self._incoming, target, row, row.destination_page)
            self._disk.read(row.class_index, row.source_page, row.key, parts)

    def _parts(self, staging: Staging, tier: int, row: DiskRow, page: int) -> list[Part]:
        """Return the host memory that a row reads or writes."""
        if tier == HOST:
            assert self._host is not None
            return self._host.parts(row.class_index, page)
        assert row.slot is not None
        return [part for _, part in staging.parts(row.slot, row.class_index)]

    # What goes on between calls.

    def _advance(self) -> None:
        """Take what has happened and start what can be started, until nothing changes."""
        moved = True
        while moved:
            moved = self._take_results(wait=False)
            moved |= self._take_events()
            moved |= self._start_waiting()

    def _take_results(self, *, wait: bool) -> bool:
        results = self._jobs.take(wait=wait)
        for row, problem in results:
            self._last_error = problem or self._last_error
            if row.direction == (DISK, DEVICE) and not problem:
                self._pass(row, row.stream)
            else:
                self._finish(row, ok=not problem)
        return bool(results)

    def _take_events(self) -> bool:
        """Handle the copies that their streams have passed, in whatever order that is."""
        waiting, self._in_flight = self._in_flight, []
        passed: list[QueuedCopies] = []
        for item in waiting:
            (passed if item.passed() else self._in_flight).append(item)
        jobs = []
        for item in passed:
            for number in item.ids:
                self._complete(item.direction, number, ok=item.ok)
            if item.row is not None:
                if item.ok and item.direction[1] == DISK:
                    jobs.append(item.row)
                else:
                    self._finish(item.row, ok=item.ok)
        self._jobs.start(jobs)
        return bool(passed)

    def _start_waiting(self) -> bool:
        """Start loads from disk for which there is a slot."""
        jobs = []
        while self._waiting and (slot := self._incoming.acquire()) is not None:
            jobs.append(replace(self._waiting.pop(0), slot=slot))
        self._jobs.start(jobs)
        return bool(jobs)

    def _wait_for_one(self) -> None:
        """Wait until something has happened that `_advance` takes."""
        if self._in_flight:
            self._in_flight[0].passed(wait=True)
        else:
            self._take_results(wait=True)

    def _drain(self) -> None:
        self._advance()
        while self._book.outstanding:
            self._wait_for_one()
            self._advance()

    def _finish(self, row: DiskRow, *, ok: bool) -> None:
        """Give back what a row of the disk held, and note it."""
        if row.slot is not None:
            (self._outgoing if row.direction[1] == DISK else self._incoming).release(row.slot)
        self._complete(row.direction, row.number, ok=ok)

    def _complete(self, direction: Direction, number: int, *, ok: bool) -> None:
        counter = self._counters.setdefault(direction, [0, 0])
        counter[0] += 1
        counter[1] += not ok
        self._book.finish(number, ok)

    def _note(self, error: Exception) -> None:
        self._last_error = f"{type(error).__name__}: {error}"

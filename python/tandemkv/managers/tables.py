"""Block tables in the forms that other kernels read, from the state of the ledger.

| form | read by kernels in the style of | method |
|---|---|---|
| padded block table and slot mapping | vLLM, FlashAttention | `block_table`, `slot_mapping` |
| CSR: `indptr`, `indices`, `last_page_len` | FlashInfer | `csr` |
| a row of slots per request | SGLang's `req_to_token` | `token_rows` |

A slot is `page * tokens_per_block + position % tokens_per_block`. Pages are those of both roles, in
one class: the first, unless `class_index` says another; `Pool.class_index` names a pool's. Columns
behind a window hold page 0; a state is the one column of its class.
Where a kernel reads a layer as an array of buffers instead of pages, pass its `KernelGroup`: every
index is then `group.scale * page` of the group's class, and V lies `group.kv_offset` further.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemkv import _core
from tandemkv._core import Ledger
from tandemkv.device.arrays import ArrayView, int32_view, typed_view
from tandemkv.device.outputs import OutputWriter
from tandemkv.errors import ArrayError, BatchError, StepError
from tandemkv.managers.batch import RequestIds
from tandemkv.managers.offsets import KernelGroup

_ROLES = {"target": 0, "draft": 1}
Resolve = Callable[[Iterable[Hashable]], NDArray[np.int64]]
"""Returns the handles of open requests."""


class Csr(NamedTuple):
    """A ragged table: row i holds `indices[indptr[i] : indptr[i + 1]]`.

    Attributes:
        indptr: int32 `[rows + 1]`.
        indices: int32, pages (or buffers of a kernel group) of all rows.
        last_page_len: int32 `[rows]`: tokens in the last page of a row, 0 for an empty row.
    """

    indptr: Any
    indices: Any
    last_page_len: Any


class KernelTables:
    """Writes tables of requests; `Managers.tables` is one.

    Outputs may be NumPy arrays and CPU tensors, which are written in place, or arrays on a GPU
    (CuPy, torch, anything with `__cuda_array_interface__`), which are written through pinned
    memory on the engine's stream. Without an output a NumPy array is returned; `torch.from_numpy`
    and DLPack take it without a copy.

    Which tokens: `step` is the step whose kernels read the table; None means the one that
    `prepare_resources` began. Where a step before it is not updated yet, lengths count all of
    that step's tokens, accepted or not; an engine that knows better passes its own.
    """

    def __init__(
        self, ledger: Ledger, resolve: Resolve, current_step: Callable[[], int | None], lock: RLock
    ) -> None:
        self._ledger = ledger
        self._resolve = resolve
        self._current_step = current_step
        self._lock = lock
        self._writer = OutputWriter()

    def spans(
        self, request_ids: Iterable[Hashable], step: int | None = None, *, role: str = "target"
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return where the tokens of a step begin in each request, and how many there are.

        Args:
            request_ids: open requests that the step runs, n of them.
            step: see the class.
            role: `target` or `draft`; in the draft of a request without one nothing runs.

        Returns:
            start and width, int32 `[n]` each.

        Raises:
            RequestError: an id that is not open.
            StepError: `step` is None and no step is prepared.
            BatchError: an unknown role.
            LedgerError: a request that the step does not run, or a draft where the plan has none.
        """
        if role not in _ROLES:
            raise BatchError(f"role is {role!r}; supported: {', '.join(_ROLES)}", field="role")
        with self._lock:
            if step is None:
                step = self._current_step()
                if step is None:
                    raise StepError("no step is prepared: call prepare_resources, or pass one", 0)
            handles = self._resolve(request_ids)
            start, width = np.empty(len(handles), np.int32), np.empty(len(handles), np.int32)
            _core.spans(self._ledger, step, handles, start, width, _ROLES[role])
            return start, width

    def kv_lens(
        self, request_ids: Iterable[Hashable], step: int | None = None, *, role: str = "target"
    ) -> NDArray[np.int32]:
        """Return the tokens that attention reads of each request in a step, int32 `[n]`.

        They are the tokens written before and those that the step writes; see `spans`.
        """
        start, width = self.spans(request_ids, step, role=role)
        return start + width

    def block_table(
        self,
        request_ids: Iterable[Hashable],
        *,
        group: KernelGroup | None = None,
        class_index: int = 0,
        out: Any = None,
        stream: object | None = None,
    ) -> Any:
        """Write the pages of each request into a row, padded with 0.

        Args:
            request_ids: open requests, n of them.
            group: whose indices to write; None: page numbers.
            class_index: whose pages, where `group` is None.
            out: int32 `[n or more, width]`, where rows from n on become 0; None: a new array as
                wide as a row of the ledger.
            stream: the engine's stream, needed where `out` is on a GPU.

        Returns:
            `out`.

        Raises:
            RequestError: an id that is not open.
            ArrayError: `out` has another form; nothing was written.
            LedgerError: a row does not fit into the width; nothing was written.
        """
        with self._lock:
            handles = self._resolve(request_ids)
            if out is None:
                out = np.empty((len(handles), self._ledger.row_width), np.int32)
            target = _rows(out, len(handles))
            self._writer.write([target], self._fill_table(handles, group, class_index), stream)
            return out

    def _fill_table(
        self, handles: NDArray[np.int64], group: KernelGroup | None, class_index: int
    ) -> Any:
        num_rows, num_classes = len(handles), self._ledger.num_classes
        class_index = class_index if group is None else group.class_index
        if not 0 <= class_index < num_classes:
            raise BatchError(
                f"class_index is {class_index}; the ledger has classes 0 to {num_classes - 1}",
                field="class_index",
            )

        def fill(rows: NDArray[np.int32]) -> list[int]:
            used = np.empty((num_classes, num_rows), np.int32)
            if num_classes == 1:
                self._ledger.table(handles, rows[None, :num_rows], used)
            else:
                tables = np.empty((num_classes, num_rows, rows.shape[1]), np.int32)
                self._ledger.table(handles, tables, used)
                rows[:num_rows] = tables[class_index]
            if group is not None:
                np.multiply(rows[:num_rows], group.scale, out=rows[:num_rows])
            rows[num_rows:] = 0
            return [rows.size]

        return fill

    def slot_mapping(
        self,
        request_ids: Iterable[Hashable],
        step: int | None = None,
        *,
        spans: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,
        role: str = "target",
        class_index: int = 0,
        pad: int = 0,
        out: Any = None,
        stream: object | None = None,
    ) -> Any:
        """Write the slot of every token that a step runs, request after request.

        Args:
            request_ids: open requests, n of them, in batch order.
            step: see the class.
            spans: start and width per request, int32 `[n]` each; None: those of the step.
            role: whose tokens, where `spans` is None.
            class_index: whose pages.
            pad: what entries after the last token become: 0, the reserved page's first slot, or
                -1 for kernels that skip negative slots.
            out: int64 `[tokens or more]`; None: a new array of exactly the tokens.
            stream: the engine's stream, needed where `out` is on a GPU.

        Returns:
            `out`.

        Raises:
            RequestError, StepError, BatchError: see `spans`.
            ArrayError: `out` has another form; nothing was written.
            LedgerError: a span beyond the room of its request, or another `pad`.
            BufferTooSmallError: `out` is too short; nothing was written.
        """
        with self._lock:
            ids = RequestIds(request_ids)
            start, width = self.spans(ids, step, role=role) if spans is None else spans
            handles = self._resolve(ids)
            if out is None:
                out = np.empty(int(np.maximum(width, 0).sum()), np.int64)

            def fill(slots: NDArray[np.int64]) -> list[int]:
                _core.slot_mapping(
                    self._ledger, handles, start, width, slots, pad=pad, class_index=class_index
                )
                return [slots.size]

            target = typed_view("out", out, np.int64, shape=(None,), writable=True)
            self._writer.write([target], fill, stream)
            return out

    def csr(
        self,
        request_ids: Iterable[Hashable],
        step: int | None = None,
        *,
        kv_lens: NDArray[np.int32] | None = None,
        role: str = "target",
        group: KernelGroup | None = None,
        class_index: int = 0,
        out: Csr | None = None,
        stream: object | None = None,
    ) -> Csr:
        """Write the pages of each request's KV one after the other.

        Args:
            request_ids: open requests, n of them.
            step: see the class.
            kv_lens: tokens per request, int32 `[n]`; None: those of the step, see `kv_lens`.
            role: whose tokens, where `kv_lens` is None.
            group: whose indices to write; None: page numbers.
            class_index: whose pages, where `group` is None.
            out: `indptr` `[rows + 1]` and `last_page_len` `[rows]` for rows >= n, of which those
                from n on become empty, and `indices`, which stays as it is after the last one;
                None: new arrays of exactly the sizes.
            stream: the engine's stream, needed where `out` is on a GPU.

        Returns:
            `out`.

        Raises:
            RequestError, StepError, BatchError: see `spans`.
            ArrayError: an array of `out` has another form; nothing was written.
            LedgerError: a length beyond the room of its request.
            BufferTooSmallError: an array of `out` is too short; nothing was written.
        """
        with self._lock:
            ids = RequestIds(request_ids)
            lens = self.kv_lens(ids, step, role=role) if kv_lens is None else kv_lens
            handles = self._resolve(ids)
            if out is None:
                num_pages = int((-(-lens // self._ledger.tokens_per_block)).sum())
                sizes = (len(handles) + 1, max(num_pages, 0), len(handles))
                out = Csr(*(np.empty(size, np.int32) for size in sizes))
            scale = 1 if group is None else group.scale
            number = class_index if group is None else group.class_index

            def fill(*arrays: NDArray[np.int32]) -> list[int]:
                total = _core.csr(
                    self._ledger, handles, lens, *arrays, scale=scale, class_index=number
                )
                return [arrays[0].size, total, arrays[2].size]

            targets = [
                int32_view(name, array, shape=(None,), writable=True)
                for name, array in out._asdict().items()
            ]
            self._writer.write(targets, fill, stream)
            return out

    def token_rows(
        self,
        request_ids: Iterable[Hashable],
        step: int | None = None,
        *,
        kv_lens: NDArray[np.int32] | None = None,
        role: str = "target",
        class_index: int = 0,
        pad: int = 0,
        out: Any = None,
        stream: object | None = None,
    ) -> Any:
        """Write the slot of every token of each request's KV into a row.

        Args:
            request_ids: open requests, n of them.
            step: see the class.
            kv_lens: tokens per request, int32 `[n]`; None: those of the step, see `kv_lens`.
            role: whose tokens, where `kv_lens` is None.
            class_index: whose pages.
            pad: what a row holds after its last token: 0 or -1.
            out: int32 `[n, width]`; None: a new array as wide as the longest row.
            stream: the engine's stream, needed where `out` is on a GPU.

        Returns:
            `out`.

        Raises:
            RequestError, StepError, BatchError: see `spans`.
            ArrayError: `out` has another form; nothing was written.
            LedgerError: a length beyond the room of its request or beyond the row, or another
                `pad`; or a pool with slots beyond 32 bits. Nothing was written.
        """
        with self._lock:
            ids = RequestIds(request_ids)
            lens = self.kv_lens(ids, step, role=role) if kv_lens is None else kv_lens
            handles = self._resolve(ids)
            if out is None:
                out = np.empty((len(handles), max(int(lens.max(initial=0)), 0)), np.int32)

            def fill(rows: NDArray[np.int32]) -> list[int]:
                _core.token_rows(
                    self._ledger, handles, lens, rows, pad=pad, class_index=class_index
                )
                return [rows.size]

            target = int32_view("out", out, shape=(len(handles), None), writable=True)
            self._writer.write([target], fill, stream)
            return out


def _rows(out: object, num_rows: int) -> ArrayView:
    target = int32_view("out", out, shape=(None, None), writable=True)
    if target.shape[0] < num_rows:
        raise ArrayError("out", f"{target.shape[0]} rows cannot hold {num_rows} requests")
    return target

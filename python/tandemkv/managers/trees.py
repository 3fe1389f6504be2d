"""Draft trees: the token copies that bring accepted nodes together, until they are run or taken."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemkv._core import Ledger, path_moves
from tandemkv.errors import BatchError, LedgerError, StepError
from tandemkv.managers.arrays import int_array, offset_array, token_array
from tandemkv.managers.moves import TokenMover
from tandemkv.managers.preparation import name_request
from tandemkv.managers.views import RoleView

_NONE: NDArray[np.int32] = np.zeros((0, 5), np.int32)


class TokenMoves(NamedTuple):
    """Token copies of each role's pools, int32 `[k, 5]`, to be run in order.

    Columns: class, source page, source offset, destination page, destination offset; offsets are in
    tokens.
    """

    target: NDArray[np.int32]
    draft: NDArray[np.int32]


class DraftTrees:
    """What `Managers` does with the paths of draft trees."""

    def __init__(self, ledger: Ledger, views: Sequence[RoleView]) -> None:
        self._ledger = ledger
        self._views = views
        self._movers: dict[str, TokenMover] = {}
        self._waiting = TokenMoves(_NONE, _NONE)

    def __bool__(self) -> bool:
        """Whether token copies wait to be run or taken."""
        return bool(len(self._waiting.target) or len(self._waiting.draft))

    def read(
        self,
        paths: tuple[object | None, object | None],
        num_items: int,
        counts: NDArray[np.int32],
        live: NDArray[np.intp] | None,
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32]] | None]:
        """Return nodes and their number per request, for the target and the draft.

        Args:
            paths: of both roles, with one entry per request of the batch.
            num_items: requests of the batch.
            counts: accepted tokens of the requests at the positions `live`, or of all.
            live: which requests still run; None: all.

        Raises:
            BatchError: a path of another form, or of another length than what was accepted.
        """
        read: list[tuple[NDArray[np.int32], NDArray[np.int32]] | None] = []
        for field, given in zip(("paths", "draft_paths"), paths, strict=True):
            read.append(None if given is None else _read(field, given, num_items, counts, live))
        return read

    def queue(
        self,
        step: int,
        handles: NDArray[np.int64],
        paths: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]] | None],
        ids: Sequence[Hashable],
    ) -> TokenMoves:
        """Return what the paths ask for, before the step is advanced; nothing is kept yet.

        Raises:
            LedgerError: a path that is none; see "Draft trees" in docs/ledger.md.
        """
        rows = []
        for role, path in enumerate(paths):
            if path is None:
                rows.append(_NONE)
                continue
            nodes, counts = path
            out = np.empty((len(nodes) * self._ledger.num_classes, 5), np.int32)
            try:
                written = path_moves(self._ledger, step, handles, nodes, counts, out, role)
            except LedgerError as error:
                name_request(error, ids)
                raise
            rows.append(out[:written])
        return TokenMoves(*rows)

    def add(self, moves: TokenMoves) -> None:
        """Keep copies, whose step was advanced, until they are run or taken."""
        self._waiting = TokenMoves(
            *(
                np.concatenate(both) if len(both[0]) and len(both[1]) else both[len(both[0]) == 0]
                for both in zip(self._waiting, moves, strict=True)
            )
        )

    def take(self) -> TokenMoves:
        """Return the copies that wait, and forget them."""
        taken, self._waiting = self._waiting, TokenMoves(_NONE, _NONE)
        return taken

    def run(self, stream: object | None) -> int:
        """Run the copies that wait in the pools of their role.

        Raises:
            PoolError, ArrayError: see `Managers.run_token_moves`; they still wait then.
        """
        waiting = dict(zip(TokenMoves._fields, self._waiting, strict=True))
        work = [(view, waiting[view.role]) for view in self._views if len(waiting[view.role])]
        for view, _ in work:
            if view.role not in self._movers:
                self._movers[view.role] = TokenMover(view.pools, view.device)
            self._movers[view.role].check(stream)
        total = sum(map(len, waiting.values()))
        self.take()
        for view, rows in work:
            self._movers[view.role].run(rows, stream)
        return total

    def forget_pools(self) -> None:
        """Look at the pools of the views anew; they were replaced."""
        self._movers.clear()

    def check_taken(self) -> None:
        """Refuse to plan anything while copies wait, whose pages could be given away.

        Raises:
            StepError: always then.
        """
        if self:
            raise StepError(
                "accepted nodes of draft trees were not brought together: call run_token_moves() "
                "or token_moves() after update_resources, before anything else is prepared",
                0,
            )


def _read(
    field: str,
    given: object,
    num_items: int,
    counts: NDArray[np.int32],
    live: NDArray[np.intp] | None,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    if isinstance(given, tuple) and len(given) == 2:
        nodes = int_array(f"{field}: nodes", given[0], np.int32)
        bounds = offset_array(f"{field}: offsets", given[1], num_items, len(nodes))
        rows = [nodes[first:end] for first, end in pairwise(bounds.tolist())]
    elif isinstance(given, Sequence) and not isinstance(given, tuple | str | bytes):
        rows = [token_array(f"{field}[{item}]", row) for item, row in enumerate(given)]
    else:
        raise BatchError(
            f"{field} is {type(given).__name__}; (nodes, offsets) or a list with one sequence of "
            "nodes per request is needed",
            field=field,
        )
    if len(rows) != num_items:
        raise BatchError(f"{field} has {len(rows)} items, expected {num_items}", field=field)
    chosen = range(num_items) if live is None else live.tolist()
    for item, count in zip(chosen, counts.tolist(), strict=True):
        if len(rows[item]) not in (0, count):
            raise BatchError(
                f"{field}[{item}] has {len(rows[item])} nodes, but {count} tokens were accepted: "
                "node 0 and the accepted drafts are as many, the bonus token has no node",
                field=field,
                item=item,
            )
    mine = [np.asarray(rows[item], np.int32) for item in chosen]
    lens = np.array([len(row) for row in mine], np.int32)
    return (np.concatenate(mine) if mine else np.zeros(0, np.int32)), lens

"""Between the managers' host tier and an outer store: evicted blocks out, prompts' blocks in."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemkv.config import check_count
from tandemkv.errors import RequestError
from tandemkv.managers import Managers
from tandemkv.managers.admission import asked_about
from tandemkv.managers.arrays import token_array
from tandemkv.managers.identity import Adapter, MediaItem, Salt, interned
from tandemkv.planning import Plan
from tandemkv.stores.protocol import OuterStore
from tandemkv.stores.shelves import host_shelf
from tandemkv.stores.tickets import Ticket
from tandemkv.stores.values import Bytes, check_bytes, check_timeout
from tandemkv.tiers import DEVICE, HOST, TransferPlan

Agree = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class BridgeStats:
    """What a bridge has moved, in blocks, since it was made.

    Attributes:
        offered: evicted blocks that were offered to the store.
        asked: blocks of prompts that were asked for.
        found: those that came, in one piece from the first one asked for.
        adopted: those that became entries of the host tier; the others were there by then, or
            found no room.
        pending_fetches: prompts whose blocks are on their way.
    """

    offered: int
    asked: int
    found: int
    adopted: int
    pending_fetches: int


@dataclass(frozen=True, slots=True)
class _Fetch:
    keys: Bytes
    payloads: Bytes
    ticket: Ticket


class StoreBridge:
    """Copies blocks between the host tier of managers and an outer store.

    * Out: what is evicted from the device to the host is offered to the store as well.
    * In: `fetch` asks for the blocks of a prompt that no tier has, `poll` makes entries of the host
      tier of what came, and the next admission loads them like all others.

    It never waits for the store, and what does not come in time is computed. `fetch` and `poll`
    belong to the thread that drives the managers. A block is moved with the pages of both roles.

    Args:
        managers: with a host tier in memory.
        plan: what they were built from.
        store: the store; it stays the caller's to close.
        rank: the rank of the managers.
        put_timeout_s: seconds that the store has to take a block.
        get_timeout_s: seconds that it has to answer a `fetch`.
        max_fetch_bytes: bytes of payloads that are on their way; what is beyond is not asked for.
        agree: where several ranks decide alike, what makes them see the same: it is given uint8
            `[n]` and returns the smallest value of all ranks at each place. Every rank then
            fetches and polls alike. None: this rank decides alone.

    Raises:
        StoreError: no host tier in memory, or a model with windows or states.
    """

    def __init__(
        self,
        managers: Managers,
        plan: Plan,
        store: OuterStore,
        *,
        rank: int = 0,
        put_timeout_s: float = 30.0,
        get_timeout_s: float = 1.0,
        max_fetch_bytes: int = 1 << 30,
        agree: Agree | None = None,
    ) -> None:
        check_count("rank", rank, least=0)
        self._max_fetch_bytes = check_bytes("max_fetch_bytes", max_fetch_bytes, least=0)
        self._managers, self._ledger, self._limits = managers, managers.ledger, managers.limits
        self._store = store
        self._put_timeout_s = check_timeout("put_timeout_s", put_timeout_s)
        self._get_timeout_s = check_timeout("get_timeout_s", get_timeout_s)
        self._agree = agree
        self._shelf = host_shelf(managers, plan, rank)
        self._leaving: dict[int, tuple[int, bytes]] = {}
        self._fetches: dict[Hashable, _Fetch] = {}
        self._fetch_bytes = 0
        self._offered = self._asked = self._found = self._adopted = 0
        assert managers.tiers is not None
        managers.tiers.observer = self

    # --- out ----------------------------------------------------------------------------------

    def planned(self, plan: TransferPlan) -> None:
        """Note which blocks go to the host; called before they are copied."""
        for row, key in zip(plan.rows.tolist(), plan.keys, strict=True):
            number, class_index, source, _, target, page = row
            if (source, target) == (DEVICE, HOST) and class_index == self._shelf.class_index:
                self._leaving[number] = page, key.tobytes()

    def completed(self, ids: NDArray[np.int64], ok: NDArray[np.uint8]) -> None:
        """Offer to the store what has reached the host; called before the ledger hears of it."""
        arrived = []
        for number, good in zip(ids.tolist(), ok.tolist(), strict=True):
            left = self._leaving.pop(number, None)
            if left is not None and good:
                arrived.append(left)
        if not arrived:
            return
        pages = np.array([page for page, _ in arrived], np.int32)
        keys = np.frombuffer(b"".join(key for _, key in arrived), np.uint8).reshape(-1, 32)
        self._offered += len(arrived)
        self._store.put(
            self._shelf.layout,
            keys,
            lambda rows: self._shelf.gather(pages, rows),
            timeout_s=self._put_timeout_s,
        )

    # --- in -----------------------------------------------------------------------------------

    def fetch(
        self,
        request_id: Hashable,
        tokens: object,
        *,
        scope: int = 0,
        adapter: Adapter | None = None,
        cache_salt: Salt | None = None,
        media: Sequence[MediaItem] = (),
    ) -> int:
        """Ask the store for the blocks of a prompt that follow what the tiers have.

        Args:
            request_id: names the fetch, for `is_pending` and `cancel`.
            tokens: the prompt, ints or an int32 or int64 array.
            scope: as in a batch, like the arguments after it.
            adapter: `(id, version)`.
            cache_salt: bytes or text.
            media: `(offset, length, digest)` of each item.

        Returns:
            Blocks that were asked for; 0: there is nothing to wait for.

        Raises:
            RequestError: a fetch of that name is pending.
            BatchError: an argument that a batch would refuse.
            LedgerError: a scope that is not held.
        """
        with self._managers.lock:
            if request_id in self._fetches:
                raise RequestError(f"a fetch for {request_id!r} is pending", (request_id,))
            keys = self._missing(token_array("tokens", tokens), scope, adapter, cache_salt, media)
            room = self._max_fetch_bytes - self._fetch_bytes
            keys = keys[: room // self._shelf.layout.payload_bytes]
            if not len(keys):
                return 0
            payloads = np.empty((len(keys), self._shelf.layout.payload_bytes), np.uint8)
            ticket = self._store.get(
                self._shelf.layout, keys, payloads, timeout_s=self._get_timeout_s
            )
            self._fetches[request_id] = _Fetch(keys, payloads, ticket)
            self._fetch_bytes += payloads.nbytes
            self._asked += len(keys)
            return len(keys)

    def is_pending(self, request_id: Hashable) -> bool:
        """Return whether blocks of a prompt are on their way, so that waiting may save work."""
        return request_id in self._fetches

    def poll(self) -> int:
        """Make entries of the host tier of what has come; return how many. Never waits."""
        with self._managers.lock:
            names = list(self._fetches)
            done = [self._fetches[name].ticket.poll() is not None for name in names]
            adopted = 0
            for name, ended in zip(names, self._agreed(np.array(done, np.uint8)), strict=True):
                if ended:
                    adopted += self._adopt(self._end(name))
            return adopted

    def cancel(self, request_id: Hashable) -> None:
        """Forget a fetch, if it is pending. Where ranks agree, all of them have to.

        Its memory is given up with its ticket, when nothing writes to it any more.
        """
        with self._managers.lock:
            if request_id in self._fetches:
                self._end(request_id).ticket.cancel()

    def stats(self) -> BridgeStats:
        """Return the counters."""
        return BridgeStats(
            offered=self._offered,
            asked=self._asked,
            found=self._found,
            adopted=self._adopted,
            pending_fetches=len(self._fetches),
        )

    def _missing(
        self,
        prompt: NDArray[np.int32] | NDArray[np.int64],
        scope: int,
        adapter: Adapter | None,
        cache_salt: Salt | None,
        media: Sequence[MediaItem],
    ) -> Bytes:
        """Return the tier keys of the blocks of a prompt after those that some tier has."""
        if not len(prompt):
            return np.empty((0, 32), np.uint8)
        asked = asked_about(
            self._limits,
            "fetch",
            prompt,
            scope=scope,
            adapter=adapter,
            cache_salt=cache_salt,
            media=media,
        )
        with interned(self._ledger, asked):
            tokens, number = asked.tokens, int(asked.scopes[0])
            if number < 0:
                return np.empty((0, 32), np.uint8)
            found = sum(self._ledger.match_tiers(tokens, number))
            keys = self._ledger.tier_keys(tokens, number)
        return keys[found // self._limits.tokens_per_block :]

    def _end(self, request_id: Hashable) -> _Fetch:
        fetch = self._fetches.pop(request_id)
        self._fetch_bytes -= fetch.payloads.nbytes
        return fetch

    def _adopt(self, fetch: _Fetch) -> int:
        """Put what came of a fetch, up to the first block that did not, into the host tier."""
        came = fetch.ticket.poll()
        assert came is not None
        mask = self._agreed(came.astype(np.uint8))
        count = len(mask) if mask.all() else int(np.argmin(mask))
        self._found += count
        pages = np.empty(count, np.int32)
        adopted = self._ledger.adopt(self._shelf.class_index, fetch.keys[:count], pages)
        given = np.flatnonzero(pages >= 0)
        self._shelf.scatter(fetch.payloads[given], pages[given])
        self._adopted += adopted
        return adopted

    def _agreed(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return values if self._agree is None or not len(values) else self._agree(values)

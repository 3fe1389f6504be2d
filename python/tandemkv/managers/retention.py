"""What users say about cached blocks: which to keep longer, and which not to evict for now."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from threading import RLock

import numpy as np

from tandemkv._core import Ledger
from tandemkv.errors import BatchError, LedgerError
from tandemkv.managers.admission import asked_about
from tandemkv.managers.arrays import int_array, token_array
from tandemkv.managers.identity import Adapter, MediaItem, Salt, interned, read_identity
from tandemkv.managers.limits import Limits
from tandemkv.managers.registry import Registry

TO_THE_END = -1
FOR_GOOD = -1


class Retention:
    """Priorities, leases on prefixes, and quotas of scopes: `Managers.retention`.

    `docs/eviction.md` says exactly what they mean.
    """

    def __init__(self, ledger: Ledger, limits: Limits, registry: Registry, lock: RLock) -> None:
        self._ledger = ledger
        self._limits = limits
        self._registry = registry
        self._lock = lock

    def retain(
        self,
        request_id: Hashable,
        *,
        priority: int,
        start: int = 0,
        end: int | None = None,
        duration_ms: int | None = None,
    ) -> None:
        """Set the priority of blocks of a request; blocks of lower priority are evicted first.

        Args:
            request_id: an open request.
            priority: 0 to 100; without a hint it is 35.
            start: first token of the range; blocks whose first token is in the range are meant.
            end: token after the range; None: to the end of the request, generated tokens too.
            duration_ms: so long after the newest step's clock the default holds again; None: it
                does not come back.

        Raises:
            RequestError: the id is not open.
            BatchError: a value that is no integer of its width.
            LedgerError: a value that is out of range, or the request is suspended.
        """
        with self._lock:
            handle = self._registry.handle(request_id)
            try:
                self._ledger.retain(
                    np.array([handle], np.int64),
                    int_array("start", [start], np.int64),
                    int_array("end", [TO_THE_END if end is None else end], np.int64),
                    int_array("priority", [priority], np.int32),
                    int_array(
                        "duration_ms", [FOR_GOOD if duration_ms is None else duration_ms], np.int64
                    ),
                )
            except LedgerError as error:
                error.add_note(f"the request is {request_id!r}")
                raise

    def pin(
        self,
        tokens: object,
        *,
        until: float = math.inf,
        scope: int = 0,
        draft_from: int | None = None,
        adapter: Adapter | None = None,
        cache_salt: Salt | None = None,
        media: Sequence[MediaItem] = (),
    ) -> tuple[int, int]:
        """Keep what is cached of a prompt from being evicted, although no request uses it.

        The plan must allow it: `KvCacheConfig(max_pinned_fraction=)`.

        Args:
            tokens: the prompt, ints or an int32 or int64 array.
            until: the clock of `begin_step` at which the lease ends; without it `unpin` ends it.
            scope: as in a batch, like the arguments after it.
            draft_from: the first position whose draft KV will be valid, -1 without a draft; None:
                0 where the plan has a draft.
            adapter: `(id, version)`.
            cache_salt: bytes or text.
            media: `(offset, length, digest)` of each item.

        Returns:
            The number of the lease, and the tokens that it protects: (0, 0) if nothing is cached,
            (-1, 0) if leases together, or what runs, would need too much of the pool.

        Raises:
            BatchError: `tokens` holds no tokens, or more than the plan's `max_seq_len`, or another
                argument that a batch would refuse.
            LedgerError: `scope` or `draft_from` is out of range, or `until` is not above the
                newest step's clock.
        """
        if not isinstance(until, int | float):
            raise BatchError(f"until is {until!r}; a number is needed", field="until")
        prompt = token_array("tokens", tokens)
        if not len(prompt):
            raise BatchError("tokens is empty; at least one is needed", field="tokens")
        with self._lock:
            asked = asked_about(
                self._limits,
                "lease",
                prompt,
                scope=scope,
                adapter=adapter,
                cache_salt=cache_salt,
                media=media,
                draft_from=draft_from,
            )
            with interned(self._ledger, asked):
                return self._ledger.pin(
                    asked.tokens,
                    int(asked.scopes[0]),
                    float(until),
                    None if asked.draft_from is None else int(asked.draft_from[0]),
                )

    def set_quota(
        self,
        floor_blocks: int,
        ceiling_blocks: int | None = None,
        *,
        scope: int = 0,
        adapter: Adapter | None = None,
        cache_salt: Salt | None = None,
    ) -> None:
        """Say how much of the cache requests of one scope keep while others need room.

        Args:
            floor_blocks: requests of other scopes evict nothing of this one at or below so many
                cached blocks; 0: no floor.
            ceiling_blocks: cached blocks above which this scope is evicted before all others;
                None: no ceiling. Floor 0 without a ceiling ends the quota.
            scope: as in a batch, like the arguments after it.
            adapter: `(id, version)`.
            cache_salt: bytes or text.

        Raises:
            BatchError: an adapter or salt that a batch would refuse.
            LedgerError: a scope that is not held, a ceiling below the floor, or a floor beyond what
                other floors and the open requests leave; nothing was changed.
        """
        identity = read_identity(1, [adapter], [cache_salt], None)
        with self._lock:
            if identity is None or not identity.has_scope(0):
                self._ledger.set_quota(scope, floor_blocks, ceiling_blocks)
                return
            self._ledger.begin_trial()
            number = self._ledger.intern_scope(adapter, cache_salt)
            try:
                self._ledger.set_quota(number, floor_blocks, ceiling_blocks)
            finally:
                # The quota keeps the number in use.
                self._ledger.release_scope(number)
                self._ledger.end_trial()

    def unpin(self, lease: int) -> bool:
        """End a lease; what nothing protects any more may be evicted.

        Returns:
            Whether it still held: not if its time had come, or if `reset_reuse_state` or
            `drop_scope` gave its blocks up.

        Raises:
            LedgerError: a number that `pin` never gave.
        """
        with self._lock:
            return self._ledger.unpin(lease)

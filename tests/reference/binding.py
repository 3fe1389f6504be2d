"""`tandemkv._core.Ledger` behind the methods of the reference: lists in, lists out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from reference.lifetimes import CROSS, STATE
from reference.state import Config, Request
from tandemkv import _core

_MOVES_MAX = 4096


def _i32(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def _arguments(config: Config) -> dict[str, Any]:
    arguments = {**asdict(config), "num_pages": list(config.num_pages)}
    for name in ("host_pages", "disk_pages"):
        pages = arguments.pop(name)
        if pages is not None:
            arguments[name] = list(pages)
    return arguments


def _i64(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class CoreLedger:
    """One real ledger.

    Args:
        config: its arguments.
        flat: whether tokens are passed one after the other: prompts as (tokens, offsets) instead of
            a list of arrays, accepted tokens as one array instead of a row per sequence.
        dtype: the integer type of token arrays.
    """

    def __init__(self, config: Config, flat: bool = False, dtype: type = np.int32) -> None:
        self.config = config
        self.flat = flat
        self.dtype = dtype
        self.core = _core.Ledger(**_arguments(config))
        self.num_classes = len(config.num_pages)

    def begin_step(self, now: float) -> int:
        return self.core.begin_step(now)

    def complete_step(self, step: int) -> None:
        self.core.complete_step(step)

    def admit(
        self, step: int, items: list[Request], stop_at_first: bool = False
    ) -> tuple[int, list[int], list[int]]:
        handle, hit = np.full(len(items), 99, np.int64), np.full(len(items), 99, np.int32)
        count = self.core.admit(step, *self._requests(items), handle, hit, stop_at_first)
        return count, handle.tolist(), hit.tolist()

    def _requests(self, items: list[Request]) -> tuple[Any, ...]:
        prompts: Any = [np.array(item.prompt, dtype=self.dtype) for item in items]
        if self.flat:
            offsets = np.cumsum([0, *(len(prompt) for prompt in prompts)], dtype=np.int64)
            flat = np.concatenate(prompts) if prompts else np.zeros(0, self.dtype)
            prompts = (flat.astype(self.dtype), offsets)
        draft_from = _i32([item.draft_from for item in items])
        return (
            prompts,
            _i32([item.scope for item in items]),
            _i32([item.first for item in items]),
            _i64([item.max_total for item in items]),
            draft_from if self.config.has_draft or np.any(draft_from != -1) else None,
        )

    def fits(self, items: list[Request]) -> tuple[int, list[int], list[int]]:
        answer, hit = np.full(len(items), 99, np.int32), np.full(len(items), 99, np.int32)
        count = self.core.fits(*self._requests(items), answer, hit)
        return count, answer.tolist(), hit.tolist()

    def fits_blocks(
        self, items: list[tuple[int, int, int, int]], scopes: list[int] | None = None
    ) -> tuple[int, list[int]]:
        answer = np.full(len(items), 99, np.int32)
        length, hit, first, max_total = ([item[at] for item in items] for at in range(4))
        each = None if scopes is None else _i32(scopes)
        count = self.core.fits_blocks(
            _i64(length), _i64(hit), _i32(first), _i64(max_total), answer, each
        )
        return count, answer.tolist()

    def reclaimable(self, handles: list[int]) -> list[list[int]]:
        pages = np.full((len(handles), self.num_classes), -7, np.int64)
        self.core.reclaimable(_i64(handles), pages)
        return pages.tolist()

    def victims(self, handles: list[int], need: list[int]) -> tuple[int, list[int]]:
        chosen = np.full(len(handles), 7, np.uint8)
        return self.core.victims(_i64(handles), _i64(need), chosen), chosen.tolist()

    def explain_match(self, tokens: tuple[int, ...], scope: int, draft_from: int) -> dict[str, Any]:
        return self.core.explain_match(np.array(tokens, dtype=self.dtype), scope, draft_from)

    def begin_trial(self) -> None:
        self.core.begin_trial()

    def end_trial(self) -> None:
        self.core.end_trial()

    def resize(self, num_pages: list[int]) -> list[tuple[int, int, int, int]]:
        return [tuple(row) for row in self.core.resize(num_pages).tolist()]

    def set_quota(self, scope: int, floor: int, ceiling: int | None) -> None:
        self.core.set_quota(scope, floor, ceiling)

    def quotas(self) -> list[dict[str, Any]]:
        return self.core.quotas()

    def pin(
        self, tokens: tuple[int, ...], scope: int, until: float, draft_from: int
    ) -> tuple[int, int]:
        return self.core.pin(np.array(tokens, dtype=self.dtype), scope, until, draft_from)

    def unpin(self, lease: int) -> bool:
        return self.core.unpin(lease)

    def retain(self, items: list[tuple[int, int, int, int, int]]) -> None:
        columns = list(zip(*items, strict=True)) if items else [[]] * 5
        handle, start, end, priority, duration_ms = (list(column) for column in columns)
        self.core.retain(_i64(handle), _i64(start), _i64(end), _i32(priority), _i64(duration_ms))

    def fork(self, step: int, parents: list[int]) -> tuple[int, list[int]]:
        out = np.full(len(parents), 99, np.int64)
        return self.core.fork(step, _i64(parents), out), out.tolist()

    def grow(
        self, step: int, items: list[tuple[int, int]], stop_at_first: bool = False
    ) -> tuple[int, list[int]]:
        ok = np.full(len(items), 99, np.uint8)
        handles, widths = _i64([h for h, _ in items]), _i32([w for _, w in items])
        return self.core.grow(step, handles, widths, ok, stop_at_first), ok.tolist()

    def path_moves(
        self, step: int, items: list[tuple[int, tuple[int, ...]]], role: int
    ) -> list[tuple[int, int, int, int, int]]:
        counts = [len(nodes) for _, nodes in items]
        if self.flat:
            path = _i32([node for _, nodes in items for node in nodes])
        else:
            path = np.full((len(items), max(counts, default=0)), -9, np.int32)
            for row, (_, nodes) in zip(path, items, strict=True):
                row[: len(nodes)] = nodes
        out = np.full((sum(counts) * self.num_classes, 5), -7, np.int32)
        handles = _i64([handle for handle, _ in items])
        written = _core.path_moves(self.core, step, handles, path, _i32(counts), out, role)
        return [tuple(row) for row in out[:written].tolist()]

    def advance(
        self,
        step: int,
        items: list[tuple[int, tuple[int, ...], int]],
        valid: list[list[int]] | None = None,
    ) -> None:
        if self.flat:
            tokens = np.array([t for _, given, _ in items for t in given], dtype=self.dtype)
        else:
            width = max((len(given) for _, given, _ in items), default=0)
            tokens = np.zeros((len(items), width), dtype=self.dtype)
            for row, (_, given, _) in zip(tokens, items, strict=True):
                row[: len(given)] = given
        ends = None if valid is None else np.array(valid, dtype=np.int32)
        handles, counts = _i64([h for h, _, _ in items]), _i32([c for _, _, c in items])
        self.core.advance(step, handles, tokens, counts, ends)

    def release(self, items: list[tuple[int, int]]) -> None:
        publish = np.array([publish for _, publish in items], dtype=np.uint8)
        self.core.release(_i64([handle for handle, _ in items]), publish)

    def suspend(self, items: list[tuple[int, int]]) -> None:
        publish = np.array([publish for _, publish in items], dtype=np.uint8)
        self.core.suspend(_i64([handle for handle, _ in items]), publish)

    def resume(self, step: int, items: list[tuple[int, int]]) -> tuple[int, list[int], list[int]]:
        ok, hit = np.full(len(items), 99, np.uint8), np.full(len(items), 99, np.int32)
        handles, first = _i64([h for h, _ in items]), _i32([f for _, f in items])
        count = self.core.resume(step, handles, first, ok, hit)
        return count, ok.tolist(), hit.tolist()

    def match(self, tokens: tuple[int, ...], scope: int, draft_from: int) -> int:
        return self.core.match(np.array(tokens, dtype=self.dtype), scope, draft_from)

    def keys(self, tokens: tuple[int, ...], scope: int) -> list[bytes]:
        keys = self.core.keys(np.array(tokens, dtype=self.dtype), scope)
        assert keys.shape[1] == 32
        return [key.tobytes() for key in keys]

    def block_keys(self, handle: int) -> list[bytes]:
        return [key.tobytes() for key in self.core.block_keys(handle)]

    def intern_scope(self, adapter: tuple | None = None, salt: bytes | str | None = None) -> int:
        return self.core.intern_scope(adapter, salt)

    def release_scope(self, scope: int) -> None:
        self.core.release_scope(scope)

    def drop_scope(self, scope: int) -> None:
        self.core.drop_scope(scope)

    def intern_media(self, digest: bytes, length: int) -> int:
        return self.core.intern_media(digest, length)

    def release_media(self, reference: int) -> None:
        self.core.release_media(reference)

    def moves(self) -> list[tuple[int, int, int, int]]:
        out = np.zeros((_MOVES_MAX, 4), np.int32)
        return [tuple(row) for row in out[: self.core.moves(out)].tolist()]

    def updates(self, capacity: int) -> list[tuple[int, int, int, int]]:
        """(row, class, column, page) of every entry that changed; `capacity` rows of buffer."""
        out = np.zeros((capacity, 4), np.int32)
        return [tuple(row) for row in out[: self.core.updates(out)].tolist()]

    def table(self, handle: int) -> list[list[int]]:
        dst, used = self.tables([handle])
        return [row[:count].tolist() for row, count in zip(dst[:, 0], used[:, 0], strict=True)]

    def tables(self, handles: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the full-width tables of several sequences and the used columns of each."""
        dst = np.full((self.num_classes, len(handles), self.core.row_width), -7, np.int32)
        used = np.full((self.num_classes, len(handles)), -7, np.int32)
        self.core.table(_i64(handles), dst, used)
        return dst, used

    def sequence(self, handle: int) -> dict[str, Any]:
        seq = dict(self.core.sequence(handle))
        seq["valid"] = list(seq["valid"])
        seq["outstanding"] = [tuple(record) for record in seq["outstanding"]]
        return seq

    def stats(self) -> dict[str, Any]:
        stats = dict(self.core.stats())
        del stats["nodes"]  # runs of blocks, which only the core has
        for name in ("evicted_side_pages", "snapshots"):
            stats.setdefault(name, 0)
        return stats

    def transfers(self, capacity: int) -> list[tuple[Any, ...]]:
        out, keys = np.full((capacity, 6), -7, np.int64), np.full((capacity, 32), 7, np.uint8)
        count = self.core.transfers(out, keys)
        rows = zip(out[:count].tolist(), keys[:count], strict=True)
        return [(*row, key.tobytes()) for row, key in rows]

    def pending_transfers(self) -> int:
        return self.core.pending_transfers()

    def complete_transfers(self, items: list[tuple[int, int]]) -> None:
        ok = np.array([ok for _, ok in items], dtype=np.uint8)
        self.core.complete_transfers(_i64([number for number, _ in items]), ok)

    def loading(self, handles: list[int]) -> tuple[int, list[int]]:
        out = np.full(len(handles), 7, np.uint8)
        return self.core.loading(_i64(handles), out), out.tolist()

    def match_tiers(
        self, tokens: tuple[int, ...], scope: int, draft_from: int
    ) -> tuple[int, int, int]:
        return tuple(self.core.match_tiers(np.array(tokens, dtype=self.dtype), scope, draft_from))

    def offload(self, blocks: int) -> int:
        return self.core.offload(blocks)

    def flush(self) -> int:
        return self.core.flush()

    def restore(self, tier: str, cls: int, keys: list[bytes], pages: list[int]) -> int:
        digests = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 32)
        return self.core.restore(tier, cls, digests, _i32(pages))

    def adopt(self, cls: int, keys: list[bytes]) -> tuple[int, list[int]]:
        digests = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), 32)
        pages = np.full(len(keys), 99, np.int32)
        return self.core.adopt(cls, digests, pages), pages.tolist()

    def tier_stats(self) -> dict[str, Any]:
        return self.core.tier_stats()

    def reset_reuse_state(self, detach_live: bool = False) -> None:
        self.core.reset_reuse_state(detach_live)

    def digest(self) -> bytes:
        return self.core.digest()

    def validate(self) -> None:
        self.core.validate()

    def owned_pages(self) -> list[list[int]]:
        """Per class, every page that the dump names, once per place that names it."""
        dump = self.core.dump()
        owned: list[list[int]] = []
        for cls, pages in enumerate(dump["classes"]):
            found = [*pages["free"], *(page for page, _ in pages["fenced"])]
            for node in dump["nodes"]:
                found += node["pages"][cls]
            live: set[int] = set()
            for seq in dump["sequences"].values():
                # The pages before `committed` are those of the tree; forks may share others.
                shared = seq["committed"] // self.config.tokens_per_block
                live |= {*seq["pages"][cls][0 if self._is_own(cls) else shared :]}
            owned.append([page for page in [*found, *live] if page])
        return owned

    def _is_own(self, cls: int) -> bool:
        """Tell whether a sequence shares no page of its row in this class."""
        rules = self.config.lifetimes
        return rules is not None and rules[cls][0] in {STATE, CROSS}

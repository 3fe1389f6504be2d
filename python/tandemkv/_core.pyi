"""The Rust core. Every call here is a batch call on caller-owned buffers.

`docs/ledger.md` says what each call means. Buffers are C-contiguous NumPy arrays (or anything with
the buffer protocol) of exactly the dtype named; outputs are written in place.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DEBUG_BUILD",
    "Ledger",
    "__version__",
    "checksum",
    "copy_pages",
    "cost_tokens",
    "csr",
    "group_cost",
    "layer_bytes_per_token",
    "layer_state_bytes",
    "page_checksum",
    "path_moves",
    "resolve_lifetime",
    "slot_mapping",
    "spans",
    "split_bytes",
    "split_pages",
    "token_bytes",
    "token_rows",
    "tokens_of_bytes",
    "utilization",
    "window_blocks",
]

__version__: str
DEBUG_BUILD: bool

_I32 = NDArray[np.int32]
_I64 = NDArray[np.int64]
_U8 = NDArray[np.uint8]
_Tokens = NDArray[np.int32] | NDArray[np.int64]

_Cost = tuple[int, int]

def layer_bytes_per_token(
    *,
    kind: str,
    kv_dtype: str,
    tp_size: int = 1,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    v_head_dim: int | None = None,
    shared_kv: bool = False,
    kv_lora_rank: int | None = None,
    qk_rope_head_dim: int | None = None,
    side_bytes: int = 0,
) -> int:
    """Bytes per token of one layer on each of `tp_size` ranks (1 under attention-DP).

    `kind` is `attention` or `cross_attention` (needs `num_kv_heads` and `head_dim`; `v_head_dim`
    defaults to `head_dim`, and with `shared_kv` the keys are the values, kept once) or `mla` (needs
    `kv_lora_rank` and `qk_rope_head_dim`; never divided by tp).
    `side_bytes` are raw bytes per token: neither the KV dtype nor tp changes them. Raises
    `GeometryError` for an unknown kind or dtype, and for heads that the ranks cannot hold whole.
    """

def layer_state_bytes(
    *, buffers: Sequence[tuple[str, int, int, int, str]], tp_size: int = 1
) -> int:
    """Bytes per sequence of a layer's recurrent state on each of `tp_size` ranks.

    A buffer is `(name, split_units, unit_elements, replicated_elements, dtype)`: units are heads,
    groups or channels that tp divides like KV heads (`ceil`, or one whole unit each where there
    are fewer than ranks), the replicated elements are on every rank. Raises `GeometryError` for
    units that the ranks cannot hold whole, and for a dtype that is not bf16, fp16, fp32 or fp8.
    """

def cost_tokens(cost: _Cost, budget_bytes: int) -> int | None:
    """Most tokens T with `slope * T + intercept <= budget_bytes`, for `cost = (slope, intercept)`.

    0 if the budget does not cover the intercept; None if it does and the slope is 0.
    """

def split_bytes(
    budget_bytes: int, target: _Cost, draft: _Cost, tier: str
) -> tuple[str | None, int, int]:
    """Proportional split of one budget: (reason it was not split, target bytes, draft bytes).

    The reason is None when it was split, else `no_budget`, `no_target_cost` or `no_draft_cost`.
    Raises `BudgetError` if the fixed cost leaves nothing for a role that grows.
    """

def split_pages(
    *,
    tier: str,
    tokens_per_block: int,
    budget_bytes: Sequence[int],
    target: Sequence[_Cost],
    draft: Sequence[_Cost],
    bytes_per_sequence: Sequence[int] | None = None,
    max_batch_size: int | None = None,
    max_pages: int | None = None,
) -> tuple[int | None, list[tuple[int | None, int, int, int]]]:
    """Whole pages for both roles on every rank: (pages, one entry per rank).

    The costs are those of this tier. An entry is (pages this rank alone could hold, target bytes,
    draft bytes, slack bytes); the
    last three add up to the rank's budget. Pages are the minimum over the ranks, the reserved
    page included; None where tokens cost nothing on any rank. The device must hold two pages,
    host and disk one. `bytes_per_sequence` (both roles, per rank) times `max_batch_size` is the
    part of the intercepts that a smaller batch would save; it only serves to name that batch in
    the error. `max_pages` caps the pages of all ranks, whatever else would fit.
    Raises `BudgetError`.
    """

_Lifetime = tuple[str, int, int]
_Fixed = tuple[int, int, int, int, int, int, int]
_TokenCost = tuple[int, int, int, int, int]

def resolve_lifetime(lifetime: _Lifetime, max_seq_len: int, lookahead: int) -> _Lifetime:
    """Return the rule that holds for sequences of at most `max_seq_len` tokens.

    A lifetime is (name, tokens, sink tokens): `full_attention`, `sliding_window` (the last tokens,
    the one in flight included, and the sinks), `chunked_attention` (the tokens of the current
    chunk), `cross_attention` (the first tokens, an encoder's) or `recurrent_state` (none). A window
    or chunk that no sequence outgrows, `tokens + lookahead >= max_seq_len`, is `full_attention`.
    """

def window_blocks(
    lifetime: _Lifetime, *, tokens_per_block: int, lookahead: int, tokens: int, ahead: int
) -> int:
    """Most blocks a sequence keeps until `tokens` are settled, with room for `ahead` more.

    Raises `BudgetError` for a length of 0, or above 2^31 - 1.
    """

def group_cost(
    lifetime: _Lifetime,
    bytes: int,  # noqa: A002 (the unit is the name)
    *,
    tokens_per_block: int,
    cp_size: int,
    sequences: int,
    headroom: int,
    lookahead: int,
    step_tokens: int,
    dummies: int,
    endpoints: int,
    snapshot_interval: int | None,
    resume: tuple[int, int],
) -> tuple[int, _Fixed | None, _Cost, _Cost]:
    """Cost of a group on one rank: (page bytes, fixed pages, device cost, cost on host and disk).

    `bytes` are those of one token in all its layers, or of one sequence's states. Fixed pages are
    (reserved, dummies, endpoints, margin, per sequence, sequences, per step); None where every
    token is kept. `tests/test_plan_windows.py` shows what each term is.
    Raises `BudgetError` for a length that no window can have and for numbers beyond 64 bits.
    """

def token_bytes(cost: _TokenCost, tokens: int) -> int:
    """`T * full + min(T, N) * context + sequences * per_sequence`.

    `cost` is (full, context, per_sequence, sequences, N). Raises `BudgetError` beyond 64 bits.
    """

def tokens_of_bytes(cost: _TokenCost, budget_bytes: int) -> int | None:
    """Most tokens whose `token_bytes` are at most the budget; 0 if not even the sequences fit.

    None if nothing limits the tokens. Raises `BudgetError` beyond 64 bits.
    """

def utilization(limit: tuple[int, int], amount: int) -> tuple[int, int]:
    """`ceil(amount * d / n)` and `amount * n // d` for a limit of n / d, above 0 and at most 1.

    The first is what must be there so that `amount` is at most that fraction of it; the second how
    much of `amount` may be used. Raises `BudgetError` beyond 64 bits.
    """

@final
class Ledger:
    """The pages, sequences and prefix tree of one rank, for target and draft together.

    Args:
        tokens_per_block: tokens per block, >= 1.
        num_pages: pages per class, the reserved page 0 included; each >= 2.
        max_sequences: rows, >= 1.
        max_seq_len: largest `max_total` of a sequence, in tokens.
        has_draft: whether sequences may carry draft KV.
        extra_tokens: room kept beyond what is written, in tokens.
        reserve_tokens: most draft tokens that one step runs beyond one token.
        lookahead: D, later tokens that draft KV at a position depends on.
        reuse: whether blocks are published and matched.
        partial_reuse: whether a hit may end inside a block.
        same_stream: later work is ordered after earlier work, so pages need no fence.
        watermark_blocks: blocks per class that admissions leave to the growth of open sequences.
        lifetimes: how long each class keeps a token, as `resolve_lifetime` returned it; None: all
            classes are `full_attention`.
        max_step_tokens: most tokens that a sequence runs in a step, which bounds what admission
            counts for a window; 0: no bound known.
        num_blocks: block records of a ledger that publishes and has no full class; None otherwise.
        snapshot_interval: a state is copied into the tree at histories that are multiples of so
            many tokens (itself a multiple of `tokens_per_block`); 0: never.
        events: how many events about cached blocks are kept; 0 logs none.
        fingerprint: what keys name besides tokens and scope: weights, dtypes, layout.
        policy: in which order cached blocks are evicted: `lru`, `lfu` or `adaptive`; see
            `docs/eviction.md`.
        ttl_ms: milliseconds without use after which cached blocks are given up; 0: never.
        max_leased_blocks: most blocks that leases (`pin`) may protect together.
        host_pages: pages per class on the host, none reserved; None: no such tier. Tiers below the
            device need `reuse`; see `docs/tiers.md`.
        disk_pages: the same on disk.
    """

    def __new__(
        cls,
        *,
        tokens_per_block: int,
        num_pages: Sequence[int],
        max_sequences: int,
        max_seq_len: int,
        has_draft: bool = False,
        extra_tokens: int = 0,
        reserve_tokens: int = 0,
        lookahead: int = 0,
        reuse: bool = True,
        partial_reuse: bool = True,
        same_stream: bool = False,
        watermark_blocks: int = 0,
        policy: str = "lru",
        max_leased_blocks: int = 0,
        ttl_ms: int = 0,
        host_pages: Sequence[int] | None = None,
        disk_pages: Sequence[int] | None = None,
        lifetimes: Sequence[_Lifetime] | None = None,
        max_step_tokens: int = 0,
        num_blocks: int | None = None,
        snapshot_interval: int = 0,
        events: int = 0,
        fingerprint: bytes = b"",
    ) -> Ledger: ...
    @property
    def tokens_per_block(self) -> int: ...
    @property
    def policy(self) -> str: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def row_width(self) -> int:
        """Blocks that a row can hold.

        `cdiv(max_seq_len + extra + reserve + 1, tokens_per_block)`, rounded up to a multiple of 4.
        """
    @property
    def max_sequences(self) -> int: ...
    def begin_step(self, now: float = 0.0) -> int: ...
    def complete_step(self, step: int) -> None: ...
    def admit(
        self,
        step: int,
        prompts: Sequence[_Tokens] | tuple[_Tokens, _I64],
        scope: _I32,
        first: _I32,
        max_total: _I64,
        draft_from: _I32 | None,
        handle: _I64,
        hit: _I32,
        stop_at_first: bool = False,
    ) -> int: ...
    def grow(
        self, step: int, handle: _I64, width: _I32, ok: _U8, stop_at_first: bool = False
    ) -> int: ...
    def advance(
        self,
        step: int,
        handle: _I64,
        tokens: _Tokens,
        count: _I32,
        valid: _I32 | None = None,
    ) -> None:
        """End `step` for the sequences.

        `tokens` has `count[i]` tokens per sequence: in the rows of `[n, m]`, or one after the other
        in `[sum(count)]`.
        """
    def pin(
        self,
        tokens: _Tokens,
        scope: int = 0,
        until: float = ...,
        draft_from: int | None = None,
    ) -> tuple[int, int]:
        """Protect what is cached of `tokens` until the clock reaches `until`, or until `unpin`.

        Return the lease and the tokens it protects; (0, 0) if nothing is cached, (-1, 0) if leases
        or what runs would need too much of the pool.
        """
    def unpin(self, lease: int) -> bool:
        """End a lease; False if it had ended before."""
    def set_quota(self, scope: int, floor_blocks: int, ceiling_blocks: int | None = None) -> None:
        """Say how many blocks of the tree a scope keeps while others need room.

        Allocations for other scopes evict none of its blocks at or below `floor_blocks`; blocks
        above `ceiling_blocks` are evicted before all others. Floor 0 without a ceiling ends it.

        Raises:
            LedgerError: a scope that is not held, a ceiling below the floor, or a floor beyond what
                other floors and open sequences leave; see "Quotas" in docs/eviction.md.
        """
    def resize(self, num_pages: Sequence[int]) -> NDArray[np.int32]:
        """Give the pools other sizes, one per class, while no step is open; all or nothing.

        Evicts what is missing and moves owned pages that lie beyond a new end. Return int32
        `[k, 4]`, the copies of whole pages that must run before anything else touches the pools:
        class, source page, destination page, tokens.

        Raises:
            LedgerError: `.code` is `pool_too_small` where what must stay does not fit (`.details`
                has `class_index`, `needed` and `given`), `steps_open`, `transfers_open`, or that
                of a wrong argument.
        """
    def quotas(self) -> list[dict[str, Any]]:
        """Return the quotas by scope, with the blocks cached, evictable and guarded in each."""
    def retain(
        self, handle: _I64, start: _I64, end: _I64, priority: _I32, duration_ms: _I64
    ) -> None:
        """Set the priority of blocks of open sequences; blocks of lower priority are evicted first.

        Args:
            handle: the sequences; one may appear several times.
            start: first token of each range; blocks whose first token is in it are meant.
            end: token after each range; -1: to the end of the sequence, generated tokens too.
            priority: 0 to 100; without a hint it is 35.
            duration_ms: so long after the newest `begin_step` the default holds again; -1: never.
        """
    def fork(self, step: int, handle: _I64, out: _I64) -> int:
        """Make a new sequence per item that continues `handle[i]`; return how many there are.

        `out[i]` becomes its handle, or the negative reason of a refusal as in `admit`. The same
        parent may be given several times; one that runs a step not yet advanced is an error.
        """
    def suspend(self, handle: _I64, publish: _U8) -> None:
        """Take the pages of sequences and keep their tokens, handles and rows, as for preemption.

        With `publish[i]` the partial tail stays reusable as well, as in `release`. Nothing but
        `resume`, `release` and `sequence` takes the handle then.
        """
    def resume(self, step: int, handle: _I64, first: _I32, ok: _U8, hit: _I32) -> int:
        """Give suspended sequences pages again, as `admit` would for all their tokens.

        `ok[i]` becomes 1, or 0 where pages are missing now, `hit[i]` the tokens found in the tree;
        `min(first[i], known - hit)` tokens run in `step`. Return how many were resumed.
        """
    def release(self, handle: _I64, publish: _U8) -> None: ...
    def match(self, tokens: _Tokens, scope: int = 0, draft_from: int | None = None) -> int: ...
    def intern_scope(
        self, adapter: tuple[int | str, int] | None = None, salt: bytes | str | None = None
    ) -> int:
        """Return the scope of an adapter `(id, version)` and a salt; the caller holds it once more.

        Equal typed fields give the same scope; 0 is the one without both. `docs/identity.md` says
        how long a scope keeps its number.
        """
    def begin_trial(self) -> None:
        """Begin a trial: what is interned until its end, and not used then, leaves no trace."""
    def end_trial(self) -> None:
        """End a trial; see "Interned ids" in docs/identity.md."""
    def release_scope(self, scope: int) -> None:
        """Give a hold on a scope back; what is cached in it stays reusable."""
    def drop_scope(self, scope: int) -> None:
        """Give up every cached block of a scope, and a hold on it.

        Raises `SequencesOpenError` while sequences of the scope are open.
        """
    def intern_media(self, digest: bytes, length: int) -> int:
        """Return a reference, a negative token, to media with a digest of 32 bytes.

        It takes the place of the first of the item's `length` placeholder tokens in a prompt. The
        caller holds it once more.
        """
    def release_media(self, reference: int) -> None:
        """Give a hold on an item of media back; what is cached stays reusable."""
    def fits(
        self,
        prompts: Sequence[_Tokens] | tuple[_Tokens, _I64],
        scope: _I32,
        first: _I32,
        max_total: _I64,
        draft_from: _I32 | None,
        answer: _I32,
        hit: _I32,
    ) -> int:
        """Write what `admit` would answer to each request alone now; return how many fit.

        `answer` is 0 or the negative reason, `hit` what the admission would find, 0 for a refusal.
        Nothing changes, recency included.
        """
    def fits_blocks(
        self,
        length: _I64,
        hit: _I64,
        first: _I32,
        max_total: _I64,
        answer: _I32,
        scope: _I32 | None = None,
    ) -> int:
        """Write the same for prompts of known length and hit, in constant time per class.

        `scope` is that of each prompt; None: 0 for all.
        It counts every block of a hit as evictable now, so it never says 0 where `admit` refuses;
        a -1 may be wrong where open sequences stand on the hit already. With hit 0 it is exact.
        """
    def reclaimable(self, handle: _I64, pages: _I64) -> None:
        """Write the pages that would become allocatable if only this sequence were released.

        `pages` is `[n, classes]`. Steps open now count as completed; see docs/scheduling.md.
        """
    def victims(self, handle: _I64, need: _I64, chosen: _U8) -> int:
        """Choose which sequences to release so that `need[c]` pages per class become allocatable.

        `handle` lists them, the most dispensable first; `chosen[i]` becomes 1 or 0. Return how many
        are chosen: 0 if all of them together do not give enough, or if nothing is needed.
        """
    def explain_match(
        self, tokens: _Tokens, scope: int = 0, draft_from: int | None = None
    ) -> dict[str, Any]:
        """Say how far a prompt matches, and why no further.

        `tokens` (given), `matched` (agreement with the scope's text), `usable` (what `match`
        answers), `hit` (what an admission would use), and `missed`: ranges from `hit` to the end,
        ascending, each a dict with `reason`, `position`, `tokens`, and `scope` where another scope
        has the text. docs/scheduling.md lists the reasons.
        """
    def keys(self, tokens: _Tokens, scope: int = 0) -> _U8:
        """Return the keys of the full blocks of any tokens, `[n, 32]`; see `docs/identity.md`.

        A prompt's media items are its references. Nothing has to be cached.
        """
    def block_keys(self, handle: int) -> _U8:
        """Return the keys of a sequence's published blocks, `[n, 32]`; each is computed once."""
    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the events with numbers above `after`, oldest first.

        Each has `number`, `kind` and `tier` (`device`, `host`, `disk`), and
        `stored`: on host and disk `keys`; on the device `parent` (a key, or None), `keys`,
        `tokens` (int32, -1 where media begin),
        `tokens_per_block`, `adapter`, `salt`, `media` (list of (position, length, digest));
        `removed`: `keys`, `reason` (`evicted`, `dropped`, `failed`); `cleared`: nothing more.

        Raises `EventGapError` if some of them are not kept any more: take `event_snapshot()`.
        """
    def event_snapshot(self) -> dict[str, Any]:
        """Return `number`, that of the last event, and what there is.

        `blocks`: on the device, as stored events; `host` and `disk`: keys.
        """
    def transfers(self, out: _I64, keys: _U8 | None = None) -> int:
        """Hand out planned copies between tiers, in order; return how many rows there are.

        `out` is [k, 6]: id, class, source tier, source page, destination tier, destination page
        (tiers: 0 device, 1 host, 2 disk); `keys` is [k, 32], the tier keys. What is copied to disk
        ahead of need is planned as far as `out` has rows.
        """
    def pending_transfers(self) -> int:
        """Rows that `transfers` has to hand out at least."""
    def complete_transfers(self, ids: _I64, ok: _U8) -> None:
        """Note which transfers put into place what they should have (1) and which failed (0)."""
    def loading(self, handle: _I64, out: _U8) -> int:
        """Write 1 for a sequence whose pages are on their way, 2 for a suspended one, else 0.

        Return how many are 1. A sequence is suspended also because a page of a window or state did
        not arrive.
        """
    def offload(self, blocks: int) -> int:
        """Evict up to so many evictable blocks, as an allocation would; return how many."""
    def flush(self) -> int:
        """Plan a copy on disk of every host copy without one, as far as there is room.

        Return how many transfers were planned.
        """
    def restore(self, tier: str, class_index: int, keys: _U8, pages: _I32) -> int:
        """Make entries with valid copies on `host` or `disk`, least valuable first.

        `keys` is [n, 32], `pages` [n]: free pages of the class there. Return n.
        """
    def adopt(self, class_index: int, keys: _U8, pages: _I32) -> int:
        """Offer the host what came from elsewhere, the first key first.

        Return how many got a page. `keys` is [n, 32]. Writes to `pages`, [n], the page of each that
        got one, and -1 for those that have an entry already or found no room. The copies are valid:
        their pages have to be filled before anything else is asked of the ledger or its executor.
        """
    def tier_keys(self, tokens: _Tokens, scope: int = 0, draft_valid: bool = True) -> _U8:
        """Return the keys of a prompt's blocks on lower tiers, `[n, 32]`, from the first one on.

        Those that an admission of these tokens would ask for. `draft_valid`: with draft KV.
        """
    def tier_stats(self) -> dict[str, Any]:
        """Return pages and counters of lower tiers.

        `shelves`: a list of `tier`, `classes`, and pages by state: `total`, `free`, `writing`,
        `valid`, and parts of valid: `spare`, `pinned`. `counters`: `device_to_host`,
        `device_to_disk`, `host_to_disk`, `host_to_device`, `disk_to_device`, `failed`, `renewed`,
        `rejected`, `lost`, `restored`, `adopted`. `open_transfers`: those not completed.
        """
    def match_tiers(
        self, tokens: _Tokens, scope: int = 0, draft_from: int | None = None
    ) -> tuple[int, int, int]:
        """Tokens of a prompt that an admission would find on the device, the host and disk."""
    @property
    def pending_moves(self) -> int:
        """Copies that `moves` has not handed out."""
    def moves(self, out: _I32) -> int: ...
    def table(self, handle: _I64, dst: _I32, used: _I32) -> None: ...
    def updates(self, out: _I32) -> int: ...
    def sequence(self, handle: int) -> dict[str, Any]:
        """Return the lengths of one sequence.

        `known`, `history`, `reach`, `committed`, `capacity`, `promise`, `valid` (per role),
        `blocks`, `outstanding` (list of (step, width)), `scope`, `draft_from`, `max_total`,
        `suspended`.
        """
    def stats(self) -> dict[str, Any]:
        """Return counts by state and counters since the start.

        `classes`: a list with `total`, `reserved`, `free`, `fenced`, `live`, `cached`, and parts of
        cached: `protected`, `evictable`, per class, and `promised`, the pages that admissions count
        on; `open_sequences`, `suspended_sequences` among
        them, `promised`, `open_steps`, `newest_step`, `nodes`, `cached_blocks`, `leases`,
        `pinned_blocks`, `guarded_blocks`, and the counters `admitted`, `forked`, `refused_forks`,
        `suspended`,
        `resumed`, `refused_resumes`, `resumed_tokens`, `resumed_hit_tokens`, `refused_leases`,
        `expired_blocks`, `refused_now`, `refused_never`, `refused_rows`, `prompt_tokens`,
        `hit_tokens`, `loaded_blocks`, `missed_load_tokens`, `refused_loading`,
        `missed_private_tokens`, `missed_text_tokens`, `missed_last_tokens`,
        `missed_copy_tokens`, `target_only_hits`, `published_blocks`, `rebased_blocks`,
        `evicted_blocks`, `copied_blocks`, `grown_blocks`, `refused_grows`, `accepted_tokens`,
        `rewound_tokens`, `released`. Unpublished pages that forks share are counted once.

        `accepted_tokens` counts every token that `advance` appended: accepted draft tokens, bonus
        tokens and those sampled after a prompt. `rewound_tokens` counts positions that ran and
        were given back. Hit and missed tokens add up to `prompt_tokens`.
        """
    def reset_reuse_state(self, detach_live: bool = False) -> None:
        """Forget all that could be reused; refused while sequences are open without `detach_live`.

        With it, open sequences keep their pages and publish nothing any more.
        """
    def digest(self) -> bytes: ...
    def dump(self) -> dict[str, Any]:
        """Return the whole state, readable.

        `classes`: per class `free`, `fenced` as lists of pages (fenced: (page, stamp)) and `side`,
        the side pages as (page, pins, stamp, covered, wanted), those in a queue first;
        `nodes`: a list of dicts with `id`, `parent`, `scope`, `start` (ordinal of its first block),
        `tokens` (one list per block), `tip`, `covered` (of a partial block, else None),
        `draft_valid`, `pins`, `active_children`, `last_use`, `stamp`, `uses`, `rank`, `priority`,
        `until` (when the priority ends),
        `pages` (per class, 0 where a block has none);
        `sequences`: handle -> `sequence(handle)` and `pages` (per class) and `node`.
        """
    def validate(self) -> None: ...

def spans(ledger: Ledger, step: int, handle: _I64, start: _I32, width: _I32, role: int = 0) -> None:
    """Write where the tokens of `step` begin in each sequence and how many they are, `[n]` each.

    The start is the role's valid end (0 target, 1 draft) plus the widths of older steps that are
    not advanced yet; in the draft of a sequence without one both are 0.
    """

def csr(
    ledger: Ledger,
    handle: _I64,
    kv_len: _I32,
    indptr: _I32,
    indices: _I32,
    last_page_len: _I32,
    *,
    scale: int = 1,
    class_index: int = 0,
) -> int:
    """Write the pages of each sequence's first `kv_len[i]` tokens, times `scale`, as CSR.

    `indptr` is `[rows + 1]`, `last_page_len` `[rows]` with rows >= n: rows from n on are empty.
    Return the number of indices; `indices` beyond it stays as it is.
    """

def slot_mapping(
    ledger: Ledger,
    handle: _I64,
    start: _I32,
    width: _I32,
    out: _I64,
    *,
    pad: int = 0,
    class_index: int = 0,
) -> int:
    """Write `page * tokens_per_block + offset` of each token in `start[i] .. start[i] + width[i]`.

    The rest of `out` becomes `pad`, 0 or -1. Return the number of tokens.
    """

def token_rows(
    ledger: Ledger,
    handle: _I64,
    kv_len: _I32,
    dst: _I32,
    *,
    pad: int = 0,
    class_index: int = 0,
) -> None:
    """Write the slots of each sequence's first `kv_len[i]` tokens into `dst`, `[n, width]`.

    The rest of a row becomes `pad`, 0 or -1.
    """

def copy_pages(
    source: _U8,
    destination: _U8,
    source_pages: _I64,
    destination_pages: _I64,
    pieces: _I64,
) -> None:
    """Copy pages from one buffer in host memory to another, in the order given.

    `source` u8[bytes] and `destination` u8[bytes] share no memory; page `source_pages[i]` i64[k]
    goes to `destination_pages[i]` i64[k]. A page is copied piece by piece, `pieces` i64[n,5]: its
    bytes, where it starts in page 0 of the source and its distance from page to page there, and
    both in the destination. The GIL is released while it copies.

    Raises:
        LedgerError: an argument of another form, or a piece of a page would not lie in its buffer;
            nothing was copied.
    """

def checksum(*buffers: _U8 | bytes | memoryview) -> bytes:
    """BLAKE3 of the buffers' bytes, one after the other, as 32 bytes.

    Each is u8[bytes] or holds bytes (`bytes`, `memoryview`, `mmap`). The GIL is released meanwhile
    from 256 KiB on, so they must not be written to.

    Raises:
        LedgerError: a buffer of another form.
    """

def path_moves(
    ledger: Ledger,
    step: int,
    handle: _I64,
    path: _I32,
    count: _I32,
    out: _I32,
    role: int = 0,
) -> int:
    """Write the token copies that bring kept nodes of draft trees together; return how many.

    `path` is `[n, m]`, of which the first `count[i]` entries of row i are read, or
    `[sum(count)]`: the nodes kept, ascending, node 0 first; none where nothing moves. `out` is
    `[k, 5]`: class, source page, source offset, destination page, destination offset. It is asked
    before the `advance` of the step, and the rows are run before anything that is planned after
    it, as if one after the other, in the pools of that role (0 target, 1 draft). See "Draft
    trees" in docs/ledger.md.
    """

def page_checksum(*buffers: _U8 | bytes | memoryview) -> bytes:
    """XXH3-128 of the same bytes, big-endian, as 16 bytes: against faults, not against people.

    Raises:
        LedgerError: a buffer of another form.
    """

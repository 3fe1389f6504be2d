"""The state of the reference ledger: its arguments, its sequences, and small helpers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reference.tree import Block

TARGET, DRAFT = 0, 1
REFUSED_NOW, REFUSED_NEVER, REFUSED_ROWS, NOT_TRIED, REFUSED_LOADING = -1, -2, -3, -4, -5
MAX_TOKEN = 2**31
COUNTERS = (
    *("admitted", "refused_now", "refused_never", "refused_rows", "prompt_tokens", "hit_tokens"),
    *("target_only_hits", "published_blocks", "rebased_blocks", "evicted_blocks", "copied_blocks"),
    *("grown_blocks", "refused_grows", "accepted_tokens", "rewound_tokens", "released"),
    *("evicted_side_pages", "snapshots"),
    *("refused_leases", "expired_blocks"),
    *(f"missed_{reason}_tokens" for reason in ("private", "text", "last", "copy")),
    *("forked", "refused_forks", "suspended", "resumed", "refused_resumes", "resumed_tokens"),
    *("resumed_hit_tokens", "loaded_blocks", "missed_load_tokens", "refused_loading"),
)


class Misuse(Exception):  # noqa: N818 - named after what it reports
    """A call that the contract calls an error; nothing was changed."""


class BufferTooSmall(Misuse):
    """An answer does not fit; the argument is the number of rows needed."""


class SequencesOpen(Misuse):
    """`reset_reuse_state` while sequences are open; its argument is their number."""


class Request(NamedTuple):
    """One item of `admit`."""

    prompt: tuple[int, ...]
    scope: int
    first: int
    max_total: int
    draft_from: int


@dataclass(frozen=True)
class Config:
    """The arguments of the ledger."""

    tokens_per_block: int
    num_pages: tuple[int, ...]
    max_sequences: int
    max_seq_len: int
    has_draft: bool = False
    extra_tokens: int = 0
    reserve_tokens: int = 0
    lookahead: int = 0
    reuse: bool = True
    partial_reuse: bool = True
    same_stream: bool = False
    lifetimes: tuple[tuple[str, int, int], ...] | None = None
    max_step_tokens: int = 0
    num_blocks: int | None = None
    snapshot_interval: int = 0
    watermark_blocks: int = 0
    max_leased_blocks: int = 0
    ttl_ms: int = 0
    policy: str = "lru"
    events: int = 0
    fingerprint: bytes = b""
    host_pages: tuple[int, ...] | None = None
    disk_pages: tuple[int, ...] | None = None


@dataclass(eq=False)
class Load:
    """The blocks of a sequence that transfers fill.

    Attributes:
        first: the ordinal of the first one.
        blocks: the pages of each, per class.
        own: the pages of its sequence's states and cross-attention, by class.
        failed: the ordinals of those that did not come.
        is_resumed: whether its tokens count as those of a resumed sequence.
        is_left: whether nobody waits for it any more.

    """

    first: int
    blocks: list[list[int]]
    own: dict[int, list[int]]
    is_resumed: bool = False
    failed: list[int] = field(default_factory=list)
    is_left: bool = False


@dataclass(eq=False)
class Sequence:
    """An open sequence.

    Attributes:
        private: per unpublished block, its page in each class (0: none).
        pins: the (class, block) of the tree whose side page stands in its row.
        own: the pages of its state and cross-attention classes, by class.
        entered: the full blocks that it put into the tree.
        hints: how its blocks are to be kept, later ones before earlier ones.
        load: what comes from below the device, until all of it is there.

    """

    handle: int
    scope: int
    draft_from: int
    max_total: int
    tokens: list[int]
    valid: list[int]
    node: Block | None
    private: list[list[int]]
    prompt_blocks: int
    outstanding: list[tuple[int, int]] = field(default_factory=list)
    pins: list[tuple[int, Block]] = field(default_factory=list)
    own: dict[int, list[int]] = field(default_factory=dict)
    entered: int = 0
    hints: list[Any] = field(default_factory=list)
    is_suspended: bool = False
    load: Load | None = None

    @property
    def promise(self) -> int:
        return max(self.prompt_blocks - self.num_blocks, 0)

    @property
    def used_roles(self) -> list[int]:
        return [TARGET, DRAFT] if self.draft_from >= 0 else [TARGET]

    @property
    def path(self) -> list[Block]:
        return self.node.path() if self.node is not None else []

    @property
    def history(self) -> int:
        return min(self.valid[role] for role in self.used_roles)

    @property
    def reach(self) -> int:
        return max(self.valid)

    @property
    def num_blocks(self) -> int:
        return len(self.path) + len(self.private)

    @property
    def pending(self) -> int:
        """The sum of the recorded widths."""
        return sum(width for _, width in self.outstanding)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is in flight and all roles it uses end at one length."""
        return not self.outstanding and all(
            self.valid[role] == self.history for role in self.used_roles
        )


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy that `step` runs, from a block of the tree or into a snapshot of it.

    `classes` are those side classes in which it pins the block's page.
    """

    step: int
    block: Block
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Admission:
    """What one item of `admit` would take.

    Attributes:
        shared: the blocks of the tree that it would stand on.
        pins: the (class, block) of those whose side page it would hold.
        source: the block that it would copy from, in the classes `copied`.
        need: new blocks now.
        needs: new pages now, per class.
        wholes: new pages for the whole prompt, per class.
        loads: what fills its first new blocks from below the device.

    """

    hit: int
    shared: list[Block]
    pins: list[tuple[int, Block]]
    source: Block | None
    copied: list[int]
    width: int
    need: int
    whole: int
    needs: list[int]
    wholes: list[int]
    loads: list[Any]


def cdiv(a: int, b: int) -> int:
    """Return the quotient, rounded up."""
    return -(-a // b)


def require(condition: bool, message: str) -> None:
    """Raise `Misuse` unless the condition holds."""
    if not condition:
        raise Misuse(message)

"""The reference ledger: the calls of docs/ledger.md in plain Python, slow and easy to check.

It mirrors `tandemkv._core.Ledger` with lists for arrays. Pages are its own serial numbers, so they
compare with real ones only up to a bijection; every other number must be equal. Classes that drop
tokens are those of docs/groups.md.
"""

from __future__ import annotations

import math
from collections import Counter

from reference.admission import Admitting
from reference.fork import Forks
from reference.identity import PLAIN_SCOPE, Identity, Numbers
from reference.keys import Keys
from reference.leases import Lease, Leasing
from reference.lifetimes import CROSS, FULL, STATE, Lifetime
from reference.loading import Loading
from reference.policies import POLICIES
from reference.pools import Pools
from reference.probes import Probes
from reference.publishing import Publishing
from reference.quotas import Quota, Quotas
from reference.reading import Reading
from reference.resizing import Resizing
from reference.retention import Retaining
from reference.running import Running
from reference.state import Config, Copy, Sequence, require
from reference.suspend import Suspending
from reference.tiers import Tiers
from reference.tree import Block, Tree


class ReferenceLedger(
    Pools,
    Admitting,
    Running,
    Forks,
    Suspending,
    Publishing,
    Identity,
    Keys,
    Reading,
    Retaining,
    Leasing,
    Tiers,
    Loading,
    Quotas,
    Resizing,
    Probes,
):
    """The calls of ledger.md, groups.md, identity.md and tiers.md in docs."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tree = Tree(config.tokens_per_block, config.lookahead, config.partial_reuse)
        self.num_classes = len(config.num_pages)
        self.num_pages = list(config.num_pages)
        self.free = [pages - 1 for pages in config.num_pages]
        self._sort_classes()
        self.queues: dict[int, list[Block]] = {cls: [] for cls in self.side_classes}
        self.fenced: list[tuple[int, int]] = []  # (class, stamp), one per page
        self.sequences: dict[int, Sequence] = {}  # by row
        self.generations = [0] * config.max_sequences
        self.leases: dict[int, Lease] = {}
        self.newest_lease = 0
        self.trial_admitted = 0
        self.quota_of: dict[int, Quota] = {}
        self.copies: list[Copy] = []  # those not yet completed
        self.copy_step = 0  # the newest step that copies were queued for
        self.queued_moves: list[tuple[int, tuple[int, int, int, int]]] = []  # (step, move)
        self.newest = 0
        self.now = float("-inf")
        self.open_steps: set[int] = set()
        self.tick = 0
        self.growth = 1
        self.policy = POLICIES[config.policy](self.most_blocks())
        self.next_page = 0
        self.claimed: set[int] = set()  # the `id()` of blocks, during `admit`
        self.claimed_side: set[tuple[int, int]] = set()  # (class, `id()`) of side pages
        self.counters: Counter[str] = Counter()
        self.tier_counters: Counter[object] = Counter()
        self.seen_keys: list[bytes] = []  # those handed out, for drivers to restore
        self.build_tiers()
        self.scopes = Numbers(config.num_pages, PLAIN_SCOPE)
        self.media = Numbers(config.num_pages)

    def _sort_classes(self) -> None:
        """Sort the classes by what they keep; block records are one more class, a full one."""
        given = self.config.lifetimes or ((FULL, 0, 0),) * self.num_classes
        self.lifetimes = [Lifetime(*lifetime) for lifetime in given]
        self.record_class: int | None = None
        if self.config.reuse and not any(rule.name == FULL for rule in self.lifetimes):
            assert self.config.num_blocks is not None
            self.record_class = self.num_classes
            self.lifetimes.append(Lifetime(FULL, 0, 0))
            self.free.append(self.config.num_blocks)
        self.usable = list(self.free)
        rules = list(enumerate(self.lifetimes))
        self.full_classes = [cls for cls, rule in rules if rule.name == FULL]
        self.windowed_classes = [cls for cls, rule in rules if rule.is_windowed]
        self.state_classes = [cls for cls, rule in rules if rule.name == STATE]
        self.cross_classes = [cls for cls, rule in rules if rule.name == CROSS]
        # Those in which a block of the tree may have no page.
        self.side_classes = [*self.windowed_classes, *self.state_classes]

    def most_blocks(self) -> int:
        """Return the most blocks that the tree can hold."""
        return min((self.usable[cls] for cls in self.full_classes), default=0)

    # Steps

    def begin_step(self, now: float) -> int:
        require(math.isfinite(now) and now >= self.now, "now went backwards")
        self.end_leases(now)
        self.expire(now)
        self.now = now
        self._end_hints()
        self.newest += 1
        self.open_steps.add(self.newest)
        return self.newest

    def complete_step(self, step: int) -> None:
        require(step in self.open_steps, "step is not open")
        require(all(at != step for at, _ in self.queued_moves), "copies were not taken")
        self.open_steps.remove(step)
        for copy in [copy for copy in self.copies if copy.step == step]:
            before = self.protected()
            self.copies.remove(copy)
            self._touch_unprotected(before, copy.block)
            for cls in copy.classes:
                self._enqueue(cls, copy.block)
        for entry in list(self.fenced):
            if not self._fence_is_open(entry[1]):
                self.fenced.remove(entry)
                self.free[entry[0]] += 1

    def _look_up(self, handles: list[int]) -> list[Sequence]:
        """Return the sequences of handles that must be open, distinct and not suspended."""
        sequences = self._look_up_any(handles)
        require(not any(seq.is_suspended for seq in sequences), "suspended")
        return sequences

    def _look_up_any(self, handles: list[int]) -> list[Sequence]:
        require(len(set(handles)) == len(handles), "repeated handle")
        by_handle = {seq.handle: seq for seq in self.sequences.values()}
        require(all(handle in by_handle for handle in handles), "stale handle")
        return [by_handle[handle] for handle in handles]

"""The numbers of a plan that bind requests, and the checks that need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from tandemkv.config import check_count
from tandemkv.errors import BatchError
from tandemkv.managers.batch import Batch, RequestIds
from tandemkv.managers.classes import CacheClass
from tandemkv.planning import Plan


@dataclass(slots=True, kw_only=True)
class Limits:
    """What the managers hold requests to; `Managers.apply_plan` alone changes `classes`.

    Attributes:
        tokens_per_block: tokens of a block.
        classes: the cache groups by lifetime, with their pages.
        max_requests: requests that can be open at once, dummies not counted.
        max_dummies: rows kept for dummies, which requests never take.
        max_seq_len: most tokens a request can know.
        extra_tokens: room kept beyond what is written, in tokens.
        reserve_tokens: most draft slots of one step.
        has_draft: whether requests may carry draft KV.
        watermark_blocks: blocks per class that admissions leave to what runs.
        snapshot_interval: tokens between two snapshots of a recurrent state, which are taken where
            a chunk of a prompt or a decode step ends; 0: none are taken.
    """

    tokens_per_block: int
    classes: tuple[CacheClass, ...]
    max_requests: int
    max_dummies: int
    max_seq_len: int
    extra_tokens: int
    reserve_tokens: int
    has_draft: bool
    watermark_blocks: int = 0
    snapshot_interval: int = 0

    @property
    def max_sequences(self) -> int:
        """Rows of the ledger, the same for both roles."""
        return self.max_requests + self.max_dummies

    @property
    def num_pages(self) -> tuple[int, ...]:
        """Pages per class, the reserved page 0 included."""
        return tuple(item.num_pages for item in self.classes)

    @property
    def usable_pages(self) -> int:
        """Pages that sequences can own in the first class: that of all tokens, if there is one."""
        return self.classes[0].usable_pages

    def blocks(self, num_tokens: int) -> int:
        """Return the blocks that `num_tokens` and the extra tokens take."""
        return -(-(num_tokens + self.extra_tokens) // self.tokens_per_block)

    def worst_blocks(self, prompt_len: int, max_total_tokens: int) -> int:
        """Return the most blocks a request can come to own (docs/ledger.md, admit, step 2)."""
        return self.blocks(max(prompt_len, max_total_tokens - 1 + self.reserve_tokens))

    def tightest(self, blocks: int) -> tuple[int, int]:
        """Return the pages that a request of `blocks` blocks needs, and those there are.

        In the class where they are fewest beyond the need.
        """
        return min(
            ((item.blocks_most(blocks), item.usable_pages) for item in self.classes),
            key=lambda pages: pages[1] - pages[0],
        )

    def refuse_draft_lens(self, batch: Batch) -> NoReturn:
        """Say that a batch has more draft slots than the plan keeps room for.

        Raises:
            BatchError: names the request, its draft slots and the limit.
        """
        item = int(np.flatnonzero(batch.draft_lens > self.reserve_tokens)[0])
        raise BatchError(
            f"draft_lens[{item}] is {int(batch.draft_lens[item])} (request "
            f"{batch.request_ids[item]!r}); the plan keeps room for {self.reserve_tokens} draft "
            "tokens per step",
            field="draft_lens",
            item=item,
        )

    def check_new(self, batch: Batch, draft_from: NDArray[np.int32] | None) -> None:
        """Refuse new requests that are longer than the plan, or draft where it has no draft.

        Raises:
            BatchError: names the request and the value.
        """
        new = batch.new_index
        assert batch.max_total_tokens is not None
        long = batch.max_total_tokens[new] > self.max_seq_len
        if long.any():
            item = int(new[np.flatnonzero(long)[0]])
            raise BatchError(
                f"max_total_tokens[{item}] is {int(batch.max_total_tokens[item])} (request "
                f"{batch.request_ids[item]!r}); the plan has max_seq_len {self.max_seq_len}",
                field="max_total_tokens",
                item=item,
            )
        if not self.has_draft and draft_from is not None and int(draft_from.max()) >= 0:
            item = int(new[np.flatnonzero(draft_from >= 0)[0]])
            raise BatchError(
                f"draft_from[{item}] is {int(draft_from.max())} (request "
                f"{batch.request_ids[item]!r}); the plan has no draft, so it must be -1",
                field="draft_from",
                item=item,
            )

    def check_dummy_lens(self, ids: RequestIds, lens: NDArray[np.int64]) -> None:
        """Refuse dummies of no tokens or of more than a request can have.

        Raises:
            BatchError: another number of lengths than ids, or a length out of range.
        """
        if len(lens) != len(ids):
            raise BatchError(
                f"token_nums has {len(lens)} items, expected {len(ids)}", field="token_nums"
            )
        wrong = np.flatnonzero((lens < 1) | (lens > self.max_seq_len))
        if len(wrong):
            item = int(wrong[0])
            raise BatchError(
                f"token_nums[{item}] is {int(lens[item])}; it must be in 1..={self.max_seq_len}",
                field="token_nums",
                item=item,
            )


def limits_of(
    plan: Plan,
    classes: tuple[CacheClass, ...],
    disaggregated: bool,
    num_dummies: int | None,
    watermark_blocks: int,
) -> Limits:
    """Return the limits of a plan; the other arguments are those of `build_managers`.

    Raises:
        ConfigError: `num_dummies` is not an int >= 0, or there are too many requests.
    """
    if num_dummies is None:
        num_dummies = plan.terms.dummies
    check_count("num_dummy_requests", num_dummies, least=0)
    # Each pipeline stage has a micro-batch in flight, and all of them hold rows on every rank.
    max_requests = plan.max_sequences * (2 if disaggregated else 1)
    return Limits(
        tokens_per_block=plan.tokens_per_block,
        classes=classes,
        max_requests=check_count("max_batch_size * pp_size", max_requests),
        max_dummies=num_dummies,
        max_seq_len=plan.max_seq_len,
        extra_tokens=plan.extra_tokens,
        reserve_tokens=plan.reserve_tokens,
        has_draft=plan.has_draft,
        watermark_blocks=watermark_blocks,
        snapshot_interval=plan.terms.snapshot_interval or 0,
    )

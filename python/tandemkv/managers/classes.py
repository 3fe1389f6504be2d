"""The classes of a plan: cache groups of one lifetime, both roles and all ranks together.

A block has one page number per class, the same for every group of the class. So a class has as many
pages as the smallest of its groups, and every rank's ledger has the classes of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemkv import _core
from tandemkv.errors import ConfigError
from tandemkv.planning import Plan
from tandemkv.planning.groups import FULL, LIFETIMES, STATE, Lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheClass:
    """One class of the ledger.

    Attributes:
        lifetime: `(name, tokens, sink tokens)`, the rule of its groups.
        num_pages: pages, the reserved page 0 included.
        tokens_per_block: tokens of a block.
        bound_blocks: most blocks that a sequence holds at any length; None: no limit.
    """

    lifetime: Lifetime
    num_pages: int
    tokens_per_block: int
    bound_blocks: int | None

    @property
    def keeps_all_tokens(self) -> bool:
        """Whether a sequence holds a page for each of its blocks."""
        return self.lifetime == FULL

    @property
    def grows(self) -> bool:
        """Whether a sequence takes pages as it gets longer."""
        return self.lifetime[0] not in ("cross_attention", "recurrent_state")

    @property
    def usable_pages(self) -> int:
        """Pages that sequences can own: all but page 0."""
        return self.num_pages - 1

    def blocks_now(self, blocks: int) -> int:
        """Return the pages that `blocks` blocks take while nothing of them is settled."""
        if self.lifetime == STATE:
            return 1
        if self.lifetime[0] == "cross_attention":
            assert self.bound_blocks is not None
            return self.bound_blocks
        return blocks

    def blocks_most(self, blocks: int) -> int:
        """Return the most pages that a sequence of `blocks` blocks holds at a time."""
        now = self.blocks_now(blocks)
        return now if self.bound_blocks is None else min(now, self.bound_blocks)


def cache_classes(plan: Plan) -> tuple[CacheClass, ...]:
    """Return the classes of a plan, the same on every rank; those that keep all tokens first.

    Raises:
        ConfigError: a plan with context parallelism, whose pages hold parts of blocks.
    """
    if plan.mapping.cp_size != 1:
        raise ConfigError(
            f"the plan has cp_size {plan.mapping.cp_size}; managers are built for 1",
            field="plan",
            value=plan.mapping.cp_size,
        )
    num_pages: dict[Lifetime, int] = {}
    for group in plan.groups():
        num_pages[group.rule] = min(group.num_pages, num_pages.get(group.rule, group.num_pages))
    order = {name: place for place, name in enumerate(LIFETIMES)}
    return tuple(
        CacheClass(
            lifetime=rule,
            num_pages=num_pages[rule],
            tokens_per_block=plan.tokens_per_block,
            bound_blocks=_bound(plan, rule),
        )
        for rule in sorted(num_pages, key=lambda rule: (order[rule[0]], *rule[1:]))
    )


def _bound(plan: Plan, rule: Lifetime) -> int | None:
    """Return the most blocks that the rule keeps at any length (docs/groups.md, `bound`)."""
    windowed = rule[0] in ("sliding_window", "chunked_attention")
    if rule == FULL or (windowed and not plan.terms.step_tokens):
        return None
    ahead = max(plan.terms.step_tokens, 1 + plan.reserve_tokens) + plan.extra_tokens
    return _core.window_blocks(
        rule,
        tokens_per_block=plan.tokens_per_block,
        lookahead=plan.terms.lookahead,
        tokens=2**31 - 1,  # longer than any window
        ahead=ahead if windowed else 0,
    )


def class_of(classes: tuple[CacheClass, ...], lifetime: Lifetime) -> int:
    """Return the index of the class of a lifetime."""
    return [item.lifetime for item in classes].index(lifetime)

//! The page-exact split that pools are built from.
//!
//! Per rank `r` with budget `B`, slopes `st`, `sd` and intercepts `It`, `Id`:
//!
//! ```text
//! P_r = (B - It - Id) // (tokens_per_block * (st + sd))
//! P   = min over ranks of P_r
//! target = It + P * tokens_per_block * st     draft = Id + P * tokens_per_block * sd
//! slack  = B - target - draft
//! ```
//!
//! The minimum is over pages, not bytes or tokens: ranks may differ in layers, in bytes per
//! token and in budget, and still issue the same page numbers.

use super::{BudgetError, Cost, Infeasible, Tier};
use crate::units::{Bytes, Pages, Tokens};

/// The reserved page 0 and one page that a sequence can use.
const DEVICE_PAGES_MIN: Pages = Pages(2);
/// Host and disk reserve no page, but a tier that holds none is never passed on.
const LOWER_PAGES_MIN: Pages = Pages(1);
/// Block tables are signed 32-bit.
const PAGES_MAX: u64 = i32::MAX as u64;

/// The part of the fixed cost that grows with the batch, to say which batch would have fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PerSequence {
    /// Bytes of one sequence, both roles together.
    pub bytes: Bytes,
    /// Sequences that the intercepts are charged for.
    pub batch: u64,
}

/// What one rank has on a tier and what its roles cost there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RankDemand {
    /// Bytes for both roles together.
    pub budget: Bytes,
    /// The target's cost; [`Cost::ZERO`] on a rank without its layers.
    pub target: Cost,
    /// The draft's cost; [`Cost::ZERO`] on a rank without its layers.
    pub draft: Cost,
    /// How much of the intercepts one sequence explains, where that is known.
    pub per_sequence: Option<PerSequence>,
}

/// One rank's shares. `target + draft + slack` is its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSplit {
    /// Pages that this rank alone could hold; `None` where tokens cost nothing.
    pub pages_alone: Option<Pages>,
    /// Bytes of the target's pools.
    pub target: Bytes,
    /// Bytes of the draft's pools.
    pub draft: Bytes,
    /// What is left.
    pub slack: Bytes,
}

/// The pages of every rank and role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSplit {
    /// Pages of each role on each rank, the reserved page included; `None` if tokens cost
    /// nothing on any rank, so that nothing limits them.
    pub pages: Option<Pages>,
    /// One entry per rank, in the order given.
    pub ranks: Vec<RankSplit>,
}

/// A rank's cost, per token and per page.
struct Charged {
    target: Cost,
    draft: Cost,
    target_page: Bytes,
    draft_page: Bytes,
    both_pages: Bytes,
    fixed: Bytes,
}

impl Charged {
    fn new(tokens_per_block: Tokens, rank: &RankDemand) -> Result<Self, BudgetError> {
        let (target, draft) = (rank.target, rank.draft);
        let page = |cost: Cost| {
            cost.slope
                .checked_mul(tokens_per_block.0)
                .ok_or(BudgetError::overflow("the bytes of a page"))
        };
        let (target_page, draft_page) = (page(target)?, page(draft)?);
        Ok(Self {
            target,
            draft,
            target_page,
            draft_page,
            both_pages: target_page
                .checked_add(draft_page)
                .ok_or(BudgetError::overflow("the bytes of a page of both roles"))?,
            fixed: target
                .intercept
                .checked_add(draft.intercept)
                .ok_or(BudgetError::overflow("the fixed cost of both roles"))?,
        })
    }

    /// Bytes of the fixed cost and `pages` pages of both roles.
    fn bytes(&self, pages: Pages) -> Result<Bytes, BudgetError> {
        self.both_pages
            .checked_mul(pages.0)
            .and_then(|grown| grown.checked_add(self.fixed))
            .ok_or(BudgetError::overflow("the bytes of both roles"))
    }

    /// Pages that `budget` holds; `None` where tokens cost nothing.
    fn pages_alone(&self, budget: Bytes) -> Option<Pages> {
        let rest = budget.0.saturating_sub(self.fixed.0);
        (self.both_pages > Bytes::ZERO).then(|| Pages(rest / self.both_pages.0))
    }
}

/// Divide every rank's budget on one tier between target and draft, in whole pages.
///
/// The costs are those of this tier: windows and states are device memory, so their intercepts
/// are not part of what host and disk are asked for. On the device each rank must hold its fixed
/// cost and two pages of both roles, since page 0 of a pool is reserved. Host and disk reserve
/// nothing; each rank must hold one page there, so a tier without a budget is not asked about. A
/// rank on which tokens cost nothing sets no limit. `pages_max` caps the pages of all, whatever
/// else would fit.
///
/// # Errors
/// [`BudgetError::Infeasible`] names the rank with the largest shortfall. No rank,
/// `tokens_per_block` 0, a cap below the fewest pages, more pages than a block table can address
/// and numbers beyond 64 bits are errors too.
pub fn split_pages(
    tier: Tier,
    tokens_per_block: Tokens,
    ranks: &[RankDemand],
    pages_max: Option<Pages>,
) -> Result<PageSplit, BudgetError> {
    if tokens_per_block == Tokens::ZERO {
        return Err(BudgetError::ZeroTokensPerBlock);
    }
    if ranks.is_empty() {
        return Err(BudgetError::NoRanks);
    }
    if let Some(cap) = pages_max
        && cap < pages_min(tier)
    {
        return Err(BudgetError::CapTooSmall {
            tier,
            cap: cap.0,
            least: pages_min(tier).0,
        });
    }
    let charged = ranks
        .iter()
        .map(|rank| Charged::new(tokens_per_block, rank))
        .collect::<Result<Vec<_>, _>>()?;
    check_feasible(tier, ranks, &charged)?;
    let alone = |(rank, cost): (&RankDemand, &Charged)| cost.pages_alone(rank.budget);
    let pages = ranks.iter().zip(&charged).filter_map(alone).min();
    let pages = pages.map(|fits| pages_max.map_or(fits, |cap| cap.min(fits)));
    if let Some(Pages(count)) = pages
        && count > PAGES_MAX
    {
        return Err(BudgetError::TooManyPages {
            tier,
            pages: count,
            limit: PAGES_MAX,
        });
    }
    let ranks = ranks
        .iter()
        .zip(&charged)
        .map(|(rank, cost)| share(rank, cost, pages.unwrap_or(Pages::ZERO)))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(PageSplit { pages, ranks })
}

/// The fewest pages that make a usable pool.
fn pages_min(tier: Tier) -> Pages {
    match tier {
        Tier::Device => DEVICE_PAGES_MIN,
        Tier::Host | Tier::Disk => LOWER_PAGES_MIN,
    }
}

/// The bytes that `pages` pages take on one rank.
fn share(rank: &RankDemand, cost: &Charged, pages: Pages) -> Result<RankSplit, BudgetError> {
    let role = |page: Bytes, fixed: Bytes| {
        page.checked_mul(pages.0)
            .and_then(|grown| grown.checked_add(fixed))
            .ok_or(BudgetError::overflow("the bytes of a role"))
    };
    Ok(RankSplit {
        pages_alone: cost.pages_alone(rank.budget),
        target: role(cost.target_page, cost.target.intercept)?,
        draft: role(cost.draft_page, cost.draft.intercept)?,
        slack: rank
            .budget
            .checked_sub(cost.bytes(pages)?)
            .expect("the pages of the group fit every rank, by the minimum"),
    })
}

/// Refuse if any rank lacks its fixed cost and the fewest pages of its tier.
fn check_feasible(
    tier: Tier,
    ranks: &[RankDemand],
    charged: &[Charged],
) -> Result<(), BudgetError> {
    let mut worst: Option<Infeasible> = None;
    for (index, (rank, cost)) in ranks.iter().zip(charged).enumerate() {
        let required_pages = match tier {
            _ if cost.both_pages == Bytes::ZERO => Pages::ZERO,
            tier => pages_min(tier),
        };
        let required = cost.bytes(required_pages)?;
        let Some(shortfall) = required.checked_sub(rank.budget) else {
            continue;
        };
        if shortfall == Bytes::ZERO || worst.as_ref().is_some_and(|w| w.shortfall >= shortfall) {
            continue;
        }
        worst = Some(Infeasible {
            tier,
            rank: index,
            budget: rank.budget,
            in_tokens: false,
            target_fixed: cost.target.intercept,
            draft_fixed: cost.draft.intercept,
            target_page: cost.target_page,
            draft_page: cost.draft_page,
            required_pages,
            required,
            shortfall,
            largest_batch: largest_batch(rank, required),
        });
    }
    worst.map_or(Ok(()), |numbers| {
        Err(BudgetError::Infeasible(Box::new(numbers)))
    })
}

/// The largest batch for which the fixed cost and the required pages fit this rank's budget.
fn largest_batch(rank: &RankDemand, required: Bytes) -> Option<u64> {
    let PerSequence { bytes, batch } = rank.per_sequence?;
    let rest = required.checked_sub(bytes.checked_mul(batch)?)?;
    let room = rank.budget.checked_sub(rest)?;
    room.0.checked_div(bytes.0).filter(|&fits| fits > 0)
}

#[cfg(test)]
mod tests {
    use super::{PageSplit, PerSequence, RankDemand, split_pages};
    use crate::budget::{BudgetError, Cost, Infeasible, Tier};
    use crate::units::{Bytes, Pages, Tokens};

    const GIB: u64 = 1 << 30;

    fn demand(budget: u64, target: (u64, u64), draft: (u64, u64)) -> RankDemand {
        let cost = |(slope, intercept)| Cost {
            slope: Bytes(slope),
            intercept: Bytes(intercept),
        };
        RankDemand {
            budget: Bytes(budget),
            target: cost(target),
            draft: cost(draft),
            per_sequence: None,
        }
    }

    fn device(tokens_per_block: u64, ranks: &[RankDemand]) -> Result<PageSplit, BudgetError> {
        split_pages(Tier::Device, Tokens(tokens_per_block), ranks, None)
    }

    fn refused(tier: Tier, ranks: &[RankDemand]) -> Infeasible {
        match split_pages(tier, Tokens(32), ranks, None) {
            Err(BudgetError::Infeasible(numbers)) => *numbers,
            other => panic!("expected an infeasible budget, got {other:?}"),
        }
    }

    #[test]
    fn the_minimum_is_over_pages() {
        // 16 + 16 layers of 4,096 B, one draft layer on the last rank (TensorRT-LLM#12188).
        let ranks = [
            demand(8 * GIB, (65_536, 0), (0, 0)),
            demand(8 * GIB, (65_536, 0), (4_096, 0)),
        ];
        let split = device(32, &ranks).unwrap();
        assert_eq!(split.pages, Some(Pages(3855)));
        let numbers: Vec<_> = split
            .ranks
            .iter()
            .map(|r| (r.pages_alone, r.target.0, r.draft.0, r.slack.0))
            .collect();
        assert_eq!(
            numbers,
            [
                (Some(Pages(4096)), 8_084_520_960, 0, 505_413_632),
                (Some(Pages(3855)), 8_084_520_960, 505_282_560, 131_072),
            ]
        );
    }

    #[test]
    fn a_rank_where_tokens_cost_nothing_sets_no_limit() {
        let ranks = [
            demand(1_000, (0, 900), (0, 0)),
            demand(10_000, (10, 0), (0, 0)),
        ];
        let split = device(32, &ranks).unwrap();
        assert_eq!(split.pages, Some(Pages(31)));
        assert_eq!(split.ranks[0].pages_alone, None);
        assert_eq!(split.ranks[0].slack, Bytes(100));
        assert_eq!(device(32, &ranks[..1]).unwrap().pages, None);
    }

    #[test]
    fn the_device_needs_a_page_beside_the_reserved_one() {
        let numbers = refused(Tier::Device, &[demand(5_000, (60, 100), (20, 30))]);
        let expected = Infeasible {
            tier: Tier::Device,
            rank: 0,
            budget: Bytes(5_000),
            in_tokens: false,
            target_fixed: Bytes(100),
            draft_fixed: Bytes(30),
            target_page: Bytes(1_920),
            draft_page: Bytes(640),
            required_pages: Pages(2),
            required: Bytes(5_250),
            shortfall: Bytes(250),
            largest_batch: None,
        };
        assert_eq!(numbers, expected);
        let split = device(32, &[demand(5_250, (60, 100), (20, 30))]).unwrap();
        assert_eq!(split.pages, Some(Pages(2)));
    }

    #[test]
    fn the_rank_that_is_shortest_is_named() {
        let ranks = [
            demand(10_000, (10, 0), (0, 0)),
            demand(500, (10, 0), (0, 0)),
            demand(0, (10, 0), (0, 0)),
        ];
        let numbers = refused(Tier::Device, &ranks);
        assert_eq!((numbers.rank, numbers.shortfall), (2, Bytes(640)));
    }

    #[test]
    fn the_largest_batch_that_fits_is_named() {
        // TensorRT-LLM#15991: 2,048 sequences of 606,339,072 B in 124,371,515,473 B.
        let mut rank = demand(124_371_515_473, (0, 1_241_782_419_456), (0, 0));
        rank.per_sequence = Some(PerSequence {
            bytes: Bytes(606_339_072),
            batch: 2_048,
        });
        let numbers = refused(Tier::Device, &[rank]);
        assert_eq!(numbers.target_fixed, Bytes(1_241_782_419_456));
        assert_eq!(numbers.largest_batch, Some(205));
        // 205 sequences are 124,299,509,760 B, 206 are 124,905,848,832 B.
    }

    #[test]
    fn lower_tiers_hold_at_least_a_page() {
        let numbers = refused(Tier::Host, &[demand(2 << 20, (131_072, 0), (4_096, 0))]);
        assert_eq!(numbers.required_pages, Pages(1));
        assert_eq!(numbers.required, Bytes(4_325_376));
        let rank = demand(20 * GIB, (131_072, 0), (4_096, 0));
        let split = split_pages(Tier::Disk, Tokens(32), &[rank], None).unwrap();
        assert_eq!(split.pages, Some(Pages(4964)));
    }

    #[test]
    fn a_cap_limits_every_rank_and_leaves_the_rest_as_slack() {
        let rank = demand(GIB, (10, 100), (2, 0));
        let split = split_pages(Tier::Device, Tokens(32), &[rank], Some(Pages(670))).unwrap();
        assert_eq!(split.pages, Some(Pages(670)));
        assert_eq!(split.ranks[0].slack, Bytes(GIB - 100 - 670 * 32 * 12));
        let wide = split_pages(Tier::Device, Tokens(32), &[rank], Some(Pages(u64::MAX)));
        assert_eq!(wide, split_pages(Tier::Device, Tokens(32), &[rank], None));
        assert_eq!(
            split_pages(Tier::Device, Tokens(32), &[rank], Some(Pages(1))),
            Err(BudgetError::CapTooSmall {
                tier: Tier::Device,
                cap: 1,
                least: 2
            })
        );
    }

    #[test]
    fn misuse_is_an_error() {
        let rank = demand(GIB, (10, 0), (0, 0));
        assert_eq!(device(0, &[rank]), Err(BudgetError::ZeroTokensPerBlock));
        assert_eq!(device(32, &[]), Err(BudgetError::NoRanks));
        let rank = demand(u64::MAX, (1, 0), (0, 0));
        assert!(matches!(
            device(1, &[rank]),
            Err(BudgetError::TooManyPages {
                pages: u64::MAX,
                ..
            })
        ));
        let rank = demand(GIB, (u64::MAX, 0), (0, 0));
        assert!(matches!(
            device(2, &[rank]),
            Err(BudgetError::Overflow { .. })
        ));
    }
}

//! What a cache group costs: bytes that grow with tokens, and pages that do not.
//!
//! The fixed pages of a group are of three kinds, kept apart: per engine (the reserved page,
//! dummies, cached endpoints, the resume margin), per sequence (a window, a state) and per step
//! (tokens in flight, once for the pool). Only their sum is the intercept of a [`Cost`].

use super::{BudgetError, Cost, Tier, Utilization};
use crate::units::Bytes;
use crate::window::{Lifetime, Window};

/// What an engine asks of every group of a role on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    /// Tokens of a page on this rank.
    pub tokens_per_block: u64,
    /// Ranks that share the tokens of a sequence: a block is a page on each of them.
    pub cp_size: u64,
    /// Sequences that can be open: the batch times the micro-batches in flight.
    pub sequences: u64,
    /// Tokens that a generation step may touch.
    pub headroom: u64,
    /// Tokens that a match backs off; 0 where nothing is matched.
    pub lookahead: u64,
    /// Most tokens that one step runs; 0 charges nothing for them.
    pub step_tokens: u64,
    /// Requests without tokens of their own that hold a state.
    pub dummies: u64,
    /// Cached prefixes whose windows and states stay beside those of the sequences.
    pub endpoints: u64,
    /// Tokens between two snapshots of a state; `None`: none are taken.
    pub snapshot_interval: Option<u64>,
    /// How full fixed pools may be for a suspended sequence to resume.
    pub resume: Utilization,
}

/// Pages of a group that do not grow with tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedPages {
    /// Page 0, which no sequence owns.
    pub reserved: u64,
    /// Pages of dummy requests.
    pub dummies: u64,
    /// Pages of cached prefixes. They are charged on every tier.
    pub endpoints: u64,
    /// Pages beyond those needed, so that a suspended sequence can resume.
    pub margin: u64,
    /// Pages of one sequence.
    pub per_sequence: u64,
    /// Sequences that are charged for.
    pub sequences: u64,
    /// Pages of the tokens in flight.
    pub per_step: u64,
}

impl FixedPages {
    /// Pages whatever runs: reserved, dummies, endpoints and margin.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn per_engine(self) -> Result<u64, BudgetError> {
        sum([self.reserved, self.dummies, self.endpoints, self.margin])
    }

    /// All of them, on the device.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn total(self) -> Result<u64, BudgetError> {
        sum([
            self.per_engine()?,
            product(self.per_sequence, self.sequences)?,
            self.per_step,
        ])
    }
}

/// The cost of one group on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupCost {
    /// Bytes of a page: of a block's tokens on this rank, or of a state.
    pub page: Bytes,
    /// Device bytes per token of a page of the groups that keep everything. A state grows by its
    /// snapshots.
    pub slope: Bytes,
    /// Pages that do not grow; `None` where every token is kept.
    pub fixed: Option<FixedPages>,
}

impl GroupCost {
    /// The affine cost of this group on a tier.
    ///
    /// States and windows are device memory: the lower tiers are charged the tokens that are kept
    /// for ever, and the endpoints.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn on(self, tier: Tier) -> Result<Cost, BudgetError> {
        let Some(fixed) = self.fixed else {
            return Ok(Cost {
                slope: self.slope,
                intercept: Bytes::ZERO,
            });
        };
        let (slope, pages) = match tier {
            Tier::Device => (self.slope, fixed.total()?),
            Tier::Host | Tier::Disk => (Bytes::ZERO, fixed.endpoints),
        };
        let intercept = self
            .page
            .checked_mul(pages)
            .ok_or(BudgetError::overflow("the fixed bytes of a group"))?;
        Ok(Cost { slope, intercept })
    }
}

/// Price a group of this lifetime. `bytes` are those of one token in all its layers on this rank,
/// or those of one sequence's states.
///
/// # Errors
/// [`BudgetError::Window`] for a length outside what the window function takes;
/// [`BudgetError::Overflow`] beyond `u64`.
pub fn group_cost(
    lifetime: Lifetime,
    bytes: Bytes,
    demand: &Demand,
) -> Result<GroupCost, BudgetError> {
    let block = product(demand.tokens_per_block, demand.cp_size)?;
    let window = Window::new(lifetime, block, demand.lookahead)?;
    let page = match lifetime {
        Lifetime::State => Some(bytes),
        _ => bytes.checked_mul(demand.tokens_per_block),
    };
    let page = page.ok_or(BudgetError::overflow("the bytes of a page"))?;
    let Some(per_sequence) = window.blocks_max(demand.headroom) else {
        return Ok(GroupCost {
            page,
            slope: bytes,
            fixed: None,
        });
    };
    let is_state = lifetime == Lifetime::State;
    // Cross attention is written once per sequence, whole; a state has no tokens in flight.
    let runs_tokens = matches!(lifetime, Lifetime::Window { .. } | Lifetime::Chunk { .. });
    let per_step = if runs_tokens {
        demand.step_tokens.div_ceil(block)
    } else {
        0
    };
    // A cached prefix has nothing in flight. An encoder's output is cached with no prefix.
    let per_endpoint = match lifetime {
        Lifetime::First { .. } => 0,
        _ => window.blocks_max(0).expect("it has a limit, see above"),
    };
    let running = sum([product(per_sequence, demand.sequences)?, per_step])?;
    let fixed = FixedPages {
        reserved: 1,
        dummies: if is_state { demand.dummies } else { 0 },
        endpoints: product(per_endpoint, demand.endpoints)?,
        margin: demand.resume.margin(running)?,
        per_sequence,
        sequences: demand.sequences,
        per_step,
    };
    let slope = match demand.snapshot_interval {
        Some(interval) if is_state => snapshot_slope(bytes, interval, demand.cp_size)?,
        _ => Bytes::ZERO,
    };
    Ok(GroupCost {
        page,
        slope,
        fixed: Some(fixed),
    })
}

/// A snapshot every `interval` tokens, as bytes per token that this rank stores, rounded up.
fn snapshot_slope(state: Bytes, interval: u64, cp_size: u64) -> Result<Bytes, BudgetError> {
    if interval == 0 {
        return Err(BudgetError::ZeroInterval);
    }
    Ok(Bytes(product(state.0, cp_size)?.div_ceil(interval)))
}

fn sum(parts: impl IntoIterator<Item = u64>) -> Result<u64, BudgetError> {
    parts
        .into_iter()
        .try_fold(0, u64::checked_add)
        .ok_or(BudgetError::overflow("the fixed pages of a group"))
}

fn product(one: u64, other: u64) -> Result<u64, BudgetError> {
    one.checked_mul(other)
        .ok_or(BudgetError::overflow("the fixed pages of a group"))
}

#[cfg(test)]
mod tests {
    use super::{Demand, FixedPages, GroupCost, group_cost};
    use crate::budget::{BudgetError, Cost, Tier, Utilization};
    use crate::units::Bytes;
    use crate::window::Lifetime;

    const DEMAND: Demand = Demand {
        tokens_per_block: 32,
        cp_size: 1,
        sequences: 16,
        headroom: 8,
        lookahead: 1,
        step_tokens: 0,
        dummies: 1,
        endpoints: 0,
        snapshot_interval: None,
        resume: Utilization::WHOLE,
    };

    fn window(tokens: u64) -> Lifetime {
        Lifetime::Window { tokens, sinks: 0 }
    }

    fn fixed(cost: GroupCost) -> FixedPages {
        cost.fixed.expect("a window has fixed pages")
    }

    #[test]
    fn full_attention_only_grows() {
        let cost = group_cost(Lifetime::Full, Bytes(4096), &DEMAND).unwrap();
        assert_eq!(cost.page, Bytes(32 * 4096));
        let expected = Cost {
            slope: Bytes(4096),
            intercept: Bytes(0),
        };
        for tier in [Tier::Device, Tier::Host] {
            assert_eq!(cost.on(tier), Ok(expected));
        }
    }

    #[test]
    fn the_three_kinds_are_kept_apart() {
        // 52 layers of 16 x 128 in bf16, window 1,024, one token of lookahead: 34 pages each.
        let demand = Demand {
            step_tokens: 8000,
            endpoints: 3,
            ..DEMAND
        };
        let cost = group_cost(window(1024), Bytes(52 * 8192), &demand).unwrap();
        let pages = fixed(cost);
        assert_eq!((pages.per_sequence, pages.sequences), (34, 16));
        assert_eq!((pages.reserved, pages.dummies, pages.margin), (1, 0, 0));
        assert_eq!(pages.per_step, 250);
        // Nothing is in flight at an endpoint: cdiv(1,025 - 2, 32) + 1 = 33 pages.
        assert_eq!(pages.endpoints, 99);
        assert_eq!(pages.total(), Ok(1 + 99 + 34 * 16 + 250));
        let on = |tier| cost.on(tier).unwrap().intercept.0;
        assert_eq!(on(Tier::Device), (1 + 99 + 34 * 16 + 250) * 52 * 8192 * 32);
        assert_eq!(on(Tier::Disk), 99 * 52 * 8192 * 32);
    }

    #[test]
    fn the_margin_is_a_rational() {
        // TensorRT-LLM#18459: 5 layers of 4,096 B, window 2,048, headroom 16, 64 sequences.
        let demand = Demand {
            sequences: 64,
            headroom: 16,
            lookahead: 0,
            step_tokens: 8192,
            resume: Utilization::new(95, 100).unwrap(),
            ..DEMAND
        };
        let pages = fixed(group_cost(window(2048), Bytes(5 * 4096), &demand).unwrap());
        assert_eq!((pages.per_sequence, pages.per_step), (66, 256));
        assert_eq!(pages.total().unwrap() - pages.reserved, 4716);
    }

    #[test]
    fn states_have_slots_and_snapshots() {
        let demand = Demand {
            sequences: 128,
            snapshot_interval: Some(2048),
            ..DEMAND
        };
        let cost = group_cost(Lifetime::State, Bytes(39_518_208), &demand).unwrap();
        assert_eq!(cost.page, Bytes(39_518_208));
        assert_eq!(fixed(cost).total().unwrap() - 1, 129);
        assert_eq!(cost.on(Tier::Device).unwrap().slope, Bytes(19_296));
        assert_eq!(cost.on(Tier::Host), Ok(Cost::ZERO));
    }

    #[test]
    fn a_block_of_context_parallel_ranks_holds_the_tokens_of_all() {
        let demand = Demand {
            cp_size: 4,
            lookahead: 0,
            headroom: 1,
            ..DEMAND
        };
        let cost = group_cost(window(1024), Bytes(100), &demand).unwrap();
        // 1,024 tokens touch 9 blocks of 128, a page of 32 tokens each on this rank.
        assert_eq!((cost.page, fixed(cost).per_sequence), (Bytes(3200), 9));
    }

    #[test]
    fn what_cannot_be_priced_is_an_error() {
        let none = Demand {
            snapshot_interval: Some(0),
            ..DEMAND
        };
        assert_eq!(
            group_cost(Lifetime::State, Bytes(1), &none),
            Err(BudgetError::ZeroInterval)
        );
        assert!(matches!(
            group_cost(window(0), Bytes(1), &DEMAND),
            Err(BudgetError::Window(_))
        ));
        assert!(matches!(
            group_cost(Lifetime::Full, Bytes(u64::MAX), &DEMAND),
            Err(BudgetError::Overflow { .. })
        ));
    }
}

//! From bytes to pages: what a layer costs, and what a budget buys for target and draft.
//!
//! * [`layer`]: bytes per token of one layer on one rank, from its geometry and KV dtype.
//! * [`state`]: bytes per sequence of the recurrent state of one layer on one rank.
//! * [`cost`]: the affine cost of a role, `bytes(T) = slope * T + intercept`.
//! * [`group`]: the cost of a cache group, with its fixed pages by kind.
//! * [`quota`]: bytes to tokens and back, and how full a pool may be.
//! * [`pages`]: the split that pools are built from. Both roles and all ranks get the same
//!   number of pages, and `target + draft + slack == budget` holds on every rank, exactly.
//! * [`bytes`]: the proportional byte split of one rank, as TensorRT-LLM computes it. It can
//!   differ from the page split by less than one page of both roles; no pool is built from it.
//!
//! Everything here is a pure function of its arguments, in checked integers.

pub mod bytes;
pub mod cost;
pub mod group;
pub mod layer;
pub mod pages;
pub mod quota;
pub mod state;

pub use bytes::{ByteSplit, NotSplit, split_bytes};
pub use cost::Cost;
pub use group::{Demand, FixedPages, GroupCost, group_cost};
pub use layer::{GeometryError, KvDtype, Layer, LayerKind};
pub use pages::{PageSplit, PerSequence, RankDemand, RankSplit, split_pages};
pub use quota::{TokenCost, Utilization};
pub use state::{StateBuffer, layer_state_bytes};

use crate::units::{Bytes, Pages};
use crate::window::WindowError;
use thiserror::Error;

/// Where KV memory lies, warm to cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Accelerator memory. Windows and states of running sequences are charged here, and only here.
    Device,
    /// Host memory.
    Host,
    /// Files.
    Disk,
}

impl Tier {
    /// The tier of this name: `device`, `host` or `disk`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "device" => Some(Self::Device),
            "host" => Some(Self::Host),
            "disk" => Some(Self::Disk),
            _ => None,
        }
    }

    /// The name that [`Tier::parse`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }

    /// What a cost charges on this tier: states, windows and dummies live on the device, so the
    /// lower tiers are charged the slope alone.
    #[must_use]
    pub fn charge(self, cost: Cost) -> Cost {
        match self {
            Self::Device => cost,
            Self::Host | Self::Disk => Cost {
                intercept: Bytes::ZERO,
                ..cost
            },
        }
    }
}

/// A budget that does not hold what is asked of it, with every number of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The tier whose budget is too small.
    pub tier: Tier,
    /// The rank with the largest shortfall; the first of those.
    pub rank: usize,
    /// What this rank was given.
    pub budget: Bytes,
    /// Whether a page is a single token here: the byte split knows no pages.
    pub in_tokens: bool,
    /// The target's fixed bytes.
    pub target_fixed: Bytes,
    /// The draft's fixed bytes.
    pub draft_fixed: Bytes,
    /// Bytes of one page of the target.
    pub target_page: Bytes,
    /// Bytes of one page of the draft.
    pub draft_page: Bytes,
    /// The fewest pages that make a usable pool.
    pub required_pages: Pages,
    /// Bytes of the fixed cost and the required pages together.
    pub required: Bytes,
    /// `required - budget`.
    pub shortfall: Bytes,
    /// The largest batch whose fixed bytes leave room for the required pages; `None` if the
    /// bytes per sequence are not known or zero, or if no batch fits.
    pub largest_batch: Option<u64>,
}

impl std::fmt::Display for Infeasible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the {} budget of rank {} is {} bytes, {} bytes short of the {} it needs: \
             fixed {} (target) + {} (draft)",
            self.tier.name(),
            self.rank,
            self.budget.0,
            self.shortfall.0,
            self.required.0,
            self.target_fixed.0,
            self.draft_fixed.0,
        )?;
        if self.required_pages > Pages::ZERO {
            let unit = if self.in_tokens { "token" } else { "page" };
            let plural = if self.required_pages == Pages(1) {
                ""
            } else {
                "s"
            };
            write!(
                f,
                ", and {} {unit}{plural} of {} (target) + {} (draft)",
                self.required_pages.0, self.target_page.0, self.draft_page.0,
            )?;
        }
        if let Some(batch) = self.largest_batch {
            write!(f, "; the largest batch that fits is {batch}")?;
        }
        Ok(())
    }
}

/// Why a budget could not be divided. Nothing is changed by a division that fails.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BudgetError {
    /// The budget is too small.
    #[error("{0}")]
    Infeasible(Box<Infeasible>),
    /// A block of no tokens holds nothing.
    #[error("tokens_per_block is 0; a block holds at least one token")]
    ZeroTokensPerBlock,
    /// A plan for nobody.
    #[error("there is no rank to divide a budget for")]
    NoRanks,
    /// A page index is a signed 32-bit number in every block table.
    #[error(
        "the {} budget buys {pages} pages; a block table addresses at most {limit} \
         (raise tokens_per_block)", tier.name()
    )]
    TooManyPages {
        /// The tier that holds them.
        tier: Tier,
        /// What the budget buys.
        pages: u64,
        /// What a table can address.
        limit: u64,
    },
    /// A cap that leaves no usable pool.
    #[error("the {} pool is capped at {cap} pages; it needs at least {least}", tier.name())]
    CapTooSmall {
        /// The tier.
        tier: Tier,
        /// The cap.
        cap: u64,
        /// The fewest pages that make a usable pool.
        least: u64,
    },
    /// Snapshots without an interval.
    #[error("snapshot_interval is 0; it is at least 1 token")]
    ZeroInterval,
    /// A length that no window can have.
    #[error("{0}")]
    Window(#[from] WindowError),
    /// A product or sum left the 64-bit range.
    #[error("{what} exceeds 64 bits")]
    Overflow {
        /// What was being computed.
        what: &'static str,
    },
}

impl BudgetError {
    pub(crate) fn overflow(what: &'static str) -> Self {
        Self::Overflow { what }
    }
}

#[cfg(test)]
mod tests {
    use super::{Infeasible, Tier};
    use crate::units::{Bytes, Pages};

    #[test]
    fn a_refusal_prints_every_number() {
        let mut refusal = Infeasible {
            tier: Tier::Device,
            rank: 3,
            budget: Bytes(5_000),
            in_tokens: false,
            target_fixed: Bytes(100),
            draft_fixed: Bytes(30),
            target_page: Bytes(1_920),
            draft_page: Bytes(640),
            required_pages: Pages(2),
            required: Bytes(5_250),
            shortfall: Bytes(250),
            largest_batch: Some(7),
        };
        assert_eq!(
            refusal.to_string(),
            "the device budget of rank 3 is 5000 bytes, 250 bytes short of the 5250 it needs: \
             fixed 100 (target) + 30 (draft), and 2 pages of 1920 (target) + 640 (draft); \
             the largest batch that fits is 7"
        );
        refusal.required_pages = Pages(0);
        refusal.largest_batch = None;
        assert!(refusal.to_string().ends_with("+ 30 (draft)"));
    }
}

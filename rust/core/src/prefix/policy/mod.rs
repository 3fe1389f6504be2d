//! Policies: in which order leaves are evicted.
//!
//! A policy orders victims and protects nothing: what fits never depends on it.

mod adaptive;
mod ghosts;
mod shadow;

use std::fmt::Debug;

use crate::ids::{BlockId, Token};
use crate::prefix::leaves::RANK_MAX;
use adaptive::Adaptive;

/// Which policy a ledger evicts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictionPolicy {
    /// Least recently used first.
    #[default]
    Lru,
    /// Least frequently used first, with dynamic ageing.
    Lfu,
    /// Least recently used first, but for blocks that were used again, by a boost that is learned.
    Adaptive,
}

impl EvictionPolicy {
    /// Names and policies.
    pub const NAMED: [(&'static str, Self); 3] = [
        ("lru", Self::Lru),
        ("lfu", Self::Lfu),
        ("adaptive", Self::Adaptive),
    ];

    /// Its name.
    ///
    /// # Panics
    ///
    /// Never: every policy has a name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::NAMED.iter().find(|&&(_, policy)| policy == self);
        named.expect("every policy has a name").0
    }

    /// The policy for a tree of at most `blocks` blocks, whose records have numbers below `records`.
    pub(crate) fn build(self, records: u32, blocks: u32) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(Lru),
            Self::Lfu => Box::new(Lfu { age: 0 }),
            Self::Adaptive => Box::new(Adaptive::new(records, blocks)),
        }
    }
}

/// What a policy knows of the blocks of a node; all of them have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// How often it was used, as the policy counts.
    pub uses: u32,
    /// Its rank as a leaf, from when it last became unprotected.
    pub rank: u64,
}

/// Ranks leaves. A leaf stands in one of a few queues, ordered by (priority, rank, last use); of the heads
/// of the queues the one goes whose (priority, last use + the queue's offset) is smallest, so that an
/// offset can change without any leaf moving.
///
/// The tree calls `used` only if `counts_uses`, `place` and `served` only if `places_blocks`, `idle`
/// whenever a node becomes unprotected, and `evicted` for each run of victims. An answer may depend on
/// earlier calls and on nothing else, so that ranks that see the same calls evict alike.
pub(crate) trait Policy: Debug + Send {
    /// From now on there are so many block records.
    fn grow(&mut self, _records: u32) {}

    /// Whether uses are counted at all.
    fn counts_uses(&self) -> bool {
        false
    }

    /// Whether blocks differ already when they enter the tree.
    fn places_blocks(&self) -> bool {
        false
    }

    /// What a block has when it enters the tree, unless blocks are placed.
    fn fresh(&self) -> Usage {
        Usage::default()
    }

    /// What block `id`, which holds `text` and follows the block `above`, has when it enters the tree.
    fn place(&mut self, _scope: i32, _above: Option<BlockId>, _id: BlockId, _: &[Token]) -> Usage {
        self.fresh()
    }

    /// An admission shares or copies the blocks.
    fn used(&mut self, _: &mut Usage) {}

    /// The blocks have become unprotected: sets their rank, at most `RANK_MAX`.
    fn idle(&mut self, _: &mut Usage) {}

    /// The queue of a leaf, below `QUEUES`.
    fn queue(&self, _: &Usage) -> usize {
        0
    }

    /// What is added to the last use of a queue's leaves to compare them with other queues.
    fn offset(&self, _queue: usize) -> u64 {
        0
    }

    /// Blocks of one node have been evicted, the last one first; none is given of a partial block.
    fn evicted(&mut self, _: &Usage, _: &[BlockId]) {}

    /// Whether `served` wants to know of requests that begin with this block.
    fn is_sampled(&self, _first: BlockId) -> bool {
        false
    }

    /// A request that stood on these full blocks has ended.
    fn served(&mut self, _path: &[BlockId]) {}

    /// Whether the clock grows by the blocks that a request put into the tree.
    fn grows_with_blocks(&self) -> bool {
        false
    }

    /// What later answers depend on, for the digest.
    fn state(&self) -> String {
        String::new()
    }
}

/// Least recently used: all ranks are equal, so the last use decides.
#[derive(Debug)]
struct Lru;

impl Policy for Lru {}

/// Least frequently used with dynamic ageing: the rank is the uses plus the largest rank evicted so
/// far, so what was popular once sinks below what is used now.
#[derive(Debug)]
struct Lfu {
    age: u64,
}

impl Policy for Lfu {
    fn counts_uses(&self) -> bool {
        true
    }

    fn fresh(&self) -> Usage {
        Usage { uses: 1, rank: 0 }
    }

    fn used(&mut self, usage: &mut Usage) {
        usage.uses = usage.uses.saturating_add(1);
    }

    fn idle(&mut self, usage: &mut Usage) {
        usage.rank = (self.age + u64::from(usage.uses)).min(RANK_MAX);
    }

    fn evicted(&mut self, usage: &Usage, _: &[BlockId]) {
        self.age = self.age.max(usage.rank);
    }

    fn state(&self) -> String {
        self.age.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lfu_ranks_by_uses_above_the_last_victims_rank() {
        let mut lfu = Lfu { age: 0 };
        let (mut old, mut new) = (lfu.fresh(), lfu.fresh());
        for _ in 0..4 {
            lfu.used(&mut old);
        }
        lfu.idle(&mut old);
        assert_eq!(old, Usage { uses: 5, rank: 5 });
        lfu.evicted(&old, &[]);
        lfu.idle(&mut new);
        assert_eq!(new.rank, 6, "newer than five old uses");
        lfu.evicted(&Usage { uses: 1, rank: 2 }, &[]);
        assert_eq!(lfu.age, 5, "the age never falls");
    }

    #[test]
    fn ranks_end_where_their_bits_do() {
        let mut lfu = Lfu { age: RANK_MAX };
        let mut usage = lfu.fresh();
        lfu.idle(&mut usage);
        assert_eq!(usage.rank, RANK_MAX);
    }
}

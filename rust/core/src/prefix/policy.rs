//! Policies: in which order leaves are evicted.
//!
//! A policy orders victims and protects nothing: what fits never depends on it.

use std::fmt::Debug;

use crate::prefix::leaves::RANK_MAX;

/// Which policy a ledger evicts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictionPolicy {
    /// Least recently used first.
    #[default]
    Lru,
    /// Least frequently used first, with dynamic ageing.
    Lfu,
}

impl EvictionPolicy {
    /// Names and policies.
    pub const NAMED: [(&'static str, Self); 2] = [("lru", Self::Lru), ("lfu", Self::Lfu)];

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

    pub(crate) fn build(self) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(Lru),
            Self::Lfu => Box::new(Lfu { age: 0 }),
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

/// Ranks leaves: the smallest (priority, rank, last use) goes first.
///
/// The tree calls `used` only if `counts_uses`, `idle` whenever a node becomes unprotected, and
/// `evicted` for each run of victims. An answer may depend on earlier calls and on nothing else, so that
/// ranks that see the same calls evict alike.
pub(crate) trait Policy: Debug + Send {
    /// Whether uses are counted at all.
    fn counts_uses(&self) -> bool;

    /// What a block has when it enters the tree.
    fn fresh(&self) -> Usage;

    /// An admission shares or copies the blocks.
    fn used(&mut self, usage: &mut Usage);

    /// The blocks have become unprotected: sets their rank, at most `RANK_MAX`.
    fn idle(&mut self, usage: &mut Usage);

    /// Blocks have been evicted.
    fn evicted(&mut self, usage: &Usage);

    /// What later answers depend on, for the digest.
    fn state(&self) -> u64;
}

/// Least recently used: all ranks are equal, so the last use decides.
#[derive(Debug)]
struct Lru;

impl Policy for Lru {
    fn counts_uses(&self) -> bool {
        false
    }

    fn fresh(&self) -> Usage {
        Usage::default()
    }

    fn used(&mut self, _: &mut Usage) {}

    fn idle(&mut self, _: &mut Usage) {}

    fn evicted(&mut self, _: &Usage) {}

    fn state(&self) -> u64 {
        0
    }
}

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

    fn evicted(&mut self, usage: &Usage) {
        self.age = self.age.max(usage.rank);
    }

    fn state(&self) -> u64 {
        self.age
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
        lfu.evicted(&old);
        lfu.idle(&mut new);
        assert_eq!(new.rank, 6, "newer than five old uses");
        lfu.evicted(&Usage { uses: 1, rank: 2 });
        assert_eq!(lfu.state(), 5, "the age never falls");
    }

    #[test]
    fn ranks_end_where_their_bits_do() {
        let mut lfu = Lfu { age: RANK_MAX };
        let mut usage = lfu.fresh();
        lfu.idle(&mut usage);
        assert_eq!(usage.rank, RANK_MAX);
    }
}

//! The inactive leaves in the order in which they are evicted.

use std::collections::BTreeSet;

use crate::ids::NodeId;

const ID_BITS: u32 = 32;
const USE_BITS: u32 = 48;
const RANK_BITS: u32 = 40;

/// The largest rank of a leaf.
pub(crate) const RANK_MAX: u64 = (1 << RANK_BITS) - 1;

/// A leaf: its priority, rank, last use and id, most significant first. One number of 16 bytes compares
/// faster than a tuple and takes no more room than the last use and the id alone. The id only makes the
/// order total: leaves of equal last use lie on one path, so there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leaf(u128);

impl Leaf {
    pub(crate) fn new(priority: u8, rank: u64, last_use: u64, id: NodeId) -> Self {
        // 2^48 ticks are nine years at a million releases a second.
        assert!(last_use < 1 << USE_BITS, "the ledger has run out of ticks");
        debug_assert!(rank <= RANK_MAX);
        let high = u128::from(priority) << RANK_BITS | u128::from(rank);
        Self((high << USE_BITS | u128::from(last_use)) << ID_BITS | u128::from(id.get()))
    }

    pub(crate) fn id(self) -> NodeId {
        NodeId::new(u32::try_from(self.0 & u128::from(u32::MAX)).expect("masked"))
    }
}

/// Where each inactive leaf stands.
#[derive(Debug, Default)]
pub(crate) struct Leaves {
    /// Fence passed, not all of it claimed.
    ready: BTreeSet<Leaf>,
    /// Fence passed, all blocks claimed by a later item of the running call.
    claimed: BTreeSet<Leaf>,
    /// Leaves whose fence has not passed, by stamp.
    fenced: BTreeSet<(u64, NodeId)>,
}

impl Leaves {
    /// The next victim among the leaves that are not claimed.
    pub(crate) fn first_ready(&self) -> Option<NodeId> {
        self.ready.first().map(|leaf| leaf.id())
    }

    /// The next victim among the claimed leaves.
    pub(crate) fn first_claimed(&self) -> Option<NodeId> {
        self.claimed.first().map(|leaf| leaf.id())
    }

    pub(crate) fn insert(&mut self, leaf: Leaf, claimed: bool) {
        if claimed {
            self.claimed.insert(leaf);
        } else {
            self.ready.insert(leaf);
        }
    }

    pub(crate) fn insert_fenced(&mut self, stamp: u64, id: NodeId) {
        self.fenced.insert((stamp, id));
    }

    /// Takes a leaf whose fence has passed out; says whether it was there.
    pub(crate) fn remove(&mut self, leaf: Leaf) -> bool {
        self.ready.remove(&leaf) || self.claimed.remove(&leaf)
    }

    /// Takes a leaf whose fence has not passed out; says whether it was there.
    pub(crate) fn remove_fenced(&mut self, stamp: u64, id: NodeId) -> bool {
        self.fenced.remove(&(stamp, id))
    }

    /// Makes a leaf a victim only after all others; nothing if its fence has not passed.
    pub(crate) fn claim(&mut self, leaf: Leaf) {
        if self.ready.remove(&leaf) {
            self.claimed.insert(leaf);
        }
    }

    pub(crate) fn end_claims(&mut self) {
        self.ready.append(&mut self.claimed);
    }

    /// The fenced leaf with the oldest stamp.
    pub(crate) fn first_fenced(&self) -> Option<(u64, NodeId)> {
        self.fenced.first().copied()
    }

    /// All leaves whose fence has passed, in the order in which they would go, between calls.
    pub(crate) fn order(&self) -> Vec<Leaf> {
        self.ready.iter().copied().collect()
    }

    /// All leaves whose fence has not passed, by stamp.
    pub(crate) fn fenced(&self) -> Vec<(u64, NodeId)> {
        self.fenced.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_comes_before_rank_before_last_use() {
        let id = |id| NodeId::new(id);
        let order = [
            Leaf::new(0, RANK_MAX, 9, id(7)),
            Leaf::new(1, 0, 9, id(7)),
            Leaf::new(1, 1, 8, id(7)),
            Leaf::new(1, 1, 9, id(6)),
            Leaf::new(1, 1, 9, id(7)),
            Leaf::new(255, 0, 0, id(0)),
        ];
        assert!(order.is_sorted());
        assert_eq!(order[3].id(), id(6));
    }
}

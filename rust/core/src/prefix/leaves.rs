//! The inactive leaves in the order in which they are evicted.

use std::collections::BTreeSet;

use crate::ids::NodeId;
use crate::steps::Steps;

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

    /// What decides between the heads of two queues: all but the id, the offset added to the last use.
    fn against_queues(self, offset: u64) -> u128 {
        (self.0 >> ID_BITS) + u128::from(offset)
    }

    pub(crate) fn id(self) -> NodeId {
        NodeId::new(u32::try_from(self.0 & u128::from(u32::MAX)).expect("masked"))
    }
}

/// Queues that a policy may use.
pub(crate) const QUEUES: usize = 3;

type Queues = [BTreeSet<Leaf>; QUEUES];

/// Where each inactive leaf stands.
#[derive(Debug, Default)]
pub(crate) struct Leaves {
    /// Fence passed, not all of it claimed.
    ready: Queues,
    /// Fence passed, all blocks claimed by a later item of the running call.
    claimed: Queues,
    /// Leaves whose fence has not passed, by stamp.
    fenced: BTreeSet<(u64, NodeId)>,
}

/// The leaf that goes first of some queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// What decides between heads: the offset of the queue counted in, then the queue.
    pub order: (u128, usize),
    pub id: NodeId,
}

/// The head that goes first when each queue's last uses count so much later; of equal ones that of the
/// lower queue.
fn first(queues: &Queues, offset: impl Fn(usize) -> u64) -> Option<Head> {
    let heads = queues.iter().enumerate();
    heads
        .filter_map(|(queue, leaves)| leaves.first().map(|&leaf| (queue, leaf)))
        .map(|(queue, leaf)| Head {
            order: (leaf.against_queues(offset(queue)), queue),
            id: leaf.id(),
        })
        .min_by_key(|head| head.order)
}

impl Leaves {
    /// The next victim among the leaves that are not claimed.
    pub(crate) fn first_ready(&self, offset: impl Fn(usize) -> u64) -> Option<Head> {
        first(&self.ready, offset)
    }

    /// The next victim among the claimed leaves.
    pub(crate) fn first_claimed(&self, offset: impl Fn(usize) -> u64) -> Option<Head> {
        first(&self.claimed, offset)
    }

    pub(crate) fn insert(&mut self, queue: usize, leaf: Leaf, claimed: bool) {
        if claimed {
            self.claimed[queue].insert(leaf);
        } else {
            self.ready[queue].insert(leaf);
        }
    }

    pub(crate) fn insert_fenced(&mut self, stamp: u64, id: NodeId) {
        self.fenced.insert((stamp, id));
    }

    /// Takes a leaf whose fence has passed out; says whether it was there.
    pub(crate) fn remove(&mut self, queue: usize, leaf: Leaf) -> bool {
        self.ready[queue].remove(&leaf) || self.claimed[queue].remove(&leaf)
    }

    /// Takes a leaf whose fence has not passed out; says whether it was there.
    pub(crate) fn remove_fenced(&mut self, stamp: u64, id: NodeId) -> bool {
        self.fenced.remove(&(stamp, id))
    }

    /// Makes a leaf a victim only after all others; nothing if its fence has not passed.
    pub(crate) fn claim(&mut self, queue: usize, leaf: Leaf) {
        if self.ready[queue].remove(&leaf) {
            self.claimed[queue].insert(leaf);
        }
    }

    pub(crate) fn end_claims(&mut self) {
        for (ready, claimed) in self.ready.iter_mut().zip(&mut self.claimed) {
            // One by one: `append` builds all of `ready` anew, which takes milliseconds of a large one.
            while let Some(leaf) = claimed.pop_first() {
                ready.insert(leaf);
            }
        }
    }

    /// Takes the leaves out whose fence has passed by now.
    pub(crate) fn take_passed(&mut self, steps: &Steps) -> Vec<NodeId> {
        let mut passed = Vec::new();
        while let Some(&(stamp, id)) = self.fenced.first()
            && steps.passed(stamp)
        {
            self.fenced.pop_first();
            passed.push(id);
        }
        passed
    }

    /// All leaves whose fence has passed, with their queues, between calls.
    pub(crate) fn ready(&self) -> Vec<(usize, Leaf)> {
        let queues = self.ready.iter().enumerate();
        queues
            .flat_map(|(queue, leaves)| leaves.iter().map(move |&leaf| (queue, leaf)))
            .collect()
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

    #[test]
    fn offsets_move_queues_against_each_other() {
        let mut leaves = Leaves::default();
        leaves.insert(0, Leaf::new(1, 0, 10, NodeId::new(9)), false);
        leaves.insert(1, Leaf::new(1, 0, 6, NodeId::new(5)), false);
        let first = |offset: u64| {
            let head = leaves.first_ready(|queue| queue as u64 * offset);
            head.map(|head| head.id)
        };
        assert_eq!(first(0), Some(NodeId::new(5)));
        assert_eq!(first(3), Some(NodeId::new(5)));
        assert_eq!(
            first(4),
            Some(NodeId::new(9)),
            "the lower queue of two equal ones"
        );
    }
}

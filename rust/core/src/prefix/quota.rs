//! Quotas: what a scope keeps of the tree while others need room.
//!
//! `docs/eviction.md` is the contract. A scope with a quota has counts and leaves of its own, so that what
//! an allocation may evict is one subtraction, and scopes at their floors are passed over as a whole.

use std::collections::BTreeMap;

use crate::ids::NodeId;
use crate::prefix::counts::Counts;
use crate::prefix::leaves::{Head, Leaves};
use crate::prefix::{Node, Tree};
use crate::steps::Steps;

/// Blocks of a scope that others leave alone, and how many it may have while others need room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quota {
    pub floor: u32,
    pub ceiling: Option<u32>,
}

/// A scope with a quota.
#[derive(Debug)]
pub(crate) struct Share {
    pub quota: Quota,
    pub counts: Counts,
    pub leaves: Leaves,
}

impl Share {
    /// Evictable blocks that are there for no other scope.
    pub(crate) fn guarded(&self) -> u32 {
        let protected = self.counts.cached - self.counts.evictable;
        let missing = self.quota.floor.saturating_sub(protected);
        missing.min(self.counts.evictable)
    }

    /// Blocks that another scope may evict, whether they are evictable or not.
    fn above_floor(&self) -> u32 {
        self.counts.cached.saturating_sub(self.quota.floor)
    }

    fn above_ceiling(&self) -> u32 {
        let ceiling = self.quota.ceiling.unwrap_or(u32::MAX);
        self.counts.cached.saturating_sub(ceiling)
    }
}

/// The scopes with quotas, and sums over them.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    by_scope: BTreeMap<i32, Share>,
    guarded: u32,
    floors: u64,
}

impl Shares {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_scope.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i32, &Share)> {
        self.by_scope.iter().map(|(&scope, share)| (scope, share))
    }

    /// Evictable blocks that no other scope may evict.
    pub(crate) fn guarded(&self) -> u32 {
        self.guarded
    }

    pub(super) fn leaves_mut(&mut self, scope: i32) -> Option<&mut Leaves> {
        self.by_scope.get_mut(&scope).map(|share| &mut share.leaves)
    }

    pub(super) fn all_leaves_mut(&mut self) -> impl Iterator<Item = (i32, &mut Leaves)> {
        let shares = self.by_scope.iter_mut();
        shares.map(|(&scope, share)| (scope, &mut share.leaves))
    }

    /// Changes the counts of a scope, if it has a quota.
    pub(super) fn count(&mut self, scope: i32, change: impl Fn(&mut Counts)) {
        if let Some(share) = self.by_scope.get_mut(&scope) {
            self.guarded -= share.guarded();
            change(&mut share.counts);
            self.guarded += share.guarded();
        }
    }

    pub(super) fn release_fenced(&mut self, steps: &Steps) {
        for share in self.by_scope.values_mut() {
            self.guarded -= share.guarded();
            share.counts.release_fenced(steps);
            self.guarded += share.guarded();
        }
    }

    fn insert(&mut self, scope: i32, share: Share) {
        self.guarded += share.guarded();
        self.floors += u64::from(share.quota.floor);
        self.by_scope.insert(scope, share);
    }

    fn remove(&mut self, scope: i32) -> Option<Share> {
        let share = self.by_scope.remove(&scope)?;
        self.guarded -= share.guarded();
        self.floors -= u64::from(share.quota.floor);
        Some(share)
    }
}

impl Tree {
    /// Blocks that an allocation for a scope may evict now.
    #[inline]
    pub(crate) fn evictable_for(&self, scope: i32) -> u32 {
        let evictable = self.counts.evictable;
        if self.shares.is_empty() {
            return evictable;
        }
        let own = self.shares.by_scope.get(&scope).map_or(0, Share::guarded);
        evictable - (self.shares.guarded - own)
    }

    /// The floors of all scopes but one.
    #[inline]
    pub(crate) fn floors_against(&self, scope: i32) -> u64 {
        let own = self.shares.by_scope.get(&scope);
        self.shares.floors - own.map_or(0, |share| share.quota.floor.into())
    }

    /// The scopes with quotas, ascending.
    pub(crate) fn quotas(&self) -> Vec<(i32, Quota)> {
        let shares = self.shares.iter();
        shares.map(|(scope, share)| (scope, share.quota)).collect()
    }

    /// Gives a scope a quota, or takes it away.
    pub(crate) fn set_quota(&mut self, scope: i32, quota: Option<Quota>, steps: &Steps) {
        let nodes = self.nodes_of(scope);
        let is_leaf = |node: &Node| !node.is_active() && node.children.is_empty();
        let leaves: Vec<NodeId> = nodes
            .iter()
            .copied()
            .filter(|&id| is_leaf(self.node(id)))
            .collect();
        for &id in &leaves {
            self.leave_leaves(id, steps);
        }
        self.shares.remove(scope);
        if let Some(quota) = quota {
            let share = Share {
                quota,
                counts: self.counts_of(&nodes, steps),
                leaves: Leaves::default(),
            };
            self.shares.insert(scope, share);
        }
        for id in leaves {
            self.enter_leaves(id, steps);
        }
    }

    /// The nodes of a scope that hold blocks.
    pub(crate) fn nodes_of(&self, scope: i32) -> Vec<NodeId> {
        let Some(&root) = self.roots.get(&scope) else {
            return Vec::new();
        };
        let mut nodes: Vec<NodeId> = self.node(root).children.iter().collect();
        let mut at = 0;
        while let Some(&id) = nodes.get(at) {
            nodes.extend(self.node(id).children.iter());
            at += 1;
        }
        nodes
    }

    /// Counts the blocks of some nodes anew.
    pub(crate) fn counts_of(&self, nodes: &[NodeId], steps: &Steps) -> Counts {
        let mut counts = Counts::default();
        let mut inactive = Vec::new();
        for &id in nodes {
            let node = self.node(id);
            counts.cached += node.len();
            if !node.is_active() {
                inactive.push((node.stamp, node.len()));
            }
        }
        inactive.sort_unstable();
        for (stamp, blocks) in inactive {
            counts.enter(stamp, blocks, steps);
        }
        counts
    }

    /// The leaf that an allocation for a scope evicts next, how many of its leading blocks stay, and how many
    /// of its blocks may go before the choice is made anew.
    pub(super) fn victim(&self, scope: i32) -> Option<(NodeId, u32, u32)> {
        let offset = |queue| self.policy.offset(queue);
        if self.shares.is_empty() {
            let ready = self.leaves.first_ready(offset);
            let ready = ready.map(|head| (head.id, self.node(head.id).claimed, u32::MAX));
            let claimed = || self.leaves.first_claimed(offset);
            return ready.or_else(|| claimed().map(|head| (head.id, 0, u32::MAX)));
        }
        // Unclaimed leaves before claimed ones; among them scopes above their ceilings first.
        let choices = [(false, true), (false, false), (true, true), (true, false)];
        choices.into_iter().find_map(|(claimed, above)| {
            let first = |leaves: &Leaves| {
                if claimed {
                    leaves.first_claimed(offset)
                } else {
                    leaves.first_ready(offset)
                }
            };
            let common = if above { None } else { first(&self.leaves) };
            let shares = self.shares.iter().filter_map(|(owner, share)| {
                let over = share.above_ceiling();
                let mut most = if owner == scope {
                    u32::MAX
                } else {
                    share.above_floor()
                };
                if above {
                    most = most.min(over);
                }
                let usable = most > 0 && above == (over > 0);
                usable
                    .then(|| first(&share.leaves))
                    .flatten()
                    .map(|head| (head, most))
            });
            let heads = common
                .map(|head| (head, u32::MAX))
                .into_iter()
                .chain(shares);
            let (Head { id, .. }, most) = heads.min_by_key(|(head, _)| head.order)?;
            let kept = if claimed { 0 } else { self.node(id).claimed };
            Some((id, kept, most))
        })
    }
}

//! The prefix tree: what is reusable, and the pages that hold it.
//!
//! A node is a run of consecutive blocks without a branch inside. Identity is decided by comparing
//! tokens: nothing is hashed. What each operation means is written in `docs/ledger.md`.
//!
//! | file | holds |
//! |---|---|
//! | `node.rs` | a run of blocks |
//! | `counts.rs` | blocks by what an allocation may do with them |
//! | `quota.rs` | what scopes keep while others need room |
//! | `children.rs` | the ordered list of a node's children |
//! | `text.rs` | tokens of a run, comparison of siblings |
//! | `find.rs` | matching, read-only |
//! | `explain.rs` | agreement of a text with the tree, for reports |
//! | `edit.rs` | making, splitting, merging and removing nodes |
//! | `drop.rs` | giving up a scope |
//! | `protect.rs` | pins, and what they protect |
//! | `evict.rs` | claims and eviction |
//! | `lease.rs` | what leases protect |
//! | `expire.rs` | time to live |
//! | `leaves.rs` | the inactive leaves in the order of eviction |
//! | `policy/` | what decides that order |
//! | `retain.rs` | priorities of blocks, and their end |

mod children;
mod counts;
mod drop;
mod edit;
mod evict;
mod expire;
mod explain;
mod find;
mod lease;
mod leaves;
mod node;
mod policy;
mod protect;
mod quota;
mod retain;
mod text;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use edit::Incoming;
pub(crate) use expire::Ages;
pub(crate) use find::Found;
pub(crate) use node::{Node, Partial};
pub use policy::EvictionPolicy;
pub(crate) use policy::Usage;
pub(crate) use quota::{Quota, Share};
pub(crate) use retain::{Retention, ordered};
pub(crate) use text::Key;

use crate::blocks::Blocks;
use crate::ids::{NodeId, PageIndex};
use crate::pool::Pool;
use crate::prefix::counts::Counts;
use crate::prefix::leaves::Leaves;
use crate::prefix::policy::Policy;
use crate::prefix::quota::Shares;
use crate::side::Sides;
use crate::slab::Slab;
use crate::tiers::Tiers;

/// What blocks that leave the tree give back to: their records and their pages.
pub(crate) struct Store<'a> {
    pub blocks: &'a mut Blocks,
    /// Of all classes, by place.
    pub pools: &'a mut [Pool],
    pub sides: &'a mut Sides,
    /// Where full blocks are offered that are evicted by need; `None` for those that go for another reason.
    pub tiers: Option<&'a mut Tiers>,
}

/// The tree of all scopes.
#[derive(Debug)]
pub(crate) struct Tree {
    pub nodes: Slab<Node>,
    /// The root of each scope that has any block or sequence.
    pub roots: BTreeMap<i32, NodeId>,
    /// Classes whose pages stand in the nodes: the full ones, at places `0 .. classes`.
    pub classes: usize,
    /// D, the tokens after a block that are part of its identity.
    pub lookahead: usize,
    /// Grows whenever something becomes unprotected as a whole: a release, a completed copy.
    pub tick: u64,
    /// By how much it grows next.
    pub growth: u32,
    /// Inactive nodes without children, of scopes without a quota.
    leaves: Leaves,
    /// The scopes with quotas.
    pub shares: Shares,
    /// When the retention of nodes ends, for those with an end.
    expiries: BTreeSet<(i64, NodeId)>,
    /// In which order they are evicted.
    policy: Box<dyn Policy>,
    /// Nodes with claims.
    claims: Vec<NodeId>,
    /// The blocks of all scopes.
    counts: Counts,
    /// Blocks that leases protect.
    leased: u32,
    /// What became inactive when, if blocks have a time to live.
    ages: Ages,
}

impl Tree {
    pub(crate) fn new(
        classes: usize,
        lookahead: u32,
        policy: Box<dyn Policy>,
        ttl_ms: u32,
    ) -> Self {
        Self {
            nodes: Slab::new(),
            roots: BTreeMap::new(),
            classes,
            lookahead: lookahead as usize,
            tick: 0,
            growth: 1,
            leaves: Leaves::default(),
            shares: Shares::default(),
            expiries: BTreeSet::new(),
            policy,
            claims: Vec::new(),
            counts: Counts::default(),
            leased: 0,
            ages: Ages::new(ttl_ms),
        }
    }

    /// Blocks that nothing protects and whose fence has passed.
    #[inline]
    pub(crate) fn evictable(&self) -> u32 {
        self.counts.evictable
    }

    /// What later expiries depend on, short of the nodes.
    pub(crate) fn ages(&self) -> &Ages {
        &self.ages
    }

    /// From now on there are so many block records.
    pub(crate) fn grow_policy(&mut self, records: u32) {
        self.policy.grow(records);
    }

    /// Renames the pages of all blocks in one class.
    pub(crate) fn rename_pages(&mut self, class: usize, to: impl Fn(PageIndex) -> PageIndex) {
        let classes = self.classes;
        for id in self.walk() {
            self.node_mut(id).rename_pages(class, classes, &to);
        }
    }

    /// What a partial block has when it enters the tree.
    pub(crate) fn fresh_usage(&self) -> Usage {
        self.policy.fresh()
    }

    /// What a block has that was used once and is not used any more.
    pub(crate) fn idle_usage(&mut self) -> Usage {
        let mut usage = self.policy.fresh();
        self.policy.idle(&mut usage);
        usage
    }

    /// What the policy's later answers depend on, beside the nodes.
    pub(crate) fn policy_state(&self) -> String {
        self.policy.state()
    }

    /// Blocks in the tree.
    pub(crate) fn cached(&self) -> u32 {
        self.counts.cached
    }

    #[inline]
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.get()]
    }

    #[inline]
    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.get()]
    }

    /// The node on the path to `tail` that holds the block at `ordinal`.
    pub(crate) fn holder(&self, tail: NodeId, ordinal: u32) -> NodeId {
        let mut id = tail;
        while self.node(id).start > ordinal {
            id = self.node(id).parent;
        }
        id
    }

    /// Nodes from `id` up to its root, both included.
    pub(crate) fn upwards(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors((!id.is_none()).then_some(id), |&id| {
            let parent = self.node(id).parent;
            (!parent.is_none()).then_some(parent)
        })
    }

    /// All nodes in a fixed order: scopes ascending, parents before children, children in order.
    pub(crate) fn walk(&self) -> Vec<NodeId> {
        let mut out = Vec::new();
        let mut ahead: Vec<NodeId> = self.roots.values().rev().copied().collect();
        while let Some(id) = ahead.pop() {
            out.push(id);
            let children: Vec<NodeId> = self.node(id).children.iter().collect();
            ahead.extend(children.into_iter().rev());
        }
        out
    }
}

//! Claims and eviction: blocks leave the tail of the leaf that the policy ranks first.

use smallvec::SmallVec;

use crate::ids::{NodeId, Token};
use crate::prefix::leaves::{Leaf, Leaves};
use crate::prefix::{Store, Tree};
use crate::steps::Steps;
use crate::tiers::{BLOCKS_SHELF, Value};

/// (queue, leaf) of those whose fence has passed; (stamp, node) of the others.
pub(crate) type AllLeaves = (Vec<(usize, Leaf)>, Vec<(u64, NodeId)>);

impl Tree {
    /// Marks the path down to `tail`, up to block `end`, to be evicted only after everything else.
    pub(crate) fn claim(&mut self, tail: NodeId, end: u32) {
        let path: SmallVec<[NodeId; 8]> = self.upwards(tail).collect();
        for id in path {
            let node = self.node_mut(id);
            let blocks = node.end().min(end).saturating_sub(node.start);
            if blocks <= node.claimed {
                continue;
            }
            let before = node.claimed;
            node.claimed = blocks;
            let (whole, idle) = (blocks == node.len(), !node.is_active());
            let leaf = (whole && idle && node.children.is_empty()).then(|| node.leaf(id));
            if before == 0 {
                self.claims.push(id);
            }
            if let Some(leaf) = leaf {
                let queue = self.queue_of(id);
                self.leaves_of(id).claim(queue, leaf);
            }
        }
    }

    /// Forgets all claims.
    pub(crate) fn end_claims(&mut self) {
        while let Some(id) = self.claims.pop() {
            self.node_mut(id).claimed = 0;
        }
        self.leaves.end_claims();
        for (_, leaves) in self.shares.all_leaves_mut() {
            leaves.end_claims();
        }
    }

    /// The leaves among which a node stands if it is one: those of its scope, if that has a quota.
    #[inline]
    fn leaves_of(&mut self, id: NodeId) -> &mut Leaves {
        if self.shares.is_empty() {
            return &mut self.leaves;
        }
        let scope = self.node(id).scope;
        self.shares.leaves_mut(scope).unwrap_or(&mut self.leaves)
    }

    /// Puts an inactive node without children among the leaves, where it belongs.
    pub(crate) fn enter_leaves(&mut self, id: NodeId, steps: &Steps) {
        let node = self.node(id);
        let (stamp, leaf, claimed) = (node.stamp, node.leaf(id), node.claimed == node.len());
        let queue = self.policy.queue(&node.usage);
        if steps.passed(stamp) {
            self.leaves_of(id).insert(queue, leaf, claimed);
        } else {
            self.leaves_of(id).insert_fenced(stamp, id);
        }
    }

    /// Takes a node out of the leaves.
    pub(crate) fn leave_leaves(&mut self, id: NodeId, steps: &Steps) {
        let node = self.node(id);
        let (stamp, leaf) = (node.stamp, node.leaf(id));
        let queue = self.policy.queue(&node.usage);
        let removed = if steps.passed(stamp) {
            self.leaves_of(id).remove(queue, leaf)
        } else {
            self.leaves_of(id).remove_fenced(stamp, id)
        };
        debug_assert!(removed, "an inactive leaf stands among the leaves");
    }

    /// The queue of a leaf.
    pub(crate) fn queue_of(&self, id: NodeId) -> usize {
        self.policy.queue(&self.node(id).usage)
    }

    /// Makes the leaves whose fence has passed victims.
    pub(crate) fn release_fenced_leaves(&mut self, steps: &Steps) {
        let mut passed = self.leaves.take_passed(steps);
        for (_, leaves) in self.shares.all_leaves_mut() {
            passed.extend(leaves.take_passed(steps));
        }
        for id in passed {
            self.enter_leaves(id, steps);
        }
    }

    /// The leaves whose fence has passed, by queue, and the others by stamp; between calls.
    pub(crate) fn all_leaves(&self) -> AllLeaves {
        let (mut ready, mut fenced) = (self.leaves.ready(), self.leaves.fenced());
        for (_, share) in self.shares.iter() {
            ready.extend(share.leaves.ready());
            fenced.extend(share.leaves.fenced());
        }
        ready.sort_unstable();
        fenced.sort_unstable();
        (ready, fenced)
    }

    /// Evicts `needed` blocks for a scope; the caller has checked that as many are evictable for it.
    pub(crate) fn evict(&mut self, needed: u32, scope: i32, store: &mut Store<'_>, steps: &Steps) {
        let mut left = needed;
        while left > 0 {
            // A block's children are as old as it is or older, so what is counted as evictable can
            // always be reached from the leaves, in whatever order they go.
            let (id, kept, most) = self.victim(scope).expect("enough was evictable");
            let node = &self.nodes[id.get()];
            let (taken, owner) = (left.min(node.len() - kept).min(most), node.scope);
            let victims = if node.partial.is_none() {
                &node.blocks()[(node.len() - taken) as usize..]
            } else {
                &[]
            };
            self.policy.evicted(&node.usage, victims);
            self.evict_tail(id, taken, store, steps);
            self.uncount_evictable(owner, taken);
            left -= taken;
        }
    }

    /// Evicts the last `taken` blocks of a leaf.
    pub(super) fn evict_tail(
        &mut self,
        id: NodeId,
        taken: u32,
        store: &mut Store<'_>,
        steps: &Steps,
    ) {
        let lookahead = self.lookahead;
        let node = self.node(id);
        let kept = node.len() - taken;
        let (queue, leaf) = (self.policy.queue(&node.usage), node.leaf(id));
        // What was evicted first is looked at before its record can be reused.
        let place = (kept == 0).then(|| self.place_of(node.parent, id, store.blocks));
        let from = kept as usize * store.blocks.tokens_per_block();
        let tip = node.copy_text(store.blocks, from, lookahead);
        self.offer(id, kept, store, steps);
        let leaving = &self.node(id).blocks()[kept as usize..];
        store.sides.evict_blocks(leaving, store.pools, steps);
        self.give_back_tail(id, kept, None, store);
        let node = self.node_mut(id);
        if let Some(place) = place {
            self.leaves_of(id).remove(queue, leaf);
            self.remove(id, place, steps);
            return;
        }
        node.tip = SmallVec::<[Token; 4]>::from_slice(&tip);
        if node.claimed >= kept && node.claimed > 0 {
            node.claimed = kept;
            self.leaves_of(id).claim(queue, leaf);
        }
    }

    /// Offers the blocks of a node from `kept` on to lower tiers, the last one first, each with its side
    /// pages: in what order does not depend on where nodes begin.
    fn offer(&self, id: NodeId, kept: u32, store: &mut Store<'_>, steps: &Steps) {
        let node = self.node(id);
        let Some(tiers) = &mut store.tiers else {
            return;
        };
        if node.partial.is_some() {
            return;
        }
        let value = Value {
            priority: node.retention.priority,
            rank: node.usage.rank,
            last_use: node.last_use,
            offer: 0,
        };
        let (classes, pages) = (self.classes, node.pages(self.classes));
        let leaving = node.blocks().iter().enumerate().skip(kept as usize);
        for (at, &block) in leaving.rev() {
            let key = store.blocks.tier_key(block);
            let key = key.expect("computed when it entered");
            let keys = (key, store.blocks.keys.get(block));
            // Without a full class a block has no page of its own.
            if classes > 0 {
                let own = pages[at * classes..][..classes].iter();
                tiers.offer(BLOCKS_SHELF, keys, value, own.copied());
            }
            store.sides.offer(block, store.blocks, tiers, steps);
        }
        if let Some(log) = &mut store.blocks.log {
            // Before the blocks are logged as removed from the device.
            log.note_below(&tiers.take_notes());
        }
    }

    /// Gives back the records and pages of a node from block `kept` on: free at once, or fenced until no
    /// step up to the stamp is open. Its side pages are gone already.
    pub(crate) fn give_back_tail(
        &mut self,
        id: NodeId,
        kept: u32,
        fence: Option<&Steps>,
        store: &mut Store<'_>,
    ) {
        let classes = self.classes;
        let node = self.node(id);
        let leaving = &node.blocks()[kept as usize..];
        if node.partial.is_none() {
            store.blocks.note_left(leaving);
        }
        store.blocks.give_back(leaving.iter().copied());
        let pages = &node.pages(classes)[kept as usize * classes..];
        for (class, pool) in store.pools[..classes].iter_mut().enumerate() {
            let pages = pages.chunks_exact(classes).map(|pages| pages[class]);
            match fence {
                Some(steps) => pool.give_back(pages, steps.stamp(), steps),
                None => pool.give_back_free(pages),
            }
        }
        self.node_mut(id).truncate(kept, classes);
    }
}

//! Claims and eviction: blocks leave the tail of the least recently used leaf.

use smallvec::SmallVec;

use crate::blocks::Blocks;
use crate::ids::{NodeId, Token};
use crate::pool::Pool;
use crate::prefix::Tree;
use crate::steps::Steps;

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
            let (whole, leaf) = (blocks == node.len(), node.children.is_empty());
            let (key, idle) = ((node.last_use, id), !node.is_active());
            if before == 0 {
                self.claims.push(id);
            }
            if whole && leaf && idle {
                self.leaves.remove(&key);
                self.claimed_leaves.insert(key);
            }
        }
    }

    /// Forgets all claims.
    pub(crate) fn end_claims(&mut self) {
        while let Some(id) = self.claims.pop() {
            self.node_mut(id).claimed = 0;
        }
        self.leaves.append(&mut self.claimed_leaves);
    }

    /// Puts an inactive node without children into the set of leaves where it belongs.
    pub(crate) fn enter_leaves(&mut self, id: NodeId) {
        let node = self.node(id);
        let key = (node.last_use, id);
        if node.claimed == node.len() {
            self.claimed_leaves.insert(key);
        } else {
            self.leaves.insert(key);
        }
    }

    /// Leaves in the order in which they would go, between calls.
    pub(crate) fn eviction_order(&self) -> Vec<(u64, NodeId)> {
        self.leaves.iter().copied().collect()
    }

    /// Evicts `needed` blocks; the caller has checked that as many are evictable.
    pub(crate) fn evict(
        &mut self,
        needed: u32,
        blocks: &mut Blocks,
        pools: &mut [Pool],
        steps: &Steps,
    ) {
        let mut left = needed;
        while left > 0 {
            // Stamps rise with the order of last use, so only the first leaf need be asked. A leaf
            // behind its fence is no victim, and then the claimed ones are the only victims there are.
            let unclaimed = self.leaves.first().map(|&(_, id)| id);
            let unclaimed = unclaimed.filter(|&id| steps.passed(self.node(id).stamp));
            let (id, claimed) = if let Some(id) = unclaimed {
                (id, self.node(id).claimed)
            } else {
                let &(_, id) = self.claimed_leaves.first().expect("enough was evictable");
                (id, 0)
            };
            let taken = left.min(self.node(id).len() - claimed);
            self.evict_tail(id, taken, blocks, pools);
            left -= taken;
        }
        self.uncount_evictable(needed);
    }

    /// Evicts the last `taken` blocks of a leaf.
    fn evict_tail(&mut self, id: NodeId, taken: u32, blocks: &mut Blocks, pools: &mut [Pool]) {
        let lookahead = self.lookahead;
        let node = self.node(id);
        let kept = node.len() - taken;
        let key = (node.last_use, id);
        // What was evicted first is looked at before its record can be reused.
        let place = (kept == 0).then(|| self.place_of(node.parent, id, blocks));
        let tip = node.copy_text(blocks, kept as usize * blocks.tokens_per_block(), lookahead);
        self.give_back_tail(id, kept, None, blocks, pools);
        let node = self.node_mut(id);
        if let Some(place) = place {
            self.leaves.remove(&key);
            self.claimed_leaves.remove(&key);
            self.remove(id, place);
            return;
        }
        node.tip = SmallVec::<[Token; 4]>::from_slice(&tip);
        if node.claimed >= kept && node.claimed > 0 {
            node.claimed = kept;
            self.leaves.remove(&key);
            self.claimed_leaves.insert(key);
        }
    }

    /// Gives back the records and pages of a node from block `kept` on: free at once, or fenced until no
    /// step up to the stamp is open.
    pub(crate) fn give_back_tail(
        &mut self,
        id: NodeId,
        kept: u32,
        fence: Option<&Steps>,
        blocks: &mut Blocks,
        pools: &mut [Pool],
    ) {
        let classes = self.classes;
        let node = self.node(id);
        blocks.give_back(node.blocks()[kept as usize..].iter().copied());
        let pages = &node.pages(classes)[kept as usize * classes..];
        for (class, pool) in pools.iter_mut().enumerate() {
            let pages = pages.chunks_exact(classes).map(|pages| pages[class]);
            match fence {
                Some(steps) => pool.give_back(pages, steps.stamp(), steps),
                None => pool.give_back_free(pages),
            }
        }
        self.node_mut(id).truncate(kept, classes);
    }
}

//! Time to live: blocks that nothing has used for long leave the tree.

use std::collections::VecDeque;

use crate::ids::NodeId;
use crate::prefix::{Store, Tree};
use crate::steps::Steps;

/// Most blocks that expire in one call.
const BLOCKS_PER_CALL: u32 = 8192;

/// What became inactive, and when ticks were given.
#[derive(Debug)]
pub(crate) struct Ages {
    /// Seconds without use after which blocks leave; 0: never.
    ttl_s: f64,
    /// (tick, time): ticks up to this one were given at that time or before.
    times: VecDeque<(u64, f64)>,
    /// The newest tick among those that have expired.
    expired: u64,
    /// (last use, node) as nodes became inactive, children before parents. A node that was used again or
    /// is gone has stale entries.
    order: VecDeque<(u64, NodeId)>,
}

impl Ages {
    pub(crate) fn new(ttl_ms: u32) -> Self {
        Self {
            ttl_s: f64::from(ttl_ms) / 1000.0,
            times: VecDeque::new(),
            expired: 0,
            order: VecDeque::new(),
        }
    }
}

impl Tree {
    /// Notes that a node has become inactive now.
    pub(crate) fn note_inactive(&mut self, id: NodeId) {
        if self.ages.ttl_s == 0.0 {
            return;
        }
        self.ages.order.push_back((self.tick, id));
        // Stale entries are thrown out before they are more than the others.
        if self.ages.order.len() > 2 * self.nodes.len() + 64 {
            let mut order = std::mem::take(&mut self.ages.order);
            order.retain(|&(last_use, id)| self.is_idle_since(id, last_use));
            self.ages.order = order;
        }
    }

    fn is_idle_since(&self, id: NodeId, last_use: u64) -> bool {
        let node = self.node(id);
        node.len() > 0 && !node.is_active() && node.last_use == last_use
    }

    /// Gives up blocks that nothing has used since `now - ttl`, a bounded number; returns how many.
    pub(crate) fn expire(&mut self, now: f64, store: &mut Store<'_>, steps: &Steps) -> u32 {
        if self.ages.ttl_s == 0.0 {
            return 0;
        }
        let newest = self
            .ages
            .times
            .back()
            .map_or(self.ages.expired, |&(tick, _)| tick);
        if self.tick > newest {
            self.ages.times.push_back((self.tick, steps.now()));
        }
        while let Some(&(tick, time)) = self.ages.times.front()
            && time + self.ages.ttl_s <= now
        {
            self.ages.expired = tick;
            self.ages.times.pop_front();
        }
        let mut left = BLOCKS_PER_CALL;
        while let Some(&(last_use, id)) = self.ages.order.front()
            && last_use <= self.ages.expired
        {
            let idle = self.is_idle_since(id, last_use) && self.node(id).children.is_empty();
            if idle {
                let (len, stamp) = (self.node(id).len(), self.node(id).stamp);
                // Stamps rise with the last use, so nothing behind this one has a passed fence.
                if left == 0 || !steps.passed(stamp) {
                    break;
                }
                let (taken, scope) = (len.min(left), self.node(id).scope);
                self.evict_tail(id, taken, store, steps);
                self.uncount_evictable(scope, taken);
                left -= taken;
                if taken < len {
                    break;
                }
            }
            self.ages.order.pop_front();
        }
        BLOCKS_PER_CALL - left
    }
}

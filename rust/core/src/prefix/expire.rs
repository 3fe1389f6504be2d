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
    /// What became inactive, in that order, children before parents. A node that was used again or is
    /// gone has stale entries.
    order: Entries,
}

/// The last use and the id of a node that became inactive.
type Entry = (u64, NodeId);

/// Most entries of a part: what one call looks at in search of stale ones.
const PART: usize = 256;

/// A queue in parts, so that stale entries can be thrown out a part at a time: a walk through all of
/// them would stop a step for as long as ten thousand others take.
#[derive(Debug, Default)]
struct Entries {
    /// None is empty.
    parts: VecDeque<VecDeque<Entry>>,
    len: usize,
    /// The part that is looked at next.
    next: usize,
}

impl Entries {
    fn first(&self) -> Option<Entry> {
        self.parts.front().and_then(|part| part.front().copied())
    }

    fn push(&mut self, entry: Entry) {
        match self.parts.back_mut() {
            Some(part) if part.len() < PART => part.push_back(entry),
            _ => self.parts.push_back(VecDeque::from([entry])),
        }
        self.len += 1;
    }

    fn pop_first(&mut self) {
        if let Some(part) = self.parts.front_mut() {
            part.pop_front();
            self.len -= 1;
            if part.is_empty() {
                self.parts.pop_front();
                self.next = self.next.saturating_sub(1);
            }
        }
    }

    /// Keeps of one part what `holds`.
    fn sweep(&mut self, holds: impl FnMut(&Entry) -> bool) {
        if self.next >= self.parts.len() {
            self.next = 0;
        }
        let Some(part) = self.parts.get_mut(self.next) else {
            return;
        };
        let before = part.len();
        part.retain(holds);
        part.shrink_to_fit();
        self.len -= before - part.len();
        if part.is_empty() {
            self.parts.remove(self.next);
        } else {
            self.next += 1;
        }
    }
}

impl Ages {
    pub(crate) fn new(ttl_ms: u32) -> Self {
        Self {
            ttl_s: f64::from(ttl_ms) / 1000.0,
            times: VecDeque::new(),
            expired: 0,
            order: Entries::default(),
        }
    }
}

impl Tree {
    /// Notes that a node has become inactive now.
    pub(crate) fn note_inactive(&mut self, id: NodeId) {
        if self.ages.ttl_s == 0.0 {
            return;
        }
        self.ages.order.push((self.tick, id));
        // Stale entries are thrown out before they are many more than the others.
        if self.ages.order.len > 2 * self.nodes.len() + 64 {
            let mut order = std::mem::take(&mut self.ages.order);
            order.sweep(|&(last_use, id)| self.is_idle_since(id, last_use));
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
        while let Some((last_use, id)) = self.ages.order.first()
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
            self.ages.order.pop_first();
        }
        BLOCKS_PER_CALL - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_keeps_the_order_and_what_holds() {
        let mut entries = Entries::default();
        let numbers = || 0..u32::try_from(PART).unwrap() * 3 + 10;
        for number in numbers() {
            entries.push((number.into(), NodeId::new(number)));
        }
        // All of the second part is stale, and every other entry of the others.
        let second = PART as u64..2 * PART as u64;
        let holds = |last_use: u64| last_use.is_multiple_of(2) && !second.contains(&last_use);
        for _ in 0..4 {
            entries.sweep(|&(last_use, _)| holds(last_use));
        }
        let mut expected: VecDeque<u32> = numbers().filter(|&at| holds(at.into())).collect();
        assert_eq!((entries.len, entries.parts.len()), (expected.len(), 3));
        while let Some((_, id)) = entries.first() {
            assert_eq!(Some(id.get()), expected.pop_front());
            entries.pop_first();
        }
        assert_eq!((entries.len, entries.next), (0, 0));
        assert!(expected.is_empty() && entries.parts.is_empty());
        entries.sweep(|_| true);
    }
}

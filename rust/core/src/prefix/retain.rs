//! Priorities of cached blocks, and their end.

use crate::blocks::Blocks;
use crate::ids::NodeId;
use crate::prefix::Tree;
use crate::steps::Steps;

/// The priority of blocks without a hint.
pub(crate) const DEFAULT_PRIORITY: u8 = 35;

/// Most nodes that fall back to the default in one call.
const EXPIRIES_PER_CALL: usize = 4096;

/// How blocks are to be kept. Of two leaves the one of lower priority goes first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Retention {
    pub priority: u8,
    /// The time from which on the default holds again; infinite: never.
    pub until: f64,
}

impl Retention {
    pub(crate) const DEFAULT: Self = Self {
        priority: DEFAULT_PRIORITY,
        until: f64::INFINITY,
    };

    /// What holds at a time.
    pub(crate) fn at(self, now: f64) -> Self {
        if now < self.until {
            self
        } else {
            Self::DEFAULT
        }
    }
}

/// Bits that stand in the order of the times they come from.
pub(crate) fn ordered(time: f64) -> i64 {
    let bits = time.to_bits().cast_signed();
    bits ^ (((bits >> 63).cast_unsigned() >> 1).cast_signed())
}

impl Tree {
    /// Notes when the retention of a node that has come to be, or has got another one, ends.
    pub(crate) fn note_until(&mut self, id: NodeId) {
        let until = self.node(id).retention.until;
        if until.is_finite() {
            self.expiries.insert((ordered(until), id));
        }
    }

    /// Forgets when the retention of a node ends that leaves the tree, or gets another one.
    pub(crate) fn forget_until(&mut self, id: NodeId) {
        let until = self.node(id).retention.until;
        if until.is_finite() {
            self.expiries.remove(&(ordered(until), id));
        }
    }

    /// Gives the default back to nodes whose time has come, the earliest first, a bounded number.
    pub(crate) fn expire_retention(&mut self, steps: &Steps) {
        let now = ordered(steps.now());
        for _ in 0..EXPIRIES_PER_CALL {
            match self.expiries.first() {
                Some(&(until, id)) if until <= now => {
                    self.set_retention(id, Retention::DEFAULT, steps);
                }
                _ => return,
            }
        }
    }

    /// Gives a node another retention, wherever it stands.
    fn set_retention(&mut self, id: NodeId, retention: Retention, steps: &Steps) {
        let node = self.node(id);
        let is_leaf = !node.is_active() && node.children.is_empty();
        if is_leaf {
            self.leave_leaves(id, steps);
        }
        self.forget_until(id);
        self.node_mut(id).retention = retention;
        self.note_until(id);
        if is_leaf {
            self.enter_leaves(id, steps);
        }
    }

    /// Gives the blocks `from .. to` of the path to `tail`, which is protected, another retention.
    pub(crate) fn retain(
        &mut self,
        tail: NodeId,
        from: u32,
        to: u32,
        retention: Retention,
        blocks: &Blocks,
        steps: &Steps,
    ) {
        let mut id = tail;
        while !self.node(id).is_root() && self.node(id).end() > from {
            let node = self.node(id);
            let (start, end, parent) = (node.start, node.end(), node.parent);
            if start < to && node.retention != retention {
                if to < end {
                    self.split(id, to - start, blocks);
                    id = self.node(id).parent;
                }
                if start < from {
                    // The part before `from` is the upper one, which gets the new id.
                    self.split(id, from - start, blocks);
                }
                self.set_retention(id, retention, steps);
            }
            id = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_their_bits_stand_in_one_order() {
        let times = [
            f64::NEG_INFINITY,
            -2.5,
            -1.0,
            -0.0,
            0.0,
            1e-9,
            3.0,
            f64::INFINITY,
        ];
        assert!(times.map(ordered).is_sorted());
    }

    #[test]
    fn retention_ends_at_its_time() {
        let hint = Retention {
            priority: 80,
            until: 5.0,
        };
        assert_eq!(hint.at(4.9), hint);
        assert_eq!(hint.at(5.0), Retention::DEFAULT);
    }
}

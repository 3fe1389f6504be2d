//! What leases protect, each block counted once.

use crate::blocks::Blocks;
use crate::ids::NodeId;
use crate::prefix::Tree;
use crate::steps::Steps;

impl Tree {
    /// Blocks that leases protect.
    pub(crate) fn leased(&self) -> u32 {
        self.leased
    }

    /// Of the first `end` blocks of the path to `tail`, those that no lease protects yet.
    pub(crate) fn unleased(&self, tail: NodeId, end: u32) -> u32 {
        let free = self
            .upwards(tail)
            .take_while(|&id| self.node(id).leases == 0);
        free.map(|id| {
            self.node(id)
                .end()
                .min(end)
                .saturating_sub(self.node(id).start)
        })
        .sum()
    }

    /// Protects the path down to the end of a node.
    pub(crate) fn lease(&mut self, tail: NodeId, steps: &Steps) {
        let mut id = tail;
        while !id.is_none() {
            let node = &mut self.nodes[id.get()];
            node.leases += 1;
            if node.leases == 1 {
                self.leased += node.len();
            }
            id = node.parent;
        }
        self.pin(tail, steps);
    }

    /// Takes that protection away.
    pub(crate) fn end_lease(&mut self, tail: NodeId, blocks: &Blocks, steps: &Steps) {
        let mut id = tail;
        while !id.is_none() {
            let node = &mut self.nodes[id.get()];
            node.leases -= 1;
            if node.leases == 0 {
                self.leased -= node.len();
            }
            id = node.parent;
        }
        self.unpin(tail, blocks, steps);
    }
}

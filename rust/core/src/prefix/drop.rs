//! Giving up everything below the root of a scope.

use crate::blocks::Blocks;
use crate::ids::NodeId;
use crate::pool::Pool;
use crate::prefix::Tree;
use crate::steps::Steps;

impl Tree {
    /// Removes every node of a scope in which nothing is active. Pages whose fence has passed are free,
    /// the others wait for the newest step.
    pub(crate) fn drop_scope(
        &mut self,
        scope: i32,
        blocks: &mut Blocks,
        pools: &mut [Pool],
        steps: &Steps,
    ) {
        let Some(&root) = self.roots.get(&scope) else {
            return;
        };
        let mut nodes: Vec<NodeId> = self.node(root).children.iter().collect();
        let mut at = 0;
        while let Some(&id) = nodes.get(at) {
            nodes.extend(self.node(id).children.iter());
            at += 1;
        }
        // Children before parents; the root goes with the last of its children.
        for &id in nodes.iter().rev() {
            let place = self.place_of(self.node(id).parent, id, blocks);
            self.leave_inactive(id, steps);
            let node = self.node(id);
            let fence = (!steps.passed(node.stamp)).then_some(steps);
            self.cached -= node.len();
            self.give_back_tail(id, 0, fence, blocks, pools);
            self.remove(id, place, steps);
        }
    }
}

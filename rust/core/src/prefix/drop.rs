//! Giving up everything below the root of a scope.

use crate::ids::NodeId;
use crate::prefix::{Store, Tree};
use crate::steps::Steps;

impl Tree {
    /// Removes every node of a scope in which nothing is active. Pages whose fence has passed are free,
    /// the others wait for the newest step.
    pub(crate) fn drop_scope(&mut self, scope: i32, store: &mut Store<'_>, steps: &Steps) {
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
            let place = self.place_of(self.node(id).parent, id, store.blocks);
            self.leave_inactive(id, steps);
            let node = self.node(id);
            let (fence, len) = ((!steps.passed(node.stamp)).then_some(steps), node.len());
            store.sides.drop_blocks(node.blocks(), store.pools, steps);
            self.cached -= len;
            self.give_back_tail(id, 0, fence, store);
            self.remove(id, place, steps);
        }
    }
}

//! Giving up everything below the root of a scope.

use crate::prefix::{Store, Tree};
use crate::steps::Steps;

impl Tree {
    /// Removes every node of a scope in which nothing is active. Pages whose fence has passed are free,
    /// the others wait for the newest step.
    pub(crate) fn drop_scope(&mut self, scope: i32, store: &mut Store<'_>, steps: &Steps) {
        let nodes = self.nodes_of(scope);
        // Children before parents; the root goes with the last of its children.
        for &id in nodes.iter().rev() {
            let place = self.place_of(self.node(id).parent, id, store.blocks);
            self.leave_inactive(id, steps);
            let node = self.node(id);
            let (fence, len) = ((!steps.passed(node.stamp)).then_some(steps), node.len());
            store.sides.drop_blocks(node.blocks(), store.pools, steps);
            self.count(scope, |counts| counts.cached -= len);
            self.give_back_tail(id, 0, fence, store);
            self.remove(id, place, steps);
        }
    }
}

//! Pins, and what they protect: the pinned node and everything above it.

use crate::blocks::Blocks;
use smallvec::SmallVec;

use crate::ids::{BlockId, NodeId};
use crate::prefix::Tree;
use crate::prefix::counts::Counts;
use crate::prefix::policy::Usage;
use crate::steps::Steps;

impl Tree {
    /// Protects a node and its path.
    pub(crate) fn pin(&mut self, id: NodeId, steps: &Steps) {
        let mut id = id;
        let node = self.node_mut(id);
        node.pins += 1;
        if node.pins > 1 || node.active_children > 0 {
            return;
        }
        loop {
            self.leave_inactive(id, steps);
            let parent = self.node(id).parent;
            if parent.is_none() {
                return;
            }
            let above = self.node_mut(parent);
            above.active_children += 1;
            if above.pins > 0 || above.active_children > 1 {
                return;
            }
            id = parent;
        }
    }

    /// Takes one pin away. What nothing protects any more becomes evictable, used at `self.tick`.
    pub(crate) fn unpin(&mut self, id: NodeId, blocks: &Blocks, steps: &Steps) {
        self.node_mut(id).pins -= 1;
        let mut id = id;
        while !self.node(id).is_active() {
            if self.node(id).is_root() {
                self.drop_root_if_empty(id);
                return;
            }
            id = self.enter_inactive(id, blocks, steps);
            let parent = self.node(id).parent;
            self.node_mut(parent).active_children -= 1;
            id = parent;
        }
    }

    /// Moves a pin one node down; the path stays protected throughout.
    pub(crate) fn move_pin(&mut self, from: NodeId, to: NodeId, steps: &Steps) {
        self.pin(to, steps);
        self.node_mut(from).pins -= 1;
    }

    /// Moves the clock to the next end of a use, of a sequence that put `entered` blocks into the tree.
    pub(crate) fn next_tick(&mut self, entered: u32) {
        self.tick += u64::from(self.growth);
        self.growth = if self.policy.grows_with_blocks() {
            entered.max(1)
        } else {
            1
        };
    }

    /// Shows the policy the path of a request that ends.
    pub(crate) fn serve(&mut self, tail: NodeId) {
        if !self.policy.places_blocks() {
            return;
        }
        let path: SmallVec<[NodeId; 8]> = self
            .upwards(tail)
            .filter(|&id| !self.node(id).is_root() && self.node(id).partial.is_none())
            .collect();
        let top = path.last().map(|&id| self.node(id).blocks()[0]);
        if top.is_some_and(|first| self.policy.is_sampled(first)) {
            let runs = path.iter().rev();
            let blocks: Vec<BlockId> = runs
                .flat_map(|&id| self.node(id).blocks().iter().copied())
                .collect();
            self.policy.served(&blocks);
        }
    }

    /// What the first of some blocks has when they enter the tree below `above`, and how many of them
    /// have the same.
    pub(crate) fn place(
        &mut self,
        above: NodeId,
        run: &[BlockId],
        blocks: &Blocks,
    ) -> (Usage, u32) {
        let all = crate::ids::count(run.len());
        if !self.policy.places_blocks() {
            return (self.policy.fresh(), all);
        }
        let node = &self.nodes[above.get()];
        let (scope, mut before) = (node.scope, node.blocks().last().copied());
        let mut first = None;
        for (same, &id) in (0..).zip(run) {
            let usage = self.policy.place(scope, before, id, blocks.tokens(id));
            if *first.get_or_insert(usage) != usage {
                return (first.expect("set above"), same);
            }
            before = Some(id);
        }
        (first.expect("some block enters"), all)
    }

    /// Counts one use of the path down to `tail`.
    pub(crate) fn count_use(&mut self, tail: NodeId) {
        if !self.policy.counts_uses() {
            return;
        }
        let mut id = tail;
        while !self.node(id).is_root() {
            self.count_use_of(id);
            id = self.node(id).parent;
        }
    }

    /// Counts one use of a single node.
    pub(crate) fn count_use_of(&mut self, id: NodeId) {
        if self.policy.counts_uses() {
            self.policy.used(&mut self.nodes[id.get()].usage);
        }
    }

    /// Evictable blocks that using `shared` blocks of the path to `tail`, and copying the next one if
    /// `source`, would protect.
    pub(crate) fn would_protect(
        &self,
        tail: NodeId,
        shared: u32,
        source: bool,
        steps: &Steps,
    ) -> u32 {
        let mut blocks = 0;
        let mut add = |id: NodeId, count: u32| {
            let node = self.node(id);
            if !node.is_active() && steps.passed(node.stamp) {
                blocks += count;
            }
        };
        if source {
            add(self.holder(tail, shared), 1);
        }
        if let Some(last) = shared.checked_sub(1) {
            for id in self.upwards(self.holder(tail, last)) {
                let node = self.node(id);
                if node.is_active() {
                    break;
                }
                add(id, node.end().min(shared) - node.start);
            }
        }
        blocks
    }

    /// Counts blocks whose fence has passed as evictable.
    pub(crate) fn release_fenced(&mut self, steps: &Steps) {
        self.counts.release_fenced(steps);
        self.shares.release_fenced(steps);
        self.release_fenced_leaves(steps);
    }

    pub(crate) fn leave_inactive(&mut self, id: NodeId, steps: &Steps) {
        let node = self.node(id);
        let (stamp, blocks, leaf) = (node.stamp, node.len(), node.children.is_empty());
        let scope = node.scope;
        if node.is_root() {
            return;
        }
        if leaf {
            self.leave_leaves(id, steps);
        }
        self.count(scope, |counts| counts.leave(stamp, blocks, steps));
    }

    /// Changes the counts of all blocks, and those of a scope that has a quota.
    #[inline]
    pub(super) fn count(&mut self, scope: i32, change: impl Fn(&mut Counts)) {
        change(&mut self.counts);
        if !self.shares.is_empty() {
            self.shares.count(scope, change);
        }
    }

    /// Makes a node inactive; returns the node that holds its blocks afterwards.
    fn enter_inactive(&mut self, id: NodeId, blocks: &Blocks, steps: &Steps) -> NodeId {
        let (tick, stamp) = (self.tick, steps.stamp());
        let node = &mut self.nodes[id.get()];
        node.last_use = tick;
        node.stamp = stamp;
        self.policy.idle(&mut node.usage);
        let (len, only, leaf) = (node.len(), node.children.only(), node.children.is_empty());
        let scope = node.scope;
        if leaf {
            self.enter_leaves(id, steps);
        }
        self.count(scope, |counts| counts.enter(stamp, len, steps));
        self.note_inactive(id);
        match only {
            Some(child) if self.can_merge(id, child) => {
                self.merge(id, child, blocks);
                child
            }
            _ => id,
        }
    }

    /// Blocks of inactive nodes whose fence has not passed.
    pub(crate) fn waiting_total(&self) -> u32 {
        self.counts.waiting_total()
    }

    /// Stops counting `blocks` evictable blocks of a scope, which are leaving the tree.
    pub(crate) fn uncount_evictable(&mut self, scope: i32, blocks: u32) {
        self.count(scope, |counts| {
            counts.evictable -= blocks;
            counts.cached -= blocks;
        });
    }
}

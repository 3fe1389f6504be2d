//! Making, splitting, merging and removing nodes.

use smallvec::SmallVec;

use crate::blocks::{Blocks, common};
use crate::ids::{BlockId, NodeId, PageIndex, Token};
use crate::prefix::children::Place;
use crate::prefix::policy::Usage;
use crate::prefix::retain::Retention;
use crate::prefix::{Node, Partial, Store, Tree};
use crate::steps::Steps;

/// Blocks on their way into the tree, in order.
pub(crate) struct Incoming<'a> {
    pub blocks: &'a [BlockId],
    /// The page rows of the sequence, one per full class, at the same ordinals.
    pub pages: &'a [&'a [PageIndex]],
    /// The tokens after the last block.
    pub tip: &'a [Token],
    pub draft_valid: bool,
    pub usage: Usage,
    pub retention: Retention,
    pub partial: Option<Partial>,
}

impl Tree {
    /// The root of a scope, made if there is none.
    pub(crate) fn root(&mut self, scope: i32) -> NodeId {
        if let Some(&root) = self.roots.get(&scope) {
            return root;
        }
        let root = NodeId::new(self.nodes.insert(Node::new(scope, NodeId::NONE, 0, true)));
        self.roots.insert(scope, root);
        root
    }

    pub(crate) fn drop_root_if_empty(&mut self, id: NodeId) {
        let node = self.node(id);
        let scope = node.scope;
        if !node.is_active() && node.children.is_empty() {
            self.roots.remove(&scope);
            self.nodes.free(id.get());
        }
    }

    /// Whether the one sequence that stands on a node may append to it in place.
    pub(crate) fn can_append(
        &self,
        id: NodeId,
        draft_valid: bool,
        (usage, retention): (Usage, Retention),
    ) -> bool {
        let node = self.node(id);
        node.pins == 1
            && node.children.is_empty()
            && !node.is_root()
            && node.draft_valid == draft_valid
            && node.usage.uses == usage.uses
            && node.retention == retention
    }

    /// Appends blocks to a node for which [`Tree::can_append`] holds.
    pub(crate) fn append(&mut self, id: NodeId, incoming: &Incoming<'_>) {
        let classes = self.classes;
        let node = self.node_mut(id);
        fill(node, incoming, classes);
        let (scope, blocks) = (node.scope, crate::ids::count(incoming.blocks.len()));
        self.count(scope, |counts| counts.cached += blocks);
    }

    /// Makes a child of a pinned node and moves one pin down to it.
    pub(crate) fn extend_pin(
        &mut self,
        parent: NodeId,
        blocks: &Blocks,
        incoming: &Incoming<'_>,
    ) -> NodeId {
        let above = self.node(parent);
        let mut node = Node::new(above.scope, parent, above.end(), incoming.draft_valid);
        node.partial = incoming.partial;
        node.usage = incoming.usage;
        node.retention = incoming.retention;
        node.pins = 1;
        fill(&mut node, incoming, self.classes);
        let entered = node.len();
        self.count(node.scope, |counts| counts.cached += entered);
        let key = self.key(blocks, &node);
        let place = self.lower_bound(blocks, parent, incoming.draft_valid, &key);
        let head = self.head(blocks, incoming.draft_valid, &key);
        let id = NodeId::new(self.nodes.insert(node));
        self.note_until(id);
        let above = self.node_mut(parent);
        above.pins -= 1;
        above.active_children += 1;
        above.children.insert(place, head, id);
        id
    }

    /// Splits a node before its block `at`. The upper part gets the new id, which is returned, so that
    /// whoever stands on the node still stands on its end.
    pub(crate) fn split(&mut self, id: NodeId, at: u32, blocks: &Blocks) -> NodeId {
        let (classes, lookahead) = (self.classes, self.lookahead);
        let parent = self.node(id).parent;
        let place = self.place_of(parent, id, blocks);
        let node = self.node(id);
        let from = at as usize * blocks.tokens_per_block();
        let tip = node.copy_text(blocks, from, lookahead);
        let lower_text = node.copy_text(blocks, from, self.key_limit(blocks));
        let lower_head = self.head(blocks, node.draft_valid, &lower_text);
        let node = self.node_mut(id);
        let mut upper = Node::new(node.scope, parent, node.start, node.draft_valid);
        upper.tip = SmallVec::from_slice(&tip);
        upper.last_use = node.last_use;
        upper.stamp = node.stamp;
        upper.usage = node.usage;
        upper.retention = node.retention;
        upper.leases = node.leases;
        upper.active_children = u32::from(node.is_active());
        upper.claimed = node.claimed.min(at);
        node.claimed -= upper.claimed;
        node.split_into(&mut upper, at, classes);
        let claimed = upper.claimed > 0;
        let upper = NodeId::new(self.nodes.insert(upper));
        self.note_until(upper);
        if claimed {
            self.claims.push(upper);
        }
        self.node_mut(id).parent = upper;
        self.node_mut(upper).children.start(lower_head, id);
        self.node_mut(parent).children.replace(place, upper);
        upper
    }

    /// Whether an inactive node and its only child are one run to eviction.
    pub(crate) fn can_merge(&self, id: NodeId, child: NodeId) -> bool {
        let (upper, lower) = (self.node(id), self.node(child));
        !upper.is_root()
            && !lower.is_active()
            && lower.partial.is_none()
            && (upper.last_use, upper.stamp, upper.draft_valid)
                == (lower.last_use, lower.stamp, lower.draft_valid)
            && (upper.usage, upper.retention) == (lower.usage, lower.retention)
    }

    /// Puts the blocks of `id` in front of those of its only child, which takes its place.
    pub(crate) fn merge(&mut self, id: NodeId, child: NodeId, blocks: &Blocks) {
        let (parent, scope) = (self.node(id).parent, self.node(id).scope);
        self.forget_until(id);
        // The siblings' order does not change: the merged run begins with the same tokens.
        let place = self.place_of(parent, id, blocks);
        let gone = Node::new(scope, NodeId::NONE, 0, true);
        let mut upper = std::mem::replace(self.node_mut(id), gone);
        self.nodes.free(id.get());
        let classes = self.classes;
        let lower = self.node_mut(child);
        lower.absorb(&mut upper, classes);
        lower.parent = parent;
        self.node_mut(parent).children.replace(place, child);
    }

    /// Where `child` stands among the children of `parent`.
    pub(crate) fn place_of(&self, parent: NodeId, child: NodeId, blocks: &Blocks) -> Place {
        let node = self.node(child);
        let key = self.key(blocks, node);
        let mut place = self.lower_bound(blocks, parent, node.draft_valid, &key);
        let children = &self.node(parent).children;
        // Siblings with equal keys: a full block beside protected partial ones.
        while children.get(place).is_some_and(|other| other != child) {
            place = children.next(place);
        }
        place
    }

    /// Removes a childless, inactive node that holds no block, and what is empty above it.
    pub(crate) fn remove(&mut self, id: NodeId, place: Place, steps: &Steps) {
        self.forget_until(id);
        let (parent, scope) = (self.node(id).parent, self.node(id).scope);
        *self.node_mut(id) = Node::new(scope, NodeId::NONE, 0, true);
        self.nodes.free(id.get());
        let above = self.node_mut(parent);
        above.children.remove(place);
        if !above.children.is_empty() || above.is_active() {
            return;
        }
        if above.is_root() {
            self.drop_root_if_empty(parent);
        } else {
            self.enter_leaves(parent, steps);
        }
    }

    /// Drops the unprotected partial children of `parent` that a new child makes useless: their
    /// tokens begin `text` and their draft is no better. The new child's first block is their heir.
    pub(crate) fn drop_shorter_partials(
        &mut self,
        parent: NodeId,
        draft_valid: bool,
        text: &[Token],
        heir: BlockId,
        store: &mut Store<'_>,
        steps: &Steps,
    ) {
        for valid in [false, true] {
            if valid && !draft_valid {
                break;
            }
            let mut len = text.len();
            while len > 0 {
                let children = &self.node(parent).children;
                let place = self.after(store.blocks, parent, valid, &text[..len]);
                let Some(child) = children.before(place) else {
                    break;
                };
                let node = self.node(child);
                if node.draft_valid != valid {
                    break;
                }
                let whole = self.key(store.blocks, node);
                let same = common(&whole, &text[..len]);
                let useless = same == whole.len() && node.partial.is_some() && !node.is_active();
                if useless {
                    self.drop_partial(child, heir, draft_valid, store, steps);
                } else if same == len {
                    // A protected partial or a full block with exactly this text: look at shorter ones.
                    len -= 1;
                } else {
                    len = same;
                }
            }
        }
    }

    /// The place after all children of `parent` that are not after (`draft_valid`, `query`).
    fn after(&self, blocks: &Blocks, parent: NodeId, draft_valid: bool, query: &[Token]) -> Place {
        self.node(parent)
            .children
            .partition(self.head(blocks, draft_valid, query), |child| {
                self.compare_key(blocks, child, query).is_le()
            })
    }

    fn drop_partial(
        &mut self,
        id: NodeId,
        heir: BlockId,
        draft_valid: bool,
        store: &mut Store<'_>,
        steps: &Steps,
    ) {
        let place = self.place_of(self.node(id).parent, id, store.blocks);
        self.leave_inactive(id, steps);
        let scope = self.node(id).scope;
        self.count(scope, |counts| counts.cached -= 1);
        let fence = (!steps.passed(self.node(id).stamp)).then_some(steps);
        let block = self.node(id).blocks()[0];
        let alike = self.node(id).draft_valid == draft_valid;
        store.sides.pass_on(block, heir, alike, store.pools, steps);
        self.give_back_tail(id, 0, fence, store);
        self.remove(id, place, steps);
    }

    /// A sibling with at least its `draft_valid` that begins with the text of a partial block, and so
    /// covers as much: the block would add nothing. Draft-valid before not, then the smaller text.
    pub(crate) fn cover(
        &self,
        blocks: &Blocks,
        parent: NodeId,
        draft_valid: bool,
        text: &[Token],
    ) -> Option<NodeId> {
        [true, false]
            .into_iter()
            .filter(|&valid| valid >= draft_valid)
            .find_map(|valid| {
                let place = self.lower_bound(blocks, parent, valid, text);
                let child = self.node(parent).children.get(place)?;
                let node = self.node(child);
                let covers = node.draft_valid == valid
                    && node.common_text(blocks, text, usize::MAX) == text.len();
                covers.then_some(child)
            })
    }
}

fn fill(node: &mut Node, incoming: &Incoming<'_>, classes: usize) {
    node.extend(incoming.blocks, incoming.pages, classes);
    node.tip = SmallVec::from_slice(incoming.tip);
}

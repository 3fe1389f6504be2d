//! Matching: the longest usable agreement of a prompt with the tree. Read-only.

use smallvec::SmallVec;

use crate::blocks::Blocks;
use crate::ids::{NodeId, Token};
use crate::prefix::Tree;
use crate::prefix::children::Place;

/// The end of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Tokens that can be used.
    pub usable: u32,
    /// Tokens that could be used if none had to run.
    pub longest: u32,
    /// The last of the usable ones that lower tiers have, in blocks.
    pub cold: u32,
    /// The node where the agreement ends, or [`NodeId::NONE`] if the scope has no root. Any block of
    /// the path is in this node or above it, also after nodes on the path were split.
    pub tail: NodeId,
}

impl Found {
    /// No match, in a scope that has no root.
    pub(crate) const NOTHING: Self = Self {
        usable: 0,
        longest: 0,
        cold: 0,
        tail: NodeId::NONE,
    };
}

/// Branches still to follow, the next one last. Few paths have more than one.
type Ahead = SmallVec<[Branch; 4]>;

/// Where a search may go on from a node.
enum Branch {
    /// A child whose whole key agrees: the path goes on through it.
    Through(NodeId),
    /// The child that agrees longest, with that length: the path ends in it.
    Into(NodeId, usize),
}

impl Tree {
    /// The longest usable prefix of `tokens` in a scope. `draft_from` is the first position whose
    /// draft KV the sequence needs, `None` if it has no draft; lengths are cut to multiples of `unit`.
    ///
    /// Paths are tried draft-valid first, smallest text first; the first of equal ones wins.
    pub(crate) fn find(
        &self,
        blocks: &Blocks,
        scope: i32,
        tokens: &[Token],
        draft_from: Option<u32>,
        unit: u32,
    ) -> Found {
        let Some(&root) = self.roots.get(&scope) else {
            return Found::NOTHING;
        };
        let mut best = Found {
            tail: root,
            ..Found::NOTHING
        };
        let mut ahead: Ahead = SmallVec::new();
        ahead.push(Branch::Through(root));
        while let Some(branch) = ahead.pop() {
            let (node, same) = match branch {
                Branch::Into(node, same) => (node, same),
                Branch::Through(node) => (
                    node,
                    self.follow(blocks, node, tokens, draft_from, &mut ahead),
                ),
            };
            let mut usable = self.usable(blocks, node, same, draft_from);
            usable -= usable % unit;
            if usable > best.usable {
                best = Found {
                    usable,
                    longest: usable,
                    cold: 0,
                    tail: node,
                };
            }
        }
        best
    }

    /// How far `tokens` agree with a node; if to its end, its branches are put on `ahead`.
    fn follow(
        &self,
        blocks: &Blocks,
        id: NodeId,
        tokens: &[Token],
        draft_from: Option<u32>,
        ahead: &mut Ahead,
    ) -> usize {
        let node = &self.nodes[id.get()];
        let size = blocks.tokens_per_block();
        let rest = &tokens[node.start as usize * size..];
        let same = node.common_text(blocks, rest, usize::MAX);
        if same < node.text_len(blocks) {
            return same;
        }
        // A run whose draft KV is needed and missing ends the path; `usable` cuts it to what is not.
        let lacks_draft = !node.is_root() && !node.draft_valid;
        if lacks_draft && draft_from.is_some_and(|from| node.end() as usize * size > from as usize)
        {
            return same;
        }
        let next = &rest[node.len() as usize * size..];
        // Last in, first out: the draft-valid branch is followed first.
        for draft_valid in [false, true] {
            let allowed = draft_valid
                || draft_from.is_none_or(|from| (node.end() as usize + 1) * size <= from as usize);
            if allowed && let Some(branch) = self.branch(blocks, id, draft_valid, next) {
                ahead.push(branch);
            }
        }
        same
    }

    /// The usable length of a path that agrees with the first `same` tokens of its last node.
    fn usable(&self, blocks: &Blocks, id: NodeId, same: usize, draft_from: Option<u32>) -> u32 {
        let node = &self.nodes[id.get()];
        let size = blocks.tokens_per_block();
        let start = node.start as usize * size;
        let covered = match node.partial {
            Some(partial) => start + partial.covered as usize,
            None => node.end() as usize * size,
        };
        let mut usable = (start + same).saturating_sub(self.lookahead).min(covered);
        if let Some(from) = draft_from
            && !node.draft_valid
            && !node.is_root()
        {
            usable = usable.min(from as usize / size * size);
        }
        crate::ids::count(usable)
    }

    /// The first place whose child is not before (`draft_valid`, `query`).
    pub(crate) fn lower_bound(
        &self,
        blocks: &Blocks,
        parent: NodeId,
        draft_valid: bool,
        query: &[Token],
    ) -> Place {
        self.nodes[parent.get()]
            .children
            .partition(self.head(blocks, draft_valid, query), |child| {
                self.compare_key(blocks, child, query).is_lt()
            })
    }

    /// The child with this `draft_valid` whose whole key, a block and its lookahead, starts `query`.
    pub(crate) fn exact_child(
        &self,
        blocks: &Blocks,
        parent: NodeId,
        draft_valid: bool,
        query: &[Token],
    ) -> Option<NodeId> {
        let children = &self.nodes[parent.get()].children;
        let mut place = self.lower_bound(blocks, parent, draft_valid, query);
        while let Some(child) = children.get(place) {
            let node = &self.nodes[child.get()];
            if node.draft_valid != draft_valid || !self.compare_key(blocks, child, query).is_eq() {
                return None;
            }
            // A query shorter than a key can be equal to a partial block, never to a full one.
            if node.partial.is_none() {
                return Some(child);
            }
            place = children.next(place);
        }
        None
    }

    fn branch(
        &self,
        blocks: &Blocks,
        parent: NodeId,
        draft_valid: bool,
        next: &[Token],
    ) -> Option<Branch> {
        let children = &self.nodes[parent.get()].children;
        if children.is_empty() || next.is_empty() {
            return None;
        }
        if let Some(child) = self.exact_child(blocks, parent, draft_valid, next) {
            return Some(Branch::Through(child));
        }
        let same = |child: NodeId| {
            let node = &self.nodes[child.get()];
            let limit = self.key_limit(blocks);
            if node.draft_valid == draft_valid {
                node.common_text(blocks, next, limit)
            } else {
                0
            }
        };
        // The neighbours of where `next` would stand agree with it longest.
        let place = self.lower_bound(blocks, parent, draft_valid, next);
        let longest = children
            .before(place)
            .map_or(0, same)
            .max(children.get(place).map_or(0, same));
        if longest <= self.lookahead {
            return None;
        }
        // Among those that agree as long, the smallest text. All of them cover what they agree on
        // less the lookahead: the text of a partial block ends with the lookahead of its last token.
        let place = self.lower_bound(blocks, parent, draft_valid, &next[..longest]);
        children
            .get(place)
            .map(|child| Branch::Into(child, longest))
    }
}

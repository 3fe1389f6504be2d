//! How far a text agrees with the tree, whatever may be used of it. For reports, read-only.

use crate::blocks::Blocks;
use crate::ids::{NodeId, Token};
use crate::prefix::Tree;

/// The longest agreement of a text with any path of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Tokens that agree, from the start of the text.
    pub len: u32,
    /// Whether some path that agrees so far has a token after them, which then differs.
    pub goes_on: bool,
}

impl Tree {
    /// The longest agreement below a root, draft-valid or not.
    pub(crate) fn agreement(&self, blocks: &Blocks, root: NodeId, tokens: &[Token]) -> Agreement {
        let mut best = Agreement {
            len: 0,
            goes_on: false,
        };
        let mut ahead = vec![root];
        while let Some(id) = ahead.pop() {
            let node = self.node(id);
            let start = node.start as usize * blocks.tokens_per_block();
            let same = node.common_text(blocks, &tokens[start..], usize::MAX);
            let whole = node.text_len(blocks);
            best.include(start + same, same < whole);
            if same < whole {
                continue;
            }
            let end = start + node.len() as usize * blocks.tokens_per_block();
            if node.partial.is_some() || end >= tokens.len() {
                continue;
            }
            for draft_valid in [false, true] {
                match self.exact_child(blocks, id, draft_valid, &tokens[end..]) {
                    Some(child) => ahead.push(child),
                    None => self.add_neighbours(blocks, id, draft_valid, tokens, end, &mut best),
                }
            }
        }
        best
    }

    /// Includes the children that stand around `tokens[end..]`, which agree with it longest.
    fn add_neighbours(
        &self,
        blocks: &Blocks,
        parent: NodeId,
        draft_valid: bool,
        tokens: &[Token],
        end: usize,
        best: &mut Agreement,
    ) {
        let next = &tokens[end..];
        let children = &self.node(parent).children;
        let place = self.lower_bound(blocks, parent, draft_valid, next);
        let neighbours = [children.before(place), children.get(place)];
        for node in neighbours.into_iter().flatten().map(|id| self.node(id)) {
            if node.draft_valid == draft_valid {
                let same = node.common_text(blocks, next, usize::MAX);
                best.include(end + same, same < node.text_len(blocks));
            }
        }
    }
}

impl Agreement {
    fn include(&mut self, len: usize, goes_on: bool) {
        let len = crate::ids::count(len);
        if len > self.len {
            *self = Self { len, goes_on };
        } else if len == self.len {
            self.goes_on |= goes_on;
        }
    }
}

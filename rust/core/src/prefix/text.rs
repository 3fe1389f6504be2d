//! The text of a node: the tokens of its blocks, then its tip.

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::blocks::{Blocks, common};
use crate::ids::{NodeId, Token};
use crate::prefix::node::Node;
use crate::prefix::{Tree, children};

/// Tokens that decide the order of siblings: the first block and the D tokens after it.
pub(crate) type Key = SmallVec<[Token; 36]>;

impl Node {
    /// Tokens in the text of a node.
    pub(crate) fn text_len(&self, blocks: &Blocks) -> usize {
        let tokens = match self.partial {
            Some(partial) => partial.tokens as usize,
            None => self.len() as usize * blocks.tokens_per_block(),
        };
        tokens + self.tip.len()
    }

    /// Length of the longest common prefix of `query` and the first `limit` tokens of a node's text.
    #[inline]
    pub(crate) fn common_text(&self, blocks: &Blocks, query: &[Token], limit: usize) -> usize {
        let query = &query[..query.len().min(limit)];
        let (done, body) = match self.partial {
            Some(partial) => {
                let text = &blocks.tokens(self.blocks()[0])[..partial.tokens as usize];
                (common(text, query), text.len())
            }
            None => (
                blocks.common(self.blocks(), query),
                self.len() as usize * blocks.tokens_per_block(),
            ),
        };
        if done < body {
            return done;
        }
        done + common(&self.tip, &query[done..])
    }

    /// Copies up to `len` tokens of a node's text from position `from`.
    pub(crate) fn copy_text(&self, blocks: &Blocks, from: usize, len: usize) -> Key {
        let body = self.text_len(blocks) - self.tip.len();
        let mut out = Key::new();
        let inside = body.saturating_sub(from).min(len);
        blocks.read(self.blocks(), from, inside, &mut out);
        let tip = &self.tip[(from + inside - body.min(from + inside)).min(self.tip.len())..];
        out.extend_from_slice(&tip[..(len - inside).min(tip.len())]);
        out
    }

    /// One token of a node's text.
    fn token(&self, blocks: &Blocks, at: usize) -> Token {
        let body = self.text_len(blocks) - self.tip.len();
        let size = blocks.tokens_per_block();
        if at < body {
            blocks.tokens(self.blocks()[at / size])[at % size]
        } else {
            self.tip[at - body]
        }
    }
}

impl Tree {
    /// Tokens of the longest key: a block and its lookahead.
    #[inline]
    pub(crate) fn key_limit(&self, blocks: &Blocks) -> usize {
        blocks.tokens_per_block() + self.lookahead
    }

    /// The head of a text that is compared with keys, which is cut to the length of a key.
    pub(crate) fn head(&self, blocks: &Blocks, draft_valid: bool, text: &[Token]) -> u64 {
        let key = &text[..text.len().min(self.key_limit(blocks))];
        children::head(draft_valid, key)
    }

    /// The key of a node among its siblings.
    pub(crate) fn key(&self, blocks: &Blocks, node: &Node) -> Key {
        node.copy_text(blocks, 0, self.key_limit(blocks))
    }

    /// Compares the key of a child with the start of `query`, which is cut to the length of a key.
    pub(crate) fn compare_key(&self, blocks: &Blocks, child: NodeId, query: &[Token]) -> Ordering {
        let node = &self.nodes[child.get()];
        let limit = self.key_limit(blocks);
        let key_len = node.text_len(blocks).min(limit);
        let query = &query[..query.len().min(limit)];
        let same = node.common_text(blocks, query, key_len);
        match (same == key_len, same == query.len()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => node.token(blocks, same).cmp(&query[same]),
        }
    }
}

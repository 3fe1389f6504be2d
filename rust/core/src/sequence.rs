//! What the ledger knows of one open sequence.

use crate::ids::{BlockId, NodeId, Token};
use crate::ledger::Hint;

/// The two owners of KV data.
pub(crate) const TARGET: usize = 0;
/// See [`TARGET`].
pub(crate) const DRAFT: usize = 1;

/// Steps with the tokens that each runs, oldest first. Engines have one or two in flight, so the oldest
/// stands in place.
#[derive(Debug, Default)]
pub(crate) struct Widths {
    /// The oldest; a width of 0 means none.
    oldest: (u64, u32),
    later: Vec<(u64, u32)>,
}

impl Widths {
    /// The oldest step and its width; (0, 0) if there is none.
    #[inline]
    pub(crate) fn oldest(&self) -> (u64, u32) {
        self.oldest
    }

    /// The newest step; 0 if there is none.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.later.last().unwrap_or(&self.oldest).0
    }

    #[inline]
    pub(crate) fn push(&mut self, step: u64, width: u32) {
        if self.oldest.1 == 0 {
            self.oldest = (step, width);
        } else {
            self.later.push((step, width));
        }
    }

    #[inline]
    pub(crate) fn pop_oldest(&mut self) {
        self.oldest = if self.later.is_empty() {
            (0, 0)
        } else {
            self.later.remove(0)
        };
    }

    pub(crate) fn clear(&mut self) {
        self.oldest = (0, 0);
        self.later.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let oldest = (self.oldest.1 > 0).then_some(self.oldest);
        oldest.into_iter().chain(self.later.iter().copied())
    }
}

/// One row of the ledger, open or not. A closed row keeps its buffers for the next sequence.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about one row"
)]
pub(crate) struct Sequence {
    pub generation: u32,
    pub open: bool,
    /// Open, but without pages: all its tokens wait in `pending`, and it stands on no node.
    pub suspended: bool,
    pub scope: i32,
    /// First position whose draft KV is valid; -1: no draft.
    pub draft_from: i32,
    pub max_total: u32,
    pub known: u32,
    /// End of the valid KV per role. The draft's stays 0 for a sequence without a draft.
    pub valid: [u32; 2],
    /// Blocks of the whole prompt and the extra tokens, which admission counted on.
    pub prompt_blocks: u32,
    /// Blocks that stand in the tree.
    pub published: u32,
    /// Full blocks among them that the sequence put there.
    pub entered: u32,
    /// How its blocks are to be kept, later hints before earlier ones.
    pub hints: Vec<Hint>,
    /// The node whose end is the last published block; the root of the scope if there is none.
    pub node: NodeId,
    /// Records of the blocks after the published ones, if the sequence keeps its tokens.
    pub blocks: Vec<BlockId>,
    /// Known tokens after the last block that has pages; those before `pending_head` are consumed.
    pub pending: Vec<Token>,
    pub pending_head: usize,
    /// Steps that were grown and not advanced.
    pub widths: Widths,
    /// Sum of `widths`.
    pub outstanding: u32,
    /// Blocks that its rows of the table have.
    pub held: u32,
    /// Whether its tokens are kept, to be published.
    pub keeps_tokens: bool,
    /// Whether its blocks are promised: not without a full class, where only records are, unless it
    /// publishes.
    pub counts_blocks: bool,
    /// The load that brings its first blocks from lower tiers; 0 if none does.
    pub loading: u64,
    /// Whether the row is among those with changes that `updates` has not reported.
    pub listed: bool,
    /// The call that looked at this sequence last, to find repeated handles.
    pub seen: u64,
}

impl Sequence {
    pub(crate) fn closed() -> Self {
        Self {
            generation: 0,
            open: false,
            suspended: false,
            scope: 0,
            draft_from: -1,
            max_total: 0,
            known: 0,
            valid: [0; 2],
            prompt_blocks: 0,
            published: 0,
            entered: 0,
            hints: Vec::new(),
            node: NodeId::NONE,
            blocks: Vec::new(),
            pending: Vec::new(),
            pending_head: 0,
            widths: Widths::default(),
            outstanding: 0,
            held: 0,
            keeps_tokens: false,
            counts_blocks: true,
            loading: 0,
            listed: false,
            seen: 0,
        }
    }

    #[inline]
    pub(crate) fn has_draft(&self) -> bool {
        self.draft_from >= 0
    }

    /// Prompt blocks that admission counted on and that are not taken yet, or were given back by a step
    /// that did not run.
    #[inline]
    pub(crate) fn promise(&self) -> u32 {
        if self.counts_blocks {
            self.prompt_blocks.saturating_sub(self.held)
        } else {
            0
        }
    }

    /// Tokens written for any role.
    #[inline]
    pub(crate) fn reach(&self) -> u32 {
        self.valid[TARGET].max(self.valid[DRAFT])
    }

    /// Tokens valid in every role that the sequence uses.
    #[inline]
    pub(crate) fn history(&self) -> u32 {
        if self.has_draft() {
            self.valid[TARGET].min(self.valid[DRAFT])
        } else {
            self.valid[TARGET]
        }
    }

    /// Known tokens that have no block yet.
    pub(crate) fn pending(&self) -> &[Token] {
        &self.pending[self.pending_head..]
    }
}

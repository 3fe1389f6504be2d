//! What the ledger knows of one open sequence.

use crate::ids::{BlockId, NodeId, Token};
use crate::ledger::Hint;

/// The two owners of KV data.
pub(crate) const TARGET: usize = 0;
/// See [`TARGET`].
pub(crate) const DRAFT: usize = 1;

/// Steps with the tokens that each runs, oldest first. Engines have one or two in flight, so the oldest
/// stands in place; the later ones are looked at only if there are some.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Widths {
    /// The oldest step and the tokens that it runs; a width of 0 means none.
    step: u64,
    width: u32,
    /// Length of `later`.
    later_count: u32,
    later: Vec<(u64, u32)>,
}

impl Widths {
    /// The oldest step and its width; (0, 0) if there is none.
    #[inline]
    pub(crate) fn oldest(&self) -> (u64, u32) {
        (self.step, self.width)
    }

    /// The newest step; 0 if there is none.
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        match self.later_count {
            0 => self.step,
            _ => self.later.last().map_or(self.step, |&(step, _)| step),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, step: u64, width: u32) {
        if self.width == 0 {
            (self.step, self.width) = (step, width);
        } else {
            self.later.push((step, width));
            self.later_count += 1;
        }
    }

    /// Forgets the oldest step; its width.
    #[inline]
    pub(crate) fn pop_oldest(&mut self) -> u32 {
        let next = match self.later_count {
            0 => (0, 0),
            _ => self.pop_later(),
        };
        self.step = next.0;
        std::mem::replace(&mut self.width, next.1)
    }

    #[cold]
    fn pop_later(&mut self) -> (u64, u32) {
        self.later_count -= 1;
        self.later.remove(0)
    }

    pub(crate) fn clear(&mut self) {
        (self.step, self.width) = (0, 0);
        self.later.clear();
        self.later_count = 0;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let oldest = (self.width > 0).then_some((self.step, self.width));
        oldest.into_iter().chain(self.later.iter().copied())
    }
}

/// One row of the ledger, open or not. A closed row keeps its buffers for the next sequence.
///
/// What every decode step looks at fills the first cache line. A row is an odd number of lines, so that
/// the first lines of a batch spread over all sets of the cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Sequence {
    /// The call that looked at this sequence last, to find repeated handles.
    pub seen: u64,
    pub generation: u32,
    pub known: u32,
    /// End of the valid KV per role. The draft's stays 0 for a sequence without a draft.
    pub valid: [u32; 2],
    /// Sum of `widths`.
    pub outstanding: u32,
    /// Blocks that its rows of the table have.
    pub held: u32,
    /// Blocks that stand in the tree.
    pub published: u32,
    pub max_total: u32,
    /// First position whose draft KV is valid; -1: no draft.
    pub draft_from: i32,
    pub open: bool,
    /// Open, but without pages: all its tokens wait in `pending`, and it stands on no node.
    pub suspended: bool,
    /// Whether its tokens are kept, to be published.
    pub keeps_tokens: bool,
    /// Whether its blocks are promised: not without a full class, where only records are, unless it
    /// publishes.
    pub counts_blocks: bool,
    /// Steps that were grown and not advanced. The second line begins inside.
    pub widths: Widths,
    /// Records of the blocks after the published ones, if the sequence keeps its tokens.
    pub blocks: Vec<BlockId>,
    /// The load that brings its first blocks from lower tiers; 0 if none does.
    pub loading: u64,
    /// The node whose end is the last published block; the root of the scope if there is none.
    pub node: NodeId,
    /// Blocks of the whole prompt and the extra tokens, which admission counted on.
    pub prompt_blocks: u32,
    /// Full blocks among the published ones that the sequence put there.
    pub entered: u32,
    pub scope: i32,
    /// Known tokens after the last block that has pages; those before `pending_head` are consumed.
    pub pending: Vec<Token>,
    /// How its blocks are to be kept, later hints before earlier ones.
    pub hints: Vec<Hint>,
    pub pending_head: u32,
    /// Whether the row is among those with changes that `updates` has not reported.
    pub listed: bool,
}

const _: () = assert!(
    std::mem::offset_of!(Sequence, widths) + std::mem::offset_of!(Widths, later) <= 64,
    "what decode steps look at fits the first line"
);

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
        &self.pending[self.pending_head as usize..]
    }
}

//! A node: a run of blocks with no branch inside.

use smallvec::SmallVec;

use crate::ids::{BlockId, NodeId, PageIndex, Token, count};
use crate::prefix::children::Children;
use crate::prefix::leaves::Leaf;
use crate::prefix::policy::Usage;
use crate::prefix::retain::Retention;

/// What makes a node a partial block: the last tokens of a sequence that ended inside a block.
/// Such a node holds exactly one block and never has children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Partial {
    /// Tokens that its record holds.
    pub tokens: u32,
    /// How many of them, from the front, have valid KV in every role and enough tokens after them.
    pub covered: u32,
}

/// A run of consecutive blocks. The root of a scope is a node without blocks.
#[derive(Debug)]
pub(crate) struct Node {
    pub scope: i32,
    pub parent: NodeId,
    pub children: Children,
    /// Ordinal of the first block.
    pub start: u32,
    /// Blocks and pages before `head` are dead: a split leaves them where they are, so that the part
    /// that keeps its id need not move, and a later merge can put them back.
    head: u32,
    blocks: Vec<BlockId>,
    /// `classes` pages per block.
    pages: Vec<PageIndex>,
    /// The D tokens that follow the last block; fewer only after a partial block.
    pub tip: SmallVec<[Token; 4]>,
    pub partial: Option<Partial>,
    /// Whether the draft's KV is valid in all of the run.
    pub draft_valid: bool,
    /// Sequences whose last published block is this node's last, and copies that read it.
    pub pins: u32,
    /// Children that are active.
    pub active_children: u32,
    /// Leases that stand on this node or below it.
    pub leases: u32,
    /// The tick at which the node last became inactive.
    pub last_use: u64,
    /// The newest step begun at that moment.
    pub stamp: u64,
    /// What the policy knows of its blocks.
    pub usage: Usage,
    /// How its blocks are to be kept.
    pub retention: Retention,
    /// Leading blocks that a later item of the running call has claimed.
    pub claimed: u32,
}

impl Node {
    pub(crate) fn new(scope: i32, parent: NodeId, start: u32, draft_valid: bool) -> Self {
        Self {
            scope,
            parent,
            children: Children::None,
            start,
            head: 0,
            blocks: Vec::new(),
            pages: Vec::new(),
            tip: SmallVec::new(),
            partial: None,
            draft_valid,
            pins: 0,
            active_children: 0,
            leases: 0,
            last_use: 0,
            stamp: 0,
            usage: Usage::default(),
            retention: Retention::DEFAULT,
            claimed: 0,
        }
    }

    /// Whether a sequence or a copy stands on this node or below it.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.pins > 0 || self.active_children > 0
    }

    /// Where the node, whose id is given, stands among the leaves.
    #[inline]
    pub(crate) fn leaf(&self, id: NodeId) -> Leaf {
        Leaf::new(self.retention.priority, self.usage.rank, self.last_use, id)
    }

    #[inline]
    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// Blocks in the run.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        count(self.blocks.len()) - self.head
    }

    /// Ordinal after the last block.
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.start + self.len()
    }

    #[inline]
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks[self.head as usize..]
    }

    #[inline]
    pub(crate) fn pages(&self, classes: usize) -> &[PageIndex] {
        &self.pages[self.head as usize * classes..]
    }

    /// Renames the pages of one class.
    pub(crate) fn rename_pages(
        &mut self,
        class: usize,
        classes: usize,
        to: impl Fn(PageIndex) -> PageIndex,
    ) {
        let live = &mut self.pages[self.head as usize * classes..];
        for page in live.iter_mut().skip(class).step_by(classes) {
            *page = to(*page);
        }
    }

    /// Makes room for `more` blocks: exactly when the node is new, by an eighth when it grows block by
    /// block, so that a long run wastes little and is copied at most a few times over.
    fn reserve(&mut self, more: usize, classes: usize) {
        let spare = self.blocks.capacity() - self.blocks.len();
        if spare < more {
            let extra = if self.blocks.is_empty() {
                more
            } else {
                more.max(16).max(self.blocks.len() / 8)
            };
            self.blocks.reserve_exact(extra);
            self.pages.reserve_exact(extra * classes);
        }
    }

    /// Appends blocks with their pages, one slice per class.
    pub(crate) fn extend(&mut self, blocks: &[BlockId], pages: &[&[PageIndex]], classes: usize) {
        self.reserve(blocks.len(), classes);
        self.blocks.extend_from_slice(blocks);
        if let [pages] = pages {
            self.pages.extend_from_slice(pages);
            return;
        }
        for at in 0..blocks.len() {
            self.pages.extend(pages.iter().map(|pages| pages[at]));
        }
    }

    /// Keeps the first `kept` blocks; the others have been given back.
    pub(crate) fn truncate(&mut self, kept: u32, classes: usize) {
        let end = (self.head + kept) as usize;
        self.blocks.truncate(end);
        self.pages.truncate(end * classes);
        self.shrink(classes);
    }

    /// Returns memory once most of it is dead or unused.
    fn shrink(&mut self, classes: usize) {
        let live = self.blocks.len() - self.head as usize;
        if self.blocks.capacity() > 64 && live * 4 < self.blocks.capacity() {
            self.drop_head(classes);
            self.blocks.shrink_to(live * 2);
            self.pages.shrink_to(live * 2 * classes);
        }
    }

    fn drop_head(&mut self, classes: usize) {
        let head = self.head as usize;
        self.blocks.drain(..head);
        self.pages.drain(..head * classes);
        self.head = 0;
    }

    /// Moves the first `at` blocks into `upper`, which must be empty. The smaller part is copied.
    pub(crate) fn split_into(&mut self, upper: &mut Self, at: u32, classes: usize) {
        let (from, to) = (self.head as usize, (self.head + at) as usize);
        self.start += at;
        if to - from <= self.blocks.len() - to {
            upper.reserve(at as usize, classes);
            upper.blocks.extend_from_slice(&self.blocks[from..to]);
            upper
                .pages
                .extend_from_slice(&self.pages[from * classes..to * classes]);
            self.head += at;
            if self.blocks.len() > 64 && self.head as usize * 2 > self.blocks.len() {
                self.drop_head(classes);
            }
            return;
        }
        let blocks = self.blocks[to..].to_vec();
        let pages = self.pages[to * classes..].to_vec();
        upper.blocks = std::mem::replace(&mut self.blocks, blocks);
        upper.pages = std::mem::replace(&mut self.pages, pages);
        upper.head = std::mem::take(&mut self.head);
        upper.truncate(at, classes);
    }

    /// Takes the blocks of `upper`, which was this node's parent, in front of its own. The smaller part is
    /// copied, unless there is no room for it.
    pub(crate) fn absorb(&mut self, upper: &mut Self, classes: usize) {
        let more = upper.len();
        self.start -= more;
        if self.head >= more && more <= self.len() {
            let from = (self.head - more) as usize;
            self.blocks[from..self.head as usize].copy_from_slice(upper.blocks());
            self.pages[from * classes..self.head as usize * classes]
                .copy_from_slice(upper.pages(classes));
            self.head -= more;
            return;
        }
        upper.blocks.reserve_exact(self.len() as usize);
        upper.pages.reserve_exact(self.len() as usize * classes);
        upper.blocks.extend_from_slice(self.blocks());
        upper.pages.extend_from_slice(self.pages(classes));
        std::mem::swap(&mut self.blocks, &mut upper.blocks);
        std::mem::swap(&mut self.pages, &mut upper.pages);
        self.head = upper.head;
    }
}

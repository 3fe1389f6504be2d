//! Blocks entering the tree: in place, as a new child, or replaced by equal ones.

use smallvec::SmallVec;

use crate::ids::{BlockId, NodeId, PageIndex, Row, Token};
use crate::ledger::Ledger;
use crate::prefix::{Incoming, Key, Partial, Retention, Store, Usage};

impl Ledger {
    /// Publishes the full blocks whose lookahead is known.
    pub(crate) fn publish_full(&mut self, row: Row) {
        let size = self.config.tokens_per_block;
        let seq = &self.sequences[row.at()];
        let known = seq.known.saturating_sub(self.config.lookahead);
        let end = seq.history().min(known) / size;
        while self.sequences[row.at()].published < end {
            let (from, draft_valid, same) = self.stretch(row, end);
            if let Some(child) = self.equal_child(row, from, draft_valid) {
                self.rebase(row, child, same, draft_valid);
            } else {
                self.enter(row, same, draft_valid);
            }
        }
    }

    /// The next block to publish, its `draft_valid`, and the end of the blocks that share it.
    fn stretch(&self, row: Row, end: u32) -> (u32, bool, u32) {
        self.stretch_from(row, self.sequences[row.at()].published, end)
    }

    /// The same for block `from`.
    pub(super) fn stretch_from(&self, row: Row, from: u32, end: u32) -> (u32, bool, u32) {
        let seq = &self.sequences[row.at()];
        if !self.config.has_draft {
            return (from, true, end);
        }
        let Ok(draft_from) = u32::try_from(seq.draft_from) else {
            return (from, false, end);
        };
        let first_valid = draft_from.div_ceil(self.config.tokens_per_block);
        if from >= first_valid {
            (from, true, end)
        } else {
            (from, false, end.min(first_valid))
        }
    }

    /// A child of the sequence's node that is equal to its block `from`.
    fn equal_child(&self, row: Row, from: u32, draft_valid: bool) -> Option<NodeId> {
        let node = self.sequences[row.at()].node;
        if self.tree.node(node).children.is_empty() {
            return None;
        }
        let key = self.text(row, from, self.tree.key_limit(&self.blocks));
        [true, false]
            .into_iter()
            .filter(|&valid| valid >= draft_valid)
            .find_map(|valid| {
                let child = self.tree.exact_child(&self.blocks, node, valid, &key)?;
                (valid == draft_valid || self.stands_in(row, from, child, 1) > 0).then_some(child)
            })
    }

    /// Up to `len` known tokens of the sequence from the start of private block `from`.
    fn text(&self, row: Row, from: u32, len: usize) -> Key {
        let size = self.blocks.tokens_per_block();
        let seq = &self.sequences[row.at()];
        let first = from as usize * size;
        let placed = seq.known as usize - seq.pending().len();
        let end = (first + len).min(seq.known as usize);
        let private = &seq.blocks[((from - seq.published) as usize).min(seq.blocks.len())..];
        let mut out = Key::new();
        self.blocks
            .read(private, 0, placed.min(end).saturating_sub(first), &mut out);
        if end > placed {
            let from = first.saturating_sub(placed);
            out.extend_from_slice(&seq.pending()[from..end - placed]);
        }
        out
    }

    /// Takes over the equal blocks of `child`, up to ordinal `end`, and gives the private ones back.
    fn rebase(&mut self, row: Row, child: NodeId, end: u32, draft_valid: bool) {
        let size = self.blocks.tokens_per_block();
        let (places, full) = (self.pools.len(), self.classes.full());
        let from = self.sequences[row.at()].published;
        let text = self.text(
            row,
            from,
            (end - from) as usize * size + self.tree.lookahead,
        );
        let node = self.tree.node(child);
        let same = node.common_text(&self.blocks, &text, usize::MAX);
        let blocks = crate::ids::count((same - self.tree.lookahead) / size)
            .min(node.len())
            .min(end - from);
        let blocks = if node.draft_valid == draft_valid {
            blocks
        } else {
            self.stands_in(row, from, child, blocks)
        };
        let to = self.split_after(child, from + blocks);
        let stamp = self.steps.stamp();
        let stretch = from as usize..(from + blocks) as usize;
        for (class, pool) in self.pools[..full].iter_mut().enumerate() {
            let row_pages = &mut self.tables[row.at() * places + class].pages[stretch.clone()];
            pool.give_back(row_pages.iter().copied(), stamp, &self.steps);
            let shared = self.tree.node(to).pages(full);
            for (mine, theirs) in row_pages
                .iter_mut()
                .zip(shared.iter().skip(class).step_by(full))
            {
                *mine = *theirs;
            }
        }
        if places > full {
            let node = self.tree.node(to);
            let theirs = node.blocks()[(from - node.start) as usize..].to_vec();
            self.rebase_windows(row, from, &theirs);
        }
        let seq = &mut self.sequences[row.at()];
        self.blocks.give_back(seq.blocks.drain(..blocks as usize));
        self.touch(row, from, from + blocks);
        let seq = &mut self.sequences[row.at()];
        seq.published += blocks;
        let above = std::mem::replace(&mut seq.node, to);
        self.tree.move_pin(above, to, &self.steps);
        self.counters.rebased_blocks += u64::from(blocks);
    }

    /// Puts the private blocks up to ordinal `end` into the tree as they are.
    fn enter(&mut self, row: Row, end: u32, draft_valid: bool) {
        let seq = &self.sequences[row.at()];
        let (from, above) = (seq.published, seq.node);
        let (retention, end) = self.retention(row, from, end);
        let run = &seq.blocks[..(end - from) as usize];
        // Only blocks of which the policy knows the same form a run.
        let (usage, same) = self.tree.place(above, run, &self.blocks);
        let end = from + same;
        let lookahead = self.tree.lookahead;
        let tip = self.text_after(row, end, lookahead);
        if !self.tree.node(above).children.is_empty() {
            let text = self.text(row, from, self.tree.key_limit(&self.blocks));
            self.drop_shorter(row, draft_valid, &text);
        }
        self.insert(row, end - from, &tip, draft_valid, (usage, retention), None);
        self.sequences[row.at()].entered += same;
    }

    /// Up to `len` known tokens after private block `end - 1`.
    fn text_after(&self, row: Row, end: u32, len: usize) -> Key {
        if len == 0 {
            Key::new()
        } else {
            self.text(row, end, len)
        }
    }

    /// Drops the partial blocks beside the next private block that it, or a tail with this text, makes
    /// useless.
    fn drop_shorter(&mut self, row: Row, draft_valid: bool, text: &[Token]) {
        let seq = &self.sequences[row.at()];
        let mut store = Store {
            blocks: &mut self.blocks,
            pools: &mut self.pools,
            sides: &mut self.sides,
            tiers: None,
        };
        let heir = seq.blocks[0];
        self.tree
            .drop_shorter_partials(seq.node, draft_valid, text, heir, &mut store, &self.steps);
    }

    /// Moves the next `blocks` private blocks of a sequence into the tree and lets it stand on them.
    fn insert(
        &mut self,
        row: Row,
        blocks: u32,
        tip: &[Token],
        draft_valid: bool,
        (usage, retention): (Usage, Retention),
        partial: Option<Partial>,
    ) {
        let seq = &self.sequences[row.at()];
        let from = seq.published;
        let first = row.at() * self.pools.len();
        let pages: SmallVec<[&[PageIndex]; 4]> = self.tables[first..][..self.classes.full()]
            .iter()
            .map(|table| &table.pages[from as usize..(from + blocks) as usize])
            .collect();
        let incoming = Incoming {
            blocks: &seq.blocks[..blocks as usize],
            pages: &pages,
            tip,
            draft_valid,
            usage,
            retention,
            partial,
        };
        let node = if partial.is_none()
            && self
                .tree
                .can_append(seq.node, draft_valid, (usage, retention))
        {
            self.tree.append(seq.node, &incoming);
            seq.node
        } else {
            self.tree.extend_pin(seq.node, &self.blocks, &incoming)
        };
        let entered = if self.promised_windows.is_empty() {
            Vec::new()
        } else {
            seq.blocks[..blocks as usize].to_vec()
        };
        drop(pages);
        self.enter_windows(row, from, &entered);
        let seq = &mut self.sequences[row.at()];
        seq.node = node;
        seq.published += blocks;
        seq.blocks.drain(..blocks as usize);
        self.counters.published_blocks += u64::from(blocks);
        self.note_entered(node, blocks);
    }

    /// Publishes the tail of a sequence that ends inside a block, or before the lookahead of its last
    /// block is known. Afterwards the sequence stands on it. Returns the block that the tail became, or
    /// that makes it worthless (none if its draft KV is better), with the tokens that the tail covers;
    /// `None` if there is no tail.
    pub(crate) fn publish_tail(&mut self, row: Row) -> Option<(Option<BlockId>, u32)> {
        let size = self.config.tokens_per_block;
        let seq = &self.sequences[row.at()];
        let start = seq.published * size;
        let end = seq
            .history()
            .min(seq.known.saturating_sub(self.config.lookahead));
        if end <= start {
            return None;
        }
        let covered = end - start;
        // Its text ends with the lookahead of its last covered token: tokens after that are known, but
        // nothing of theirs is valid.
        let limit = covered + self.config.lookahead;
        let text = self.text(row, seq.published, limit as usize);
        let tokens = text.len().min(size as usize);
        let (_, draft_valid, _) = self.stretch(row, seq.published + 1);
        let cover = self.tree.cover(&self.blocks, seq.node, draft_valid, &text);
        if let Some(cover) = cover {
            let cover = self.tree.node(cover);
            let alike = cover.draft_valid == draft_valid;
            return Some((alike.then_some(cover.blocks()[0]), covered));
        }
        let block = seq.blocks[0];
        self.drop_shorter(row, draft_valid, &text);
        let partial = Partial {
            tokens: crate::ids::count(tokens),
            covered,
        };
        let usage = self.tree.fresh_usage();
        let from = self.sequences[row.at()].published;
        let (retention, _) = self.retention(row, from, from + 1);
        let what = (usage, retention);
        self.insert(row, 1, &text[tokens..], draft_valid, what, Some(partial));
        Some((Some(block), covered))
    }
}

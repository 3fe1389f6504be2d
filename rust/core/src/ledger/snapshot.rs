//! Snapshots: states that become reusable, by a copy before a step or when their sequence ends.

use smallvec::smallvec;

use crate::ids::{BlockId, PAGE_ZERO, PageIndex, Row};
use crate::ledger::sides::PendingCopy;
use crate::ledger::{Ledger, Move};

impl Ledger {
    /// Copies the states of a sequence into the tree before `step` writes them, where that is due and
    /// possible. The sequence has no width recorded yet.
    pub(super) fn take_snapshots(&mut self, step: u64, row: Row) {
        let interval = self.config.snapshot_interval;
        let seq = &self.sequences[row.at()];
        let history = seq.history();
        let due = interval > 0
            && seq.keeps_tokens
            && seq.outstanding == 0
            && seq.published > 0
            && history == seq.published * self.config.tokens_per_block
            && history == seq.reach()
            && history.is_multiple_of(interval)
            && self.stretch_from(row, seq.published - 1, seq.published).1
                == self.tree.node(seq.node).draft_valid;
        if due {
            for place in self.classes.states() {
                self.take_snapshot(step, row, place);
            }
        }
    }

    fn take_snapshot(&mut self, step: u64, row: Row, place: usize) {
        let size = self.config.tokens_per_block;
        let node = self.sequences[row.at()].node;
        let &block = self
            .tree
            .node(node)
            .blocks()
            .last()
            .expect("a block ends here");
        let state = self.pages_of(row, place)[0];
        let pages = self.sides.at(place);
        let old = pages.page(block);
        let stays = old != PAGE_ZERO && (pages.is_pinned(old) || pages.covered(old) >= size);
        if stays || self.is_awaited(place, state) {
            return;
        }
        if self.pools[place].free_count() == 0 {
            if pages.evictable() == 0 {
                return;
            }
            self.evict_sides(place, 1);
        }
        let pool = &mut self.pools[place];
        let mut taken = Vec::with_capacity(1);
        pool.take(1, &mut taken);
        let page: PageIndex = taken[0];
        let pages = self.sides.at_mut(place);
        let old = pages.page(block);
        if old != PAGE_ZERO {
            pages.give_up(old, pool, &self.steps);
        }
        // Its first pin is the copy's.
        pages.insert(block, page, size);
        if !self.tree.node(node).children.is_empty() {
            pages.want(page);
        }
        self.counters.snapshots += 1;
        self.tree.pin(node, &self.steps);
        self.copies.push(PendingCopy {
            step,
            node,
            sides: smallvec![(place, page)],
        });
        self.steps.fence_copies(step);
        self.moves.push(Move {
            step,
            class: self.classes.class(place),
            source: state,
            destination: page,
            tokens: 1,
        });
    }

    /// Makes the states of a sequence that ends the snapshots of `block`, after `covered` of its tokens,
    /// or gives them back.
    pub(super) fn leave_states(&mut self, row: Row, block: Option<BlockId>, covered: u32) {
        let stamp = self.steps.stamp();
        for place in self.classes.states() {
            let table = row.at() * self.pools.len() + place;
            let page = self.tables[table]
                .pages
                .pop()
                .expect("a sequence has a state");
            let (side, pool) = (self.sides.at_mut(place), &mut self.pools[place]);
            let free = block.filter(|&block| side.make_way(block, covered, pool, &self.steps));
            if let Some(block) = free {
                side.insert(block, page, covered);
                side.want(page);
                side.unpin(page, &self.steps);
                self.counters.snapshots += 1;
            } else {
                pool.give_back(std::iter::once(page), stamp, &self.steps);
            }
            self.touch_at(row, place, 0, 1);
        }
    }

    /// Gives back the pages of cross-attention.
    pub(super) fn leave_cross(&mut self, row: Row) {
        let stamp = self.steps.stamp();
        let cross: Vec<(usize, u32)> = self.classes.cross().collect();
        for (place, columns) in cross {
            let table = row.at() * self.pools.len() + place;
            let pages = self.tables[table].pages.drain(..);
            self.pools[place].give_back(pages, stamp, &self.steps);
            self.touch_at(row, place, 0, columns);
        }
    }
}

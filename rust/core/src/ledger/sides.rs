//! Windows and states in the transactions: what a hit needs of them, pins, and pruning.

use std::ops::Range;

use smallvec::SmallVec;

use crate::ids::{BlockId, NodeId, PAGE_ZERO, PageIndex, Row};
use crate::ledger::Ledger;
use crate::prefix::Found;

/// A copy whose step is not complete, and what it keeps in place until then.
#[derive(Debug)]
pub(super) struct PendingCopy {
    /// The step that runs it.
    pub step: u64,
    /// The node that ends with the block that it reads, or whose snapshot it writes.
    pub node: NodeId,
    /// Side pages of that block that it pins, with their places.
    pub sides: SmallVec<[(usize, PageIndex); 2]>,
}

/// What an open sequence has in a windowed class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WindowRow {
    /// Columns before it hold no page, apart from sinks.
    pub start: u32,
    /// Pages in its row.
    pub pages: u32,
    /// Pages that admission counted on and that are not taken.
    pub promise: u32,
    /// Up to this history nothing is left behind.
    pub steady_until: u32,
}

/// A side page that an admission uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct SidePage {
    pub place: usize,
    /// The block's ordinal.
    pub ordinal: u32,
    pub page: PageIndex,
}

impl Ledger {
    /// Whether any class has side pages.
    #[inline]
    pub(super) fn has_sides(&self) -> bool {
        self.classes.states().end > self.classes.full()
    }

    /// Ids of the blocks `0 .. end` of the path down to `tail`.
    pub(super) fn path_blocks(&self, tail: NodeId, end: u32) -> Vec<BlockId> {
        let mut blocks = vec![BlockId::new(0); end as usize];
        for id in self.tree.upwards(tail) {
            let node = self.tree.node(id);
            let (from, to) = (node.start.min(end), node.end().min(end));
            let ids = &node.blocks()[..(to - from) as usize];
            blocks[from as usize..to as usize].copy_from_slice(ids);
        }
        blocks
    }

    /// The largest length up to `limit`, a multiple of `unit`, that every class with side pages accepts.
    pub(super) fn accepted(&self, tail: NodeId, limit: u32, unit: u32) -> u32 {
        self.accepted_by(tail, limit, unit, self.classes.states())
    }

    /// The same for windows alone.
    pub(super) fn accepted_by_windows(&self, tail: NodeId, limit: u32, unit: u32) -> u32 {
        self.accepted_by(tail, limit, unit, 0..0)
    }

    fn accepted_by(&self, tail: NodeId, limit: u32, unit: u32, states: Range<usize>) -> u32 {
        let limit = limit - limit % unit;
        if limit == 0 || !self.has_sides() {
            return limit;
        }
        let blocks = self.path_blocks(tail, limit.div_ceil(self.config.tokens_per_block));
        let mut length = limit;
        while length > 0 {
            let next = self.shorter(&blocks, length, states.clone());
            if next == length {
                break;
            }
            length = next - next % unit;
        }
        length
    }

    /// `length` if every class accepts it, else the next one that may be.
    fn shorter(&self, blocks: &[BlockId], length: u32, states: Range<usize>) -> u32 {
        let size = self.config.tokens_per_block;
        let last = (length - 1) / size;
        for place in states {
            let covered = self.snapshot_of(place, blocks[last as usize]);
            let within = length - last * size;
            if covered != within {
                return last * size + if covered < within { covered } else { 0 };
            }
        }
        for (rule, place) in self.classes.windows().iter().zip(self.classes.full()..) {
            let pages = self.sides.at(place);
            let live = rule.needed.live(length.into(), 0);
            let (sinks, start) = (at_most(live.sinks, last + 1), at_most(live.start, last + 1));
            let needed = (0..sinks).chain(start..=last).rev();
            // Whatever needs a block that has no page ends before it.
            for ordinal in needed {
                if pages.page(blocks[ordinal as usize]) == PAGE_ZERO {
                    return ordinal * size;
                }
            }
        }
        length
    }

    /// Tokens of a block after which its snapshot was taken; 0 without one, or while the copy that writes
    /// it waits to be handed out.
    fn snapshot_of(&self, place: usize, block: BlockId) -> u32 {
        let side = self.sides.at(place);
        let page = side.page(block);
        if page == PAGE_ZERO || self.is_awaited(place, page) {
            0
        } else {
            side.covered(page)
        }
    }

    /// Whether a copy that was not handed out writes a page.
    pub(super) fn is_awaited(&self, place: usize, page: PageIndex) -> bool {
        let class = self.classes.class(place);
        let mut moves = self.moves.iter();
        moves.any(|copy| copy.class == class && copy.destination == page)
    }

    /// The side pages that an admission with `hit` tokens pins: of shared blocks in its windows, and of
    /// the block that it copies.
    /// The last `cold` blocks of the hit come from lower tiers.
    pub(super) fn side_pages(&self, found: Found, hit: u32, cold: u32) -> Vec<SidePage> {
        let mut pages = Vec::new();
        if hit == 0 || !self.has_sides() {
            return pages;
        }
        let size = self.config.tokens_per_block;
        let (shared, used) = (hit / size - cold, hit.div_ceil(size) - cold);
        let blocks = self.path_blocks(found.tail, used);
        let mut add = |place: usize, ordinal: u32| {
            let page = self.sides.at(place).page(blocks[ordinal as usize]);
            if page != PAGE_ZERO {
                pages.push(SidePage {
                    place,
                    ordinal,
                    page,
                });
            }
        };
        for (rule, place) in self.classes.windows().iter().zip(self.classes.full()..) {
            let live = rule.kept.live(hit.into(), 0);
            let (sinks, start) = (at_most(live.sinks, shared), at_most(live.start, shared));
            for ordinal in (0..sinks).chain(start..shared).chain(shared..used) {
                add(place, ordinal);
            }
        }
        for place in self.classes.states().filter(|_| cold == 0) {
            add(place, used - 1);
        }
        pages
    }

    /// How many of these pages of a class an allocation might evict now.
    pub(super) fn evictable_of(&self, pages: &[SidePage], place: usize) -> u32 {
        let of_class = pages.iter().filter(|side| side.place == place);
        crate::ids::count(
            of_class
                .filter(|side| self.sides.at(place).is_evictable(side.page, &self.steps))
                .count(),
        )
    }

    /// Pins the side pages of a hit, and puts those of the first `shared` blocks into the row.
    pub(super) fn stand_on_sides(&mut self, row: Row, pages: &[SidePage], hit: u32, shared: u32) {
        let (first, full) = (row.at() * self.pools.len(), self.classes.full());
        for (window, rule) in self.classes.windows().iter().enumerate() {
            let row_pages = &mut self.tables[first + full + window].pages;
            row_pages.resize(shared as usize, PAGE_ZERO);
            let live = rule.kept.live(hit.into(), 0);
            self.windows[row.at() * self.promised_windows.len() + window] = WindowRow {
                start: at_most(live.start, u32::MAX),
                ..WindowRow::default()
            };
        }
        for side in pages {
            self.sides.at_mut(side.place).pin(side.page, &self.steps);
            self.sides.at_mut(side.place).want(side.page);
            if side.ordinal < shared && side.place < self.classes.columns() {
                let window = side.place - full;
                self.tables[first + side.place].pages[side.ordinal as usize] = side.page;
                self.windows[row.at() * self.promised_windows.len() + window].pages += 1;
            }
        }
    }

    /// Lets a new row go on with a parent's windows; the pages of the first `shared` columns are there.
    pub(super) fn continue_windows(&mut self, parent: Row, row: Row, shared: u32) {
        let windows = self.promised_windows.len();
        for window in 0..windows {
            let place = self.classes.full() + window;
            let pages = &self.pages_of(row, place)[..shared as usize];
            let held = pages.iter().filter(|&&page| page != PAGE_ZERO).count();
            self.windows[row.at() * windows + window] = WindowRow {
                start: self.windows[parent.at() * windows + window].start,
                pages: crate::ids::count(held),
                ..WindowRow::default()
            };
        }
    }

    /// Lets go of the side pages of a copy.
    pub(super) fn unpin_sides(&mut self, copy: &PendingCopy) {
        for &(place, page) in &copy.sides {
            self.sides.at_mut(place).unpin(page, &self.steps);
        }
    }

    /// Whether a history leaves pages of any window behind. Most steps do not.
    #[inline]
    pub(super) fn leaves_pages(&self, row: Row, history: u32) -> bool {
        let windows = self.promised_windows.len();
        if windows == 0 {
            return false;
        }
        let states = &self.windows[row.at() * windows..][..windows];
        states.iter().any(|state| history > state.steady_until)
    }

    /// Gives up the pages of windows that the history of a sequence has left behind.
    pub(super) fn prune(&mut self, row: Row) {
        let windows = self.classes.windows().len();
        let history = self.sequences[row.at()].history().into();
        for window in 0..windows {
            let rule = self.classes.windows()[window].kept;
            let live = rule.live(history, 0);
            let state = &mut self.windows[row.at() * windows + window];
            state.steady_until = at_most(rule.steady_until(history), u32::MAX);
            let start = at_most(live.start, u32::MAX);
            let from = state.start.max(at_most(live.sinks, u32::MAX));
            state.start = state.start.max(start);
            self.leave_window(row, window, from, start);
        }
        self.renew_window_promises(row);
    }

    /// Gives up the pages of a window in columns `from .. to`.
    pub(super) fn leave_window(&mut self, row: Row, window: usize, from: u32, to: u32) {
        let place = self.classes.full() + window;
        let published = self.sequences[row.at()].published;
        let stamp = self.steps.stamp();
        let table = row.at() * self.pools.len() + place;
        let to = to.min(crate::ids::count(self.tables[table].pages.len()));
        for column in from..to {
            let entry = &mut self.tables[table].pages[column as usize];
            let page = std::mem::replace(entry, PAGE_ZERO);
            if page == PAGE_ZERO {
                continue;
            }
            if column < published {
                self.sides.at_mut(place).unpin(page, &self.steps);
            } else {
                self.pools[place].give_back(std::iter::once(page), stamp, &self.steps);
            }
            self.windows[row.at() * self.promised_windows.len() + window].pages -= 1;
            self.touch_at(row, place, column, column + 1);
        }
    }

    /// Forgets what a row had in windows; its pages are given up.
    pub(super) fn close_windows(&mut self, row: Row) {
        let windows = self.promised_windows.len();
        for window in 0..windows {
            let state = std::mem::take(&mut self.windows[row.at() * windows + window]);
            self.promised_windows[window] -= u64::from(state.promise);
        }
    }

    /// Sets what a sequence is promised in each window to what follows from its blocks and pages.
    #[inline]
    pub(super) fn renew_window_promises(&mut self, row: Row) {
        if !self.promised_windows.is_empty() {
            self.renew_promises(row);
        }
    }

    fn renew_promises(&mut self, row: Row) {
        let windows = self.promised_windows.len();
        for window in 0..windows {
            let seq = &self.sequences[row.at()];
            let left = seq.prompt_blocks.saturating_sub(seq.held);
            let state = &mut self.windows[row.at() * windows + window];
            let bound = self.classes.windows()[window].bound;
            let promise = left.min(bound.saturating_sub(state.pages));
            let before = std::mem::replace(&mut state.promise, promise);
            let sum = &mut self.promised_windows[window];
            *sum = *sum - u64::from(before) + u64::from(promise);
        }
    }

    /// Pages promised in the class at a place that is not full.
    pub(super) fn promised_at(&self, place: usize) -> u64 {
        let window = place - self.classes.full();
        self.promised_windows.get(window).copied().unwrap_or(0)
    }

    /// Gives the blocks `from .. to` of a row, which have just entered the tree, their pages in windows,
    /// pinned by the sequence.
    pub(super) fn enter_windows(&mut self, row: Row, from: u32, blocks: &[BlockId]) {
        for place in self.classes.full()..self.classes.columns() {
            let pages = &self.tables[row.at() * self.pools.len() + place].pages[from as usize..];
            for (&block, &page) in blocks.iter().zip(pages) {
                if page != PAGE_ZERO {
                    self.sides.at_mut(place).insert(block, page, 0);
                }
            }
        }
    }

    /// How many of the first `most` blocks of a node, which equal the row's from `from` on, have a page in
    /// every window where the row has one: pages of a row with less draft KV could not stand in.
    pub(super) fn stands_in(&self, row: Row, from: u32, node: NodeId, most: u32) -> u32 {
        let blocks = &self.tree.node(node).blocks()[..most as usize];
        let has_pages = |&(at, &block): &(usize, &BlockId)| {
            (self.classes.full()..self.classes.columns()).all(|place| {
                let ours = self.pages_of(row, place)[from as usize + at];
                ours == PAGE_ZERO || self.sides.at(place).page(block) != PAGE_ZERO
            })
        };
        crate::ids::count(blocks.iter().enumerate().take_while(has_pages).count())
    }

    /// Lets a row go on with the pages of equal blocks of the tree in windows, from column `from` on.
    pub(super) fn rebase_windows(&mut self, row: Row, from: u32, blocks: &[BlockId]) {
        let stamp = self.steps.stamp();
        for place in self.classes.full()..self.classes.columns() {
            let table = row.at() * self.pools.len() + place;
            let pages = &mut self.tables[table].pages[from as usize..];
            let side = self.sides.at_mut(place);
            for (&block, ours) in blocks.iter().zip(pages) {
                // A private block that has no page is behind the window, so nobody needs theirs.
                if *ours == PAGE_ZERO {
                    continue;
                }
                let theirs = side.page(block);
                if theirs == PAGE_ZERO {
                    side.insert(block, *ours, 0);
                    side.want(*ours);
                } else {
                    side.pin(theirs, &self.steps);
                    side.want(theirs);
                    let ours = std::mem::replace(ours, theirs);
                    self.pools[place].give_back(std::iter::once(ours), stamp, &self.steps);
                }
            }
        }
    }

    /// Lets go of the side pages of a row's published blocks, class by class, ascending by block.
    pub(super) fn leave_windows(&mut self, row: Row) {
        let published = self.sequences[row.at()].published as usize;
        for place in self.classes.full()..self.classes.columns() {
            let pages = &self.tables[row.at() * self.pools.len() + place].pages;
            let held = pages[..published].iter().filter(|&&page| page != PAGE_ZERO);
            let side = self.sides.at_mut(place);
            for &page in held {
                side.want(page);
                side.unpin(page, &self.steps);
            }
        }
    }
}

/// A number of blocks as the ledger counts them, cut at `most`.
pub(super) fn at_most(blocks: u64, most: u32) -> u32 {
    u32::try_from(blocks).map_or(most, |blocks| blocks.min(most))
}

//! Room: whether pages can be had, taking them for a row, and giving them back.

use crate::ids::{PAGE_ZERO, PageIndex, Row, count};
use crate::ledger::Ledger;
use crate::ledger::admit::Demand;
use crate::pool::Pool;
use crate::prefix::Store;
use crate::side::{Side, offer_side};

/// Per windowed class, which of the blocks that a row takes have a page there.
pub(super) type Filled = Vec<Vec<bool>>;

impl Ledger {
    /// Whether pages can be had in every class: the one answer about room.
    ///
    /// In a full class that is `blocks` pages for a sequence of `scope` while `protect` evictable blocks
    /// of that are not touched; without a full class, records of blocks stand for its pages. `other(place)` says both numbers of any other
    /// class; they are asked for only if there is one.
    #[inline]
    pub(super) fn has_blocks(
        &self,
        scope: i32,
        blocks: u64,
        protect: u32,
        other: impl Fn(usize) -> (u64, u32),
    ) -> bool {
        let full = self.classes.full();
        let evictable = u64::from(self.tree.evictable_for(scope) - protect);
        let has = |free: u32| blocks <= u64::from(free) + evictable;
        let fits = self.pools[..full].iter().all(|pool| has(pool.free_count()))
            && (full > 0 || !self.config.reuse || has(self.blocks.free_count()));
        fits && (full..self.pools.len()).all(|place| {
            let (pages, protect) = other(place);
            let evictable = self.sides.get(place).map_or(0, Side::evictable);
            pages <= u64::from(self.pools[place].free_count()) + u64::from(evictable - protect)
        })
    }

    /// Blocks that a sequence takes of what bounds the tree: without a full class only what is published
    /// needs records.
    #[inline]
    pub(super) fn counted(&self, blocks: u32, publishes: bool) -> u32 {
        if self.classes.full() > 0 || publishes {
            blocks
        } else {
            0
        }
    }

    /// Evicts what is missing for a sequence of `scope`: leaf blocks for `blocks` pages of every full class,
    /// then side pages for `other(place)` pages of each other class. The caller has checked that they can
    /// be had.
    pub(super) fn make_room(&mut self, scope: i32, blocks: u32, other: impl Fn(usize) -> u32) {
        let full = self.classes.full();
        let missing = if full > 0 {
            let free = self.pools[..full].iter().map(Pool::free_count);
            free.map(|free| blocks.saturating_sub(free))
                .max()
                .unwrap_or(0)
        } else {
            blocks.saturating_sub(self.blocks.free_count())
        };
        if missing > 0 {
            self.evict_blocks(scope, missing);
        }
        for place in full..self.classes.states().end {
            let missing = other(place).saturating_sub(self.pools[place].free_count());
            if missing > 0 {
                self.evict_sides(place, missing);
            }
        }
    }

    /// Evicts side pages of a class, of which there are as many, and offers them to lower tiers.
    pub(super) fn evict_sides(&mut self, place: usize, pages: u32) {
        let (tiers, blocks) = (&mut self.tiers, &self.blocks);
        let (side, pool) = (self.sides.at_mut(place), &mut self.pools[place]);
        side.evict(pages, pool, &self.steps, |block, offered| {
            if let Some(tiers) = tiers {
                offer_side(tiers, blocks, place, block, offered);
            }
        });
        self.counters.evicted_side_pages += u64::from(pages);
    }

    /// Evicts blocks for a sequence of `scope`, of which there are as many for it, and offers them to lower
    /// tiers.
    pub(super) fn evict_blocks(&mut self, scope: i32, blocks: u32) {
        let mut store = Store {
            blocks: &mut self.blocks,
            pools: &mut self.pools,
            sides: &mut self.sides,
            tiers: self.tiers.as_deref_mut(),
        };
        self.tree.evict(blocks, scope, &mut store, &self.steps);
        self.counters.evicted_blocks += u64::from(blocks);
    }

    /// Takes `need` blocks for a row, evicting what is missing. The caller has checked that they fit.
    pub(super) fn take(&mut self, row: Row, need: u32) {
        let columns = self.classes.columns();
        let seq = &self.sequences[row.at()];
        let (counted, scope) = (self.counted(need, seq.keeps_tokens), seq.scope);
        self.make_room(
            scope,
            counted,
            |place| if place < columns { need } else { 0 },
        );
        self.take_columns(row, need, None);
    }

    /// Takes the blocks of an admission, and what a sequence has from its admission to its end: a state,
    /// and the pages of cross-attention.
    pub(super) fn take_with_own(&mut self, row: Row, demand: &Demand) {
        let (full, columns, states) = (
            self.classes.full(),
            self.classes.columns(),
            self.classes.states(),
        );
        let seq = &self.sequences[row.at()];
        let (counted, scope) = (self.counted(demand.need, seq.keeps_tokens), seq.scope);
        self.make_room(scope, counted, |place| {
            if place < columns {
                demand.need_in(place - full)
            } else {
                u32::from(states.contains(&place))
            }
        });
        self.take_columns(row, demand.need, demand.filled.as_ref());
        self.take_own(row);
    }

    /// Takes the pages that do not grow; there is room for them.
    pub(super) fn take_own(&mut self, row: Row) {
        if self.classes.columns() == self.pools.len() {
            return;
        }
        let own = self.classes.states().map(|place| (place, 1));
        let own: Vec<(usize, u32)> = own.chain(self.classes.cross()).collect();
        for (place, pages) in own {
            let table = &mut self.tables[row.at() * self.pools.len() + place];
            self.pools[place].take(pages, &mut table.pages);
            self.touch_at(row, place, 0, pages);
        }
    }

    /// Takes `need` columns, for which there is room: in windows, with `filled`, only where that says so.
    pub(super) fn take_columns(&mut self, row: Row, need: u32, filled: Option<&Filled>) {
        let (full, places) = (self.classes.full(), self.pools.len());
        let first = row.at() * places;
        for (place, pool) in self.pools[..full].iter_mut().enumerate() {
            pool.take(need, &mut self.tables[first + place].pages);
        }
        let had = self.sequences[row.at()].held;
        for (window, place) in (full..self.classes.columns()).enumerate() {
            let pool = &mut self.pools[place];
            let mine = &mut self.tables[first + place].pages;
            let taken = if let Some(filled) = filled {
                let filled = &filled[window];
                let taken = count(filled.iter().filter(|&&has_page| has_page).count());
                let mut pages = Vec::with_capacity(taken as usize);
                pool.take(taken, &mut pages);
                let mut pages = pages.into_iter();
                mine.extend(filled.iter().map(|&has_page| {
                    if has_page {
                        pages.next().expect("as many were taken")
                    } else {
                        PAGE_ZERO
                    }
                }));
                taken
            } else {
                pool.take(need, mine);
                need
            };
            self.windows[row.at() * self.promised_windows.len() + window].pages += taken;
        }
        let seq = &mut self.sequences[row.at()];
        if seq.keeps_tokens {
            self.blocks.take(need, &mut seq.blocks);
        }
        let promise = seq.promise();
        seq.held += need;
        self.promised -= u64::from(promise - seq.promise());
        self.renew_window_promises(row);
        self.touch(row, had, had + need);
    }

    /// Gives back the blocks of a row from ordinal `from` on, which must be private.
    pub(super) fn give_back_from(&mut self, row: Row, from: u32) {
        let (full, first) = (self.classes.full(), row.at() * self.pools.len());
        let stamp = self.steps.stamp();
        for (place, pool) in self.pools[..full].iter_mut().enumerate() {
            let pages: &mut Vec<PageIndex> = &mut self.tables[first + place].pages;
            pool.give_back(pages.drain(from as usize..), stamp, &self.steps);
        }
        for (window, place) in (full..self.classes.columns()).enumerate() {
            let pages = &mut self.tables[first + place].pages;
            let gone: Vec<PageIndex> = pages.drain(from as usize..).collect();
            let gone: Vec<PageIndex> = gone.into_iter().filter(|&page| page != PAGE_ZERO).collect();
            self.windows[row.at() * self.promised_windows.len() + window].pages -=
                count(gone.len());
            self.pools[place].give_back(gone.into_iter(), stamp, &self.steps);
        }
        let seq = &mut self.sequences[row.at()];
        let promise = seq.promise();
        let had = std::mem::replace(&mut seq.held, from);
        self.promised += u64::from(seq.promise() - promise);
        if seq.keeps_tokens {
            let kept = (from - seq.published) as usize;
            self.blocks.give_back(seq.blocks.drain(kept..));
        }
        self.renew_window_promises(row);
        self.touch(row, from, had);
    }
}

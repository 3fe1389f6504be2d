//! Side pages: pages of tree blocks in classes that do not keep every block.
//!
//! They stand beside the tree, in tables per class addressed by block record and by page, so that
//! nodes split and merge without touching them and one of them is pinned, unpinned, evicted or handed
//! to another block in constant time (`docs/decisions/`). Pages that nothing pins form a queue, a list
//! linked by page numbers: a page joins its end, stamped with the newest step, when its last pin goes.
//! So stamps never fall along the queue, and those whose fence has passed are its beginning.

use std::collections::VecDeque;

use crate::ids::{BlockId, PAGE_ZERO, PageIndex};
use crate::pool::Pool;
use crate::steps::Steps;

/// One page that may belong to a tree block.
#[derive(Debug, Clone, Copy)]
struct Entry {
    block: BlockId,
    /// Open sequences that hold it and copies in flight that use it. With none it is in the queue.
    pins: u32,
    /// Neighbours in the queue; page 0, which belongs to no block, stands at both ends.
    before: PageIndex,
    after: PageIndex,
    /// The newest step begun when the last pin went.
    stamp: u64,
    /// Tokens that a snapshot was taken after, counted from the start of its block.
    covered: u32,
    /// Whether a later item of the running call counts on it.
    claimed: bool,
}

const VACANT: Entry = Entry {
    block: BlockId::new(u32::MAX),
    pins: 0,
    before: PAGE_ZERO,
    after: PAGE_ZERO,
    stamp: 0,
    covered: 0,
    claimed: false,
};

/// A side page as [`crate::ledger::Dump`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideDump {
    /// The page.
    pub page: u32,
    /// What pins it; 0: it is in the queue.
    pub pins: u32,
    /// The newest step begun when its last pin went.
    pub stamp: u64,
    /// Tokens that a snapshot was taken after, counted from the start of its block; 0 in a window.
    pub covered: u32,
}

/// The side pages of one class.
#[derive(Debug)]
pub(crate) struct Side {
    /// The page of each block record; page 0 where it has none.
    page_of: Vec<PageIndex>,
    /// By page. The entry of page 0 is the beginning and the end of the queue.
    entries: Vec<Entry>,
    /// Whether the pages are snapshots of states, taken after `covered` tokens of their block.
    snapshots: bool,
    /// Pages of blocks.
    cached: u32,
    /// Pages in the queue whose fence has passed.
    evictable: u32,
    /// Pages in the queue by stamp, oldest first, for stamps whose fence has not passed.
    waiting: VecDeque<(u64, u32)>,
    /// Pages whose `claimed` is set.
    claims: Vec<PageIndex>,
}

impl Side {
    /// No page of `pages` belongs to a block; blocks have the numbers `0 .. records`.
    pub(crate) fn new(pages: u32, records: u32, snapshots: bool) -> Self {
        let pages = if records > 0 { pages as usize } else { 1 };
        Self {
            page_of: vec![PAGE_ZERO; records as usize],
            entries: vec![VACANT; pages],
            snapshots,
            cached: 0,
            evictable: 0,
            waiting: VecDeque::new(),
            claims: Vec::new(),
        }
    }

    /// The page of a block, page 0 if it has none.
    #[inline]
    pub(crate) fn page(&self, block: BlockId) -> PageIndex {
        self.page_of[block.at()]
    }

    /// Tokens that the snapshot on a page was taken after.
    pub(crate) fn covered(&self, page: PageIndex) -> u32 {
        self.entries[page.at()].covered
    }

    pub(crate) fn is_pinned(&self, page: PageIndex) -> bool {
        self.entries[page.at()].pins > 0
    }

    /// Whether an allocation may evict a page of a block now.
    pub(crate) fn is_evictable(&self, page: PageIndex, steps: &Steps) -> bool {
        let entry = &self.entries[page.at()];
        entry.pins == 0 && steps.passed(entry.stamp)
    }

    pub(crate) fn evictable(&self) -> u32 {
        self.evictable
    }

    pub(crate) fn cached(&self) -> u32 {
        self.cached
    }

    /// Pages in the queue whose fence has not passed.
    pub(crate) fn waiting_total(&self) -> u32 {
        self.waiting.iter().map(|&(_, pages)| pages).sum()
    }

    /// Gives a block, which has none, a page with one pin.
    pub(crate) fn insert(&mut self, block: BlockId, page: PageIndex, covered: u32) {
        debug_assert!(self.page(block) == PAGE_ZERO && page != PAGE_ZERO);
        self.page_of[block.at()] = page;
        self.entries[page.at()] = Entry {
            block,
            pins: 1,
            covered,
            ..VACANT
        };
        self.cached += 1;
    }

    pub(crate) fn pin(&mut self, page: PageIndex, steps: &Steps) {
        if self.entries[page.at()].pins == 0 {
            self.leave_queue(page, steps);
        }
        self.entries[page.at()].pins += 1;
    }

    /// Takes one pin away; with the last one the page joins the end of the queue.
    pub(crate) fn unpin(&mut self, page: PageIndex, steps: &Steps) {
        let last = self.entries[0].before;
        let entry = &mut self.entries[page.at()];
        entry.pins -= 1;
        if entry.pins > 0 {
            return;
        }
        let stamp = steps.stamp();
        (entry.before, entry.after, entry.stamp) = (last, PAGE_ZERO, stamp);
        self.entries[last.at()].after = page;
        self.entries[0].before = page;
        if steps.passed(stamp) {
            self.evictable += 1;
            return;
        }
        match self.waiting.back_mut() {
            Some((newest, pages)) if *newest == stamp => *pages += 1,
            _ => self.waiting.push_back((stamp, 1)),
        }
    }

    fn leave_queue(&mut self, page: PageIndex, steps: &Steps) {
        let Entry {
            before,
            after,
            stamp,
            ..
        } = self.entries[page.at()];
        self.entries[before.at()].after = after;
        self.entries[after.at()].before = before;
        if steps.passed(stamp) {
            self.evictable -= 1;
            return;
        }
        let bucket = self
            .waiting
            .binary_search_by_key(&stamp, |&(stamp, _)| stamp);
        self.waiting[bucket.expect("an unfenced stamp has a bucket")].1 -= 1;
    }

    /// Takes an unpinned page from its block and returns its stamp.
    pub(crate) fn remove(&mut self, page: PageIndex, steps: &Steps) -> u64 {
        debug_assert!(!self.is_pinned(page));
        self.leave_queue(page, steps);
        let Entry { block, stamp, .. } = std::mem::replace(&mut self.entries[page.at()], VACANT);
        self.page_of[block.at()] = PAGE_ZERO;
        self.cached -= 1;
        stamp
    }

    /// Hands the page of one block to another, which has none; its place in the queue stays.
    pub(crate) fn hand_over(&mut self, from: BlockId, to: BlockId) {
        let page = std::mem::replace(&mut self.page_of[from.at()], PAGE_ZERO);
        debug_assert!(page != PAGE_ZERO && self.page(to) == PAGE_ZERO);
        self.page_of[to.at()] = page;
        self.entries[page.at()].block = to;
    }

    /// Counts pages whose fence has passed as evictable.
    pub(crate) fn release_fenced(&mut self, steps: &Steps) {
        while let Some(&(stamp, pages)) = self.waiting.front() {
            if !steps.passed(stamp) {
                break;
            }
            self.evictable += pages;
            self.waiting.pop_front();
        }
    }

    /// Marks a page to be evicted only after those that are not marked.
    pub(crate) fn claim(&mut self, page: PageIndex) {
        let entry = &mut self.entries[page.at()];
        if !entry.claimed {
            entry.claimed = true;
            self.claims.push(page);
        }
    }

    /// Forgets all claims. A claimed page may have been evicted, and its entry is vacant then.
    pub(crate) fn end_claims(&mut self) {
        for page in self.claims.drain(..) {
            self.entries[page.at()].claimed = false;
        }
    }

    /// Evicts `needed` pages into the pool: the first of the queue that are not claimed, then the first
    /// that are. The caller has checked that as many are evictable.
    pub(crate) fn evict(&mut self, needed: u32, pool: &mut Pool, steps: &Steps) {
        debug_assert!(needed <= self.evictable);
        let mut left = needed;
        for claimed in [false, true] {
            let mut page = self.entries[0].after;
            while left > 0 && page != PAGE_ZERO && self.is_evictable(page, steps) {
                let entry = self.entries[page.at()];
                if entry.claimed == claimed {
                    self.remove(page, steps);
                    pool.give_back_free(std::iter::once(page));
                    left -= 1;
                }
                page = entry.after;
            }
        }
        assert!(left == 0, "pages are evicted only after they were counted");
    }

    /// Pages in the queue, in order.
    pub(crate) fn queue(&self) -> impl Iterator<Item = PageIndex> + '_ {
        let next = |&page: &PageIndex| Some(self.entries[page.at()].after);
        let pages = std::iter::successors(next(&PAGE_ZERO), next);
        pages.take_while(|&page| page != PAGE_ZERO)
    }

    /// All pages of blocks: those in the queue in its order, then the pinned ones.
    pub(crate) fn dump(&self) -> Vec<SideDump> {
        let pinned = (0..crate::ids::count(self.entries.len()))
            .map(PageIndex::new)
            .filter(|&page| self.is_pinned(page));
        let dump = |page: PageIndex| {
            let entry = &self.entries[page.at()];
            SideDump {
                page: page.get(),
                pins: entry.pins,
                stamp: entry.stamp,
                covered: entry.covered,
            }
        };
        self.queue().chain(pinned).map(dump).collect()
    }

    /// Checks that both tables, the queue and the counts agree.
    pub(crate) fn validate(&self, steps: &Steps) {
        assert!(self.claims.is_empty(), "claims end with the call");
        let owned = self.page_of.iter().enumerate();
        let mut pages = 0;
        for (block, page) in owned.filter(|&(_, &page)| page != PAGE_ZERO) {
            let entry = &self.entries[page.at()];
            assert_eq!(entry.block.at(), block, "{page:?} belongs to another block");
            assert!(!entry.claimed);
            pages += 1;
        }
        assert_eq!(self.cached, pages);
        let queue: Vec<PageIndex> = self.queue().collect();
        let pinned = self.entries.iter().filter(|entry| entry.pins > 0).count();
        assert_eq!(
            queue.len() + pinned,
            pages as usize,
            "unpinned pages are in the queue"
        );
        let stamps = queue.iter().map(|page| self.entries[page.at()].stamp);
        assert!(stamps.clone().is_sorted(), "the queue is ordered by stamp");
        let passed = stamps.filter(|&stamp| steps.passed(stamp)).count();
        assert_eq!(self.evictable as usize, passed);
        let waiting: u32 = self.waiting.iter().map(|&(_, pages)| pages).sum();
        assert_eq!(waiting as usize, queue.len() - passed);
    }
}

/// The side pages of all classes that have some: those at the places from `first` on.
#[derive(Debug)]
pub(crate) struct Sides {
    first: usize,
    all: Vec<Side>,
}

impl Sides {
    pub(crate) fn new(first: usize, all: Vec<Side>) -> Self {
        Self { first, all }
    }

    /// The class at a place, which must be one of a window or state.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> &Side {
        &self.all[place - self.first]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: usize) -> &mut Side {
        &mut self.all[place - self.first]
    }

    /// The class at a place, if it has side pages.
    pub(crate) fn get(&self, place: usize) -> Option<&Side> {
        self.all.get(place.checked_sub(self.first)?)
    }

    /// The classes with their places.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Side)> {
        let first = self.first;
        self.all
            .iter()
            .enumerate()
            .map(move |(at, side)| (first + at, side))
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Side)> {
        let first = self.first;
        self.all
            .iter_mut()
            .enumerate()
            .map(move |(at, side)| (first + at, side))
    }

    pub(crate) fn end_claims(&mut self) {
        for side in &mut self.all {
            side.end_claims();
        }
    }

    /// Takes the side pages of blocks that leave the tree by eviction: they are free at once.
    #[inline]
    pub(crate) fn evict_blocks(&mut self, blocks: &[BlockId], pools: &mut [Pool], steps: &Steps) {
        for (place, side) in self.iter_mut() {
            for &block in blocks.iter().rev() {
                let page = side.page(block);
                if page != PAGE_ZERO {
                    side.remove(page, steps);
                    pools[place].give_back_free(std::iter::once(page));
                }
            }
        }
    }

    /// Gives up the side pages of blocks that leave the tree for another reason than eviction.
    pub(crate) fn drop_blocks(&mut self, blocks: &[BlockId], pools: &mut [Pool], steps: &Steps) {
        for (place, side) in self.iter_mut() {
            for &block in blocks {
                let page = side.page(block);
                if page != PAGE_ZERO {
                    side.give_up(page, &mut pools[place], steps);
                }
            }
        }
    }

    /// Gives up the side pages of a block that makes room for `heir`, which begins with its tokens and
    /// gets its snapshots where it has none after more.
    pub(crate) fn pass_on(
        &mut self,
        block: BlockId,
        heir: BlockId,
        pools: &mut [Pool],
        steps: &Steps,
    ) {
        for (place, side) in self.iter_mut() {
            let page = side.page(block);
            if page == PAGE_ZERO {
                continue;
            }
            let pool = &mut pools[place];
            // One after as many tokens makes way too: the draft-valid block is dropped last.
            if side.snapshots && side.make_way(heir, side.covered(page) + 1, pool, steps) {
                side.hand_over(block, heir);
            } else {
                side.give_up(page, pool, steps);
            }
        }
    }
}

impl Side {
    /// Makes room for a snapshot after `covered` tokens of a block: one after fewer is given up. Whether
    /// there is room; a pinned snapshot stays, and so does one after as many tokens.
    pub(crate) fn make_way(
        &mut self,
        block: BlockId,
        covered: u32,
        pool: &mut Pool,
        steps: &Steps,
    ) -> bool {
        let page = self.page(block);
        if page == PAGE_ZERO {
            return true;
        }
        if self.is_pinned(page) || self.covered(page) >= covered {
            return false;
        }
        self.give_up(page, pool, steps);
        true
    }

    /// Gives an unpinned page up: it is free if its fence has passed, else fenced by the newest step.
    pub(crate) fn give_up(&mut self, page: PageIndex, pool: &mut Pool, steps: &Steps) {
        let stamp = self.remove(page, steps);
        let pages = std::iter::once(page);
        if steps.passed(stamp) {
            pool.give_back_free(pages);
        } else {
            pool.give_back(pages, steps.stamp(), steps);
        }
    }
}

//! Side pages: pages of tree blocks in classes that do not keep every block.
//!
//! They stand beside the tree, in tables per class addressed by block record and by page, so that nodes
//! split and merge without touching them and one of them is pinned, unpinned, evicted or handed to another
//! block in constant time (decision 013). Pages that nothing pins form two queues, lists linked by page
//! numbers: those that one sequence left behind as it went on, and those that are wanted: a prompt began or
//! a sequence ended there, or a second one computed the same. A page joins the end of one, stamped with the
//! newest step, when its last pin goes. So stamps never fall along a queue, and those whose fence has
//! passed are its beginning.
#![allow(clippy::similar_names, reason = "a shelf is not self")]

use std::collections::VecDeque;

use crate::blocks::Blocks;
use crate::ids::{BlockId, PAGE_ZERO, PageIndex};
use crate::pool::Pool;
use crate::steps::Steps;
use crate::tiers::{Tiers, Value};

/// One page that may belong to a tree block.
#[derive(Debug, Clone, Copy)]
struct Entry {
    block: BlockId,
    /// Open sequences that hold it and copies in flight that use it. With none it is in the queue.
    pins: u32,
    /// Neighbours in its queue; the queue's anchor stands at both ends.
    before: PageIndex,
    after: PageIndex,
    /// The newest step begun when the last pin went.
    stamp: u64,
    /// Tokens that a snapshot was taken after, counted from the start of its block.
    covered: u32,
    /// Whether a later item of the running call counts on it.
    claimed: bool,
    /// Whether a prompt began or a sequence ended with it, or a second one computed it.
    wanted: bool,
}

const VACANT: Entry = Entry {
    block: BlockId::new(u32::MAX),
    pins: 0,
    before: PAGE_ZERO,
    after: PAGE_ZERO,
    stamp: 0,
    covered: 0,
    claimed: false,
    wanted: false,
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
    /// Whether a prompt began or a sequence ended with it, or a second one computed it.
    pub wanted: bool,
}

/// The side pages of one class.
#[derive(Debug)]
pub(crate) struct Side {
    /// The page of each block record; page 0 where it has none.
    page_of: Vec<PageIndex>,
    /// By page. The entry of page 0 is the anchor of the queue of ends, and one more after the last
    /// page that of the pages left behind.
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
        let pages = if records > 0 { pages } else { 1 };
        let mut entries = vec![VACANT; pages as usize + 1];
        let behind = PageIndex::new(pages);
        entries[behind.at()] = Entry {
            before: behind,
            after: behind,
            ..VACANT
        };
        Self {
            page_of: vec![PAGE_ZERO; records as usize],
            entries,
            snapshots,
            cached: 0,
            evictable: 0,
            waiting: VecDeque::new(),
            claims: Vec::new(),
        }
    }

    /// Changes the number of pages and records; `to` says where a page has gone.
    pub(crate) fn resize(&mut self, pages: u32, records: u32, to: impl Fn(PageIndex) -> PageIndex) {
        if self.page_of.is_empty() {
            return;
        }
        let renamed = |behind| self.queue(behind).map(&to).collect::<Vec<_>>();
        let queues = [(true, renamed(true)), (false, renamed(false))];
        self.page_of.resize(records as usize, PAGE_ZERO);
        let mut entries = vec![VACANT; pages as usize + 1];
        for page in self.page_of.iter_mut().filter(|page| **page != PAGE_ZERO) {
            let from = std::mem::replace(page, to(*page));
            entries[page.at()] = self.entries[from.at()];
        }
        self.entries = entries;
        for (behind, queue) in queues {
            let anchor = self.anchor(behind);
            let mut before = anchor;
            for page in queue {
                self.entries[before.at()].after = page;
                self.entries[page.at()].before = before;
                before = page;
            }
            self.entries[before.at()].after = anchor;
            self.entries[anchor.at()].before = before;
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

    /// What pins a page: sequences and copies.
    pub(crate) fn pins(&self, page: PageIndex) -> u32 {
        self.entries[page.at()].pins
    }

    pub(crate) fn is_pinned(&self, page: PageIndex) -> bool {
        self.pins(page) > 0
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

    /// The anchor of a queue.
    fn anchor(&self, behind: bool) -> PageIndex {
        if behind {
            PageIndex::new(crate::ids::count(self.entries.len()) - 1)
        } else {
            PAGE_ZERO
        }
    }

    /// Notes that a pinned page is worth more than those that one sequence passed by.
    pub(crate) fn want(&mut self, page: PageIndex) {
        debug_assert!(self.is_pinned(page));
        self.entries[page.at()].wanted = true;
    }

    /// Takes one pin away; with the last one the page joins the end of a queue: if nobody wants it, that
    /// of pages left behind.
    pub(crate) fn unpin(&mut self, page: PageIndex, steps: &Steps) {
        let anchor = self.anchor(!self.entries[page.at()].wanted);
        let last = self.entries[anchor.at()].before;
        let entry = &mut self.entries[page.at()];
        entry.pins -= 1;
        if entry.pins > 0 {
            return;
        }
        let stamp = steps.stamp();
        (entry.before, entry.after, entry.stamp) = (last, anchor, stamp);
        self.entries[last.at()].after = page;
        self.entries[anchor.at()].before = page;
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

    /// Takes a page that sequences hold from its block and makes it theirs alone; says whether it was
    /// there.
    pub(crate) fn detach(&mut self, page: PageIndex) -> bool {
        let Entry { block, pins, .. } = std::mem::replace(&mut self.entries[page.at()], VACANT);
        if pins == 0 {
            return false;
        }
        self.page_of[block.at()] = PAGE_ZERO;
        self.cached -= 1;
        true
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

    /// Evicts `needed` pages into the pool: the first that were left behind, then the first ends, and
    /// what is claimed after all others. The caller has checked that as many are evictable.
    pub(crate) fn evict(
        &mut self,
        needed: u32,
        pool: &mut Pool,
        steps: &Steps,
        mut offer: impl FnMut(BlockId, Offered),
    ) {
        debug_assert!(needed <= self.evictable);
        let mut left = needed;
        for (claimed, behind) in [(false, true), (false, false), (true, true), (true, false)] {
            let anchor = self.anchor(behind);
            let mut page = self.entries[anchor.at()].after;
            while left > 0 && page != anchor && self.is_evictable(page, steps) {
                let entry = self.entries[page.at()];
                if entry.claimed == claimed {
                    offer(entry.block, self.offered(page));
                    self.remove(page, steps);
                    pool.give_back_free(std::iter::once(page));
                    left -= 1;
                }
                page = entry.after;
            }
        }
        assert!(left == 0, "pages are evicted only after they were counted");
    }

    /// What lower tiers want to know of a page.
    fn offered(&self, page: PageIndex) -> Offered {
        let entry = &self.entries[page.at()];
        Offered {
            page,
            covered: if self.snapshots {
                entry.covered
            } else {
                u32::MAX
            },
            wanted: entry.wanted,
        }
    }

    /// Pages in a queue, in order.
    fn queue(&self, behind: bool) -> impl Iterator<Item = PageIndex> + '_ {
        let anchor = self.anchor(behind);
        let next = |&page: &PageIndex| Some(self.entries[page.at()].after);
        let pages = std::iter::successors(next(&anchor), next);
        pages.take_while(move |&page| page != anchor)
    }

    /// All pages of blocks: those left behind and the ends, in the order of their queues, then the pinned
    /// ones.
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
                wanted: entry.wanted,
            }
        };
        let queues = self.queue(true).chain(self.queue(false));
        queues.chain(pinned).map(dump).collect()
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
        let pinned = self.entries.iter().filter(|entry| entry.pins > 0).count();
        let (mut queued, mut passed) = (0, 0);
        for behind in [true, false] {
            let queue: Vec<&Entry> = self
                .queue(behind)
                .map(|page| &self.entries[page.at()])
                .collect();
            let stamps = queue.iter().map(|entry| entry.stamp);
            assert!(stamps.clone().is_sorted(), "a queue is ordered by stamp");
            assert!(queue.iter().all(|entry| entry.wanted != behind));
            queued += queue.len();
            passed += stamps.filter(|&stamp| steps.passed(stamp)).count();
        }
        assert_eq!(queued + pinned, pages as usize, "unpinned pages are queued");
        assert_eq!(self.evictable as usize, passed);
        assert_eq!(self.waiting_total() as usize, queued - passed);
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
    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Side> {
        self.all.get_mut(place.checked_sub(self.first)?)
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

    /// Offers the side pages of a full block that is evicted to lower tiers, class by class.
    pub(crate) fn offer(&self, block: BlockId, records: &Blocks, tiers: &mut Tiers, steps: &Steps) {
        for (at, side) in self.all.iter().enumerate() {
            let page = side.page(block);
            if page != PAGE_ZERO && side.is_evictable(page, steps) {
                offer_side(tiers, records, self.first + at, block, side.offered(page));
            }
        }
    }

    /// Takes the side pages of blocks that leave the tree by eviction. Their own fence decides: a
    /// snapshot may have been left on a block that nobody stood on.
    #[inline]
    pub(crate) fn evict_blocks(&mut self, blocks: &[BlockId], pools: &mut [Pool], steps: &Steps) {
        for (place, side) in self.iter_mut() {
            for &block in blocks.iter().rev() {
                let page = side.page(block);
                if page != PAGE_ZERO {
                    let stamp = side.remove(page, steps);
                    pools[place].give_back_stamped(page, stamp, steps);
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
    /// gets its snapshots where it has none after more, if both are `alike` in their draft KV.
    pub(crate) fn pass_on(
        &mut self,
        block: BlockId,
        heir: BlockId,
        alike: bool,
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
            if alike && side.snapshots && side.make_way(heir, side.covered(page) + 1, pool, steps) {
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

/// A side page that leaves the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offered {
    page: PageIndex,
    /// Tokens of its block that it stands for: all of them in a window.
    covered: u32,
    wanted: bool,
}

/// Offers the side page of a full block that leaves the device to lower tiers.
pub(crate) fn offer_side(
    tiers: &mut Tiers,
    blocks: &Blocks,
    place: usize,
    block: BlockId,
    offered: Offered,
) {
    // A snapshot inside a block could only be found with its tokens.
    if (offered.covered as usize) < blocks.tokens_per_block() {
        return;
    }
    if let (Some(key), Some(shelf)) = (blocks.tier_key(block), tiers.shelf_of(place)) {
        // What one sequence left behind goes first there too.
        let value = Value {
            priority: u8::from(offered.wanted),
            ..Value::default()
        };
        tiers.offer(shelf, (key, None), value, std::iter::once(offered.page));
    }
}

#[cfg(test)]
mod tests;

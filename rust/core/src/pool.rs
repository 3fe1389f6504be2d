//! The pages of one class on the device: a free list and a queue of fenced pages.

use std::collections::VecDeque;

use crate::ids::{PageIndex, count};
use crate::steps::Steps;

/// Free and fenced pages of one class. Every other page belongs to a sequence or to the tree.
#[derive(Debug)]
pub(crate) struct Pool {
    num_pages: u32,
    /// A stack: the last page is handed out first.
    free: Vec<PageIndex>,
    /// Pages given up, with their stamps. Stamps never fall from front to back, since a page is
    /// stamped with the newest step when it enters.
    fenced: VecDeque<(u64, PageIndex)>,
    /// Owners beyond the first, by page. Without forks that share private pages it stays empty.
    shares: Vec<u32>,
    /// Sum of `shares`; 0 on nearly every path that gives pages back.
    shared: u64,
}

impl Pool {
    /// A pool of `num_pages` pages, page 0 reserved, all others free.
    pub(crate) fn new(num_pages: u32) -> Self {
        Self {
            num_pages,
            free: (1..num_pages).rev().map(PageIndex::new).collect(),
            fenced: VecDeque::new(),
            shares: Vec::new(),
            shared: 0,
        }
    }

    pub(crate) fn num_pages(&self) -> u32 {
        self.num_pages
    }

    #[inline]
    pub(crate) fn free_count(&self) -> u32 {
        count(self.free.len())
    }

    pub(crate) fn fenced_count(&self) -> u32 {
        count(self.fenced.len())
    }

    pub(crate) fn free_list(&self) -> &[PageIndex] {
        &self.free
    }

    pub(crate) fn fenced(&self) -> impl Iterator<Item = (u64, PageIndex)> + '_ {
        self.fenced.iter().copied()
    }

    /// Appends `needed` free pages to `out`; the caller has checked that there are as many.
    #[inline]
    pub(crate) fn take(&mut self, needed: u32, out: &mut Vec<PageIndex>) {
        // Growth by one block is what decode steps do.
        if needed == 1
            && let Some(page) = self.free.pop()
        {
            out.push(page);
            return;
        }
        let left = self
            .free
            .len()
            .checked_sub(needed as usize)
            .expect("pages are taken only after they were counted");
        out.extend(self.free.drain(left..).rev());
    }

    /// Gives pages of a sequence, which nobody else may write, another owner.
    pub(crate) fn share(&mut self, pages: &[PageIndex]) {
        if pages.is_empty() {
            return;
        }
        if self.shares.is_empty() {
            self.shares = vec![0; self.num_pages as usize];
        }
        for page in pages {
            self.shares[page.at()] += 1;
        }
        self.shared += pages.len() as u64;
    }

    /// Owners of a page beyond the first.
    pub(crate) fn shares_of(&self, page: PageIndex) -> u32 {
        self.shares.get(page.at()).copied().unwrap_or(0)
    }

    /// Owners beyond the first, of all pages.
    pub(crate) fn shared(&self) -> u64 {
        self.shared
    }

    /// Takes one owner away; whether it was the last.
    fn leave(&mut self, page: PageIndex) -> bool {
        let others = &mut self.shares[page.at()];
        let last = *others == 0;
        *others = others.saturating_sub(1);
        self.shared -= u64::from(!last);
        last
    }

    /// Takes back pages that their owner leaves but that a step up to `stamp` may still touch. Those
    /// with other owners stay theirs.
    pub(crate) fn give_back(
        &mut self,
        pages: impl DoubleEndedIterator<Item = PageIndex>,
        stamp: u64,
        steps: &Steps,
    ) {
        if self.shared == 0 {
            self.give_up(pages, stamp, steps);
            return;
        }
        let left: Vec<PageIndex> = pages.filter(|&page| self.leave(page)).collect();
        self.give_up(left.into_iter(), stamp, steps);
    }

    fn give_up(
        &mut self,
        pages: impl DoubleEndedIterator<Item = PageIndex>,
        stamp: u64,
        steps: &Steps,
    ) {
        if steps.passed(stamp) {
            // Reversed, so that the next sequence gets them in the same order.
            self.free.extend(pages.rev());
        } else {
            self.fenced.extend(pages.map(|page| (stamp, page)));
        }
    }

    /// Takes back one page by its own stamp, which may be older than that of pages already fenced.
    pub(crate) fn give_back_stamped(&mut self, page: PageIndex, stamp: u64, steps: &Steps) {
        if steps.passed(stamp) {
            self.free.push(page);
            return;
        }
        let at = self.fenced.partition_point(|&(other, _)| other <= stamp);
        self.fenced.insert(at, (stamp, page));
    }

    /// Takes back pages whose fence has passed.
    #[inline]
    pub(crate) fn give_back_free(&mut self, pages: impl DoubleEndedIterator<Item = PageIndex>) {
        self.free.extend(pages.rev());
    }

    /// Changes the number of pages; none is fenced, and no more are owned than there will be. Owned pages
    /// beyond the end go to the lowest free ones: returns (source, destination), ascending.
    pub(crate) fn resize(&mut self, num_pages: u32) -> Vec<(PageIndex, PageIndex)> {
        debug_assert!(self.fenced.is_empty());
        let old = std::mem::replace(&mut self.num_pages, num_pages);
        if !self.shares.is_empty() && num_pages > old {
            self.shares.resize(num_pages as usize, 0);
        }
        if num_pages >= old {
            // Under those that are free already, which are taken first.
            let new = (old..num_pages).rev().map(PageIndex::new);
            self.free.splice(..0, new);
            return Vec::new();
        }
        let mut is_free = vec![false; old as usize];
        for page in &self.free {
            is_free[page.at()] = true;
        }
        let mut room = (1..num_pages).filter(|&page| is_free[page as usize]);
        let owned = (num_pages..old).filter(|&page| !is_free[page as usize]);
        let moved: Vec<(PageIndex, PageIndex)> = owned
            .map(|page| {
                let to = room
                    .next()
                    .expect("as many are free as own a page beyond the end");
                (PageIndex::new(page), PageIndex::new(to))
            })
            .collect();
        for &(from, to) in &moved {
            is_free[to.at()] = false;
            if !self.shares.is_empty() {
                self.shares.swap(from.at(), to.at());
            }
        }
        self.shares.truncate(num_pages as usize);
        self.free
            .retain(|page| page.get() < num_pages && is_free[page.at()]);
        moved
    }

    /// Frees the pages whose fence has passed.
    pub(crate) fn release_fenced(&mut self, steps: &Steps) {
        while let Some(&(stamp, page)) = self.fenced.front() {
            if !steps.passed(stamp) {
                break;
            }
            self.free.push(page);
            self.fenced.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_order_and_page_zero_never() {
        let mut pool = Pool::new(5);
        let mut row = Vec::new();
        pool.take(4, &mut row);
        assert_eq!(
            row.iter().map(|page| page.get()).collect::<Vec<_>>(),
            [1, 2, 3, 4]
        );
        assert_eq!(pool.free_count(), 0);
        let steps = Steps::new(false);
        pool.give_back(row.drain(..), 0, &steps);
        pool.take(2, &mut row);
        assert_eq!(
            row.iter().map(|page| page.get()).collect::<Vec<_>>(),
            [1, 2]
        );
    }

    #[test]
    fn a_shared_page_stays_until_its_last_owner_leaves() {
        let mut pool = Pool::new(4);
        let steps = Steps::new(false);
        let mut row = Vec::new();
        pool.take(3, &mut row);
        pool.share(&row[..2]);
        pool.share(&row[..1]);
        assert_eq!((pool.shared(), pool.shares_of(row[0])), (3, 2));
        let free = [1, 2, 3].map(|_| {
            pool.give_back(row[..2].iter().copied(), 0, &steps);
            pool.free_count()
        });
        assert_eq!(
            free,
            [0, 1, 3],
            "page 1 after two owners, page 0 after three"
        );
        assert_eq!(pool.shared(), 0);
    }

    #[test]
    fn owned_pages_beyond_a_new_end_go_to_the_lowest_free_ones() {
        let steps = Steps::new(false);
        let mut pool = Pool::new(8);
        let mut row = Vec::new();
        pool.take(7, &mut row);
        pool.share(&row[6..]);
        let given = [1, 2, 4].map(PageIndex::new);
        pool.give_back(given.into_iter(), 0, &steps);
        let moved = pool.resize(6);
        let numbers = |pages: &[PageIndex]| pages.iter().map(|page| page.get()).collect::<Vec<_>>();
        let moved: Vec<_> = moved
            .iter()
            .map(|(from, to)| (from.get(), to.get()))
            .collect();
        assert_eq!(moved, [(6, 1), (7, 2)]);
        assert_eq!(numbers(pool.free_list()), [4]);
        assert_eq!(
            pool.shares_of(PageIndex::new(2)),
            1,
            "page 7 had two owners"
        );
        assert!(pool.resize(9).is_empty());
        assert_eq!(numbers(pool.free_list()), [8, 7, 6, 4]);
        assert_eq!(pool.shares_of(PageIndex::new(8)), 0);
    }

    #[test]
    fn fenced_pages_wait_for_their_step() {
        let mut pool = Pool::new(4);
        let mut steps = Steps::new(false);
        let mut row = Vec::new();
        pool.take(3, &mut row);
        let step = steps.begin(0.0).unwrap();
        pool.give_back(row.drain(..), steps.stamp(), &steps);
        assert_eq!((pool.free_count(), pool.fenced_count()), (0, 3));
        steps.complete(step).unwrap();
        pool.release_fenced(&steps);
        assert_eq!((pool.free_count(), pool.fenced_count()), (3, 0));
    }
}

//! What releasing sequences would give, alone and together. Read-only.
//!
//! A tree block comes free when the last thing that protects it goes, so two sequences that share a node
//! free it only together; so do forks that share private pages. The walks here let go of pins and shares in a
//! shadow of the ledger: counts of what they touch, on top of the counts in the tree and the pools.

use std::collections::HashMap;

use crate::error::LedgerError;
use crate::ids::{Handle, NodeId, PageIndex, Row};
use crate::ledger::gains::Gains;
use crate::ledger::{Ledger, check_len, check_range};
use crate::pool::Pool;
use crate::prefix::Tree;

/// Pins of a node and its active children, as [`crate::prefix::Node`] counts them.
type Counts = (u32, u32);

/// The tree and a pool, some of whose pins and shares are let go.
pub(super) struct Shadow<'a> {
    tree: &'a Tree,
    /// Private pages are shared alike in all classes, so the first one speaks for all.
    pool: &'a Pool,
    /// Counts that differ from the tree's. Looked up by node, never iterated.
    counts: HashMap<NodeId, Counts>,
    /// Owners that pages have left, where they differ from the pool's. Never iterated either.
    owners: HashMap<PageIndex, u32>,
}

impl<'a> Shadow<'a> {
    /// The tree after all pending copies: they end with their steps, whoever is released.
    fn new(tree: &'a Tree, pool: &'a Pool, copies: impl Iterator<Item = NodeId>) -> Self {
        let mut shadow = Self {
            tree,
            pool,
            counts: HashMap::new(),
            owners: HashMap::new(),
        };
        for source in copies {
            shadow.unpin(source);
        }
        shadow
    }

    pub(super) fn owners(&self, page: PageIndex) -> u32 {
        let own = || 1 + self.pool.shares_of(page);
        self.owners.get(&page).copied().unwrap_or_else(own)
    }

    /// Pages that only one owner has.
    fn owned_alone(&self, pages: &[PageIndex]) -> u64 {
        if self.pool.shared() == 0 {
            return pages.len() as u64;
        }
        pages.iter().filter(|&&page| self.owners(page) == 1).count() as u64
    }

    /// Lets go of private pages; returns how many nobody has any more.
    pub(super) fn disown(&mut self, pages: &[PageIndex]) -> u64 {
        let freed = self.owned_alone(pages);
        self.add_owners(pages, -1);
        freed
    }

    /// How many of these pages nobody has.
    pub(super) fn abandoned(&self, pages: &[PageIndex]) -> u64 {
        if self.pool.shared() == 0 {
            return pages.len() as u64;
        }
        pages.iter().filter(|&&page| self.owners(page) == 0).count() as u64
    }

    pub(super) fn add_owners(&mut self, pages: &[PageIndex], change: i32) {
        if self.pool.shared() == 0 {
            return;
        }
        for &page in pages {
            let owners = self
                .owners(page)
                .checked_add_signed(change)
                .expect("an owner leaves once");
            self.owners.insert(page, owners);
        }
    }

    fn counts(&self, id: NodeId) -> Counts {
        let node = self.tree.node(id);
        let own = (node.pins, node.active_children);
        self.counts.get(&id).copied().unwrap_or(own)
    }

    /// Blocks that only one pin of `id` protects.
    fn held_alone(&self, id: NodeId) -> u64 {
        let mut blocks = 0;
        let mut alone = (1, 0);
        for id in self.tree.upwards(id) {
            if self.counts(id) != alone {
                break;
            }
            blocks += u64::from(self.tree.node(id).len());
            alone = (0, 1);
        }
        blocks
    }

    /// Lets go of a pin; returns the blocks that nothing protects any more.
    pub(super) fn unpin(&mut self, id: NodeId) -> u64 {
        let (mut blocks, mut id) = (0, id);
        let (pins, active) = self.counts(id);
        let mut left = (pins - 1, active);
        loop {
            self.counts.insert(id, left);
            let node = self.tree.node(id);
            if left != (0, 0) || node.is_root() {
                return blocks;
            }
            blocks += u64::from(node.len());
            id = node.parent;
            let (pins, active) = self.counts(id);
            left = (pins, active - 1);
        }
    }

    /// Takes a pin back, if at most `slack` blocks become protected by that; returns how many do.
    pub(super) fn pin_within(&mut self, id: NodeId, slack: u64) -> Option<u64> {
        let mut blocks = 0;
        for id in self.tree.upwards(id) {
            if self.counts(id) != (0, 0) {
                break;
            }
            blocks += u64::from(self.tree.node(id).len());
            if blocks > slack {
                return None;
            }
        }
        let mut id = id;
        let (pins, active) = self.counts(id);
        let mut more = (pins + 1, active);
        loop {
            let was_idle = self.counts(id) == (0, 0);
            self.counts.insert(id, more);
            let node = self.tree.node(id);
            if !was_idle || node.is_root() {
                return Some(blocks);
            }
            id = node.parent;
            let (pins, active) = self.counts(id);
            more = (pins, active + 1);
        }
    }
}

impl Ledger {
    /// Writes, per sequence and class, the pages that would become allocatable if only this sequence were
    /// released and the steps open now were completed.
    ///
    /// # Errors
    ///
    /// For a handle that is stale or appears twice, or `pages` of another length.
    pub fn reclaimable(&mut self, handle: &[i64], pages: &mut [i64]) -> Result<(), LedgerError> {
        let classes = self.num_classes();
        check_len("pages", pages.len(), handle.len() * classes)?;
        self.check_handles(handle)?;
        if !self.classes.all_full() {
            for (&handle, pages) in handle.iter().zip(pages.chunks_exact_mut(classes)) {
                let row = Handle::from_i64(handle).expect("checked above").row;
                let mut gains = Gains::new(self);
                gains.let_go(row);
                for (class, pages) in pages.iter_mut().enumerate() {
                    *pages = gains.of_class(class).cast_signed();
                }
            }
            return Ok(());
        }
        let shadow = self.shadow();
        for (&handle, pages) in handle.iter().zip(pages.chunks_exact_mut(classes)) {
            let row = Handle::from_i64(handle).expect("checked above").row;
            let blocks = shadow.owned_alone(self.private_pages(row))
                + shadow.held_alone(self.sequences[row.at()].node);
            pages.fill(blocks.cast_signed());
        }
        Ok(())
    }

    /// Chooses which of the sequences, the most dispensable first, to release so that `need[c]` pages of
    /// each class become allocatable. Writes 1 or 0 per sequence and returns how many are chosen: none
    /// if all of them together do not give enough, or if nothing is needed.
    ///
    /// # Errors
    ///
    /// For a handle that is stale or appears twice, a need below 0, or arrays of another length.
    pub fn victims(
        &mut self,
        handle: &[i64],
        need: &[i64],
        chosen: &mut [u8],
    ) -> Result<usize, LedgerError> {
        check_len("need", need.len(), self.num_classes())?;
        check_len("chosen", chosen.len(), handle.len())?;
        for (class, &pages) in need.iter().enumerate() {
            check_range("need", class, pages, 0, i64::MAX)?;
        }
        self.check_handles(handle)?;
        if !self.classes.all_full() {
            return Ok(self.victims_of_all_classes(handle, need, chosen));
        }
        let need = need.iter().copied().max().unwrap_or(0).cast_unsigned();
        chosen.fill(0);
        let mut shadow = self.shadow();
        let mut gain = 0;
        for (&handle, chosen) in handle.iter().zip(&mut *chosen) {
            if gain >= need {
                break;
            }
            let row = Handle::from_i64(handle).expect("checked above").row;
            gain += shadow.disown(self.private_pages(row));
            let node = self.sequences[row.at()].node;
            if !node.is_none() {
                gain += shadow.unpin(node);
            }
            *chosen = 1;
        }
        if gain < need {
            chosen.fill(0);
            return Ok(0);
        }
        self.drop_needless(&mut shadow, handle, gain - need, chosen);
        Ok(chosen.iter().map(|&chosen| usize::from(chosen)).sum())
    }

    /// The same where classes differ: each class has a gain of its own.
    fn victims_of_all_classes(&self, handle: &[i64], need: &[i64], chosen: &mut [u8]) -> usize {
        let row = |handle| Handle::from_i64(handle).expect("checked above").row;
        let mut gains = Gains::new(self);
        chosen.fill(0);
        for (&handle, chosen) in handle.iter().zip(&mut *chosen) {
            if gains.suffice(need) {
                break;
            }
            gains.let_go(row(handle));
            *chosen = 1;
        }
        if !gains.suffice(need) {
            chosen.fill(0);
            return 0;
        }
        for (&handle, chosen) in handle.iter().zip(&mut *chosen).rev() {
            if *chosen == 0 {
                continue;
            }
            gains.take_back(row(handle));
            if gains.suffice(need) {
                *chosen = 0;
            } else {
                gains.let_go(row(handle));
            }
        }
        chosen.iter().map(|&chosen| usize::from(chosen)).sum()
    }

    /// Takes back, the last first, the chosen sequences that give at most what is left over.
    fn drop_needless(
        &self,
        shadow: &mut Shadow<'_>,
        handle: &[i64],
        spare: u64,
        chosen: &mut [u8],
    ) {
        let mut spare = spare;
        for (&handle, chosen) in handle.iter().zip(chosen).rev() {
            if *chosen == 0 {
                continue;
            }
            let row = Handle::from_i64(handle).expect("checked above").row;
            let pages = self.private_pages(row);
            let Some(left) = spare.checked_sub(shadow.abandoned(pages)) else {
                continue;
            };
            let node = self.sequences[row.at()].node;
            let protected = if node.is_none() {
                Some(0)
            } else {
                shadow.pin_within(node, left)
            };
            if let Some(protected) = protected {
                shadow.add_owners(pages, 1);
                spare = left - protected;
                *chosen = 0;
            }
        }
    }

    pub(super) fn shadow(&self) -> Shadow<'_> {
        let sources = self.copies.iter().map(|copy| copy.node);
        Shadow::new(&self.tree, &self.pools[0], sources)
    }

    /// Pages of a row that no tree holds, in the first class.
    pub(super) fn private_pages(&self, row: Row) -> &[PageIndex] {
        let pages = &self.tables[row.at() * self.pools.len()].pages;
        &pages[self.sequences[row.at()].published as usize..]
    }

    fn check_handles(&mut self, handle: &[i64]) -> Result<(), LedgerError> {
        self.calls += 1;
        for (item, &handle) in handle.iter().enumerate() {
            let row = self.check_any_handle(item, handle)?;
            if self.sequences[row.at()].suspended {
                return Err(LedgerError::Suspended { item, handle });
            }
        }
        Ok(())
    }
}

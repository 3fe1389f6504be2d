//! Counts of blocks by what an allocation may do with them.

use std::collections::VecDeque;

use crate::steps::Steps;

/// Blocks of the tree, or of one scope in it.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Blocks in all nodes.
    pub cached: u32,
    /// Blocks in inactive nodes whose fence has passed.
    pub evictable: u32,
    /// Blocks in inactive nodes by stamp, oldest first, for stamps whose fence has not passed.
    waiting: VecDeque<(u64, u32)>,
}

impl Counts {
    /// Counts blocks that have become inactive with this stamp, the newest there is.
    pub(crate) fn enter(&mut self, stamp: u64, blocks: u32, steps: &Steps) {
        if steps.passed(stamp) {
            self.evictable += blocks;
            return;
        }
        match self.waiting.back_mut() {
            Some((last, count)) if *last == stamp => *count += blocks,
            _ => self.waiting.push_back((stamp, blocks)),
        }
    }

    /// Stops counting blocks as inactive.
    pub(crate) fn leave(&mut self, stamp: u64, blocks: u32, steps: &Steps) {
        if steps.passed(stamp) {
            self.evictable -= blocks;
            return;
        }
        let bucket = self
            .waiting
            .binary_search_by_key(&stamp, |&(stamp, _)| stamp);
        self.waiting[bucket.expect("an unfenced stamp has a bucket")].1 -= blocks;
    }

    /// Counts blocks whose fence has passed as evictable.
    pub(crate) fn release_fenced(&mut self, steps: &Steps) {
        while let Some(&(stamp, blocks)) = self.waiting.front() {
            if !steps.passed(stamp) {
                break;
            }
            self.evictable += blocks;
            self.waiting.pop_front();
        }
    }

    /// Blocks of inactive nodes whose fence has not passed.
    pub(crate) fn waiting_total(&self) -> u32 {
        self.waiting.iter().map(|&(_, blocks)| blocks).sum()
    }
}

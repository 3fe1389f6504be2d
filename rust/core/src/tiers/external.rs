//! Entries that come from elsewhere: from a disk that an earlier process left, or from another one.

use crate::key::BlockKey;
use crate::tiers::{EntryRef, HOST, State, Tiers, Value};

impl Tiers {
    /// Makes entries with valid copies, least valuable first, of keys that are unknown and pages that are
    /// free, which the caller has checked.
    /// `are_blocks` says that the keys are those of blocks as well.
    pub(crate) fn restore(
        &mut self,
        shelf: usize,
        level: usize,
        items: &[(BlockKey, u32)],
        are_blocks: bool,
    ) {
        let here = &mut self.shelves[shelf];
        let mut taken = vec![false; here.levels[level].pages as usize];
        for &(_, page) in items {
            taken[page as usize] = true;
        }
        here.levels[level]
            .free
            .retain(|&page| !taken[page as usize]);
        for &(key, page) in items {
            self.offers += 1;
            let value = Value {
                offer: self.offers,
                ..Value::default()
            };
            let block = are_blocks.then_some(key);
            here.insert((key, block), value, level, page, State::Valid);
        }
        self.counters.restored += items.len() as u64;
    }

    /// Makes entries with valid host copies, the first key first, as far as there is room, without taking
    /// what the same call found or made. `are_blocks` says that the keys are those of blocks as well. Returns
    /// the pages of those that were made.
    pub(crate) fn adopt(
        &mut self,
        shelf: usize,
        keys: &[BlockKey],
        value: Value,
        are_blocks: bool,
    ) -> Vec<Option<u32>> {
        self.offers += keys.len() as u64;
        let mut claimed = Vec::with_capacity(keys.len());
        let mut pages = Vec::with_capacity(keys.len());
        for (at, &key) in (0..).zip(keys) {
            // The first block of a prompt is worth most: the others are of no use without it.
            let offer = self.offers - at;
            let block = are_blocks.then_some(key);
            let (id, page) = self.adopt_one(shelf, (key, block), Value { offer, ..value });
            if let Some(id) = id {
                self.claim(EntryRef { shelf, id }, true);
                claimed.push(EntryRef { shelf, id });
            }
            pages.push(page);
        }
        for entry in claimed {
            self.claim(entry, false);
        }
        pages
    }

    /// The entry of a key, and its page if it was made.
    fn adopt_one(
        &mut self,
        shelf: usize,
        key: (BlockKey, Option<BlockKey>),
        value: Value,
    ) -> (Option<u32>, Option<u32>) {
        let here = &mut self.shelves[shelf];
        if let Some(id) = here.find(&key.0) {
            here.change(id, |entry| {
                entry.value = value;
                entry.loaded = false;
            });
            self.counters.renewed += 1;
            return (Some(id), None);
        }
        let Some((page, lost)) = here.take_page(HOST, value) else {
            self.counters.rejected += 1;
            return (None, None);
        };
        self.counters.lost += lost;
        self.counters.adopted += 1;
        let id = here.insert(key, value, HOST, page, State::Valid);
        (Some(id), Some(page))
    }
}

//! Sequences whose pages are on their way from lower tiers: how they start, and what becomes of them.
#![allow(clippy::similar_names, reason = "a shelf is not self")]

use crate::error::LedgerError;
use crate::ids::{PageIndex, Row};
use crate::ledger::admit::Demand;
use crate::ledger::lower::LowerPages;
use crate::ledger::room::Filled;
use crate::ledger::{Ledger, check_len};
use crate::sequence::{DRAFT, TARGET};
use crate::tiers::{BLOCKS_SHELF, EntryRef};

/// A sequence whose pages are on their way.
#[derive(Debug)]
pub(super) struct Load {
    /// `None` once the sequence is gone.
    row: Option<Row>,
    /// The first block that is loaded, and the end of those.
    from: u32,
    end: u32,
    /// Transfers that are not completed.
    left: u32,
    /// What each entry belongs to.
    pages: LowerPages,
    /// The first block of which something did not arrive.
    failed: u32,
    /// Whether the sequence was resumed, and not admitted.
    resumed: bool,
    /// Pages of the device that are written although nobody has them any more, with their places.
    orphans: Vec<(usize, PageIndex)>,
}

impl Load {
    /// Whether it is that of a row.
    pub(super) fn is_of(&self, row: Row) -> bool {
        self.row == Some(row)
    }

    /// Pages that the load alone still owns.
    pub(super) fn orphans(&self) -> &[(usize, PageIndex)] {
        &self.orphans
    }
}

/// A sequence's state in the answer of [`Ledger::loading`].
const READY: u8 = 0;
const LOADING: u8 = 1;
const SUSPENDED: u8 = 2;

impl Ledger {
    /// Plans the copies into the pages that a new row has for its blocks from lower tiers.
    pub(super) fn start_load(
        &mut self,
        row: Row,
        demand: &Demand,
        pages: &LowerPages,
        resumed: bool,
    ) {
        let (full, from) = (self.classes.full(), demand.shared);
        let end = from + demand.cold;
        self.newest_load += 1;
        let load = self.newest_load;
        let rows = row.at() * self.pools.len();
        let tiers = self.tiers.as_mut().expect("lower tiers have the pages");
        for page in pages {
            let column = page.ordinal as usize;
            if page.entry.shelf == BLOCKS_SHELF {
                let columns = self.tables[rows..rows + full].iter();
                tiers.load(page.entry, load, columns.map(|table| table.pages[column]));
                continue;
            }
            let place = tiers.shelves[page.entry.shelf].places[0];
            let table = &self.tables[rows + place].pages;
            let own = self.classes.states().contains(&place);
            let to = if own { table[0] } else { table[column] };
            tiers.load(page.entry, load, std::iter::once(to));
        }
        self.loads.insert(
            load,
            Load {
                row: Some(row),
                from,
                end,
                left: crate::ids::count(pages.len()),
                pages: pages.clone(),
                failed: end,
                resumed,
                orphans: Vec::new(),
            },
        );
        self.sequences[row.at()].loading = load;
    }

    /// Where a load needs pages of windows: for what it loads there, and for the blocks after it.
    pub(super) fn filled_by_load(&self, demand: &Demand, pages: &LowerPages) -> Filled {
        let tiers = self.tiers.as_ref().expect("lower tiers have the pages");
        let windows = self.classes.full()..self.classes.columns();
        windows
            .map(|place| {
                let shelf = tiers.shelf_of(place);
                let mut filled = vec![true; demand.need as usize];
                filled[..demand.cold as usize].fill(false);
                for page in pages.iter().filter(|page| Some(page.entry.shelf) == shelf) {
                    filled[(page.ordinal - demand.shared) as usize] = true;
                }
                filled
            })
            .collect()
    }

    /// Lets a sequence that is going away leave the pages that are being written to its load; whether it
    /// has one.
    pub(super) fn abandon_load(&mut self, row: Row) -> bool {
        let load = std::mem::take(&mut self.sequences[row.at()].loading);
        let Some(load) = self.loads.get_mut(&load) else {
            return false;
        };
        load.row = None;
        let rows = row.at() * self.pools.len();
        let tiers = self.tiers.as_ref().expect("loads come from lower tiers");
        for page in &load.pages {
            for &place in &tiers.shelves[page.entry.shelf].places {
                let own = self.classes.states().contains(&place);
                let column = if own { 0 } else { page.ordinal as usize };
                load.orphans
                    .push((place, self.tables[rows + place].pages[column]));
            }
        }
        for &(place, page) in &load.orphans {
            self.pools[place].share(&[page]);
        }
        if !load.resumed {
            let tokens = (load.end - load.from) * self.config.tokens_per_block;
            self.counters.missed_load_tokens += u64::from(tokens);
        }
        true
    }

    /// Notes what became of one page of a load, and ends the load with its last.
    pub(super) fn note_arrival(&mut self, load: u64, entry: EntryRef, ok: bool) {
        let found = self.loads.get_mut(&load).expect("a transfer has its load");
        found.left -= 1;
        if !ok {
            let of_entry = found.pages.iter().filter(|page| page.entry == entry);
            let first = of_entry.map(|page| page.ordinal).min();
            found.failed = found.failed.min(first.expect("the load has the entry"));
        }
        if found.left == 0 {
            let load = self.loads.remove(&load).expect("just found");
            self.end_load(load);
        }
    }

    fn end_load(&mut self, load: Load) {
        let Some(row) = load.row else {
            let stamp = self.steps.stamp();
            for (place, page) in load.orphans {
                self.pools[place].give_back(std::iter::once(page), stamp, &self.steps);
            }
            return;
        };
        self.sequences[row.at()].loading = 0;
        let size = self.config.tokens_per_block;
        let suspends = self.has_sides() && load.failed < load.end;
        let arrived = if suspends { 0 } else { load.failed - load.from };
        let (hits, all) = (arrived * size, (load.end - load.from) * size);
        self.counters.loaded_blocks += u64::from(arrived);
        if load.resumed {
            self.counters.resumed_hit_tokens += u64::from(hits);
        } else {
            self.counters.missed_load_tokens += u64::from(all - hits);
            self.counters.hit_tokens += u64::from(hits);
        }
        if suspends {
            // Its windows and states belong to the whole of it.
            self.suspend_one(row, false);
            return;
        }
        let seq = &mut self.sequences[row.at()];
        let history = load.failed * size;
        seq.valid[TARGET] = history;
        if seq.has_draft() {
            seq.valid[DRAFT] = history;
        }
        if self.sequences[row.at()].keeps_tokens {
            self.publish_full(row);
        }
    }

    /// Writes for each sequence 1 while its pages are on their way from lower tiers, 2 if it is suspended
    /// (also because some did not arrive), else 0; returns how many are 1.
    ///
    /// # Errors
    ///
    /// For a handle that is stale.
    pub fn loading(&self, handle: &[i64], out: &mut [u8]) -> Result<usize, LedgerError> {
        check_len("out", out.len(), handle.len())?;
        let mut rows = Vec::with_capacity(handle.len());
        for (item, &handle) in handle.iter().enumerate() {
            rows.push(self.any_row(item, handle)?);
        }
        let mut loading = 0;
        for (row, out) in rows.iter().zip(out.iter_mut()) {
            let seq = &self.sequences[row.at()];
            *out = match (seq.loading, seq.suspended) {
                (0, false) => READY,
                (0, true) => SUSPENDED,
                _ => LOADING,
            };
            loading += usize::from(*out == LOADING);
        }
        Ok(loading)
    }
}

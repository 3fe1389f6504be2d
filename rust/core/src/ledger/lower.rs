//! What lower tiers add to a match, and how a sequence starts whose blocks come from there.
#![allow(clippy::similar_names, reason = "a shelf is not self")]

use crate::ids::{PAGE_ZERO, Row, Token};
use crate::key::BlockKey;
use crate::ledger::Ledger;
use crate::ledger::admit::{Demand, Item};
use crate::ledger::sides::at_most;
use crate::prefix::Found;
use crate::sequence::{DRAFT, TARGET};
use crate::tiers::{BLOCKS_SHELF, EntryRef, Shelf, Tiers};
use crate::window::Window;

/// One page that a load brings to the device: of a block, in all full classes, or of a window or state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LowerPage {
    /// The block's ordinal.
    pub ordinal: u32,
    pub entry: EntryRef,
}

/// The pages that a load brings, those of blocks first.
pub(super) type LowerPages = Vec<LowerPage>;

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
    orphans: Vec<(usize, crate::ids::PageIndex)>,
}

impl Load {
    /// Whether it is that of a row.
    pub(super) fn is_of(&self, row: Row) -> bool {
        self.row == Some(row)
    }

    /// Pages that the load alone still owns.
    pub(super) fn orphans(&self) -> &[(usize, crate::ids::PageIndex)] {
        &self.orphans
    }
}

/// A sequence's state in the answer of [`Ledger::loading`].
const READY: u8 = 0;
const LOADING: u8 = 1;
const SUSPENDED: u8 = 2;

impl Ledger {
    /// Builds the lower tiers that the configuration names.
    pub(super) fn build_tiers(&mut self) {
        if !self.config.has_tiers() {
            return;
        }
        let full = self.classes.full();
        let pages = |pages: &Vec<u32>, places: &[usize]| {
            let classes = places
                .iter()
                .map(|&place| self.classes.class(place) as usize);
            classes
                .map(|class| pages.get(class).copied().unwrap_or(0))
                .min()
                .unwrap_or(0)
        };
        let shelf = |places: Vec<usize>| {
            let host = pages(&self.config.host_pages, &places);
            let disk = pages(&self.config.disk_pages, &places);
            Shelf::new(places, [host, disk])
        };
        let mut shelves = vec![shelf((0..full).collect())];
        shelves.extend((full..self.classes.states().end).map(|place| shelf(vec![place])));
        let class_at = (0..self.classes.len()).map(|place| self.classes.class(place));
        self.tiers = Some(Box::new(Tiers::new(shelves, class_at.collect())));
        self.blocks.keep_tier_keys();
    }

    /// Extends what the device has of a prompt by what lower tiers have. `agreed` is what the full classes
    /// on the device agree on, `found` what all classes accept.
    pub(super) fn extend_below(
        &self,
        item: &Item<'_>,
        agreed: u32,
        found: &mut Found,
    ) -> LowerPages {
        let Some(tiers) = &self.tiers else {
            return LowerPages::new();
        };
        let size = self.config.tokens_per_block;
        let from = agreed / size;
        let below = self.blocks_below(tiers, item, from, found);
        // The longest end that windows and states accept.
        for end in (1..=below.len()).rev() {
            let hit = (from + crate::ids::count(end)) * size;
            if hit <= found.usable {
                break;
            }
            if let Some(sides) = self.sides_below(tiers, found, hit, from, &below) {
                found.usable = hit;
                found.longest = found.longest.max(hit);
                found.cold = crate::ids::count(end);
                let blocks = below[..end].iter().map(|&(_, page)| page);
                return blocks.chain(sides).collect();
            }
        }
        LowerPages::new()
    }

    /// The blocks of a prompt from `from` on that lower tiers have, with their keys.
    fn blocks_below(
        &self,
        tiers: &Tiers,
        item: &Item<'_>,
        from: u32,
        found: &Found,
    ) -> Vec<(BlockKey, LowerPage)> {
        let size = self.config.tokens_per_block as usize;
        let lookahead = self.tree.lookahead;
        let mut key = match from.checked_sub(1) {
            None => self.root_key(item.scope),
            Some(last) => {
                let node = self.tree.node(self.tree.holder(found.tail, last));
                self.known_key(node.blocks()[(last - node.start) as usize])
            }
        };
        let mut below = Vec::new();
        let shelf = &tiers.shelves[BLOCKS_SHELF];
        for ordinal in from.. {
            let start = ordinal as usize * size;
            let end = start + size;
            // One token must run, and what identifies the block must be known.
            if end >= item.prompt.len() || end + lookahead > item.prompt.len() {
                break;
            }
            key = self.key_after(&key, &item.prompt[start..end]);
            let next = &item.prompt[end..end + lookahead];
            let needs_draft = self.config.has_draft
                && u32::try_from(item.draft_from).is_ok_and(|from| end > from as usize);
            let entry = self.entry_below(shelf, &key, next, needs_draft);
            let Some((key, id)) = entry else {
                break;
            };
            let entry = EntryRef {
                shelf: BLOCKS_SHELF,
                id,
            };
            below.push((key, LowerPage { ordinal, entry }));
        }
        below
    }

    /// The entry of a block that can be read, with its tier key: with draft KV, or else without if it is not
    /// needed.
    fn entry_below(
        &self,
        shelf: &Shelf,
        key: &BlockKey,
        next: &[Token],
        needs_draft: bool,
    ) -> Option<(BlockKey, u32)> {
        let draft_valid: &[bool] = match (self.config.has_draft, needs_draft) {
            (true, false) => &[true, false],
            _ => &[true],
        };
        draft_valid.iter().find_map(|&draft_valid| {
            let key = self.tier_key_of(key, draft_valid, next);
            let id = shelf.find(&key)?;
            shelf.readable(id).map(|_| (key, id))
        })
    }

    /// The pages of windows and states that a hit which ends in the blocks `below` loads; `None` if one that
    /// it needs is not there.
    fn sides_below(
        &self,
        tiers: &Tiers,
        found: &Found,
        hit: u32,
        from: u32,
        below: &[(BlockKey, LowerPage)],
    ) -> Option<LowerPages> {
        let mut pages = LowerPages::new();
        if !self.has_sides() {
            return Some(pages);
        }
        let size = self.config.tokens_per_block;
        let end = hit / size;
        let shared = self.path_blocks(found.tail, from);
        let entry_of = |place: usize, ordinal: u32| {
            let shelf = tiers.shelf_of(place)?;
            let id = tiers.shelves[shelf].find(&below[(ordinal - from) as usize].0)?;
            tiers.shelves[shelf].readable(id)?;
            let entry = EntryRef { shelf, id };
            Some(LowerPage { ordinal, entry })
        };
        for (rule, place) in self.classes.windows().iter().zip(self.classes.full()..) {
            for ordinal in live_blocks(rule.needed, hit, end).filter(|&ordinal| ordinal < from) {
                if self.sides.at(place).page(shared[ordinal as usize]) == PAGE_ZERO {
                    return None;
                }
            }
            for ordinal in live_blocks(rule.kept, hit, end).filter(|&ordinal| ordinal >= from) {
                match entry_of(place, ordinal) {
                    Some(page) => pages.push(page),
                    None if live_blocks(rule.needed, hit, end).any(|other| other == ordinal) => {
                        return None;
                    }
                    None => {}
                }
            }
        }
        for place in self.classes.states() {
            pages.push(entry_of(place, end - 1)?);
        }
        Some(pages)
    }

    /// Whether some of these pages are on their way to the device already.
    pub(super) fn is_on_its_way(&self, pages: &LowerPages) -> bool {
        let Some(tiers) = &self.tiers else {
            return false;
        };
        let entry = |entry: EntryRef| &tiers.shelves[entry.shelf].entries[entry.id];
        pages.iter().any(|page| entry(page.entry).loading)
    }

    /// Keeps what items of a call will load where it is, or lets go of it.
    pub(super) fn claim_below<'a>(
        &mut self,
        items: impl Iterator<Item = &'a LowerPages>,
        pin: bool,
    ) {
        if let Some(tiers) = &mut self.tiers {
            for page in items.flatten() {
                tiers.claim(page.entry, pin);
            }
        }
    }

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
        self.leave_unloaded(row, from, end, pages);
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

    /// Gives up the pages in windows of blocks `from .. end` into which nothing is loaded.
    fn leave_unloaded(&mut self, row: Row, from: u32, end: u32, pages: &LowerPages) {
        let windows = self.classes.windows().len();
        for window in 0..windows {
            let place = self.classes.full() + window;
            let shelf = self.tiers.as_ref().and_then(|tiers| tiers.shelf_of(place));
            for ordinal in from..end {
                let is_loaded = pages
                    .iter()
                    .any(|page| Some(page.entry.shelf) == shelf && page.ordinal == ordinal);
                if !is_loaded {
                    self.leave_window(row, window, ordinal, ordinal + 1);
                }
            }
        }
        self.renew_window_promises(row);
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
    pub fn loading(
        &self,
        handle: &[i64],
        out: &mut [u8],
    ) -> Result<usize, crate::error::LedgerError> {
        crate::ledger::check_len("out", out.len(), handle.len())?;
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

/// The blocks before `end` that a window has at `tokens` settled tokens.
fn live_blocks(window: Window, tokens: u32, end: u32) -> impl Iterator<Item = u32> {
    let live = window.live(tokens.into(), 0);
    let (sinks, start) = (at_most(live.sinks, end), at_most(live.start, end));
    (0..sinks).chain(start.max(sinks)..end)
}

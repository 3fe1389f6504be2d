//! The tiers below the device: where evicted pages lie, and the transfers that move them.
//!
//! `docs/tiers.md` is the contract. Nothing here knows tokens or sequences: entries are found by keys.
#![allow(clippy::similar_names, reason = "a shelf is not self")]

mod counters;
mod external;
mod inspect;
mod shelf;

use std::collections::{BTreeMap, VecDeque};

pub use counters::TierCounters;
pub use shelf::ShelfStats;
pub(crate) use shelf::{DISK, HOST, LOWER, Shelf, State, Value};

use crate::event::{Note, Reason};
use crate::ids::PageIndex;
use crate::key::BlockKey;

/// One page to copy. All rows of one transfer have its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferRow {
    /// The transfer.
    pub id: u64,
    /// The class whose pages these are.
    pub class: u32,
    /// Where it lies: 0 device, 1 host, 2 disk.
    pub source_tier: u8,
    /// Its page there.
    pub source_page: u32,
    /// Where it goes.
    pub destination_tier: u8,
    /// The page there.
    pub destination_page: u32,
    /// The tier key of the block.
    pub key: BlockKey,
}

/// An entry, wherever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryRef {
    pub shelf: usize,
    pub id: u32,
}

/// What a transfer does.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Device to a lower tier.
    Down { level: usize },
    /// Host to disk.
    Spill,
    /// A lower tier to the device, for a load.
    Up { level: usize, load: u64 },
}

#[derive(Debug)]
struct Transfer {
    entry: EntryRef,
    kind: Kind,
    /// Whether its rows were handed out.
    handed_out: bool,
}

/// Pages of a shelf on one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierShelf {
    /// 1 host, 2 disk.
    pub tier: u8,
    /// The classes whose pages it holds.
    pub classes: Vec<u32>,
    /// Its pages.
    pub pages: ShelfStats,
}

/// A load that a completion has changed: its number, the entry that arrived or did not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub load: u64,
    pub entry: EntryRef,
    pub ok: bool,
}

/// The shelf of the full classes, which a ledger with lower tiers always has.
pub(crate) const BLOCKS_SHELF: usize = 0;

/// All shelves, and the transfers that are not completed.
#[derive(Debug)]
pub(crate) struct Tiers {
    pub shelves: Vec<Shelf>,
    /// The class at each place.
    class_at: Vec<u32>,
    planned: VecDeque<TransferRow>,
    transfers: BTreeMap<u64, Transfer>,
    newest: u64,
    offers: u64,
    pub counters: TierCounters,
}

fn tier_of(level: usize) -> u8 {
    u8::try_from(level + 1).expect("there are two lower tiers")
}

impl Tiers {
    pub(crate) fn new(shelves: Vec<Shelf>, class_at: Vec<u32>) -> Self {
        Self {
            shelves,
            class_at,
            planned: VecDeque::new(),
            transfers: BTreeMap::new(),
            newest: 0,
            offers: 0,
            counters: TierCounters::default(),
        }
    }

    /// The shelf of the class at a place.
    pub(crate) fn shelf_of(&self, place: usize) -> Option<usize> {
        self.shelves
            .iter()
            .position(|shelf| shelf.places.contains(&place))
    }

    /// Offers a block that leaves the device, with its pages there, one per class of the shelf.
    pub(crate) fn offer(
        &mut self,
        shelf: usize,
        (key, block): (BlockKey, Option<BlockKey>),
        value: Value,
        pages: impl Iterator<Item = PageIndex>,
    ) {
        let Some(level) = self.shelves[shelf].first_level() else {
            return;
        };
        self.offers += 1;
        let value = Value {
            offer: self.offers,
            ..value
        };
        let here = &mut self.shelves[shelf];
        if let Some(id) = here.find(&key) {
            here.change(id, |entry| {
                entry.value = value;
                entry.loaded = false;
            });
            self.counters.renewed += 1;
            return;
        }
        let Some((page, lost)) = here.take_page(level, value) else {
            self.counters.rejected += 1;
            return;
        };
        self.counters.lost += lost;
        let id = here.insert((key, block), value, level, page, State::Writing);
        let transfer = self.begin(EntryRef { shelf, id }, Kind::Down { level });
        for (at, source) in pages.enumerate() {
            self.planned.push_back(TransferRow {
                id: transfer,
                class: self.class_at[self.shelves[shelf].places[at]],
                source_tier: 0,
                source_page: source.get(),
                destination_tier: tier_of(level),
                destination_page: page,
                key,
            });
        }
    }

    fn begin(&mut self, entry: EntryRef, kind: Kind) -> u64 {
        self.newest += 1;
        let transfer = Transfer {
            entry,
            kind,
            handed_out: false,
        };
        self.transfers.insert(self.newest, transfer);
        self.newest
    }

    /// Plans the copy of a valid entry into pages of the device, one per class of its shelf, for a load.
    pub(crate) fn load(
        &mut self,
        entry: EntryRef,
        load: u64,
        pages: impl Iterator<Item = PageIndex>,
    ) {
        let shelf = &mut self.shelves[entry.shelf];
        let level = shelf.readable(entry.id).expect("only what can be read");
        shelf.change(entry.id, |found| {
            found.copies[level].pins += 1;
            found.loading = true;
        });
        let (page, key) = {
            let found = &shelf.entries[entry.id];
            (found.copies[level].page, found.key)
        };
        let id = self.begin(entry, Kind::Up { level, load });
        for (at, destination) in pages.enumerate() {
            self.planned.push_back(TransferRow {
                id,
                class: self.class_at[self.shelves[entry.shelf].places[at]],
                source_tier: tier_of(level),
                source_page: page,
                destination_tier: 0,
                destination_page: destination.get(),
                key,
            });
        }
    }

    /// Keeps the readable copies of an entry where they are, or lets go of them.
    pub(crate) fn claim(&mut self, entry: EntryRef, pin: bool) {
        self.shelves[entry.shelf].change(entry.id, |found| {
            for copy in &mut found.copies {
                if copy.state == State::Valid {
                    copy.pins = if pin { copy.pins + 1 } else { copy.pins - 1 };
                }
            }
        });
    }

    /// Plans copies from host to disk ahead of need, while at most `rows` rows are planned in all.
    pub(crate) fn spill_ahead(&mut self, rows: usize) {
        for at in 0..self.shelves.len() {
            let pages = self.shelves[at].levels[HOST].pages;
            while self.shelves[at].host_at_hand() < pages.div_ceil(8)
                && self.planned.len() + self.shelves[at].places.len() <= rows
            {
                let next = self.shelves[at].next_to_spill();
                let planned = next.is_some_and(|id| self.spill_one(EntryRef { shelf: at, id }));
                if !planned {
                    break;
                }
            }
        }
    }

    /// Plans every host copy that has none on disk to be copied there, the most valuable first, as far as
    /// there is room; returns how many.
    pub(crate) fn spill_all(&mut self) -> u32 {
        let mut planned = 0;
        for at in 0..self.shelves.len() {
            for id in self.shelves[at].all_to_spill() {
                if !self.spill_one(EntryRef { shelf: at, id }) {
                    break;
                }
                planned += 1;
            }
        }
        planned
    }

    fn spill_one(&mut self, entry: EntryRef) -> bool {
        let shelf = &mut self.shelves[entry.shelf];
        let (value, key) = {
            let found = &shelf.entries[entry.id];
            (found.value, found.key)
        };
        let Some((page, lost)) = shelf.take_page(DISK, value) else {
            return false;
        };
        self.counters.lost += lost;
        shelf.change(entry.id, |found| found.copies[HOST].pins += 1);
        shelf.plan_copy(entry.id, DISK, page);
        shelf.levels[HOST].spilling += 1;
        let source_page = shelf.entries[entry.id].copies[HOST].page;
        let id = self.begin(entry, Kind::Spill);
        for &place in &self.shelves[entry.shelf].places {
            self.planned.push_back(TransferRow {
                id,
                class: self.class_at[place],
                source_tier: tier_of(HOST),
                source_page,
                destination_tier: tier_of(DISK),
                destination_page: page,
                key,
            });
        }
        true
    }

    /// Rows that were planned and not handed out.
    pub(crate) fn planned(&self) -> usize {
        self.planned.len()
    }

    /// Hands the planned rows out.
    pub(crate) fn take_planned(&mut self) -> impl Iterator<Item = TransferRow> + '_ {
        for row in &self.planned {
            let transfer = self.transfers.get_mut(&row.id);
            transfer.expect("a planned row has its transfer").handed_out = true;
        }
        self.planned.drain(..)
    }

    /// Whether a transfer was handed out and is not completed.
    pub(crate) fn is_under_way(&self, id: u64) -> bool {
        self.transfers
            .get(&id)
            .is_some_and(|transfer| transfer.handed_out)
    }

    /// Transfers that are not completed.
    pub(crate) fn open_transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Completes a transfer that is under way; what it means for a load, if it was for one.
    pub(crate) fn complete(&mut self, id: u64, ok: bool) -> Option<Arrival> {
        let Transfer { entry, kind, .. } = self.transfers.remove(&id).expect("it is under way");
        self.count(kind, ok);
        match kind {
            Kind::Down { level } => self.settle_write(entry, level, ok),
            Kind::Spill => {
                let shelf = &mut self.shelves[entry.shelf];
                shelf.levels[HOST].spilling -= 1;
                // Written before it is let go of: the host copy must not be missed in between.
                shelf.change(entry.id, |found| {
                    found.copies[HOST].pins -= 1;
                });
                self.settle_write(entry, DISK, ok);
            }
            Kind::Up { level, load } => {
                self.settle_read(entry, level, ok);
                return Some(Arrival { load, entry, ok });
            }
        }
        None
    }

    fn count(&mut self, kind: Kind, ok: bool) {
        let counters = &mut self.counters;
        let counter = match kind {
            _ if !ok => &mut counters.failed,
            Kind::Down { level: HOST } => &mut counters.device_to_host,
            Kind::Down { .. } => &mut counters.device_to_disk,
            Kind::Spill => &mut counters.host_to_disk,
            Kind::Up { level: HOST, .. } => &mut counters.host_to_device,
            Kind::Up { .. } => &mut counters.disk_to_device,
        };
        *counter += 1;
    }

    fn settle_write(&mut self, entry: EntryRef, level: usize, ok: bool) {
        let shelf = &mut self.shelves[entry.shelf];
        if ok {
            shelf.change(entry.id, |found| found.copies[level].state = State::Valid);
        } else {
            shelf.drop_copy(entry.id, level, Reason::Failed);
        }
    }

    /// Lets go of a copy that was read. One that could not be read is not there.
    fn settle_read(&mut self, entry: EntryRef, level: usize, ok: bool) {
        let shelf = &mut self.shelves[entry.shelf];
        shelf.change(entry.id, |found| {
            // A copy kept for one that can be read after all would be found, and fail, again.
            found.loading = false;
            found.loaded = ok;
            found.copies[level].pins -= 1;
        });
        if !ok && !shelf.entries[entry.id].doomed {
            shelf.doom(entry.id, Some(Reason::Failed));
        }
    }

    /// Collects what events have to say from now on.
    pub(crate) fn keep_notes(&mut self) {
        self.shelves[BLOCKS_SHELF].notes = Some(Vec::new());
    }

    /// What events have to say since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<Note> {
        let notes = self.shelves[BLOCKS_SHELF].notes.as_mut();
        notes.map(std::mem::take).unwrap_or_default()
    }

    /// Drops every entry.
    pub(crate) fn clear(&mut self) {
        for shelf in &mut self.shelves {
            for id in shelf.ids() {
                if !shelf.entries[id].doomed {
                    shelf.doom(id, None);
                }
            }
        }
    }

    /// The numbers of the tiers that have pages for blocks.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = u8> + '_ {
        let levels = &self.shelves[BLOCKS_SHELF].levels;
        (0..LOWER)
            .filter(|&level| levels[level].pages > 0)
            .map(tier_of)
    }
}

//! White-box views: counts, what the digest names, and what must hold.

use std::collections::BTreeMap;

use crate::tiers::{DISK, EntryRef, HOST, Kind, LOWER, Shelf, State, TierShelf, Tiers, tier_of};

impl Tiers {
    /// Pages by tier and shelf.
    pub(crate) fn stats(&self) -> Vec<TierShelf> {
        let mut all = Vec::new();
        for level in 0..LOWER {
            for shelf in self.shelves.iter().filter(|shelf| !shelf.places.is_empty()) {
                let classes = shelf.places.iter().map(|&place| self.class_at[place]);
                all.push(TierShelf {
                    tier: tier_of(level),
                    classes: classes.collect(),
                    pages: shelf.stats(level),
                });
            }
        }
        all
    }

    /// What later answers depend on.
    pub(crate) fn state(&self) -> String {
        let shelves: Vec<String> = self.shelves.iter().map(Shelf::state).collect();
        format!(
            "{shelves:?}{:?}{:?}{}{}",
            self.planned, self.transfers, self.newest, self.offers
        )
    }

    /// Checks that pages, entries and transfers agree.
    pub(crate) fn validate(&self) {
        let mut pins: BTreeMap<(EntryRef, usize), u32> = BTreeMap::new();
        let mut writing: BTreeMap<(EntryRef, usize), u32> = BTreeMap::new();
        let mut loading: BTreeMap<EntryRef, u32> = BTreeMap::new();
        for transfer in self.transfers.values() {
            match transfer.kind {
                Kind::Down { level } => *writing.entry((transfer.entry, level)).or_default() += 1,
                Kind::Spill => {
                    *pins.entry((transfer.entry, HOST)).or_default() += 1;
                    *writing.entry((transfer.entry, DISK)).or_default() += 1;
                }
                Kind::Up { level, .. } => {
                    *pins.entry((transfer.entry, level)).or_default() += 1;
                    *loading.entry(transfer.entry).or_default() += 1;
                }
            }
        }
        for (at, shelf) in self.shelves.iter().enumerate() {
            shelf.validate();
            let mut spilling = 0;
            for id in shelf.ids() {
                let entry = EntryRef { shelf: at, id };
                for (level, copy) in shelf.entries[id].copies.iter().enumerate() {
                    let expected = pins.remove(&(entry, level)).unwrap_or(0);
                    assert_eq!(copy.pins, expected, "pins of {entry:?} at {level}");
                    let written = writing.remove(&(entry, level)).unwrap_or(0);
                    assert_eq!(u32::from(copy.state == State::Writing), written);
                    spilling += u32::from(
                        level == DISK
                            && copy.state == State::Writing
                            && shelf.entries[id].copies[HOST].pins > 0,
                    );
                }
                let loads = loading.remove(&entry).unwrap_or(0);
                assert_eq!(
                    u32::from(shelf.entries[id].loading),
                    loads,
                    "one load at a time"
                );
            }
            assert_eq!(shelf.levels[HOST].spilling, spilling);
        }
        assert!(pins.is_empty() && writing.is_empty() && loading.is_empty());
    }
}

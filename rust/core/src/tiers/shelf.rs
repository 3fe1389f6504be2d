//! One shelf: the entries of pages that move together, and their copies on host and disk.

use std::collections::{BTreeSet, HashMap};

use crate::event::{Note, Reason};
use crate::key::BlockKey;
use crate::slab::Slab;

/// Tiers below the device.
pub(crate) const LOWER: usize = 2;
/// The host among them.
pub(crate) const HOST: usize = 0;
/// The disk among them.
pub(crate) const DISK: usize = 1;

/// What a copy is worth: (priority, rank, last use) of the block as the device's policy orders them, then
/// the number of the offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Value {
    pub priority: u8,
    pub rank: u64,
    pub last_use: u64,
    pub offer: u64,
}

/// Where a copy is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Absent,
    /// Its transfer is planned or under way.
    Writing,
    Valid,
}

/// A copy of an entry on one tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    pub state: State,
    pub page: u32,
    /// Transfers that read it, and claims of the running call.
    pub pins: u32,
}

const ABSENT: Copied = Copied {
    state: State::Absent,
    page: 0,
    pins: 0,
};

/// What is kept under one tier key.
#[derive(Debug)]
pub(crate) struct Entry {
    pub key: BlockKey,
    /// What events call the block; `None` if that is not known.
    pub block: Option<BlockKey>,
    pub value: Value,
    pub copies: [Copied; LOWER],
    /// Whether it was loaded to the device since it was offered last.
    pub loaded: bool,
    /// Whether a transfer to the device reads it.
    pub loading: bool,
    /// Nobody finds it any more; its pages come back as transfers are completed.
    pub doomed: bool,
}

/// The pages of one tier.
#[derive(Debug)]
pub(crate) struct Level {
    pub pages: u32,
    /// The smallest one is handed out first.
    pub free: BTreeSet<u32>,
    /// Valid copies that nothing reads, by value: those that can be had elsewhere, and the others.
    spare: BTreeSet<(Value, u32)>,
    sole: BTreeSet<(Value, u32)>,
    /// Host copies on their way to disk.
    pub spilling: u32,
}

impl Level {
    fn new(pages: u32) -> Self {
        Self {
            pages,
            free: (0..pages).collect(),
            spare: BTreeSet::new(),
            sole: BTreeSet::new(),
            spilling: 0,
        }
    }
}

/// Pages of a shelf on one tier by state. `free + writing + valid == total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShelfStats {
    /// All pages.
    pub total: u32,
    /// Without a copy.
    pub free: u32,
    /// With a copy whose transfer is not completed.
    pub writing: u32,
    /// With a copy that may be read.
    pub valid: u32,
    /// Those of them that are elsewhere too, and go first.
    pub spare: u32,
    /// Those of them that a transfer reads.
    pub pinned: u32,
}

/// The entries of pages that move together.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// Places of the classes whose pages an entry holds.
    pub places: Vec<usize>,
    pub levels: [Level; LOWER],
    pub entries: Slab<Entry>,
    /// Never iterated: its order is another one in every process.
    by_key: HashMap<BlockKey, u32>,
    /// What events have to say, if there are any.
    pub notes: Option<Vec<Note>>,
}

impl Shelf {
    pub(crate) fn new(places: Vec<usize>, pages: [u32; LOWER]) -> Self {
        Self {
            places,
            levels: pages.map(Level::new),
            entries: Slab::new(),
            by_key: HashMap::new(),
            notes: None,
        }
    }

    /// The warmest tier that has pages.
    pub(crate) fn first_level(&self) -> Option<usize> {
        (0..LOWER).find(|&level| self.levels[level].pages > 0)
    }

    pub(crate) fn find(&self, key: &BlockKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// The warmest tier with a valid copy of an entry.
    pub(crate) fn readable(&self, id: u32) -> Option<usize> {
        let copies = &self.entries[id].copies;
        (0..LOWER).find(|&level| copies[level].state == State::Valid)
    }

    /// Whether a copy that nothing reads would be missed least of all.
    fn is_spare(&self, id: u32, level: usize) -> bool {
        let entry = &self.entries[id];
        entry.loaded || (level == HOST && entry.copies[DISK].state == State::Valid)
    }

    fn is_listed(&self, id: u32, level: usize) -> bool {
        let entry = &self.entries[id];
        let copy = entry.copies[level];
        copy.state == State::Valid && copy.pins == 0 && !entry.doomed
    }

    /// The list of a tier in which a readable copy of an entry stands.
    fn list_of(&mut self, id: u32, level: usize) -> &mut BTreeSet<(Value, u32)> {
        if self.is_spare(id, level) {
            &mut self.levels[level].spare
        } else {
            &mut self.levels[level].sole
        }
    }

    /// Takes the copies of an entry out of the lists, before it changes.
    fn unlist(&mut self, id: u32) {
        let item = (self.entries[id].value, id);
        for level in 0..LOWER {
            if self.is_listed(id, level) {
                let was_there = self.list_of(id, level).remove(&item);
                assert!(was_there, "a readable copy is listed");
            }
        }
    }

    /// Puts them back, after it has changed.
    fn list(&mut self, id: u32) {
        let item = (self.entries[id].value, id);
        for level in 0..LOWER {
            if self.is_listed(id, level) {
                self.list_of(id, level).insert(item);
            }
        }
    }

    /// Changes an entry, and removes what is left of it if that is nothing.
    pub(crate) fn change(&mut self, id: u32, change: impl FnOnce(&mut Entry)) {
        self.unlist(id);
        change(&mut self.entries[id]);
        for level in 0..LOWER {
            let entry = &mut self.entries[id];
            let copy = entry.copies[level];
            if entry.doomed && copy.state == State::Valid && copy.pins == 0 {
                entry.copies[level] = ABSENT;
                self.levels[level].free.insert(copy.page);
            }
        }
        self.list(id);
        self.remove_if_empty(id);
    }

    /// Notes that a copy came to be or, with a reason, that it is gone.
    fn note(&mut self, id: u32, level: usize, reason: Option<Reason>) {
        let entry = &self.entries[id];
        if let (Some(notes), Some(block), false) = (&mut self.notes, entry.block, entry.doomed) {
            let tier = u8::try_from(level + 1).expect("there are two lower tiers");
            notes.push((tier, block, reason));
        }
    }

    /// Plans a copy of an entry that has none on a tier.
    pub(crate) fn plan_copy(&mut self, id: u32, level: usize, page: u32) {
        self.change(id, |entry| {
            entry.copies[level] = Copied {
                state: State::Writing,
                page,
                pins: 0,
            };
        });
        self.note(id, level, None);
    }

    /// Gives a copy up that no transfer has to do with any more.
    pub(crate) fn drop_copy(&mut self, id: u32, level: usize, reason: Reason) {
        self.note(id, level, Some(reason));
        self.unlist(id);
        let copy = std::mem::replace(&mut self.entries[id].copies[level], ABSENT);
        debug_assert!(copy.state != State::Absent && copy.pins == 0);
        self.levels[level].free.insert(copy.page);
        self.list(id);
        self.remove_if_empty(id);
    }

    fn remove_if_empty(&mut self, id: u32) {
        let entry = &self.entries[id];
        if entry.copies.iter().any(|copy| copy.state != State::Absent) {
            return;
        }
        if !entry.doomed {
            self.by_key.remove(&entry.key);
        }
        // What is free is told apart by its copies.
        self.entries.free(id);
    }

    /// Makes an entry unknown. Its pages come back now, or as transfers are completed. Without a reason
    /// nothing is noted: all of them go.
    pub(crate) fn doom(&mut self, id: u32, reason: Option<Reason>) {
        for level in (0..LOWER).filter(|_| reason.is_some()) {
            if self.entries[id].copies[level].state != State::Absent {
                self.note(id, level, reason);
            }
        }
        self.by_key.remove(&self.entries[id].key);
        self.change(id, |entry| entry.doomed = true);
    }

    /// A page of a tier for a copy of this value: a free one, or that of the least valuable copy.
    /// Returns it with how many copies were lost for it that were nowhere else.
    pub(crate) fn take_page(&mut self, level: usize, value: Value) -> Option<(u32, u64)> {
        if let Some(page) = self.levels[level].free.pop_first() {
            return Some((page, 0));
        }
        let lists = &self.levels[level];
        let (id, lost) = if let Some(&(_, id)) = lists.spare.first() {
            (id, 0)
        } else {
            let &(least, id) = lists.sole.first()?;
            if least >= value {
                return None;
            }
            (id, 1)
        };
        self.drop_copy(id, level, Reason::Evicted);
        let page = self.levels[level].free.pop_first();
        Some((page.expect("a copy was given up"), lost))
    }

    /// A new entry with one copy.
    pub(crate) fn insert(
        &mut self,
        (key, block): (BlockKey, Option<BlockKey>),
        value: Value,
        level: usize,
        page: u32,
        state: State,
    ) -> u32 {
        let mut copies = [ABSENT; LOWER];
        copies[level] = Copied {
            state,
            page,
            pins: 0,
        };
        let id = self.entries.insert(Entry {
            key,
            block,
            value,
            copies,
            loaded: false,
            loading: false,
            doomed: false,
        });
        self.by_key.insert(key, id);
        self.list(id);
        self.note(id, level, None);
        id
    }

    /// The least valuable host copy that has no copy on disk and that nothing reads.
    pub(crate) fn next_to_spill(&self) -> Option<u32> {
        // Copies that were loaded are spare; they need none.
        self.levels[HOST].sole.first().map(|&(_, id)| id)
    }

    /// Host copies that have none on disk and that nothing reads, the most valuable first.
    pub(crate) fn all_to_spill(&self) -> Vec<u32> {
        let host = &self.levels[HOST];
        let mut all: Vec<_> = host.spare.iter().chain(&host.sole).copied().collect();
        all.retain(|&(_, id)| self.entries[id].copies[DISK].state == State::Absent);
        all.sort_unstable_by(|one, other| other.cmp(one));
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// All entries with a copy, by id.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let places = self.entries.len() + self.entries.free_list().len();
        let mut free = vec![false; places];
        for &id in self.entries.free_list() {
            free[id as usize] = true;
        }
        let ids = (0..crate::ids::count(places)).filter(|&id| !free[id as usize]);
        ids.collect()
    }

    /// Host pages that are free or can be had without a loss, now or soon.
    pub(crate) fn host_at_hand(&self) -> u32 {
        let host = &self.levels[HOST];
        crate::ids::count(host.free.len() + host.spare.len()) + host.spilling
    }

    pub(crate) fn stats(&self, level: usize) -> ShelfStats {
        let lists = &self.levels[level];
        let mut stats = ShelfStats {
            total: lists.pages,
            free: crate::ids::count(lists.free.len()),
            spare: crate::ids::count(lists.spare.len()),
            ..ShelfStats::default()
        };
        for id in self.ids() {
            let copy = self.entries[id].copies[level];
            match copy.state {
                State::Absent => {}
                State::Writing => stats.writing += 1,
                State::Valid => {
                    stats.valid += 1;
                    stats.pinned += u32::from(copy.pins > 0);
                }
            }
        }
        stats
    }

    /// What later answers depend on.
    pub(crate) fn state(&self) -> String {
        let entries: Vec<_> = (self.ids().into_iter())
            .map(|id| (id, &self.entries[id]))
            .collect();
        let free: Vec<_> = self.levels.iter().map(|level| &level.free).collect();
        format!("{entries:?}{free:?}{:?}", self.entries.free_list())
    }

    /// Checks that pages, lists and entries agree.
    pub(crate) fn validate(&self) {
        let ids = self.ids();
        for (level, lists) in self.levels.iter().enumerate() {
            let mut pages: Vec<u32> = lists.free.iter().copied().collect();
            let (mut spare, mut sole) = (BTreeSet::new(), BTreeSet::new());
            for &id in &ids {
                let copy = self.entries[id].copies[level];
                if copy.state == State::Absent {
                    assert_eq!(copy.pins, 0, "what is not there is not read");
                    continue;
                }
                pages.push(copy.page);
                if self.is_listed(id, level) {
                    let list = if self.is_spare(id, level) {
                        &mut spare
                    } else {
                        &mut sole
                    };
                    list.insert((self.entries[id].value, id));
                }
            }
            pages.sort_unstable();
            let all: Vec<u32> = (0..lists.pages).collect();
            assert_eq!(pages, all, "a page is free or holds one copy");
            assert_eq!((&spare, &sole), (&lists.spare, &lists.sole));
        }
        let mut known = 0;
        for &id in &ids {
            let entry = &self.entries[id];
            let there = entry.copies.iter().any(|copy| copy.state != State::Absent);
            assert!(there, "an entry has a copy");
            if !entry.doomed {
                assert_eq!(self.by_key.get(&entry.key), Some(&id));
                known += 1;
            }
        }
        assert_eq!(known, self.by_key.len());
    }
}

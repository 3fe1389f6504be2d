//! Small numbers for things that are compared once: scopes and media.
//!
//! `docs/identity.md` says when a number is freed. Lookups compare whole values; nothing is hashed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// Fewest numbers that are made between two sweeps.
const SWEEP_LEAST: usize = 16;

#[derive(Debug)]
struct Slot<T> {
    value: Arc<T>,
    holds: u64,
}

/// The numbers of one kind.
#[derive(Debug)]
pub(crate) struct Interned<T: Ord> {
    numbers: BTreeMap<Arc<T>, u32>,
    slots: Vec<Option<Slot<T>>>,
    free: BinaryHeap<Reverse<u32>>,
    /// Numbers made since the last sweep.
    made: usize,
    /// Numbers that the last sweep left.
    kept: usize,
    /// Numbers made in the trial that is open.
    trial: Option<Vec<u32>>,
    /// Fewest numbers that are made between two sweeps, if more than [`SWEEP_LEAST`].
    least: usize,
}

impl<T: Ord> Interned<T> {
    pub(crate) fn new(least: usize) -> Self {
        Self {
            numbers: BTreeMap::new(),
            slots: Vec::new(),
            free: BinaryHeap::new(),
            made: 0,
            kept: 0,
            trial: None,
            least: least.max(SWEEP_LEAST),
        }
    }

    /// The number of a value, if it has one.
    pub(crate) fn find(&self, value: &T) -> Option<u32> {
        self.numbers.get(value).copied()
    }

    /// What has a number, held or not.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<T>> {
        let slot = self.slots.get(number as usize)?.as_ref()?;
        Some(&slot.value)
    }

    #[inline]
    pub(crate) fn is_held(&self, number: u32) -> bool {
        matches!(self.slots.get(number as usize), Some(Some(slot)) if slot.holds > 0)
    }

    /// Whether enough numbers were made to look for unused ones.
    pub(crate) fn is_sweep_due(&self) -> bool {
        self.trial.is_none() && self.made >= self.least.max(self.kept)
    }

    /// Begins a trial, in which nothing is swept.
    pub(crate) fn begin_trial(&mut self) {
        self.trial = Some(Vec::new());
    }

    /// Ends a trial: numbers made in it that nobody holds and `is_used` does not know were never made.
    /// Whether others stay.
    pub(crate) fn end_trial(&mut self, is_used: impl Fn(u32) -> bool) -> bool {
        let mut stays = false;
        for number in self.trial.take().unwrap_or_default() {
            if self.is_held(number) || is_used(number) {
                stays = true;
                continue;
            }
            self.made -= 1;
            if self.get(number).is_some() {
                self.remove(number);
            }
        }
        stays
    }

    /// Frees the numbers that nobody holds and `is_used` does not know.
    pub(crate) fn sweep(&mut self, is_used: impl Fn(u32) -> bool) {
        for number in 0..crate::ids::count(self.slots.len()) {
            let held = self.slots[number as usize]
                .as_ref()
                .is_none_or(|slot| slot.holds > 0);
            if !held && !is_used(number) {
                self.remove(number);
            }
        }
        self.made = 0;
        self.kept = self.numbers.len();
    }

    /// Frees a number.
    pub(crate) fn remove(&mut self, number: u32) {
        let slot = self.slots[number as usize].take().expect("a number in use");
        self.numbers.remove(&slot.value);
        self.free.push(Reverse(number));
    }

    /// Gives the smallest free number to a value that has none; nobody holds it yet.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let value = Arc::new(value);
        let slot = Slot {
            value: Arc::clone(&value),
            holds: 0,
        };
        let number = if let Some(Reverse(number)) = self.free.pop() {
            self.slots[number as usize] = Some(slot);
            number
        } else {
            self.slots.push(Some(slot));
            crate::ids::count(self.slots.len() - 1)
        };
        self.numbers.insert(value, number);
        self.made += 1;
        if let Some(made) = &mut self.trial {
            made.push(number);
        }
        number
    }

    /// Takes one hold more.
    pub(crate) fn hold(&mut self, number: u32) {
        let slot = self.slots[number as usize].as_mut();
        slot.expect("a number in use").holds += 1;
    }

    /// Gives one hold back; whether others are left.
    pub(crate) fn release(&mut self, number: u32) -> bool {
        let slot = self.slots[number as usize].as_mut();
        let holds = &mut slot.expect("a number in use").holds;
        *holds -= 1;
        *holds > 0
    }

    /// Numbers with their values and holds, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T, u64)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| {
            let slot = slot.as_ref()?;
            Some((crate::ids::count(at), slot.value.as_ref(), slot.holds))
        })
    }

    /// What later numbers depend on, besides the numbers in use.
    pub(crate) fn sweep_state(&self) -> (usize, usize, &Option<Vec<u32>>) {
        (self.made, self.kept, &self.trial)
    }

    /// Checks that slots, numbers and free numbers agree.
    pub(crate) fn validate(&self) {
        let used: Vec<u32> = self.iter().map(|(number, ..)| number).collect();
        assert_eq!(self.numbers.len(), used.len(), "one number per value");
        for (value, &number) in &self.numbers {
            assert!(self.get(number).is_some_and(|own| own == value));
        }
        let mut all: Vec<u32> = self.free.iter().map(|&Reverse(number)| number).collect();
        all.extend(used);
        all.sort_unstable();
        let every: Vec<u32> = (0..crate::ids::count(self.slots.len())).collect();
        assert_eq!(all, every, "every number is free or in use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_freed_when_nothing_has_them() {
        let mut numbers: Interned<usize> = Interned::new(0);
        for value in 0..16 {
            assert!(!numbers.is_sweep_due());
            assert_eq!(numbers.insert(value) as usize, value);
        }
        assert!(numbers.is_sweep_due());
        numbers.hold(3);
        numbers.sweep(|number| number == 5);
        numbers.validate();
        assert_eq!((numbers.find(&3), numbers.find(&5)), (Some(3), Some(5)));
        assert_eq!((numbers.find(&4), numbers.is_held(5)), (None, false));
        // The smallest free number first, whatever it was before.
        assert_eq!((numbers.insert(100), numbers.insert(101)), (0, 1));
        assert!(!numbers.release(3));
        assert!(!numbers.is_held(3));
        numbers.validate();
    }

    #[test]
    fn a_sweep_waits_for_as_many_numbers_as_it_left() {
        let mut numbers: Interned<usize> = Interned::new(0);
        for value in 0..40 {
            numbers.insert(value);
        }
        numbers.sweep(|_| true);
        for value in 40..79 {
            numbers.insert(value);
            assert!(!numbers.is_sweep_due());
        }
        numbers.insert(79);
        assert!(numbers.is_sweep_due());
    }
}

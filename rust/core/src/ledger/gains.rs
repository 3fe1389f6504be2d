//! What releasing sequences gives per class, where classes differ.

use std::collections::HashMap;

use crate::ids::{PAGE_ZERO, PageIndex, Row};
use crate::ledger::Ledger;
use crate::ledger::victims::Shadow;

/// The pages that some sequences would leave to nobody, were all copies in flight completed.
pub(super) struct Gains<'a> {
    ledger: &'a Ledger,
    shadow: Shadow<'a>,
    /// Sequences that hold a page of a class that is not full, where some have let go. Never iterated.
    holders: HashMap<(usize, PageIndex), u32>,
    /// Pages by place.
    pages: Vec<i64>,
}

impl<'a> Gains<'a> {
    pub(super) fn new(ledger: &'a Ledger) -> Self {
        Self {
            ledger,
            shadow: ledger.shadow(),
            holders: HashMap::new(),
            pages: vec![0; ledger.pools.len()],
        }
    }

    /// Pages of a class.
    pub(super) fn of_class(&self, class: usize) -> u64 {
        self.pages[self.ledger.classes.place(class)].unsigned_abs()
    }

    /// Whether every class has what is needed of it.
    pub(super) fn suffice(&self, need: &[i64]) -> bool {
        let place = |class| self.ledger.classes.place(class);
        let mut classes = need.iter().enumerate();
        classes.all(|(class, &need)| self.pages[place(class)] >= need)
    }

    /// Counts what nobody else has, of what a sequence lets go of.
    pub(super) fn let_go(&mut self, row: Row) {
        let seq = &self.ledger.sequences[row.at()];
        if self.ledger.classes.full() > 0 {
            let mut blocks = self.shadow.disown(self.ledger.private_pages(row));
            if !seq.node.is_none() {
                blocks += self.shadow.unpin(seq.node);
            }
            self.add_blocks(blocks.cast_signed());
        }
        self.change_others(row, -1);
    }

    /// Undoes [`Gains::let_go`].
    pub(super) fn take_back(&mut self, row: Row) {
        let seq = &self.ledger.sequences[row.at()];
        if self.ledger.classes.full() > 0 {
            let private = self.ledger.private_pages(row);
            let mut blocks = self.shadow.abandoned(private);
            self.shadow.add_owners(private, 1);
            if !seq.node.is_none() {
                let protected = self.shadow.pin_within(seq.node, u64::MAX);
                blocks += protected.expect("there is no bound");
            }
            self.add_blocks(-blocks.cast_signed());
        }
        self.change_others(row, 1);
    }

    fn add_blocks(&mut self, blocks: i64) {
        for pages in &mut self.pages[..self.ledger.classes.full()] {
            *pages += blocks;
        }
    }

    fn change_others(&mut self, row: Row, change: i32) {
        for place in self.ledger.classes.full()..self.ledger.pools.len() {
            let held = self.ledger.pages_of(row, place).iter().enumerate();
            for (column, &page) in held.filter(|&(_, &page)| page != PAGE_ZERO) {
                let ledger = self.ledger;
                let holders = self.holders.entry((place, page));
                let holders = holders.or_insert_with(|| ledger.holders(row, place, column, page));
                let before = *holders;
                *holders = before
                    .checked_add_signed(change)
                    .expect("a sequence lets go once");
                match (before, *holders) {
                    (1, 0) => self.pages[place] += 1,
                    (0, 1) => self.pages[place] -= 1,
                    _ => {}
                }
            }
        }
    }
}

impl Ledger {
    /// Sequences that hold a page of a class that is not full, which stands in a column of a row.
    fn holders(&self, row: Row, place: usize, column: usize, page: PageIndex) -> u32 {
        let published = self.sequences[row.at()].published as usize;
        if place >= self.classes.columns() || column >= published {
            return 1 + self.pools[place].shares_of(page);
        }
        let copies = self.copies.iter().flat_map(|copy| &copy.sides);
        let reading = copies.filter(|&&side| side == (place, page)).count();
        self.sides.at(place).pins(page) - crate::ids::count(reading)
    }
}

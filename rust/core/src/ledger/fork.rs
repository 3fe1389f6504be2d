//! Forks: new sequences that continue open ones.

use crate::error::LedgerError;
use crate::ids::{Handle, PAGE_ZERO, Row, count};
use crate::ledger::room::Filled;
use crate::ledger::{Ledger, Move, REFUSED_NO_ROW, REFUSED_NOW, check_len};

/// The blocks of a parent, by what a fork does with them.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Leading blocks that both use.
    shared: u32,
    /// Blocks with written tokens, of which those after the shared ones are copied.
    written: u32,
    /// All blocks.
    held: u32,
}

impl Ledger {
    /// Forks sequences in order, each all or nothing. Writes the new handle or a negative reason per
    /// item; returns how many were forked. The copies that this needs are queued for `step`.
    ///
    /// # Errors
    ///
    /// For a step that is not open and a handle that is stale; [`LedgerError::StepInFlight`] for a
    /// parent that runs a step, [`LedgerError::CopiesWaiting`] for one whose own copies were not handed
    /// out. Nothing has changed then.
    pub fn fork(
        &mut self,
        step: u64,
        handle: &[i64],
        out: &mut [i64],
    ) -> Result<usize, LedgerError> {
        self.steps.check_open(step)?;
        check_len("out", out.len(), handle.len())?;
        for (item, &handle) in handle.iter().enumerate() {
            self.check_fork(item, handle)?;
        }
        let mut forked = 0;
        for (&handle, out) in handle.iter().zip(out) {
            let parent = Handle::from_i64(handle).expect("checked above").row;
            match self.fork_one(step, parent) {
                Ok(row) => {
                    let generation = self.sequences[row.at()].generation;
                    *out = Handle { generation, row }.to_i64();
                    forked += 1;
                }
                Err(reason) => {
                    self.counters.refused_forks += 1;
                    *out = reason;
                }
            }
        }
        Ok(forked)
    }

    fn check_fork(&self, item: usize, handle: i64) -> Result<(), LedgerError> {
        let row = self.open_row(item, handle)?;
        self.check_settled(item, handle, row)?;
        if self.sequences[row.at()].loading > 0 {
            return Err(LedgerError::Loading { item, handle });
        }
        let Parts {
            shared, written, ..
        } = self.parts(row);
        let waits = |copy: &&Move| {
            let place = self.classes.place(copy.class as usize);
            let pages = self.pages_of(row, place);
            let copied = if place < self.classes.columns() {
                &pages[shared as usize..written as usize]
            } else {
                pages
            };
            copied.contains(&copy.destination)
        };
        match self.moves.iter().filter(waits).count() {
            0 => Ok(()),
            moves => Err(LedgerError::CopiesWaiting {
                item,
                handle,
                moves,
            }),
        }
    }

    /// Checks that a sequence runs no step whose results are open.
    pub(crate) fn check_settled(
        &self,
        item: usize,
        handle: i64,
        row: Row,
    ) -> Result<(), LedgerError> {
        match self.sequences[row.at()].widths.oldest() {
            (_, 0) => Ok(()),
            (step, _) => Err(LedgerError::StepInFlight { item, handle, step }),
        }
    }

    fn parts(&self, row: Row) -> Parts {
        let size = self.config.tokens_per_block;
        let seq = &self.sequences[row.at()];
        Parts {
            // Above its history a role may still have to write, so those blocks are not shared.
            shared: if seq.keeps_tokens {
                seq.published
            } else {
                seq.history() / size
            },
            written: seq.reach().div_ceil(size),
            held: seq.held,
        }
    }

    fn fork_one(&mut self, step: u64, parent: Row) -> Result<Row, i64> {
        if self.free_rows.is_empty() {
            return Err(REFUSED_NO_ROW);
        }
        let parts = self.parts(parent);
        let need = parts.held - parts.shared;
        let seq = &self.sequences[parent.at()];
        let (counted, scope) = (self.counted(need, seq.keeps_tokens), seq.scope);
        let blocks = u64::from(counted) + u64::from(seq.promise()) + self.promised;
        let other = |place: usize| {
            let own = self.fork_need(parent, parts, place);
            (u64::from(own) + self.fork_promise(parent, place), 0)
        };
        if !self.has_blocks(scope, blocks, 0, other) {
            return Err(REFUSED_NOW);
        }
        let needs: Vec<u32> = (0..self.pools.len())
            .map(|place| self.fork_need(parent, parts, place))
            .collect();
        let row = self.continue_in_new_row(parent, parts.shared);
        self.make_room(scope, counted, |place| needs[place]);
        let full = self.classes.full();
        let filled: Filled = (full..self.classes.columns())
            .map(|place| {
                let theirs = &self.pages_of(parent, place)[parts.shared as usize..];
                theirs.iter().map(|&page| page != PAGE_ZERO).collect()
            })
            .collect();
        self.take_columns(row, need, Some(&filled));
        self.take_own(row);
        self.copy_tokens(parent, row);
        self.queue_fork_copies(step, parent, row, parts);
        self.counters.forked += 1;
        Ok(row)
    }

    /// Pages that a fork takes of its own in the class at a place.
    fn fork_need(&self, parent: Row, parts: Parts, place: usize) -> u32 {
        let pages = self.pages_of(parent, place);
        if place < self.classes.columns() {
            let own = &pages[parts.shared as usize..];
            count(own.iter().filter(|&&page| page != PAGE_ZERO).count())
        } else {
            count(pages.len())
        }
    }

    /// Pages kept in a class that is not full for what was promised, the fork's own promise included.
    fn fork_promise(&self, parent: Row, place: usize) -> u64 {
        let window = place - self.classes.full();
        let windows = self.promised_windows.len();
        if window >= windows {
            return 0;
        }
        let own = self.windows[parent.at() * windows + window].promise;
        u64::from(own) + self.promised_at(place)
    }

    /// Opens a row with the parent's lengths and its shared blocks.
    fn continue_in_new_row(&mut self, parent: Row, shared: u32) -> Row {
        let free = self.free_rows.pop().expect("a row was checked to be free");
        let row = Row::new(free.0);
        let (classes, full) = (self.pools.len(), self.classes.full());
        let publishes = self.sequences[parent.at()].keeps_tokens;
        for place in 0..self.classes.columns() {
            let pages = &self.tables[parent.at() * classes + place].pages[..shared as usize];
            let pages = pages.to_vec();
            let held = pages.iter().copied().filter(|&page| page != PAGE_ZERO);
            if !publishes {
                self.pools[place].share(&held.collect::<Vec<_>>());
            } else if place >= full {
                for page in held {
                    self.sides.at_mut(place).pin(page, &self.steps);
                }
            }
            self.tables[row.at() * classes + place].pages = pages;
        }
        self.continue_windows(parent, row, shared);
        let [from, seq] = self
            .sequences
            .get_disjoint_mut([parent.at(), row.at()])
            .expect("a free row is not the row of an open sequence");
        seq.generation += 1;
        seq.open = true;
        seq.scope = from.scope;
        seq.draft_from = from.draft_from;
        seq.max_total = from.max_total;
        seq.hints.clone_from(&from.hints);
        seq.known = from.known;
        seq.valid = from.valid;
        seq.prompt_blocks = from.prompt_blocks;
        seq.held = shared;
        seq.published = from.published;
        seq.node = from.node;
        seq.keeps_tokens = from.keeps_tokens;
        seq.counts_blocks = from.counts_blocks;
        // What is taken now comes off at once, in `take`.
        self.promised += u64::from(seq.promise());
        if seq.keeps_tokens {
            let node = seq.node;
            self.tree.pin(node, &self.steps);
        }
        self.touch(row, 0, shared);
        row
    }

    /// Gives the new sequence the tokens of the parent's private blocks, and those without a block.
    fn copy_tokens(&mut self, parent: Row, row: Row) {
        let [from, seq] = self
            .sequences
            .get_disjoint_mut([parent.at(), row.at()])
            .expect("a fork has a row of its own");
        seq.pending.extend_from_slice(from.pending());
        for (&theirs, &mine) in from.blocks.iter().zip(&seq.blocks) {
            self.blocks.copy(theirs, mine);
        }
    }

    fn queue_fork_copies(&mut self, step: u64, parent: Row, row: Row, parts: Parts) {
        let (size, columns) = (self.config.tokens_per_block, self.classes.columns());
        let reach = self.sequences[parent.at()].reach();
        let queued = self.moves.len();
        for block in parts.shared..parts.written {
            let tokens = size.min(reach - block * size);
            for class in 0..self.pools.len() {
                let place = self.classes.place(class);
                if place < columns {
                    self.queue_fork_copy(step, (parent, row), place, block, tokens);
                }
            }
            self.counters.copied_blocks += 1;
        }
        for class in 0..self.pools.len() {
            let place = self.classes.place(class);
            if place < columns {
                continue;
            }
            let states = self.classes.states().contains(&place);
            for column in 0..count(self.pages_of(parent, place).len()) {
                let tokens = if states {
                    1
                } else {
                    size.min(self.classes.cross_tokens(place) - column * size)
                };
                self.queue_fork_copy(step, (parent, row), place, column, tokens);
            }
        }
        if self.moves.len() > queued {
            self.steps.fence_copies(step);
        }
    }

    /// Queues the copy of one page, if the parent has it.
    fn queue_fork_copy(
        &mut self,
        step: u64,
        (parent, row): (Row, Row),
        place: usize,
        column: u32,
        tokens: u32,
    ) {
        let source = self.pages_of(parent, place)[column as usize];
        if source == PAGE_ZERO {
            return;
        }
        self.moves.push(Move {
            step,
            class: self.classes.class(place),
            source,
            destination: self.pages_of(row, place)[column as usize],
            tokens,
        });
    }
}

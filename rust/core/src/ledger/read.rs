//! Tables, updates, moves, matches and statistics.

use crate::error::LedgerError;
use crate::ids::{Handle, PageIndex, Row, Token};
use crate::ledger::{Ledger, check_len, check_range};
use crate::stats::{ClassStats, Stats};

/// A copy that the engine must run before the step it was queued in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// The step whose kernels read the destination.
    pub step: u64,
    /// The class both pages belong to.
    pub class: u32,
    /// The page to read, of both roles.
    pub source: PageIndex,
    /// The page to write.
    pub destination: PageIndex,
    /// Leading tokens to copy.
    pub tokens: u32,
}

impl Ledger {
    /// The usable length for exactly these tokens. Takes nothing and changes nothing.
    ///
    /// # Errors
    ///
    /// For a token, scope or `draft_from` out of range.
    pub fn match_tokens(
        &self,
        tokens: &[Token],
        scope: i32,
        draft_from: Option<i32>,
    ) -> Result<u32, LedgerError> {
        let draft_from = self.check_query(tokens, scope, draft_from)?;
        if !self.config.reuse || scope < 0 {
            return Ok(0);
        }
        let draft_from = self.draft_need(draft_from);
        let found = self
            .tree
            .find(&self.blocks, scope, tokens, draft_from, self.hit_unit());
        Ok(self.accepted(found.tail, found.usable, self.hit_unit()))
    }

    /// Checks the arguments of a match; returns `draft_from`, or what stands for none.
    pub(super) fn check_query(
        &self,
        tokens: &[Token],
        scope: i32,
        draft_from: Option<i32>,
    ) -> Result<i32, LedgerError> {
        self.check_scope(0, scope)?;
        let max = if self.config.has_draft { i32::MAX } else { -1 };
        let draft_from = draft_from.unwrap_or(if self.config.has_draft { 0 } else { -1 });
        check_range("draft_from", 0, draft_from.into(), -1, max.into())?;
        self.check_prompt(0, tokens)?;
        Ok(draft_from)
    }

    /// Copies queued and not taken yet.
    #[must_use]
    pub fn pending_moves(&self) -> &[Move] {
        &self.moves
    }

    /// Takes the queued copies, in order.
    pub fn take_moves(&mut self) -> Vec<Move> {
        std::mem::take(&mut self.moves)
    }

    /// Writes the block table of the sequences: `out` is `[classes, n, width]`, page 0 beyond a row's
    /// blocks; `used` is `[classes, n]`, the blocks of each row.
    ///
    /// # Errors
    ///
    /// For a stale handle, or a `width` below the blocks of a row; nothing has been written then. The
    /// same handle may appear twice.
    pub fn table(
        &self,
        handle: &[i64],
        width: usize,
        out: &mut [u32],
        used: &mut [u32],
    ) -> Result<(), LedgerError> {
        let (n, classes) = (handle.len(), self.num_classes());
        check_len("used", used.len(), classes * n)?;
        check_len("dst", out.len(), classes * n * width)?;
        for (item, &handle) in handle.iter().enumerate() {
            let row = self.open_row(item, handle)?;
            let tables = &self.tables[row.at() * classes..][..classes];
            let columns = tables.iter().map(|table| table.pages.len()).max();
            let columns = i64::try_from(columns.unwrap_or(0)).unwrap_or(i64::MAX);
            let width = i64::try_from(width).unwrap_or(i64::MAX);
            check_range("blocks of row", item, columns, 0, width)?;
        }
        if width == 0 {
            used.fill(0);
            return Ok(());
        }
        for class in 0..classes {
            let rows = &mut out[class * n * width..][..n * width];
            let used = &mut used[class * n..][..n];
            let place = self.classes.place(class);
            for ((&handle, out), used) in handle.iter().zip(rows.chunks_exact_mut(width)).zip(used)
            {
                let row = Handle::from_i64(handle).expect("checked above").row;
                let pages = self.pages_of(row, place);
                let (owned, rest) = out.split_at_mut(pages.len());
                for (out, page) in owned.iter_mut().zip(pages) {
                    *out = page.get();
                }
                rest.fill(0);
                *used = crate::ids::count(pages.len());
            }
        }
        Ok(())
    }

    /// How many records [`Ledger::updates`] would write.
    #[must_use]
    pub fn pending_updates(&self) -> usize {
        let classes = self.pools.len();
        let mut changed = 0;
        for row in &self.dirty_rows {
            for table in &self.tables[row.at() * classes..][..classes] {
                table.changes(|_, _| changed += 1);
            }
        }
        changed
    }

    /// Writes (row, class, column, page) for every table entry that differs from what the last call
    /// left, ordered by row, class and column. Returns how many there are.
    ///
    /// # Errors
    ///
    /// [`LedgerError::BufferTooSmall`] if `out` has fewer records; nothing is consumed then.
    pub fn updates(&mut self, out: &mut [[u32; 4]]) -> Result<usize, LedgerError> {
        let classes = self.pools.len();
        self.dirty_rows.sort_unstable();
        let mut written = 0;
        for row in &self.dirty_rows {
            for (class, &place) in self.classes.places().iter().enumerate() {
                self.tables[row.at() * classes + place].changes(|column, page| {
                    if let Some(record) = out.get_mut(written) {
                        *record = [row.get(), crate::ids::count(class), column, page.get()];
                    }
                    written += 1;
                });
            }
        }
        if written > out.len() {
            let required = written;
            return Err(LedgerError::BufferTooSmall {
                argument: "out",
                len: out.len(),
                required,
            });
        }
        for row in self.dirty_rows.drain(..) {
            self.sequences[row.at()].listed = false;
            for table in &mut self.tables[row.at() * classes..][..classes] {
                table.show();
            }
        }
        Ok(written)
    }

    /// Counts by state and counters since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let classes = self.classes.places().iter().map(|&place| {
            let pool = &self.pools[place];
            let (cached, evictable, waiting) = match self.sides.get(place) {
                Some(side) => (side.cached(), side.evictable(), side.waiting_total()),
                None if place < self.classes.full() => (
                    self.tree.cached(),
                    self.tree.evictable(),
                    self.tree.waiting_total(),
                ),
                None => (0, 0, 0),
            };
            let (total, free, fenced) = (pool.num_pages(), pool.free_count(), pool.fenced_count());
            ClassStats {
                total,
                reserved: 1,
                free,
                fenced,
                live: total - 1 - free - fenced - cached,
                cached,
                protected: cached - evictable - waiting,
                evictable,
                promised: if place < self.classes.full() {
                    self.promised
                } else {
                    self.promised_at(place)
                },
            }
        });
        Stats {
            classes: classes.collect(),
            open_sequences: self.open_sequences(),
            suspended_sequences: self.suspended,
            promised: u32::try_from(self.promised).unwrap_or(u32::MAX),
            open_steps: crate::ids::count(self.steps.open().len()),
            newest_step: self.steps.newest(),
            nodes: crate::ids::count(self.tree.nodes.len()),
            cached_blocks: self.tree.cached(),
            leases: self.leases.count(),
            pinned_blocks: self.tree.leased(),
            guarded_blocks: self.tree.shares.guarded(),
            counters: self.counters,
        }
    }

    /// The row of an open sequence that is not suspended.
    pub(crate) fn open_row(&self, item: usize, handle: i64) -> Result<Row, LedgerError> {
        let row = self.any_row(item, handle)?;
        if self.sequences[row.at()].suspended {
            return Err(LedgerError::Suspended { item, handle });
        }
        Ok(row)
    }

    /// The row of an open sequence, suspended or not.
    pub(crate) fn any_row(&self, item: usize, handle: i64) -> Result<Row, LedgerError> {
        let stale = LedgerError::StaleHandle { item, handle };
        let parts = Handle::from_i64(handle).ok_or(stale.clone())?;
        match self.sequences.get(parts.row.at()) {
            Some(seq) if seq.open && seq.generation == parts.generation => Ok(parts.row),
            _ => Err(stale),
        }
    }
}

//! Room for the tokens of a step.

use crate::error::LedgerError;
use crate::ids::{Handle, Row};
use crate::ledger::{Ledger, check_len, check_range};

impl Ledger {
    /// Makes room for `width` tokens per sequence in `step`, in order, each all or nothing. Writes 1 or
    /// 0 per sequence and returns how many were given room.
    ///
    /// # Errors
    ///
    /// For a step that is not open, a handle that is stale or appears twice, a width out of range or a
    /// step that was grown already; nothing has changed then.
    pub fn grow(
        &mut self,
        step: u64,
        handle: &[i64],
        width: &[i32],
        stop_at_first: bool,
        ok: &mut [u8],
    ) -> Result<usize, LedgerError> {
        self.steps.check_open(step)?;
        check_len("width", width.len(), handle.len())?;
        check_len("ok", ok.len(), handle.len())?;
        self.calls += 1;
        let row_tokens = self.config.row_tokens();
        for (item, (&handle, &width)) in handle.iter().zip(width).enumerate() {
            self.check_grow(item, step, handle, width, row_tokens)?;
        }
        let mut grown = 0;
        let mut stopped = false;
        for ((&handle, &width), ok) in handle.iter().zip(width).zip(ok) {
            let row = Handle::from_i64(handle).expect("checked above").row;
            let fits = !stopped && self.grow_one(step, row, width.cast_unsigned());
            *ok = u8::from(fits);
            grown += usize::from(fits);
            if !fits {
                stopped |= stop_at_first;
            }
        }
        Ok(grown)
    }

    #[inline]
    fn check_grow(
        &mut self,
        item: usize,
        step: u64,
        handle: i64,
        width: i32,
        row_tokens: u32,
    ) -> Result<(), LedgerError> {
        let row = self.check_handle(item, handle)?;
        let seq = &self.sequences[row.at()];
        let recorded = seq.widths.newest();
        let taken = seq.reach() + seq.outstanding + self.config.extra_tokens;
        let most = row_tokens.saturating_sub(taken);
        // One test for the common case: a width of 0 or below wraps around to more than any room.
        if recorded < step && width.cast_unsigned().wrapping_sub(1) < most {
            return Ok(());
        }
        if recorded >= step {
            return Err(LedgerError::StepAlreadyGrown {
                item,
                step,
                recorded,
            });
        }
        check_range("width", item, width.into(), 1, most.into())
    }

    #[inline]
    fn grow_one(&mut self, step: u64, row: Row, width: u32) -> bool {
        let size = self.config.tokens_per_block;
        let seq = &self.sequences[row.at()];
        let tokens = seq.reach() + seq.outstanding + width + self.config.extra_tokens;
        // Most steps stay inside the blocks that are there; that needs no division.
        if u64::from(tokens) > u64::from(seq.held) * u64::from(size) {
            let need = tokens.div_ceil(size) - seq.held;
            let columns = self.classes.columns();
            let counted = self.counted(need, seq.keeps_tokens);
            let other = |place| (if place < columns { need.into() } else { 0 }, 0);
            if !self.has_blocks(counted.into(), 0, other) {
                self.counters.refused_grows += 1;
                return false;
            }
            self.grow_blocks(row, need);
        }
        if self.config.snapshot_interval > 0 {
            self.take_snapshots(step, row);
        }
        let seq = &mut self.sequences[row.at()];
        seq.widths.push(step, width);
        seq.outstanding += width;
        true
    }

    fn grow_blocks(&mut self, row: Row, need: u32) {
        self.take(row, need);
        self.place_pending(row);
        self.counters.grown_blocks += u64::from(need);
    }

    /// Moves known tokens that waited for a block into the blocks that the row has now.
    pub(crate) fn place_pending(&mut self, row: Row) {
        let size = self.blocks.tokens_per_block();
        let seq = &mut self.sequences[row.at()];
        let mut waiting = seq.pending.len() - seq.pending_head;
        if waiting == 0 {
            return;
        }
        let mut at = seq.known as usize - waiting - seq.published as usize * size;
        let first = at / size;
        while waiting > 0 && at / size < seq.blocks.len() {
            let part = waiting.min(size - at % size);
            let record = self.blocks.tokens_mut(seq.blocks[at / size]);
            let from = seq.pending_head;
            record[at % size..at % size + part].copy_from_slice(&seq.pending[from..from + part]);
            seq.pending_head += part;
            at += part;
            waiting -= part;
        }
        let written = first..at.div_ceil(size).max(first);
        self.blocks.note_media(&seq.blocks[written]);
        if waiting == 0 {
            seq.pending.clear();
            seq.pending_head = 0;
        }
    }
}

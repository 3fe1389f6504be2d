//! Room for the tokens of a step.

use crate::error::LedgerError;
use crate::ids::{Handle, Row, count};
use crate::ledger::{Ledger, check_len, check_range, current};

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
        self.check_growth(step, handle, width)?;
        let mut grown = 0;
        let mut stopped = false;
        for item in 0..handle.len() {
            let row = Handle::row_of(handle[item]);
            let fits = !stopped && self.grow_one(step, row, width[item].cast_unsigned());
            ok[item] = u8::from(fits);
            grown += usize::from(fits);
            stopped |= stop_at_first && !fits;
        }
        Ok(grown)
    }

    /// Checks the arguments of a call that has been numbered.
    fn check_growth(
        &mut self,
        step: u64,
        handle: &[i64],
        width: &[i32],
    ) -> Result<(), LedgerError> {
        let (sequences, call) = (self.sequences.as_mut_slice(), self.calls);
        let extra = u64::from(self.config.extra_tokens);
        let row_tokens = u64::from(self.config.row_tokens());
        for item in 0..handle.len() {
            let width = width[item];
            let seq = current(sequences, call, item, handle[item])?;
            let recorded = seq.widths.newest();
            let taken = u64::from(seq.reach()) + u64::from(seq.outstanding) + extra;
            if recorded < step
                && width > 0
                && taken + u64::from(width.cast_unsigned()) <= row_tokens
            {
                continue;
            }
            if recorded >= step {
                return Err(LedgerError::StepAlreadyGrown {
                    item,
                    step,
                    recorded,
                });
            }
            let most = i64::try_from(row_tokens.saturating_sub(taken)).unwrap_or(i64::MAX);
            check_range("width", item, width.into(), 1, most)?;
        }
        Ok(())
    }

    #[inline]
    fn grow_one(&mut self, step: u64, row: Row, width: u32) -> bool {
        let size = u64::from(self.config.tokens_per_block);
        let extra = u64::from(self.config.extra_tokens);
        let seq = &self.sequences[row.at()];
        let outstanding = seq.outstanding + width;
        let tokens = u64::from(seq.reach()) + u64::from(outstanding) + extra;
        // Most steps stay inside the blocks that are there; that needs no division.
        if tokens > u64::from(seq.held) * size && !self.grow_blocks(row, tokens) {
            return false;
        }
        if self.config.snapshot_interval > 0 {
            self.take_snapshots(step, row);
        }
        let seq = &mut self.sequences[row.at()];
        seq.widths.push(step, width);
        seq.outstanding = outstanding;
        true
    }

    /// Takes the blocks that a row misses for `tokens` tokens, if they can be had.
    #[inline(never)]
    fn grow_blocks(&mut self, row: Row, tokens: u64) -> bool {
        let seq = &self.sequences[row.at()];
        let blocks = tokens.div_ceil(self.config.tokens_per_block.into());
        let need = u32::try_from(blocks).expect("checked to fit the row") - seq.held;
        let columns = self.classes.columns();
        let counted = self.counted(need, seq.keeps_tokens);
        let other = |place| (if place < columns { need.into() } else { 0 }, 0);
        if !self.has_blocks(seq.scope, counted.into(), 0, other) {
            self.counters.refused_grows += 1;
            return false;
        }
        self.take(row, need);
        self.place_pending(row);
        self.counters.grown_blocks += u64::from(need);
        true
    }

    /// Moves known tokens that waited for a block into the blocks that the row has now.
    pub(crate) fn place_pending(&mut self, row: Row) {
        let seq = &mut self.sequences[row.at()];
        let mut waiting = seq.pending().len();
        if waiting == 0 {
            return;
        }
        let size = self.blocks.tokens_per_block();
        let at = seq.known as usize - waiting - seq.published as usize * size;
        let first = (at / size).min(seq.blocks.len());
        let (mut end, mut within) = (first, at % size);
        for &block in &seq.blocks[first..] {
            let part = waiting.min(size - within);
            let tokens = &seq.pending()[..part];
            self.blocks.write(block, within, tokens);
            seq.pending_head += count(part);
            (within, end) = (0, end + 1);
            waiting -= part;
            if waiting == 0 {
                seq.pending.clear();
                seq.pending_head = 0;
                break;
            }
        }
        self.blocks.note_media(&seq.blocks[first..end]);
    }
}

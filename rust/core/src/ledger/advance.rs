//! The results of a step: tokens, lengths, and what is given back.

use crate::error::LedgerError;
use crate::ids::{Handle, Row, Token};
use crate::ledger::prepare::{check_tokens, tokens_in_range};
use crate::ledger::{Ledger, check_len, check_range};
use crate::sequence::{DRAFT, Sequence, TARGET};

/// How the tokens of a step are laid out.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// One row of so many tokens per sequence, of which the first `count` are given.
    Matrix(usize),
    /// Where each sequence's tokens start.
    Packed(&'a [usize]),
}

/// The arguments of [`Ledger::advance`], one entry per sequence.
#[derive(Debug, Clone, Copy)]
pub struct AdvanceBatch<'a> {
    /// The sequences.
    pub handle: &'a [i64],
    /// The tokens, as `rows` says.
    pub tokens: &'a [Token],
    /// Where each sequence's tokens are.
    pub rows: Rows<'a>,
    /// Tokens to append.
    pub count: &'a [i32],
    /// Ends of the valid KV, two per sequence (target, draft), or by the rule of `docs/ledger.md`.
    pub valid: Option<&'a [i32]>,
}

impl AdvanceBatch<'_> {
    /// The most tokens that one item can have.
    #[inline]
    fn columns(&self) -> usize {
        match self.rows {
            Rows::Matrix(columns) => columns,
            Rows::Packed(_) => self.tokens.len(),
        }
    }

    /// The first `count` tokens of an item.
    #[inline]
    fn given(&self, item: usize, count: u32) -> &[Token] {
        let start = match self.rows {
            Rows::Matrix(columns) => item * columns,
            Rows::Packed(starts) => starts[item],
        };
        &self.tokens[start..][..count as usize]
    }
}

impl Ledger {
    /// Ends `step` for the sequences: appends tokens, moves their lengths, publishes full blocks and
    /// gives back room that is not needed.
    ///
    /// # Errors
    ///
    /// For a step that never began or is not the oldest that a sequence ran, a handle that is stale or
    /// appears twice, and counts, tokens or lengths out of range; nothing has changed then.
    pub fn advance(&mut self, step: u64, batch: &AdvanceBatch<'_>) -> Result<(), LedgerError> {
        self.steps.check_begun(step)?;
        let n = batch.handle.len();
        check_len("count", batch.count.len(), n)?;
        match batch.rows {
            Rows::Matrix(columns) => check_len("tokens", batch.tokens.len(), n * columns)?,
            Rows::Packed(starts) => check_len("tokens", starts.len(), n)?,
        }
        if let Some(valid) = batch.valid {
            check_len("valid", valid.len(), 2 * n)?;
        }
        self.calls += 1;
        for item in 0..n {
            self.check_advance(item, step, batch)?;
        }
        for item in 0..n {
            let row = Handle::from_i64(batch.handle[item])
                .expect("checked above")
                .row;
            let tokens = batch.given(item, batch.count[item].cast_unsigned());
            let valid = batch.valid.map(|valid| {
                [
                    valid[2 * item].cast_unsigned(),
                    valid[2 * item + 1].cast_unsigned(),
                ]
            });
            self.advance_one(row, tokens, valid);
        }
        Ok(())
    }

    #[inline]
    fn check_advance(
        &mut self,
        item: usize,
        step: u64,
        batch: &AdvanceBatch<'_>,
    ) -> Result<(), LedgerError> {
        let row = self.check_handle(item, batch.handle[item])?;
        let seq = &self.sequences[row.at()];
        let (recorded, width) = seq.widths.oldest();
        let end = seq.reach() + width;
        let count = batch.count[item].cast_unsigned();
        // One test for the common case; which rule is broken is found out only if one is.
        let fine = recorded == step
            && count as usize <= batch.columns()
            && (count == 0
                || (seq.known <= end
                    && count <= end + 1 - seq.known
                    && count <= seq.max_total - seq.known
                    && (!seq.keeps_tokens || tokens_in_range(batch.given(item, count)))));
        if fine && batch.valid.is_none() {
            return Ok(());
        }
        self.explain_advance(item, step, row, batch)
    }

    /// Names the first rule that an item breaks, if any.
    fn explain_advance(
        &self,
        item: usize,
        step: u64,
        row: Row,
        batch: &AdvanceBatch<'_>,
    ) -> Result<(), LedgerError> {
        let seq = &self.sequences[row.at()];
        let (recorded, width) = seq.widths.oldest();
        if recorded != step {
            return Err(LedgerError::StepNotGrown {
                item,
                step,
                recorded,
            });
        }
        let count = i64::from(batch.count[item]);
        let columns = i64::try_from(batch.columns()).unwrap_or(i64::MAX);
        check_range("count", item, count, 0, columns)?;
        let (known, end) = (
            i64::from(seq.known),
            i64::from(seq.reach()) + i64::from(width),
        );
        if count > 0 {
            if known > end {
                return Err(LedgerError::AppendInsideKnown {
                    item,
                    count,
                    step,
                    end,
                    known,
                });
            }
            let most = (end + 1 - known).min(i64::from(seq.max_total) - known);
            check_range("count", item, count, 0, most)?;
            if seq.keeps_tokens {
                check_tokens(item, batch.given(item, batch.count[item].cast_unsigned()))?;
            }
        }
        if let Some(valid) = batch.valid {
            let most = (known + count).min(end);
            for (role, argument) in [(TARGET, "valid[target]"), (DRAFT, "valid[draft]")] {
                let used = role == TARGET || seq.has_draft();
                let most = if used { most } else { 0 };
                let value = valid[2 * item + role].into();
                check_range(argument, item, value, seq.valid[role].into(), most)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn advance_one(&mut self, row: Row, tokens: &[Token], valid: Option<[u32; 2]>) {
        let size = self.config.tokens_per_block;
        if !tokens.is_empty() {
            self.append(row, tokens);
        }
        let seq = &mut self.sequences[row.at()];
        let (_, width) = seq.widths.oldest();
        seq.widths.pop_oldest();
        seq.outstanding -= width;
        let ran = seq.reach() + width;
        move_ends(seq, width, !tokens.is_empty(), valid);
        let reach = seq.reach();
        self.counters.accepted_tokens += tokens.len() as u64;
        self.counters.rewound_tokens += u64::from(ran.saturating_sub(reach));
        let room = u64::from(reach + seq.outstanding + self.config.extra_tokens);
        let capacity = u64::from(seq.held) * u64::from(size);
        if seq.keeps_tokens && (seq.published + 1) * size <= seq.history() {
            self.publish_full(row);
        }
        // Whole blocks are beyond what is needed; most steps have none, which needs no division.
        if room + u64::from(size) <= capacity {
            let blocks = room.div_ceil(u64::from(size));
            self.shrink(row, u32::try_from(blocks).expect("fewer than there are"));
        }
        if !self.promised_windows.is_empty() {
            self.prune(row);
        }
    }

    #[inline]
    fn append(&mut self, row: Row, tokens: &[Token]) {
        let seq = &mut self.sequences[row.at()];
        let known = seq.known;
        seq.known += crate::ids::count(tokens.len());
        if !seq.keeps_tokens {
            return;
        }
        let size = self.config.tokens_per_block;
        // Decoded tokens nearly always land in the last block.
        if let (Some(at), Some(&last)) = (
            known.checked_sub(seq.held.saturating_sub(1) * size),
            seq.blocks.last(),
        ) && at as usize + tokens.len() <= size as usize
        {
            self.blocks.tokens_mut(last)[at as usize..][..tokens.len()].copy_from_slice(tokens);
            return;
        }
        seq.pending.extend_from_slice(tokens);
        self.place_pending(row);
    }

    /// Gives back the blocks from ordinal `blocks` on; known tokens in them wait for the next ones.
    fn shrink(&mut self, row: Row, blocks: u32) {
        if self.sequences[row.at()].keeps_tokens {
            let size = self.blocks.tokens_per_block();
            let seq = &mut self.sequences[row.at()];
            let placed = seq.known as usize - seq.pending().len();
            let mut moved = Vec::new();
            for at in blocks as usize * size..placed {
                let block = seq.blocks[at / size - seq.published as usize];
                moved.push(self.blocks.tokens(block)[at % size]);
            }
            if !moved.is_empty() {
                moved.extend_from_slice(seq.pending());
                seq.pending = moved;
                seq.pending_head = 0;
            }
        }
        self.give_back_from(row, blocks);
    }
}

/// Sets the ends of the valid KV after a step that ran `width` tokens.
#[inline]
fn move_ends(seq: &mut Sequence, width: u32, appended: bool, valid: Option<[u32; 2]>) {
    if let Some(valid) = valid {
        seq.valid = valid;
        return;
    }
    // The token sampled last has no KV yet.
    let end = (seq.known - u32::from(appended)).min(seq.history() + width);
    seq.valid[TARGET] = seq.valid[TARGET].max(end);
    if seq.has_draft() {
        seq.valid[DRAFT] = seq.valid[DRAFT].max(end);
    }
}

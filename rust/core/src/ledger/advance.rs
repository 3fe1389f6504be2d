//! The results of a step: tokens, lengths, and what is given back.

use crate::blocks::Blocks;
use crate::error::LedgerError;
use crate::ids::{Handle, Row, Token};
use crate::ledger::prepare::{check_tokens, tokens_in_range};
use crate::ledger::{Ledger, check_len, check_range, current};
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
        // Tokens that do not count may be anything; each item's are looked at then.
        let in_range = tokens_in_range(batch.tokens);
        let mut from = 0;
        while let Some(item) = self.check_usual(from, step, batch, in_range)? {
            self.explain_advance(item, step, batch)?;
            from = item + 1;
        }
        let (mut accepted, mut rewound) = (0, 0);
        for item in 0..n {
            let row = Handle::row_of(batch.handle[item]);
            let tokens = batch.given(item, batch.count[item].cast_unsigned());
            let valid = batch.valid.map(|valid| {
                let [target, draft] = [valid[2 * item], valid[2 * item + 1]];
                [target.cast_unsigned(), draft.cast_unsigned()]
            });
            accepted += tokens.len() as u64;
            rewound += u64::from(self.advance_one(row, tokens, valid));
        }
        self.counters.accepted_tokens += accepted;
        self.counters.rewound_tokens += rewound;
        Ok(())
    }

    /// Checks the items from `from` on, as far as they are usual; the first that is not. One test tells:
    /// which rule is broken is found out only if one is.
    fn check_usual(
        &mut self,
        from: usize,
        step: u64,
        batch: &AdvanceBatch<'_>,
        in_range: bool,
    ) -> Result<Option<usize>, LedgerError> {
        let (sequences, call) = (self.sequences.as_mut_slice(), self.calls);
        let (handle, count) = (batch.handle, &batch.count[..batch.handle.len()]);
        let columns = batch.columns();
        for item in from..handle.len() {
            let seq = current(sequences, call, item, handle[item])?;
            let (recorded, width) = seq.widths.oldest();
            let count = count[item].cast_unsigned();
            // With at least one token this also says that they follow what is known.
            let most = (u64::from(seq.reach()) + u64::from(width) + 1).min(seq.max_total.into());
            let fits = count == 0 || u64::from(seq.known) + u64::from(count) <= most;
            let usual = recorded == step
                && fits
                && count as usize <= columns
                && (in_range || !seq.keeps_tokens || tokens_in_range(batch.given(item, count)));
            if !usual || batch.valid.is_some() {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }

    /// Names the first rule that an item breaks, if any.
    fn explain_advance(
        &self,
        item: usize,
        step: u64,
        batch: &AdvanceBatch<'_>,
    ) -> Result<(), LedgerError> {
        let seq = &self.sequences[Handle::row_of(batch.handle[item]).at()];
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
            check_range("count", item, count, 0, end + 1 - known)?;
            if count > i64::from(seq.max_total) - known {
                return Err(LedgerError::BeyondMaxTotal {
                    item,
                    count,
                    known: seq.known,
                    max_total: seq.max_total,
                });
            }
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

    /// Ends the oldest step of a row. Returns how many of the tokens that it ran do not stand.
    ///
    /// Nearly always that moves a few numbers; what takes or gives blocks is a call of its own, so that
    /// it costs the others no registers.
    #[inline]
    fn advance_one(&mut self, row: Row, tokens: &[Token], valid: Option<[u32; 2]>) -> u32 {
        let size = u64::from(self.config.tokens_per_block);
        let seq = &mut self.sequences[row.at()];
        let placed = tokens.is_empty() || append(seq, &mut self.blocks, size, tokens);
        let width = seq.widths.pop_oldest();
        seq.outstanding -= width;
        let ran = seq.reach() + width;
        move_ends(seq, width, !tokens.is_empty(), valid);
        let reach = seq.reach();
        let publishes = publishes_more(seq, size);
        let excess = room(seq, self.config.extra_tokens) + size <= u64::from(seq.held) * size;
        let history = seq.history();
        if !placed || publishes || excess || self.leaves_pages(row, history) {
            self.settle_blocks(row);
        }
        ran.saturating_sub(reach)
    }

    /// Brings the blocks of a row up to its lengths.
    #[inline(never)]
    fn settle_blocks(&mut self, row: Row) {
        let size = u64::from(self.config.tokens_per_block);
        self.place_pending(row);
        if publishes_more(&self.sequences[row.at()], size) {
            self.publish_full(row);
        }
        let seq = &self.sequences[row.at()];
        let room = room(seq, self.config.extra_tokens);
        // Whole blocks are beyond what is needed; most steps have none, which needs no division.
        if room + size <= u64::from(seq.held) * size {
            let blocks = room.div_ceil(size);
            self.shrink(row, u32::try_from(blocks).expect("fewer than there are"));
        }
        if self.leaves_pages(row, self.sequences[row.at()].history()) {
            self.prune(row);
        }
    }

    /// Gives back the blocks from ordinal `blocks` on; known tokens in them wait for the next ones.
    fn shrink(&mut self, row: Row, blocks: u32) {
        let seq = &mut self.sequences[row.at()];
        if seq.keeps_tokens {
            let size = self.blocks.tokens_per_block();
            let placed = seq.known as usize - seq.pending().len();
            let from = blocks as usize * size;
            if placed > from {
                // In front of those that wait; mostly none do, and the buffer is there.
                let later = seq.pending().to_vec();
                seq.pending.clear();
                seq.pending_head = 0;
                let private = &seq.blocks[(blocks - seq.published) as usize..];
                let tokens = placed - from;
                self.blocks.read(private, 0, tokens, &mut seq.pending);
                seq.pending.extend_from_slice(&later);
            }
        }
        self.give_back_from(row, blocks);
    }
}

/// Appends tokens, of which there are some, to what is known. Whether they are in their block, if they
/// are kept at all; otherwise they wait for it.
#[inline]
fn append(seq: &mut Sequence, blocks: &mut Blocks, size: u64, tokens: &[Token]) -> bool {
    let (known, capacity) = (seq.known, u64::from(seq.held) * size);
    seq.known = known + crate::ids::count(tokens.len());
    if !seq.keeps_tokens {
        return true;
    }
    // Decoded tokens nearly always land in the last block.
    if u64::from(seq.known) <= capacity
        && let Some(at) = (u64::from(known) + size).checked_sub(capacity)
        && let Ok(at) = usize::try_from(at)
        && let Some(&last) = seq.blocks.last()
    {
        blocks.write(last, at, tokens);
        return true;
    }
    seq.pending.extend_from_slice(tokens);
    false
}

/// Whether blocks of a row can enter the tree, as far as its history tells.
#[inline]
fn publishes_more(seq: &Sequence, size: u64) -> bool {
    seq.keeps_tokens && u64::from(seq.published) * size + size <= seq.history().into()
}

/// Tokens that a row needs room for.
#[inline]
fn room(seq: &Sequence, extra_tokens: u32) -> u64 {
    u64::from(seq.reach()) + u64::from(seq.outstanding) + u64::from(extra_tokens)
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

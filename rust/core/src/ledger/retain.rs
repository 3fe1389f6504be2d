//! Retention hints: how long and how firmly parts of a sequence are to stay cached.

use crate::error::LedgerError;
use crate::ids::{Handle, Row};
use crate::ledger::{Ledger, check_len, check_range};
use crate::prefix::Retention;

/// The largest priority.
pub const PRIORITY_MAX: u8 = 100;

/// The arguments of [`Ledger::retain`], one entry per hint.
#[derive(Debug, Clone, Copy)]
pub struct RetainBatch<'a> {
    /// The sequences; one may appear several times.
    pub handle: &'a [i64],
    /// First token of each range.
    pub start: &'a [i64],
    /// Token after each range; -1: all that follow, generated ones too.
    pub end: &'a [i64],
    /// 0 ..= 100; blocks of lower priority are evicted first, those without a hint have 35.
    pub priority: &'a [i32],
    /// Milliseconds from the last `begin_step` after which the default holds again; -1: never.
    pub duration_ms: &'a [i64],
}

/// A hint of a sequence, in ordinals of blocks whose first token is in its range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hint {
    from: u32,
    to: u32,
    retention: Retention,
}

impl Ledger {
    /// Sets the priority of the blocks of open sequences, of those in the tree at once, of the others
    /// when they enter it. Later hints win over earlier ones.
    ///
    /// # Errors
    ///
    /// For a stale handle, or a range, priority or duration out of range; nothing has changed then.
    pub fn retain(&mut self, batch: &RetainBatch<'_>) -> Result<(), LedgerError> {
        let n = batch.handle.len();
        check_len("start", batch.start.len(), n)?;
        check_len("end", batch.end.len(), n)?;
        check_len("priority", batch.priority.len(), n)?;
        check_len("duration_ms", batch.duration_ms.len(), n)?;
        let longest = i64::from(self.config.max_seq_len);
        for (item, &handle) in batch.handle.iter().enumerate() {
            self.open_row(item, handle)?;
            let (start, end) = (batch.start[item], batch.end[item]);
            check_range("start", item, start, 0, longest)?;
            let least = if end == -1 { -1 } else { start };
            check_range("end", item, end, least, longest)?;
            let priority = batch.priority[item].into();
            check_range("priority", item, priority, 0, PRIORITY_MAX.into())?;
            check_range("duration_ms", item, batch.duration_ms[item], -1, 1 << 52)?;
        }
        for (item, &handle) in batch.handle.iter().enumerate() {
            let row = Handle::from_i64(handle).expect("checked above").row;
            let hint = self.hint(batch, item);
            self.retain_one(row, hint);
        }
        Ok(())
    }

    fn hint(&self, batch: &RetainBatch<'_>, item: usize) -> Hint {
        let size = self.config.tokens_per_block;
        let block = |token: i64| match u32::try_from(token) {
            Ok(token) => token.div_ceil(size),
            Err(_) => u32::MAX,
        };
        #[expect(clippy::cast_precision_loss, reason = "at most 2^52")]
        let until = match batch.duration_ms[item] {
            -1 => f64::INFINITY,
            ms => self.steps.now() + ms as f64 / 1000.0,
        };
        Hint {
            from: block(batch.start[item]),
            to: block(batch.end[item]),
            retention: Retention {
                priority: u8::try_from(batch.priority[item]).expect("checked to be in range"),
                until,
            },
        }
    }

    fn retain_one(&mut self, row: Row, hint: Hint) {
        let seq = &mut self.sequences[row.at()];
        if !seq.keeps_tokens || hint.from >= hint.to {
            return;
        }
        // A hint that hides an older one replaces it, so that repeated hints do not pile up.
        seq.hints
            .retain(|old| old.from < hint.from || hint.to < old.to);
        seq.hints.push(hint);
        let node = seq.node;
        let retention = hint.retention.at(self.steps.now());
        self.tree.retain(
            node,
            hint.from,
            hint.to,
            retention,
            &self.blocks,
            &self.steps,
        );
    }

    /// What the hints of a sequence say of its block `from`, and the end of the blocks, at most `end`,
    /// of which they say the same.
    pub(crate) fn retention(&self, row: Row, from: u32, end: u32) -> (Retention, u32) {
        let hints = &self.sequences[row.at()].hints;
        if hints.is_empty() {
            return (Retention::DEFAULT, end);
        }
        let now = self.steps.now();
        let of = |block| {
            let holds = |hint: &&Hint| (hint.from..hint.to).contains(&block);
            let hint = hints.iter().rev().find(holds);
            hint.map_or(Retention::DEFAULT, |hint| hint.retention.at(now))
        };
        let first = of(from);
        let same = (from + 1..end).find(|&block| of(block) != first);
        (first, same.unwrap_or(end))
    }
}

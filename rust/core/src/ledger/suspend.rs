//! Sequences that give up their pages and keep their tokens, and how they get pages again.

use crate::error::LedgerError;
use crate::ids::{Handle, Row, Token};
use crate::ledger::admit::Item;
use crate::ledger::prepare::Prepared;
use crate::ledger::{Ledger, check_len, check_publish, check_range};

impl Ledger {
    /// Takes the pages of sequences, as `release` does, and keeps their tokens, handles and rows. With
    /// `publish` not 0 their tails are published first.
    ///
    /// # Errors
    ///
    /// For a handle that is stale, suspended already or appears twice;
    /// [`LedgerError::StepInFlight`] for a sequence that runs a step. Nothing has changed then.
    pub fn suspend(&mut self, handle: &[i64], publish: &[u8]) -> Result<(), LedgerError> {
        check_len("publish", publish.len(), handle.len())?;
        check_publish(publish)?;
        self.calls += 1;
        for (item, &handle) in handle.iter().enumerate() {
            let row = self.check_handle(item, handle)?;
            self.check_settled(item, handle, row)?;
        }
        for (&handle, &publish) in handle.iter().zip(publish) {
            let row = Handle::from_i64(handle).expect("checked above").row;
            self.suspend_one(row, publish != 0);
        }
        Ok(())
    }

    pub(super) fn suspend_one(&mut self, row: Row, publish: bool) {
        let tokens = self.known_tokens(row);
        let known = self.sequences[row.at()].known;
        self.leave(row, publish);
        let seq = &mut self.sequences[row.at()];
        seq.suspended = true;
        seq.known = known;
        // None of them has a block.
        seq.pending = tokens;
        self.suspended += 1;
        self.counters.suspended += 1;
    }

    /// The tokens of a sequence that keeps them.
    fn known_tokens(&self, row: Row) -> Vec<Token> {
        let seq = &self.sequences[row.at()];
        if !seq.keeps_tokens {
            return Vec::new();
        }
        let size = self.blocks.tokens_per_block();
        let mut tokens = Vec::with_capacity(seq.known as usize);
        let mut path: Vec<_> = self.tree.upwards(seq.node).collect();
        path.reverse();
        for id in path {
            let blocks = self.tree.node(id).blocks();
            self.blocks
                .read(blocks, 0, blocks.len() * size, &mut tokens);
        }
        let placed = seq.known as usize - seq.pending().len();
        let private = placed - tokens.len();
        self.blocks.read(&seq.blocks, 0, private, &mut tokens);
        tokens.extend_from_slice(seq.pending());
        tokens
    }

    /// Gives suspended sequences pages again, in order, each all or nothing: as `admit` does for a
    /// prompt of all tokens that each knows. Writes 1 or 0 and the tokens found in the tree per
    /// sequence; returns how many were resumed.
    ///
    /// # Errors
    ///
    /// For a step that is not open, a handle that is stale, not suspended or appears twice, and a
    /// `first` below 1. Nothing has changed then.
    pub fn resume(
        &mut self,
        step: u64,
        handle: &[i64],
        first: &[i32],
        ok: &mut [u8],
        hit: &mut [i32],
    ) -> Result<usize, LedgerError> {
        self.steps.check_open(step)?;
        check_len("first", first.len(), handle.len())?;
        check_len("ok", ok.len(), handle.len())?;
        check_len("hit", hit.len(), handle.len())?;
        self.calls += 1;
        let mut rows = Vec::with_capacity(handle.len());
        for (item, (&handle, &first)) in handle.iter().zip(first).enumerate() {
            rows.push(self.check_suspended(item, handle)?);
            check_range("first", item, first.into(), 1, i32::MAX.into())?;
        }
        let take = |row: &Row| std::mem::take(&mut self.sequences[row.at()].pending);
        let texts: Vec<Vec<Token>> = rows.iter().map(take).collect();
        let items: Vec<Item<'_>> = (rows.iter().zip(first).zip(&texts))
            .map(|((&row, &first), text)| self.resumed_item(row, first.cast_unsigned(), text))
            .collect();
        let prepared: Vec<Prepared> = items
            .iter()
            .map(|item| Prepared::found(self.match_item(item)))
            .collect();
        self.claim_all(&items, &prepared);
        self.claim_below(prepared.iter().map(|ready| &ready.below), true);
        let evicted = self.evicted();
        let mut resumed = 0;
        for (at, item) in items.iter().enumerate() {
            let again;
            let ready = if self.evicted() == evicted {
                &prepared[at]
            } else {
                again = Prepared::found(self.match_item(item));
                &again
            };
            let waits = self.is_on_its_way(&ready.below);
            let demand = if waits {
                None
            } else {
                self.fitting_demand(item, ready)
            };
            (ok[at], hit[at]) = (u8::from(demand.is_some()), 0);
            let Some(demand) = demand else {
                let counter = if waits {
                    &mut self.counters.refused_loading
                } else {
                    &mut self.counters.refused_resumes
                };
                *counter += 1;
                self.sequences[rows[at].at()].pending.clone_from(&texts[at]);
                continue;
            };
            let seq = &mut self.sequences[rows[at].at()];
            seq.suspended = false;
            self.suspended -= 1;
            self.start(rows[at], step, item, ready, &demand, true);
            hit[at] = demand.hit.cast_signed();
            resumed += 1;
            self.counters.resumed += 1;
            self.counters.resumed_tokens += u64::from(item.len);
            self.counters.resumed_hit_tokens += u64::from(self.hit_on_device(&demand));
        }
        self.tree.end_claims();
        self.sides.end_claims();
        self.claim_below(prepared.iter().map(|ready| &ready.below), false);
        Ok(resumed)
    }

    fn check_suspended(&mut self, item: usize, handle: i64) -> Result<Row, LedgerError> {
        let row = self.check_any_handle(item, handle)?;
        if self.sequences[row.at()].suspended {
            Ok(row)
        } else {
            Err(LedgerError::NotSuspended { item, handle })
        }
    }

    fn resumed_item<'a>(&self, row: Row, first: u32, text: &'a [Token]) -> Item<'a> {
        let seq = &self.sequences[row.at()];
        Item {
            prompt: text,
            len: seq.known,
            scope: seq.scope,
            first,
            max_total: seq.max_total,
            draft_from: seq.draft_from,
        }
    }

    /// Suspended sequences.
    #[must_use]
    pub fn suspended_sequences(&self) -> u32 {
        self.suspended
    }
}

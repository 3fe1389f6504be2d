//! The end of a sequence.

use std::cmp::Reverse;

use crate::error::LedgerError;
use crate::ids::{Handle, NodeId, Row};
use crate::ledger::{Ledger, check_len, check_publish};

impl Ledger {
    /// Closes sequences. What they published stays; with `publish` not 0 the tail is published too; all
    /// other pages are given back.
    ///
    /// # Errors
    ///
    /// For a handle that is stale or appears twice; nothing has changed then.
    pub fn release(&mut self, handle: &[i64], publish: &[u8]) -> Result<(), LedgerError> {
        check_len("publish", publish.len(), handle.len())?;
        check_publish(publish)?;
        self.calls += 1;
        for (item, &handle) in handle.iter().enumerate() {
            self.check_any_handle(item, handle)?;
        }
        for (&handle, &publish) in handle.iter().zip(publish) {
            let row = Handle::from_i64(handle).expect("checked above").row;
            self.release_one(row, publish != 0);
        }
        Ok(())
    }

    fn release_one(&mut self, row: Row, publish: bool) {
        // What is being loaded is nothing that could be published.
        let loads = self.abandon_load(row);
        self.leave(row, publish && !loads);
        let seq = &mut self.sequences[row.at()];
        self.suspended -= u32::from(seq.suspended);
        seq.suspended = false;
        seq.open = false;
        seq.hints.clear();
        self.free_rows.push(Reverse(row.get()));
        self.counters.released += 1;
    }

    /// Takes all that a sequence has, after publishing its tail if asked.
    pub(super) fn leave(&mut self, row: Row, publish: bool) {
        let seq = &mut self.sequences[row.at()];
        // A suspended sequence has its tokens, but stands on nothing and has no block.
        let stands = seq.keeps_tokens && !seq.suspended;
        self.promised -= u64::from(seq.promise());
        seq.prompt_blocks = 0;
        if !seq.suspended {
            self.publish_end(row, publish && stands);
        }
        self.leave_cross(row);
        let published = self.sequences[row.at()].published;
        self.give_back_from(row, published);
        self.leave_windows(row);
        let (columns, classes) = (self.classes.columns(), self.pools.len());
        for place in 0..columns {
            self.tables[row.at() * classes + place].pages.clear();
        }
        self.touch(row, 0, published);
        self.close_windows(row);
        let seq = &mut self.sequences[row.at()];
        self.tree.next_tick(std::mem::take(&mut seq.entered));
        let node = std::mem::replace(&mut seq.node, NodeId::NONE);
        seq.held = 0;
        seq.published = 0;
        seq.valid = [0; 2];
        seq.known = 0;
        seq.blocks.clear();
        seq.pending.clear();
        seq.pending_head = 0;
        seq.widths.clear();
        seq.outstanding = 0;
        if stands {
            self.tree.serve(node);
            self.tree.unpin(node, &self.blocks, &self.steps);
        }
    }

    /// Publishes the tail of a sequence that ends, if there is one and it may be used, and leaves its
    /// states at the end of what is published, or gives them back.
    fn publish_end(&mut self, row: Row, publish: bool) {
        let seq = &self.sequences[row.at()];
        let (size, start) = (self.config.tokens_per_block, seq.published);
        let (history, node) = (seq.history(), seq.node);
        let settled = seq.outstanding == 0 && seq.reach() == history;
        // Without partial reuse nobody could ever use a tail.
        let tail = if publish && self.config.partial_reuse {
            self.publish_tail(row)
        } else {
            None
        };
        if self.classes.states().is_empty() {
            return;
        }
        let end = match tail {
            Some((block, covered)) => Some((block, covered, start * size + covered)),
            None if publish && start > 0 => {
                let (_, draft_valid, _) = self.stretch_from(row, start - 1, start);
                let node = self.tree.node(node);
                let alike = node.draft_valid == draft_valid;
                let last = node.blocks().last().copied();
                Some((last.filter(|_| alike), size, start * size))
            }
            None => None,
        };
        let end = end.filter(|&(_, _, end)| settled && end == history);
        let (block, covered) = end.map_or((None, 0), |(block, covered, _)| (block, covered));
        self.leave_states(row, block, covered);
    }
}

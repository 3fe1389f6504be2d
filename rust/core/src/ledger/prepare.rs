//! What admission does for all prompts of a call before it decides about the first: match them, check
//! their tokens, and put these where they will be needed.
//!
//! A prompt's tokens are read once, since reading them costs more than all the rest. Those that agree
//! with the tree need no check, unless there are references to media, which may have been given back.
//! The others are checked while they are copied into free records, in the order in which the records
//! will be handed out. What a free record holds is no part of the ledger's state, so a refusal of the
//! whole call leaves no trace. If a record is handed out otherwise, because an item was refused or
//! something was evicted, the tokens are copied again.

use crate::blocks::union;
use crate::error::LedgerError;
use crate::ids::{Row, TOKEN_LIMIT, Token};
use crate::ledger::Ledger;
use crate::ledger::admit::{AdmitBatch, Item};
use crate::ledger::lower::LowerPages;
use crate::prefix::Found;

/// What is known of a request before any is decided.
#[derive(Debug)]
pub(super) struct Prepared {
    pub found: Found,
    /// What lower tiers have of it.
    pub below: LowerPages,
    /// Which records hold its tokens already.
    staged: Option<Staged>,
}

/// Tokens from block `from` on in the next `records` free records when `left` of them are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Staged {
    from: u32,
    left: u32,
    records: u32,
}

impl Prepared {
    /// A request of which nothing is known but its match.
    pub(super) fn found((found, below): (Found, LowerPages)) -> Self {
        Self {
            found,
            below,
            staged: None,
        }
    }

    /// Whether `records` records taken when `left` were free, without an eviction, hold the tokens from
    /// block `from` on. An admission may use less of the match than was counted on here.
    pub(super) fn is_in(&self, from: u32, left: u32, records: u32) -> bool {
        let staged = Staged {
            from,
            left,
            records,
        };
        self.staged == Some(staged)
    }
}

impl Ledger {
    /// Matches all prompts, checks their tokens and copies them into free records.
    ///
    /// # Errors
    ///
    /// For a token outside `[0, 2^31)`; the state has not changed then.
    pub(super) fn prepare(&mut self, items: &[Item<'_>]) -> Result<Vec<Prepared>, LedgerError> {
        // Keys below the device are made of tokens that are known.
        if self.tiers.is_some() {
            for (at, item) in items.iter().enumerate() {
                if self.publishes(item.scope) {
                    self.check_prompt(at, item.prompt)?;
                }
            }
        }
        let mut left = self.blocks.free_count();
        items
            .iter()
            .enumerate()
            .map(|(at, item)| {
                let (found, below) = self.match_item(item);
                if !self.publishes(item.scope) {
                    return Ok(Prepared::found((found, below)));
                }
                let demand = self.demand(item, found, found.usable);
                // Tokens before these are equal to tokens in the tree.
                let rest = &item.prompt[demand.shared as usize * self.blocks.tokens_per_block()..];
                let records = demand.need.min(left);
                let bits = self.blocks.stage(left, records, rest);
                // A reference in the tree may be one that nobody holds any more.
                if bits >= TOKEN_LIMIT || self.identity.has_media() {
                    self.check_prompt(at, item.prompt)?;
                }
                let staged = (records == demand.need).then_some(Staged {
                    from: demand.shared,
                    left,
                    records,
                });
                left -= records;
                Ok(Prepared {
                    found,
                    below,
                    staged,
                })
            })
            .collect()
    }

    /// Checks the tokens of one prompt, if they will be kept.
    pub(super) fn check_kept(
        &self,
        batch: &AdmitBatch<'_>,
        item: usize,
    ) -> Result<(), LedgerError> {
        if self.publishes(batch.scope[item]) {
            self.check_prompt(item, batch.prompts[item])?;
        }
        Ok(())
    }

    /// Writes the prompt after the shared blocks into the sequence's records, unless they hold it
    /// already; what has no block yet waits in `pending`.
    pub(super) fn store_prompt(&mut self, row: Row, item: &Item<'_>, stored: bool) {
        let seq = &mut self.sequences[row.at()];
        let size = self.blocks.tokens_per_block();
        let rest = &item.prompt[seq.published as usize * size..];
        if !stored {
            self.blocks.fill(&seq.blocks, rest);
        }
        self.blocks.note_media(&seq.blocks);
        let placed = rest.len().min(seq.blocks.len() * size);
        seq.pending.extend_from_slice(&rest[placed..]);
    }
}

/// Checks that all tokens are below 2^31. Negative 32-bit tokens arrive as values above it.
pub(crate) fn check_tokens(item: usize, tokens: &[Token]) -> Result<(), LedgerError> {
    if tokens_in_range(tokens) {
        return Ok(());
    }
    let position = tokens
        .iter()
        .position(|&token| token >= TOKEN_LIMIT)
        .expect("some token has the highest bit");
    let value = i64::from(tokens[position].cast_signed());
    Err(LedgerError::Token {
        item,
        position,
        value,
    })
}

/// Whether all tokens are below 2^31.
#[inline]
pub(crate) fn tokens_in_range(tokens: &[Token]) -> bool {
    union(tokens) < TOKEN_LIMIT
}

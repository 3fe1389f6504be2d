//! What a scheduler asks before it decides. Nothing here changes anything, but for the counters of misses.
//!
//! `docs/scheduling.md` is the contract.

use crate::error::LedgerError;
use crate::ids::{Row, Token};
use crate::ledger::admit::{AdmitBatch, REFUSED_FOREVER, REFUSED_NO_ROW, REFUSED_NOW};
use crate::ledger::prepare::Prepared;
use crate::ledger::{Ledger, check_len, check_range};
use crate::prefix::Found;
use crate::side::Side;

/// The arguments of [`Ledger::fits_blocks`], one entry per request.
#[derive(Debug, Clone, Copy)]
pub struct BlocksBatch<'a> {
    /// Tokens of each prompt.
    pub length: &'a [i64],
    /// Tokens of each prompt that an admission would find in the tree.
    pub hit: &'a [i64],
    /// Most prompt tokens that this step runs.
    pub first: &'a [i32],
    /// Largest length the sequence may reach.
    pub max_total: &'a [i64],
    /// The scope of each prompt; 0 for all if it is `None`.
    pub scope: Option<&'a [i32]>,
}

/// Why prompt tokens were not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissReason {
    /// The ledger keeps nothing for reuse.
    ReuseOff,
    /// The scope never matches.
    Private,
    /// Usable, but one token must run.
    FirstTokenMustRun,
    /// A hit may not end inside a block.
    Partial,
    /// The draft KV that the sequence needs is missing.
    Draft,
    /// Draft KV of these tokens depends on tokens after the agreement.
    Lookahead,
    /// The pages of a window before their end are gone.
    Window,
    /// No state has a snapshot at their end.
    State,
    /// Only another scope has them.
    Scope(i32),
    /// The cached text goes on with another token.
    Tokens,
    /// The cached text ends.
    EndOfCachedText,
}

impl MissReason {
    /// As `docs/scheduling.md` spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ReuseOff => "reuse_off",
            Self::Private => "private",
            Self::FirstTokenMustRun => "first_token_must_run",
            Self::Partial => "partial",
            Self::Draft => "draft",
            Self::Lookahead => "lookahead",
            Self::Window => "window",
            Self::State => "state",
            Self::Scope(_) => "scope",
            Self::Tokens => "tokens",
            Self::EndOfCachedText => "end_of_cached_text",
        }
    }
}

/// A range of a prompt that was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// Where it starts.
    pub position: u32,
    /// How long it is.
    pub tokens: u32,
    /// Why.
    pub reason: MissReason,
}

/// How far a prompt matches, and why no further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchReport {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// The longest agreement with the text of the scope.
    pub matched: u32,
    /// What a match may use.
    pub usable: u32,
    /// What an admission would use.
    pub hit: u32,
    /// The rest of the prompt, ascending.
    pub missed: Vec<Missed>,
}

impl MatchReport {
    /// Notes that the positions from `from` to where the last range starts were missed.
    fn miss(&mut self, from: u32, reason: MissReason) {
        let to = self
            .missed
            .last()
            .map_or(self.tokens, |missed| missed.position);
        if from < to {
            self.missed.push(Missed {
                position: from,
                tokens: to - from,
                reason,
            });
        }
    }
}

impl Ledger {
    /// Writes for each request alone what `admit` would answer now, 0 for an admission, and its hit;
    /// returns how many would be admitted.
    ///
    /// # Errors
    ///
    /// As [`Ledger::admit`], but for the step.
    pub fn fits(
        &self,
        batch: &AdmitBatch<'_>,
        answer: &mut [i32],
        hit: &mut [i32],
    ) -> Result<usize, LedgerError> {
        self.check_requests(batch)?;
        for item in 0..batch.prompts.len() {
            self.check_kept(batch, item)?;
        }
        check_len("answer", answer.len(), batch.prompts.len())?;
        check_len("hit", hit.len(), batch.prompts.len())?;
        let mut fitting = 0;
        for (at, (answer, hit)) in answer.iter_mut().zip(hit).enumerate() {
            let item = self.item(batch, at);
            let decided = self.decide(&item, &Prepared::found(self.match_item(&item)));
            fitting += usize::from(decided.is_ok());
            (*answer, *hit) = match decided {
                Ok(demand) => (0, demand.hit.cast_signed()),
                Err(reason) => (as_answer(reason), 0),
            };
        }
        Ok(fitting)
    }

    /// The same for lengths and hits already known, as if all blocks of a hit were evictable; returns
    /// how many would be admitted.
    ///
    /// # Errors
    ///
    /// For a length out of range, or a hit that such a prompt cannot have.
    pub fn fits_blocks(
        &self,
        batch: &BlocksBatch<'_>,
        answer: &mut [i32],
    ) -> Result<usize, LedgerError> {
        let n = batch.length.len();
        check_len("hit", batch.hit.len(), n)?;
        check_len("first", batch.first.len(), n)?;
        check_len("max_total", batch.max_total.len(), n)?;
        check_len("answer", answer.len(), n)?;
        if let Some(scope) = batch.scope {
            check_len("scope", scope.len(), n)?;
        }
        for item in 0..n {
            self.check_blocks(item, batch)?;
        }
        let mut fitting = 0;
        for (item, answer) in answer.iter_mut().enumerate() {
            let number = |value: i64| u32::try_from(value).expect("checked to be in range");
            let len = number(batch.length[item]);
            let (hit, max_total) = (number(batch.hit[item]), number(batch.max_total[item]));
            let first = batch.first[item].cast_unsigned();
            let scope = batch.scope.map_or(0, |scope| scope[item]);
            let reason = self.decide_blocks(scope, len, hit, first, max_total);
            fitting += usize::from(reason.is_none());
            *answer = reason.map_or(0, as_answer);
        }
        Ok(fitting)
    }

    fn check_blocks(&self, item: usize, batch: &BlocksBatch<'_>) -> Result<(), LedgerError> {
        if let Some(scope) = batch.scope {
            check_range("scope", item, scope[item].into(), 0, i32::MAX.into())?;
            self.check_scope(item, scope[item])?;
        }
        let (len, hit) = (batch.length[item], batch.hit[item]);
        let max_seq_len = i64::from(self.config.max_seq_len);
        check_range("length", item, len, 1, max_seq_len)?;
        check_range("first", item, batch.first[item].into(), 1, i32::MAX.into())?;
        check_range("max_total", item, batch.max_total[item], len, max_seq_len)?;
        let unit = i64::from(self.hit_unit());
        let most = if self.config.reuse { len - 1 } else { 0 };
        check_range("hit", item, hit, 0, most - most % unit)?;
        check_range("hit % tokens_per_block", item, hit % unit, 0, 0)
    }

    fn decide_blocks(
        &self,
        scope: i32,
        len: u32,
        hit: u32,
        first: u32,
        max_total: u32,
    ) -> Option<i64> {
        if self.free_rows.is_empty() {
            return Some(REFUSED_NO_ROW);
        }
        if self.is_too_large(len, max_total, scope) {
            return Some(REFUSED_FOREVER);
        }
        // With the copy first, then without it, as an admission tries. A shorter hit is not known here
        // where it depends on windows and states.
        let size = self.config.tokens_per_block;
        let shorter = (!self.has_sides()).then_some(hit - hit % size);
        let mut hits = [Some(hit), shorter].into_iter().flatten();
        let fits = hits.any(|hit| self.has_room_for(scope, len, hit, first));
        (!fits).then_some(REFUSED_NOW)
    }

    /// Whether a prompt fits if every block of its hit were evictable.
    fn has_room_for(&self, scope: i32, len: u32, hit: u32, first: u32) -> bool {
        let (size, extra) = (self.config.tokens_per_block, self.config.extra_tokens);
        let (shared, used) = (hit / size, hit.div_ceil(size));
        let need = (hit + first.min(len - hit) + extra).div_ceil(size) - shared;
        let whole = (len + extra).div_ceil(size) - shared;
        let blocks = u64::from(self.counted(whole, self.publishes(0)));
        let kept = self.promised + self.watermark();
        let protect = used.min(self.tree.evictable_for(scope));
        self.has_blocks(scope, blocks + kept, protect, |place| {
            let evictable = self.sides.get(place).map_or(0, Side::evictable);
            (self.wanted_at(place, need, whole), used.min(evictable))
        })
    }

    /// How far these tokens match, and why no further. Looks at every scope.
    ///
    /// # Errors
    ///
    /// As [`Ledger::match_tokens`].
    pub fn explain_match(
        &self,
        tokens: &[Token],
        scope: i32,
        draft_from: Option<i32>,
    ) -> Result<MatchReport, LedgerError> {
        let draft_from = self.check_query(tokens, scope, draft_from)?;
        let mut report = MatchReport {
            tokens: crate::ids::count(tokens.len()),
            matched: 0,
            usable: 0,
            hit: 0,
            missed: Vec::new(),
        };
        if !self.config.reuse || scope < 0 {
            let reason = if self.config.reuse {
                MissReason::Private
            } else {
                MissReason::ReuseOff
            };
            report.miss(0, reason);
            return Ok(report);
        }
        self.explain_text(tokens, scope, &mut report);
        self.explain_use(tokens, scope, draft_from, &mut report);
        report.missed.reverse();
        Ok(report)
    }

    /// What the text of the tree decides: tokens that no scope has, or another one only.
    fn explain_text(&self, tokens: &[Token], scope: i32, report: &mut MatchReport) {
        let agreements = self.tree.roots.iter().map(|(&other, &root)| {
            let agreement = self.tree.agreement(&self.blocks, root, tokens);
            (other, agreement)
        });
        let (mut longest, mut goes_on, mut holder) = (0, false, scope);
        for (other, agreement) in agreements {
            if other == scope {
                report.matched = agreement.len;
            }
            if agreement.len > longest {
                (longest, goes_on, holder) = (agreement.len, agreement.goes_on, other);
            } else if agreement.len == longest {
                goes_on |= agreement.goes_on;
            }
        }
        let reason = if goes_on {
            MissReason::Tokens
        } else {
            MissReason::EndOfCachedText
        };
        report.miss(longest, reason);
        report.miss(report.matched, MissReason::Scope(holder));
    }

    /// What the rules of use decide, each on what the one before has left.
    fn explain_use(&self, tokens: &[Token], scope: i32, draft_from: i32, report: &mut MatchReport) {
        let find = |unit| {
            let need = self.draft_need(draft_from);
            self.tree.find(&self.blocks, scope, tokens, need, unit)
        };
        let agreed = report.matched.saturating_sub(self.config.lookahead);
        report.miss(agreed, MissReason::Lookahead);
        report.miss(find(1).usable, MissReason::Draft);
        let (found, unit) = (find(self.hit_unit()), self.hit_unit());
        report.miss(found.usable, MissReason::Partial);
        let windows = self.accepted_by_windows(found.tail, found.usable, unit);
        report.miss(windows, MissReason::Window);
        report.usable = self.accepted(found.tail, found.usable, unit);
        report.miss(report.usable, MissReason::State);
        let most = report.usable.min(report.tokens.saturating_sub(1));
        report.hit = self.accepted(found.tail, most, unit);
        report.miss(report.hit, MissReason::FirstTokenMustRun);
    }

    /// Counts the prompt tokens of a new sequence that it could not reuse, by reason.
    pub(super) fn count_misses(&mut self, row: Row, len: u32, found: Found, hit: u32) {
        if !self.sequences[row.at()].keeps_tokens {
            self.counters.missed_private_tokens += u64::from(len);
            return;
        }
        let most = found.usable.min(len - 1);
        let most = most - most % self.hit_unit();
        self.counters.missed_text_tokens += u64::from(len - found.longest);
        self.counters.missed_last_tokens += u64::from(found.longest - most);
        self.counters.missed_copy_tokens += u64::from(most - hit);
    }
}

fn as_answer(reason: i64) -> i32 {
    i32::try_from(reason).expect("reasons are small")
}

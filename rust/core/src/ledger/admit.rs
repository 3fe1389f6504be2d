//! Admission: count, take.

use crate::error::LedgerError;
use crate::ids::{Handle, Row, Token};
use crate::ledger::lower::LowerPages;
use crate::ledger::prepare::Prepared;
use crate::ledger::room::Filled;
use crate::ledger::sides::SidePage;
use crate::ledger::{Ledger, check_len, check_range};
use crate::prefix::Found;

/// No pages now; the same admission may fit later.
pub const REFUSED_NOW: i64 = -1;
/// The request's worst case is larger than the pool.
pub const REFUSED_FOREVER: i64 = -2;
/// No free row.
pub const REFUSED_NO_ROW: i64 = -3;
/// Not tried, after a refusal with `stop_at_first`.
pub const REFUSED_NOT_TRIED: i64 = -4;

/// What it would load from lower tiers is on its way for another sequence.
pub const REFUSED_LOADING: i64 = -5;

/// The arguments of [`Ledger::admit`], one entry per request.
#[derive(Debug, Clone, Copy)]
pub struct AdmitBatch<'a> {
    /// Tokens of each prompt.
    pub prompts: &'a [&'a [Token]],
    /// Who may share: equal scopes do, -1 never does.
    pub scope: &'a [i32],
    /// Most prompt tokens that this step runs.
    pub first: &'a [i32],
    /// Largest length the sequence may reach.
    pub max_total: &'a [i64],
    /// First position whose draft KV is valid; -1: no draft. `None`: 0 with a draft, -1 without.
    pub draft_from: Option<&'a [i32]>,
}

/// One request, checked.
pub(super) struct Item<'a> {
    /// Empty in a resume of a sequence that does not keep its tokens.
    pub prompt: &'a [Token],
    /// Tokens of the prompt.
    pub len: u32,
    pub scope: i32,
    pub first: u32,
    pub max_total: u32,
    pub draft_from: i32,
}

/// What one admission takes, in blocks unless said otherwise.
pub(super) struct Demand {
    /// Prompt tokens that need not run.
    pub hit: u32,
    /// Blocks of the tree that it uses as they are.
    pub shared: u32,
    /// Blocks after them that lower tiers have; they are among the new ones.
    pub cold: u32,
    /// Whether one more block of the tree is copied.
    pub source: bool,
    /// Prompt tokens that run in this step.
    pub width: u32,
    /// New blocks now.
    pub need: u32,
    /// New blocks for the whole prompt.
    pub whole: u32,
    /// Side pages that it pins; none where all classes keep every token.
    pub side: Vec<SidePage>,
    /// Which new blocks have a page in each windowed class; `None`: all of them.
    pub filled: Option<Filled>,
}

impl Demand {
    /// Pages now of the windowed class with this number.
    pub(super) fn need_in(&self, window: usize) -> u32 {
        let filled = self.filled.as_ref().map(|filled| &filled[window]);
        filled.map_or(self.need, |filled| {
            crate::ids::count(filled.iter().filter(|&&has_page| has_page).count())
        })
    }
}

impl Ledger {
    /// Admits requests in order, each all or nothing. Writes a handle or a negative reason, and the
    /// tokens found in the tree, per request; returns how many were admitted.
    ///
    /// # Errors
    ///
    /// For arguments out of range, a step that is not open or a token outside `[0, 2^31)`; nothing has
    /// changed then.
    pub fn admit(
        &mut self,
        step: u64,
        batch: &AdmitBatch<'_>,
        stop_at_first: bool,
        handle: &mut [i64],
        hit: &mut [i32],
    ) -> Result<usize, LedgerError> {
        self.steps.check_open(step)?;
        self.check_requests(batch)?;
        check_len("handle", handle.len(), batch.prompts.len())?;
        check_len("hit", hit.len(), batch.prompts.len())?;
        let items: Vec<Item<'_>> = (0..batch.prompts.len())
            .map(|at| self.item(batch, at))
            .collect();
        let prepared = self.prepare(&items)?;
        self.claim_all(&items, &prepared);
        self.claim_below(prepared.iter().map(|ready| &ready.below), true);
        let evicted = self.evicted();
        let mut admitted = 0;
        let mut stopped = false;
        for (at, item) in items.iter().enumerate() {
            hit[at] = 0;
            if stopped {
                handle[at] = REFUSED_NOT_TRIED;
                continue;
            }
            // An eviction may have taken a claimed block, or the rest of a node whose first blocks are.
            let again;
            let ready = if self.evicted() == evicted {
                &prepared[at]
            } else {
                again = Prepared::found(self.match_item(item));
                &again
            };
            match self.admit_one(step, item, ready) {
                Ok((row, tokens)) => {
                    handle[at] = Handle {
                        generation: self.sequences[row.at()].generation,
                        row,
                    }
                    .to_i64();
                    hit[at] = i32::try_from(tokens).expect("a hit is below max_seq_len");
                    admitted += 1;
                }
                Err(reason) => {
                    handle[at] = reason;
                    stopped = stop_at_first;
                }
            }
        }
        self.tree.end_claims();
        self.sides.end_claims();
        self.claim_below(prepared.iter().map(|ready| &ready.below), false);
        Ok(admitted)
    }

    pub(super) fn evicted(&self) -> u64 {
        self.counters.evicted_blocks + self.counters.evicted_side_pages
    }

    /// Checks everything about a batch except the tokens of its prompts.
    pub(super) fn check_requests(&self, batch: &AdmitBatch<'_>) -> Result<(), LedgerError> {
        let n = batch.prompts.len();
        check_len("scope", batch.scope.len(), n)?;
        check_len("first", batch.first.len(), n)?;
        check_len("max_total", batch.max_total.len(), n)?;
        if let Some(draft_from) = batch.draft_from {
            check_len("draft_from", draft_from.len(), n)?;
        }
        for item in 0..n {
            if let Err(error) = self.check_item(batch, item) {
                // The first item that is wrong is the one to be named; tokens are looked at later.
                for before in 0..item {
                    self.check_kept(batch, before)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_item(&self, batch: &AdmitBatch<'_>, item: usize) -> Result<(), LedgerError> {
        let max_seq_len = i64::from(self.config.max_seq_len);
        let len = i64::try_from(batch.prompts[item].len()).unwrap_or(i64::MAX);
        check_range("len(prompt)", item, len, 1, max_seq_len)?;
        self.check_scope(item, batch.scope[item])?;
        check_range("first", item, batch.first[item].into(), 1, i32::MAX.into())?;
        check_range("max_total", item, batch.max_total[item], len, max_seq_len)?;
        if let Some(draft_from) = batch.draft_from {
            let has_draft = self.config.has_draft;
            let max = if has_draft { i32::MAX.into() } else { -1 };
            check_range("draft_from", item, draft_from[item].into(), -1, max)?;
        }
        Ok(())
    }

    pub(super) fn item<'a>(&self, batch: &AdmitBatch<'a>, at: usize) -> Item<'a> {
        let unsigned = "checked to be in range";
        Item {
            prompt: batch.prompts[at],
            len: crate::ids::count(batch.prompts[at].len()),
            scope: batch.scope[at],
            first: u32::try_from(batch.first[at]).expect(unsigned),
            max_total: u32::try_from(batch.max_total[at]).expect(unsigned),
            draft_from: batch
                .draft_from
                .map_or(if self.config.has_draft { 0 } else { -1 }, |all| all[at]),
        }
    }

    /// Claims the matches of all items, if one of them might evict.
    pub(super) fn claim_all(&mut self, items: &[Item<'_>], prepared: &[Prepared]) {
        let n = items.len();
        let tokens: u64 = items.iter().map(|item| u64::from(item.len)).sum();
        let per_item = u64::from(
            self.config
                .extra_tokens
                .div_ceil(self.config.tokens_per_block),
        ) + 2;
        let most = tokens / u64::from(self.config.tokens_per_block) + n as u64 * per_item;
        let has = |free: u32| most <= u64::from(free);
        let records = self.classes.full() > 0 || has(self.blocks.free_count());
        if records && self.pools.iter().all(|pool| has(pool.free_count())) {
            return;
        }
        for (item, ready) in items.iter().zip(prepared) {
            let demand = self.demand(item, ready.found, ready.found.usable);
            let end = demand.hit.div_ceil(self.config.tokens_per_block) - demand.cold;
            self.tree.claim(ready.found.tail, end);
            for side in &demand.side {
                self.sides.at_mut(side.place).claim(side.page);
            }
        }
    }

    /// What the device has of an item, extended by what lower tiers have.
    pub(super) fn match_item(&self, item: &Item<'_>) -> (Found, LowerPages) {
        if !self.config.reuse || item.scope < 0 {
            return (Found::NOTHING, LowerPages::new());
        }
        let mut found = self.tree.find(
            &self.blocks,
            item.scope,
            item.prompt,
            self.draft_need(item.draft_from),
            self.hit_unit(),
        );
        let (agreed, most) = (found.usable, item.len - 1);
        if self.has_sides() {
            let unit = self.hit_unit();
            found.longest = self.accepted(found.tail, found.usable, unit);
            found.usable = found.longest;
            if found.longest > most {
                found.usable = self.accepted(found.tail, most, unit);
            }
        }
        let below = self.extend_below(item, agreed, &mut found);
        (found, below)
    }

    /// What usable lengths are multiples of.
    pub(crate) fn hit_unit(&self) -> u32 {
        if self.config.partial_reuse {
            1
        } else {
            self.config.tokens_per_block
        }
    }

    /// What a sequence needs of the draft-valid flag of blocks: without a draft in the ledger all
    /// blocks have it.
    pub(crate) fn draft_need(&self, draft_from: i32) -> Option<u32> {
        if self.config.has_draft {
            u32::try_from(draft_from).ok()
        } else {
            Some(0)
        }
    }

    /// What an item takes that uses `usable` tokens of its match, which every class accepts.
    pub(super) fn demand(&self, item: &Item<'_>, found: Found, usable: u32) -> Demand {
        let size = self.config.tokens_per_block;
        let len = item.len;
        let mut hit = usable.min(len - 1);
        hit -= hit % self.hit_unit();
        let cold = if usable == found.usable {
            found.cold
        } else {
            0
        };
        let shared = hit / size - cold;
        let width = item.first.min(len - hit);
        let extra = self.config.extra_tokens;
        Demand {
            hit,
            shared,
            // Encoders' pages hold nothing of the block.
            source: !hit.is_multiple_of(size) && self.classes.states().end > 0,
            width,
            need: (hit + width + extra).div_ceil(size) - shared,
            whole: (len + extra).div_ceil(size) - shared,
            cold,
            side: self.side_pages(found, hit, cold),
            filled: None,
        }
    }

    /// Decides about one request and, if it fits, admits it. The reason if it does not.
    fn admit_one(
        &mut self,
        step: u64,
        item: &Item<'_>,
        ready: &Prepared,
    ) -> Result<(Row, u32), i64> {
        let found = ready.found;
        match self.decide(item, ready) {
            Ok(demand) => {
                let row = self.admit_act(step, item, ready, &demand);
                self.count_misses(row, item.len, found, demand.hit);
                Ok((row, demand.hit))
            }
            Err(reason) => {
                match reason {
                    REFUSED_NO_ROW => self.counters.refused_rows += 1,
                    REFUSED_FOREVER => self.counters.refused_never += 1,
                    REFUSED_LOADING => self.counters.refused_loading += 1,
                    _ => self.counters.refused_now += 1,
                }
                Err(reason)
            }
        }
    }

    /// What one request takes, or the reason why it cannot have it. Changes nothing.
    pub(super) fn decide(&self, item: &Item<'_>, ready: &Prepared) -> Result<Demand, i64> {
        if self.free_rows.is_empty() {
            return Err(REFUSED_NO_ROW);
        }
        if self.is_too_large(item.len, item.max_total, item.scope) {
            return Err(REFUSED_FOREVER);
        }
        if self.is_on_its_way(&ready.below) {
            return Err(REFUSED_LOADING);
        }
        self.fitting_demand(item, ready).ok_or(REFUSED_NOW)
    }

    /// What one request takes, if that is there, with a copy or without.
    pub(super) fn fitting_demand(&self, item: &Item<'_>, ready: &Prepared) -> Option<Demand> {
        let found = ready.found;
        let mut demand = self.demand(item, found, found.usable);
        if demand.cold > 0 && !self.classes.windows().is_empty() {
            demand.filled = Some(self.filled_by_load(&demand, &ready.below));
        }
        if self.has_room(item, found, &demand) {
            return Some(demand);
        }
        // The source of a copy is protected until the step completes; do without the copy.
        let snapshot = demand.hit > 0 && demand.cold == 0 && !self.classes.states().is_empty();
        let copies = demand.source || snapshot;
        let retry = copies.then(|| {
            let usable = if self.classes.states().is_empty() {
                self.accepted(found.tail, demand.hit, self.config.tokens_per_block)
            } else {
                0
            };
            self.demand(item, found, usable)
        });
        retry.filter(|demand| self.has_room(item, found, demand))
    }

    /// Whether what a sequence of this scope computes may enter the tree.
    #[inline]
    pub(super) fn publishes(&self, scope: i32) -> bool {
        self.config.reuse && scope >= 0
    }

    /// Most blocks that a sequence ever has.
    pub(super) fn worst(&self, len: u32, max_total: u32) -> u32 {
        let most = len.max(max_total - 1 + self.config.reserve_tokens);
        (most + self.config.extra_tokens).div_ceil(self.config.tokens_per_block)
    }

    /// Whether the worst case of a request is larger than the pool, or what the floors of other scopes
    /// leave of it.
    pub(super) fn is_too_large(&self, len: u32, max_total: u32, scope: i32) -> bool {
        let worst = self.worst(len, max_total);
        let full = self.classes.full();
        let usable = |place: usize| self.pools[place].num_pages() - 1;
        u64::from(self.counted(worst, self.publishes(scope))) + self.tree.floors_against(scope)
            > self.usable_blocks()
            || (full..self.pools.len()).any(|place| self.most_at(place, worst) > usable(place))
    }

    /// The most pages that a sequence of `blocks` blocks has at a time in a class that is not full.
    pub(super) fn most_at(&self, place: usize, blocks: u32) -> u32 {
        let windows = self.classes.windows();
        match windows.get(place - self.classes.full()) {
            Some(rule) => blocks.min(rule.bound),
            None => self.own_at(place),
        }
    }

    /// Pages that a sequence has from its admission to its end: of a state, or of cross-attention.
    pub(super) fn own_at(&self, place: usize) -> u32 {
        let mut cross = self.classes.cross();
        let pages = cross.find_map(|(at, pages)| (at == place).then_some(pages));
        pages.unwrap_or(u32::from(self.classes.states().contains(&place)))
    }

    /// New pages of a class that is not full, for a prompt that takes `need` blocks now and `whole` in
    /// all, with what is kept for others.
    pub(super) fn wanted_at(&self, place: usize, need: u32, whole: u32) -> u64 {
        let most = u64::from(self.most_at(place, whole));
        if place < self.classes.columns() {
            most.max(need.into()) + self.promised_at(place) + self.watermark()
        } else {
            most
        }
    }

    /// What admissions leave to those that run: nothing while nobody does.
    pub(super) fn watermark(&self) -> u64 {
        if self.open_sequences() > self.suspended {
            self.config.watermark_blocks.into()
        } else {
            0
        }
    }

    fn has_room(&self, item: &Item<'_>, found: Found, demand: &Demand) -> bool {
        let protect =
            self.tree
                .would_protect(found.tail, demand.shared, demand.source, &self.steps);
        let blocks = u64::from(self.counted(demand.whole, self.publishes(item.scope)));
        let kept = self.promised + self.watermark();
        self.has_blocks(item.scope, blocks + kept, protect, |place| {
            let window = place - self.classes.full();
            let need = if window < self.classes.windows().len() {
                demand.need_in(window)
            } else {
                demand.need
            };
            let wanted = self.wanted_at(place, need, demand.whole);
            (wanted, self.evictable_of(&demand.side, place))
        })
    }
}

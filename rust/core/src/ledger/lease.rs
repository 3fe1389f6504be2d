//! Leases: cached prefixes that stay protected although no sequence uses them.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::LedgerError;
use crate::ids::{NodeId, Token};
use crate::ledger::Ledger;
use crate::prefix::ordered;

/// Most leases that end in one `begin_step`.
const ENDS_PER_CALL: usize = 4096;

/// The answer of [`Ledger::pin`] when nothing is cached.
pub const LEASE_NOTHING: i64 = 0;
/// The answer of [`Ledger::pin`] when leases hold, or what runs needs, too much of the pool.
pub const LEASE_REFUSED: i64 = -1;

#[derive(Debug, Clone, Copy)]
struct Lease {
    /// Its end is the end of what is protected.
    node: NodeId,
    /// The time from which on it does not hold.
    until: f64,
}

/// The leases that hold.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    newest: i64,
    held: BTreeMap<i64, Lease>,
    ends: BTreeSet<(i64, i64)>,
}

impl Leases {
    pub(crate) fn count(&self) -> u32 {
        crate::ids::count(self.held.len())
    }

    /// The nodes that leases stand on.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.held.values().map(|lease| lease.node)
    }

    fn remove(&mut self, id: i64) -> Option<NodeId> {
        let lease = self.held.remove(&id)?;
        self.ends.remove(&(ordered(lease.until), id));
        Some(lease.node)
    }

    /// Forgets all leases; what they stood on is gone.
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.ends.clear();
    }
}

impl Ledger {
    /// Protects what is cached of `tokens` until the clock reaches `until` or [`Ledger::unpin`].
    /// Returns the lease and the tokens it protects, as a match counts them; or
    /// ([`LEASE_NOTHING`], 0) or ([`LEASE_REFUSED`], 0).
    ///
    /// # Errors
    ///
    /// For arguments that a match refuses, and an `until` that is not above the newest step's `now`.
    pub fn pin(
        &mut self,
        tokens: &[Token],
        scope: i32,
        draft_from: Option<i32>,
        until: f64,
    ) -> Result<(i64, u32), LedgerError> {
        let usable = self.match_tokens(tokens, scope, draft_from)?;
        let now = self.steps.now();
        if until.is_nan() || until <= now {
            return Err(LedgerError::Until {
                until: until.to_bits(),
                now: now.to_bits(),
            });
        }
        let end = usable.div_ceil(self.config.tokens_per_block);
        let Some(last) = end.checked_sub(1) else {
            return Ok((LEASE_NOTHING, 0));
        };
        let need = self.draft_need(self.check_query(tokens, scope, draft_from)?);
        let unit = self.hit_unit();
        let found = self.tree.find(&self.blocks, scope, tokens, need, unit);
        let more = self.tree.unleased(found.tail, end);
        let protect = self.tree.would_protect(found.tail, end, false, &self.steps);
        // What admissions counted on for their prompts stays to be had.
        let room = self.has_blocks(scope, self.promised + u64::from(protect), 0, |_| (0, 0));
        if !room || self.tree.leased() + more > self.config.max_leased_blocks {
            self.counters.refused_leases += 1;
            return Ok((LEASE_REFUSED, 0));
        }
        let holder = self.tree.holder(found.tail, last);
        let node = self.split_after(holder, end);
        self.tree.lease(node, &self.steps);
        self.leases.newest += 1;
        let id = self.leases.newest;
        self.leases.held.insert(id, Lease { node, until });
        self.leases.ends.insert((ordered(until), id));
        Ok((id, usable))
    }

    /// Ends a lease; says whether it still held.
    ///
    /// # Errors
    ///
    /// [`LedgerError::UnknownLease`] for a number that was never given.
    pub fn unpin(&mut self, lease: i64) -> Result<bool, LedgerError> {
        if lease < 1 || lease > self.leases.newest {
            return Err(LedgerError::UnknownLease { lease });
        }
        let node = self.leases.remove(lease);
        if let Some(node) = node {
            self.end_lease(node);
        }
        Ok(node.is_some())
    }

    /// Ends the leases whose time has come, the earliest first, a bounded number.
    pub(crate) fn end_leases(&mut self, now: f64) {
        for _ in 0..ENDS_PER_CALL {
            match self.leases.ends.first() {
                Some(&(until, id)) if until <= ordered(now) => {
                    let node = self.leases.remove(id).expect("its end was listed");
                    self.end_lease(node);
                }
                _ => return,
            }
        }
    }

    fn end_lease(&mut self, node: NodeId) {
        self.tree.next_tick(0);
        self.tree.end_lease(node, &self.blocks, &self.steps);
    }

    /// Ends the leases in a scope whose blocks are about to be given up.
    pub(crate) fn drop_leases(&mut self, scope: i32) {
        let held = self.leases.held.iter();
        let ids: Vec<i64> = held
            .filter(|(_, lease)| self.tree.node(lease.node).scope == scope)
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            let node = self.leases.remove(id).expect("it was held");
            self.tree.end_lease(node, &self.blocks, &self.steps);
        }
    }
}

//! Quotas of scopes: what they keep of the tree while others need room.

use crate::error::LedgerError;
use crate::ledger::{Ledger, check_range};
use crate::prefix::{Quota, Share};

/// What one scope with a quota has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaStats {
    /// The scope.
    pub scope: i32,
    /// Blocks of it that allocations for other scopes leave alone.
    pub floor_blocks: u32,
    /// Blocks above which it is evicted first; `None`: no such number.
    pub ceiling_blocks: Option<u32>,
    /// Blocks of it in the tree.
    pub cached_blocks: u32,
    /// Those of them that are evictable now.
    pub evictable_blocks: u32,
    /// Those of them that only the scope itself may evict.
    pub guarded_blocks: u32,
}

impl QuotaStats {
    fn of(scope: i32, share: &Share) -> Self {
        Self {
            scope,
            floor_blocks: share.quota.floor,
            ceiling_blocks: share.quota.ceiling,
            cached_blocks: share.counts.cached,
            evictable_blocks: share.counts.evictable,
            guarded_blocks: share.guarded(),
        }
    }
}

impl Ledger {
    /// Gives a scope a floor that allocations for others do not evict below, and a ceiling above which it
    /// is evicted first. A floor of 0 without a ceiling ends the quota.
    ///
    /// # Errors
    ///
    /// [`LedgerError::UnknownScope`] for a scope that nobody holds; [`LedgerError::OutOfRange`] for a
    /// ceiling below the floor; [`LedgerError::FloorTooHigh`] for a floor beyond what other floors and open
    /// sequences leave; [`LedgerError::Config`] without reuse.
    pub fn set_quota(
        &mut self,
        scope: i32,
        floor_blocks: u32,
        ceiling_blocks: Option<u32>,
    ) -> Result<(), LedgerError> {
        let limit = i64::from(i32::MAX);
        check_range("scope", 0, scope.into(), 0, limit)?;
        self.check_scope(0, scope)?;
        if !self.config.reuse {
            return Err(LedgerError::Config {
                argument: "floor_blocks",
                value: floor_blocks.into(),
                supported: "set only with reuse: nothing is cached without",
            });
        }
        check_range("floor_blocks", 0, floor_blocks.into(), 0, limit)?;
        if let Some(ceiling) = ceiling_blocks {
            let floor = floor_blocks.into();
            check_range("ceiling_blocks", 0, ceiling.into(), floor, limit)?;
        }
        let most = self.floor_max(scope);
        if u64::from(floor_blocks) > most {
            return Err(LedgerError::FloorTooHigh {
                scope,
                floor: floor_blocks,
                most,
            });
        }
        let quota = Quota {
            floor: floor_blocks,
            ceiling: ceiling_blocks,
        };
        let quota = (floor_blocks > 0 || ceiling_blocks.is_some()).then_some(quota);
        self.tree.set_quota(scope, quota, &self.steps);
        Ok(())
    }

    /// The scopes with quotas, ascending.
    #[must_use]
    pub fn quotas(&self) -> Vec<QuotaStats> {
        let shares = self.tree.shares.iter();
        shares
            .map(|(scope, share)| QuotaStats::of(scope, share))
            .collect()
    }

    /// Blocks that the tree and sequences can have together.
    #[inline]
    pub(super) fn usable_blocks(&self) -> u64 {
        let full = self.pools[..self.classes.full()].iter();
        let pages = full.map(|pool| pool.num_pages() - 1).min();
        if !self.config.reuse && pages.is_none() {
            return u64::MAX;
        }
        pages.unwrap_or(self.blocks.records()).into()
    }

    /// The largest floor of a scope beside the other floors and what open sequences may need.
    fn floor_max(&self, scope: i32) -> u64 {
        let others = self.tree.floors_against(scope);
        let own = self.tree.floors_against(-1) - others;
        let usable = self.usable_blocks();
        let open = self
            .sequences
            .iter()
            .filter(|seq| seq.open && seq.scope != scope);
        let left = open.map(|seq| {
            let worst = self.worst(seq.known, seq.max_total);
            let worst = self.counted(worst, self.publishes(seq.scope));
            let against = self.tree.floors_against(seq.scope) - own;
            usable.saturating_sub(against + u64::from(worst))
        });
        left.min()
            .unwrap_or(u64::MAX)
            .min(usable.saturating_sub(others))
    }
}

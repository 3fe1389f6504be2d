//! The seam of lower tiers: transfers out, completions in, and what callers ask for besides.
#![allow(clippy::similar_names, reason = "a shelf is not self")]

use std::collections::HashSet;

use crate::error::LedgerError;
use crate::ids::Token;
use crate::key::BlockKey;
use crate::ledger::admit::Item;
use crate::ledger::lower::LowerPage;
use crate::ledger::{Ledger, check_len};
use crate::prefix::Retention;
use crate::tiers::{
    BLOCKS_SHELF, DISK, HOST, LOWER, TierCounters, TierShelf, Tiers, TransferRow, Value,
};

/// Tokens of a prompt that lie on each tier, as an admission would use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierMatch {
    /// On the device.
    pub device: u32,
    /// After them, on the host.
    pub host: u32,
    /// After or between them, on disk.
    pub disk: u32,
}

impl Ledger {
    /// Rows that were planned and not handed out.
    #[must_use]
    pub fn pending_transfers(&self) -> usize {
        self.tiers.as_ref().map_or(0, |tiers| tiers.planned())
    }

    /// Hands out the planned rows, in order, and with them, as far as `rows` rows go, what is to be copied
    /// from host to disk ahead of need.
    ///
    /// # Errors
    ///
    /// [`LedgerError::BufferTooSmall`] if more rows are planned; nothing has changed then.
    pub fn transfers(&mut self, rows: usize) -> Result<Vec<TransferRow>, LedgerError> {
        let required = self.pending_transfers();
        if required > rows {
            return Err(LedgerError::BufferTooSmall {
                argument: "out",
                len: rows,
                required,
            });
        }
        let Some(tiers) = &mut self.tiers else {
            return Ok(Vec::new());
        };
        tiers.spill_ahead(rows);
        let rows = tiers.take_planned().collect();
        self.log_below();
        Ok(rows)
    }

    /// Notes what became of transfers, in any order.
    ///
    /// # Errors
    ///
    /// [`LedgerError::UnknownTransfer`] for one that was not handed out, is completed, or appears twice;
    /// nothing has changed then.
    pub fn complete_transfers(&mut self, ids: &[i64], ok: &[u8]) -> Result<(), LedgerError> {
        check_len("ok", ok.len(), ids.len())?;
        let mut seen = HashSet::new();
        let mut checked = Vec::with_capacity(ids.len());
        for (item, &given) in ids.iter().enumerate() {
            let id = u64::try_from(given).ok().filter(|&id| {
                let tiers = self.tiers.as_ref();
                tiers.is_some_and(|tiers| tiers.is_under_way(id)) && seen.insert(id)
            });
            checked.push(id.ok_or(LedgerError::UnknownTransfer { item, id: given })?);
        }
        for (&id, &ok) in checked.iter().zip(ok) {
            let tiers = self.tiers.as_mut().expect("the transfer is theirs");
            if let Some(arrival) = tiers.complete(id, ok != 0) {
                self.note_arrival(arrival.load, arrival.entry, arrival.ok);
            }
            self.log_below();
        }
        Ok(())
    }

    /// Evicts up to so many evictable blocks, as an allocation would that is for no scope; returns how many.
    pub fn offload(&mut self, blocks: u32) -> u32 {
        let blocks = blocks.min(self.tree.evictable_for(-1));
        if blocks > 0 {
            self.evict_blocks(-1, blocks);
        }
        blocks
    }

    /// Plans host to disk for every host copy that has none there, as far as there is room; returns how
    /// many.
    pub fn flush(&mut self) -> u32 {
        let planned = self.tiers.as_mut().map_or(0, |tiers| tiers.spill_all());
        self.log_below();
        planned
    }

    /// Logs what has changed on lower tiers.
    pub(super) fn log_below(&mut self) {
        if let (Some(tiers), Some(log)) = (&mut self.tiers, &mut self.blocks.log) {
            log.note_below(&tiers.take_notes());
        }
    }

    /// Makes entries of a class with valid copies, least valuable first: what an executor found. Returns
    /// how many.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Config`] for a tier or class without pages there; [`LedgerError::OutOfRange`] for a
    /// page that does not exist, is in use or appears twice; [`LedgerError::KnownKey`] for a key that is
    /// there or appears twice. Nothing has changed then.
    pub fn restore(
        &mut self,
        tier: u8,
        class: u32,
        keys: &[BlockKey],
        pages: &[i32],
    ) -> Result<usize, LedgerError> {
        check_len("pages", pages.len(), keys.len())?;
        let level = match tier {
            1 => HOST,
            2 => DISK,
            _ => {
                return Err(LedgerError::Config {
                    argument: "tier",
                    value: tier.into(),
                    supported: "1 (host) or 2 (disk)",
                });
            }
        };
        let has_draft = self.config.has_draft;
        let (shelf, tiers) = self.shelf_with_pages(class, level)?;
        let items = check_restored(tiers, shelf, level, keys, pages)?;
        let are_blocks = shelf == BLOCKS_SHELF && !has_draft;
        tiers.restore(shelf, level, &items, are_blocks);
        self.log_below();
        Ok(items.len())
    }

    /// Offers the host what came from elsewhere, the first key first. Returns the page of each that got
    /// one; its copy is valid, and the caller fills it before anything else happens.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Config`] for a class without pages on the host.
    pub fn adopt(
        &mut self,
        class: u32,
        keys: &[BlockKey],
    ) -> Result<Vec<Option<u32>>, LedgerError> {
        let used_now = Value {
            priority: Retention::DEFAULT.priority,
            rank: self.tree.idle_usage().rank,
            last_use: self.tree.tick,
            offer: 0,
        };
        let has_draft = self.config.has_draft;
        let (shelf, tiers) = self.shelf_with_pages(class, HOST)?;
        let is_blocks = shelf == BLOCKS_SHELF;
        let value = if is_blocks {
            used_now
        } else {
            Value::default()
        };
        let pages = tiers.adopt(shelf, keys, value, is_blocks && !has_draft);
        self.log_below();
        Ok(pages)
    }

    /// The keys under which lower tiers would be asked for the blocks of a prompt, from the first one on.
    ///
    /// # Errors
    ///
    /// As [`Ledger::keys`].
    pub fn tier_keys(
        &self,
        tokens: &[Token],
        scope: i32,
        draft_valid: bool,
    ) -> Result<Vec<BlockKey>, LedgerError> {
        let size = self.config.tokens_per_block as usize;
        let keys = self.keys(tokens, scope)?;
        let keyed = (keys.iter().zip(1..)).map_while(|(key, blocks)| {
            let end = blocks * size;
            // One token must run, and what identifies the block must be known.
            let next = tokens.get(end..end + self.tree.lookahead)?;
            (end < tokens.len()).then(|| self.tier_key_of(key, draft_valid, next))
        });
        Ok(keyed.collect())
    }

    /// The shelf of a class that has pages on a tier.
    fn shelf_with_pages(
        &mut self,
        class: u32,
        level: usize,
    ) -> Result<(usize, &mut Tiers), LedgerError> {
        let place = (self.classes.places().get(class as usize)).copied();
        let found = self.tiers.as_deref_mut().and_then(|tiers| {
            let shelf = tiers.shelf_of(place?)?;
            (tiers.shelves[shelf].levels[level].pages > 0).then_some((shelf, tiers))
        });
        found.ok_or(LedgerError::Config {
            argument: "class",
            value: class.into(),
            supported: "a class with pages on that tier",
        })
    }

    /// Pages of lower tiers by state, and counters; `None` in a ledger without.
    #[must_use]
    pub fn tier_stats(&self) -> Option<(Vec<TierShelf>, TierCounters, usize)> {
        let tiers = self.tiers.as_ref()?;
        Some((tiers.stats(), tiers.counters, tiers.open_transfers()))
    }

    /// How much of a prompt an admission would find on each tier.
    ///
    /// # Errors
    ///
    /// As [`Ledger::match_tokens`].
    pub fn match_tiers(
        &self,
        tokens: &[Token],
        scope: i32,
        draft_from: Option<i32>,
    ) -> Result<TierMatch, LedgerError> {
        let draft_from = self.check_query(tokens, scope, draft_from)?;
        let mut out = TierMatch::default();
        if tokens.is_empty() {
            return Ok(out);
        }
        let len = crate::ids::count(tokens.len());
        let item = Item {
            prompt: tokens,
            len,
            scope,
            first: 1,
            max_total: len,
            draft_from,
        };
        let (found, below) = self.match_item(&item);
        let size = self.config.tokens_per_block;
        let usable = found.usable.min(len - 1);
        out.device = usable - usable % self.hit_unit() - found.cold * size;
        let tiers = self.tiers.as_ref();
        let Some(tiers) = tiers else {
            return Ok(out);
        };
        let is_host = |page: &LowerPage| {
            tiers.shelves[page.entry.shelf].readable(page.entry.id) == Some(HOST)
        };
        if self.classes.full() == 0 {
            // Blocks have no page of their own; the hit is on the host if all that it loads is.
            let tokens = found.cold * size;
            let tier = if below.iter().all(is_host) {
                &mut out.host
            } else {
                &mut out.disk
            };
            *tier = tokens;
            return Ok(out);
        }
        for page in below.iter().filter(|page| page.entry.shelf == BLOCKS_SHELF) {
            if is_host(page) {
                out.host += size;
            } else {
                out.disk += size;
            }
        }
        Ok(out)
    }
}

/// The keys and pages of entries that may be made.
fn check_restored(
    tiers: &Tiers,
    shelf: usize,
    level: usize,
    keys: &[BlockKey],
    pages: &[i32],
) -> Result<Vec<(BlockKey, u32)>, LedgerError> {
    debug_assert!(level < LOWER);
    let shelf = &tiers.shelves[shelf];
    let mut free: HashSet<u32> = shelf.levels[level].free.iter().copied().collect();
    let mut seen = HashSet::new();
    let mut items = Vec::with_capacity(keys.len());
    for (item, (&key, &page)) in keys.iter().zip(pages).enumerate() {
        let taken = u32::try_from(page).ok().filter(|page| free.remove(page));
        let Some(taken) = taken else {
            return Err(LedgerError::PageInUse {
                item,
                page: page.into(),
                pages: shelf.levels[level].pages,
            });
        };
        if shelf.find(&key).is_some() || !seen.insert(key) {
            return Err(LedgerError::KnownKey { item });
        }
        items.push((key, taken));
    }
    Ok(items)
}

//! What lower tiers add to a match, and how a sequence starts whose blocks come from there.
#![allow(clippy::similar_names, reason = "a shelf is not self")]

use crate::ids::{BlockId, PAGE_ZERO, Token};
use crate::key::BlockKey;
use crate::ledger::Ledger;
use crate::ledger::admit::Item;
use crate::ledger::sides::at_most;
use crate::prefix::Found;
use crate::tiers::{BLOCKS_SHELF, EntryRef, Shelf, Tiers};
use crate::window::Window;

/// One page that a load brings to the device: of a block, in all full classes, or of a window or state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LowerPage {
    /// The block's ordinal.
    pub ordinal: u32,
    pub entry: EntryRef,
}

/// The pages that a load brings, those of blocks first.
pub(super) type LowerPages = Vec<LowerPage>;

impl Ledger {
    /// Builds the lower tiers that the configuration names.
    pub(super) fn build_tiers(&mut self) {
        if !self.config.has_tiers() {
            return;
        }
        let full = self.classes.full();
        let pages = |pages: &Vec<u32>, places: &[usize]| {
            let classes = places
                .iter()
                .map(|&place| self.classes.class(place) as usize);
            classes
                .map(|class| pages.get(class).copied().unwrap_or(0))
                .min()
                .unwrap_or(0)
        };
        let shelf = |places: Vec<usize>| {
            let host = pages(&self.config.host_pages, &places);
            let disk = pages(&self.config.disk_pages, &places);
            Shelf::new(places, [host, disk])
        };
        let mut shelves = vec![shelf((0..full).collect())];
        shelves.extend((full..self.classes.states().end).map(|place| shelf(vec![place])));
        let class_at = (0..self.classes.len()).map(|place| self.classes.class(place));
        self.tiers = Some(Box::new(Tiers::new(shelves, class_at.collect())));
        self.blocks.keep_tier_keys();
    }

    /// Extends what the device has of a prompt by what lower tiers have. `agreed` is what the full classes
    /// on the device agree on, `found` what all classes accept.
    pub(super) fn extend_below(
        &self,
        item: &Item<'_>,
        agreed: u32,
        found: &mut Found,
    ) -> LowerPages {
        let Some(tiers) = &self.tiers else {
            return LowerPages::new();
        };
        let size = self.config.tokens_per_block;
        // Without a full class the tree keeps blocks whose pages are gone: they are loaded, too.
        let from = if self.classes.full() == 0 {
            found.usable / size
        } else {
            agreed / size
        };
        let below = self.blocks_below(tiers, item, from, found);
        let shared = if self.has_sides() {
            self.path_blocks(found.tail, from)
        } else {
            Vec::new()
        };
        // The longest end that windows and states accept.
        for end in (1..=below.len()).rev() {
            let hit = (from + crate::ids::count(end)) * size;
            if hit <= found.usable {
                break;
            }
            if let Some(sides) = self.sides_below(tiers, &shared, hit, &below) {
                found.usable = hit;
                found.longest = found.longest.max(hit);
                found.cold = crate::ids::count(end);
                let blocks = below[..end].iter().filter_map(|&(_, page)| page);
                return blocks.chain(sides).collect();
            }
        }
        LowerPages::new()
    }

    /// The blocks of a prompt from `from` on that lower tiers have, with their keys; without a full class,
    /// all that they could have.
    fn blocks_below(
        &self,
        tiers: &Tiers,
        item: &Item<'_>,
        from: u32,
        found: &Found,
    ) -> Vec<(BlockKey, Option<LowerPage>)> {
        let size = self.config.tokens_per_block as usize;
        let lookahead = self.tree.lookahead;
        let mut key = match from.checked_sub(1) {
            None => self.root_key(item.scope),
            Some(last) => {
                let node = self.tree.node(self.tree.holder(found.tail, last));
                self.known_key(node.blocks()[(last - node.start) as usize])
            }
        };
        let mut below = Vec::new();
        let shelf = &tiers.shelves[BLOCKS_SHELF];
        for ordinal in from.. {
            let start = ordinal as usize * size;
            let end = start + size;
            // One token must run, and what identifies the block must be known.
            if end >= item.prompt.len() || end + lookahead > item.prompt.len() {
                break;
            }
            key = self.key_after(&key, &item.prompt[start..end]);
            let next = &item.prompt[end..end + lookahead];
            let needs_draft = self.config.has_draft
                && u32::try_from(item.draft_from).is_ok_and(|from| end > from as usize);
            if self.classes.full() == 0 {
                // No page of its own says that the block is there: its windows and states do.
                below.push((self.tier_key_of(&key, true, next), None));
                continue;
            }
            let entry = self.entry_below(shelf, &key, next, needs_draft);
            let Some((key, id)) = entry else {
                break;
            };
            let entry = EntryRef {
                shelf: BLOCKS_SHELF,
                id,
            };
            below.push((key, Some(LowerPage { ordinal, entry })));
        }
        below
    }

    /// The entry of a block that can be read, with its tier key: with draft KV, or else without if it is not
    /// needed.
    fn entry_below(
        &self,
        shelf: &Shelf,
        key: &BlockKey,
        next: &[Token],
        needs_draft: bool,
    ) -> Option<(BlockKey, u32)> {
        let draft_valid: &[bool] = match (self.config.has_draft, needs_draft) {
            (true, false) => &[true, false],
            _ => &[true],
        };
        draft_valid.iter().find_map(|&draft_valid| {
            let key = self.tier_key_of(key, draft_valid, next);
            let id = shelf.find(&key)?;
            shelf.readable(id).map(|_| (key, id))
        })
    }

    /// The pages of windows and states that a hit which ends in the blocks `below` loads; `None` if one that
    /// it needs is not there.
    fn sides_below(
        &self,
        tiers: &Tiers,
        shared: &[BlockId],
        hit: u32,
        below: &[(BlockKey, Option<LowerPage>)],
    ) -> Option<LowerPages> {
        let mut pages = LowerPages::new();
        if !self.has_sides() {
            return Some(pages);
        }
        let size = self.config.tokens_per_block;
        let (end, from) = (hit / size, crate::ids::count(shared.len()));
        let entry_of = |place: usize, ordinal: u32| {
            let shelf = tiers.shelf_of(place)?;
            let id = tiers.shelves[shelf].find(&below[(ordinal - from) as usize].0)?;
            tiers.shelves[shelf].readable(id)?;
            let entry = EntryRef { shelf, id };
            Some(LowerPage { ordinal, entry })
        };
        for (rule, place) in self.classes.windows().iter().zip(self.classes.full()..) {
            // The last one first: it is the one that most ends lack.
            for ordinal in live_blocks(rule.needed, hit, end).rev() {
                let is_there = match shared.get(ordinal as usize) {
                    Some(&block) => self.sides.at(place).page(block) != PAGE_ZERO,
                    None => entry_of(place, ordinal).is_some(),
                };
                if !is_there {
                    return None;
                }
            }
            let kept = live_blocks(rule.kept, hit, end).filter(|&ordinal| ordinal >= from);
            pages.extend(kept.filter_map(|ordinal| entry_of(place, ordinal)));
        }
        for place in self.classes.states() {
            pages.push(entry_of(place, end - 1)?);
        }
        Some(pages)
    }

    /// Whether some of these pages are on their way to the device already.
    pub(super) fn is_on_its_way(&self, pages: &LowerPages) -> bool {
        let Some(tiers) = &self.tiers else {
            return false;
        };
        let entry = |entry: EntryRef| &tiers.shelves[entry.shelf].entries[entry.id];
        pages.iter().any(|page| entry(page.entry).loading)
    }

    /// Keeps what items of a call will load where it is, or lets go of it.
    pub(super) fn claim_below<'a>(
        &mut self,
        items: impl Iterator<Item = &'a LowerPages>,
        pin: bool,
    ) {
        if let Some(tiers) = &mut self.tiers {
            for page in items.flatten() {
                tiers.claim(page.entry, pin);
            }
        }
    }
}

/// The blocks before `end` that a window has at `tokens` settled tokens.
fn live_blocks(window: Window, tokens: u32, end: u32) -> impl DoubleEndedIterator<Item = u32> {
    let live = window.live(tokens.into(), 0);
    let (sinks, start) = (at_most(live.sinks, end), at_most(live.start, end));
    (0..sinks).chain(start.max(sinks)..end)
}

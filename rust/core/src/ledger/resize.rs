//! Other sizes of pools while sequences are open.

use crate::error::LedgerError;
use crate::ids::{PAGE_ZERO, PageIndex, Row};
use crate::ledger::memory::check_memory;
use crate::ledger::{Ledger, LedgerConfig, check_len, check_range};
use crate::side::Side;

/// No scope: what is evicted for it asks all floors.
const NOBODY: i32 = -1;

/// A page whose contents go to another one: class, source, destination, leading tokens to copy.
pub type PageMove = [u32; 4];

/// Pages that moved in one class, ascending by source.
struct Moved(Vec<(PageIndex, PageIndex)>);

impl Moved {
    fn to(&self, page: PageIndex) -> PageIndex {
        let place = self.0.binary_search_by_key(&page, |&(source, _)| source);
        place.map_or(page, |at| self.0[at].1)
    }
}

impl Ledger {
    /// Gives the pools other sizes, one per class. Evicts what is missing and moves owned pages that lie
    /// beyond a new end; returns what the engine must copy before anything else touches the pools.
    ///
    /// # Errors
    ///
    /// [`LedgerError::StepsOpen`], [`LedgerError::TransfersOpen`] for pages in flight;
    /// [`LedgerError::Memory`]; [`LedgerError::PoolTooSmall`] where what is held, promised or guarded does not fit; for another
    /// number of classes or a size out of range. Nothing has changed then.
    pub fn resize(&mut self, num_pages: &[u32]) -> Result<Vec<PageMove>, LedgerError> {
        self.check_resize(num_pages)?;
        let sizes: Vec<u32> = (0..self.pools.len())
            .map(|place| num_pages[self.classes.class(place) as usize])
            .collect();
        let config = LedgerConfig {
            num_pages: num_pages.to_vec(),
            ..self.config.clone()
        };
        check_memory(&config)?;
        self.evict_to(&sizes);
        self.config = config;
        let records = self.config.records().max(self.blocks.records());
        self.blocks.grow(records);
        self.tree.grow_policy(records);
        let mut moves = Vec::new();
        for class in 0..self.pools.len() {
            let place = self.classes.place(class);
            let renamed = Moved(self.pools[place].resize(sizes[place]));
            self.follow(place, &renamed);
            if let Some(side) = self.sides.get_mut(place) {
                side.resize(sizes[place], records, |page| renamed.to(page));
            }
            let tokens = if self.classes.states().contains(&place) {
                1
            } else {
                self.config.tokens_per_block
            };
            let rows = renamed.0.iter();
            let class = crate::ids::count(class);
            moves.extend(rows.map(|(from, to)| [class, from.get(), to.get(), tokens]));
        }
        Ok(moves)
    }

    fn check_resize(&self, num_pages: &[u32]) -> Result<(), LedgerError> {
        let open = self.steps.open().len();
        if open > 0 {
            return Err(LedgerError::StepsOpen {
                call: "resize",
                open,
            });
        }
        let planned = self.tiers.as_ref().map_or(0, |tiers| tiers.planned());
        let transfers = self.loads.len() + planned;
        if transfers > 0 {
            return Err(LedgerError::TransfersOpen {
                call: "resize",
                transfers,
            });
        }
        check_len("num_pages", num_pages.len(), self.pools.len())?;
        for (class, &given) in num_pages.iter().enumerate() {
            check_range("num_pages", class, given.into(), 2, i32::MAX.into())?;
        }
        for (class, &given) in num_pages.iter().enumerate() {
            let needed = 1 + self.pages_needed(self.classes.place(class));
            if needed > given.into() {
                return Err(LedgerError::PoolTooSmall {
                    class,
                    needed,
                    given,
                });
            }
        }
        Ok(())
    }

    /// The pages that the class at a place must have: what is owned and not evictable, with what is
    /// promised; the floors; and what each open sequence may come to need beside those of others.
    fn pages_needed(&self, place: usize) -> u64 {
        let is_full = place < self.classes.full();
        let (evictable, promised) = if is_full {
            (self.tree.evictable_for(NOBODY), self.promised)
        } else {
            let side = self.sides.get(place);
            (side.map_or(0, Side::evictable), self.promised_at(place))
        };
        let held = u64::from(self.owned(place) - evictable) + promised;
        let floors = |scope| {
            if is_full {
                self.tree.floors_against(scope)
            } else {
                0
            }
        };
        let open = self.sequences.iter().filter(|seq| seq.open).map(|seq| {
            let worst = self.worst(seq.known, seq.max_total);
            let pages = if is_full {
                worst
            } else {
                self.most_at(place, worst)
            };
            u64::from(pages) + floors(seq.scope)
        });
        held.max(floors(NOBODY)).max(open.max().unwrap_or(0))
    }

    /// Pages of the class at a place that are not free.
    fn owned(&self, place: usize) -> u32 {
        let pool = &self.pools[place];
        pool.num_pages() - 1 - pool.free_count()
    }

    /// Evicts until every pool owns no more than its new size holds.
    fn evict_to(&mut self, sizes: &[u32]) {
        let full = self.classes.full();
        let over =
            |ledger: &Self, place: usize| ledger.owned(place).saturating_sub(sizes[place] - 1);
        let blocks = (0..full).map(|place| over(self, place)).max().unwrap_or(0);
        if blocks > 0 {
            self.evict_blocks(NOBODY, blocks);
        }
        for place in full..self.classes.states().end {
            let pages = over(self, place);
            if pages > 0 {
                self.evict_sides(place, pages);
            }
        }
    }

    /// Renames the pages of a class that moved, in rows and in the tree.
    fn follow(&mut self, place: usize, moved: &Moved) {
        if moved.0.is_empty() {
            return;
        }
        let places = self.pools.len();
        let rows: Vec<Row> = self.open_rows().collect();
        for row in rows {
            let pages = &mut self.tables[row.at() * places + place].pages;
            let mut renamed: Option<(u32, u32)> = None;
            for (column, page) in (0..).zip(pages.iter_mut()) {
                let to = moved.to(*page);
                if to != *page {
                    debug_assert!(*page != PAGE_ZERO);
                    *page = to;
                    renamed = Some((renamed.map_or(column, |(from, _)| from), column + 1));
                }
            }
            if let Some((from, to)) = renamed {
                self.touch_at(row, place, from, to);
            }
        }
        if place < self.classes.full() {
            self.tree.rename_pages(place, |page| moved.to(page));
        }
    }
}

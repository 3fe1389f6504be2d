//! The ledger: every page of one rank, for target and draft together.
//!
//! `docs/ledger.md` is its contract. A call checks everything first, then acts; a refusal or an error
//! leaves no trace.
//!
//! | file | holds |
//! |---|---|
//! | `admit.rs` | new sequences: match, count, take |
//! | `grow.rs` | room for the tokens of a step |
//! | `advance.rs` | results of a step: tokens, lengths, what is given back |
//! | `publish.rs` | blocks entering the tree |
//! | `fork.rs` | new sequences that continue open ones |
//! | `lease.rs` | prefixes that stay protected without a sequence |
//! | `retain.rs` | priorities of what a sequence publishes |
//! | `suspend.rs` | giving up the pages of a sequence and getting new ones |
//! | `release.rs` | the end of a sequence |
//! | `reset.rs` | forgetting all that could be reused |
//! | `identity.rs` | scopes and media |
//! | `probe.rs` | what a scheduler asks first: what would fit, why a match ended |
//! | `victims.rs` | what preempting sequences would give |
//! | `keys.rs` | keys of blocks, and events |
//! | `read.rs` | tables, updates, moves, statistics |
//! | `tables.rs` | CSR, slot mappings and rows of slots |
//! | `check.rs` | validation, dump and digest, for tests |

mod admit;
mod advance;
mod check;
mod config;
mod fork;
mod grow;
mod identity;
mod keys;
mod lease;
mod probe;
mod publish;
mod read;
mod release;
mod reset;
mod retain;
mod suspend;
mod tables;
mod victims;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use admit::{AdmitBatch, REFUSED_FOREVER, REFUSED_NO_ROW, REFUSED_NOT_TRIED, REFUSED_NOW};
pub use advance::{AdvanceBatch, Rows};
pub use check::{Dump, NodeDump, SequenceDump};
pub use config::LedgerConfig;
pub(crate) use lease::Leases;
pub use lease::{LEASE_NOTHING, LEASE_REFUSED};
pub use probe::{BlocksBatch, MatchReport, MissReason, Missed};
pub use read::Move;
pub(crate) use retain::Hint;
pub use retain::{PRIORITY_MAX, RetainBatch};
pub use tables::Csr;

use crate::blocks::Blocks;
use crate::classes::Classes;
use crate::error::LedgerError;
use crate::ids::{Handle, NodeId, PageIndex, Row};
use crate::ledger::identity::Identity;
use crate::pool::Pool;
use crate::prefix::{Store, Tree};
use crate::sequence::Sequence;
use crate::side::{Side, Sides};
use crate::stats::Counters;
use crate::steps::Steps;
use crate::table::TableRow;

/// Owns the pages, the sequences and the prefix tree of one rank.
#[derive(Debug)]
pub struct Ledger {
    config: LedgerConfig,
    classes: Classes,
    /// Of all classes, by place.
    pools: Vec<Pool>,
    /// Side pages of the classes of windows and states.
    sides: Sides,
    blocks: Blocks,
    tree: Tree,
    steps: Steps,
    sequences: Vec<Sequence>,
    /// One row per place and sequence row.
    tables: Vec<TableRow>,
    free_rows: BinaryHeap<Reverse<u32>>,
    /// Rows with table changes that `updates` has not reported.
    dirty_rows: Vec<Row>,
    /// Sources of copies: protected until the step completes.
    copies: Vec<(u64, NodeId)>,
    /// Cached prefixes that are protected without a sequence.
    leases: Leases,
    /// Copies that `moves` has not handed out.
    moves: Vec<Move>,
    /// Sum of the promises of open sequences, in blocks.
    promised: u64,
    /// Sequences that are open and suspended.
    suspended: u32,
    /// Numbers the calls, to find handles that appear twice in one.
    calls: u64,
    counters: Counters,
    identity: Identity,
}

impl Ledger {
    /// A ledger with all pages free.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Config`] for a value outside what is supported.
    pub fn new(config: LedgerConfig) -> Result<Self, LedgerError> {
        config.check()?;
        let classes = Classes::new(&config)?;
        let pages = |place| config.num_pages[classes.class(place) as usize];
        let (records, rows) = (config.records(), config.max_sequences);
        let sides = (classes.full()..classes.states().end)
            .map(|place| Side::new(pages(place), records, classes.states().contains(&place)));
        Ok(Self {
            pools: (0..classes.len())
                .map(|place| Pool::new(pages(place)))
                .collect(),
            sides: Sides::new(classes.full(), sides.collect()),
            blocks: Blocks::new(config.tokens_per_block, records),
            tree: Tree::new(
                classes.full(),
                config.lookahead,
                config.policy.build(records),
                config.ttl_ms,
            ),
            steps: Steps::new(config.same_stream),
            sequences: (0..rows).map(|_| Sequence::closed()).collect(),
            tables: (0..rows as usize * classes.len())
                .map(|_| TableRow::default())
                .collect(),
            free_rows: (0..rows).map(Reverse).collect(),
            dirty_rows: Vec::new(),
            copies: Vec::new(),
            leases: Leases::default(),
            moves: Vec::new(),
            promised: 0,
            suspended: 0,
            calls: 0,
            counters: Counters::default(),
            identity: Identity::new(&config.num_pages),
            classes,
            config,
        })
    }

    /// The configuration it was built with.
    #[must_use]
    pub fn config(&self) -> &LedgerConfig {
        &self.config
    }

    /// Classes of cache groups, the first dimension of tables.
    #[must_use]
    pub fn num_classes(&self) -> usize {
        self.pools.len()
    }

    /// Begins a step and returns its number.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Clock`] if `now` is below an earlier one, or not a number.
    pub fn begin_step(&mut self, now: f64) -> Result<u64, LedgerError> {
        self.steps.check_clock(now)?;
        self.end_leases(now);
        let mut store = Store {
            blocks: &mut self.blocks,
            pools: &mut self.pools,
            sides: &mut self.sides,
        };
        let expired = self.tree.expire(now, &mut store, &self.steps);
        self.counters.expired_blocks += u64::from(expired);
        let step = self.steps.begin(now)?;
        self.tree.expire_retention(&self.steps);
        Ok(step)
    }

    /// Ends a step: its pages in flight become allocatable, and its copies release their sources.
    ///
    /// # Errors
    ///
    /// [`LedgerError::StepNotOpen`]; [`LedgerError::MovesNotTaken`] if the engine never asked for the
    /// copies of the step.
    pub fn complete_step(&mut self, step: u64) -> Result<(), LedgerError> {
        self.steps.check_open(step)?;
        let waiting = self.moves.iter().filter(|copy| copy.step == step).count();
        if waiting > 0 {
            return Err(LedgerError::MovesNotTaken {
                step,
                moves: waiting,
            });
        }
        self.steps.complete(step)?;
        for pool in &mut self.pools {
            pool.release_fenced(&self.steps);
        }
        for (_, side) in self.sides.iter_mut() {
            side.release_fenced(&self.steps);
        }
        self.tree.release_fenced(&self.steps);
        let copies = std::mem::take(&mut self.copies);
        for (queued_in, source) in copies {
            if queued_in == step {
                self.tree.next_tick(0);
                self.tree.unpin(source, &self.blocks, &self.steps);
            } else {
                self.copies.push((queued_in, source));
            }
        }
        Ok(())
    }

    /// Open sequences.
    #[must_use]
    pub fn open_sequences(&self) -> u32 {
        self.config.max_sequences - crate::ids::count(self.free_rows.len())
    }

    /// Whether pages can be had in every class: the one answer about room.
    ///
    /// In a full class that is `blocks` pages while `protect` evictable blocks are not touched; without
    /// a full class, records of blocks stand for its pages. `other(place)` says both numbers of any other
    /// class; they are asked for only if there is one.
    #[inline]
    fn has_blocks(&self, blocks: u64, protect: u32, other: impl Fn(usize) -> (u64, u32)) -> bool {
        let full = self.classes.full();
        let evictable = u64::from(self.tree.evictable() - protect);
        let has = |free: u32| blocks <= u64::from(free) + evictable;
        let fits = self.pools[..full].iter().all(|pool| has(pool.free_count()))
            && (full > 0 || has(self.blocks.free_count()));
        fits && (full..self.pools.len()).all(|place| {
            let (pages, protect) = other(place);
            let evictable = self.sides.get(place).map_or(0, Side::evictable);
            pages <= u64::from(self.pools[place].free_count()) + u64::from(evictable - protect)
        })
    }

    /// Takes `need` blocks for a row, evicting what is missing. The caller has checked that they fit.
    fn take(&mut self, row: Row, need: u32) {
        let full = self.classes.full();
        let missing = self.pools[..full]
            .iter()
            .map(|pool| need.saturating_sub(pool.free_count()))
            .max()
            .unwrap_or(0);
        if missing > 0 {
            let mut store = Store {
                blocks: &mut self.blocks,
                pools: &mut self.pools,
                sides: &mut self.sides,
            };
            self.tree.evict(missing, &mut store, &self.steps);
            self.counters.evicted_blocks += u64::from(missing);
        }
        let first = row.at() * self.pools.len();
        for (class, pool) in self.pools[..full].iter_mut().enumerate() {
            pool.take(need, &mut self.tables[first + class].pages);
        }
        let seq = &mut self.sequences[row.at()];
        if seq.keeps_tokens {
            self.blocks.take(need, &mut seq.blocks);
        }
        let had = seq.held;
        let promise = seq.promise();
        seq.held += need;
        self.promised -= u64::from(promise - seq.promise());
        self.touch(row, had, had + need);
    }

    /// Notes that columns `from .. to` of a row have changed.
    #[inline]
    fn touch(&mut self, row: Row, from: u32, to: u32) {
        let classes = self.pools.len();
        let first = row.at() * classes;
        let mut clean = false;
        for class in 0..classes {
            clean |= self.tables[first + class].touch(from, to);
        }
        if clean {
            self.dirty_rows.push(row);
        }
    }

    /// Checks one handle of a call that has been numbered by `self.calls`.
    #[inline]
    fn check_handle(&mut self, item: usize, handle: i64) -> Result<Row, LedgerError> {
        let row = self.check_any_handle(item, handle)?;
        if self.sequences[row.at()].suspended {
            return Err(LedgerError::Suspended { item, handle });
        }
        Ok(row)
    }

    /// The same for calls that take suspended sequences.
    #[inline]
    fn check_any_handle(&mut self, item: usize, handle: i64) -> Result<Row, LedgerError> {
        let parts = Handle::from_i64(handle);
        let seq = parts.and_then(|parts| {
            let seq = self.sequences.get_mut(parts.row.at())?;
            let current = seq.open && seq.generation == parts.generation;
            current.then_some((parts.row, seq))
        });
        let Some((row, seq)) = seq else {
            return Err(LedgerError::StaleHandle { item, handle });
        };
        if seq.seen == self.calls {
            return Err(LedgerError::RepeatedHandle { item, handle });
        }
        seq.seen = self.calls;
        Ok(row)
    }

    /// Gives back the blocks of a row from ordinal `from` on, which must be private.
    fn give_back_from(&mut self, row: Row, from: u32) {
        let first = row.at() * self.pools.len();
        let stamp = self.steps.stamp();
        let full = self.classes.full();
        for (class, pool) in self.pools[..full].iter_mut().enumerate() {
            let pages: &mut Vec<PageIndex> = &mut self.tables[first + class].pages;
            pool.give_back(pages.drain(from as usize..), stamp, &self.steps);
        }
        let seq = &mut self.sequences[row.at()];
        let promise = seq.promise();
        let had = std::mem::replace(&mut seq.held, from);
        self.promised += u64::from(seq.promise() - promise);
        if seq.keeps_tokens {
            let kept = (from - seq.published) as usize;
            self.blocks.give_back(seq.blocks.drain(kept..));
        }
        self.touch(row, from, had);
    }
}

/// Checks that an array of a call has the length of the others.
fn check_len(argument: &'static str, len: usize, expected: usize) -> Result<(), LedgerError> {
    if len == expected {
        Ok(())
    } else {
        Err(LedgerError::LengthMismatch {
            argument,
            len,
            expected,
        })
    }
}

/// Checks that a number of one item is in its range.
fn check_range(
    argument: &'static str,
    item: usize,
    value: i64,
    min: i64,
    max: i64,
) -> Result<(), LedgerError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(LedgerError::OutOfRange {
            argument,
            item,
            value,
            min,
            max,
        })
    }
}

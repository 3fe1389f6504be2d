//! The ledger: every page of one rank, for target and draft together.
//!
//! `docs/ledger.md` is its contract. A call checks everything first, then acts; a refusal or an error
//! leaves no trace.
//!
//! | file | holds |
//! |---|---|
//! | `admit.rs` | new sequences: match, count, decide |
//! | `start.rs` | their first step: share, take, copy |
//! | `prepare.rs` | prompts: match, check, copy |
//! | `grow.rs` | room for the tokens of a step |
//! | `advance.rs` | results of a step: tokens, lengths, what is given back |
//! | `publish.rs` | blocks entering the tree |
//! | `paths.rs` | draft trees: copies of accepted nodes |
//! | `fork.rs` | new sequences that continue open ones |
//! | `lease.rs` | prefixes that stay protected without a sequence |
//! | `quota.rs` | what scopes keep while others need room |
//! | `retain.rs` | priorities of what a sequence publishes |
//! | `suspend.rs` | giving up the pages of a sequence and getting new ones |
//! | `release.rs` | the end of a sequence |
//! | `resize.rs` | other sizes of pools |
//! | `reset.rs` | forgetting all that could be reused |
//! | `room.rs` | the one answer whether pages can be had, taking and giving back |
//! | `sides.rs` | windows and states: what a hit needs, pins, pruning |
//! | `snapshot.rs` | states that become reusable |
//! | `memory.rs` | whether the system has the memory |
//! | `identity.rs` | scopes and media |
//! | `lower.rs` | what lower tiers add to a match |
//! | `load.rs` | sequences whose pages are on their way from there |
//! | `transfers.rs` | transfers out, completions in |
//! | `probe.rs` | what a scheduler asks first: what would fit, why a match ended |
//! | `victims.rs` | what preempting sequences would give |
//! | `keys.rs` | keys of blocks, and events |
//! | `gains.rs` | the same where classes differ |
//! | `read.rs` | tables, updates, moves, statistics |
//! | `tables.rs` | CSR, slot mappings and rows of slots |
//! | `check.rs` | validation and digest, for tests |
//! | `dump.rs` | the state, readable |

mod admit;
mod advance;
mod check;
mod config;
mod dump;
mod fork;
mod gains;
mod grow;
mod identity;
mod keys;
mod lease;
mod load;
mod lower;
mod memory;
mod paths;
mod prepare;
mod probe;
mod publish;
mod quota;
mod read;
mod release;
mod reset;
mod resize;
mod retain;
mod room;
mod sides;
mod snapshot;
mod start;
mod suspend;
mod tables;
mod transfers;
mod victims;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

pub use admit::{
    AdmitBatch, REFUSED_FOREVER, REFUSED_LOADING, REFUSED_NO_ROW, REFUSED_NOT_TRIED, REFUSED_NOW,
};
pub use advance::{AdvanceBatch, Rows};
pub use config::LedgerConfig;
pub use dump::{Dump, NodeDump, SequenceDump};
pub(crate) use lease::Leases;
pub use lease::{LEASE_NOTHING, LEASE_REFUSED};
pub use paths::{PathBatch, TokenMove};
pub use probe::{BlocksBatch, MatchReport, MissReason, Missed};
pub use quota::QuotaStats;
pub use read::Move;
pub use resize::PageMove;
pub(crate) use retain::Hint;
pub use retain::{PRIORITY_MAX, RetainBatch};
pub use tables::Csr;
pub use transfers::TierMatch;

use crate::blocks::Blocks;
use crate::classes::Classes;
use crate::error::LedgerError;
use crate::ids::{Handle, Row};
use crate::ledger::identity::Identity;
use crate::ledger::load::Load;
use crate::ledger::sides::{PendingCopy, WindowRow};
use crate::pool::Pool;
use crate::prefix::{Store, Tree};
use crate::sequence::Sequence;
use crate::side::{Side, Sides};
use crate::stats::Counters;
use crate::steps::Steps;
use crate::table::TableRow;
use crate::tiers::Tiers;

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
    /// Cached prefixes that are protected without a sequence.
    leases: Leases,
    /// Copies whose step is not complete.
    copies: Vec<PendingCopy>,
    /// Copies that `moves` has not handed out.
    moves: Vec<Move>,
    /// Sum of the promises of open sequences, in blocks.
    promised: u64,
    /// Sequences that are open and suspended.
    suspended: u32,
    /// What open sequences have in windows: one entry per window and sequence row.
    windows: Vec<WindowRow>,
    /// Sums of the promises of open sequences, per window.
    promised_windows: Vec<u64>,
    /// Numbers the calls, to find handles that appear twice in one.
    calls: u64,
    counters: Counters,
    identity: Identity,
    /// The tiers below the device, if there are any.
    tiers: Option<Box<Tiers>>,
    /// Sequences whose pages are on their way, by number of the load.
    loads: BTreeMap<u64, Load>,
    newest_load: u64,
}

impl Ledger {
    /// A ledger with all pages free.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Config`] for a value outside what is supported.
    pub fn new(config: LedgerConfig) -> Result<Self, LedgerError> {
        config.check()?;
        memory::check_memory(&config)?;
        let classes = Classes::new(&config)?;
        let pages = |place| config.num_pages[classes.class(place) as usize];
        let (records, rows) = (config.records(), config.max_sequences);
        let sides = (classes.full()..classes.states().end)
            .map(|place| Side::new(pages(place), records, classes.states().contains(&place)));
        let mut ledger = Self {
            pools: (0..classes.len())
                .map(|place| Pool::new(pages(place)))
                .collect(),
            sides: Sides::new(classes.full(), sides.collect()),
            blocks: Blocks::new(config.tokens_per_block, records),
            tree: Tree::new(
                classes.full(),
                config.lookahead,
                config.policy.build(records, records),
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
            windows: vec![WindowRow::default(); rows as usize * classes.windows().len()],
            promised_windows: vec![0; classes.windows().len()],
            calls: 0,
            counters: Counters::default(),
            identity: Identity::new(&config.num_pages),
            tiers: None,
            loads: BTreeMap::new(),
            newest_load: 0,
            classes,
            config,
        };
        ledger.build_tiers();
        Ok(ledger)
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
    /// [`LedgerError::Clock`] if `now` is below an earlier one, or not a finite number.
    pub fn begin_step(&mut self, now: f64) -> Result<u64, LedgerError> {
        self.steps.check_clock(now)?;
        self.end_leases(now);
        let mut store = Store {
            blocks: &mut self.blocks,
            pools: &mut self.pools,
            sides: &mut self.sides,
            tiers: None,
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
        for copy in copies {
            if copy.step == step {
                self.tree.next_tick(0);
                self.tree.unpin(copy.node, &self.blocks, &self.steps);
                self.unpin_sides(&copy);
            } else {
                self.copies.push(copy);
            }
        }
        Ok(())
    }

    /// Open sequences.
    #[must_use]
    pub fn open_sequences(&self) -> u32 {
        self.config.max_sequences - crate::ids::count(self.free_rows.len())
    }

    /// Notes that columns `from .. to` of a row have changed, in the classes with a column per block.
    #[inline]
    fn touch(&mut self, row: Row, from: u32, to: u32) {
        for place in 0..self.classes.columns() {
            self.touch_at(row, place, from, to);
        }
    }

    /// Notes that columns `from .. to` of a row have changed in the class at a place.
    #[inline]
    fn touch_at(&mut self, row: Row, place: usize, from: u32, to: u32) {
        if from >= to {
            return;
        }
        self.tables[row.at() * self.pools.len() + place].touch(from, to);
        let seq = &mut self.sequences[row.at()];
        if !seq.listed {
            seq.listed = true;
            self.dirty_rows.push(row);
        }
    }

    /// Checks one handle of a call that has been numbered by `self.calls`.
    #[inline]
    fn check_handle(&mut self, item: usize, handle: i64) -> Result<Row, LedgerError> {
        current(&mut self.sequences, self.calls, item, handle)?;
        Ok(Handle::row_of(handle))
    }

    /// The same for calls that take suspended sequences.
    #[inline]
    fn check_any_handle(&mut self, item: usize, handle: i64) -> Result<Row, LedgerError> {
        current_or_suspended(&mut self.sequences, self.calls, item, handle)?;
        Ok(Handle::row_of(handle))
    }
}

/// The sequence of a handle that has not appeared in the running call before. A function of the rows
/// alone: their address then stays in a register over the items of a call.
#[inline]
fn current(
    sequences: &mut [Sequence],
    call: u64,
    item: usize,
    handle: i64,
) -> Result<&mut Sequence, LedgerError> {
    let seq = current_or_suspended(sequences, call, item, handle)?;
    if seq.suspended {
        return Err(LedgerError::Suspended { item, handle });
    }
    if seq.loading > 0 {
        return Err(LedgerError::Loading { item, handle });
    }
    Ok(seq)
}

/// The same for calls that take suspended sequences.
#[inline]
fn current_or_suspended(
    sequences: &mut [Sequence],
    call: u64,
    item: usize,
    handle: i64,
) -> Result<&mut Sequence, LedgerError> {
    // A negative value is no generation that a row can have.
    let generation = handle >> 32;
    match sequences.get_mut(Handle::row_of(handle).at()) {
        Some(seq) if seq.open && i64::from(seq.generation) == generation => {
            if seq.seen == call {
                return Err(LedgerError::RepeatedHandle { item, handle });
            }
            seq.seen = call;
            Ok(seq)
        }
        _ => Err(LedgerError::StaleHandle { item, handle }),
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

/// Checks that flags are 0 or 1.
fn check_publish(publish: &[u8]) -> Result<(), LedgerError> {
    match publish.iter().position(|&flag| flag > 1) {
        None => Ok(()),
        Some(item) => check_range("publish", item, publish[item].into(), 0, 1),
    }
}

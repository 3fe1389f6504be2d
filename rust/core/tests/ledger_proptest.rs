//! Random calls on tiny ledgers. After each one: `validate()` holds, the states of the pages add up,
//! no page has two owners, a refusal or an error left the digest as it was, and the records of
//! `updates` alone give the tables of all rows.
//!
//! Which answer is right is decided elsewhere, by the plain-Python reference in `tests/reference/`;
//! here the core is on its own, without Python.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tandemkv_core::ledger::{AdmitBatch, AdvanceBatch, Rows};
use tandemkv_core::media::Media;
use tandemkv_core::scope::{Salt, Scope};
use tandemkv_core::window::Lifetime;
use tandemkv_core::{EvictionPolicy, Ledger, LedgerConfig, LedgerError};

/// One call. Numbers are choices among what the ledger's state offers, not arguments.
#[derive(Debug, Clone)]
enum Op {
    Begin {
        backwards: bool,
    },
    Complete {
        which: usize,
        stray: bool,
    },
    Admit {
        step: usize,
        items: Vec<Item>,
        stop_at_first: bool,
    },
    Grow {
        step: usize,
        which: Vec<(usize, i32)>,
        stop_at_first: bool,
    },
    Fork {
        step: usize,
        which: Vec<usize>,
    },
    Advance {
        which: usize,
        all: bool,
        keep: u8,
        lag: Option<(u8, u8)>,
        stray: bool,
    },
    Release {
        which: usize,
        publish: bool,
        twice: bool,
    },
    Match {
        item: Item,
    },
    Victims {
        need: i64,
    },
    Moves,
    Updates {
        room: usize,
    },
    Reset {
        detach_live: bool,
    },
}

#[derive(Debug, Clone)]
struct Item {
    prompt: Vec<u32>,
    scope: i32,
    first: i32,
    more: i64,
    draft_from: i32,
}

fn config() -> impl Strategy<Value = LedgerConfig> {
    (
        prop_oneof![Just(1_u32), Just(2), Just(4), Just(16)],
        prop::collection::vec(2_u32..30, 1..=2),
        (1_u32..5, 2_u32..7, 0_u32..3, 0_u32..4, 0_u32..4),
        (any::<bool>(), prop_oneof![Just(0_u32), Just(1), Just(3)]),
        (
            prop::bool::weighted(0.9),
            prop::bool::weighted(0.7),
            prop::bool::weighted(0.2),
            prop::sample::select(EvictionPolicy::NAMED.map(|(_, policy)| policy).to_vec()),
        ),
    )
        .prop_map(
            |(size, num_pages, lengths, (has_draft, lookahead), rules)| {
                let (max_sequences, blocks, extra_tokens, reserve_tokens, watermark_blocks) =
                    lengths;
                let (reuse, partial_reuse, same_stream, policy) = rules;
                // The lookahead is at most as long as a sequence, and needs a draft.
                let max_seq_len = size * blocks + 2;
                LedgerConfig {
                    tokens_per_block: size,
                    host_pages: Vec::new(),
                    disk_pages: Vec::new(),
                    lifetimes: vec![Lifetime::Full; num_pages.len()],
                    max_step_tokens: 0,
                    num_blocks: None,
                    snapshot_interval: 0,
                    num_pages,
                    max_sequences,
                    max_seq_len,
                    has_draft,
                    extra_tokens,
                    reserve_tokens,
                    lookahead: if has_draft { lookahead } else { 0 },
                    reuse,
                    partial_reuse,
                    same_stream,
                    watermark_blocks,
                    max_leased_blocks: 0,
                    ttl_ms: 0,
                    policy,
                }
            },
        )
}

/// Prompts over two tokens, so that prefixes collide; now and then an argument out of range.
fn item() -> impl Strategy<Value = Item> {
    let scope = prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(-1), 1 => Just(-2)];
    // The last one is the reference of the only item of media.
    let token = prop_oneof![200 => 0_u32..2, 1 => Just(1 << 31), 8 => Just(u32::MAX)];
    (
        prop::collection::vec(token, 0..40),
        scope,
        0_i32..40,
        -1_i64..20,
        -2_i32..20,
    )
        .prop_map(|(prompt, scope, first, more, draft_from)| Item {
            prompt,
            scope,
            first,
            more,
            draft_from,
        })
}

fn op() -> impl Strategy<Value = Op> {
    let seldom = || prop::bool::weighted(0.05);
    prop_oneof![
        4 => seldom().prop_map(|backwards| Op::Begin { backwards }),
        5 => (0_usize..3, seldom()).prop_map(|(which, stray)| Op::Complete { which, stray }),
        8 => (0_usize..4, prop::collection::vec(item(), 1..3), any::<bool>())
            .prop_map(|(step, items, stop_at_first)| Op::Admit { step, items, stop_at_first }),
        6 => (0_usize..4, prop::collection::vec((0_usize..5, 0_i32..20), 1..4), any::<bool>())
            .prop_map(|(step, which, stop_at_first)| Op::Grow { step, which, stop_at_first }),
        3 => (0_usize..4, prop::collection::vec(0_usize..5, 1..4))
            .prop_map(|(step, which)| Op::Fork { step, which }),
        12 => (0_usize..5, any::<bool>(), 0_u8..6, prop::option::of((0_u8..4, 0_u8..4)), seldom())
            .prop_map(|(which, all, keep, lag, stray)| Op::Advance { which, all, keep, lag, stray }),
        5 => (0_usize..5, prop::bool::weighted(0.8), seldom())
            .prop_map(|(which, publish, twice)| Op::Release { which, publish, twice }),
        2 => item().prop_map(|item| Op::Match { item }),
        2 => (-1_i64..20).prop_map(|need| Op::Victims { need }),
        2 => Just(Op::Moves),
        1 => (0_usize..40).prop_map(|room| Op::Updates { room }),
        1 => any::<bool>().prop_map(|detach_live| Op::Reset { detach_live }),
    ]
}

/// A ledger, and what a caller remembers about it.
struct Driver {
    ledger: Ledger,
    now: f64,
    steps: Vec<u64>,
    /// Every handle ever given, the open ones first.
    open: Vec<i64>,
    closed: Vec<i64>,
    /// The tables as the records of `updates` give them: per row and class, `row_width` pages.
    mirror: Vec<Vec<Vec<u32>>>,
}

/// What a call did, for the check of its digest.
enum Outcome {
    Acted,
    Unchanged,
}

impl Driver {
    fn new(config: LedgerConfig) -> Self {
        let row = vec![vec![0; config.row_width() as usize]; config.num_pages.len()];
        let mirror = vec![row; config.max_sequences as usize];
        let ledger = Ledger::new(config).expect("the strategy makes valid configurations");
        // `validate` compares what the log counts with the tree.
        let mut ledger = ledger.with_events(8);
        let salt = Some(Salt::Bytes(vec![7]));
        assert_eq!(
            ledger.intern_scope(Scope {
                adapter: None,
                salt
            }),
            1
        );
        let (digest, length) = ([9; 32], 3);
        assert_eq!(ledger.intern_media(Media { digest, length }), Ok(u32::MAX));
        let (open, closed) = (Vec::new(), Vec::new());
        Self {
            ledger,
            now: 0.0,
            steps: Vec::new(),
            open,
            closed,
            mirror,
        }
    }

    /// One of the open steps; one that never began if there is none or `which` is past them.
    fn step(&self, which: usize) -> u64 {
        self.steps
            .iter()
            .rev()
            .nth(which)
            .copied()
            .unwrap_or(1_000_000)
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Begin { backwards } => self.begin(*backwards),
            Op::Complete { which, stray } => self.complete(*which, *stray),
            Op::Admit {
                step,
                items,
                stop_at_first,
            } => self.admit(*step, items, *stop_at_first),
            Op::Grow {
                step,
                which,
                stop_at_first,
            } => self.grow(*step, which, *stop_at_first),
            Op::Fork { step, which } => self.fork(*step, which),
            Op::Advance {
                which,
                all,
                keep,
                lag,
                stray,
            } => self.advance(*which, *all, *keep, *lag, *stray),
            Op::Release {
                which,
                publish,
                twice,
            } => self.release(*which, *publish, *twice),
            Op::Match { item } => {
                let found = self.ledger.match_tokens(&item.prompt, item.scope, None);
                if let Ok(usable) = found {
                    assert!(usable as usize <= item.prompt.len());
                    self.explain(item, usable);
                }
                Outcome::Unchanged
            }
            Op::Victims { need } => self.victims(*need),
            Op::Moves => {
                self.ledger.take_moves();
                assert!(self.ledger.pending_moves().is_empty());
                Outcome::Acted
            }
            Op::Updates { room } => self.updates(*room),
            Op::Reset { detach_live } => match self.ledger.reset_reuse_state(*detach_live) {
                Ok(()) => {
                    assert!(*detach_live || self.open.is_empty());
                    assert_eq!(self.ledger.stats().cached_blocks, 0);
                    Outcome::Acted
                }
                Err(LedgerError::SequencesOpen { open, .. }) => {
                    assert_eq!(open, self.open.len());
                    Outcome::Unchanged
                }
                Err(error) => panic!("{error}"),
            },
        }
    }

    fn begin(&mut self, backwards: bool) -> Outcome {
        if backwards {
            let began = self.now > 0.0;
            assert_eq!(self.ledger.begin_step(self.now - 0.5).is_err(), began);
            if !began {
                // The first step may begin at any time; afterwards `now` is that time.
                self.steps.push(self.ledger.stats().newest_step);
                return Outcome::Acted;
            }
            return Outcome::Unchanged;
        }
        self.now += 1.0;
        self.steps
            .push(self.ledger.begin_step(self.now).expect("time went on"));
        Outcome::Acted
    }

    fn complete(&mut self, which: usize, stray: bool) -> Outcome {
        if stray || self.steps.is_empty() {
            assert!(self.ledger.complete_step(1_000_000).is_err());
            return Outcome::Unchanged;
        }
        let at = which % self.steps.len();
        match self.ledger.complete_step(self.steps[at]) {
            Ok(()) => {
                self.steps.remove(at);
                Outcome::Acted
            }
            Err(LedgerError::MovesNotTaken { .. }) => {
                assert!(!self.ledger.pending_moves().is_empty());
                Outcome::Unchanged
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The missed ranges and the hit cover the prompt.
    fn explain(&self, item: &Item, usable: u32) {
        let report = self.ledger.explain_match(&item.prompt, item.scope, None);
        let report = report.expect("what may be matched may be explained");
        assert_eq!(report.usable, usable);
        let mut at = report.hit;
        for missed in &report.missed {
            assert_eq!(missed.position, at);
            assert!(missed.tokens > 0);
            at += missed.tokens;
        }
        assert_eq!(at as usize, item.prompt.len());
    }

    /// A minimal choice: at least what one gives alone, nothing where all together give too little.
    fn victims(&mut self, need: i64) -> Outcome {
        let classes = self.ledger.num_classes();
        let mut pages = vec![0; self.open.len() * classes];
        self.ledger.reclaimable(&self.open, &mut pages).unwrap();
        let mut chosen = vec![7; self.open.len()];
        let needs = vec![need; classes];
        let Ok(count) = self.ledger.victims(&self.open, &needs, &mut chosen) else {
            assert!(need < 0);
            return Outcome::Unchanged;
        };
        assert_eq!(
            chosen
                .iter()
                .map(|&chosen| usize::from(chosen))
                .sum::<usize>(),
            count
        );
        let alone = pages
            .chunks_exact(classes)
            .map(|pages| *pages.iter().min().unwrap());
        let sum: i64 = alone.clone().sum();
        assert!(count > 0 || need == 0 || sum < need, "enough was there");
        let free = |pages: &[i64]| pages.iter().all(|&pages| pages >= need);
        if let Some(first) = self.open.first()
            && need > 0
            && free(&pages[..classes])
        {
            let expected: Vec<u8> = self
                .open
                .iter()
                .map(|other| u8::from(other == first))
                .collect();
            assert_eq!(chosen, expected, "the first suffices");
        }
        Outcome::Unchanged
    }

    fn admit(&mut self, step: usize, items: &[Item], stop_at_first: bool) -> Outcome {
        let config = self.ledger.config();
        let longest = config.max_seq_len as usize;
        let prompts: Vec<&[u32]> = items
            .iter()
            .map(|item| &item.prompt[..item.prompt.len().min(longest)])
            .collect();
        let totals: Vec<i64> = items
            .iter()
            .zip(&prompts)
            .map(|(item, prompt)| {
                (i64::try_from(prompt.len()).unwrap() + item.more).min(config.max_seq_len.into())
            })
            .collect();
        let scope: Vec<i32> = items.iter().map(|item| item.scope).collect();
        let first: Vec<i32> = items.iter().map(|item| item.first).collect();
        let draft_from: Vec<i32> = items.iter().map(|item| item.draft_from).collect();
        let batch = AdmitBatch {
            prompts: &prompts,
            scope: &scope,
            first: &first,
            max_total: &totals,
            draft_from: config.has_draft.then_some(draft_from.as_slice()),
        };
        let (mut handle, mut hit) = (vec![0; items.len()], vec![0; items.len()]);
        let step = self.step(step);
        let (mut answer, mut alone) = (vec![0; items.len()], vec![0; items.len()]);
        let before = self.ledger.digest();
        let fits = self.ledger.fits(&batch, &mut answer, &mut alone);
        assert_eq!(self.ledger.digest(), before, "fits changed the state");
        let Ok(count) = self
            .ledger
            .admit(step, &batch, stop_at_first, &mut handle, &mut hit)
        else {
            return Outcome::Unchanged;
        };
        let admitted: Vec<i64> = handle
            .iter()
            .copied()
            .filter(|&handle| handle >= 0)
            .collect();
        assert_eq!(admitted.len(), count);
        assert!(fits.is_ok());
        if let (Some(&handle), Some(&answer)) = (handle.first(), answer.first()) {
            assert_eq!(
                handle.min(0),
                answer.into(),
                "the first is decided as if alone"
            );
            assert_eq!(hit[0], alone[0]);
        }
        for ((handle, hit), prompt) in handle.iter().zip(&hit).zip(&prompts) {
            assert!((-4..0).contains(handle) || *handle >= 1 << 32);
            assert!((0..prompt.len()).contains(&usize::try_from(*hit).unwrap()));
            assert!(*handle >= 0 || *hit == 0);
        }
        for handle in &admitted {
            assert!(!self.open.contains(handle) && !self.closed.contains(handle));
        }
        self.open.extend(admitted);
        if count == 0 {
            Outcome::Unchanged
        } else {
            Outcome::Acted
        }
    }

    fn grow(&mut self, step: usize, which: &[(usize, i32)], stop_at_first: bool) -> Outcome {
        let names = |at: usize| {
            self.open
                .get(at)
                .or(self.closed.last())
                .copied()
                .unwrap_or(-1)
        };
        let handle: Vec<i64> = which.iter().map(|&(at, _)| names(at)).collect();
        let width: Vec<i32> = which.iter().map(|&(_, width)| width).collect();
        let mut ok = vec![9; handle.len()];
        let step = self.step(step);
        match self
            .ledger
            .grow(step, &handle, &width, stop_at_first, &mut ok)
        {
            Ok(count) => {
                assert_eq!(ok.iter().map(|&ok| usize::from(ok)).sum::<usize>(), count);
                if count == 0 {
                    Outcome::Unchanged
                } else {
                    Outcome::Acted
                }
            }
            Err(_) => Outcome::Unchanged,
        }
    }

    fn fork(&mut self, step: usize, which: &[usize]) -> Outcome {
        let names = |at: &usize| {
            self.open
                .get(*at)
                .or(self.closed.last())
                .copied()
                .unwrap_or(-1)
        };
        let parents: Vec<i64> = which.iter().map(names).collect();
        let mut out = vec![0; parents.len()];
        let Ok(count) = self.ledger.fork(self.step(step), &parents, &mut out) else {
            return Outcome::Unchanged;
        };
        for (&parent, &child) in parents.iter().zip(&out).filter(|(_, child)| **child >= 0) {
            let (old, new) = (
                self.ledger.sequence(parent).unwrap(),
                self.ledger.sequence(child).unwrap(),
            );
            assert_eq!(
                (old.known, old.valid, old.capacity),
                (new.known, new.valid, new.capacity)
            );
            // What either may write is its own.
            let from = (old.history / self.ledger.config().tokens_per_block) as usize;
            for (old, new) in old.pages.iter().zip(&new.pages) {
                assert!(old[from..].iter().all(|page| !new[from..].contains(page)));
            }
            self.open.push(child);
        }
        if count == 0 {
            Outcome::Unchanged
        } else {
            Outcome::Acted
        }
    }

    /// Advances one sequence, or all that ran the same step. `keep` of the tokens that may be appended
    /// are; with `lag` the roles end that far below what was written.
    fn advance(
        &mut self,
        which: usize,
        all: bool,
        keep: u8,
        lag: Option<(u8, u8)>,
        stray: bool,
    ) -> Outcome {
        let Some(&chosen) = self.open.get(which % self.open.len().max(1)) else {
            return Outcome::Unchanged;
        };
        let oldest = |handle: i64| {
            self.ledger
                .sequence(handle)
                .unwrap()
                .outstanding
                .first()
                .copied()
        };
        let Some((step, _)) = oldest(chosen) else {
            return Outcome::Unchanged;
        };
        let handle: Vec<i64> = if all {
            self.open
                .iter()
                .copied()
                .filter(|&it| oldest(it).is_some_and(|(s, _)| s == step))
                .collect()
        } else {
            vec![chosen]
        };
        let columns = 8;
        let (mut count, mut valid) = (Vec::new(), Vec::new());
        for &handle in &handle {
            let seq = self.ledger.sequence(handle).unwrap();
            let end = seq.reach + seq.outstanding[0].1;
            let most = if seq.known > end {
                0
            } else {
                (end + 1).min(seq.max_total) - seq.known
            };
            let given = most.min(u32::from(keep));
            count.push(given.cast_signed() + i32::from(stray) * 100);
            let highest = (seq.known + given).min(end);
            let (target, draft) = lag.unwrap_or_default();
            let lagging = |lag: u8, old: u32| highest.saturating_sub(lag.into()).max(old);
            valid.push(lagging(target, seq.valid[0]).cast_signed());
            let draft = if seq.draft_from >= 0 {
                lagging(draft, seq.valid[1])
            } else {
                0
            };
            valid.push(draft.cast_signed());
        }
        let tokens = vec![u32::from(keep) % 2; handle.len() * columns];
        let batch = AdvanceBatch {
            handle: &handle,
            tokens: &tokens,
            rows: Rows::Matrix(columns),
            count: &count,
            valid: lag.is_some().then_some(valid.as_slice()),
        };
        match self.ledger.advance(step, &batch) {
            Ok(()) => Outcome::Acted,
            Err(error) => {
                assert!(stray, "{error}");
                Outcome::Unchanged
            }
        }
    }

    fn release(&mut self, which: usize, publish: bool, twice: bool) -> Outcome {
        let Some(&handle) = self.open.get(which) else {
            let stale = self.closed.last().copied().unwrap_or(-1);
            assert!(self.ledger.release(&[stale], &[1]).is_err());
            return Outcome::Unchanged;
        };
        if twice {
            assert!(self.ledger.release(&[handle, handle], &[1, 1]).is_err());
            return Outcome::Unchanged;
        }
        self.ledger.release(&[handle], &[publish.into()]).unwrap();
        self.open.remove(which);
        self.closed.push(handle);
        Outcome::Acted
    }

    fn updates(&mut self, room: usize) -> Outcome {
        let before = self.ledger.digest();
        let pending = self.ledger.pending_updates();
        let mut out = vec![[0; 4]; room];
        match self.ledger.updates(&mut out) {
            Ok(count) => assert_eq!(count, pending),
            Err(LedgerError::BufferTooSmall { required, .. }) => {
                assert_eq!(required, pending);
                assert!(required > room);
                assert_eq!(self.ledger.digest(), before);
                out = vec![[0; 4]; required];
                assert_eq!(self.ledger.updates(&mut out), Ok(required));
            }
            Err(error) => panic!("{error}"),
        }
        for record in &out[..pending] {
            let [row, class, column, page] = record.map(|value| value as usize);
            let entry = &mut self.mirror[row][class][column];
            assert_ne!(*entry as usize, page, "an entry that did not change");
            *entry = record[3];
        }
        assert!(out[..pending].is_sorted());
        self.check_mirror();
        Outcome::Acted
    }

    /// The rows that the records of `updates` gave are those of `table`; rows given up are empty.
    fn check_mirror(&self) {
        let width = self.ledger.config().row_width() as usize;
        let classes = self.ledger.num_classes();
        for row in 0..self.mirror.len() {
            let owner = self
                .open
                .iter()
                .find(|&&handle| handle & 0xffff_ffff == i64::try_from(row).unwrap());
            let (mut table, mut used) = (vec![9; classes * width], vec![0; classes]);
            match owner {
                Some(&handle) => {
                    self.ledger
                        .table(&[handle], width, &mut table, &mut used)
                        .unwrap();
                }
                None => table.fill(0),
            }
            assert_eq!(self.mirror[row].concat(), table);
        }
    }

    fn check(&self) {
        self.ledger.validate();
        let stats = self.ledger.stats();
        assert_eq!(stats.open_sequences as usize, self.open.len());
        assert_eq!(stats.open_steps as usize, self.steps.len());
        let dump = self.ledger.dump();
        let size = self.ledger.config().tokens_per_block;
        for (class, counts) in stats.classes.iter().enumerate() {
            let parts = [
                counts.free,
                counts.fenced,
                counts.live,
                counts.cached,
                counts.reserved,
            ];
            assert_eq!(parts.iter().sum::<u32>(), counts.total);
            assert!(counts.evictable <= counts.cached);
            let mut owned: Vec<u32> = dump.free[class].clone();
            owned.extend(dump.fenced[class].iter().map(|&(page, _)| page));
            owned.extend(dump.nodes.iter().flat_map(|node| &node.pages[class]));
            let mut live: BTreeSet<u32> = BTreeSet::new();
            for seq in &dump.sequences {
                // Forks may share pages that are not published.
                live.extend(&seq.pages[class][(seq.committed / size) as usize..]);
                assert!(seq.committed <= seq.history && seq.history <= seq.known);
                assert!(seq.history <= seq.reach && seq.reach <= seq.capacity);
            }
            owned.extend(live);
            assert_eq!(
                owned.len(),
                counts.total as usize - 1,
                "a page is lost or owned twice"
            );
            let distinct: BTreeSet<u32> = owned.into_iter().collect();
            assert_eq!(distinct, (1..counts.total).collect());
        }
    }

    /// Ends everything; only the cache is left, then nothing.
    fn drain(&mut self) {
        self.ledger.take_moves();
        for step in std::mem::take(&mut self.steps) {
            self.ledger.complete_step(step).unwrap();
        }
        for handle in std::mem::take(&mut self.open) {
            self.ledger.release(&[handle], &[0]).unwrap();
        }
        self.updates(0);
        self.check();
        let stats = self.ledger.stats();
        assert!(
            stats
                .classes
                .iter()
                .all(|class| class.evictable == class.cached)
        );
        self.ledger.reset_reuse_state(false).unwrap();
        let stats = self.ledger.stats();
        assert!(
            stats
                .classes
                .iter()
                .all(|class| class.free == class.total - 1)
        );
        assert_eq!(stats.promised, 0);
    }
}

fn run(config: LedgerConfig, ops: &[Op]) {
    let mut driver = Driver::new(config);
    for op in ops {
        let before = driver.ledger.digest();
        if matches!(driver.apply(op), Outcome::Unchanged) {
            assert_eq!(driver.ledger.digest(), before, "{op:?} left a trace");
        }
        driver.check();
    }
    driver.drain();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_keep_every_invariant(
        config in config(),
        ops in prop::collection::vec(op(), 1..100),
    ) {
        run(config, &ops);
    }

    /// Decisions depend on the calls alone: two ledgers that see the same ones stay identical.
    #[test]
    fn equal_calls_give_equal_states(
        config in config(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let (mut one, mut other) = (Driver::new(config.clone()), Driver::new(config));
        for op in &ops {
            one.apply(op);
            other.apply(op);
            prop_assert_eq!(one.ledger.digest(), other.ledger.digest());
        }
    }
}

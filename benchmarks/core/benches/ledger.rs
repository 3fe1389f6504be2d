//! Time of the core's operations without Python: `cargo bench -p tandemkv-benchmarks`.
//!
//! Figures are per call; the throughput line gives them per block or per sequence. Setting up and
//! cleaning up are not timed.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use tandemkv_benchmarks::{Admission, BLOCK, Decode, Random, Setup, measured, scatter};
use tandemkv_core::Ledger;

const LEN: usize = 2048;
const PROMPTS: usize = 32;
const BLOCKS: u64 = (PROMPTS * LEN / BLOCK) as u64;
const POOLS: [u32; 3] = [10_000, 100_000, 1_000_000];

fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    group
}

/// Sums the time of `timed` over `iterations`; `after` runs untimed each time.
fn sum<T>(
    iterations: u64,
    state: &mut T,
    mut timed: impl FnMut(&mut T),
    mut after: impl FnMut(&mut T),
) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..iterations {
        let start = Instant::now();
        timed(state);
        total += start.elapsed();
        after(state);
    }
    total
}

fn setup(pages: u32, rows: u32, pair: bool) -> Setup {
    Setup {
        pages,
        rows,
        max_seq_len: 65_536,
        pair,
        reuse: true,
    }
}

fn admit_publish(c: &mut Criterion) {
    let tokens = Random::new(1).tokens(PROMPTS * LEN);
    let mut group = group(c, "admit_publish");
    group.throughput(Throughput::Elements(BLOCKS));
    for pages in POOLS {
        for (role, pair) in [("target", false), ("pair", true)] {
            let mut ledger = setup(pages, 64, pair).ledger();
            let mut batch = Admission::new(&tokens, LEN, BLOCK);
            group.bench_function(BenchmarkId::new(role, pages), |bench| {
                bench.iter_custom(|iterations| {
                    sum(
                        iterations,
                        &mut (&mut ledger, &mut batch),
                        |(ledger, batch)| measured::place(ledger, batch),
                        |(ledger, batch)| {
                            assert_eq!(batch.hit_tokens(), 0);
                            measured::release(ledger, batch);
                            ledger
                                .reset_reuse_state(false)
                                .expect("no sequence is open");
                        },
                    )
                });
            });
        }
    }
    group.finish();
}

/// The same prompts again, with the pages in order and scattered; and their release.
fn admit_again(c: &mut Criterion) {
    let mut random = Random::new(2);
    let tokens = random.tokens(PROMPTS * LEN);
    let mut group = group(c, "admit_again");
    group.throughput(Throughput::Elements(BLOCKS));
    for (order, scattered) in [("in_order", false), ("scattered", true)] {
        for pages in POOLS {
            let rows = if scattered { pages } else { 64 };
            let mut ledger = setup(pages, rows, false).ledger();
            if scattered {
                scatter(&mut ledger, &mut random);
            }
            let mut batch = Admission::new(&tokens, LEN, BLOCK);
            measured::place(&mut ledger, &mut batch);
            measured::release(&mut ledger, &batch);
            group.bench_function(BenchmarkId::new(order, pages), |bench| {
                bench.iter_custom(|iterations| {
                    sum(
                        iterations,
                        &mut (&mut ledger, &mut batch),
                        |(ledger, batch)| measured::place(ledger, batch),
                        |(ledger, batch)| {
                            assert!(batch.hit_tokens() >= (PROMPTS * (LEN - BLOCK)) as u64);
                            measured::release(ledger, batch);
                        },
                    )
                });
            });
        }
    }
    group.finish();
}

fn release(c: &mut Criterion) {
    let tokens = Random::new(3).tokens(PROMPTS * LEN);
    let mut group = group(c, "release");
    group.throughput(Throughput::Elements(BLOCKS));
    for (kind, reuse) in [("cached", true), ("private", false)] {
        let setup = Setup {
            reuse,
            ..setup(10_000, 64, false)
        };
        let mut ledger = setup.ledger();
        let mut batch = Admission::new(&tokens, LEN, BLOCK);
        measured::place(&mut ledger, &mut batch);
        group.bench_function(kind, |bench| {
            bench.iter_custom(|iterations| {
                sum(
                    iterations,
                    &mut (&mut ledger, &mut batch),
                    |(ledger, batch)| measured::release(ledger, batch),
                    |(ledger, batch)| measured::place(ledger, batch),
                )
            });
        });
    }
    group.finish();
}

/// New prompts into a pool whose pages are all cached.
fn evict(c: &mut Criterion) {
    let mut group = group(c, "evict");
    group.throughput(Throughput::Elements(LEN as u64 / BLOCK as u64));
    for pages in POOLS {
        let mut random = Random::new(4);
        let mut ledger = setup(pages, 64, false).ledger();
        let mut once = |ledger: &mut Ledger| {
            let tokens = random.tokens(LEN);
            let mut batch = Admission::new(&tokens, LEN, BLOCK);
            let start = Instant::now();
            measured::place(ledger, &mut batch);
            let elapsed = start.elapsed();
            measured::release(ledger, &batch);
            elapsed
        };
        while ledger.stats().counters.evicted_blocks == 0 {
            once(&mut ledger);
        }
        group.bench_function(BenchmarkId::from_parameter(pages), |bench| {
            bench.iter_custom(|iterations| (0..iterations).map(|_| once(&mut ledger)).sum());
        });
    }
    group.finish();
}

const SEQUENCES: usize = 256;
const CONTEXT: usize = 1024;
/// Steps before a batch is built anew; the pool below has room for them.
const STEPS: usize = 512;

fn batch_of(pair: bool, width: usize, tokens: &[u32]) -> (Ledger, Vec<i64>) {
    let room = STEPS * width + BLOCK;
    let pages = SEQUENCES * ((CONTEXT + room) / BLOCK + 2);
    let mut ledger = setup(u32::try_from(pages).expect("small"), 256, pair).ledger();
    let mut batch = Admission::new(tokens, CONTEXT, room).staggered();
    measured::place(&mut ledger, &mut batch);
    (ledger, batch.handle)
}

/// One step of 256 sequences; with a width above 1 a random part of the draft is accepted.
fn step(c: &mut Criterion) {
    let mut random = Random::new(5);
    let tokens = random.tokens(SEQUENCES * CONTEXT);
    let mut group = group(c, "step");
    group.throughput(Throughput::Elements(SEQUENCES as u64));
    for (kind, width) in [("decode", 1), ("speculative", 5)] {
        for (role, pair) in [("target", false), ("pair", true)] {
            group.bench_function(BenchmarkId::new(kind, role), |bench| {
                bench.iter_custom(|iterations| {
                    let mut total = Duration::ZERO;
                    let mut left = usize::try_from(iterations).expect("64 bits");
                    while left > 0 {
                        let (mut ledger, handle) = batch_of(pair, width, &tokens);
                        let mut decode = Decode::new(&handle, i32::try_from(width).expect("small"));
                        for _ in 0..left.min(STEPS) {
                            decode.draw(&mut random);
                            let start = Instant::now();
                            measured::step(&mut ledger, &mut decode);
                            total += start.elapsed();
                        }
                        left = left.saturating_sub(STEPS);
                    }
                    total
                });
            });
        }
    }
    group.finish();
}

fn tables(c: &mut Criterion) {
    const WIDTH: usize = 2048;
    let len = (WIDTH - 2) * BLOCK;
    let tokens = Random::new(6).tokens(len);
    let mut group = group(c, "tables");
    let setup = Setup {
        reuse: false,
        ..setup(u32::try_from(SEQUENCES * WIDTH).expect("small"), 256, false)
    };
    let mut ledger = setup.ledger();
    let mut handle = Vec::new();
    for _ in 0..SEQUENCES {
        let mut one = Admission::new(&tokens, len, BLOCK);
        measured::place(&mut ledger, &mut one);
        handle.push(one.handle[0]);
    }
    let (mut out, mut used) = (vec![0; SEQUENCES * WIDTH], vec![0; SEQUENCES]);
    group.bench_function("table_256x2046", |bench| {
        bench.iter(|| measured::table(&ledger, &handle, WIDTH, black_box(&mut out), &mut used));
    });
    let mut records = vec![[0; 4]; SEQUENCES * WIDTH];
    measured::updates(&mut ledger, &mut records);
    // A width of one block: every step adds a page to each row and, with one token accepted, takes it
    // away again, so all rows change in every step.
    let mut decode = Decode::new(&handle, 16);
    group.bench_function("updates_256_rows", |bench| {
        bench.iter_custom(|iterations| {
            let mut total = Duration::ZERO;
            for _ in 0..iterations {
                let step = measured::begin_growth(&mut ledger, &mut decode);
                let start = Instant::now();
                let found = measured::updates(&mut ledger, &mut records);
                total += start.elapsed();
                assert_eq!(found, SEQUENCES);
                measured::undo_growth(&mut ledger, step, &decode);
                measured::updates(&mut ledger, &mut records);
            }
            total
        });
    });
    group.finish();
}

criterion_group!(
    benches,
    admit_publish,
    admit_again,
    release,
    evict,
    step,
    tables
);
criterion_main!(benches);

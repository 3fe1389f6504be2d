//! `floor [--quick] [--requests FILE]`: the memory traffic of each workload, without bookkeeping.
//!
//! Same bytes as the ledger's data structure touches, in the same order: a 64-byte token record per
//! block, free pages and free records as stacks, a row of pages per sequence, runs of record ids and
//! pages in the tree. No checks, no lookup of handles, no tree, no statistics: what remains is what
//! the machine allows. Prints one JSON object, nanoseconds per unit, medians of several runs.
//!
//! `--requests` names a file with a line per request of a trace: prompt blocks, hit blocks and output
//! blocks. Without it there is no figure for W6.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_precision_loss,
    reason = "times and counts are far below 2^52"
)]

mod memory;
mod trace;

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use memory::{BLOCK, Memory, Random, Run};

fn main() -> ExitCode {
    let mut quick = false;
    let mut requests = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--requests" => requests = arguments.next(),
            other => {
                eprintln!("error: {other}: the options are --quick and --requests FILE");
                return ExitCode::from(2);
            }
        }
    }
    let mut figures = vec![
        ("w1_allocate_free", allocate_free()),
        ("w2_admit_publish", admit_publish()),
        ("w3_again_in_order", admit_again(false)),
        ("w3_again_scattered", admit_again(true)),
        ("w4_decode_step", decode_step()),
        ("w4_speculative_step", speculative_step()),
        ("w5_evict", evict(65_536, 4096)),
        ("w8_table", table()),
        ("w8_updates", updates()),
    ];
    let sizes: &[(&str, u32)] = &[
        ("w7_evict_10000", 10_000),
        ("w7_evict_100000", 100_000),
        ("w7_evict_1000000", 1_000_000),
        ("w7_evict_10000000", 10_000_000),
    ];
    let count = if quick { 2 } else { sizes.len() };
    figures.extend(
        sizes[..count]
            .iter()
            .map(|&(name, pages)| (name, evict(pages, 2048))),
    );
    if let Some(path) = requests {
        match trace::replay(&path) {
            Ok(time) => figures.push(("w6_replay", time)),
            Err(error) => {
                eprintln!("error: {path}: {error}");
                return ExitCode::from(2);
            }
        }
    }
    let lines: Vec<String> = figures
        .iter()
        .map(|(name, time)| format!("  \"{name}\": {time:.3}"))
        .collect();
    println!("{{\n{}\n}}", lines.join(",\n"));
    ExitCode::SUCCESS
}

/// Median over nine runs of the nanoseconds that `run` reports, after one that does not count.
fn median(mut run: impl FnMut() -> f64) -> f64 {
    run();
    let mut times: Vec<f64> = (0..9).map(|_| run()).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds of one call of `work`, per unit.
fn time<T>(units: usize, work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_nanos() as f64 / units as f64
}

/// W1: pages from a stack into 256 rows, and back.
fn allocate_free() -> f64 {
    let (rows, blocks) = (256, 128);
    let mut memory = Memory::new(256 * 128 + 64, false);
    let mut tables: Vec<Vec<u32>> = (0..rows).map(|_| Vec::with_capacity(blocks + 4)).collect();
    median(|| {
        time(rows * blocks, || {
            for row in &mut tables {
                memory.take_pages(blocks, row);
            }
            for row in &mut tables {
                memory.give_pages(row);
            }
        })
    })
}

/// W2: tokens into records, pages into rows, both into a run.
fn admit_publish() -> f64 {
    let (n, len) = (256, 8192);
    let tokens = Random::new(2).tokens(n * len);
    let mut memory = Memory::new(n * len / BLOCK + 64, false);
    median(|| {
        let mut runs: Vec<Run> = Vec::with_capacity(n);
        let took = time(n * len / BLOCK, || {
            runs.extend(
                tokens
                    .chunks_exact(len)
                    .map(|prompt| memory.publish(prompt)),
            );
        });
        for run in runs.drain(..).rev() {
            memory.give_back(&run);
        }
        took
    })
}

/// W3: records compared, pages into rows.
fn admit_again(scattered: bool) -> f64 {
    let (n, len) = (256, 8192);
    let tokens = Random::new(3).tokens(n * len);
    let mut memory = Memory::new(n * len / BLOCK + 64, scattered);
    let runs: Vec<Run> = tokens
        .chunks_exact(len)
        .map(|prompt| memory.publish(prompt))
        .collect();
    let mut rows: Vec<Vec<u32>> = vec![Vec::with_capacity(len / BLOCK + 4); n];
    median(|| {
        time(n * len / BLOCK, || {
            for ((run, row), prompt) in runs.iter().zip(&mut rows).zip(tokens.chunks_exact(len)) {
                row.clear();
                assert!(memory.same(run, prompt));
                row.extend_from_slice(&run.pages);
            }
        })
    })
}

/// What a decoding sequence touches: its lengths, its last record, its row and its run.
struct Decoding {
    len: usize,
    record: u32,
    row: Vec<u32>,
    run: Run,
}

fn decoding(memory: &mut Memory, room: usize) -> Vec<Decoding> {
    (0..256)
        .map(|at| {
            let len = 1024 + at * 7 % BLOCK;
            let mut one = Decoding {
                len,
                record: 0,
                row: Vec::with_capacity((len + room) / BLOCK + 4),
                run: Run::default(),
            };
            memory.take_pages(len.div_ceil(BLOCK), &mut one.row);
            one.record = memory.take_record();
            one
        })
        .collect()
}

/// W4, per step: a token per sequence, and a page and a record for every sixteenth.
fn decode_step() -> f64 {
    let steps = 512;
    median(|| {
        let mut memory = Memory::new(256 * ((1024 + steps) / BLOCK + 4), false);
        let mut batch = decoding(&mut memory, steps);
        time(steps, || {
            for step in 0..steps {
                for one in &mut batch {
                    if one.len.is_multiple_of(BLOCK) {
                        memory.take_pages(1, &mut one.row);
                        one.record = memory.take_record();
                    }
                    memory.write(one.record, one.len % BLOCK, step);
                    one.len += 1;
                    if one.len.is_multiple_of(BLOCK) {
                        one.run.records.push(one.record);
                        one.run.pages.push(one.row[one.row.len() - 1]);
                    }
                }
            }
        })
    })
}

/// W4, per step: room for five tokens, one to five accepted, the rest given back.
fn speculative_step() -> f64 {
    let (steps, width) = (512, 5);
    median(|| {
        let mut memory = Memory::new(256 * ((1024 + steps * width) / BLOCK + 4), false);
        let mut batch = decoding(&mut memory, steps * width);
        let mut random = Random::new(4);
        let accepted: Vec<usize> = (0..steps * 256).map(|_| 1 + random.below(width)).collect();
        time(steps, || {
            for (step, accepted) in accepted.chunks_exact(256).enumerate() {
                for (one, &accepted) in batch.iter_mut().zip(accepted) {
                    let room = (one.len + width).div_ceil(BLOCK);
                    let had = one.row.len();
                    if room > had {
                        memory.take_pages(room - had, &mut one.row);
                    }
                    let (at, end) = (one.len % BLOCK, one.len % BLOCK + accepted);
                    if at == 0 {
                        one.record = memory.take_record();
                    }
                    memory.write_some(one.record, at, step);
                    one.len += accepted;
                    if end >= BLOCK {
                        one.run.records.push(one.record);
                        one.run.pages.push(one.row[one.len / BLOCK - 1]);
                        if end > BLOCK {
                            one.record = memory.take_record();
                            memory.write_some(one.record, 0, step);
                        }
                    }
                    memory.shrink(&mut one.row, one.len.div_ceil(BLOCK));
                }
            }
        })
    })
}

/// W5 and W7, per block: the oldest run goes, a new one takes its pages and records.
fn evict(pages: u32, len: usize) -> f64 {
    let pages = pages as usize;
    let mut memory = Memory::new(pages, false);
    let mut random = Random::new(5);
    let mut runs = std::collections::VecDeque::new();
    for _ in 0..pages / (len / BLOCK) {
        runs.push_back(memory.publish(&random.tokens(len)));
    }
    let rounds = 16;
    median(|| {
        let prompts = random.tokens(rounds * len);
        time(rounds * len / BLOCK, || {
            for prompt in prompts.chunks_exact(len) {
                if let Some(oldest) = runs.pop_front() {
                    memory.give_back(&oldest);
                }
                let run = memory.publish(prompt);
                runs.push_back(run);
            }
        })
    })
}

/// W8: rows copied into a table of 256 x 2,048 entries.
fn table() -> f64 {
    let (rows, width) = (256, 2048);
    let pages: Vec<Vec<u32>> = (0..rows).map(|row| vec![row; width - 2]).collect();
    let mut out = vec![0_u32; 256 * width];
    median(|| {
        time(1, || {
            for (row, out) in pages.iter().zip(out.chunks_exact_mut(width)) {
                out[..row.len()].copy_from_slice(row);
                out[row.len()..].fill(0);
            }
            out[77]
        })
    })
}

/// W8: one changed entry in each of 256 rows, as records of four numbers, and remembered as shown.
fn updates() -> f64 {
    let (rows, width) = (256_u32, 2048);
    let pages: Vec<Vec<u32>> = (0..rows).map(|row| vec![row; width]).collect();
    let mut shown = pages.clone();
    let mut out = vec![[0_u32; 4]; 256];
    let mut column = 0;
    median(|| {
        column += 1;
        time(1, || {
            for (row, out) in (0..rows).zip(&mut out) {
                let page = pages[row as usize][column];
                *out = [row, 0, 0, page];
                shown[row as usize][column] = page;
            }
            out[77][3]
        })
    })
}

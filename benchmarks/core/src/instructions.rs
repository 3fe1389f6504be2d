//! `instructions OPERATION`: runs one operation once, for callgrind. Prints the units it processed.
//!
//! `benchmarks/instructions/check.py` runs it and knows the baseline.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use tandemkv_benchmarks::{Admission, BLOCK, Decode, Random, Setup, measured, scatter};

const PROMPTS: usize = 16;
const LEN: usize = 2048;
const ROUNDS: usize = 64;

/// Runs an operation and returns how many units it processed inside the measured calls.
type Operation = fn(bool) -> usize;

const OPERATIONS: [(&str, Operation); 8] = [
    ("admit_publish", |pair| admit(pair, false, false)),
    ("admit_again", |pair| admit(pair, true, false)),
    ("admit_again_scattered", |pair| admit(pair, true, true)),
    ("decode_step", |pair| decode(pair, 1)),
    ("speculative_step", |pair| decode(pair, 5)),
    ("release", release),
    ("evict", evict),
    ("updates", updates),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, role] = arguments.as_slice() else {
        eprintln!("usage: instructions OPERATION target|pair");
        return ExitCode::from(2);
    };
    let operation = OPERATIONS.iter().find(|(known, _)| known == name);
    if let Some((_, run)) = operation
        && ["target", "pair"].contains(&role.as_str())
    {
        println!("{}", run(role == "pair"));
        return ExitCode::SUCCESS;
    }
    let known: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
    eprintln!(
        "error: {name} {role}: the operations are {} for target or pair",
        known.join(", ")
    );
    ExitCode::from(2)
}

fn setup(pair: bool, rows: u32) -> Setup {
    Setup {
        pages: 8192,
        rows,
        max_seq_len: 4096,
        pair,
        reuse: true,
    }
}

fn admit(pair: bool, again: bool, scattered: bool) -> usize {
    let mut random = Random::new(1);
    let tokens = random.tokens(PROMPTS * LEN);
    let mut ledger = setup(pair, 8192).ledger();
    if scattered {
        scatter(&mut ledger, &mut random);
    }
    let mut batch = Admission::new(&tokens, LEN, BLOCK);
    if again {
        measured::place(&mut ledger, &mut batch);
        measured::release(&mut ledger, &batch);
    }
    place_last(&mut ledger, &mut batch);
    let whole = PROMPTS * (LEN - BLOCK);
    assert_eq!(
        batch.hit_tokens() >= whole as u64,
        again,
        "a hit when placed again"
    );
    PROMPTS * LEN / BLOCK
}

/// The `place` that counts; those before it set the stage.
#[inline(never)]
fn place_last(ledger: &mut tandemkv_core::Ledger, batch: &mut Admission<'_>) {
    measured::place(ledger, batch);
}

fn decode(pair: bool, width: i32) -> usize {
    let mut random = Random::new(2);
    let tokens = random.tokens(PROMPTS * LEN);
    let mut ledger = setup(pair, 64).ledger();
    let mut batch = Admission::new(&tokens, LEN, BLOCK * ROUNDS).staggered();
    measured::place(&mut ledger, &mut batch);
    let mut decode = Decode::new(&batch.handle, width);
    for _ in 0..ROUNDS {
        decode.draw(&mut random);
        measured::step(&mut ledger, &mut decode);
    }
    PROMPTS * ROUNDS
}

fn release(pair: bool) -> usize {
    let tokens = Random::new(3).tokens(PROMPTS * LEN);
    let mut ledger = setup(pair, 64).ledger();
    let mut batch = Admission::new(&tokens, LEN, BLOCK);
    measured::place(&mut ledger, &mut batch);
    measured::release(&mut ledger, &batch);
    PROMPTS
}

/// Every page is cached when the last batch comes.
fn evict(pair: bool) -> usize {
    let mut random = Random::new(4);
    let mut ledger = setup(pair, 64).ledger();
    let rounds = 8192 * BLOCK / (PROMPTS * LEN) + 2;
    for _ in 0..rounds {
        let tokens = random.tokens(PROMPTS * LEN);
        let mut batch = Admission::new(&tokens, LEN, BLOCK);
        measured::place(&mut ledger, &mut batch);
        measured::release(&mut ledger, &batch);
    }
    let tokens = random.tokens(PROMPTS * LEN);
    let mut batch = Admission::new(&tokens, LEN, BLOCK);
    let before = ledger.stats().counters.evicted_blocks;
    place_last(&mut ledger, &mut batch);
    let evicted = ledger.stats().counters.evicted_blocks - before;
    assert!(evicted > 0, "the pool was full");
    usize::try_from(evicted).expect("a count of blocks")
}

fn updates(pair: bool) -> usize {
    let tokens = Random::new(5).tokens(PROMPTS * LEN);
    let mut ledger = setup(pair, 64).ledger();
    let mut batch = Admission::new(&tokens, LEN, BLOCK * ROUNDS);
    measured::place(&mut ledger, &mut batch);
    let mut out = vec![[0; 4]; PROMPTS * LEN / BLOCK];
    let mut found = measured::updates(&mut ledger, &mut out);
    let mut decode = Decode::new(&batch.handle, 1);
    for _ in 0..ROUNDS {
        measured::step(&mut ledger, &mut decode);
        found += measured::updates(&mut ledger, &mut out);
    }
    found
}

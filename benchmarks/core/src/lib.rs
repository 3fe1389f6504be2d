//! A caller of the ledger as small as it can be: batches as arrays, one call per kind and step.
//!
//! `benches/ledger.rs` measures its calls in time, `src/instructions.rs` in instructions.
#![forbid(unsafe_code)]

pub mod measured;

use tandemkv_core::ids::Token;
use tandemkv_core::window::Lifetime;
use tandemkv_core::{EvictionPolicy, Ledger, LedgerConfig};

/// Tokens per block in all benchmarks: 16 tokens of 4 bytes are one cache line.
pub const BLOCK: usize = 16;

/// What a ledger is made for.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Pages that sequences can use.
    pub pages: u32,
    /// Sequences open at once.
    pub rows: u32,
    /// Tokens of the longest sequence.
    pub max_seq_len: u32,
    /// Whether a draft with a lookahead of one token runs beside the target.
    pub pair: bool,
    /// Whether blocks are published and matched.
    pub reuse: bool,
}

impl Setup {
    /// A ledger of this kind, empty.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::new(LedgerConfig {
            tokens_per_block: u32::try_from(BLOCK).expect("16"),
            num_pages: vec![self.pages + 1],
            host_pages: Vec::new(),
            disk_pages: Vec::new(),
            lifetimes: vec![Lifetime::Full],
            max_step_tokens: 0,
            num_blocks: None,
            snapshot_interval: 0,
            max_sequences: self.rows,
            max_seq_len: self.max_seq_len,
            has_draft: self.pair,
            extra_tokens: 0,
            reserve_tokens: 0,
            lookahead: u32::from(self.pair),
            reuse: self.reuse,
            partial_reuse: true,
            same_stream: false,
            watermark_blocks: 0,
            max_leased_blocks: 0,
            ttl_ms: 0,
            policy: EvictionPolicy::Lru,
        })
        .expect("a valid configuration")
    }
}

/// Prompts on their way in, and what became of them.
#[derive(Debug)]
pub struct Admission<'a> {
    /// The prompts.
    pub prompts: Vec<&'a [Token]>,
    /// Handles, after [`measured::place`].
    pub handle: Vec<i64>,
    /// Hit tokens, after [`measured::place`].
    pub hit: Vec<i32>,
    scope: Vec<i32>,
    first: Vec<i32>,
    max_total: Vec<i64>,
    zeros: Vec<i32>,
    publish: Vec<u8>,
}

impl<'a> Admission<'a> {
    /// A batch of `tokens` cut into prompts of `len` tokens that may grow by `room` tokens.
    ///
    /// # Panics
    ///
    /// If a prompt would be empty.
    #[must_use]
    pub fn new(tokens: &'a [Token], len: usize, room: usize) -> Self {
        let prompts: Vec<&[Token]> = tokens.chunks_exact(len).collect();
        let n = prompts.len();
        let max_total = i64::try_from(len + room).expect("small");
        Self {
            prompts,
            handle: vec![0; n],
            hit: vec![0; n],
            scope: vec![0; n],
            first: vec![i32::MAX; n],
            max_total: vec![max_total; n],
            zeros: vec![0; n],
            publish: vec![0; n],
        }
    }

    /// Cuts prompt `i` by `i * 7 % BLOCK` tokens, so that a sixteenth of the sequences cross a block
    /// boundary in each decode step.
    #[must_use]
    pub fn staggered(mut self) -> Self {
        for (at, prompt) in self.prompts.iter_mut().enumerate() {
            *prompt = &prompt[..prompt.len() - at * 7 % BLOCK];
        }
        self
    }

    /// Hit tokens of the batch.
    #[must_use]
    pub fn hit_tokens(&self) -> u64 {
        self.hit
            .iter()
            .map(|&hit| u64::from(hit.cast_unsigned()))
            .sum()
    }
}

/// A batch that decodes: the same arrays every step.
#[derive(Debug)]
pub struct Decode {
    handle: Vec<i64>,
    width: Vec<i32>,
    ok: Vec<u8>,
    /// Tokens given per step, `columns` per sequence.
    pub tokens: Vec<Token>,
    /// How many of them are appended.
    pub count: Vec<i32>,
    columns: usize,
}

impl Decode {
    /// A batch that runs `width` tokens per sequence and step.
    ///
    /// # Panics
    ///
    /// If `width` is not positive.
    #[must_use]
    pub fn new(handle: &[i64], width: i32) -> Self {
        let (n, columns) = (
            handle.len(),
            usize::try_from(width).expect("a positive width"),
        );
        Self {
            handle: handle.to_vec(),
            width: vec![width; n],
            ok: vec![0; n],
            tokens: vec![7; n * columns],
            count: vec![1; n],
            columns,
        }
    }

    /// Draws how many tokens each sequence accepts: 1 to `width`, the sampled token included.
    pub fn draw(&mut self, random: &mut Random) {
        let columns = u64::try_from(self.columns).expect("small");
        for count in &mut self.count {
            *count = i32::try_from(random.below(columns)).expect("small") + 1;
        }
    }
}

/// A small generator with a fixed seed (xorshift64*), so that all runs see the same tokens.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded with `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 33) % end
    }

    /// `n` tokens in `[0, 2^31)`.
    ///
    /// # Panics
    ///
    /// Never: a number of 31 bits is a token.
    pub fn tokens(&mut self, n: usize) -> Vec<Token> {
        (0..n)
            .map(|_| Token::try_from(self.next() >> 33).expect("31 bits"))
            .collect()
    }

    /// Shuffles `values`.
    ///
    /// # Panics
    ///
    /// Never: an index below a length fits `usize`.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for end in (1..values.len()).rev() {
            let at = usize::try_from(self.below(end as u64 + 1)).expect("an index");
            values.swap(at, end);
        }
    }
}

/// Takes every page with a sequence of one block and gives them back in random order: afterwards the
/// pages and records of new sequences are scattered over memory, as after hours of service.
///
/// # Panics
///
/// If the ledger is not empty or has fewer rows than pages.
pub fn scatter(ledger: &mut Ledger, random: &mut Random) {
    let pages = ledger.stats().classes[0].free as usize;
    let tokens = vec![1; pages];
    let mut all = Admission::new(&tokens, 1, 0);
    let step = ledger.begin_step(0.0).expect("a clock that stands");
    let admitted = measured::admit(ledger, step, &mut all);
    assert_eq!(admitted, pages, "one page per sequence");
    ledger.complete_step(step).expect("the open step");
    random.shuffle(&mut all.handle);
    measured::release(ledger, &all);
}

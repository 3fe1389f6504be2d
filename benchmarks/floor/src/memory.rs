//! Records, free lists and runs: the arrays that the workloads move data between.

/// Tokens per block, one cache line of 4-byte tokens.
pub const BLOCK: usize = 16;

/// A run of blocks: record ids and pages.
#[derive(Debug, Default, Clone)]
pub struct Run {
    pub records: Vec<u32>,
    pub pages: Vec<u32>,
}

/// All records, and the free ones and free pages as stacks.
#[derive(Debug)]
pub struct Memory {
    tokens: Vec<[u32; BLOCK]>,
    free_records: Vec<u32>,
    free_pages: Vec<u32>,
}

impl Memory {
    /// `blocks` free blocks, in order or scattered.
    pub fn new(blocks: usize, scattered: bool) -> Self {
        let count = u32::try_from(blocks).expect("below 2^32");
        let mut order: Vec<u32> = (0..count).rev().collect();
        if scattered {
            Random::new(1).shuffle(&mut order);
        }
        Self {
            // Not zero, so that the memory is mapped now.
            tokens: vec![[u32::MAX; BLOCK]; blocks],
            free_pages: order.clone(),
            free_records: order,
        }
    }

    pub fn take_pages(&mut self, n: usize, row: &mut Vec<u32>) {
        let left = self.free_pages.len() - n;
        row.extend(self.free_pages.drain(left..).rev());
    }

    pub fn give_pages(&mut self, row: &mut Vec<u32>) {
        self.free_pages.extend(row.drain(..).rev());
    }

    /// Gives the pages of a row back from entry `kept` on.
    pub fn shrink(&mut self, row: &mut Vec<u32>, kept: usize) {
        self.free_pages.extend(row.drain(kept..).rev());
    }

    pub fn take_record(&mut self) -> u32 {
        self.free_records.pop().expect("a free record")
    }

    pub fn write(&mut self, record: u32, at: usize, value: usize) {
        self.tokens[record as usize][at] = u32::try_from(value).unwrap_or(0);
    }

    /// Writes up to four tokens from `at` on; how many count is a matter of lengths, not of bytes.
    pub fn write_some(&mut self, record: u32, at: usize, value: usize) {
        let value = u32::try_from(value).unwrap_or(0);
        let tokens = &mut self.tokens[record as usize];
        for token in &mut tokens[at..(at + 4).min(BLOCK)] {
            *token = value;
        }
    }

    /// A prompt into records, with the pages that a row would show.
    pub fn publish(&mut self, prompt: &[u32]) -> Run {
        let blocks = prompt.len() / BLOCK;
        let mut row = Vec::with_capacity(blocks);
        self.take_pages(blocks, &mut row);
        let left = self.free_records.len() - blocks;
        let mut records = Vec::with_capacity(blocks);
        records.extend(self.free_records.drain(left..).rev());
        for (&record, tokens) in records.iter().zip(prompt.as_chunks::<BLOCK>().0) {
            self.tokens[record as usize] = *tokens;
        }
        // The row stays with the sequence; the tree has pages of its own.
        let pages = row.clone();
        Run { records, pages }
    }

    /// Whether a run holds a prompt: every token of both is read.
    pub fn same(&self, run: &Run, prompt: &[u32]) -> bool {
        run.records
            .iter()
            .zip(prompt.as_chunks::<BLOCK>().0)
            .all(|(&record, tokens)| self.tokens[record as usize] == *tokens)
    }

    /// How many of the first `n` blocks of a run equal those of a prompt; all are read.
    pub fn equal_blocks(&self, run: &Run, prompt: &[u32], n: usize) -> usize {
        run.records[..n]
            .iter()
            .zip(prompt.as_chunks::<BLOCK>().0)
            .map(|(&record, tokens)| {
                let pairs = self.tokens[record as usize].iter().zip(tokens);
                usize::from(pairs.fold(0, |bits, (a, b)| bits | (a ^ b)) == 0)
            })
            .sum()
    }

    pub fn give_back(&mut self, run: &Run) {
        self.free_pages.extend(run.pages.iter().rev());
        self.free_records.extend(run.records.iter().rev());
    }

    /// Blocks that can be had: each needs a page, and all but those of an output a record.
    pub fn free(&self) -> usize {
        self.free_records.len().min(self.free_pages.len())
    }
}

/// xorshift64*, so that nothing but the standard library is needed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).expect("31 bits") % end
    }

    pub fn tokens(&mut self, n: usize) -> Vec<u32> {
        (0..n)
            .map(|_| u32::try_from(self.next()).expect("31 bits"))
            .collect()
    }

    pub fn shuffle(&mut self, values: &mut [u32]) {
        for end in (1..values.len()).rev() {
            values.swap(self.below(end + 1), end);
        }
    }
}

//! Block records: the tokens of every block that has pages, in one slab.
//!
//! Sixteen 4-byte tokens are one cache line. The slab is touched when built, since page faults on
//! first use cost more per block than all the rest of an admission.

use crate::event::EventLog;
use crate::ids::{BlockId, TOKEN_LIMIT, Token, count};
use crate::key::{BlockKey, Keys};

/// Stands in records that hold no token yet, and makes the operating system map the slab. It is no
/// media reference, which a search for those would find.
const NO_TOKEN: Token = TOKEN_LIMIT - 1;

/// Length of the longest common prefix of two slices.
#[inline]
pub(crate) fn common(left: &[Token], right: &[Token]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}

/// The bits that any of the tokens has: one pass without branches.
#[inline]
pub(crate) fn union(tokens: &[Token]) -> Token {
    tokens.iter().fold(0, |bits, &token| bits | token)
}

/// Writes tokens into blocks of `slab`, in order, until either ends; the last may be part of a block.
/// Returns the union of the bits of the tokens written.
fn store<'a>(
    slab: &mut [Token],
    size: usize,
    blocks: impl Iterator<Item = &'a BlockId>,
    tokens: &[Token],
) -> Token {
    match size {
        16 => store_by::<16>(slab, blocks, tokens),
        32 => store_by::<32>(slab, blocks, tokens),
        64 => store_by::<64>(slab, blocks, tokens),
        _ => {
            let mut bits = 0;
            for (&block, tokens) in blocks.zip(tokens.chunks(size)) {
                slab[block.at() * size..][..tokens.len()].copy_from_slice(tokens);
                bits |= union(tokens);
            }
            bits
        }
    }
}

/// The common sizes as constants: a block is then moved as a few vectors, without a call.
fn store_by<'a, const N: usize>(
    slab: &mut [Token],
    mut blocks: impl Iterator<Item = &'a BlockId>,
    tokens: &[Token],
) -> Token {
    let records = slab.as_chunks_mut::<N>().0;
    let (whole, tail) = tokens.as_chunks::<N>();
    let mut bits = [0; N];
    for tokens in whole {
        let Some(block) = blocks.next() else {
            break;
        };
        records[block.at()] = *tokens;
        for (bits, token) in bits.iter_mut().zip(tokens) {
            *bits |= token;
        }
    }
    if !tail.is_empty()
        && let Some(block) = blocks.next()
    {
        records[block.at()][..tail.len()].copy_from_slice(tail);
    }
    union(&bits) | union(tail)
}

/// The token records and the list of free ones.
#[derive(Debug)]
pub(crate) struct Blocks {
    tokens_per_block: usize,
    tokens: Vec<Token>,
    free: Vec<BlockId>,
    /// A bit for each record that may hold a media reference; empty before the first item of media.
    media: Vec<u64>,
    /// Keys of cached blocks.
    pub keys: Keys,
    /// Their keys on lower tiers, in a ledger that has some.
    pub tier_keys: Keys,
    /// The events about cached blocks, if they are logged.
    pub log: Option<Box<EventLog>>,
}

impl Blocks {
    pub(crate) fn new(tokens_per_block: u32, records: u32) -> Self {
        let tokens_per_block = tokens_per_block as usize;
        Self {
            tokens_per_block,
            tokens: vec![NO_TOKEN; tokens_per_block * records as usize],
            free: (0..records).rev().map(BlockId::new).collect(),
            media: Vec::new(),
            keys: Keys::default(),
            tier_keys: Keys::default(),
            log: None,
        }
    }

    /// Adds records until there are so many; they are handed out after those that are free already.
    pub(crate) fn grow(&mut self, records: u32) {
        let old = self.records();
        if records <= old {
            return;
        }
        self.tokens
            .resize(self.tokens_per_block * records as usize, NO_TOKEN);
        let new = (old..records).rev().map(BlockId::new);
        self.free.splice(..0, new);
        if !self.media.is_empty() {
            self.media.resize((records as usize).div_ceil(64), 0);
        }
        self.keys.grow(records);
        self.tier_keys.grow(records);
    }

    #[inline]
    pub(crate) fn tokens_per_block(&self) -> usize {
        self.tokens_per_block
    }

    #[inline]
    pub(crate) fn tokens(&self, block: BlockId) -> &[Token] {
        let start = block.at() * self.tokens_per_block;
        &self.tokens[start..start + self.tokens_per_block]
    }

    /// Writes tokens into one record from position `at` on; they end inside it.
    #[inline]
    pub(crate) fn write(&mut self, block: BlockId, at: usize, tokens: &[Token]) {
        let start = block.at() * self.tokens_per_block + at;
        match tokens {
            // Not worth the call that a copy of some length is.
            [token] => self.tokens[start] = *token,
            _ => self.tokens[start..start + tokens.len()].copy_from_slice(tokens),
        }
    }

    /// Writes the tokens of one record into another.
    pub(crate) fn copy(&mut self, from: BlockId, to: BlockId) {
        let size = self.tokens_per_block;
        let start = from.at() * size;
        self.tokens.copy_within(start..start + size, to.at() * size);
        self.note_media(&[to]);
    }

    /// Writes tokens into blocks, in order, until either ends.
    pub(crate) fn fill(&mut self, blocks: &[BlockId], tokens: &[Token]) {
        store(
            &mut self.tokens,
            self.tokens_per_block,
            blocks.iter(),
            tokens,
        );
    }

    /// Writes tokens into the `records` records that are handed out next once `left` are free. Returns
    /// the union of the bits of all tokens, also of those for which there is no record.
    pub(crate) fn stage(&mut self, left: u32, records: u32, tokens: &[Token]) -> Token {
        let next = &self.free[(left - records) as usize..left as usize];
        let placed = tokens.len().min(next.len() * self.tokens_per_block);
        let (placed, later) = tokens.split_at(placed);
        let next = next.iter().rev();
        let bits = store(&mut self.tokens, self.tokens_per_block, next, placed);
        bits | union(later)
    }

    /// Length of the longest common prefix of the tokens of `blocks`, in order, and `query`.
    #[inline]
    pub(crate) fn common(&self, blocks: &[BlockId], query: &[Token]) -> usize {
        let size = self.tokens_per_block;
        let whole = match size {
            16 => self.common_by::<16>(blocks, query),
            32 => self.common_by::<32>(blocks, query),
            64 => self.common_by::<64>(blocks, query),
            size => blocks
                .iter()
                .zip(query.chunks_exact(size))
                .take_while(|&(&block, tokens)| self.tokens(block) == tokens)
                .count(),
        };
        let rest = &query[whole * size..];
        match blocks.get(whole) {
            Some(&block) => whole * size + common(self.tokens(block), rest),
            None => whole * size,
        }
    }

    fn common_by<const N: usize>(&self, blocks: &[BlockId], query: &[Token]) -> usize {
        let records = self.tokens.as_chunks::<N>().0;
        blocks
            .iter()
            .zip(query.as_chunks::<N>().0)
            .take_while(|&(block, tokens)| {
                let record = &records[block.at()];
                // Without an early exit this is a few vector instructions.
                let differ = |bits, (a, b): (&Token, &Token)| bits | (a ^ b);
                record.iter().zip(tokens).fold(0, differ) == 0
            })
            .count()
    }

    /// Appends up to `len` tokens of `blocks`, from position `from` of the first.
    pub(crate) fn read(
        &self,
        blocks: &[BlockId],
        from: usize,
        len: usize,
        out: &mut impl Extend<Token>,
    ) {
        let size = self.tokens_per_block;
        let (mut at, end) = (from, (from + len).min(blocks.len() * size));
        while at < end {
            let start = at % size;
            let part = (size - start).min(end - at);
            let tokens = &self.tokens(blocks[at / size])[start..start + part];
            out.extend(tokens.iter().copied());
            at += part;
        }
    }

    /// Appends `needed` free records to `out`. There are as many records as pages of a full class, and
    /// the caller has pages, so there is always one; without a full class the records were counted.
    pub(crate) fn take(&mut self, needed: u32, out: &mut Vec<BlockId>) {
        if needed == 1
            && let Some(block) = self.free.pop()
        {
            out.push(block);
            return;
        }
        let left = self
            .free
            .len()
            .checked_sub(needed as usize)
            .expect("a block without a record: more blocks than pages");
        out.extend(self.free.drain(left..).rev());
    }

    /// Gives records back; handed out again in the same order.
    pub(crate) fn give_back(&mut self, blocks: impl DoubleEndedIterator<Item = BlockId>) {
        self.free.extend(blocks.rev());
    }

    pub(crate) fn free_count(&self) -> u32 {
        count(self.free.len())
    }

    /// From now on `note_media` notes which records hold media references: none does so far.
    pub(crate) fn track_media(&mut self) {
        if self.media.is_empty() {
            self.media = vec![0; (self.records() as usize).div_ceil(64)];
        }
    }

    /// Notes which of these records, into which tokens of a prompt were just written, may hold a media
    /// reference. What a record held before may be among what it shows.
    #[inline]
    pub(crate) fn note_media(&mut self, blocks: &[BlockId]) {
        if self.media.is_empty() {
            return;
        }
        for &block in blocks {
            let bits = self
                .tokens(block)
                .iter()
                .fold(0, |bits, token| bits | token);
            let bit = 1 << (block.at() % 64);
            if bits < TOKEN_LIMIT {
                self.media[block.at() / 64] &= !bit;
            } else {
                self.media[block.at() / 64] |= bit;
            }
        }
    }

    /// Whether a record may hold a media reference.
    #[inline]
    pub(crate) fn may_hold_media(&self, block: BlockId) -> bool {
        let word = self.media.get(block.at() / 64);
        word.is_some_and(|word| word >> (block.at() % 64) & 1 == 1)
    }

    /// Keeps keys from now on.
    pub(crate) fn keep_keys(&mut self) {
        self.keys.keep(self.records());
    }

    /// Keeps keys for lower tiers, and so the others too.
    pub(crate) fn keep_tier_keys(&mut self) {
        self.keep_keys();
        self.tier_keys.keep(self.records());
    }

    /// The key of a cached full block on lower tiers; `None` of a partial one.
    pub(crate) fn tier_key(&self, block: BlockId) -> Option<BlockKey> {
        self.tier_keys.get(block)
    }

    /// Notes that full blocks are leaving the tree.
    #[inline]
    pub(crate) fn note_left(&mut self, blocks: &[BlockId]) {
        if let Some(log) = &mut self.log {
            // The end of a path goes first: no key is ever there without those before it.
            let keys = blocks.iter().rev().map(|&block| self.keys.get(block));
            log.leave(keys.map(|key| key.expect("computed when it entered")));
        }
    }

    pub(crate) fn free_list(&self) -> &[BlockId] {
        &self.free
    }

    pub(crate) fn records(&self) -> u32 {
        count(self.tokens.len() / self.tokens_per_block)
    }
}

//! Block records: the tokens of every block that has pages, in one slab.
//!
//! Sixteen 4-byte tokens are one cache line. The slab is touched when built, since page faults on
//! first use cost more per block than all the rest of an admission.

use crate::ids::{BlockId, Token, count};

/// Stands in records that hold no token yet, and makes the operating system map the slab.
const NO_TOKEN: Token = Token::MAX;

/// Tokens of a cache line: copied and compared as one value, without a call per block.
const LINE: usize = 16;

/// The token records and the list of free ones.
#[derive(Debug)]
pub(crate) struct Blocks {
    tokens_per_block: usize,
    tokens: Vec<Token>,
    free: Vec<BlockId>,
}

impl Blocks {
    pub(crate) fn new(tokens_per_block: u32, records: u32) -> Self {
        let tokens_per_block = tokens_per_block as usize;
        Self {
            tokens_per_block,
            tokens: vec![NO_TOKEN; tokens_per_block * records as usize],
            free: (0..records).rev().map(BlockId::new).collect(),
        }
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

    #[inline]
    pub(crate) fn tokens_mut(&mut self, block: BlockId) -> &mut [Token] {
        let start = block.at() * self.tokens_per_block;
        &mut self.tokens[start..start + self.tokens_per_block]
    }

    /// Writes the tokens of a whole block.
    #[inline]
    pub(crate) fn fill(&mut self, block: BlockId, tokens: &[Token]) {
        let (lines, rest) = tokens.as_chunks::<LINE>();
        let (out, out_rest) = self.tokens_mut(block).as_chunks_mut::<LINE>();
        for (out, line) in out.iter_mut().zip(lines) {
            *out = *line;
        }
        out_rest.copy_from_slice(rest);
    }

    /// Whether a block holds exactly these tokens.
    #[inline]
    pub(crate) fn equals(&self, block: BlockId, tokens: &[Token]) -> bool {
        let (lines, rest) = tokens.as_chunks::<LINE>();
        let (own, own_rest) = self.tokens(block).as_chunks::<LINE>();
        own == lines && own_rest == rest
    }

    /// Appends `needed` free records to `out`. There are as many records as pages, and the caller
    /// has pages, so there is always one.
    pub(crate) fn take(&mut self, needed: u32, out: &mut Vec<BlockId>) {
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

    pub(crate) fn free_list(&self) -> &[BlockId] {
        &self.free
    }

    pub(crate) fn records(&self) -> u32 {
        count(self.tokens.len() / self.tokens_per_block)
    }
}

//! The adaptive policy: used again and returning blocks count as used later than they were, by a boost
//! that sampled shadow caches choose.

use super::ghosts::{Ghosts, block_hash, scope_hash};
use super::shadow::Shadow;
use super::{Policy, Usage};
use crate::ids::{BlockId, Token};

/// Blocks used once; blocks used again; blocks that came back after an eviction.
pub(super) const CLASSES: usize = 3;
/// How much older than the pool is deep a block of the next class may be, one per shadow.
const BOOSTS: [u64; 3] = [0, 1, 8];
/// Evictions that ghosts remember, per block of the cache.
const GHOST_WINDOW: u64 = 4;
/// One root branch in so many is shown to the shadows, which are as much smaller.
const SAMPLE_BITS: u32 = 3;
/// Scores fade over so many requested blocks per block of a shadow.
const SCORE_WINDOW: u64 = 128;
/// Scores are fixed-point numbers: hit blocks times this.
const SCORE_UNIT: u64 = 1 << 16;

/// See `docs/eviction.md`.
#[derive(Debug)]
pub(super) struct Adaptive {
    capacity: u64,
    ghosts: Ghosts,
    /// The path hash after each block that is in the tree.
    hashes: Vec<u64>,
    shadows: [Shadow; BOOSTS.len()],
    scores: [u64; BOOSTS.len()],
    shadow_capacity: u64,
    /// The shadow whose boost is used.
    chosen: usize,
}

impl Adaptive {
    pub(super) fn new(records: u32, blocks: u32) -> Self {
        let capacity = u64::from(blocks);
        let shadow_capacity = (capacity >> SAMPLE_BITS).max(1);
        let shadow = |boost| {
            let window = GHOST_WINDOW * shadow_capacity;
            Shadow::new(shadow_capacity, boost * shadow_capacity, window)
        };
        Self {
            capacity,
            ghosts: Ghosts::new(GHOST_WINDOW * capacity),
            hashes: vec![0; records as usize],
            shadows: BOOSTS.map(shadow),
            scores: [0; BOOSTS.len()],
            shadow_capacity,
            chosen: 0,
        }
    }
}

impl Policy for Adaptive {
    fn grow(&mut self, records: u32) {
        self.hashes.resize(records as usize, 0);
    }

    fn counts_uses(&self) -> bool {
        true
    }

    fn places_blocks(&self) -> bool {
        true
    }

    fn fresh(&self) -> Usage {
        Usage::default()
    }

    fn place(&mut self, scope: i32, above: Option<BlockId>, id: BlockId, text: &[Token]) -> Usage {
        let before = above.map_or_else(|| scope_hash(scope), |above| self.hashes[above.at()]);
        let hash = block_hash(before, text);
        self.hashes[id.at()] = hash;
        let uses = if self.ghosts.contains(hash) { 2 } else { 0 };
        Usage { uses, rank: 0 }
    }

    fn used(&mut self, usage: &mut Usage) {
        usage.uses = usage.uses.max(1);
    }

    fn idle(&mut self, _: &mut Usage) {}

    fn queue(&self, usage: &Usage) -> usize {
        usage.uses as usize
    }

    fn offset(&self, queue: usize) -> u64 {
        queue as u64 * BOOSTS[self.chosen] * self.capacity
    }

    fn evicted(&mut self, _: &Usage, blocks: &[BlockId]) {
        for id in blocks.iter().rev() {
            self.ghosts.push(self.hashes[id.at()]);
        }
    }

    fn is_sampled(&self, first: BlockId) -> bool {
        self.hashes[first.at()] >> (u64::BITS - SAMPLE_BITS) == 0
    }

    fn served(&mut self, path: &[BlockId]) {
        let chain: Vec<u64> = path.iter().map(|id| self.hashes[id.at()]).collect();
        let fading = SCORE_WINDOW * self.shadow_capacity;
        let left = fading - fading.min(chain.len() as u64);
        for (shadow, score) in self.shadows.iter_mut().zip(&mut self.scores) {
            let kept = u128::from(*score) * u128::from(left) / u128::from(fading);
            let kept = u64::try_from(kept).expect("below what it was");
            *score = kept + shadow.serve(&chain) * SCORE_UNIT;
        }
        let best = (0..BOOSTS.len())
            .rev()
            .max_by_key(|&at| self.scores[at])
            .expect("there are boosts");
        // A switch needs 1 % more: nearly equal boosts would take turns otherwise.
        if self.scores[best] * 100 > self.scores[self.chosen] * 101 {
            self.chosen = best;
        }
    }

    fn grows_with_blocks(&self) -> bool {
        true
    }

    fn state(&self) -> String {
        let shadows: Vec<_> = self.shadows.iter().map(Shadow::state).collect();
        format!(
            "{} {:?} {shadows:?} {:?}",
            self.chosen,
            self.scores,
            self.ghosts.state()
        )
    }
}

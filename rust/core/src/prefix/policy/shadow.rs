//! A cache of path hashes alone: what the hits would be with one boost, on a sample of the requests.

use std::collections::BTreeSet;

use super::adaptive::CLASSES;
use super::ghosts::{ByHash, Ghosts};
use crate::slab::Slab;

#[derive(Debug, Clone, Copy)]
struct Block {
    hash: u64,
    /// The block before it, `NONE` at the root.
    parent: u32,
    children: u32,
    class: u8,
    last_use: u64,
}

const NONE: u32 = u32::MAX;

/// One shadow cache.
#[derive(Debug)]
pub(super) struct Shadow {
    capacity: u64,
    /// What a class adds to the last use.
    boost: u64,
    blocks: Slab<Block>,
    by_hash: ByHash,
    /// Childless blocks by class: (last use, block).
    leaves: [BTreeSet<(u64, u32)>; CLASSES],
    ghosts: Ghosts,
    clock: u64,
}

impl Shadow {
    pub(super) fn new(capacity: u64, boost: u64, ghost_window: u64) -> Self {
        Self {
            capacity,
            boost,
            blocks: Slab::new(),
            by_hash: ByHash::default(),
            leaves: Default::default(),
            ghosts: Ghosts::new(ghost_window),
            clock: 0,
        }
    }

    /// Serves a request of these blocks; returns its hit blocks. One that is larger than the cache is
    /// not served.
    pub(super) fn serve(&mut self, chain: &[u64]) -> u64 {
        if chain.len() as u64 > self.capacity {
            return 0;
        }
        let mut path = Vec::with_capacity(chain.len());
        for hash in chain {
            match self.by_hash.get(hash) {
                Some(&at) => path.push(u32::try_from(at).expect("a place in the slab")),
                None => break,
            }
        }
        let hit = path.len();
        let deepest = path.last().copied().unwrap_or(NONE);
        self.make_room((chain.len() - hit) as u64, deepest);
        for &at in &path {
            let block = &mut self.blocks[at];
            block.last_use = self.clock;
            block.class = block.class.max(1);
        }
        let mut above = deepest;
        for &hash in &chain[hit..] {
            above = self.insert(hash, above);
        }
        self.clock += ((chain.len() - hit) as u64).max(1);
        if above != NONE && self.blocks[above].children == 0 {
            self.offer(above);
        }
        hit as u64
    }

    /// What later answers depend on, short of the blocks themselves.
    pub(super) fn state(&self) -> (u64, usize, (u64, u64)) {
        (self.clock, self.by_hash.len(), self.ghosts.state())
    }

    fn insert(&mut self, hash: u64, parent: u32) -> u32 {
        let class = if self.ghosts.contains(hash) { 2 } else { 0 };
        let at = self.blocks.insert(Block {
            hash,
            parent,
            children: 0,
            class,
            last_use: self.clock,
        });
        self.by_hash.insert(hash, at.into());
        if parent != NONE {
            self.blocks[parent].children += 1;
        }
        at
    }

    fn offer(&mut self, at: u32) {
        let block = self.blocks[at];
        self.leaves[usize::from(block.class)].insert((block.last_use, at));
    }

    /// Evicts until `needed` blocks have room; the path down to `deepest` stays.
    fn make_room(&mut self, needed: u64, deepest: u32) {
        if deepest != NONE {
            let block = self.blocks[deepest];
            self.leaves[usize::from(block.class)].remove(&(block.last_use, deepest));
        }
        while self.by_hash.len() as u64 + needed > self.capacity {
            let heads = self.leaves.iter().enumerate();
            let first = heads
                .filter_map(|(class, leaves)| {
                    let &(last_use, _) = leaves.first()?;
                    Some((last_use + class as u64 * self.boost, class))
                })
                .min();
            let (_, class) = first.expect("a cache with blocks has a leaf");
            let (_, at) = self.leaves[class].pop_first().expect("it has a head");
            let block = self.blocks[at];
            self.by_hash.remove(&block.hash);
            self.blocks.free(at);
            self.ghosts.push(block.hash);
            if block.parent != NONE {
                self.blocks[block.parent].children -= 1;
                if self.blocks[block.parent].children == 0 && block.parent != deepest {
                    self.offer(block.parent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_used_twice_outlive_a_scan_only_with_a_boost() {
        for (boost, hit) in [(0, 0), (8 * 4, 1)] {
            let mut shadow = Shadow::new(4, boost, 16);
            shadow.serve(&[1]);
            shadow.serve(&[1]);
            for scan in 10..16 {
                assert_eq!(shadow.serve(&[scan]), 0);
            }
            assert_eq!(shadow.serve(&[1]), hit, "boost {boost}");
        }
    }

    #[test]
    fn parents_stay_while_they_have_children() {
        let mut shadow = Shadow::new(4, 0, 16);
        shadow.serve(&[1, 2, 3]);
        shadow.serve(&[9, 8]);
        assert_eq!(shadow.serve(&[1, 2]), 2, "the leaf 3 went, not its parents");
        assert_eq!(shadow.serve(&[0, 0, 0, 0, 0]), 0, "larger than the cache");
        assert_eq!(shadow.serve(&[9, 8]), 2, "and so without effect");
    }
}

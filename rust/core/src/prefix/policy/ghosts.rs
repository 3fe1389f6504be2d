//! The blocks evicted last, by the hash of the text up to their end.
//!
//! A hash decides only an order here, never identity, so 64 bits without a secret are enough. The map
//! is never iterated.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::ids::Token;

/// One step of the path hash.
#[inline]
fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ (hash >> 32)
}

/// The path hash before the first block of a scope.
pub(super) fn scope_hash(scope: i32) -> u64 {
    mix(1, u64::from(scope.cast_unsigned()))
}

/// The path hash after a block: that before it, then its tokens, two at a time.
#[inline]
pub(super) fn block_hash(before: u64, tokens: &[Token]) -> u64 {
    let (pairs, rest) = tokens.as_chunks::<2>();
    let hash = pairs.iter().fold(before, |hash, &[first, second]| {
        mix(hash, u64::from(first) | u64::from(second) << 32)
    });
    rest.iter()
        .fold(hash, |hash, &token| mix(hash, u64::from(token)))
}

/// Keys that are hashes already.
#[derive(Debug, Default)]
pub(super) struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("path hashes are written as one number");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

pub(super) type ByHash = HashMap<u64, u64, BuildHasherDefault<Identity>>;

/// The last `window` evictions.
#[derive(Debug)]
pub(super) struct Ghosts {
    window: u64,
    /// Evictions so far.
    count: u64,
    /// Their hashes, the oldest first.
    order: VecDeque<u64>,
    /// The number of the last eviction of each.
    last: ByHash,
}

impl Ghosts {
    pub(super) fn new(window: u64) -> Self {
        Self {
            window,
            count: 0,
            order: VecDeque::new(),
            last: ByHash::default(),
        }
    }

    pub(super) fn contains(&self, hash: u64) -> bool {
        self.last.contains_key(&hash)
    }

    pub(super) fn push(&mut self, hash: u64) {
        self.order.push_back(hash);
        self.last.insert(hash, self.count);
        self.count += 1;
        if let Some(oldest) = self.count.checked_sub(self.window + 1) {
            let gone = self.order.pop_front().expect("the window is full");
            if self.last.get(&gone) == Some(&oldest) {
                self.last.remove(&gone);
            }
        }
    }

    /// Evictions so far, and a hash of those in the window.
    pub(super) fn state(&self) -> (u64, u64) {
        let hash = self.order.iter().fold(0, |hash, &ghost| mix(hash, ghost));
        (self.count, hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_stays_for_a_window_after_its_last_eviction() {
        let mut ghosts = Ghosts::new(3);
        for hash in [7, 8, 7, 9] {
            ghosts.push(hash);
        }
        // The last three are 8, 7, 9.
        assert!(ghosts.contains(7) && ghosts.contains(8) && ghosts.contains(9));
        ghosts.push(10);
        assert!(ghosts.contains(7) && !ghosts.contains(8));
        ghosts.push(11);
        assert!(!ghosts.contains(7));
    }

    #[test]
    fn the_path_hash_depends_on_scope_tokens_and_their_order() {
        let hash = |scope, tokens: &[Token]| block_hash(scope_hash(scope), tokens);
        assert_ne!(hash(0, &[1, 2, 3]), hash(1, &[1, 2, 3]));
        assert_ne!(hash(0, &[1, 2, 3]), hash(0, &[2, 1, 3]));
        assert_ne!(hash(0, &[1, 2, 3]), hash(0, &[1, 2, 4]));
        let whole = hash(0, &[1, 2, 3, 4]);
        assert_eq!(whole, block_hash(hash(0, &[1, 2]), &[3, 4]));
    }
}

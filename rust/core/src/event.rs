//! The log of what becomes reusable and what no longer is: see `docs/identity.md`.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::error::LedgerError;
use crate::ids::Token;
use crate::key::BlockKey;
use crate::media::Media;
use crate::scope::Scope;

/// Most keys in one event: what bounds the memory of a log, and the size of a message made of it.
pub const KEYS_MAX: usize = 64;

/// Why blocks were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Their pages were needed.
    Evicted,
    /// Their scope was dropped.
    Dropped,
    /// A copy on a lower tier could not be written or read.
    Failed,
}

/// Tiers that have events.
const TIERS: usize = 3;

/// A change on a lower tier: which tier, the key, and why its copy is gone, `None` if it came to be.
pub(crate) type Note = (u8, BlockKey, Option<Reason>);

/// Consecutive blocks that are reusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The key before the first; `None` for the first block of a scope.
    pub parent: Option<BlockKey>,
    /// Their keys.
    pub keys: Vec<BlockKey>,
    /// Their tokens, a block's for each key. A media reference is [`Token::MAX`].
    pub tokens: Vec<Token>,
    /// Their scope.
    pub scope: Arc<Scope>,
    /// Media that begin in them, with the position in `tokens`.
    pub media: Vec<(u32, Media)>,
}

/// What happened in a tier: 0 device, 1 host, 2 disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// The first copies of keys are on the device.
    Stored(Stored),
    /// The first copies of keys are on a lower tier, or on their way there.
    StoredBelow {
        /// The tier.
        tier: u8,
        /// The keys.
        keys: Vec<BlockKey>,
    },
    /// The last copies of keys are gone.
    Removed {
        /// The tier.
        tier: u8,
        /// The keys, the end of a path first.
        keys: Vec<BlockKey>,
        /// Why.
        reason: Reason,
    },
    /// Everything is gone.
    Cleared {
        /// The tier.
        tier: u8,
    },
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Numbers have no gaps.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
}

/// The newest events, and how many copies of each key there are.
#[derive(Debug)]
pub(crate) struct EventLog {
    limit: usize,
    events: VecDeque<Event>,
    /// The number of the newest event.
    last: u64,
    /// Never iterated: its order is another one in every process.
    copies: [HashMap<BlockKey, u32>; TIERS],
    /// Why blocks leave the tree at the moment.
    pub reason: Reason,
}

impl EventLog {
    /// A log that keeps the newest `limit` events.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            events: VecDeque::new(),
            last: 0,
            copies: Default::default(),
            reason: Reason::Evicted,
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Copies of a key in a tier.
    pub(crate) fn copies(&self, tier: usize, key: &BlockKey) -> u32 {
        self.copies[tier].get(key).copied().unwrap_or(0)
    }

    /// Keys with copies in a tier.
    pub(crate) fn keys_count(&self, tier: usize) -> usize {
        self.copies[tier].len()
    }

    /// The keys with copies in a tier, in order.
    pub(crate) fn keys(&self, tier: usize) -> Vec<BlockKey> {
        let mut keys: Vec<BlockKey> = self.copies[tier].keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    fn push(&mut self, kind: EventKind) {
        self.last += 1;
        if self.events.len() == self.limit {
            self.events.pop_front();
        }
        let number = self.last;
        self.events.push_back(Event { number, kind });
    }

    /// Counts a block that entered the tree; whether it is the first copy of its key.
    pub(crate) fn enter(&mut self, key: &BlockKey) -> bool {
        self.enter_tier(0, key)
    }

    fn enter_tier(&mut self, tier: usize, key: &BlockKey) -> bool {
        let copies = self.copies[tier].entry(*key).or_default();
        *copies += 1;
        *copies == 1
    }

    /// Takes a copy away; whether it was the last of its key.
    fn leave_tier(&mut self, tier: usize, key: BlockKey) -> bool {
        let Entry::Occupied(mut copies) = self.copies[tier].entry(key) else {
            panic!("a block leaves that never entered");
        };
        *copies.get_mut() -= 1;
        let last = *copies.get() == 0;
        if last {
            copies.remove();
        }
        last
    }

    /// Counts and logs changes on lower tiers, those of one kind that follow each other as one event.
    pub(crate) fn note_below(&mut self, notes: &[Note]) {
        for run in notes.chunk_by(|one, other| (one.0, one.2) == (other.0, other.2)) {
            let (tier, _, reason) = run[0];
            let is_news = |log: &mut Self, key: BlockKey| match reason {
                None => log.enter_tier(tier.into(), &key),
                Some(_) => log.leave_tier(tier.into(), key),
            };
            let keys = run.iter().map(|&(_, key, _)| key);
            let news: Vec<BlockKey> = keys.filter(|&key| is_news(self, key)).collect();
            for keys in news.chunks(KEYS_MAX) {
                let keys = keys.to_vec();
                self.push(match reason {
                    None => EventKind::StoredBelow { tier, keys },
                    Some(reason) => EventKind::Removed { tier, keys, reason },
                });
            }
        }
    }

    pub(crate) fn stored(&mut self, runs: Vec<Stored>) {
        for run in runs {
            self.push(EventKind::Stored(run));
        }
    }

    /// Counts blocks that leave the tree, and logs those that were the last of their key.
    pub(crate) fn leave(&mut self, keys: impl Iterator<Item = BlockKey>) {
        let gone: Vec<BlockKey> = keys.filter(|&key| self.leave_tier(0, key)).collect();
        let reason = self.reason;
        for keys in gone.chunks(KEYS_MAX) {
            let keys = keys.to_vec();
            self.push(EventKind::Removed {
                tier: 0,
                keys,
                reason,
            });
        }
    }

    /// Everything left a tier at once.
    pub(crate) fn clear(&mut self, tier: u8) {
        self.copies[usize::from(tier)].clear();
        self.push(EventKind::Cleared { tier });
    }

    /// The events after number `after`.
    pub(crate) fn after(&self, after: u64) -> Result<impl Iterator<Item = &Event>, LedgerError> {
        let oldest = self.last - self.events.len() as u64 + 1;
        if after > self.last || after + 1 < oldest {
            return Err(LedgerError::EventsGone {
                after,
                oldest,
                last: self.last,
            });
        }
        let seen = usize::try_from(after + 1 - oldest).expect("fewer than are kept");
        Ok(self.events.iter().skip(seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_and_the_last_copy_are_logged() {
        let mut log = EventLog::new(2);
        let (a, b) = ([1; 32], [2; 32]);
        assert!(log.enter(&a));
        assert!(!log.enter(&a));
        assert!(log.enter(&b));
        log.leave([a, b].into_iter());
        log.reason = Reason::Dropped;
        log.leave([a].into_iter());
        let removed = |number, key, reason| Event {
            number,
            kind: EventKind::Removed {
                tier: 0,
                keys: vec![key],
                reason,
            },
        };
        let logged: Vec<Event> = log.after(0).unwrap().cloned().collect();
        let expected = [
            removed(1, b, Reason::Evicted),
            removed(2, a, Reason::Dropped),
        ];
        assert_eq!(logged, expected);
        assert_eq!((log.keys_count(0), log.copies(0, &a)), (0, 0));
        log.clear(0);
        assert_eq!(log.after(1).unwrap().count(), 2);
        assert!(log.after(0).is_err());
        assert!(log.after(4).is_err());
    }

    #[test]
    fn changes_below_are_counted_by_tier_and_logged_together() {
        let mut log = EventLog::new(9);
        let (a, b, failed) = ([1; 32], [2; 32], Some(Reason::Failed));
        log.note_below(&[(1, a, None), (1, b, None), (2, a, None), (1, a, None)]);
        log.note_below(&[(1, a, failed), (1, a, failed), (1, b, failed)]);
        let kinds: Vec<EventKind> = log
            .after(0)
            .unwrap()
            .map(|event| event.kind.clone())
            .collect();
        let expected = [
            EventKind::StoredBelow {
                tier: 1,
                keys: vec![a, b],
            },
            EventKind::StoredBelow {
                tier: 2,
                keys: vec![a],
            },
            EventKind::Removed {
                tier: 1,
                keys: vec![a, b],
                reason: Reason::Failed,
            },
        ];
        assert_eq!(kinds, expected);
        assert_eq!((log.keys_count(1), log.keys(2)), (0, vec![a]));
    }
}

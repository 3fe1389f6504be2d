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
}

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

/// What happened in the device tier, the only one so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// The first copies of keys are there.
    Stored(Stored),
    /// The last copies of keys are gone.
    Removed {
        /// The keys, the end of a path first.
        keys: Vec<BlockKey>,
        /// Why.
        reason: Reason,
    },
    /// Everything is gone.
    Cleared,
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
    copies: HashMap<BlockKey, u32>,
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
            copies: HashMap::new(),
            reason: Reason::Evicted,
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Copies of a key in the tree.
    pub(crate) fn copies(&self, key: &BlockKey) -> u32 {
        self.copies.get(key).copied().unwrap_or(0)
    }

    /// Keys with copies.
    pub(crate) fn keys_count(&self) -> usize {
        self.copies.len()
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
        let copies = self.copies.entry(*key).or_default();
        *copies += 1;
        *copies == 1
    }

    pub(crate) fn stored(&mut self, runs: Vec<Stored>) {
        for run in runs {
            self.push(EventKind::Stored(run));
        }
    }

    /// Counts blocks that leave the tree, and logs those that were the last of their key.
    pub(crate) fn leave(&mut self, keys: impl Iterator<Item = BlockKey>) {
        let mut gone = Vec::new();
        for key in keys {
            let Entry::Occupied(mut copies) = self.copies.entry(key) else {
                panic!("a block leaves that never entered");
            };
            *copies.get_mut() -= 1;
            if *copies.get() == 0 {
                copies.remove();
                gone.push(key);
            }
        }
        let reason = self.reason;
        for keys in gone.chunks(KEYS_MAX) {
            let keys = keys.to_vec();
            self.push(EventKind::Removed { keys, reason });
        }
    }

    /// Everything left the tree at once.
    pub(crate) fn clear(&mut self) {
        self.copies.clear();
        self.push(EventKind::Cleared);
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
        assert_eq!((log.keys_count(), log.copies(&a)), (0, 0));
        log.clear();
        assert_eq!(log.after(1).unwrap().count(), 2);
        assert!(log.after(0).is_err());
        assert!(log.after(4).is_err());
    }
}

//! Keys of blocks and the events about them: computed and logged where blocks enter the tree.

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::LedgerError;
use crate::event::{Event, EventLog, KEYS_MAX, Reason, Stored};
use crate::ids::{BlockId, NodeId, Token};
use crate::key::{self, BlockKey};
use crate::ledger::{Ledger, check_range};
use crate::media::{self, Media};
use crate::scope::Scope;

impl Ledger {
    /// The same ledger, whose keys name what else must be equal for KV to be exchangeable: weights,
    /// dtypes, layout. For a new ledger only.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: &[u8]) -> Self {
        self.identity.fingerprint = fingerprint.to_vec();
        self
    }

    /// The same ledger, which logs its newest `limit` events; 0 logs none. For a new ledger only.
    #[must_use]
    pub fn with_events(mut self, limit: usize) -> Self {
        if limit > 0 {
            self.blocks.log = Some(Box::new(EventLog::new(limit)));
            self.blocks.keep_keys();
            if let Some(tiers) = &mut self.tiers {
                tiers.keep_notes();
            }
        }
        self
    }

    /// The keys of the full blocks of any tokens. Changes nothing.
    ///
    /// # Errors
    ///
    /// For a scope that is private or not held, and for tokens as in a prompt.
    pub fn keys(&self, tokens: &[Token], scope: i32) -> Result<Vec<BlockKey>, LedgerError> {
        check_range("scope", 0, scope.into(), 0, i32::MAX.into())?;
        self.check_scope(0, scope)?;
        self.check_prompt(0, tokens)?;
        let mut key = self.root_key(scope);
        let blocks = tokens.chunks_exact(self.blocks.tokens_per_block());
        Ok(blocks
            .map(|tokens| {
                key = self.key_after(&key, tokens);
                key
            })
            .collect())
    }

    /// The keys of the published blocks of a sequence; those not asked for before are computed.
    ///
    /// # Errors
    ///
    /// [`LedgerError::StaleHandle`].
    pub fn block_keys(&mut self, handle: i64) -> Result<Vec<BlockKey>, LedgerError> {
        let row = self.open_row(0, handle)?;
        let (node, published) = {
            let seq = &self.sequences[row.at()];
            (seq.node, seq.published as usize)
        };
        if published == 0 {
            return Ok(Vec::new());
        }
        self.blocks.keep_keys();
        self.compute_keys(node);
        let mut keys = vec![[0; 32]; published];
        for id in self.tree.upwards(node) {
            let node = self.tree.node(id);
            for (key, &block) in keys[node.start as usize..].iter_mut().zip(node.blocks()) {
                *key = self.known_key(block);
            }
        }
        Ok(keys)
    }

    /// The events after number `after`, oldest first.
    ///
    /// # Errors
    ///
    /// [`LedgerError::EventsOff`]; [`LedgerError::EventsGone`] if some of them are not kept any more, or
    /// `after` is a number that was not given yet.
    pub fn events(&self, after: u64) -> Result<impl Iterator<Item = &Event>, LedgerError> {
        self.log()?.after(after)
    }

    /// The keys that events have announced on the host and on disk, in order.
    ///
    /// # Errors
    ///
    /// [`LedgerError::EventsOff`].
    pub fn keys_below(&self) -> Result<[Vec<BlockKey>; 2], LedgerError> {
        let log = self.log()?;
        Ok([log.keys(1), log.keys(2)])
    }

    /// The number of the newest event, and every cached full block, parents first.
    ///
    /// # Errors
    ///
    /// [`LedgerError::EventsOff`].
    pub fn event_snapshot(&self) -> Result<(u64, Vec<Stored>), LedgerError> {
        let last = self.log()?.last();
        let mut seen = HashSet::new();
        let mut runs = Vec::new();
        for id in self.tree.walk() {
            if self.tree.node(id).partial.is_none() {
                runs.extend(self.runs(id, 0, |key| seen.insert(*key)));
            }
        }
        Ok((last, runs))
    }

    fn log(&self) -> Result<&EventLog, LedgerError> {
        self.blocks.log.as_deref().ok_or(LedgerError::EventsOff)
    }

    /// Notes that the last `count` blocks of a node have just entered the tree.
    #[inline]
    pub(crate) fn note_entered(&mut self, id: NodeId, count: u32) {
        if self.blocks.keys.are_kept() {
            self.note_kept(id, count);
        }
    }

    fn note_kept(&mut self, id: NodeId, count: u32) {
        let node = self.tree.node(id);
        let from = (node.len() - count) as usize;
        self.blocks.keys.forget(&node.blocks()[from..]);
        if self.blocks.tier_keys.are_kept() {
            self.blocks.tier_keys.forget(&node.blocks()[from..]);
        }
        if node.partial.is_some() || (self.blocks.log.is_none() && self.tiers.is_none()) {
            return;
        }
        self.compute_keys(id);
        if self.tiers.is_some() {
            self.compute_tier_keys(id, from);
        }
        if let Some(mut log) = self.blocks.log.take() {
            let runs = self.runs(id, from, |key| log.enter(key));
            log.stored(runs);
            self.blocks.log = Some(log);
        }
    }

    /// Runs `drop` so that what leaves the tree meanwhile is logged as dropped.
    pub(crate) fn as_dropped(&mut self, drop: impl FnOnce(&mut Self)) {
        let reason = |ledger: &mut Self, reason| {
            if let Some(log) = &mut ledger.blocks.log {
                log.reason = reason;
            }
        };
        reason(self, Reason::Dropped);
        drop(self);
        reason(self, Reason::Evicted);
    }

    /// Notes that the tree is empty now.
    pub(crate) fn note_cleared(&mut self) {
        if self.config.reuse
            && let Some(log) = &mut self.blocks.log
        {
            log.clear(0);
            if let Some(tiers) = &self.tiers {
                for tier in tiers.tiers() {
                    log.clear(tier);
                }
            }
        }
    }

    /// Computes the keys of a node and of what is above it, as far as they are not known. Along a path
    /// the known ones come first: keys are computed in order, and blocks enter at the end.
    fn compute_keys(&mut self, id: NodeId) {
        let mut unknown: SmallVec<[NodeId; 8]> = SmallVec::new();
        for id in self.tree.upwards(id) {
            if let Some(&last) = self.tree.node(id).blocks().last()
                && self.blocks.keys.get(last).is_some()
            {
                break;
            }
            unknown.push(id);
        }
        for &id in unknown.iter().rev() {
            let node = self.tree.node(id);
            let known = node
                .blocks()
                .partition_point(|&block| self.blocks.keys.get(block).is_some());
            let mut key = None;
            for &block in &node.blocks()[known..] {
                let parent = key.unwrap_or_else(|| self.key_before(id, known));
                let next = self.key_after(&parent, self.blocks.tokens(block));
                self.blocks.keys.set(block, next);
                key = Some(next);
            }
        }
    }

    /// Computes the keys on lower tiers of the blocks of a node from `from` on, whose keys are known.
    fn compute_tier_keys(&mut self, id: NodeId, from: usize) {
        let node = self.tree.node(id);
        let size = self.blocks.tokens_per_block();
        for (at, &block) in node.blocks().iter().enumerate().skip(from) {
            let next = node.copy_text(&self.blocks, (at + 1) * size, self.tree.lookahead);
            let key = self.tier_key_of(&self.known_key(block), node.draft_valid, &next);
            self.blocks.tier_keys.set(block, key);
        }
    }

    /// The key on lower tiers of a block with this key and these D next tokens.
    pub(super) fn tier_key_of(
        &self,
        key: &BlockKey,
        draft_valid: bool,
        next: &[Token],
    ) -> BlockKey {
        if self.config.has_draft {
            key::tier_key(key, draft_valid, next, |token| self.media_of(token))
        } else {
            *key
        }
    }

    /// The key before block `at` of a node.
    fn key_before(&self, id: NodeId, at: usize) -> BlockKey {
        self.block_before(id, at).map_or_else(
            || self.root_key(self.tree.node(id).scope),
            |block| self.known_key(block),
        )
    }

    fn block_before(&self, id: NodeId, at: usize) -> Option<BlockId> {
        let node = self.tree.node(id);
        match at.checked_sub(1) {
            Some(before) => Some(node.blocks()[before]),
            None if node.is_root() => None,
            None => self.tree.node(node.parent).blocks().last().copied(),
        }
    }

    pub(super) fn known_key(&self, block: BlockId) -> BlockKey {
        self.blocks.keys.get(block).expect("it was computed")
    }

    pub(super) fn root_key(&self, scope: i32) -> BlockKey {
        let size = self.config.tokens_per_block;
        key::root_key(&self.identity.fingerprint, size, self.scope_of(scope))
    }

    pub(super) fn key_after(&self, parent: &BlockKey, tokens: &[Token]) -> BlockKey {
        key::block_key(parent, tokens, |token| self.media_of(token))
    }

    fn scope_of(&self, scope: i32) -> &Arc<Scope> {
        let scope = self.identity.scopes.get(scope.cast_unsigned());
        scope.expect("a scope in use has its number")
    }

    fn media_of(&self, token: Token) -> &Media {
        let number = media::number(token);
        let item = number.and_then(|number| self.identity.media.get(number));
        item.expect("media in use have their number")
    }

    /// The blocks of a node from `from` on whose keys are new, in runs of consecutive ones.
    fn runs(
        &self,
        id: NodeId,
        from: usize,
        mut is_new: impl FnMut(&BlockKey) -> bool,
    ) -> Vec<Stored> {
        let mut runs: Vec<Stored> = Vec::new();
        let node = self.tree.node(id);
        let mut goes_on = false;
        let mut parent = self
            .block_before(id, from)
            .map(|block| self.known_key(block));
        for &block in &node.blocks()[from..] {
            let key = self.known_key(block);
            let new = is_new(&key);
            if new {
                if !goes_on || runs.last().is_none_or(|run| run.keys.len() == KEYS_MAX) {
                    runs.push(Stored {
                        parent,
                        keys: Vec::new(),
                        tokens: Vec::new(),
                        scope: Arc::clone(self.scope_of(node.scope)),
                        media: Vec::new(),
                    });
                }
                let run = runs.last_mut().expect("one was just begun");
                self.extend_run(run, key, block);
            }
            goes_on = new;
            parent = Some(key);
        }
        runs
    }

    fn extend_run(&self, run: &mut Stored, key: BlockKey, block: BlockId) {
        run.keys.push(key);
        for &token in self.blocks.tokens(block) {
            if media::number(token).is_some() {
                let at = crate::ids::count(run.tokens.len());
                run.media.push((at, *self.media_of(token)));
                run.tokens.push(Token::MAX);
            } else {
                run.tokens.push(token);
            }
        }
    }

    /// Checks that known keys are right and that the log counts what the tree holds.
    pub(crate) fn check_keys(&self) {
        if !self.blocks.keys.are_kept() {
            return;
        }
        let mut keys: Vec<BlockKey> = Vec::new();
        for id in self.tree.walk() {
            let node = self.tree.node(id);
            for (at, &block) in node.blocks().iter().enumerate() {
                let Some(known) = self.blocks.keys.get(block) else {
                    let logged = self.blocks.log.is_some() && node.partial.is_none();
                    assert!(!logged, "every full block has a key while events are on");
                    continue;
                };
                assert!(node.partial.is_none(), "a partial block has no key");
                let parent = self.key_before(id, at);
                assert_eq!(known, self.key_after(&parent, self.blocks.tokens(block)));
                keys.push(known);
            }
        }
        let Some(log) = &self.blocks.log else {
            return;
        };
        keys.sort_unstable();
        let mut distinct = 0;
        for copies in keys.chunk_by(|a, b| a == b) {
            assert_eq!(log.copies(0, &copies[0]) as usize, copies.len());
            distinct += 1;
        }
        assert_eq!(log.keys_count(0), distinct, "the log counts what is gone");
    }
}

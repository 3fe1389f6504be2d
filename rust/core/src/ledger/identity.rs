//! Scopes and media of a ledger: interning, checking, and freeing what nothing uses.

use std::collections::BTreeSet;

use crate::error::LedgerError;
use crate::ids::{BlockId, Token};
use crate::interned::Interned;
use crate::ledger::prepare::tokens_in_range;
use crate::ledger::{Ledger, check_range};
use crate::media::{self, Media};
use crate::prefix::Store;
use crate::scope::Scope;

/// Pages for each number that is made before a search for unused ones: the search reads them all.
const PAGES_PER_NUMBER: usize = 256;

/// What the numbers in scopes and tokens stand for.
#[derive(Debug)]
pub(crate) struct Identity {
    pub scopes: Interned<Scope>,
    pub media: Interned<Media>,
    /// Sequences admitted before the trial that is open.
    trial_from: Option<u64>,
    /// What keys name besides: see [`Ledger::with_fingerprint`].
    pub fingerprint: Vec<u8>,
}

impl Identity {
    pub(crate) fn new(num_pages: &[u32]) -> Self {
        let pages = num_pages.iter().copied().min().unwrap_or(0) as usize;
        let mut scopes = Interned::new(pages / PAGES_PER_NUMBER);
        let plain = scopes.insert(Scope::default());
        scopes.hold(plain);
        // It is there from the start: nobody made it.
        scopes.sweep(|_| true);
        Self {
            scopes,
            media: Interned::new(pages / PAGES_PER_NUMBER),
            trial_from: None,
            fingerprint: Vec::new(),
        }
    }

    /// Whether any reference to media has been made that is still known.
    pub(super) fn has_media(&self) -> bool {
        self.media.iter().next().is_some()
    }

    /// Whether callers may use a token: an ordinary one, or a reference that is held.
    fn is_token(&self, token: Token) -> bool {
        media::number(token).is_none_or(|number| self.media.is_held(number))
    }
}

impl Ledger {
    /// Begins a trial: what is interned until its end, and not used then, leaves no trace.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Trial`] if one has begun.
    pub fn begin_trial(&mut self) -> Result<(), LedgerError> {
        if self.identity.trial_from.is_some() {
            return Err(LedgerError::Trial { open: true });
        }
        self.identity.trial_from = Some(self.counters.admitted);
        self.identity.scopes.begin_trial();
        self.identity.media.begin_trial();
        Ok(())
    }

    /// Ends a trial: see `docs/identity.md`.
    ///
    /// # Errors
    ///
    /// [`LedgerError::Trial`] if none has begun.
    pub fn end_trial(&mut self) -> Result<(), LedgerError> {
        let Some(admitted) = self.identity.trial_from.take() else {
            return Err(LedgerError::Trial { open: false });
        };
        let open = self.open_scopes();
        let (roots, quotas) = (&self.tree.roots, self.tree.quotas());
        let stays = self.identity.scopes.end_trial(|number| {
            let scope = number.cast_signed();
            let has_quota = quotas.iter().any(|&(of, _)| of == scope);
            open.contains(&scope) || roots.contains_key(&scope) || has_quota
        });
        if stays && self.identity.scopes.is_sweep_due() {
            self.sweep_scopes();
        }
        // A search would read every cached block: what may be used by a new sequence stays.
        let admits = self.counters.admitted > admitted;
        if self.identity.media.end_trial(|_| admits) && self.identity.media.is_sweep_due() {
            self.sweep_media();
        }
        Ok(())
    }

    fn sweep_media(&mut self) {
        let used = self.used_media();
        self.identity.media.sweep(|number| used.contains(&number));
    }

    /// The number of a scope; the caller holds it once more.
    pub fn intern_scope(&mut self, scope: Scope) -> u32 {
        let number = self.identity.scopes.find(&scope).unwrap_or_else(|| {
            if self.identity.scopes.is_sweep_due() {
                self.sweep_scopes();
            }
            self.identity.scopes.insert(scope)
        });
        if number > 0 {
            self.identity.scopes.hold(number);
        }
        number
    }

    /// Gives a hold on a scope back. What is cached stays reusable.
    ///
    /// # Errors
    ///
    /// [`LedgerError::UnknownScope`] for a number that nobody holds.
    pub fn release_scope(&mut self, scope: u32) -> Result<(), LedgerError> {
        self.check_number(scope)?;
        if scope > 0 {
            self.identity.scopes.release(scope);
        }
        Ok(())
    }

    /// Gives up every cached block of a scope and gives a hold on it back; without another one its
    /// number is free.
    ///
    /// # Errors
    ///
    /// [`LedgerError::UnknownScope`] for a number that nobody holds; [`LedgerError::SequencesOpen`] while
    /// sequences of the scope are open.
    pub fn drop_scope(&mut self, scope: u32) -> Result<(), LedgerError> {
        self.check_number(scope)?;
        let number = scope.cast_signed();
        let of_scope = |seq: &&crate::sequence::Sequence| seq.open && seq.scope == number;
        let open = self.sequences.iter().filter(of_scope).count();
        if open > 0 {
            return Err(LedgerError::SequencesOpen {
                call: "drop_scope",
                open,
            });
        }
        self.as_dropped(|ledger| ledger.drop_cached(number));
        if scope > 0 && !self.identity.scopes.release(scope) {
            self.identity.scopes.remove(scope);
            self.tree.set_quota(number, None, &self.steps);
        }
        Ok(())
    }

    fn check_number(&self, scope: u32) -> Result<(), LedgerError> {
        if self.identity.scopes.is_held(scope) {
            Ok(())
        } else {
            Err(LedgerError::UnknownScope {
                item: 0,
                scope: scope.into(),
            })
        }
    }

    /// Gives up the blocks below the root of a scope in which nothing is open.
    fn drop_cached(&mut self, scope: i32) {
        // Copies in flight read pages that are fenced then; their nodes go as well.
        self.drop_leases(scope);
        let copies = std::mem::take(&mut self.copies);
        for copy in copies {
            if self.tree.node(copy.node).scope == scope {
                self.tree.unpin(copy.node, &self.blocks, &self.steps);
                self.unpin_sides(&copy);
            } else {
                self.copies.push(copy);
            }
        }
        let mut store = Store {
            blocks: &mut self.blocks,
            pools: &mut self.pools,
            sides: &mut self.sides,
            tiers: None,
        };
        self.tree.drop_scope(scope, &mut store, &self.steps);
    }

    /// Checks the scope of one item: -1, or a number that is held.
    pub(crate) fn check_scope(&self, item: usize, scope: i32) -> Result<(), LedgerError> {
        check_range("scope", item, scope.into(), -1, i32::MAX.into())?;
        let Ok(number) = u32::try_from(scope) else {
            return Ok(());
        };
        if self.identity.scopes.is_held(number) {
            Ok(())
        } else {
            Err(LedgerError::UnknownScope {
                item,
                scope: scope.into(),
            })
        }
    }

    fn sweep_scopes(&mut self) {
        let open = self.open_scopes();
        let (roots, quotas) = (&self.tree.roots, self.tree.quotas());
        let has_quota = |scope| quotas.iter().any(|&(of, _)| of == scope);
        self.identity.scopes.sweep(|number| {
            let scope = number.cast_signed();
            open.contains(&scope) || roots.contains_key(&scope) || has_quota(scope)
        });
    }

    /// Scopes of open sequences.
    fn open_scopes(&self) -> BTreeSet<i32> {
        let open = self.sequences.iter().filter(|seq| seq.open);
        open.map(|seq| seq.scope).collect()
    }

    /// The token that refers to an item of media; the caller holds it once more.
    ///
    /// # Errors
    ///
    /// [`LedgerError::OutOfRange`] for a length of 0 or above 2^31 - 1.
    pub fn intern_media(&mut self, item: Media) -> Result<Token, LedgerError> {
        check_range("length", 0, item.length.into(), 1, i32::MAX.into())?;
        let number = self.identity.media.find(&item).unwrap_or_else(|| {
            if self.identity.media.is_sweep_due() {
                self.sweep_media();
            }
            self.identity.media.insert(item)
        });
        assert!(number <= media::LARGEST, "2^31 items of media are in use");
        self.identity.media.hold(number);
        self.blocks.track_media();
        Ok(media::reference(number))
    }

    /// Gives a hold on an item of media back. What is cached stays reusable.
    ///
    /// # Errors
    ///
    /// [`LedgerError::UnknownMedia`] for a token that refers to nothing, or to what nobody holds.
    pub fn release_media(&mut self, token: Token) -> Result<(), LedgerError> {
        match media::number(token) {
            Some(number) if self.identity.media.is_held(number) => {
                self.identity.media.release(number);
                Ok(())
            }
            _ => Err(LedgerError::UnknownMedia {
                reference: token.cast_signed().into(),
            }),
        }
    }

    /// Checks the tokens of one prompt: ordinary ones, and references that are held.
    #[inline]
    pub(crate) fn check_prompt(&self, item: usize, tokens: &[Token]) -> Result<(), LedgerError> {
        if tokens_in_range(tokens) {
            return Ok(());
        }
        let wrong = |&token: &Token| !self.identity.is_token(token);
        match tokens.iter().position(wrong) {
            None => Ok(()),
            Some(position) => Err(LedgerError::Token {
                item,
                position,
                value: tokens[position].cast_signed().into(),
            }),
        }
    }

    /// What later answers depend on, for the digest.
    pub(crate) fn identity_state(&self) -> impl std::fmt::Debug + '_ {
        let (scopes, media) = (&self.identity.scopes, &self.identity.media);
        (
            (scopes.iter().collect::<Vec<_>>(), scopes.sweep_state()),
            (media.iter().collect::<Vec<_>>(), media.sweep_state()),
            self.identity.trial_from,
        )
    }

    /// Checks that what is in use has a number.
    pub(crate) fn check_identity(&self) {
        let (scopes, media) = (&self.identity.scopes, &self.identity.media);
        scopes.validate();
        media.validate();
        let open = self.open_scopes();
        for &scope in self.tree.roots.keys().chain(&open) {
            let known = u32::try_from(scope).is_ok_and(|number| scopes.get(number).is_some());
            assert!(scope == -1 || known, "scope {scope} is in use");
        }
        let used = self.used_media();
        assert_eq!(used, self.media_in(|_| true), "a record was not noted");
        for number in used {
            assert!(media.get(number).is_some(), "media {number} is in use");
        }
    }

    /// Numbers of media in cached blocks and in sequences whose tokens are kept.
    fn used_media(&self) -> BTreeSet<u32> {
        self.media_in(|block| self.blocks.may_hold_media(block))
    }

    /// The same, read from the records that `may_hold` any.
    fn media_in(&self, may_hold: impl Fn(BlockId) -> bool) -> BTreeSet<u32> {
        let mut used = BTreeSet::new();
        let mut read = |tokens: &[Token]| {
            if !tokens_in_range(tokens) {
                used.extend(tokens.iter().copied().filter_map(media::number));
            }
        };
        for id in self.tree.walk() {
            let node = self.tree.node(id);
            for &block in node.blocks().iter().filter(|&&block| may_hold(block)) {
                let size = node
                    .partial
                    .map_or(self.blocks.tokens_per_block(), |part| part.tokens as usize);
                read(&self.blocks.tokens(block)[..size]);
            }
            read(&node.tip);
        }
        for seq in self.sequences.iter().filter(|seq| seq.open) {
            let size = self.blocks.tokens_per_block();
            let placed = seq.known as usize - seq.pending().len();
            let mut at = seq.published as usize * size;
            for &block in &seq.blocks {
                if may_hold(block) {
                    read(&self.blocks.tokens(block)[..placed.saturating_sub(at).min(size)]);
                }
                at += size;
            }
            read(seq.pending());
        }
        used
    }
}

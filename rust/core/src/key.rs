//! Keys: names of blocks that mean the same in every process.
//!
//! The record that is hashed is laid down in `docs/identity.md`. Decisions never rest on a key.

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::ids::{BlockId, TOKEN_LIMIT, Token};
use crate::media::Media;
use crate::scope::{AdapterId, Salt, Scope};

/// The SHA-256 digest of a block's record.
pub type BlockKey = [u8; 32];

/// The first byte of every record. Another layout gets another version.
const VERSION: u8 = 1;
/// What stands for a media reference among the tokens of a record.
const MEDIA: Token = Token::MAX;

/// The bytes of one record. Without media a block of 16 tokens takes 108.
struct Record(SmallVec<[u8; 256]>);

impl Record {
    fn new(kind: u8) -> Self {
        Self(SmallVec::from_slice(&[VERSION, kind]))
    }

    fn field(&mut self, tag: u8, value: &[u8]) {
        self.head(tag, value.len());
        self.0.extend_from_slice(value);
    }

    fn head(&mut self, tag: u8, len: usize) {
        let len = u32::try_from(len).expect("fields are shorter than 4 GiB");
        self.0.push(tag);
        self.0.extend_from_slice(&len.to_le_bytes());
    }

    /// Tokens, and the media that they refer to.
    fn tokens<'a>(&mut self, tokens: &[Token], media: impl Fn(Token) -> &'a Media) {
        self.head(b't', 4 * tokens.len());
        let mut references: SmallVec<[(u32, &Media); 2]> = SmallVec::new();
        for (position, &token) in tokens.iter().enumerate() {
            let mut shown = token;
            if token >= TOKEN_LIMIT {
                references.push((crate::ids::count(position), media(token)));
                shown = MEDIA;
            }
            self.0.extend_from_slice(&shown.to_le_bytes());
        }
        for (position, item) in references {
            self.head(b'm', 40);
            self.0.extend_from_slice(&position.to_le_bytes());
            self.0.extend_from_slice(&item.length.to_le_bytes());
            self.0.extend_from_slice(&item.digest);
        }
    }

    fn digest(&self) -> BlockKey {
        Sha256::digest(&self.0).into()
    }
}

/// What stands in place of the key before the first block of a scope.
pub(crate) fn root_key(fingerprint: &[u8], tokens_per_block: u32, scope: &Scope) -> BlockKey {
    let mut record = Record::new(b'R');
    record.field(b'f', fingerprint);
    record.field(b'b', &tokens_per_block.to_le_bytes());
    if let Some(adapter) = &scope.adapter {
        match &adapter.id {
            AdapterId::Number(number) => record.field(b'i', &number.to_le_bytes()),
            AdapterId::Name(name) => record.field(b'n', name.as_bytes()),
        }
        record.field(b'v', &adapter.version.to_le_bytes());
    }
    match &scope.salt {
        None => {}
        Some(Salt::Bytes(bytes)) => record.field(b's', bytes),
        Some(Salt::Text(text)) => record.field(b'S', text.as_bytes()),
    }
    record.digest()
}

/// The key of a block after the one with key `parent`. `media` knows every reference in `tokens`.
pub(crate) fn block_key<'a>(
    parent: &BlockKey,
    tokens: &[Token],
    media: impl Fn(Token) -> &'a Media,
) -> BlockKey {
    let mut record = Record::new(b'B');
    record.field(b'p', parent);
    record.tokens(tokens, media);
    record.digest()
}

/// The key of a block on lower tiers, in a ledger with a draft: `next` are the D tokens that follow it.
pub(crate) fn tier_key<'a>(
    block: &BlockKey,
    draft_valid: bool,
    next: &[Token],
    media: impl Fn(Token) -> &'a Media,
) -> BlockKey {
    let mut record = Record::new(b'T');
    record.field(b'k', block);
    record.field(b'd', &[u8::from(draft_valid)]);
    record.tokens(next, media);
    record.digest()
}

/// The keys of cached blocks that were asked for. Takes no memory until the first one is.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// By record. What is not `known` is left from another block.
    keys: Vec<BlockKey>,
    known: Vec<u64>,
}

impl Keys {
    /// Whether keys are kept.
    #[inline]
    pub(crate) fn are_kept(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Keeps keys from now on.
    pub(crate) fn keep(&mut self, records: u32) {
        if self.keys.is_empty() {
            self.keys = vec![[0; 32]; records as usize];
            self.known = vec![0; (records as usize).div_ceil(64)];
        }
    }

    /// Makes room for the keys of more records, if keys are kept.
    pub(crate) fn grow(&mut self, records: u32) {
        if self.are_kept() {
            self.keys.resize(records as usize, [0; 32]);
            self.known.resize((records as usize).div_ceil(64), 0);
        }
    }

    pub(crate) fn get(&self, block: BlockId) -> Option<BlockKey> {
        let known = self.known[block.at() / 64] >> (block.at() % 64) & 1 == 1;
        known.then(|| self.keys[block.at()])
    }

    pub(crate) fn set(&mut self, block: BlockId, key: BlockKey) {
        self.known[block.at() / 64] |= 1 << (block.at() % 64);
        self.keys[block.at()] = key;
    }

    /// Forgets the keys of records that hold other blocks now.
    pub(crate) fn forget(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.known[block.at() / 64] &= !(1 << (block.at() % 64));
        }
    }
}

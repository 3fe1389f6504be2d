//! What a ledger is built from.

use crate::error::LedgerError;
use crate::prefix::EvictionPolicy;
use crate::window::Lifetime;

/// Sizes and rules of a ledger; all of them come from one plan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of one plan"
)]
pub struct LedgerConfig {
    /// Tokens per block.
    pub tokens_per_block: u32,
    /// Pages per class, the reserved page 0 included.
    pub num_pages: Vec<u32>,
    /// Pages per class on the host; empty: no such tier.
    pub host_pages: Vec<u32>,
    /// The same on disk.
    pub disk_pages: Vec<u32>,
    /// How long each class keeps a token, resolved by the plan ([`Lifetime::resolved`]).
    pub lifetimes: Vec<Lifetime>,
    /// Most tokens that a sequence runs in one step, which bounds what admission counts for a window; 0:
    /// no bound known.
    pub max_step_tokens: u32,
    /// Block records of a ledger that publishes and has no full class, whose pages would bound them.
    pub num_blocks: Option<u32>,
    /// A state is copied into the tree at histories that are multiples of so many tokens; 0: never.
    pub snapshot_interval: u32,
    /// Rows: sequences that can be open at once.
    pub max_sequences: u32,
    /// Largest length of a sequence, in tokens.
    pub max_seq_len: u32,
    /// Whether sequences may carry draft KV.
    pub has_draft: bool,
    /// Room kept beyond what is written, in tokens.
    pub extra_tokens: u32,
    /// Most draft tokens that one step runs beyond one token.
    pub reserve_tokens: u32,
    /// D: later tokens that draft KV at a position depends on.
    pub lookahead: u32,
    /// Whether blocks are published and matched.
    pub reuse: bool,
    /// Whether a hit may end inside a block.
    pub partial_reuse: bool,
    /// Whether later work is ordered after earlier work, so that pages need no fence.
    pub same_stream: bool,
    /// Blocks per class that admissions leave to the growth of open sequences.
    pub watermark_blocks: u32,
    /// Milliseconds without use after which cached blocks are given up; 0: never.
    pub ttl_ms: u32,
    /// Most blocks that leases may protect together.
    pub max_leased_blocks: u32,
    /// In which order cached blocks are evicted.
    pub policy: EvictionPolicy,
}

/// The largest count, length or index: what an `int32` table can hold.
const LIMIT: u32 = i32::MAX as u32;

impl LedgerConfig {
    /// Blocks that a row can hold: room for `max_seq_len`, the extra tokens, the reserve and one token,
    /// or for the tokens of an encoder, rounded up to a multiple of four entries (16 bytes), as kernels
    /// read rows.
    #[must_use]
    pub fn row_width(&self) -> u32 {
        let encoder = self.lifetimes.iter().filter_map(|lifetime| match lifetime {
            Lifetime::First { tokens } => u32::try_from(*tokens).ok(),
            _ => None,
        });
        encoder
            .max()
            .unwrap_or(0)
            .max(self.row_tokens())
            .div_ceil(self.tokens_per_block)
            .next_multiple_of(4)
    }

    /// Block records: every block that is published or will be has one.
    ///
    /// A block has a page in every full class, so there are never more blocks than the fewest such pages.
    pub(crate) fn records(&self) -> u32 {
        if !self.reuse {
            return 0;
        }
        let classes = self.num_pages.iter().zip(&self.lifetimes);
        let full = classes.filter(|&(_, &lifetime)| lifetime == Lifetime::Full);
        let pages = full.map(|(&pages, _)| pages - 1).min();
        pages.or(self.num_blocks).unwrap_or(0)
    }

    /// The largest capacity of a sequence, in tokens.
    #[must_use]
    pub fn row_tokens(&self) -> u32 {
        self.max_seq_len + self.extra_tokens + self.reserve_tokens + 1
    }

    pub(crate) fn check(&self) -> Result<(), LedgerError> {
        let check = |argument, value: u32, min: u32, supported| {
            if (min..=LIMIT).contains(&value) {
                Ok(())
            } else {
                Err(LedgerError::Config {
                    argument,
                    value: value.into(),
                    supported,
                })
            }
        };
        check(
            "tokens_per_block",
            self.tokens_per_block,
            1,
            "in 1..=2147483647",
        )?;
        check("max_sequences", self.max_sequences, 1, "in 1..=2147483647")?;
        check("max_seq_len", self.max_seq_len, 1, "in 1..=2147483647")?;
        check(
            "watermark_blocks",
            self.watermark_blocks,
            0,
            "in 0..=2147483647",
        )?;
        if self.num_pages.is_empty() {
            return Err(LedgerError::Config {
                argument: "len(num_pages)",
                value: 0,
                supported: "at least one class",
            });
        }
        for &pages in &self.num_pages {
            check(
                "num_pages",
                pages,
                2,
                "in 2..=2147483647: page 0 is reserved",
            )?;
        }
        self.check_classes()?;
        self.check_tiers()?;
        let row_tokens = u64::from(self.max_seq_len)
            + u64::from(self.extra_tokens)
            + u64::from(self.reserve_tokens)
            + 1;
        if row_tokens > u64::from(LIMIT) {
            return Err(LedgerError::Config {
                argument: "max_seq_len + extra_tokens + reserve_tokens + 1",
                value: row_tokens.into(),
                supported: "at most 2147483647",
            });
        }
        if self.lookahead > self.max_seq_len {
            return Err(LedgerError::Config {
                argument: "lookahead",
                value: self.lookahead.into(),
                supported: "at most max_seq_len",
            });
        }
        if !self.has_draft && self.lookahead > 0 {
            return Err(LedgerError::Config {
                argument: "lookahead",
                value: self.lookahead.into(),
                supported: "0 without a draft: only draft KV depends on later tokens",
            });
        }
        Ok(())
    }

    /// Whether there is a tier below the device.
    pub(crate) fn has_tiers(&self) -> bool {
        !(self.host_pages.is_empty() && self.disk_pages.is_empty())
    }

    /// Checks what belongs to lower tiers.
    fn check_tiers(&self) -> Result<(), LedgerError> {
        let refuse = |argument, value: i128, supported| {
            Err(LedgerError::Config {
                argument,
                value,
                supported,
            })
        };
        for (argument, pages) in [
            ("host_pages", &self.host_pages),
            ("disk_pages", &self.disk_pages),
        ] {
            if pages.is_empty() {
                continue;
            }
            if pages.len() != self.num_pages.len() {
                let given = i128::try_from(pages.len()).unwrap_or(i128::MAX);
                return refuse(
                    argument,
                    given,
                    "as long as num_pages, one per class, or absent",
                );
            }
            if let Some(&large) = pages.iter().find(|&&pages| pages > LIMIT) {
                return refuse(argument, large.into(), "at most 2147483647");
            }
        }
        if self.has_tiers() && !self.reuse {
            return refuse(
                "host_pages",
                0,
                "absent, as disk_pages, in a ledger without reuse",
            );
        }
        Ok(())
    }

    /// Checks what belongs to lifetimes.
    fn check_classes(&self) -> Result<(), LedgerError> {
        let refuse = |argument, value: i128, supported| {
            Err(LedgerError::Config {
                argument,
                value,
                supported,
            })
        };
        if self.lifetimes.len() != self.num_pages.len() {
            let given = i128::try_from(self.lifetimes.len()).unwrap_or(i128::MAX);
            return refuse("len(lifetimes)", given, "len(num_pages): one per class");
        }
        let has = |wanted: fn(&Lifetime) -> bool| self.lifetimes.iter().any(wanted);
        let needs_blocks = self.reuse && !has(|&lifetime| lifetime == Lifetime::Full);
        match (needs_blocks, self.num_blocks) {
            (true, None | Some(0)) => refuse(
                "num_blocks",
                0,
                "at least 1 in a ledger that publishes and has no full class",
            ),
            (false, Some(blocks)) => refuse(
                "num_blocks",
                blocks.into(),
                "None in a ledger with a full class or without reuse: its pages bound the blocks",
            ),
            (_, Some(blocks)) if blocks > LIMIT => {
                refuse("num_blocks", blocks.into(), "at most 2147483647")
            }
            _ if self.max_step_tokens > LIMIT => refuse(
                "max_step_tokens",
                self.max_step_tokens.into(),
                "at most 2147483647",
            ),
            _ if !self.snapshot_interval.is_multiple_of(self.tokens_per_block) => refuse(
                "snapshot_interval",
                self.snapshot_interval.into(),
                "a multiple of tokens_per_block: snapshots are taken at the ends of blocks",
            ),
            _ => Ok(()),
        }
    }
}

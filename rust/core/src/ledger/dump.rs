//! The state of a ledger, readable: for tests, and for the digest.

use crate::ids::{Handle, NodeId, PageIndex, Row, Token};
use crate::ledger::Ledger;
use crate::side::{Side, SideDump};

/// A node of the prefix tree, as [`Ledger::dump`] shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDump {
    /// Its id.
    pub id: u32,
    /// The id of its parent; `None` for the root of a scope.
    pub parent: Option<u32>,
    /// The scope.
    pub scope: i32,
    /// Ordinal of its first block.
    pub start: u32,
    /// Tokens of each block.
    pub tokens: Vec<Vec<Token>>,
    /// Tokens after the last block.
    pub tip: Vec<Token>,
    /// Valid tokens of a partial block.
    pub covered: Option<u32>,
    /// Whether the draft's KV is valid.
    pub draft_valid: bool,
    /// Sequences and copies that stand on its end.
    pub pins: u32,
    /// Children that something stands on or below.
    pub active_children: u32,
    /// Tick at which it became unprotected.
    pub last_use: u64,
    /// Newest step at that moment.
    pub stamp: u64,
    /// Uses that the policy counted.
    pub uses: u32,
    /// Its rank among leaves, by the policy.
    pub rank: u64,
    /// Its priority: lower ones go first.
    pub priority: u8,
    /// When the priority falls back to the default, infinite if never.
    pub until: f64,
    /// Pages per class, one per block; 0 where a block has none.
    pub pages: Vec<Vec<u32>>,
}

/// An open sequence, as [`Ledger::dump`] shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceDump {
    /// Its handle.
    pub handle: i64,
    /// Whether it is suspended.
    pub suspended: bool,
    /// Its scope.
    pub scope: i32,
    /// First position with draft KV, -1 without a draft.
    pub draft_from: i32,
    /// Largest length it may reach.
    pub max_total: u32,
    /// Tokens given.
    pub known: u32,
    /// Ends of the valid KV of target and draft.
    pub valid: [u32; 2],
    /// The larger end.
    pub reach: u32,
    /// The smaller end of the roles it uses.
    pub history: u32,
    /// Tokens published.
    pub committed: u32,
    /// Tokens that have room.
    pub capacity: u32,
    /// Prompt blocks not taken yet.
    pub promise: u32,
    /// Blocks it has.
    pub blocks: u32,
    /// Steps grown and not advanced, with their widths.
    pub outstanding: Vec<(u64, u32)>,
    /// The node it stands on; `None` if its tokens are not kept.
    pub node: Option<u32>,
    /// Pages per class.
    pub pages: Vec<Vec<u32>>,
}

/// The state of a ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Dump {
    /// Free pages per class, the next one last.
    pub free: Vec<Vec<u32>>,
    /// Fenced pages per class with their stamps, oldest first.
    pub fenced: Vec<Vec<(u32, u64)>>,
    /// Side pages per class: those in the queue, in order, then the pinned ones.
    pub side: Vec<Vec<SideDump>>,
    /// Nodes, parents first.
    pub nodes: Vec<NodeDump>,
    /// Open sequences by row.
    pub sequences: Vec<SequenceDump>,
}

fn numbers(pages: &[PageIndex]) -> Vec<u32> {
    pages.iter().map(|page| page.get()).collect()
}

impl Ledger {
    /// The state, readable.
    #[must_use]
    pub fn dump(&self) -> Dump {
        let places = self.classes.places().iter();
        let pools = || places.clone().map(|&place| &self.pools[place]);
        Dump {
            free: pools().map(|pool| numbers(pool.free_list())).collect(),
            fenced: pools()
                .map(|pool| {
                    pool.fenced()
                        .map(|(stamp, page)| (page.get(), stamp))
                        .collect()
                })
                .collect(),
            side: places
                .clone()
                .map(|&place| self.sides.get(place).map(Side::dump).unwrap_or_default())
                .collect(),
            nodes: self
                .tree
                .walk()
                .into_iter()
                .map(|id| self.dump_node(id))
                .collect(),
            sequences: self
                .open_rows()
                .map(|row| self.dump_sequence(row))
                .collect(),
        }
    }

    /// The lengths and pages of one open sequence.
    ///
    /// # Errors
    ///
    /// [`crate::LedgerError::StaleHandle`].
    pub fn sequence(&self, handle: i64) -> Result<SequenceDump, crate::LedgerError> {
        Ok(self.dump_sequence(self.any_row(0, handle)?))
    }

    pub(super) fn open_rows(&self) -> impl Iterator<Item = Row> + '_ {
        (0..self.config.max_sequences)
            .map(Row::new)
            .filter(|row| self.sequences[row.at()].open)
    }

    pub(super) fn dump_node(&self, id: NodeId) -> NodeDump {
        let full = self.classes.full();
        let node = self.tree.node(id);
        let tokens = node.blocks().iter().map(|&block| {
            let tokens = self.blocks.tokens(block);
            tokens[..node
                .partial
                .map_or(tokens.len(), |partial| partial.tokens as usize)]
                .to_vec()
        });
        NodeDump {
            id: id.get(),
            parent: (!node.is_root()).then_some(node.parent.get()),
            scope: node.scope,
            start: node.start,
            tokens: tokens.collect(),
            tip: node.tip.to_vec(),
            covered: node.partial.map(|partial| partial.covered),
            draft_valid: node.draft_valid,
            pins: node.pins,
            active_children: node.active_children,
            last_use: node.last_use,
            stamp: node.stamp,
            uses: node.usage.uses,
            rank: node.usage.rank,
            priority: node.retention.priority,
            until: node.retention.until,
            pages: (self.classes.places().iter())
                .map(|&place| match self.sides.get(place) {
                    Some(side) => node
                        .blocks()
                        .iter()
                        .map(|&id| side.page(id).get())
                        .collect(),
                    None if place < full => {
                        let pages = node.pages(full).iter().skip(place).step_by(full);
                        pages.map(|page| page.get()).collect()
                    }
                    None => vec![0; node.len() as usize],
                })
                .collect(),
        }
    }

    pub(super) fn dump_sequence(&self, row: Row) -> SequenceDump {
        let size = self.config.tokens_per_block;
        let seq = &self.sequences[row.at()];
        let blocks = seq.held;
        SequenceDump {
            handle: Handle {
                generation: seq.generation,
                row,
            }
            .to_i64(),
            suspended: seq.suspended,
            scope: seq.scope,
            draft_from: seq.draft_from,
            max_total: seq.max_total,
            known: seq.known,
            valid: seq.valid,
            reach: seq.reach(),
            history: seq.history(),
            committed: seq.published * size,
            capacity: blocks * size,
            promise: seq.promise(),
            blocks,
            outstanding: seq.widths.iter().collect(),
            node: (!seq.node.is_none()).then_some(seq.node.get()),
            pages: (self.classes.places().iter())
                .map(|&place| numbers(self.pages_of(row, place)))
                .collect(),
        }
    }
}

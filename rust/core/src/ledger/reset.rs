//! Forgetting all that could be reused, also under open sequences.

use crate::error::LedgerError;
use crate::ids::{NodeId, PAGE_ZERO, Row};
use crate::ledger::Ledger;
use crate::prefix::Tree;

impl Ledger {
    /// Gives up every cached block. With `detach_live`, open sequences keep their pages, which are theirs
    /// alone from then on, and publish nothing any more; suspended ones have none and stay as they are.
    ///
    /// # Errors
    ///
    /// [`LedgerError::SequencesOpen`] while sequences are open, without `detach_live`.
    pub fn reset_reuse_state(&mut self, detach_live: bool) -> Result<(), LedgerError> {
        let open = self.open_sequences();
        if open > 0 && !detach_live {
            return Err(LedgerError::SequencesOpen {
                call: "reset_reuse_state",
                open: open as usize,
            });
        }
        // Copies in flight use pages that are fenced then, or live; their nodes go.
        for copy in std::mem::take(&mut self.copies) {
            self.unpin_sides(&copy);
        }
        for row in (0..self.config.max_sequences).map(Row::new) {
            if !self.sequences[row.at()].node.is_none() {
                self.detach(row);
            }
        }
        self.give_up_tree();
        if let Some(tiers) = &mut self.tiers {
            tiers.clear();
        }
        self.leases.clear();
        let quotas = self.tree.quotas();
        let (tick, growth) = (self.tree.tick, self.tree.growth);
        let policy = self
            .config
            .policy
            .build(self.blocks.records(), self.config.records());
        let (full, ttl_ms) = (self.classes.full(), self.config.ttl_ms);
        self.tree = Tree::new(full, self.config.lookahead, policy, ttl_ms);
        (self.tree.tick, self.tree.growth) = (tick, growth);
        for (scope, quota) in quotas {
            self.tree.set_quota(scope, Some(quota), &self.steps);
        }
        self.note_cleared();
        Ok(())
    }

    /// Makes a sequence one that does not publish. Until the tree gives its pages up, both own them.
    fn detach(&mut self, row: Row) {
        let first = row.at() * self.pools.len();
        let full = self.classes.full();
        let published = self.sequences[row.at()].published as usize;
        for (place, pool) in self.pools[..full].iter_mut().enumerate() {
            pool.share(&self.tables[first + place].pages[..published]);
        }
        for place in full..self.classes.columns() {
            let held = self.tables[first + place].pages[..published].iter();
            for &page in held.filter(|&&page| page != PAGE_ZERO) {
                // The first of several to hold it takes it out of the tree.
                if !self.sides.at_mut(place).detach(page) {
                    self.pools[place].share(&[page]);
                }
            }
        }
        let seq = &mut self.sequences[row.at()];
        self.promised -= u64::from(seq.promise());
        seq.counts_blocks = full > 0;
        self.promised += u64::from(seq.promise());
        seq.published = 0;
        seq.node = NodeId::NONE;
        seq.scope = -1;
        seq.keeps_tokens = false;
        seq.entered = 0;
        seq.hints.clear();
        seq.pending.clear();
        seq.pending_head = 0;
        self.blocks.give_back(seq.blocks.drain(..));
    }

    /// Gives up the pages of all nodes that no sequence has.
    fn give_up_tree(&mut self) {
        let full = self.classes.full();
        // Blocks whose fence has passed first, so that fenced pages keep the order of their stamps.
        for id in self.tree.walk() {
            let node = self.tree.node(id);
            let stamp = if self.steps.passed(node.stamp) && !node.is_active() {
                0
            } else {
                self.steps.stamp()
            };
            let blocks = node.blocks();
            self.sides.drop_blocks(blocks, &mut self.pools, &self.steps);
            for (at, &block) in blocks.iter().enumerate() {
                self.blocks.give_back(std::iter::once(block));
                for (class, pool) in self.pools[..full].iter_mut().enumerate() {
                    let page = node.pages(full)[at * full + class];
                    pool.give_back(std::iter::once(page), stamp, &self.steps);
                }
            }
        }
    }
}

//! New sequences on their first step: what they share, what they take, what is copied.

use crate::ids::{NodeId, PAGE_ZERO, Row};
use crate::ledger::admit::{Demand, Item};
use crate::ledger::prepare::Prepared;
use crate::ledger::sides::{PendingCopy, SidePage};
use crate::ledger::{Ledger, Move};
use crate::prefix::Found;
use crate::sequence::{DRAFT, TARGET};

impl Ledger {
    pub(super) fn admit_act(
        &mut self,
        step: u64,
        item: &Item<'_>,
        ready: &Prepared,
        demand: &Demand,
    ) -> Row {
        let row = Row::new(
            self.free_rows
                .pop()
                .expect("a row was checked to be free")
                .0,
        );
        let seq = &mut self.sequences[row.at()];
        seq.generation += 1;
        seq.open = true;
        self.start(row, step, item, ready, demand, false);
        self.counters.admitted += 1;
        self.counters.prompt_tokens += u64::from(item.len);
        // What is loaded counts when it has arrived.
        self.counters.hit_tokens += u64::from(self.hit_on_device(demand));
        if demand.hit > 0 && self.config.has_draft && item.draft_from < 0 {
            self.counters.target_only_hits += 1;
        }
        row
    }

    /// Tokens of a hit that are on the device.
    pub(super) fn hit_on_device(&self, demand: &Demand) -> u32 {
        demand.hit - demand.cold * self.config.tokens_per_block
    }

    /// Starts the sequence of a row on its first step: what it shares, what it takes, what is copied.
    pub(super) fn start(
        &mut self,
        row: Row,
        step: u64,
        item: &Item<'_>,
        ready: &Prepared,
        demand: &Demand,
        resumed: bool,
    ) {
        let hit = self.hit_on_device(demand);
        let seq = &mut self.sequences[row.at()];
        seq.scope = item.scope;
        seq.draft_from = item.draft_from;
        seq.max_total = item.max_total;
        seq.known = item.len;
        seq.valid[TARGET] = hit;
        seq.valid[DRAFT] = if item.draft_from >= 0 { hit } else { 0 };
        seq.prompt_blocks = demand.shared + demand.whole;
        seq.held = demand.shared;
        seq.published = demand.shared;
        seq.node = NodeId::NONE;
        let keeps_tokens = self.config.reuse && item.scope >= 0;
        seq.keeps_tokens = keeps_tokens;
        seq.counts_blocks = keeps_tokens || self.classes.full() > 0;
        if demand.cold == 0 {
            seq.widths.push(step, demand.width);
            seq.outstanding = demand.width;
        }
        // What is taken now comes off at once, in `take`.
        self.promised += u64::from(seq.promise());

        let mut source = NodeId::NONE;
        if keeps_tokens {
            source = self.stand_on(row, step, ready.found, demand);
        }
        // What is evicted for the new blocks must not take the place of what they are loaded from.
        self.claim_below(std::iter::once(&ready.below), true);
        self.stand_on_sides(row, &demand.side, demand.hit, demand.shared);
        let (left, evicted) = (self.blocks.free_count(), self.counters.evicted_blocks);
        self.take_with_own(row, demand);
        if !source.is_none() {
            self.queue_copy(row, step, source, demand);
        }
        if keeps_tokens {
            let stored = ready.is_in(demand.shared, left, demand.need)
                && self.counters.evicted_blocks == evicted;
            self.store_prompt(row, item, stored);
        }
        self.claim_below(std::iter::once(&ready.below), false);
        if demand.cold > 0 {
            self.start_load(row, demand, &ready.below, resumed);
        }
    }

    /// Protects the shared path and the source of the copy, and puts the shared pages into the row.
    fn stand_on(&mut self, row: Row, step: u64, found: Found, demand: &Demand) -> NodeId {
        let scope = self.sequences[row.at()].scope;
        let node = match demand.shared.checked_sub(1) {
            None => self.tree.root(scope),
            Some(last) => {
                let holder = self.tree.holder(found.tail, last);
                self.split_after(holder, demand.shared)
            }
        };
        self.tree.pin(node, &self.steps);
        self.tree.count_use(node);
        self.sequences[row.at()].node = node;
        let mut source = NodeId::NONE;
        if demand.source {
            let holder = self.tree.holder(found.tail, demand.shared);
            source = self.split_after(holder, demand.shared + 1);
        } else if demand.hit > 0 && demand.cold == 0 && !self.classes.states().is_empty() {
            source = node;
        }
        if !source.is_none() {
            self.tree.pin(source, &self.steps);
            if demand.source {
                self.tree.count_use_of(source);
            }
            // What is not a window of a shared block is read by the copy.
            let copied = |side: &&SidePage| {
                side.ordinal >= demand.shared || side.place >= self.classes.columns()
            };
            let sides = demand.side.iter().filter(copied);
            self.copies.push(PendingCopy {
                step,
                node: source,
                sides: sides.map(|side| (side.place, side.page)).collect(),
            });
        }
        self.share_pages(row, node, demand.shared + demand.need);
        self.touch(row, 0, demand.shared);
        source
    }

    /// The node that ends before ordinal `end`, split off if its run goes on.
    pub(crate) fn split_after(&mut self, holder: NodeId, end: u32) -> NodeId {
        let node = self.tree.node(holder);
        if node.end() == end {
            return holder;
        }
        let at = end - node.start;
        self.tree.split(holder, at, &self.blocks)
    }

    fn share_pages(&mut self, row: Row, node: NodeId, total: u32) {
        let classes = self.classes.full();
        let shared = self.tree.node(node).end() as usize;
        for class in 0..classes {
            let pages = &mut self.tables[row.at() * self.pools.len() + class].pages;
            pages.reserve(total as usize);
            pages.resize(shared, PAGE_ZERO);
            for id in self.tree.upwards(node) {
                let run = self.tree.node(id);
                let out = &mut pages[run.start as usize..run.end() as usize];
                let from = run.pages(classes);
                if classes == 1 {
                    out.copy_from_slice(from);
                } else {
                    for (out, page) in out.iter_mut().zip(from.iter().skip(class).step_by(classes))
                    {
                        *out = *page;
                    }
                }
            }
        }
    }

    fn queue_copy(&mut self, row: Row, step: u64, source: NodeId, demand: &Demand) {
        let full = self.classes.full();
        let tokens = demand.hit % self.config.tokens_per_block;
        self.steps.fence_copies(step);
        for &place in self.classes.places() {
            let states = self.classes.states().contains(&place);
            let (source, column, tokens) = if place < full && demand.source {
                (
                    self.tree.node(source).pages(full)[place],
                    demand.shared,
                    tokens,
                )
            } else if let Some(side) = (demand.side.iter())
                .find(|side| side.place == place && (states || side.ordinal == demand.shared))
            {
                if states {
                    (side.page, 0, 1)
                } else {
                    (side.page, demand.shared, tokens)
                }
            } else {
                continue;
            };
            self.moves.push(Move {
                step,
                class: self.classes.class(place),
                source,
                destination: self.pages_of(row, place)[column as usize],
                tokens,
            });
        }
        self.counters.copied_blocks += u64::from(tokens != 0);
    }
}

//! Validation and digest: white-box views for tests and for ranks that must agree.

use std::collections::BTreeMap;

use crate::ids::{BlockId, Handle, NodeId, PageIndex, Row};
use crate::ledger::{Dump, Ledger};

impl Ledger {
    /// A digest of everything that later decisions depend on, recency included. Counters and room in
    /// buffers are left out.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        // The dump's derived form is one record of named, typed, length-delimited fields.
        hasher.update(format!("{:?}", self.dump()).as_bytes());
        let rest = (
            (
                self.steps.newest(),
                self.steps.open(),
                self.steps.now().to_bits(),
                self.steps.copies(),
                self.tree.tick,
                self.tree.growth,
                self.tree.ages(),
                self.tree.policy_state(),
            ),
            (
                self.blocks.free_list(),
                self.tree.nodes.free_list(),
                &self.copies,
                &self.leases,
                &self.moves,
                &self.loads,
                self.newest_load,
                self.tiers.as_ref().map(|tiers| tiers.state()),
            ),
            self.sequences
                .iter()
                .map(|seq| (seq.generation, seq.pending(), &seq.hints))
                .collect::<Vec<_>>(),
            self.open_rows()
                .map(|row| self.sequences[row.at()].blocks.as_slice())
                .map(|blocks| {
                    blocks
                        .iter()
                        .map(|&id| self.blocks.tokens(id))
                        .collect::<Vec<_>>()
                })
                .collect::<Vec<_>>(),
            self.tables
                .iter()
                .map(|row| (row.shown(), row.dirty()))
                .collect::<Vec<_>>(),
            (
                self.promised,
                &self.windows,
                self.tree.evictable(),
                self.tree.waiting_total(),
                self.tree.quotas(),
            ),
            self.identity_state(),
        );
        hasher.update(format!("{rest:?}").as_bytes());
        *hasher.finalize().as_bytes()
    }

    /// Checks every invariant.
    ///
    /// # Panics
    ///
    /// If one is broken: a defect of the ledger.
    pub fn validate(&self) {
        let dump = self.dump();
        self.check_pages(&dump);
        self.check_records();
        self.check_tree();
        self.check_sequences(&dump);
        self.check_sides();
        self.check_identity();
        self.check_keys();
        if let Some(tiers) = &self.tiers {
            tiers.validate();
        }
        for row in self.open_rows() {
            let seq = &self.sequences[row.at()];
            let load = self.loads.get(&seq.loading);
            assert_eq!(load.is_some(), seq.loading > 0, "a load has its sequence");
            let none = seq.outstanding == 0 && !seq.suspended;
            assert!(load.is_none_or(|load| load.is_of(row) && none));
        }
    }

    fn check_pages(&self, dump: &Dump) {
        for (class, &place) in self.classes.places().iter().enumerate() {
            let pool = &self.pools[place];
            let mut owner: BTreeMap<u32, String> = BTreeMap::new();
            let mut own = |page: u32, who: String| {
                assert!(page > 0 && page < pool.num_pages(), "page {page} of {who}");
                if let Some(other) = owner.insert(page, who.clone()) {
                    panic!("page {page} of class {class} is owned by {other} and {who}");
                }
            };
            dump.free[class]
                .iter()
                .for_each(|&page| own(page, "free".into()));
            dump.fenced[class]
                .iter()
                .for_each(|&(page, _)| own(page, "fenced".into()));
            for node in &dump.nodes {
                (node.pages[class].iter().filter(|&&page| page != 0))
                    .for_each(|&page| own(page, format!("node {}", node.id)));
            }
            for (page, handles) in self.live_pages(dump, class) {
                let others = pool.shares_of(PageIndex::new(page)) as usize;
                assert_eq!(handles.len(), others + 1, "owners of page {page}");
                own(page, format!("sequences {handles:?}"));
            }
            assert_eq!(
                owner.len() + 1,
                pool.num_pages() as usize,
                "pages of class {class}"
            );
            let stats = self.stats().classes[class];
            let sum = stats.free + stats.fenced + stats.live + stats.cached + stats.reserved;
            assert_eq!(sum, stats.total);
            let stamps: Vec<u64> = pool.fenced().map(|(stamp, _)| stamp).collect();
            assert!(stamps.is_sorted(), "fenced pages are ordered by stamp");
            assert!(
                stamps.iter().all(|&stamp| !self.steps.passed(stamp)),
                "a passed fence holds pages"
            );
        }
    }

    /// The pages of a class that sequences own, with their owners.
    fn live_pages(&self, dump: &Dump, class: usize) -> BTreeMap<u32, Vec<i64>> {
        let mut owners: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
        for seq in &dump.sequences {
            let place = self.classes.place(class);
            let shared = if place < self.classes.columns() {
                (seq.committed / self.config.tokens_per_block) as usize
            } else {
                0
            };
            let own = seq.pages[class][shared..].iter();
            for &page in own.filter(|&&page| page != 0) {
                owners.entry(page).or_default().push(seq.handle);
            }
        }
        for (&load, found) in &self.loads {
            let orphans = found.orphans().iter();
            for &(_, page) in orphans.filter(|&&(place, _)| place == self.classes.place(class)) {
                let nobody = i64::try_from(load).expect("few loads");
                owners.entry(page.get()).or_default().push(-nobody);
            }
        }
        let beyond = owners.values().map(|handles| handles.len() as u64 - 1);
        let pool = &self.pools[self.classes.place(class)];
        assert_eq!(beyond.sum::<u64>(), pool.shared());
        owners
    }

    fn check_records(&self) {
        let mut records: Vec<BlockId> = self.blocks.free_list().to_vec();
        for id in self.tree.walk() {
            records.extend_from_slice(self.tree.node(id).blocks());
        }
        for row in self.open_rows() {
            records.extend_from_slice(&self.sequences[row.at()].blocks);
        }
        records.sort_unstable();
        let all: Vec<BlockId> = (0..self.blocks.records()).map(BlockId::new).collect();
        assert_eq!(
            records, all,
            "every record is free, cached or of one sequence"
        );
    }

    fn check_leases(&self) {
        let mut leases: BTreeMap<NodeId, u32> = BTreeMap::new();
        for tail in self.leases.nodes() {
            for id in self.tree.upwards(tail) {
                *leases.entry(id).or_default() += 1;
            }
        }
        let nodes = self.tree.walk();
        for &id in &nodes {
            let expected = leases.get(&id).copied().unwrap_or(0);
            assert_eq!(self.tree.node(id).leases, expected, "leases of {id:?}");
        }
        let blocks: u32 = leases.keys().map(|&id| self.tree.node(id).len()).sum();
        assert_eq!(blocks, self.tree.leased());
        assert!(blocks <= self.config.max_leased_blocks);
    }

    fn check_tree(&self) {
        let nodes = self.tree.walk();
        assert_eq!(
            nodes.len(),
            self.tree.nodes.len(),
            "nodes in the slab are in the tree"
        );
        let mut pins: BTreeMap<NodeId, u32> = BTreeMap::new();
        for row in self
            .open_rows()
            .filter(|&row| !self.sequences[row.at()].node.is_none())
        {
            *pins.entry(self.sequences[row.at()].node).or_default() += 1;
        }
        for node in self.leases.nodes() {
            *pins.entry(node).or_default() += 1;
        }
        self.check_leases();
        for copy in &self.copies {
            *pins.entry(copy.node).or_default() += 1;
        }
        let (mut cached, mut passed, mut waiting) = (0, 0, 0);
        for &id in &nodes {
            let node = self.tree.node(id);
            assert_eq!(
                node.pins,
                pins.get(&id).copied().unwrap_or(0),
                "pins of {id:?}"
            );
            let children: Vec<NodeId> = node.children.iter().collect();
            let active = children
                .iter()
                .filter(|&&child| self.tree.node(child).is_active())
                .count();
            assert_eq!(
                node.active_children as usize, active,
                "active children of {id:?}"
            );
            assert_eq!(node.claimed, 0, "claims end with the call");
            cached += node.len();
            if node.is_root() {
                assert!(
                    node.is_active() || !children.is_empty(),
                    "an empty root is dropped"
                );
            } else {
                assert!(node.len() > 0, "{id:?} is empty");
                self.check_run(id, &children);
                if !node.is_active() {
                    if self.steps.passed(node.stamp) {
                        passed += node.len();
                    } else {
                        waiting += node.len();
                    }
                }
            }
            self.check_children(id, &children);
        }
        assert_eq!(cached, self.tree.cached());
        assert_eq!(passed, self.tree.evictable());
        assert_eq!(waiting, self.tree.waiting_total());
        self.check_quotas();
        let (mut ready, mut fenced) = (Vec::new(), Vec::new());
        for &id in &nodes {
            let node = self.tree.node(id);
            if node.is_root() || node.is_active() || !node.children.is_empty() {
                continue;
            }
            if self.steps.passed(node.stamp) {
                ready.push((self.tree.queue_of(id), node.leaf(id)));
            } else {
                fenced.push((node.stamp, id));
            }
        }
        ready.sort_unstable();
        fenced.sort_unstable();
        assert_eq!(self.tree.all_leaves(), (ready, fenced));
    }

    /// Counts of scopes with quotas equal what their nodes hold, and so do the sums over them.
    fn check_quotas(&self) {
        let mut guarded = 0;
        for (scope, share) in self.tree.shares.iter() {
            let counts = self.tree.counts_of(&self.tree.nodes_of(scope), &self.steps);
            let both = [&counts, &share.counts]
                .map(|counts| (counts.cached, counts.evictable, counts.waiting_total()));
            assert_eq!(both[0], both[1], "counts of scope {scope}");
            let leaves = (share.leaves.ready().into_iter())
                .map(|(_, leaf)| leaf.id())
                .chain(share.leaves.fenced().into_iter().map(|(_, id)| id));
            for id in leaves {
                assert_eq!(self.tree.node(id).scope, scope, "a leaf of another scope");
            }
            guarded += share.guarded();
        }
        assert_eq!(guarded, self.tree.shares.guarded());
        let floors = self
            .tree
            .quotas()
            .iter()
            .map(|(_, quota)| u64::from(quota.floor))
            .sum::<u64>();
        assert_eq!(floors, self.tree.floors_against(-1));
        assert!(floors <= self.usable_blocks());
    }

    fn check_run(&self, id: NodeId, children: &[NodeId]) {
        let node = self.tree.node(id);
        match node.partial {
            Some(partial) => {
                assert!(
                    children.is_empty() && node.len() == 1,
                    "a partial block is a leaf"
                );
                assert!(partial.covered > 0 && partial.covered <= partial.tokens);
                assert!(partial.tokens <= self.config.tokens_per_block);
                let text = partial.tokens as usize + node.tip.len();
                let lookahead = self.tree.lookahead;
                assert_eq!(
                    text,
                    partial.covered as usize + lookahead,
                    "the text of a tail"
                );
            }
            None => assert_eq!(
                node.tip.len(),
                self.tree.lookahead,
                "a full block knows its lookahead"
            ),
        }
        let parent = self.tree.node(node.parent);
        assert_eq!(node.start, parent.end());
        assert_eq!(node.scope, parent.scope);
        assert!(parent.last_use >= node.last_use || parent.is_active() || parent.is_root());
    }

    /// Children begin with the parent's tip, stand in order, and no two full ones are equal.
    fn check_children(&self, id: NodeId, children: &[NodeId]) {
        let tip = &self.tree.node(id).tip;
        for &child in children {
            let node = self.tree.node(child);
            let same = node.common_text(&self.blocks, tip, usize::MAX);
            assert!(
                same == tip.len() || same == node.text_len(&self.blocks),
                "{child:?} does not begin with the tip of its parent"
            );
        }
        for pair in children.windows(2) {
            let (left, right) = (self.tree.node(pair[0]), self.tree.node(pair[1]));
            if left.draft_valid != right.draft_valid {
                assert!(!left.draft_valid, "draft-valid children stand last");
                continue;
            }
            let key = self.tree.key(&self.blocks, right);
            let order = self.tree.compare_key(&self.blocks, pair[0], &key);
            assert!(order.is_le(), "children stand in order");
            let twins = order.is_eq() && left.partial.is_none() && right.partial.is_none();
            assert!(!twins, "{:?} and {:?} are equal", pair[0], pair[1]);
        }
    }

    /// Checks the pins of side pages, and what rows have in windows.
    fn check_sides(&self) {
        let mut pins: BTreeMap<(usize, PageIndex), u32> = BTreeMap::new();
        for copy in &self.copies {
            for &side in &copy.sides {
                *pins.entry(side).or_default() += 1;
            }
        }
        let windows = self.promised_windows.len();
        let mut promised = vec![0; windows];
        for row in self.open_rows() {
            let seq = &self.sequences[row.at()];
            for (window, promised) in promised.iter_mut().enumerate() {
                let place = self.classes.full() + window;
                let pages = self.pages_of(row, place);
                let held = pages.iter().filter(|page| page.get() != 0).count();
                let state = &self.windows[row.at() * windows + window];
                assert_eq!(state.pages as usize, held, "pages of {row:?} in a window");
                *promised += u64::from(state.promise);
                for &page in &pages[..seq.published as usize] {
                    if page.get() != 0 {
                        *pins.entry((place, page)).or_default() += 1;
                    }
                }
            }
        }
        assert_eq!(promised, self.promised_windows);
        for (place, side) in self.sides.iter() {
            side.validate(&self.steps);
            for dumped in side.dump() {
                let page = (place, PageIndex::new(dumped.page));
                let expected = pins.remove(&page).unwrap_or(0);
                assert_eq!(dumped.pins, expected, "pins of {page:?}");
            }
        }
        assert!(pins.is_empty(), "pins of pages that no block has: {pins:?}");
    }

    fn check_sequences(&self, dump: &Dump) {
        let mut promised = 0;
        for seq in &dump.sequences {
            promised += u64::from(seq.promise);
            for (class, pages) in seq.pages.iter().enumerate() {
                let place = self.classes.place(class);
                let row = Handle::from_i64(seq.handle).expect("a handle").row;
                let columns = if place < self.classes.columns() {
                    seq.blocks
                } else if self.sequences[row.at()].suspended {
                    0
                } else {
                    self.own_at(place)
                };
                assert_eq!(pages.len(), columns as usize, "class {class} of {seq:?}");
            }
            assert!(
                seq.committed <= seq.history && seq.history <= seq.known,
                "{seq:?}"
            );
            assert!(
                seq.history <= seq.reach && seq.reach <= seq.capacity,
                "{seq:?}"
            );
            let row = Handle::from_i64(seq.handle).expect("a handle").row;
            self.check_suspended_state(row);
            if self.sequences[row.at()].node.is_none() {
                continue;
            }
            let inner = &self.sequences[row.at()];
            assert_eq!(
                inner.blocks.len() + inner.published as usize,
                seq.blocks as usize
            );
            assert_eq!(self.tree.node(inner.node).end(), inner.published);
            for (class, pages) in seq.pages.iter().enumerate() {
                let place = self.classes.place(class);
                if place >= self.classes.columns() {
                    continue;
                }
                for id in self.tree.upwards(inner.node) {
                    let node = self.dump_node(id);
                    let run = &pages[node.start as usize..][..node.tokens.len()];
                    for (&mine, &theirs) in run.iter().zip(&node.pages[class]) {
                        let behind = place >= self.classes.full() && mine == 0;
                        assert!(mine == theirs || behind, "shared pages of {seq:?}");
                    }
                }
            }
            let room =
                (seq.blocks as usize * self.blocks.tokens_per_block()).min(seq.known as usize);
            assert_eq!(
                inner.pending().len(),
                seq.known as usize - room,
                "tokens without a block"
            );
        }
        assert_eq!(promised, self.promised);
        let suspended = dump.sequences.iter().filter(|seq| seq.suspended).count();
        assert_eq!(suspended, self.suspended as usize);
        for row in self.open_rows() {
            assert_eq!(
                self.sequences[row.at()].outstanding,
                self.sequences[row.at()]
                    .widths
                    .iter()
                    .map(|(_, width)| width)
                    .sum::<u32>()
            );
        }
    }

    /// A suspended sequence has nothing but its tokens; any other one that keeps them stands on a node.
    fn check_suspended_state(&self, row: Row) {
        let seq = &self.sequences[row.at()];
        let stands = seq.keeps_tokens && !seq.suspended;
        assert_eq!(!seq.node.is_none(), stands, "{row:?} stands on a node");
        if seq.suspended {
            assert_eq!(seq.held + seq.published + seq.outstanding + seq.reach(), 0);
            let kept = if seq.keeps_tokens { seq.known } else { 0 };
            assert_eq!(seq.pending().len(), kept as usize);
        }
    }
}

//! Counts by state and counters since the start.

/// Pages of one class by state. `free + fenced + live + cached + reserved == total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassStats {
    /// All pages.
    pub total: u32,
    /// Page 0.
    pub reserved: u32,
    /// Allocatable now without evicting.
    pub free: u32,
    /// Given up, while a step that may touch them is open.
    pub fenced: u32,
    /// Owned by open sequences and not published; counted once if shared.
    pub live: u32,
    /// Owned by the prefix tree.
    pub cached: u32,
    /// Cached pages that a sequence or a pending copy needs.
    pub protected: u32,
    /// Cached pages that an allocation may evict now.
    pub evictable: u32,
    /// Pages that admissions count on and that are not taken yet.
    pub promised: u64,
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// What has happened since the ledger was built. Refused work is counted only as refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counters {
            $($(#[$meta])* pub $name: u64,)*
        }

        impl Counters {
            /// Names and values, in a fixed order.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Sequences admitted.
    admitted,
    /// Sequences made by `fork`.
    forked,
    /// Forks refused for lack of pages now, or of a row.
    refused_forks,
    /// Sequences suspended.
    suspended,
    /// Sequences resumed.
    resumed,
    /// Resumes refused for lack of pages now.
    refused_resumes,
    /// Known tokens of resumed sequences.
    resumed_tokens,
    /// Those of them that were found in the tree.
    resumed_hit_tokens,
    /// Admissions refused for lack of pages now.
    refused_now,
    /// Admissions refused because they can never fit.
    refused_never,
    /// Admissions refused for lack of a row.
    refused_rows,
    /// Prompt tokens of admitted sequences.
    prompt_tokens,
    /// Prompt tokens that were found in the tree.
    hit_tokens,
    /// Blocks loaded from lower tiers for sequences; their tokens are hits from then on.
    loaded_blocks,
    /// Prompt tokens that were found on lower tiers and did not arrive.
    missed_load_tokens,
    /// Admissions refused because what they would load is on its way for another sequence.
    refused_loading,
    /// Prompt tokens that could match nothing: private, or reuse is off.
    missed_private_tokens,
    /// Prompt tokens beyond what the tree could give.
    missed_text_tokens,
    /// Prompt tokens that could be used but for the one that must run.
    missed_last_tokens,
    /// Prompt tokens that could be used if there were room to protect the source of a copy.
    missed_copy_tokens,
    /// Hits of sequences without a draft in a ledger with one.
    target_only_hits,
    /// Blocks that entered the tree, partial ones included.
    published_blocks,
    /// Blocks given back because the tree had equal ones.
    rebased_blocks,
    /// Blocks evicted.
    evicted_blocks,
    /// Side pages taken from the queues of windows and states.
    evicted_side_pages,
    /// States that became a snapshot in the tree.
    snapshots,
    /// Blocks copied: partial ones at admission, those that a fork does not share.
    copied_blocks,
    /// Blocks taken by `grow`.
    grown_blocks,
    /// Growth refused for lack of pages.
    refused_grows,
    /// Tokens appended by `advance`.
    accepted_tokens,
    /// Tokens that ran and were not kept.
    rewound_tokens,
    /// Blocks given up at the end of their time to live.
    expired_blocks,
    /// Leases refused.
    refused_leases,
    /// Sequences released.
    released,
}

/// Everything `stats()` reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Pages by state, per class.
    pub classes: Vec<ClassStats>,
    /// Open sequences.
    pub open_sequences: u32,
    /// Those of them that are suspended.
    pub suspended_sequences: u32,
    /// Prompt blocks that admissions count on and that are not taken yet.
    pub promised: u32,
    /// Steps in flight.
    pub open_steps: u32,
    /// The newest step begun.
    pub newest_step: u64,
    /// Nodes of the prefix tree, roots included.
    pub nodes: u32,
    /// Blocks of the prefix tree.
    pub cached_blocks: u32,
    /// Leases that hold.
    pub leases: u32,
    /// Blocks of the prefix tree that leases protect.
    pub pinned_blocks: u32,
    /// Evictable blocks that the floors of their scopes keep from others.
    pub guarded_blocks: u32,
    /// Counters since the start.
    pub counters: Counters,
}

//! Laws of the page split over random layers, budgets and ranks.

use proptest::prelude::*;
use tandemkv_core::budget::{
    BudgetError, Cost, KvDtype, Layer, LayerKind, RankDemand, Tier, split_pages,
};
use tandemkv_core::units::{Bytes, Pages, Tokens};

fn cost() -> impl Strategy<Value = Cost> {
    // Zero slopes and zero intercepts are common: ranks without a draft, full attention.
    let slope = prop_oneof![Just(0), 1_u64..1 << 20];
    let intercept = prop_oneof![3 => Just(0), 1 => 0_u64..1 << 34];
    (slope, intercept).prop_map(|(slope, intercept)| Cost {
        slope: Bytes(slope),
        intercept: Bytes(intercept),
    })
}

fn rank() -> impl Strategy<Value = RankDemand> {
    (0_u64..1 << 40, cost(), cost()).prop_map(|(budget, target, draft)| RankDemand {
        budget: Bytes(budget),
        target,
        draft,
        per_sequence: None,
    })
}

fn ranks() -> impl Strategy<Value = Vec<RankDemand>> {
    proptest::collection::vec(rank(), 1..6)
}

fn tokens_per_block() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(16), Just(32), Just(64), 1_u64..512]
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Device), Just(Tier::Host), Just(Tier::Disk)]
}

fn layer() -> impl Strategy<Value = Layer> {
    let kind = prop_oneof![
        (1_u64..64, 1_u64..256).prop_map(|(heads, dim)| LayerKind::Attention {
            num_kv_heads: heads,
            head_dim: dim,
            v_head_dim: Some(dim),
        }),
        (1_u64..2048, 1_u64..256).prop_map(|(rank, rope)| LayerKind::Mla {
            kv_lora_rank: rank,
            qk_rope_head_dim: rope,
        }),
    ];
    let dtype = prop_oneof![
        Just(KvDtype::Bf16),
        Just(KvDtype::Fp16),
        Just(KvDtype::Fp32),
        Just(KvDtype::Fp8),
    ];
    (kind, dtype, 0_u64..256).prop_map(|(kind, dtype, side)| Layer {
        kind,
        dtype,
        side_bytes_per_token: Bytes(side),
    })
}

/// Pages of one rank by the formula itself, in 128 bits; `None` without a limit.
fn pages_of(rank: &RankDemand, tokens_per_block: u64) -> Option<i128> {
    let fixed = i128::from(rank.target.intercept.0) + i128::from(rank.draft.intercept.0);
    let slope = i128::from(rank.target.slope.0) + i128::from(rank.draft.slope.0);
    let rest = i128::from(rank.budget.0) - fixed;
    (slope > 0).then(|| rest.div_euclid(i128::from(tokens_per_block) * slope))
}

fn fixed_fits(rank: &RankDemand) -> bool {
    rank.target.intercept.0 + rank.draft.intercept.0 <= rank.budget.0
}

proptest! {
    #[test]
    fn target_draft_and_slack_are_the_budget(tier in tier(), tpb in tokens_per_block(), ranks in ranks()) {
        if let Ok(split) = split_pages(tier, Tokens(tpb), &ranks, None) {
            for (rank, share) in ranks.iter().zip(&split.ranks) {
                prop_assert_eq!(share.target.0 + share.draft.0 + share.slack.0, rank.budget.0);
            }
        }
    }

    #[test]
    fn the_group_holds_the_pages_of_its_smallest_rank(
        tier in tier(), tpb in tokens_per_block(), ranks in ranks(),
    ) {
        let smallest = ranks.iter().filter_map(|r| pages_of(r, tpb)).min();
        match split_pages(tier, Tokens(tpb), &ranks, None) {
            Ok(split) => {
                prop_assert_eq!(split.pages.map(|p| i128::from(p.0)), smallest);
                let pages = split.pages.unwrap_or(Pages(0)).0;
                for (rank, share) in ranks.iter().zip(&split.ranks) {
                    prop_assert_eq!(share.target, rank.target.bytes(Tokens(pages * tpb)).unwrap());
                    prop_assert_eq!(share.draft, rank.draft.bytes(Tokens(pages * tpb)).unwrap());
                }
            }
            Err(BudgetError::Infeasible(numbers)) => {
                let least = if tier == Tier::Device { 2 } else { 1 };
                let short = |r: &RankDemand| {
                    !fixed_fits(r) || pages_of(r, tpb).is_some_and(|p| p < least)
                };
                prop_assert!(ranks.iter().any(short), "refused though every rank fits");
                prop_assert!(short(&ranks[numbers.rank]), "named a rank that fits");
                prop_assert_eq!(numbers.required.0, numbers.budget.0 + numbers.shortfall.0);
            }
            Err(BudgetError::TooManyPages { pages, .. }) => {
                prop_assert_eq!(Some(i128::from(pages)), smallest);
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn exactly_the_shortfall_is_missing(tpb in tokens_per_block(), ranks in ranks()) {
        let mut ranks = ranks;
        // Each round gives the named rank what it lacks, so at most one round per rank.
        for _ in 0..=ranks.len() {
            match split_pages(Tier::Device, Tokens(tpb), &ranks, None) {
                Err(BudgetError::Infeasible(numbers)) => {
                    ranks[numbers.rank].budget.0 += numbers.shortfall.0;
                    let mut one_less = ranks.clone();
                    one_less[numbers.rank].budget.0 -= 1;
                    prop_assert!(split_pages(Tier::Device, Tokens(tpb), &one_less, None).is_err());
                }
                Ok(_) | Err(BudgetError::TooManyPages { .. }) => return Ok(()),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        prop_assert!(false, "a rank was named twice");
    }

    #[test]
    fn a_larger_budget_never_shrinks_a_share(
        tier in tier(), tpb in tokens_per_block(), ranks in ranks(), more in 0_u64..1 << 34,
    ) {
        let mut richer = ranks.clone();
        for rank in &mut richer {
            rank.budget.0 += more;
        }
        if let (Ok(before), Ok(after)) = (
            split_pages(tier, Tokens(tpb), &ranks, None),
            split_pages(tier, Tokens(tpb), &richer, None),
        ) {
            prop_assert!(before.pages <= after.pages);
            for (b, a) in before.ranks.iter().zip(&after.ranks) {
                prop_assert!(b.target <= a.target && b.draft <= a.draft);
            }
        }
    }

    #[test]
    fn a_role_that_costs_nothing_changes_nothing(tpb in tokens_per_block(), rank in rank()) {
        let alone = RankDemand { draft: Cost::ZERO, ..rank };
        let swapped = RankDemand { target: Cost::ZERO, draft: rank.target, ..rank };
        let one = split_pages(Tier::Device, Tokens(tpb), &[alone], None);
        let other = split_pages(Tier::Device, Tokens(tpb), &[swapped], None);
        if let (Ok(one), Ok(other)) = (one, other) {
            prop_assert_eq!(one.pages, other.pages);
            prop_assert_eq!(one.ranks[0].draft, Bytes(0));
            prop_assert_eq!(one.ranks[0].target, other.ranks[0].draft);
            prop_assert_eq!(one.ranks[0].slack, other.ranks[0].slack);
        }
    }

    #[test]
    fn scaling_every_byte_keeps_the_pages(
        tpb in tokens_per_block(), rank in rank(), factor in 1_u64..1000,
    ) {
        let scale = |cost: Cost| Cost {
            slope: Bytes(cost.slope.0 * factor),
            intercept: Bytes(cost.intercept.0 * factor),
        };
        let growing = |cost: Cost| Cost { intercept: Bytes(0), ..cost };
        let (target, draft) = (scale(rank.target), scale(rank.draft));
        let all = RankDemand { budget: Bytes(rank.budget.0 * factor), target, draft, ..rank };
        // Only what grows shrinks by the factor: the budget is the same.
        let bare = RankDemand {
            target: growing(rank.target), draft: growing(rank.draft), ..rank
        };
        let costs = RankDemand { target: growing(target), draft: growing(draft), ..rank };
        let pages = |r| split_pages(Tier::Host, Tokens(tpb), &[r], None).ok().map(|s| s.pages);
        prop_assert_eq!(pages(all), pages(rank));
        if let (Some(Some(before)), Some(Some(after))) = (pages(bare), pages(costs)) {
            prop_assert_eq!(after.0, before.0 / factor);
        }
    }

    #[test]
    fn the_order_of_layers_and_ranks_does_not_matter(
        layers in proptest::collection::vec(layer(), 1..24), ranks in ranks(), tp in 1_u64..4,
    ) {
        let price = |layer: &Layer| layer.bytes_per_token(tp).map(|slope| Cost { slope, intercept: Bytes(0) });
        if let Ok(costs) = layers.iter().map(price).collect::<Result<Vec<_>, _>>() {
            let forward = Cost::sum(costs.iter().copied());
            let backward = Cost::sum(costs.iter().rev().copied());
            prop_assert_eq!(forward, backward);
        }
        let reversed: Vec<_> = ranks.iter().rev().copied().collect();
        if let (Ok(one), Ok(other)) = (
            split_pages(Tier::Device, Tokens(32), &ranks, None),
            split_pages(Tier::Device, Tokens(32), &reversed, None),
        ) {
            prop_assert_eq!(one.pages, other.pages);
            prop_assert!(one.ranks.iter().eq(other.ranks.iter().rev()));
        }
    }

    #[test]
    fn ranks_of_a_width_hold_every_head_between_them(heads in 1_u64..256, tp in 1_u64..256) {
        let layer = |num_kv_heads| Layer {
            kind: LayerKind::Attention { num_kv_heads, head_dim: 1, v_head_dim: Some(1) },
            dtype: KvDtype::Fp8,
            side_bytes_per_token: Bytes(0),
        };
        if let Ok(bytes) = layer(heads).bytes_per_token(tp) {
            let on_each = bytes.0 / 2;
            prop_assert!(on_each * tp >= heads, "a head is stored nowhere");
            prop_assert!((on_each - 1) * tp < heads, "a rank stores more than it must");
        } else {
            prop_assert!(heads < tp && tp % heads != 0);
        }
    }
}

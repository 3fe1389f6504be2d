//! The byte split of one rank, as TensorRT-LLM divides a budget between target and draft.

use super::{BudgetError, Cost, Infeasible, Tier};
use crate::units::{Bytes, Pages};

/// Why a budget stayed whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotSplit {
    /// This tier has no budget.
    NoBudget,
    /// The target costs nothing on this rank.
    NoTargetCost,
    /// There is no draft, or it costs nothing on this rank.
    NoDraftCost,
}

impl NotSplit {
    /// A stable name for messages and other languages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoBudget => "no_budget",
            Self::NoTargetCost => "no_target_cost",
            Self::NoDraftCost => "no_draft_cost",
        }
    }
}

/// The shares of a budget; they always add up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSplit {
    /// `None` if the budget was split, else why it was not.
    pub not_split: Option<NotSplit>,
    /// The target's bytes, the remainder of the division included.
    pub target: Bytes,
    /// The draft's bytes; 0 if not split.
    pub draft: Bytes,
}

/// Divide `budget` in proportion to the slopes, after the fixed cost of both roles.
///
/// With `x` the bytes beyond the fixed cost, the draft gets `Id + x * sd // (st + sd)` and the
/// target the rest. Two roles of fixed cost get exactly that, the target also what is spare.
///
/// # Errors
/// [`BudgetError::Infeasible`] if the budget does not cover the fixed cost, or covers it exactly
/// while a role still grows with tokens.
pub fn split_bytes(
    budget: Bytes,
    target: Cost,
    draft: Cost,
    tier: Tier,
) -> Result<ByteSplit, BudgetError> {
    let whole = |reason| ByteSplit {
        not_split: Some(reason),
        target: budget,
        draft: Bytes::ZERO,
    };
    if budget == Bytes::ZERO {
        return Ok(whole(NotSplit::NoBudget));
    }
    if target.is_zero() {
        return Ok(whole(NotSplit::NoTargetCost));
    }
    if draft.is_zero() {
        return Ok(whole(NotSplit::NoDraftCost));
    }
    let (target, draft) = (tier.charge(target), tier.charge(draft));
    let both = target.checked_add(draft)?;
    let growing = both.slope > Bytes::ZERO;
    let rest = match budget.checked_sub(both.intercept) {
        Some(rest) if rest > Bytes::ZERO || !growing => rest,
        _ => return Err(infeasible(budget, target, draft, tier)),
    };
    let draft_bytes = if growing {
        share(rest, draft.slope, both.slope)
            .checked_add(draft.intercept)
            .ok_or(BudgetError::overflow("the draft's share"))?
    } else {
        draft.intercept
    };
    let target_bytes = budget
        .checked_sub(draft_bytes)
        .ok_or(BudgetError::overflow("the target's share"))?;
    Ok(ByteSplit {
        not_split: None,
        target: target_bytes,
        draft: draft_bytes,
    })
}

/// `rest * part // whole`; the product needs 128 bits, the quotient is at most `rest`.
fn share(rest: Bytes, part: Bytes, whole: Bytes) -> Bytes {
    let quotient = u128::from(rest.0) * u128::from(part.0) / u128::from(whole.0);
    Bytes(u64::try_from(quotient).expect("part <= whole, so the share is at most the rest"))
}

/// The byte split knows no pages: one token of both roles must fit beyond the fixed cost, and
/// costs nothing where no role grows.
fn infeasible(budget: Bytes, target: Cost, draft: Cost, tier: Tier) -> BudgetError {
    let required = [draft.intercept, target.slope, draft.slope]
        .into_iter()
        .try_fold(target.intercept, Bytes::checked_add);
    let Some(required) = required else {
        return BudgetError::overflow("the fixed cost of both roles");
    };
    let shortfall = required
        .checked_sub(budget)
        .expect("an infeasible budget is below the fixed cost and one token");
    BudgetError::Infeasible(Box::new(Infeasible {
        tier,
        rank: 0,
        budget,
        in_tokens: true,
        target_fixed: target.intercept,
        draft_fixed: draft.intercept,
        target_page: target.slope,
        draft_page: draft.slope,
        required_pages: Pages(1),
        required,
        shortfall,
        largest_batch: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::{ByteSplit, NotSplit, split_bytes};
    use crate::budget::{BudgetError, Cost, Tier};
    use crate::units::{Bytes, Tokens};
    use proptest::prelude::*;

    fn cost(slope: u64, intercept: u64) -> Cost {
        Cost {
            slope: Bytes(slope),
            intercept: Bytes(intercept),
        }
    }

    fn shares(target: u64, draft: u64) -> ByteSplit {
        ByteSplit {
            not_split: None,
            target: Bytes(target),
            draft: Bytes(draft),
        }
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_remainder_goes_to_the_target() {
        let split = split_bytes(Bytes(12 * GIB), cost(70, 0), cost(30, 0), Tier::Device);
        assert_eq!(split, Ok(shares(9_019_431_322, 3_865_470_566)));
    }

    #[test]
    fn fixed_cost_comes_off_first_on_the_device_only() {
        let split = split_bytes(Bytes(10 * GIB), cost(80, GIB), cost(20, 0), Tier::Device);
        assert_eq!(split, Ok(shares(8_804_682_957, 1_932_735_283)));
        let split = split_bytes(Bytes(12 * GIB), cost(70, 0), cost(30, 60 * GIB), Tier::Host);
        assert_eq!(split, Ok(shares(9_019_431_322, 3_865_470_566)));
    }

    #[test]
    fn nothing_to_split_is_a_typed_answer() {
        for (budget, target, draft, reason) in [
            (0, cost(80, 0), cost(20, 0), NotSplit::NoBudget),
            (9, Cost::ZERO, cost(20, 0), NotSplit::NoTargetCost),
            (9, cost(80, 0), Cost::ZERO, NotSplit::NoDraftCost),
        ] {
            let split = split_bytes(Bytes(budget), target, draft, Tier::Device).unwrap();
            assert_eq!(split.not_split, Some(reason));
            assert_eq!((split.target, split.draft), (Bytes(budget), Bytes(0)));
        }
    }

    #[test]
    fn a_budget_equal_to_the_fixed_cost_is_too_small_for_a_growing_role() {
        let error = split_bytes(Bytes(200), cost(80, 0), cost(0, 200), Tier::Device).unwrap_err();
        let BudgetError::Infeasible(numbers) = error else {
            panic!("expected an infeasible budget, got {error}");
        };
        assert_eq!(numbers.budget, Bytes(200));
        assert_eq!(numbers.draft_fixed, Bytes(200));
        assert_eq!(numbers.shortfall, Bytes(80));
        let split = split_bytes(Bytes(500), cost(0, 300), cost(0, 200), Tier::Device);
        assert_eq!(split, Ok(shares(300, 200)));
        let split = split_bytes(Bytes(1000), cost(0, 300), cost(0, 200), Tier::Device);
        assert_eq!(split, Ok(shares(800, 200)));
    }

    proptest! {
        #[test]
        fn shares_add_up_and_hold_equal_tokens(
            budget in 1_u64..1 << 48,
            target in (0_u64..1 << 20, 0_u64..1 << 36),
            draft in (0_u64..1 << 20, 0_u64..1 << 36),
        ) {
            let (target, draft) = (cost(target.0, target.1), cost(draft.0, draft.1));
            let fixed = target.intercept.0 + draft.intercept.0;
            let slope = target.slope.0 + draft.slope.0;
            match split_bytes(Bytes(budget), target, draft, Tier::Device) {
                Ok(split) => {
                    prop_assert_eq!(split.target.0 + split.draft.0, budget);
                    if split.not_split.is_none() && target.slope.0 > 0 && draft.slope.0 > 0 {
                        let of_target = target.tokens(split.target).unwrap();
                        let of_draft = draft.tokens(split.draft).unwrap();
                        prop_assert_eq!(of_draft, Tokens((budget - fixed) / slope));
                        prop_assert!(of_target.0 - of_draft.0 <= 1);
                    }
                }
                Err(BudgetError::Infeasible(numbers)) => {
                    prop_assert!(budget < fixed || (budget == fixed && slope > 0));
                    prop_assert_eq!(numbers.required.0, budget + numbers.shortfall.0);
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}

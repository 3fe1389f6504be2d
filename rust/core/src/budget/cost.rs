//! The affine cost of a role on one rank.

use super::BudgetError;
use crate::units::{Bytes, Tokens};

/// `bytes(T) = slope * T + intercept`.
///
/// The slope is the bytes per token of the layers that keep every token; the intercept is what
/// does not grow with tokens: windows, recurrent states, dummies. Full attention alone has
/// intercept 0. Costs add field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cost {
    /// Bytes per token.
    pub slope: Bytes,
    /// Bytes whatever the tokens.
    pub intercept: Bytes,
}

impl Cost {
    /// Costs nothing at all.
    pub const ZERO: Self = Self {
        slope: Bytes::ZERO,
        intercept: Bytes::ZERO,
    };

    /// Whether this role costs nothing on this rank.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// The cost of both together.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn checked_add(self, other: Self) -> Result<Self, BudgetError> {
        let slope = self.slope.checked_add(other.slope);
        let intercept = self.intercept.checked_add(other.intercept);
        match (slope, intercept) {
            (Some(slope), Some(intercept)) => Ok(Self { slope, intercept }),
            _ => Err(BudgetError::overflow("a sum of costs")),
        }
    }

    /// The cost of a list of layers, each given as its own cost.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn sum(costs: impl IntoIterator<Item = Self>) -> Result<Self, BudgetError> {
        costs.into_iter().try_fold(Self::ZERO, Self::checked_add)
    }

    /// Bytes of `tokens` tokens.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn bytes(self, tokens: Tokens) -> Result<Bytes, BudgetError> {
        self.slope
            .checked_mul(tokens.0)
            .and_then(|grown| grown.checked_add(self.intercept))
            .ok_or(BudgetError::overflow("the bytes of a role"))
    }

    /// The most tokens that `budget` holds: 0 if it does not cover the intercept, `None` if it
    /// does and tokens cost nothing.
    #[must_use]
    pub fn tokens(self, budget: Bytes) -> Option<Tokens> {
        match budget.checked_sub(self.intercept) {
            None => Some(Tokens::ZERO),
            Some(_) if self.slope == Bytes::ZERO => None,
            Some(rest) => Some(Tokens(rest.0 / self.slope.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cost;
    use crate::budget::BudgetError;
    use crate::units::{Bytes, Tokens};
    use proptest::prelude::*;

    fn cost(slope: u64, intercept: u64) -> Cost {
        Cost {
            slope: Bytes(slope),
            intercept: Bytes(intercept),
        }
    }

    #[test]
    fn a_fixed_role_has_no_token_limit_once_it_fits() {
        assert_eq!(cost(0, 300).tokens(Bytes(299)), Some(Tokens(0)));
        assert_eq!(cost(0, 300).tokens(Bytes(300)), None);
        assert_eq!(cost(7, 300).tokens(Bytes(321)), Some(Tokens(3)));
    }

    #[test]
    fn sums_are_checked() {
        assert_eq!(
            Cost::sum([cost(1, 2), cost(3, 4)]),
            Ok(cost(4, 6)),
            "field by field"
        );
        assert!(matches!(
            cost(u64::MAX, 0).checked_add(cost(1, 0)),
            Err(BudgetError::Overflow { .. })
        ));
        assert!(cost(2, 0).bytes(Tokens(u64::MAX)).is_err());
    }

    proptest! {
        #[test]
        fn bytes_of_what_fits_never_exceed_the_budget(
            slope in 1_u64..1 << 24, intercept in 0_u64..1 << 40, budget in 0_u64..1 << 44,
        ) {
            let cost = cost(slope, intercept);
            let tokens = cost.tokens(Bytes(budget)).unwrap();
            if budget >= intercept {
                prop_assert!(cost.bytes(tokens).unwrap() <= Bytes(budget));
                prop_assert!(cost.bytes(Tokens(tokens.0 + 1)).unwrap() > Bytes(budget));
            } else {
                prop_assert_eq!(tokens, Tokens(0));
            }
        }

        #[test]
        fn tokens_to_bytes_to_tokens_is_the_identity(
            slope in 1_u64..1 << 24, intercept in 0_u64..1 << 40, tokens in 0_u64..1 << 32,
        ) {
            let cost = cost(slope, intercept);
            let bytes = cost.bytes(Tokens(tokens)).unwrap();
            prop_assert_eq!(cost.tokens(bytes), Some(Tokens(tokens)));
        }

        #[test]
        fn the_order_of_layers_does_not_matter(
            layers in proptest::collection::vec((0_u64..1 << 30, 0_u64..1 << 30), 0..20),
        ) {
            let forward = Cost::sum(layers.iter().map(|&(s, i)| cost(s, i)));
            let backward = Cost::sum(layers.iter().rev().map(|&(s, i)| cost(s, i)));
            prop_assert_eq!(forward, backward);
        }
    }
}

//! Bytes to tokens and back, as TensorRT-LLM's KV cache manager counts them, in exact integers.
//!
//! ```text
//! Q(T) = T * full + min(T, N) * context + sequences * per_sequence
//! ```
//!
//! `full` and `context` are bytes per token of layers that keep everything and of windows, which
//! hold a whole chunk while it is prefilled; N is the most tokens that one step runs. Whatever
//! fits in a quota never costs more than the quota: `Q(T(q)) <= q`.

use super::BudgetError;
use crate::units::{Bytes, Tokens};

/// How much of a pool may be used, as a fraction: no rounding of a float can add a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Utilization {
    numerator: u64,
    denominator: u64,
}

impl Utilization {
    /// All of it.
    pub const WHOLE: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// `numerator / denominator`; `None` unless it is above 0 and at most 1.
    #[must_use]
    pub fn new(numerator: u64, denominator: u64) -> Option<Self> {
        (numerator > 0 && numerator <= denominator).then_some(Self {
            numerator,
            denominator,
        })
    }

    /// What must be there so that `used` is at most this fraction of it: `ceil(used / fraction)`.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn whole(self, used: u64) -> Result<u64, BudgetError> {
        let scaled = u128::from(used) * u128::from(self.denominator);
        u64::try_from(scaled.div_ceil(u128::from(self.numerator)))
            .map_err(|_| BudgetError::overflow("what a utilization limit asks for"))
    }

    /// What [`Utilization::whole`] adds to `used`.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn margin(self, used: u64) -> Result<u64, BudgetError> {
        Ok(self.whole(used)? - used)
    }

    /// How much of `whole` may be used, rounded down.
    #[must_use]
    pub fn used(self, whole: u64) -> u64 {
        let scaled = u128::from(whole) * u128::from(self.numerator);
        u64::try_from(scaled / u128::from(self.denominator)).expect("at most the whole")
    }
}

/// The terms of `Q`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenCost {
    /// Bytes per token of the layers that keep everything.
    pub full: Bytes,
    /// Bytes per token in flight of the others.
    pub context: Bytes,
    /// Bytes of one sequence that do not grow with it.
    pub per_sequence: Bytes,
    /// Sequences.
    pub sequences: u64,
    /// Most tokens in flight.
    pub step_tokens: Tokens,
}

impl TokenCost {
    /// `Q(tokens)`.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn bytes(&self, tokens: Tokens) -> Result<Bytes, BudgetError> {
        let in_flight = tokens.min(self.step_tokens).0;
        [
            self.full.checked_mul(tokens.0),
            self.context.checked_mul(in_flight),
            self.per_sequence.checked_mul(self.sequences),
        ]
        .into_iter()
        .try_fold(Bytes::ZERO, |sum, part| sum.checked_add(part?))
        .ok_or(BudgetError::overflow("the bytes of a number of tokens"))
    }

    /// The most tokens with `Q(tokens) <= quota`; 0 if not even the sequences fit, `None` if
    /// nothing limits them.
    ///
    /// # Errors
    /// [`BudgetError::Overflow`] beyond `u64`.
    pub fn tokens(&self, quota: Bytes) -> Result<Option<Tokens>, BudgetError> {
        let overflow = BudgetError::overflow("the bytes of the tokens in flight");
        let Some(rest) = quota.checked_sub(self.bytes(Tokens::ZERO)?) else {
            return Ok(Some(Tokens::ZERO));
        };
        let Some(both) = self.full.checked_add(self.context) else {
            return Err(overflow);
        };
        let Some(chunk) = both.checked_mul(self.step_tokens.0) else {
            return Err(overflow);
        };
        let Some(beyond) = rest.checked_sub(chunk) else {
            return Ok(rest.0.checked_div(both.0).map(Tokens));
        };
        let Some(more) = beyond.0.checked_div(self.full.0) else {
            return Ok(None);
        };
        let tokens = self.step_tokens.checked_add(Tokens(more));
        tokens.map(Some).ok_or(overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::{TokenCost, Utilization};
    use crate::units::{Bytes, Tokens};
    use proptest::prelude::*;

    #[test]
    fn tokens_and_bytes_of_windows_and_full_layers() {
        // Layers of 10, 10 and 20 B: two windows of 3 pages of 64 tokens, 4 sequences.
        let cost = TokenCost {
            full: Bytes(20),
            context: Bytes(20),
            per_sequence: Bytes(3 * 64 * 20),
            sequences: 4,
            step_tokens: Tokens(1000),
        };
        assert_eq!(cost.bytes(Tokens(1200)), Ok(Bytes(59_360)));
        assert_eq!(cost.tokens(Bytes(59_360)), Ok(Some(Tokens(1200))));
        assert_eq!(cost.tokens(Bytes(59_359)), Ok(Some(Tokens(1199))));
        assert_eq!(cost.tokens(Bytes(15_359)), Ok(Some(Tokens(0))));
    }

    #[test]
    fn the_way_back_is_never_more_than_the_way_there() {
        // TensorRT-LLM: 100,000 tokens of 131,072 B in 95 % of the quota.
        let limit = Utilization::new(95, 100).unwrap();
        let quota = limit.whole(100_000 * 131_072).unwrap();
        assert_eq!(quota, 13_797_052_632);
        assert_eq!(limit.used(quota) / 131_072, 100_000);
        // TensorRT-LLM#18459: single precision gives 2,561.
        assert_eq!(limit.whole(2432), Ok(2560));
    }

    #[test]
    fn a_fraction_that_means_nothing_is_refused() {
        for (numerator, denominator) in [(0, 100), (101, 100), (0, 0), (1, 0)] {
            assert_eq!(Utilization::new(numerator, denominator), None);
        }
        assert!(Utilization::new(1, 2).unwrap().whole(u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn what_fits_never_costs_more(
            full in 0_u64..1 << 20, context in 0_u64..1 << 20, per_sequence in 0_u64..1 << 30,
            sequences in 0_u64..512, step_tokens in 0_u64..1 << 16, quota in 0_u64..1 << 44,
        ) {
            let cost = TokenCost {
                full: Bytes(full),
                context: Bytes(context),
                per_sequence: Bytes(per_sequence),
                sequences,
                step_tokens: Tokens(step_tokens),
            };
            let quota = Bytes(quota);
            let held = cost.bytes(Tokens::ZERO).unwrap();
            match cost.tokens(quota).unwrap() {
                None => prop_assert!(full == 0 && held <= quota),
                Some(tokens) if held <= quota => {
                    prop_assert!(cost.bytes(tokens).unwrap() <= quota);
                    prop_assert!(cost.bytes(Tokens(tokens.0 + 1)).unwrap() > quota);
                }
                Some(tokens) => prop_assert_eq!(tokens, Tokens::ZERO),
            }
        }

        #[test]
        fn utilization_round_trips(
            used in 0_u64..1 << 50, numerator in 1_u64..1000, above in 0_u64..1000,
        ) {
            let limit = Utilization::new(numerator, numerator + above).unwrap();
            let whole = limit.whole(used).unwrap();
            prop_assert!(limit.used(whole) >= used);
            prop_assert!(whole == 0 || limit.used(whole - 1) < used);
        }
    }
}

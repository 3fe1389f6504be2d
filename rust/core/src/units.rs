//! Bytes, pages and tokens as different types, with checked arithmetic.
//!
//! A sum of two kinds does not compile, and nothing wraps: every operation that could leave
//! `u64` returns `None`. Conversions between kinds are named methods.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing of this kind.
            pub const ZERO: Self = Self(0);

            /// `self + other`, or `None` beyond `u64`.
            #[must_use]
            pub fn checked_add(self, other: Self) -> Option<Self> {
                self.0.checked_add(other.0).map(Self)
            }

            /// `self - other`, or `None` below zero.
            #[must_use]
            pub fn checked_sub(self, other: Self) -> Option<Self> {
                self.0.checked_sub(other.0).map(Self)
            }

            /// `self * factor`, or `None` beyond `u64`.
            #[must_use]
            pub fn checked_mul(self, factor: u64) -> Option<Self> {
                self.0.checked_mul(factor).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}", self.0, $word)
            }
        }
    };
}

unit!(
    /// A size in bytes.
    Bytes,
    "bytes"
);
unit!(
    /// A number of pages of one pool.
    Pages,
    "pages"
);
unit!(
    /// A number of tokens.
    Tokens,
    "tokens"
);

impl Pages {
    /// The tokens that this many pages hold, or `None` beyond `u64`.
    #[must_use]
    pub fn tokens(self, tokens_per_block: Tokens) -> Option<Tokens> {
        tokens_per_block.checked_mul(self.0)
    }
}

impl Tokens {
    /// The pages that hold this many tokens, the last one perhaps in part.
    ///
    /// `None` if `tokens_per_block` is zero.
    #[must_use]
    pub fn pages(self, tokens_per_block: Tokens) -> Option<Pages> {
        (tokens_per_block.0 > 0).then(|| Pages(self.0.div_ceil(tokens_per_block.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Pages, Tokens};

    #[test]
    fn arithmetic_never_wraps() {
        assert_eq!(Bytes(u64::MAX).checked_add(Bytes(1)), None);
        assert_eq!(Bytes(1).checked_sub(Bytes(2)), None);
        assert_eq!(Bytes(1 << 63).checked_mul(2), None);
        assert_eq!(Bytes(3).checked_add(Bytes(4)), Some(Bytes(7)));
    }

    #[test]
    fn tokens_round_up_to_pages() {
        assert_eq!(Tokens(33).pages(Tokens(32)), Some(Pages(2)));
        assert_eq!(Tokens(64).pages(Tokens(32)), Some(Pages(2)));
        assert_eq!(Tokens(1).pages(Tokens(0)), None);
        assert_eq!(Pages(2).tokens(Tokens(32)), Some(Tokens(64)));
    }

    #[test]
    fn a_size_prints_its_unit() {
        assert_eq!(Bytes(12).to_string(), "12 bytes");
    }
}

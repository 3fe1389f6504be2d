//! Media in prompts: references that stand for a digest.

use crate::ids::{TOKEN_LIMIT, Token};

/// Largest number of a reference. The token 2^31 (-2^31 as an integer) stays free: the binding uses it
/// for what is no token at all.
pub(crate) const LARGEST: u32 = TOKEN_LIMIT - 2;

/// An item of media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Media {
    /// What identifies its content.
    pub digest: [u8; 32],
    /// Placeholder tokens that stand for it.
    pub length: u32,
}

/// The token of a number: `-1 - number` as a 32-bit integer.
pub(crate) fn reference(number: u32) -> Token {
    !number
}

/// The number of a token that is no ordinary one.
#[inline]
pub(crate) fn number(token: Token) -> Option<u32> {
    (token >= TOKEN_LIMIT).then_some(!token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_negative_tokens() {
        assert_eq!(reference(0).cast_signed(), -1);
        assert_eq!(reference(LARGEST).cast_signed(), i32::MIN + 1);
        assert_eq!(number(reference(7)), Some(7));
        assert_eq!(number(TOKEN_LIMIT - 1), None);
    }
}

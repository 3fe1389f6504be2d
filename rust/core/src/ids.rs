//! Index types. A page is not a block is not a row: mixing two of them does not compile.

use std::fmt;

/// A token id in `[0, 2^31)`.
pub type Token = u32;

/// Tokens at or above this value do not exist.
pub const TOKEN_LIMIT: Token = 1 << 31;

macro_rules! index_type {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The index with this number.
            #[inline]
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value)
            }

            /// The number itself, for tables and messages.
            #[inline]
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// The number as a position in a slice.
            #[inline]
            #[must_use]
            pub const fn at(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

index_type! {
    /// The memory of one block in one class; what a block table holds.
    PageIndex
}
index_type! {
    /// The record of one block: its tokens. Never a page index.
    BlockId
}
index_type! {
    /// A run of blocks in the prefix tree.
    NodeId
}
index_type! {
    /// The place of an open sequence in the ledger and in device tables.
    Row
}

/// Page 0 of every pool: owned by nobody, safe to read and to write.
pub const PAGE_ZERO: PageIndex = PageIndex::new(0);

impl NodeId {
    /// "No node": the parent of a root.
    pub const NONE: Self = Self::new(u32::MAX);

    /// Whether this is [`NodeId::NONE`].
    #[inline]
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// A sequence as callers know it: `generation << 32 | row`. A handle of a released sequence never
/// names a later one, since the generation of its row has moved on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle {
    /// How many sequences the row has held, this one included.
    pub generation: u32,
    /// The row.
    pub row: Row,
}

impl Handle {
    /// The 64-bit form.
    #[inline]
    #[must_use]
    pub fn to_i64(self) -> i64 {
        (i64::from(self.generation) << 32) | i64::from(self.row.get())
    }

    /// The row of a handle that was found to be one.
    #[inline]
    pub(crate) fn row_of(value: i64) -> Row {
        #[expect(clippy::cast_possible_truncation, reason = "the row is the lower half")]
        Row::new(value.cast_unsigned() as u32)
    }

    /// The parts of a 64-bit handle; `None` for negative values, which are refusals.
    #[inline]
    #[must_use]
    pub fn from_i64(value: i64) -> Option<Self> {
        let bits = u64::try_from(value).ok()?;
        Some(Self {
            generation: u32::try_from(bits >> 32).ok()?,
            row: Row::new(u32::try_from(bits & 0xffff_ffff).ok()?),
        })
    }
}

/// A collection's length as a 32-bit count.
///
/// Every collection of the ledger is bounded by pages, rows or `max_seq_len`, all of which are
/// checked to be below 2^31 when it is built.
#[inline]
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).expect("bounded by a count that was checked when the ledger was built")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_the_round_trip_and_refusals_are_no_handles() {
        for (generation, row) in [(1, 0), (7, 12), (i32::MAX as u32, u32::MAX)] {
            let handle = Handle {
                generation,
                row: Row::new(row),
            };
            assert_eq!(Handle::from_i64(handle.to_i64()), Some(handle));
        }
        assert_eq!(Handle::from_i64(-1), None);
    }
}

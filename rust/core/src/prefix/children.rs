//! The children of a node, in one ordered list.
//!
//! Order: draft-valid last, then by text (tokens as integers, a prefix before what it begins). The
//! order alone answers every question: the exact child, and through its neighbours the longest partial
//! match. The list is cut into chunks, so that a root with 10^6 children inserts in one short move.

use crate::ids::{NodeId, Token};

/// Most ids in a chunk: a move of half of it costs about as much as one missed cache line.
const CHUNK: usize = 256;

/// A child with the head of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    head: u64,
    child: NodeId,
}

/// `draft_valid` and the first two tokens of a text, in the order of siblings. Heads that differ decide
/// between two texts, so a search rarely has to read the children's own tokens; what a short text
/// lacks counts as 0, and equal heads decide nothing. The last bit of the second token is left out.
#[inline]
pub(crate) fn head(draft_valid: bool, text: &[Token]) -> u64 {
    let token = |at| u64::from(text.get(at).copied().unwrap_or(0));
    (u64::from(draft_valid) << 63) | (token(0) << 31) | (token(1) >> 1)
}

/// The children of one node. Most nodes have none or one.
#[derive(Debug, Default)]
pub(crate) enum Children {
    #[default]
    None,
    One(Entry),
    /// Two or more, in chunks that are never empty.
    #[expect(
        clippy::box_collection,
        reason = "keeps every other node 16 bytes smaller"
    )]
    Many(Box<Vec<Vec<Entry>>>),
}

/// A place in the list: between two children, or on the one after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    chunk: usize,
    index: usize,
}

impl Children {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The only child, if there is exactly one.
    pub(crate) fn only(&self) -> Option<NodeId> {
        match *self {
            Self::One(entry) => Some(entry.child),
            _ => None,
        }
    }

    fn chunk(&self, chunk: usize) -> &[Entry] {
        match self {
            Self::One(entry) if chunk == 0 => std::slice::from_ref(entry),
            Self::None | Self::One(_) => &[],
            Self::Many(chunks) => chunks.get(chunk).map_or(&[], Vec::as_slice),
        }
    }

    /// The first place whose child does not come before (`head`, what `before` compares with); the
    /// children that do stand first. `before` is asked only about children with the same head.
    pub(crate) fn partition(&self, head: u64, mut before: impl FnMut(NodeId) -> bool) -> Place {
        let mut first =
            |entry: &Entry| entry.head < head || (entry.head == head && before(entry.child));
        let chunk = match self {
            Self::None | Self::One(_) => 0,
            Self::Many(chunks) => chunks
                .partition_point(|chunk| first(chunk.last().expect("chunks are never empty")))
                // Past the end is a place after the last child of the last chunk.
                .min(chunks.len() - 1),
        };
        Place {
            chunk,
            index: self.chunk(chunk).partition_point(first),
        }
    }

    /// The child at a place.
    pub(crate) fn get(&self, place: Place) -> Option<NodeId> {
        self.chunk(place.chunk)
            .get(place.index)
            .map(|entry| entry.child)
    }

    /// The place after this one; past the last child `get` answers `None`.
    pub(crate) fn next(&self, place: Place) -> Place {
        if place.index + 1 < self.chunk(place.chunk).len() {
            return Place {
                index: place.index + 1,
                ..place
            };
        }
        match self {
            Self::Many(chunks) if place.chunk + 1 < chunks.len() => Place {
                chunk: place.chunk + 1,
                index: 0,
            },
            _ => Place {
                index: place.index + 1,
                ..place
            },
        }
    }

    /// The child before a place.
    pub(crate) fn before(&self, place: Place) -> Option<NodeId> {
        let entry = if place.index > 0 {
            self.chunk(place.chunk).get(place.index - 1)
        } else {
            self.chunk(place.chunk.checked_sub(1)?).last()
        };
        entry.map(|entry| entry.child)
    }

    /// Inserts a child at a place.
    pub(crate) fn insert(&mut self, place: Place, head: u64, child: NodeId) {
        let entry = Entry { head, child };
        match self {
            Self::None => *self = Self::One(entry),
            Self::One(other) => {
                let mut entries = vec![*other];
                entries.insert(place.index, entry);
                *self = Self::Many(Box::new(vec![entries]));
            }
            Self::Many(chunks) => {
                let entries = &mut chunks[place.chunk];
                entries.insert(place.index, entry);
                if entries.len() > CHUNK {
                    let upper = entries.split_off(CHUNK / 2);
                    chunks.insert(place.chunk + 1, upper);
                }
            }
        }
    }

    /// Gives an empty list its first child.
    pub(crate) fn start(&mut self, head: u64, child: NodeId) {
        debug_assert!(self.is_empty());
        *self = Self::One(Entry { head, child });
    }

    /// Removes the child at a place.
    pub(crate) fn remove(&mut self, place: Place) {
        match self {
            Self::None => unreachable!("the place holds a child"),
            Self::One(_) => *self = Self::None,
            Self::Many(chunks) => {
                chunks[place.chunk].remove(place.index);
                if chunks[place.chunk].is_empty() {
                    chunks.remove(place.chunk);
                }
                if let [only] = chunks.as_slice()
                    && let &[entry] = only.as_slice()
                {
                    *self = Self::One(entry);
                }
            }
        }
    }

    /// Puts another child, whose text begins alike, in the place of one.
    pub(crate) fn replace(&mut self, place: Place, child: NodeId) {
        match self {
            Self::None => unreachable!("the place holds a child"),
            Self::One(entry) => entry.child = child,
            Self::Many(chunks) => chunks[place.chunk][place.index].child = child,
        }
    }

    /// All children in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        let chunks = match self {
            Self::Many(chunks) => chunks.len(),
            Self::None | Self::One(_) => 1,
        };
        (0..chunks).flat_map(|chunk| self.chunk(chunk).iter().map(|entry| entry.child))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The chunked list behaves as one sorted vector, over several chunk splits.
        #[test]
        fn equals_a_sorted_vector(ops in prop::collection::vec((0u32..2000, any::<bool>()), 1..2000)) {
            let mut children = Children::None;
            let mut model: Vec<u32> = Vec::new();
            for (value, add) in ops {
                // Several values share a head, so both ways to decide are met.
                let head = u64::from(value / 3);
                let place = children.partition(head, |child| child.get() < value);
                let at = model.partition_point(|&other| other < value);
                prop_assert_eq!(children.get(place).map(NodeId::get), model.get(at).copied());
                prop_assert_eq!(
                    children.get(children.next(place)).map(NodeId::get),
                    model.get(at + 1).copied()
                );
                prop_assert_eq!(
                    children.before(place).map(NodeId::get),
                    at.checked_sub(1).map(|before| model[before])
                );
                if add {
                    children.insert(place, head, NodeId::new(value));
                    model.insert(at, value);
                } else if model.get(at) == Some(&value) {
                    children.remove(place);
                    model.remove(at);
                }
                prop_assert_eq!(children.is_empty(), model.is_empty());
                prop_assert_eq!(
                    children.only().map(NodeId::get),
                    if model.len() == 1 { Some(model[0]) } else { None }
                );
            }
            prop_assert_eq!(children.iter().map(NodeId::get).collect::<Vec<_>>(), model);
        }
    }
}

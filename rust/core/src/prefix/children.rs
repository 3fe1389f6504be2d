//! The children of a node, in one ordered list.
//!
//! Order: draft-valid last, then by text (tokens as integers, a prefix before what it begins). The
//! order alone answers every question: the exact child, and through its neighbours the longest partial
//! match. The list is cut into chunks, so that a root with 10^6 children inserts in one short move.

use crate::ids::NodeId;

/// Most ids in a chunk: a move of half of it costs about as much as one missed cache line.
const CHUNK: usize = 256;

/// The children of one node. Most nodes have none or one.
#[derive(Debug, Default)]
pub(crate) enum Children {
    #[default]
    None,
    One(NodeId),
    /// Two or more, in chunks that are never empty.
    #[expect(
        clippy::box_collection,
        reason = "keeps every other node 16 bytes smaller"
    )]
    Many(Box<Vec<Vec<NodeId>>>),
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
            Self::One(child) => Some(child),
            _ => None,
        }
    }

    fn chunk(&self, chunk: usize) -> &[NodeId] {
        match self {
            Self::One(child) if chunk == 0 => std::slice::from_ref(child),
            Self::None | Self::One(_) => &[],
            Self::Many(chunks) => chunks.get(chunk).map_or(&[], Vec::as_slice),
        }
    }

    /// The first place whose child does not come `before`; the children that do stand first.
    pub(crate) fn partition(&self, mut before: impl FnMut(NodeId) -> bool) -> Place {
        let chunk = match self {
            Self::None | Self::One(_) => 0,
            Self::Many(chunks) => chunks
                .partition_point(|ids| before(*ids.last().expect("chunks are never empty")))
                // Past the end is a place after the last child of the last chunk.
                .min(chunks.len() - 1),
        };
        Place {
            chunk,
            index: self.chunk(chunk).partition_point(|&child| before(child)),
        }
    }

    /// The child at a place.
    pub(crate) fn get(&self, place: Place) -> Option<NodeId> {
        self.chunk(place.chunk).get(place.index).copied()
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
        if place.index > 0 {
            return self.chunk(place.chunk).get(place.index - 1).copied();
        }
        self.chunk(place.chunk.checked_sub(1)?).last().copied()
    }

    /// Inserts a child at a place.
    pub(crate) fn insert(&mut self, place: Place, child: NodeId) {
        match self {
            Self::None => *self = Self::One(child),
            Self::One(other) => {
                let mut ids = vec![*other];
                ids.insert(place.index, child);
                *self = Self::Many(Box::new(vec![ids]));
            }
            Self::Many(chunks) => {
                let ids = &mut chunks[place.chunk];
                ids.insert(place.index, child);
                if ids.len() > CHUNK {
                    let upper = ids.split_off(CHUNK / 2);
                    chunks.insert(place.chunk + 1, upper);
                }
            }
        }
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
                    && let &[child] = only.as_slice()
                {
                    *self = Self::One(child);
                }
            }
        }
    }

    /// Puts another child in the place of one with an equal key.
    pub(crate) fn replace(&mut self, place: Place, child: NodeId) {
        match self {
            Self::None => unreachable!("the place holds a child"),
            Self::One(old) => *old = child,
            Self::Many(chunks) => chunks[place.chunk][place.index] = child,
        }
    }

    /// All children in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        let chunks = match self {
            Self::Many(chunks) => chunks.len(),
            Self::None | Self::One(_) => 1,
        };
        (0..chunks).flat_map(|chunk| self.chunk(chunk).iter().copied())
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
                let place = children.partition(|child| child.get() < value);
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
                    children.insert(place, NodeId::new(value));
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

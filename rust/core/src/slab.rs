//! Values with stable small indices, in segments that never move.
//!
//! One doubling vector of tree nodes stalls a scheduler step for hundreds of milliseconds when it is
//! copied at 10^7 entries; a segment costs a bounded allocation instead.

const SEGMENT_BITS: u32 = 10;
const SEGMENT: usize = 1 << SEGMENT_BITS;

/// A slab of `T`, addressed by `u32`. Freed places are reused last in, first out.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    segments: Vec<Vec<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            segments: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores `value` and returns its index.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self[index] = value;
            return index;
        }
        if self
            .segments
            .last()
            .is_none_or(|segment| segment.len() == SEGMENT)
        {
            self.segments.push(Vec::with_capacity(SEGMENT));
        }
        let full = crate::ids::count(self.segments.len() - 1) << SEGMENT_BITS;
        let segment = self.segments.last_mut().expect("a segment was just made");
        segment.push(value);
        full + crate::ids::count(segment.len() - 1)
    }

    /// Marks `index` as free; the caller leaves an empty value there.
    pub(crate) fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    /// How many values are in use.
    pub(crate) fn len(&self) -> usize {
        let places = self.segments.iter().map(Vec::len).sum::<usize>();
        places - self.free.len()
    }

    /// The order in which places will be reused, for the digest.
    pub(crate) fn free_list(&self) -> &[u32] {
        &self.free
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.segments[(index >> SEGMENT_BITS) as usize][index as usize & (SEGMENT - 1)]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.segments[(index >> SEGMENT_BITS) as usize][index as usize & (SEGMENT - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_stable_across_segments_and_reused() {
        let mut slab = Slab::new();
        let all: Vec<u32> = (0..3 * SEGMENT).map(|value| slab.insert(value)).collect();
        assert!(
            all.iter()
                .enumerate()
                .all(|(value, &index)| slab[index] == value)
        );
        slab.free(5);
        slab.free(2000);
        assert_eq!(slab.len(), 3 * SEGMENT - 2);
        assert_eq!((slab.insert(7), slab.insert(8)), (2000, 5));
    }
}

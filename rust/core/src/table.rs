//! Block-table rows: which page each block of a sequence has, and what changed in them.

use crate::ids::{PAGE_ZERO, PageIndex};

/// The pages of one row in one class, with what was last reported of it.
#[derive(Debug, Default)]
pub(crate) struct TableRow {
    pub pages: Vec<PageIndex>,
    /// The row as the last `updates` left it; beyond its end it reads page 0.
    shown: Vec<PageIndex>,
    /// Columns that may differ from `shown`: `dirty.0 .. dirty.1`.
    dirty: (u32, u32),
}

impl TableRow {
    /// Notes that columns `from .. to`, of which there are some, may have changed.
    #[inline]
    pub(crate) fn touch(&mut self, from: u32, to: u32) {
        let clean = self.dirty.0 >= self.dirty.1;
        self.dirty = if clean {
            (from, to)
        } else {
            (self.dirty.0.min(from), self.dirty.1.max(to))
        };
    }

    #[cfg(test)]
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.0 < self.dirty.1
    }

    /// Calls `found(column, page)` for every column that differs from what was shown.
    pub(crate) fn changes(&self, mut found: impl FnMut(u32, PageIndex)) {
        for column in self.dirty.0..self.dirty.1 {
            let at = column as usize;
            let page = self.pages.get(at).copied().unwrap_or(PAGE_ZERO);
            if page != self.shown.get(at).copied().unwrap_or(PAGE_ZERO) {
                found(column, page);
            }
        }
    }

    /// Makes the row as it is the one that was shown.
    pub(crate) fn show(&mut self) {
        let (from, to) = (self.dirty.0 as usize, self.dirty.1 as usize);
        if self.shown.len() < self.pages.len() {
            self.shown.resize(self.pages.len(), PAGE_ZERO);
        }
        let end = to.min(self.pages.len());
        if from < end {
            self.shown[from..end].copy_from_slice(&self.pages[from..end]);
        }
        // What was shown never ends in zeros that are not needed, so rows stay as short as they are.
        self.shown.truncate(self.pages.len());
        self.dirty = (0, 0);
    }

    pub(crate) fn shown(&self) -> &[PageIndex] {
        &self.shown
    }

    pub(crate) fn dirty(&self) -> (u32, u32) {
        self.dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(row: &TableRow) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        row.changes(|column, page| out.push((column, page.get())));
        out
    }

    #[test]
    fn only_what_differs_is_reported_and_given_up_columns_read_zero() {
        let mut row = TableRow {
            pages: [5, 6, 7].map(PageIndex::new).to_vec(),
            ..Default::default()
        };
        row.touch(0, 3);
        assert_eq!(changes(&row), [(0, 5), (1, 6), (2, 7)]);
        row.show();
        row.pages.truncate(1);
        row.pages.push(PageIndex::new(6));
        row.touch(1, 3);
        assert_eq!(changes(&row), [(2, 0)], "column 1 has the page it had");
        row.show();
        assert!(!row.is_dirty());
        row.pages.clear();
        row.touch(0, 2);
        assert_eq!(changes(&row), [(0, 0), (1, 0)]);
    }
}

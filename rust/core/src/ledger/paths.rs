//! Draft trees: where the KV of accepted nodes has to go.

use crate::error::LedgerError;
use crate::ids::Row;
use crate::ledger::advance::Rows;
use crate::ledger::{Ledger, check_len, check_range};
use crate::sequence::{DRAFT, TARGET};

/// The arguments of [`Ledger::path_moves`], one entry per sequence.
#[derive(Debug, Clone, Copy)]
pub struct PathBatch<'a> {
    /// The sequences.
    pub handle: &'a [i64],
    /// The nodes that are kept, as `rows` says.
    pub path: &'a [i32],
    /// Where each sequence's nodes are.
    pub rows: Rows<'a>,
    /// Nodes that are kept; 0 where nothing moves.
    pub count: &'a [i32],
    /// The role whose tree it is: 0 the target, 1 the draft.
    pub role: usize,
}

/// A copy of one token: class, source page, source offset, destination page, destination offset.
pub type TokenMove = [u32; 5];

impl Ledger {
    /// Writes the copies that bring the kept nodes of draft trees together, to be run as if one after the
    /// other, and returns how many there are. Changes nothing; asked before the `advance` of `step`.
    ///
    /// # Errors
    ///
    /// For a step that is not the only one that a sequence with a path runs, a handle that is stale or
    /// appears twice, a role that is not there and a path that is not one;
    /// [`LedgerError::BufferTooSmall`] with the number of copies. Nothing has been written then.
    pub fn path_moves(
        &mut self,
        step: u64,
        batch: &PathBatch<'_>,
        out: &mut [TokenMove],
    ) -> Result<usize, LedgerError> {
        self.steps.check_begun(step)?;
        let n = batch.handle.len();
        let roles = if self.config.has_draft { DRAFT } else { TARGET };
        let signed = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        check_range("role", 0, signed(batch.role), 0, signed(roles))?;
        check_len("count", batch.count.len(), n)?;
        match batch.rows {
            Rows::Matrix(columns) => check_len("path", batch.path.len(), n * columns)?,
            Rows::Packed(starts) => check_len("path", starts.len(), n)?,
        }
        self.calls += 1;
        let mut required = 0;
        for item in 0..n {
            required += self.check_path(item, step, batch)?;
        }
        if required > out.len() {
            return Err(LedgerError::BufferTooSmall {
                argument: "out",
                len: out.len(),
                required,
            });
        }
        let mut written = 0;
        for item in 0..n {
            let row = self.open_row(item, batch.handle[item])?;
            self.write_path(row, batch, batch.nodes(item), &mut written, out);
        }
        Ok(written)
    }

    /// Checks one item and returns how many copies it needs.
    fn check_path(
        &mut self,
        item: usize,
        step: u64,
        batch: &PathBatch<'_>,
    ) -> Result<usize, LedgerError> {
        let handle = batch.handle[item];
        let row = self.check_handle(item, handle)?;
        let seq = &self.sequences[row.at()];
        let (recorded, width) = seq.widths.oldest();
        if recorded != step {
            return Err(LedgerError::StepNotGrown {
                item,
                step,
                recorded,
            });
        }
        let columns = i64::try_from(batch.columns()).unwrap_or(i64::MAX);
        let uses_role = batch.role == TARGET || seq.has_draft();
        let most = if uses_role { width } else { 0 };
        let count = i64::from(batch.count[item]);
        check_range("count", item, count, 0, columns.min(most.into()))?;
        let nodes = batch.nodes(item);
        if nodes.is_empty() {
            return Ok(0);
        }
        let newest = seq.widths.newest();
        if newest != step {
            return Err(LedgerError::StepInFlight {
                item,
                handle,
                step: newest,
            });
        }
        let mut least = 0;
        for (at, &node) in nodes.iter().enumerate() {
            let most = if at == 0 { 0 } else { i64::from(width) - 1 };
            if !(least..=most).contains(&node.into()) {
                return Err(LedgerError::PathNode {
                    item,
                    position: at,
                    node: node.into(),
                    min: least,
                    max: most,
                });
            }
            least = i64::from(node) + 1;
        }
        let moved = nodes.len() - stays(nodes);
        Ok(moved * self.classes.columns())
    }

    fn write_path(
        &self,
        row: Row,
        batch: &PathBatch<'_>,
        nodes: &[i32],
        written: &mut usize,
        out: &mut [TokenMove],
    ) {
        let size = self.config.tokens_per_block;
        let start = self.sequences[row.at()].valid[batch.role];
        for (class, &place) in self.classes.places().iter().enumerate() {
            if place >= self.classes.columns() {
                continue;
            }
            let pages = self.pages_of(row, place);
            let slot = |position: u32| {
                let page = pages[(position / size) as usize].get();
                (page, position % size)
            };
            for (at, &node) in nodes.iter().enumerate().skip(stays(nodes)) {
                let (from, from_offset) = slot(start + node.cast_unsigned());
                let (to, to_offset) = slot(start + crate::ids::count(at));
                out[*written] = [crate::ids::count(class), from, from_offset, to, to_offset];
                *written += 1;
            }
        }
    }
}

impl PathBatch<'_> {
    /// The most nodes that one item can have.
    fn columns(&self) -> usize {
        match self.rows {
            Rows::Matrix(columns) => columns,
            Rows::Packed(_) => self.path.len(),
        }
    }

    /// The nodes of an item whose count has been checked, or is about to be.
    fn nodes(&self, item: usize) -> &[i32] {
        let start = match self.rows {
            Rows::Matrix(columns) => item * columns,
            Rows::Packed(starts) => starts[item],
        };
        let count = usize::try_from(self.count[item]).unwrap_or(0);
        &self.path[start..][..count]
    }
}

/// How many leading nodes stand where they belong.
fn stays(nodes: &[i32]) -> usize {
    let stands = |&(at, &node): &(usize, &i32)| usize::try_from(node).is_ok_and(|node| node == at);
    nodes.iter().enumerate().take_while(stands).count()
}

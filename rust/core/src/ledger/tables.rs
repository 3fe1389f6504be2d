//! Tables in the forms that kernels of the field read, from the state of the ledger: CSR, the slot of
//! each token that runs, and a row of slots per sequence. All of it is read-only.
//!
//! A **slot** is the place of one token in a class: `page * tokens_per_block + position %
//! tokens_per_block`.

use crate::error::LedgerError;
use crate::ids::{PageIndex, Row};
use crate::ledger::{Ledger, check_len, check_range};
use crate::sequence::{DRAFT, TARGET};

/// The largest index that a kernel reads from a 32-bit table.
const INDEX_MAX: i64 = i32::MAX as i64;

/// Outputs of [`Ledger::csr`]. There may be more rows than sequences: those are empty.
#[derive(Debug)]
pub struct Csr<'a> {
    /// `[rows + 1]`: where the indices of each row begin.
    pub indptr: &'a mut [u32],
    /// At least as many as are needed; the rest is left as it is.
    pub indices: &'a mut [u32],
    /// `[rows]`: tokens in the last page of each row, 0 for an empty row.
    pub last_page_len: &'a mut [u32],
}

impl Ledger {
    /// Where the tokens that `step` runs begin in each sequence, and how many there are: `start` is the
    /// role's valid end plus the widths of older steps that are not advanced yet.
    ///
    /// Without a draft (`draft_from == -1`) nothing runs in that role: start and width are 0.
    ///
    /// # Errors
    ///
    /// [`LedgerError::StepNotGrown`] if a sequence has no width for `step`; a stale handle; a role
    /// other than 0 (target) and 1 (draft). Nothing has been written then.
    pub fn spans(
        &self,
        step: u64,
        handle: &[i64],
        role: usize,
        start: &mut [u32],
        width: &mut [u32],
    ) -> Result<(), LedgerError> {
        let roles = if self.config.has_draft { DRAFT } else { TARGET };
        check_range("role", 0, to_i64(role), 0, to_i64(roles))?;
        check_len("start", start.len(), handle.len())?;
        check_len("width", width.len(), handle.len())?;
        for (item, &handle) in handle.iter().enumerate() {
            self.span(step, item, handle, role)?;
        }
        for (item, &handle) in handle.iter().enumerate() {
            (start[item], width[item]) = self.span(step, item, handle, role)?;
        }
        Ok(())
    }

    fn span(
        &self,
        step: u64,
        item: usize,
        handle: i64,
        role: usize,
    ) -> Result<(u32, u32), LedgerError> {
        let seq = &self.sequences[self.open_row(item, handle)?.at()];
        let mut start = seq.valid[role];
        for (recorded, width) in seq.widths.iter() {
            if recorded == step {
                let runs = role == TARGET || seq.has_draft();
                return Ok(if runs { (start, width) } else { (0, 0) });
            }
            start += width;
        }
        let recorded = seq.widths.oldest().0;
        Err(LedgerError::StepNotGrown {
            item,
            step,
            recorded,
        })
    }

    /// Writes the pages of each sequence's first `kv_len` tokens one after the other, each times
    /// `scale`. Returns how many there are.
    ///
    /// # Errors
    ///
    /// For a class, a stale handle, a `kv_len` beyond the sequence's blocks or a `scale` that takes an
    /// index beyond 32 bits; [`LedgerError::BufferTooSmall`] with the number of indices that is
    /// needed. Nothing has been written then.
    pub fn csr(
        &self,
        class: usize,
        handle: &[i64],
        kv_len: &[i32],
        scale: u32,
        out: &mut Csr<'_>,
    ) -> Result<usize, LedgerError> {
        self.check_class(class)?;
        self.check_scale(class, scale)?;
        check_len("kv_len", kv_len.len(), handle.len())?;
        if out.last_page_len.len() < handle.len() {
            return Err(LedgerError::BufferTooSmall {
                argument: "last_page_len",
                len: out.last_page_len.len(),
                required: handle.len(),
            });
        }
        check_len("indptr", out.indptr.len(), out.last_page_len.len() + 1)?;
        let size = self.config.tokens_per_block;
        let mut total = 0;
        for (item, (&handle, &len)) in handle.iter().zip(kv_len).enumerate() {
            let (_, len) = self.row_with(class, "kv_len", item, handle, (0, len))?;
            total += len.div_ceil(size) as usize;
        }
        if total > out.indices.len() {
            return Err(LedgerError::BufferTooSmall {
                argument: "indices",
                len: out.indices.len(),
                required: total,
            });
        }
        // More than 2^31 indices do not fit the format, whatever the buffer holds.
        check_range("indices", 0, to_i64(total), 0, INDEX_MAX)?;
        let mut at = 0;
        out.indptr.fill(crate::ids::count(total));
        out.last_page_len.fill(0);
        for (item, (&handle, &len)) in handle.iter().zip(kv_len).enumerate() {
            let (row, len) = self.row_with(class, "kv_len", item, handle, (0, len))?;
            let blocks = len.div_ceil(size) as usize;
            let pages = &self.pages_of(row, self.classes.place(class))[..blocks];
            for (out, page) in out.indices[at..at + blocks].iter_mut().zip(pages) {
                // `check_scale` has excluded an overflow; a second check would keep this loop scalar.
                *out = page.get().wrapping_mul(scale);
            }
            out.indptr[item] = crate::ids::count(at);
            out.last_page_len[item] = len - len.saturating_sub(1) / size * size;
            at += blocks;
        }
        Ok(total)
    }

    /// Writes the slot of each token in `start[i] .. start[i] + width[i]`, sequence after sequence, and
    /// `pad` (0 or -1) into the rest of `out`. Returns how many slots there are.
    ///
    /// # Errors
    ///
    /// For a class, a stale handle, a span beyond the sequence's blocks or another `pad`;
    /// [`LedgerError::BufferTooSmall`] with the number of slots. Nothing has been written then.
    pub fn slot_mapping(
        &self,
        class: usize,
        handle: &[i64],
        start: &[i32],
        width: &[i32],
        pad: i64,
        out: &mut [i64],
    ) -> Result<usize, LedgerError> {
        self.check_class(class)?;
        check_range("pad", 0, pad, -1, 0)?;
        check_len("start", start.len(), handle.len())?;
        check_len("width", width.len(), handle.len())?;
        let mut total = 0;
        for (item, &handle) in handle.iter().enumerate() {
            let (_, width) =
                self.row_with(class, "width", item, handle, (start[item], width[item]))?;
            total += width as usize;
        }
        if total > out.len() {
            return Err(LedgerError::BufferTooSmall {
                argument: "out",
                len: out.len(),
                required: total,
            });
        }
        let (mut used, rest) = out.split_at_mut(total);
        rest.fill(pad);
        for (item, &handle) in handle.iter().enumerate() {
            let (row, width) =
                self.row_with(class, "width", item, handle, (start[item], width[item]))?;
            let (mine, others) = used.split_at_mut(width as usize);
            used = others;
            self.write_slots(row, class, start[item].unsigned_abs(), mine);
        }
        Ok(total)
    }

    /// Writes the slots of each sequence's first `kv_len` tokens into its row of `out`, which is
    /// `[n, width]`, and `pad` (0 or -1) into the rest of the row.
    ///
    /// # Errors
    ///
    /// For a class, a stale handle, a `kv_len` beyond the sequence's blocks or the row, another `pad`,
    /// or a pool with slots beyond 32 bits. Nothing has been written then.
    pub fn token_rows(
        &self,
        class: usize,
        handle: &[i64],
        kv_len: &[i32],
        pad: i32,
        width: usize,
        out: &mut [i32],
    ) -> Result<(), LedgerError> {
        self.check_class(class)?;
        self.check_scale(class, self.config.tokens_per_block)?;
        check_range("pad", 0, pad.into(), -1, 0)?;
        check_len("kv_len", kv_len.len(), handle.len())?;
        check_len("dst", out.len(), handle.len() * width)?;
        for (item, (&handle, &len)) in handle.iter().zip(kv_len).enumerate() {
            self.row_with(class, "kv_len", item, handle, (0, len))?;
            check_range("kv_len", item, len.into(), 0, to_i64(width))?;
        }
        if width == 0 {
            return Ok(());
        }
        let rows = handle.iter().zip(kv_len).zip(out.chunks_exact_mut(width));
        for (item, ((&handle, &len), out)) in rows.enumerate() {
            let (row, len) = self.row_with(class, "kv_len", item, handle, (0, len))?;
            let (used, rest) = out.split_at_mut(len as usize);
            self.write_slots(row, class, 0, used);
            rest.fill(pad);
        }
        Ok(())
    }

    /// Writes the slots of the tokens from position `from` on, as many as `out` holds.
    fn write_slots<T: Slot>(&self, row: Row, class: usize, from: u32, out: &mut [T]) {
        let size = self.config.tokens_per_block as usize;
        let pages = self.pages_of(row, self.classes.place(class));
        let mut position = from as usize;
        let mut rest = out;
        while !rest.is_empty() {
            let within = position % size;
            let run = (size - within).min(rest.len());
            let (block, others) = rest.split_at_mut(run);
            let first = u64::from(pages[position / size].get()) * size as u64 + within as u64;
            T::count_from(first, block);
            position += run;
            rest = others;
        }
    }

    /// The pages of a row in the class at a place.
    #[inline]
    pub(crate) fn pages_of(&self, row: Row, place: usize) -> &[PageIndex] {
        &self.tables[row.at() * self.pools.len() + place].pages
    }

    /// The row of an item and its length, which must end inside the row's columns in the class.
    fn row_with(
        &self,
        class: usize,
        argument: &'static str,
        item: usize,
        handle: i64,
        (start, len): (i32, i32),
    ) -> Result<(Row, u32), LedgerError> {
        let row = self.open_row(item, handle)?;
        let columns = self.pages_of(row, self.classes.place(class)).len();
        let room = to_i64(columns) * i64::from(self.config.tokens_per_block);
        check_range("start", item, start.into(), 0, room)?;
        check_range(argument, item, len.into(), 0, room - i64::from(start))?;
        Ok((row, len.unsigned_abs()))
    }

    fn check_class(&self, class: usize) -> Result<(), LedgerError> {
        check_range("class", 0, to_i64(class), 0, to_i64(self.pools.len()) - 1)
    }

    /// Checks that `scale` indices per page stay inside 32 bits in every page of a class.
    fn check_scale(&self, class: usize, scale: u32) -> Result<(), LedgerError> {
        let pages = i64::from(self.pools[self.classes.place(class)].num_pages());
        check_range("scale", 0, scale.into(), 1, (INDEX_MAX + 1) / pages)
    }
}

/// A slot as a table holds it. The tables' calls have checked that every slot of the class fits.
trait Slot: Sized {
    /// Writes `first`, `first + 1` and so on.
    fn count_from(first: u64, out: &mut [Self]);
}

impl Slot for i32 {
    fn count_from(first: u64, out: &mut [Self]) {
        let mut slot = Self::try_from(first).expect("slots of the class fit, see `check_scale`");
        for out in out {
            *out = slot;
            slot = slot.wrapping_add(1); // wraps only after the last one
        }
    }
}

impl Slot for i64 {
    fn count_from(first: u64, out: &mut [Self]) {
        let mut slot = Self::try_from(first).expect("a page and a block are below 2^31 each");
        for out in out {
            *out = slot;
            slot = slot.wrapping_add(1);
        }
    }
}

fn to_i64(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

//! Pages between buffers in host memory, and the checksum of their bytes.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use twox_hash::XxHash3_128;

use crate::buffers::{Input, Memory, Output, disjoint};
use crate::errors::misuse;

/// Numbers of a piece: bytes, first byte and stride in the source, the same in the destination.
const PIECE: usize = 5;

/// From how many bytes on a checksum lets other threads run: 50 µs at 5 GB/s. To wait for the GIL
/// again takes as long as what is shorter.
const DETACH_BYTES: usize = 256 << 10;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(copy_pages, module)?)?;
    module.add_function(wrap_pyfunction!(checksum, module)?)?;
    module.add_function(wrap_pyfunction!(page_checksum, module)?)
}

/// Where the bytes of one piece of a page lie in a buffer.
struct Place {
    start: usize,
    stride: usize,
}

impl Place {
    /// The piece's first byte in a page; checked before.
    fn of(&self, page: usize) -> usize {
        self.start + page * self.stride
    }

    /// Where the piece ends in a page, if that is a number at all.
    fn end(&self, page: usize, bytes: usize) -> Option<usize> {
        page.checked_mul(self.stride)?
            .checked_add(self.start)?
            .checked_add(bytes)
    }
}

/// A run of bytes of every page that lies in one piece on both sides.
struct Piece {
    bytes: usize,
    source: Place,
    destination: Place,
}

#[pyfunction]
fn copy_pages(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    destination: &Bound<'_, PyAny>,
    source_pages: &Bound<'_, PyAny>,
    destination_pages: &Bound<'_, PyAny>,
    pieces: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let source = Input::<u8>::new(source, "source", 1)?;
    let mut destination = Output::<u8>::new(destination, "destination", 1)?;
    let from = Input::<i64>::new(source_pages, "source_pages", 1)?;
    let to = Input::<i64>::new(destination_pages, "destination_pages", 1)?;
    let pieces = Input::<i64>::new(pieces, "pieces", 2)?;
    disjoint(
        py,
        &[destination.region("destination")],
        &[
            source.region("source"),
            from.region("source_pages"),
            to.region("destination_pages"),
            pieces.region("pieces"),
        ],
    )?;
    let (from, to) = (from.slice(), to.slice());
    if from.len() != to.len() {
        let (left, right) = (from.len(), to.len());
        let message = format!("source_pages has {left} pages, destination_pages {right}");
        return Err(misuse(py, "length_mismatch", &message));
    }
    let pieces = read_pieces(py, &pieces)?;
    let from = read_pages(py, "source_pages", from)?;
    let to = read_pages(py, "destination_pages", to)?;
    let (source, destination) = (source.slice(), destination.slice_mut());
    for (number, piece) in pieces.iter().enumerate() {
        let bytes = piece.bytes;
        inside(
            py,
            number,
            bytes,
            &piece.source,
            ("source", source.len()),
            &from,
        )?;
        let size = ("destination", destination.len());
        inside(py, number, bytes, &piece.destination, size, &to)?;
    }
    py.detach(|| {
        for (&from, &to) in from.iter().zip(&to) {
            for piece in &pieces {
                let (read, write) = (piece.source.of(from), piece.destination.of(to));
                destination[write..write + piece.bytes]
                    .copy_from_slice(&source[read..read + piece.bytes]);
            }
        }
    });
    Ok(())
}

fn read_pieces(py: Python<'_>, pieces: &Input<i64>) -> PyResult<Vec<Piece>> {
    if pieces.shape()[1] != PIECE {
        let columns = pieces.shape()[1];
        let message = format!("pieces has {columns} columns, must have {PIECE}");
        return Err(misuse(py, "shape", &message));
    }
    let rows = pieces.slice().chunks_exact(PIECE).enumerate();
    rows.map(|(number, row)| {
        let mut sizes = [0; PIECE];
        for (size, &given) in sizes.iter_mut().zip(row) {
            *size = usize::try_from(given).map_err(|_| {
                let message = format!("pieces[{number}] has {given}, must be >= 0");
                misuse(py, "range", &message)
            })?;
        }
        let [bytes, start, stride, to_start, to_stride] = sizes;
        Ok(Piece {
            bytes,
            source: Place { start, stride },
            destination: Place {
                start: to_start,
                stride: to_stride,
            },
        })
    })
    .collect()
}

fn read_pages(py: Python<'_>, argument: &str, pages: &[i64]) -> PyResult<Vec<usize>> {
    let pages = pages.iter().enumerate().map(|(at, &page)| {
        usize::try_from(page).map_err(|_| {
            let message = format!("{argument}[{at}] is {page}, must be >= 0");
            misuse(py, "range", &message)
        })
    });
    pages.collect()
}

/// Refuses pages of which a piece would not lie in its buffer.
fn inside(
    py: Python<'_>,
    number: usize,
    bytes: usize,
    place: &Place,
    (argument, size): (&str, usize),
    pages: &[usize],
) -> PyResult<()> {
    // The last page ends last: strides are not negative.
    let Some((at, &page)) = pages.iter().enumerate().max_by_key(|&(_, &page)| page) else {
        return Ok(());
    };
    if place.end(page, bytes).is_some_and(|end| end <= size) {
        return Ok(());
    }
    let message = format!(
        "{argument}_pages[{at}] is {page}: piece {number} of it would not end within the {size} bytes \
         of {argument}"
    );
    Err(misuse(py, "range", &message))
}

#[pyfunction]
#[pyo3(signature = (*buffers))]
fn checksum(py: Python<'_>, buffers: &Bound<'_, PyTuple>) -> PyResult<[u8; 32]> {
    over(py, buffers, |slices| {
        let mut hasher = blake3::Hasher::new();
        for slice in slices {
            hasher.update(slice);
        }
        hasher.finalize().into()
    })
}

#[pyfunction]
#[pyo3(signature = (*buffers))]
fn page_checksum(py: Python<'_>, buffers: &Bound<'_, PyTuple>) -> PyResult<[u8; 16]> {
    over(py, buffers, |slices| {
        let mut hasher = XxHash3_128::new();
        for slice in slices {
            hasher.write(slice);
        }
        hasher.finish_128().to_be_bytes()
    })
}

/// What `digest` makes of the buffers' bytes, without the GIL where that takes long.
fn over<T: Send>(
    py: Python<'_>,
    buffers: &Bound<'_, PyTuple>,
    digest: impl FnOnce(&[&[u8]]) -> T + Send,
) -> PyResult<T> {
    let inputs = buffers
        .iter()
        .enumerate()
        .map(|(at, buffer)| Input::<u8>::new(&buffer, &format!("buffers[{at}]"), 1))
        .collect::<PyResult<Vec<_>>>()?;
    let slices: Vec<&[u8]> = inputs.iter().map(Input::slice).collect();
    if slices.iter().map(|slice| slice.len()).sum::<usize>() < DETACH_BYTES {
        return Ok(digest(&slices));
    }
    Ok(py.detach(move || digest(&slices)))
}

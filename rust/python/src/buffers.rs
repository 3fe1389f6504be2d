//! Caller-owned buffers as slices.
//!
//! A call reads its inputs and writes its outputs in place while it runs. The GIL may be released
//! meanwhile, so the caller must not write to them from another thread, as with any NumPy call.

use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;

use crate::errors::misuse;

/// A C-contiguous buffer of one element type, read in place.
pub struct Input<T: Element>(PyBuffer<T>);

/// A C-contiguous, writable buffer of one element type, written in place.
pub struct Output<T: Element>(PyBuffer<T>);

/// Name of an element type, as NumPy spells it.
trait Named {
    const NAME: &'static str;
}

impl Named for i32 {
    const NAME: &'static str = "int32";
}
impl Named for i64 {
    const NAME: &'static str = "int64";
}
impl Named for u8 {
    const NAME: &'static str = "uint8";
}

/// What is wrong with a value that is no array of `wanted`.
fn wrong_dtype(value: &Bound<'_, PyAny>, argument: &str, wanted: &str) -> PyErr {
    let message = format!(
        "{argument} must be an array of {wanted}, got {}",
        describe(value)
    );
    misuse(value.py(), "dtype", &message)
}

fn check_layout(
    buffer: &PyUntypedBuffer,
    py: Python<'_>,
    argument: &str,
    dims: usize,
) -> PyResult<()> {
    if buffer.dimensions() != dims {
        let found = buffer.dimensions();
        let message = format!("{argument} must have {dims} dimensions, got {found}");
        return Err(misuse(py, "shape", &message));
    }
    if !buffer.is_c_contiguous() {
        let message = format!(
            "{argument} must be C-contiguous, got strides {:?}",
            buffer.strides()
        );
        return Err(misuse(py, "contiguity", &message));
    }
    Ok(())
}

fn open<T: Element + Named>(
    value: &Bound<'_, PyAny>,
    argument: &str,
    dims: usize,
) -> PyResult<PyBuffer<T>> {
    let buffer = PyBuffer::<T>::get(value).map_err(|_| wrong_dtype(value, argument, T::NAME))?;
    check_layout(&buffer, value.py(), argument, dims)?;
    Ok(buffer)
}

/// What a value is, for messages: its dtype if it has one, else its type.
fn describe(value: &Bound<'_, PyAny>) -> String {
    value
        .getattr("dtype")
        .and_then(|dtype| dtype.str().map(|name| name.to_string()))
        .or_else(|_| value.get_type().name().map(|name| name.to_string()))
        .unwrap_or_else(|_| "something else".to_owned())
}

#[allow(private_bounds)]
impl<T: Element + Named> Input<T> {
    /// A buffer with `dims` dimensions.
    pub fn new(value: &Bound<'_, PyAny>, argument: &str, dims: usize) -> PyResult<Self> {
        open(value, argument, dims).map(Self)
    }

    pub fn slice(&self) -> &[T] {
        if self.0.item_count() == 0 {
            return &[];
        }
        // SAFETY: the buffer is C-contiguous, aligned (checked by `PyBuffer::get`) and held until
        // `self` is dropped; the caller does not write to it during the call.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.item_count()) }
    }

    pub fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn range(&self) -> (usize, usize) {
        let start = self.0.buf_ptr() as usize;
        (start, start + self.0.len_bytes())
    }
}

#[allow(private_bounds)]
impl<T: Element + Named> Output<T> {
    /// A writable buffer with `dims` dimensions.
    pub fn new(value: &Bound<'_, PyAny>, argument: &str, dims: usize) -> PyResult<Self> {
        let buffer = open(value, argument, dims)?;
        if buffer.readonly() {
            let message = format!("{argument} is read-only, but the call writes it");
            return Err(misuse(value.py(), "readonly", &message));
        }
        Ok(Self(buffer))
    }

    pub fn slice_mut(&mut self) -> &mut [T] {
        if self.0.item_count() == 0 {
            return &mut [];
        }
        // SAFETY: as in `Input::slice`, and writable; `disjoint` has ruled out that another argument
        // of the call shares its memory.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.item_count()) }
    }

    pub fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn range(&self) -> (usize, usize) {
        let start = self.0.buf_ptr() as usize;
        (start, start + self.0.len_bytes())
    }
}

impl Output<i32> {
    /// The buffer as unsigned numbers, for indices that are below 2^31.
    pub fn unsigned_mut(&mut self) -> &mut [u32] {
        let items = self.slice_mut();
        // SAFETY: `i32` and `u32` have the same size and alignment, and every bit pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(items.as_mut_ptr().cast(), items.len()) }
    }
}

/// Tokens, 32-bit in place or 64-bit converted.
pub enum Tokens {
    /// Read in place; a negative token shows as a value of 2^31 or more, which the core refuses.
    Narrow(Input<i32>),
    /// Converted; a token outside 32 bits becomes `u32::MAX`, which the core refuses.
    Wide(Vec<u32>, Input<i64>),
}

impl Tokens {
    pub fn new(value: &Bound<'_, PyAny>, argument: &str, dims: usize) -> PyResult<Self> {
        Self::up_to(value, argument, dims, dims)
    }

    /// A buffer with `fewest` to `most` dimensions.
    pub fn up_to(
        value: &Bound<'_, PyAny>,
        argument: &str,
        fewest: usize,
        most: usize,
    ) -> PyResult<Self> {
        let wrong = |_| wrong_dtype(value, argument, "int32 or int64");
        let buffer = PyUntypedBuffer::get(value).map_err(wrong)?;
        check_layout(
            &buffer,
            value.py(),
            argument,
            buffer.dimensions().clamp(fewest, most),
        )?;
        if buffer.item_size() == size_of::<i32>() {
            return Ok(Self::Narrow(Input(buffer.into_typed().map_err(wrong)?)));
        }
        let wide = Input::<i64>(buffer.into_typed().map_err(wrong)?);
        let narrow = wide
            .slice()
            .iter()
            .map(|&token| u32::try_from(token).unwrap_or(u32::MAX))
            .collect();
        Ok(Self::Wide(narrow, wide))
    }

    pub fn slice(&self) -> &[u32] {
        match self {
            Self::Wide(tokens, _) => tokens,
            Self::Narrow(buffer) => {
                let items = buffer.slice();
                // SAFETY: `i32` and `u32` have the same size and alignment.
                unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), items.len()) }
            }
        }
    }

    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Wide(_, buffer) => buffer.shape(),
            Self::Narrow(buffer) => buffer.shape(),
        }
    }

    /// The token as the caller gave it.
    pub fn original(&self, at: usize) -> i64 {
        match self {
            Self::Wide(_, buffer) => buffer.slice()[at],
            Self::Narrow(buffer) => buffer.slice()[at].into(),
        }
    }
}

/// Memory of one argument: its name, first byte and the byte after its last.
pub struct Region(&'static str, usize, usize);

/// Something that occupies memory of the caller.
pub trait Memory {
    fn region(&self, argument: &'static str) -> Region;
}

#[allow(private_bounds)]
impl<T: Element + Named> Memory for Input<T> {
    fn region(&self, argument: &'static str) -> Region {
        let (start, end) = self.range();
        Region(argument, start, end)
    }
}

#[allow(private_bounds)]
impl<T: Element + Named> Memory for Output<T> {
    fn region(&self, argument: &'static str) -> Region {
        let (start, end) = self.range();
        Region(argument, start, end)
    }
}

impl Memory for Tokens {
    fn region(&self, argument: &'static str) -> Region {
        match self {
            Self::Wide(_, buffer) => buffer.region(argument),
            Self::Narrow(buffer) => buffer.region(argument),
        }
    }
}

/// Refuses outputs that share memory with each other or with an input.
pub fn disjoint(py: Python<'_>, outputs: &[Region], inputs: &[Region]) -> PyResult<()> {
    for (at, Region(name, start, end)) in outputs.iter().enumerate() {
        for Region(other, from, to) in outputs[at + 1..].iter().chain(inputs) {
            if start < to && from < end {
                let message = format!("{name} shares memory with {other}");
                return Err(misuse(py, "aliasing", &message));
            }
        }
    }
    Ok(())
}

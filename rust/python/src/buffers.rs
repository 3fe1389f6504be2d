//! Caller-owned buffers as slices.
//!
//! A NumPy array is read through NumPy's C interface, which costs a few nanoseconds; anything else goes
//! through the buffer protocol, which costs a hundred. A call reads its inputs and writes its outputs in
//! place while it runs. The GIL may be released meanwhile, so the caller must not write to them from
//! another thread, as with any NumPy call.

use std::fmt::Display;
use std::marker::PhantomData;

use numpy::npyffi::flags::{NPY_ARRAY_ALIGNED, NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::misuse;

/// The most dimensions that any argument has.
const MOST_DIMS: usize = 3;

/// An element type of the seam.
pub trait Item: pyo3::buffer::Element + numpy::Element {
    /// As NumPy spells it.
    const NAME: &'static str;

    /// NumPy's built-in description of the type, of which there is one.
    fn descr(py: Python<'_>) -> &Bound<'_, PyArrayDescr>;
}

macro_rules! item {
    ($type:ty, $name:literal) => {
        impl Item for $type {
            const NAME: &'static str = $name;

            #[inline]
            fn descr(py: Python<'_>) -> &Bound<'_, PyArrayDescr> {
                static DESCR: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
                DESCR
                    .get_or_init(py, || <$type as numpy::Element>::get_dtype(py).unbind())
                    .bind(py)
            }
        }
    };
}

item!(i32, "int32");
item!(i64, "int64");
item!(u8, "uint8");

/// Memory of one array: C-contiguous, aligned, of a known element type.
struct View {
    start: *mut u8,
    items: usize,
    item_size: usize,
    shape: [usize; MOST_DIMS],
    dims: usize,
    writable: bool,
    /// What keeps the memory alive, if it is not the argument itself.
    _keep: Option<PyUntypedBuffer>,
}

/// The layout of an array, as either interface tells it.
struct Layout<'a> {
    dims: usize,
    shape: &'a [usize],
    strides: &'a [isize],
    contiguous: bool,
}

impl View {
    /// The memory of `value`, with `fewest` to `most` dimensions; `None` if it does not hold `T`.
    fn new<T: Item>(
        value: &Bound<'_, PyAny>,
        argument: &dyn Display,
        fewest: usize,
        most: usize,
    ) -> PyResult<Option<Self>> {
        if let Ok(array) = value.cast::<PyUntypedArray>() {
            if let Some(view) = Self::of_usual_array::<T>(array, fewest, most) {
                return Ok(Some(view));
            }
            return Self::of_array::<T>(array, argument, fewest, most);
        }
        let Ok(buffer) = PyBuffer::<T>::get(value) else {
            return Ok(None);
        };
        let layout = Layout {
            dims: buffer.dimensions(),
            shape: buffer.shape(),
            strides: buffer.strides(),
            contiguous: buffer.is_c_contiguous(),
        };
        let shape = layout.check(value.py(), argument, fewest, most)?;
        Ok(Some(Self {
            start: buffer.buf_ptr().cast(),
            items: buffer.item_count(),
            item_size: size_of::<T>(),
            shape,
            dims: buffer.dimensions(),
            writable: !buffer.readonly(),
            _keep: Some(PyUntypedBuffer::get(value)?),
        }))
    }

    /// The memory of an array that is as it should be, with the built-in description of `T`; what is
    /// wrong with any other one, if anything, takes longer to say.
    #[inline]
    fn of_usual_array<T: Item>(
        array: &Bound<'_, PyUntypedArray>,
        fewest: usize,
        most: usize,
    ) -> Option<Self> {
        const USUAL: i32 = NPY_ARRAY_ALIGNED | NPY_ARRAY_C_CONTIGUOUS;
        // SAFETY: `array` is a NumPy array, and alive as an argument of the running call.
        let raw = unsafe { &(*array.as_array_ptr()).fields };
        if raw.flags & USUAL != USUAL || raw.descr.cast() != T::descr(array.py()).as_ptr() {
            return None;
        }
        let given = array.shape();
        let dims = given.len();
        if !(fewest..=most).contains(&dims) {
            return None;
        }
        let mut shape = [0; MOST_DIMS];
        shape[..dims].copy_from_slice(given);
        Some(Self {
            start: raw.data.cast(),
            items: array.len(),
            item_size: size_of::<T>(),
            shape,
            dims,
            writable: raw.flags & NPY_ARRAY_WRITEABLE != 0,
            _keep: None,
        })
    }

    fn of_array<T: Item>(
        array: &Bound<'_, PyUntypedArray>,
        argument: &dyn Display,
        fewest: usize,
        most: usize,
    ) -> PyResult<Option<Self>> {
        if !array.dtype().is_equiv_to(&T::get_dtype(array.py())) {
            return Ok(None);
        }
        let layout = Layout {
            dims: array.ndim(),
            shape: array.shape(),
            strides: array.strides(),
            contiguous: array.is_c_contiguous(),
        };
        let shape = layout.check(array.py(), argument, fewest, most)?;
        // SAFETY: `array` is a NumPy array, and alive as an argument of the running call.
        let (start, flags) = unsafe {
            let raw = array.as_array_ptr();
            ((*raw).fields.data.cast::<u8>(), (*raw).fields.flags)
        };
        if flags & NPY_ARRAY_ALIGNED == 0 {
            let message = format!("{argument} is not aligned to its items");
            return Err(misuse(array.py(), "alignment", &message));
        }
        Ok(Some(Self {
            start,
            items: array.len(),
            item_size: size_of::<T>(),
            shape,
            dims: array.ndim(),
            writable: flags & NPY_ARRAY_WRITEABLE != 0,
            _keep: None,
        }))
    }

    fn shape(&self) -> &[usize] {
        &self.shape[..self.dims]
    }

    fn region(&self, argument: &'static str) -> Region {
        let start = self.start as usize;
        Region(argument, start, start + self.items * self.item_size)
    }
}

impl Layout<'_> {
    fn check(
        &self,
        py: Python<'_>,
        argument: &dyn Display,
        fewest: usize,
        most: usize,
    ) -> PyResult<[usize; MOST_DIMS]> {
        if !(fewest..=most).contains(&self.dims) {
            let wanted = if fewest == most {
                format!("{most}")
            } else {
                format!("{fewest} to {most}")
            };
            let found = self.dims;
            let message = format!("{argument} must have {wanted} dimensions, got {found}");
            return Err(misuse(py, "shape", &message));
        }
        if !self.contiguous {
            let strides = self.strides;
            let message = format!("{argument} must be C-contiguous, got strides {strides:?}");
            return Err(misuse(py, "contiguity", &message));
        }
        let mut shape = [0; MOST_DIMS];
        shape[..self.dims].copy_from_slice(self.shape);
        Ok(shape)
    }
}

/// What is wrong with a value that is no array of `wanted`.
fn wrong_dtype(value: &Bound<'_, PyAny>, argument: &dyn Display, wanted: &str) -> PyErr {
    let found = value
        .getattr("dtype")
        .and_then(|dtype| dtype.str().map(|name| name.to_string()))
        .or_else(|_| value.get_type().name().map(|name| name.to_string()))
        .unwrap_or_else(|_| "something else".to_owned());
    let message = format!("{argument} must be an array of {wanted}, got {found}");
    misuse(value.py(), "dtype", &message)
}

/// A C-contiguous buffer of one element type, read in place.
pub struct Input<T: Item>(View, PhantomData<T>);

/// A C-contiguous, writable buffer of one element type, written in place.
pub struct Output<T: Item>(View, PhantomData<T>);

impl<T: Item> Input<T> {
    /// A buffer with `dims` dimensions.
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
        let view = View::new::<T>(value, &argument, fewest, most)?;
        view.map(|view| Self(view, PhantomData))
            .ok_or_else(|| wrong_dtype(value, &argument, T::NAME))
    }

    pub fn slice(&self) -> &[T] {
        if self.0.items == 0 {
            return &[];
        }
        // SAFETY: the view is C-contiguous and aligned, and lives as long as the call, during which the
        // caller does not write to it.
        unsafe { std::slice::from_raw_parts(self.0.start.cast(), self.0.items) }
    }

    pub fn shape(&self) -> &[usize] {
        self.0.shape()
    }
}

impl<T: Item> Output<T> {
    /// A writable buffer with `dims` dimensions.
    pub fn new(value: &Bound<'_, PyAny>, argument: &str, dims: usize) -> PyResult<Self> {
        let view = View::new::<T>(value, &argument, dims, dims)?
            .ok_or_else(|| wrong_dtype(value, &argument, T::NAME))?;
        if !view.writable {
            let message = format!("{argument} is read-only, but the call writes it");
            return Err(misuse(value.py(), "readonly", &message));
        }
        Ok(Self(view, PhantomData))
    }

    pub fn slice_mut(&mut self) -> &mut [T] {
        if self.0.items == 0 {
            return &mut [];
        }
        // SAFETY: as in `Input::slice`, and writable; `disjoint` has ruled out that another argument
        // of the call shares its memory.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.cast(), self.0.items) }
    }

    pub fn shape(&self) -> &[usize] {
        self.0.shape()
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
    /// Read in place; a negative token shows as a value of 2^31 or more.
    Narrow(Input<i32>),
    /// Converted; a token outside 32 bits becomes 2^31, which is no token and no media reference.
    Wide(Vec<u32>, Input<i64>),
}

impl Tokens {
    pub fn new(value: &Bound<'_, PyAny>, argument: &dyn Display, dims: usize) -> PyResult<Self> {
        Self::up_to(value, argument, dims, dims)
    }

    /// A buffer with `fewest` to `most` dimensions.
    pub fn up_to(
        value: &Bound<'_, PyAny>,
        argument: &dyn Display,
        fewest: usize,
        most: usize,
    ) -> PyResult<Self> {
        if let Some(view) = View::new::<i32>(value, argument, fewest, most)? {
            return Ok(Self::Narrow(Input(view, PhantomData)));
        }
        let Some(view) = View::new::<i64>(value, argument, fewest, most)? else {
            return Err(wrong_dtype(value, argument, "int32 or int64"));
        };
        let wide = Input::<i64>(view, PhantomData);
        let narrow = wide
            .slice()
            .iter()
            .map(|&token| i32::try_from(token).unwrap_or(i32::MIN).cast_unsigned())
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

impl<T: Item> Memory for Input<T> {
    fn region(&self, argument: &'static str) -> Region {
        self.0.region(argument)
    }
}

impl<T: Item> Memory for Output<T> {
    fn region(&self, argument: &'static str) -> Region {
        self.0.region(argument)
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

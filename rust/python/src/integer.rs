//! Integer arguments, whose errors name the argument and the value.

use std::convert::Infallible;

use pyo3::Borrowed;
use pyo3::prelude::*;

use crate::errors::misuse;

pub const HANDLE: &str = "a handle that admit gave";
pub const LEASE: &str = "a lease that pin gave";
pub const SCOPE: &str = "a scope that intern_scope gave";
pub const MEDIA: &str = "a reference that intern_media gave";
pub const FROM_MINUS_ONE: &str = "in -1..=2147483647";
pub const FROM_ZERO: &str = "in 0..=2147483647";
pub const FROM_ONE: &str = "in 1..=2147483647";
pub const ROLE: &str = "0 (target) or 1 (draft)";
pub const PAD: &str = "0 or -1";
pub const PAGES: &str = "in 2..=2147483647: page 0 is reserved";

/// What was given for an integer: the number, or how Python shows what is none of 64 bits.
pub struct Integer(pub Result<i64, String>);

impl<'py> FromPyObject<'_, 'py> for Integer {
    type Error = Infallible;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Self(value.extract::<i64>().map_err(|_| {
            // Python prints no integers of thousands of digits.
            value
                .repr()
                .map_or_else(|_| "too long to print".to_owned(), |text| text.to_string())
        })))
    }
}

impl Integer {
    /// The number as a `T`; anything else is misuse.
    pub fn get<T: TryFrom<i64>>(
        self,
        py: Python<'_>,
        argument: &str,
        supported: &str,
    ) -> PyResult<T> {
        let shown = match self.0 {
            Ok(number) => match T::try_from(number) {
                Ok(number) => return Ok(number),
                Err(_) => number.to_string(),
            },
            Err(shown) => shown,
        };
        let message = format!("{argument} is {shown}, must be {supported}");
        Err(misuse(py, "integer", &message))
    }
}

//! One conversion from the core's errors to the classes of `tandemkv.errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use tandemkv_core::LedgerError;

static LEDGER_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static BUFFER_TOO_SMALL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static EVENT_GAP: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static SEQUENCES_OPEN: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn raise(
    py: Python<'_>,
    class: (&'static PyOnceLock<Py<PyType>>, &str),
    message: &str,
    code: &str,
    details: &[(&'static str, i128)],
) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let numbers = PyDict::new(py);
        for (name, value) in details {
            numbers.set_item(name, value)?;
        }
        let class = class.0.import(py, "tandemkv.errors", class.1)?;
        Ok(PyErr::from_value(class.call1((message, code, numbers))?))
    };
    build().unwrap_or_else(|error| error)
}

/// The Python exception for a core error.
pub fn ledger_error(py: Python<'_>, error: &LedgerError) -> PyErr {
    let class = match error {
        LedgerError::BufferTooSmall { .. } => (&BUFFER_TOO_SMALL, "BufferTooSmallError"),
        LedgerError::EventsGone { .. } => (&EVENT_GAP, "EventGapError"),
        LedgerError::SequencesOpen { .. } => (&SEQUENCES_OPEN, "SequencesOpenError"),
        _ => (&LEDGER_ERROR, "LedgerError"),
    };
    raise(
        py,
        class,
        &error.to_string(),
        error.code(),
        &error.details(),
    )
}

/// Misuse that is found before the core is asked.
pub fn misuse(py: Python<'_>, code: &str, message: &str) -> PyErr {
    raise(py, (&LEDGER_ERROR, "LedgerError"), message, code, &[])
}

//! Tables in the forms of other kernels: functions of the module that read a ledger.

use pyo3::prelude::*;
use tandemkv_core::ledger::{Csr, PathBatch};

use crate::arguments::{StepNumber, TokenRows};
use crate::buffers::{Input, Memory, Output, disjoint};
use crate::errors::misuse;
use crate::integer::{FROM_ONE, FROM_ZERO, Integer, PAD, ROLE};
use crate::ledger::{PyLedger, converted};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(spans, module)?)?;
    module.add_function(wrap_pyfunction!(csr, module)?)?;
    module.add_function(wrap_pyfunction!(slot_mapping, module)?)?;
    module.add_function(wrap_pyfunction!(token_rows, module)?)?;
    module.add_function(wrap_pyfunction!(path_moves, module)?)
}

#[pyfunction]
#[pyo3(signature = (ledger, step, handle, start, width, role = Integer(Ok(0))),
    text_signature = "(ledger, step, handle, start, width, role=0)")]
fn spans(
    py: Python<'_>,
    ledger: &PyLedger,
    step: StepNumber,
    handle: &Bound<'_, PyAny>,
    start: &Bound<'_, PyAny>,
    width: &Bound<'_, PyAny>,
    role: Integer,
) -> PyResult<()> {
    let role = role.get(py, "role", ROLE)?;
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let mut start = Output::<i32>::new(start, "start", 1)?;
    let mut width = Output::<i32>::new(width, "width", 1)?;
    disjoint(
        py,
        &[start.region("start"), width.region("width")],
        &[handle.region("handle")],
    )?;
    let result = ledger.lock(py)?.spans(
        step.0,
        handle.slice(),
        role,
        start.unsigned_mut(),
        width.unsigned_mut(),
    );
    converted(py, result)
}

#[pyfunction]
#[pyo3(signature = (ledger, handle, kv_len, indptr, indices, last_page_len, *, scale = Integer(Ok(1)), class_index = Integer(Ok(0))),
    text_signature = "(ledger, handle, kv_len, indptr, indices, last_page_len, *, scale=1, class_index=0)")]
#[allow(clippy::too_many_arguments)] // three outputs, as the form has them
fn csr(
    py: Python<'_>,
    ledger: &PyLedger,
    handle: &Bound<'_, PyAny>,
    kv_len: &Bound<'_, PyAny>,
    indptr: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
    last_page_len: &Bound<'_, PyAny>,
    scale: Integer,
    class_index: Integer,
) -> PyResult<usize> {
    let scale = scale.get(py, "scale", FROM_ONE)?;
    let class_index = class_index.get(py, "class_index", FROM_ZERO)?;
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let kv_len = Input::<i32>::new(kv_len, "kv_len", 1)?;
    let mut indptr = Output::<i32>::new(indptr, "indptr", 1)?;
    let mut indices = Output::<i32>::new(indices, "indices", 1)?;
    let mut last_page_len = Output::<i32>::new(last_page_len, "last_page_len", 1)?;
    disjoint(
        py,
        &[
            indptr.region("indptr"),
            indices.region("indices"),
            last_page_len.region("last_page_len"),
        ],
        &[handle.region("handle"), kv_len.region("kv_len")],
    )?;
    let mut out = Csr {
        indptr: indptr.unsigned_mut(),
        indices: indices.unsigned_mut(),
        last_page_len: last_page_len.unsigned_mut(),
    };
    let (handle, kv_len) = (handle.slice(), kv_len.slice());
    let result = ledger
        .lock(py)?
        .csr(class_index, handle, kv_len, scale, &mut out);
    converted(py, result)
}

#[pyfunction]
#[pyo3(signature = (ledger, handle, start, width, out, *, pad = Integer(Ok(0)), class_index = Integer(Ok(0))),
    text_signature = "(ledger, handle, start, width, out, *, pad=0, class_index=0)")]
#[allow(clippy::too_many_arguments)]
fn slot_mapping(
    py: Python<'_>,
    ledger: &PyLedger,
    handle: &Bound<'_, PyAny>,
    start: &Bound<'_, PyAny>,
    width: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    pad: Integer,
    class_index: Integer,
) -> PyResult<usize> {
    let pad = pad.get(py, "pad", PAD)?;
    let class_index = class_index.get(py, "class_index", FROM_ZERO)?;
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let start = Input::<i32>::new(start, "start", 1)?;
    let width = Input::<i32>::new(width, "width", 1)?;
    let mut out = Output::<i64>::new(out, "out", 1)?;
    disjoint(
        py,
        &[out.region("out")],
        &[
            handle.region("handle"),
            start.region("start"),
            width.region("width"),
        ],
    )?;
    let result = ledger.lock(py)?.slot_mapping(
        class_index,
        handle.slice(),
        start.slice(),
        width.slice(),
        pad,
        out.slice_mut(),
    );
    converted(py, result)
}

#[pyfunction]
#[pyo3(signature = (ledger, handle, kv_len, dst, *, pad = Integer(Ok(0)), class_index = Integer(Ok(0))),
    text_signature = "(ledger, handle, kv_len, dst, *, pad=0, class_index=0)")]
fn token_rows(
    py: Python<'_>,
    ledger: &PyLedger,
    handle: &Bound<'_, PyAny>,
    kv_len: &Bound<'_, PyAny>,
    dst: &Bound<'_, PyAny>,
    pad: Integer,
    class_index: Integer,
) -> PyResult<()> {
    let pad = pad.get(py, "pad", PAD)?;
    let class_index = class_index.get(py, "class_index", FROM_ZERO)?;
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let kv_len = Input::<i32>::new(kv_len, "kv_len", 1)?;
    let mut dst = Output::<i32>::new(dst, "dst", 2)?;
    disjoint(
        py,
        &[dst.region("dst")],
        &[handle.region("handle"), kv_len.region("kv_len")],
    )?;
    let (rows, width) = (dst.shape()[0], dst.shape()[1]);
    if rows != handle.slice().len() {
        let message = format!(
            "dst has {rows} rows, expected one per handle: {}",
            handle.slice().len()
        );
        return Err(misuse(py, "length_mismatch", &message));
    }
    let result = ledger.lock(py)?.token_rows(
        class_index,
        handle.slice(),
        kv_len.slice(),
        pad,
        width,
        dst.slice_mut(),
    );
    converted(py, result)
}

#[pyfunction]
#[pyo3(signature = (ledger, step, handle, path, count, out, role = Integer(Ok(0))),
    text_signature = "(ledger, step, handle, path, count, out, role=0)")]
#[allow(clippy::too_many_arguments)]
fn path_moves(
    py: Python<'_>,
    ledger: &PyLedger,
    step: StepNumber,
    handle: &Bound<'_, PyAny>,
    path: &Bound<'_, PyAny>,
    count: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    role: Integer,
) -> PyResult<usize> {
    let role = role.get(py, "role", ROLE)?;
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let path = Input::<i32>::up_to(path, "path", 1, 2)?;
    let count = Input::<i32>::new(count, "count", 1)?;
    let mut out = Output::<i32>::new(out, "out", 2)?;
    if out.shape()[1] != 5 {
        let message = format!("out has {} columns, must have 5", out.shape()[1]);
        return Err(misuse(py, "shape", &message));
    }
    disjoint(
        py,
        &[out.region("out")],
        &[
            handle.region("handle"),
            path.region("path"),
            count.region("count"),
        ],
    )?;
    let rows = TokenRows::new(
        py,
        "path",
        path.shape(),
        handle.slice().len(),
        count.slice(),
    )?;
    let batch = PathBatch {
        handle: handle.slice(),
        path: path.slice(),
        rows: rows.rows(),
        count: count.slice(),
        role,
    };
    let records = out.unsigned_mut().as_chunks_mut::<5>().0;
    let result = ledger.lock(py)?.path_moves(step.0, &batch, records);
    converted(py, result)
}

//! What a scheduler asks: the bodies of the read-only calls of `Ledger` in docs/scheduling.md.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tandemkv_core::ledger::{BlocksBatch, MatchReport, MissReason};

use crate::arguments::{Requests, as_given};
use crate::buffers::{Input, Memory, Output, disjoint};
use crate::errors::misuse;
use crate::ledger::{DETACH_TOKENS, PyLedger, converted};

pub fn fits(
    py: Python<'_>,
    ledger: &PyLedger,
    requests: &Requests,
    answer: &Bound<'_, PyAny>,
    hit: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let mut answer = Output::<i32>::new(answer, "answer", 1)?;
    let mut hit = Output::<i32>::new(hit, "hit", 1)?;
    let outputs = [answer.region("answer"), hit.region("hit")];
    disjoint(py, &outputs, &requests.memory())?;
    let slices = requests.prompts.slices(py)?;
    let batch = requests.batch(&slices);
    let (answer, hit) = (answer.slice_mut(), hit.slice_mut());
    let mut guard = ledger.lock(py)?;
    let ledger = &mut *guard;
    let result = if slices.iter().map(|prompt| prompt.len()).sum::<usize>() >= DETACH_TOKENS {
        // Moved: policies may go to another thread, but not be read from two.
        py.detach(move || ledger.fits(&batch, answer, hit))
    } else {
        ledger.fits(&batch, answer, hit)
    };
    let given = |item, position| requests.prompts.original(item, position);
    converted(py, result.map_err(|error| as_given(error, given)))
}

/// Arguments of one call, an array each.
type FourArrays<'a, 'py> = (
    &'a Bound<'py, PyAny>,
    &'a Bound<'py, PyAny>,
    &'a Bound<'py, PyAny>,
    &'a Bound<'py, PyAny>,
);

pub fn fits_blocks(
    py: Python<'_>,
    ledger: &PyLedger,
    (length, hit, first, max_total): FourArrays<'_, '_>,
    answer: &Bound<'_, PyAny>,
    scope: Option<&Bound<'_, PyAny>>,
) -> PyResult<usize> {
    let length = Input::<i64>::new(length, "length", 1)?;
    let hit = Input::<i64>::new(hit, "hit", 1)?;
    let first = Input::<i32>::new(first, "first", 1)?;
    let max_total = Input::<i64>::new(max_total, "max_total", 1)?;
    let mut answer = Output::<i32>::new(answer, "answer", 1)?;
    let scope = scope
        .map(|value| Input::<i32>::new(value, "scope", 1))
        .transpose()?;
    let mut inputs = vec![
        length.region("length"),
        hit.region("hit"),
        first.region("first"),
        max_total.region("max_total"),
    ];
    inputs.extend(scope.as_ref().map(|values| values.region("scope")));
    disjoint(py, &[answer.region("answer")], &inputs)?;
    let batch = BlocksBatch {
        length: length.slice(),
        hit: hit.slice(),
        first: first.slice(),
        max_total: max_total.slice(),
        scope: scope.as_ref().map(Input::slice),
    };
    let result = ledger.lock(py)?.fits_blocks(&batch, answer.slice_mut());
    converted(py, result)
}

pub fn reclaimable(
    py: Python<'_>,
    ledger: &PyLedger,
    handle: &Bound<'_, PyAny>,
    pages: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let mut pages = Output::<i64>::new(pages, "pages", 2)?;
    disjoint(py, &[pages.region("pages")], &[handle.region("handle")])?;
    let mut ledger = ledger.lock(py)?;
    let shape = [handle.slice().len(), ledger.num_classes()];
    if *pages.shape() != shape {
        let message = format!("pages has shape {:?}, must be {shape:?}", pages.shape());
        return Err(misuse(py, "shape", &message));
    }
    let result = ledger.reclaimable(handle.slice(), pages.slice_mut());
    converted(py, result)
}

pub fn victims(
    py: Python<'_>,
    ledger: &PyLedger,
    handle: &Bound<'_, PyAny>,
    need: &Bound<'_, PyAny>,
    chosen: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let need = Input::<i64>::new(need, "need", 1)?;
    let mut chosen = Output::<u8>::new(chosen, "chosen", 1)?;
    let inputs = [handle.region("handle"), need.region("need")];
    disjoint(py, &[chosen.region("chosen")], &inputs)?;
    let result = ledger
        .lock(py)?
        .victims(handle.slice(), need.slice(), chosen.slice_mut());
    converted(py, result)
}

/// The report as a dictionary.
pub fn explanation<'py>(py: Python<'py>, report: &MatchReport) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("tokens", report.tokens)?;
    out.set_item("matched", report.matched)?;
    out.set_item("usable", report.usable)?;
    out.set_item("hit", report.hit)?;
    let missed = PyList::empty(py);
    for range in &report.missed {
        let item = PyDict::new(py);
        item.set_item("reason", range.reason.name())?;
        item.set_item("position", range.position)?;
        item.set_item("tokens", range.tokens)?;
        if let MissReason::Scope(scope) = range.reason {
            item.set_item("scope", scope)?;
        }
        missed.append(item)?;
    }
    out.set_item("missed", missed)?;
    Ok(out)
}

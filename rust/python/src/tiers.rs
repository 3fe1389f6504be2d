//! The calls of `Ledger` about lower tiers, of docs/tiers.md.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tandemkv_core::key::BlockKey;

use crate::buffers::{Input, Memory, Output, disjoint};
use crate::errors::misuse;
use crate::ledger::{PyLedger, converted};

/// Names of the tiers, by number.
const TIERS: [&str; 3] = ["device", "host", "disk"];

/// Columns of a row of `transfers`.
const COLUMNS: usize = 6;

/// Bytes of a key.
const KEY: usize = 32;

pub fn transfers(
    py: Python<'_>,
    ledger: &PyLedger,
    out: &Bound<'_, PyAny>,
    keys: Option<&Bound<'_, PyAny>>,
) -> PyResult<usize> {
    let mut out = Output::<i64>::new(out, "out", 2)?;
    check_columns(py, "out", out.shape()[1], COLUMNS)?;
    let mut keys = keys
        .map(|keys| Output::<u8>::new(keys, "keys", 2))
        .transpose()?;
    let mut regions = vec![out.region("out")];
    if let Some(keys) = &keys {
        check_columns(py, "keys", keys.shape()[1], KEY)?;
        regions.push(keys.region("keys"));
    }
    disjoint(py, &regions, &[])?;
    let rows = out.slice_mut().as_chunks_mut::<COLUMNS>().0;
    if let Some(keys) = &keys
        && keys.shape()[0] != rows.len()
    {
        let message = format!(
            "keys has {} rows, must have those of out: {}",
            keys.shape()[0],
            rows.len()
        );
        return Err(misuse(py, "shape", &message));
    }
    let taken = converted(py, ledger.lock(py)?.transfers(rows.len()))?;
    for (row, transfer) in rows.iter_mut().zip(&taken) {
        *row = [
            transfer.id.cast_signed(),
            transfer.class.into(),
            transfer.source_tier.into(),
            transfer.source_page.into(),
            transfer.destination_tier.into(),
            transfer.destination_page.into(),
        ];
    }
    if let Some(keys) = &mut keys {
        for (key, transfer) in keys
            .slice_mut()
            .as_chunks_mut::<KEY>()
            .0
            .iter_mut()
            .zip(&taken)
        {
            *key = transfer.key;
        }
    }
    Ok(taken.len())
}

fn check_columns(py: Python<'_>, argument: &str, columns: usize, expected: usize) -> PyResult<()> {
    if columns == expected {
        return Ok(());
    }
    let message = format!("{argument} has {columns} columns, must have {expected}");
    Err(misuse(py, "shape", &message))
}

pub fn complete_transfers(
    py: Python<'_>,
    ledger: &PyLedger,
    ids: &Bound<'_, PyAny>,
    ok: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let ids = Input::<i64>::new(ids, "ids", 1)?;
    let ok = Input::<u8>::new(ok, "ok", 1)?;
    let result = ledger.lock(py)?.complete_transfers(ids.slice(), ok.slice());
    converted(py, result)
}

pub fn loading(
    py: Python<'_>,
    ledger: &PyLedger,
    handle: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let handle = Input::<i64>::new(handle, "handle", 1)?;
    let mut out = Output::<u8>::new(out, "out", 1)?;
    disjoint(py, &[out.region("out")], &[handle.region("handle")])?;
    let result = ledger.lock(py)?.loading(handle.slice(), out.slice_mut());
    converted(py, result)
}

pub fn restore(
    py: Python<'_>,
    ledger: &PyLedger,
    tier: &str,
    class_index: u32,
    keys: &Bound<'_, PyAny>,
    pages: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let number = TIERS.iter().skip(1).position(|&name| name == tier);
    let Some(number) = number else {
        let message = format!("tier is '{tier}', must be 'host' or 'disk'");
        return Err(misuse(py, "tier", &message));
    };
    let tier = u8::try_from(number + 1).expect("there are three tiers");
    let keys = Input::<u8>::new(keys, "keys", 2)?;
    check_columns(py, "keys", keys.shape()[1], KEY)?;
    let pages = Input::<i32>::new(pages, "pages", 1)?;
    let keys: Vec<BlockKey> = keys.slice().as_chunks::<KEY>().0.to_vec();
    let result = ledger
        .lock(py)?
        .restore(tier, class_index, &keys, pages.slice());
    converted(py, result)
}

pub fn adopt(
    py: Python<'_>,
    ledger: &PyLedger,
    class_index: u32,
    keys: &Bound<'_, PyAny>,
    pages: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let keys = Input::<u8>::new(keys, "keys", 2)?;
    check_columns(py, "keys", keys.shape()[1], KEY)?;
    let mut pages = Output::<i32>::new(pages, "pages", 1)?;
    disjoint(py, &[pages.region("pages")], &[keys.region("keys")])?;
    let keys: Vec<BlockKey> = keys.slice().as_chunks::<KEY>().0.to_vec();
    let out = pages.slice_mut();
    if out.len() != keys.len() {
        let message = format!("pages has {} items, must have {}", out.len(), keys.len());
        return Err(misuse(py, "length_mismatch", &message));
    }
    let found = converted(py, ledger.lock(py)?.adopt(class_index, &keys))?;
    for (out, page) in out.iter_mut().zip(&found) {
        *out = page.map_or(-1, u32::cast_signed);
    }
    Ok(found.iter().flatten().count())
}

pub fn stats<'py>(py: Python<'py>, ledger: &PyLedger) -> PyResult<Bound<'py, PyDict>> {
    let found = ledger.lock(py)?.tier_stats();
    let out = PyDict::new(py);
    let tiers = PyList::empty(py);
    let (shelves, counters, open) = found.unwrap_or_default();
    for shelf in shelves {
        let pages = PyDict::new(py);
        pages.set_item("tier", TIERS[shelf.tier as usize])?;
        pages.set_item("classes", shelf.classes)?;
        pages.set_item("total", shelf.pages.total)?;
        pages.set_item("free", shelf.pages.free)?;
        pages.set_item("writing", shelf.pages.writing)?;
        pages.set_item("valid", shelf.pages.valid)?;
        pages.set_item("spare", shelf.pages.spare)?;
        pages.set_item("pinned", shelf.pages.pinned)?;
        tiers.append(pages)?;
    }
    out.set_item("shelves", tiers)?;
    let counted = PyDict::new(py);
    for (name, value) in counters.named() {
        counted.set_item(name, value)?;
    }
    out.set_item("counters", counted)?;
    out.set_item("open_transfers", open)?;
    Ok(out)
}

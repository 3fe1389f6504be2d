//! Keys and events as Python objects. Not for hot paths.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tandemkv_core::event::{Event, EventKind, Reason, Stored};
use tandemkv_core::key::BlockKey;
use tandemkv_core::scope::{AdapterId, Salt, Scope};

/// Names of the tiers, by number.
const TIERS: [&str; 3] = ["device", "host", "disk"];

type Dict<'py> = PyResult<Bound<'py, PyDict>>;

/// Keys as `u8[n, 32]`.
pub fn keys<'py>(py: Python<'py>, keys: &[BlockKey]) -> PyResult<Bound<'py, PyArray2<u8>>> {
    PyArray1::from_slice(py, keys.as_flattened()).reshape([keys.len(), 32])
}

fn key_list<'py>(py: Python<'py>, keys: &[BlockKey]) -> Vec<Bound<'py, PyBytes>> {
    keys.iter().map(|key| PyBytes::new(py, key)).collect()
}

fn put_scope(out: &Bound<'_, PyDict>, scope: &Scope) -> PyResult<()> {
    match &scope.adapter {
        None => out.set_item("adapter", out.py().None())?,
        Some(adapter) => match &adapter.id {
            AdapterId::Number(id) => out.set_item("adapter", (id, adapter.version))?,
            AdapterId::Name(id) => out.set_item("adapter", (id, adapter.version))?,
        },
    }
    match &scope.salt {
        None => out.set_item("salt", out.py().None()),
        Some(Salt::Bytes(bytes)) => out.set_item("salt", PyBytes::new(out.py(), bytes)),
        Some(Salt::Text(text)) => out.set_item("salt", text),
    }
}

fn put_stored(out: &Bound<'_, PyDict>, run: &Stored, tokens_per_block: u32) -> PyResult<()> {
    let py = out.py();
    out.set_item("kind", "stored")?;
    out.set_item("tier", TIERS[0])?;
    out.set_item("parent", run.parent.map(|key| PyBytes::new(py, &key)))?;
    out.set_item("keys", key_list(py, &run.keys))?;
    let tokens = run.tokens.iter().map(|token| token.cast_signed());
    out.set_item("tokens", PyArray1::from_iter(py, tokens))?;
    out.set_item("tokens_per_block", tokens_per_block)?;
    put_scope(out, &run.scope)?;
    let media = run.media.iter().map(|(position, item)| {
        let digest = PyBytes::new(py, &item.digest);
        (*position, item.length, digest)
    });
    out.set_item("media", media.collect::<Vec<_>>())
}

/// One event.
pub fn event<'py>(py: Python<'py>, event: &Event, tokens_per_block: u32) -> Dict<'py> {
    let out = PyDict::new(py);
    out.set_item("number", event.number)?;
    match &event.kind {
        EventKind::Stored(run) => put_stored(&out, run, tokens_per_block)?,
        EventKind::StoredBelow { tier, keys } => {
            out.set_item("kind", "stored")?;
            out.set_item("tier", TIERS[usize::from(*tier)])?;
            out.set_item("keys", key_list(py, keys))?;
        }
        EventKind::Removed { tier, keys, reason } => {
            out.set_item("kind", "removed")?;
            out.set_item("tier", TIERS[usize::from(*tier)])?;
            out.set_item("keys", key_list(py, keys))?;
            let reason = match reason {
                Reason::Evicted => "evicted",
                Reason::Dropped => "dropped",
                Reason::Failed => "failed",
            };
            out.set_item("reason", reason)?;
        }
        EventKind::Cleared { tier } => {
            out.set_item("kind", "cleared")?;
            out.set_item("tier", TIERS[usize::from(*tier)])?;
        }
    }
    Ok(out)
}

/// A snapshot.
pub fn snapshot<'py>(
    py: Python<'py>,
    number: u64,
    runs: &[Stored],
    below: &[Vec<BlockKey>; 2],
    tokens_per_block: u32,
) -> Dict<'py> {
    let out = PyDict::new(py);
    let blocks = runs.iter().map(|run| {
        let stored = PyDict::new(py);
        put_stored(&stored, run, tokens_per_block)?;
        Ok(stored)
    });
    out.set_item("number", number)?;
    out.set_item("blocks", blocks.collect::<PyResult<Vec<_>>>()?)?;
    for (name, keys) in TIERS[1..].iter().zip(below) {
        out.set_item(name, key_list(py, keys))?;
    }
    Ok(out)
}

//! Reports of the ledger as Python dictionaries. Not for hot paths.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tandemkv_core::ids::Token;
use tandemkv_core::ledger::{Dump, NodeDump, QuotaStats, SequenceDump};
use tandemkv_core::stats::Stats;

type Dict<'py> = PyResult<Bound<'py, PyDict>>;

pub fn sequence<'py>(py: Python<'py>, dump: &SequenceDump, with_pages: bool) -> Dict<'py> {
    let out = PyDict::new(py);
    out.set_item("suspended", dump.suspended)?;
    out.set_item("scope", dump.scope)?;
    out.set_item("draft_from", dump.draft_from)?;
    out.set_item("max_total", dump.max_total)?;
    out.set_item("known", dump.known)?;
    out.set_item("valid", dump.valid)?;
    out.set_item("reach", dump.reach)?;
    out.set_item("history", dump.history)?;
    out.set_item("committed", dump.committed)?;
    out.set_item("capacity", dump.capacity)?;
    out.set_item("promise", dump.promise)?;
    out.set_item("blocks", dump.blocks)?;
    out.set_item("outstanding", &dump.outstanding)?;
    if with_pages {
        out.set_item("pages", &dump.pages)?;
        out.set_item("node", dump.node)?;
    }
    Ok(out)
}

pub fn stats<'py>(py: Python<'py>, stats: &Stats) -> Dict<'py> {
    let out = PyDict::new(py);
    let classes = PyList::empty(py);
    for class in &stats.classes {
        let item = PyDict::new(py);
        item.set_item("total", class.total)?;
        item.set_item("reserved", class.reserved)?;
        item.set_item("free", class.free)?;
        item.set_item("fenced", class.fenced)?;
        item.set_item("live", class.live)?;
        item.set_item("cached", class.cached)?;
        item.set_item("protected", class.protected)?;
        item.set_item("evictable", class.evictable)?;
        item.set_item("promised", class.promised)?;
        classes.append(item)?;
    }
    out.set_item("classes", classes)?;
    out.set_item("open_sequences", stats.open_sequences)?;
    out.set_item("suspended_sequences", stats.suspended_sequences)?;
    out.set_item("promised", stats.promised)?;
    out.set_item("open_steps", stats.open_steps)?;
    out.set_item("newest_step", stats.newest_step)?;
    out.set_item("nodes", stats.nodes)?;
    out.set_item("cached_blocks", stats.cached_blocks)?;
    out.set_item("leases", stats.leases)?;
    out.set_item("pinned_blocks", stats.pinned_blocks)?;
    out.set_item("guarded_blocks", stats.guarded_blocks)?;
    for (name, value) in stats.counters.named() {
        out.set_item(name, value)?;
    }
    Ok(out)
}

pub fn quota<'py>(py: Python<'py>, quota: &QuotaStats) -> Dict<'py> {
    let out = PyDict::new(py);
    out.set_item("scope", quota.scope)?;
    out.set_item("floor_blocks", quota.floor_blocks)?;
    out.set_item("ceiling_blocks", quota.ceiling_blocks)?;
    out.set_item("cached_blocks", quota.cached_blocks)?;
    out.set_item("evictable_blocks", quota.evictable_blocks)?;
    out.set_item("guarded_blocks", quota.guarded_blocks)?;
    Ok(out)
}

pub fn dump<'py>(py: Python<'py>, dump: &Dump) -> Dict<'py> {
    let out = PyDict::new(py);
    let classes = PyList::empty(py);
    for ((free, fenced), side) in dump.free.iter().zip(&dump.fenced).zip(&dump.side) {
        let item = PyDict::new(py);
        let side: Vec<_> = (side.iter())
            .map(|side| (side.page, side.pins, side.stamp, side.covered, side.wanted))
            .collect();
        item.set_item("side", side)?;
        item.set_item("free", free)?;
        item.set_item("fenced", fenced)?;
        classes.append(item)?;
    }
    out.set_item("classes", classes)?;
    let nodes = dump
        .nodes
        .iter()
        .map(|dump| node(py, dump))
        .collect::<PyResult<Vec<_>>>()?;
    out.set_item("nodes", nodes)?;
    let sequences = PyDict::new(py);
    for dump in &dump.sequences {
        sequences.set_item(dump.handle, sequence(py, dump, true)?)?;
    }
    out.set_item("sequences", sequences)?;
    Ok(out)
}

fn node<'py>(py: Python<'py>, dump: &NodeDump) -> Dict<'py> {
    let out = PyDict::new(py);
    out.set_item("id", dump.id)?;
    out.set_item("parent", dump.parent)?;
    out.set_item("scope", dump.scope)?;
    out.set_item("start", dump.start)?;
    let signed =
        |tokens: &[Token]| -> Vec<i32> { tokens.iter().map(|token| token.cast_signed()).collect() };
    let tokens: Vec<Vec<i32>> = dump.tokens.iter().map(|block| signed(block)).collect();
    out.set_item("tokens", tokens)?;
    out.set_item("tip", signed(&dump.tip))?;
    out.set_item("covered", dump.covered)?;
    out.set_item("draft_valid", dump.draft_valid)?;
    out.set_item("pins", dump.pins)?;
    out.set_item("active_children", dump.active_children)?;
    out.set_item("last_use", dump.last_use)?;
    out.set_item("stamp", dump.stamp)?;
    out.set_item("uses", dump.uses)?;
    out.set_item("rank", dump.rank)?;
    out.set_item("priority", dump.priority)?;
    out.set_item("until", dump.until)?;
    out.set_item("pages", &dump.pages)?;
    Ok(out)
}

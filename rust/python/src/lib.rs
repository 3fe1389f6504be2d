//! `tandemkv._core`: conversion, locking and errors around `tandemkv-core`.

use pyo3::prelude::*;

mod arguments;
mod budget;
mod buffers;
mod copies;
mod cost;
mod errors;
mod events;
mod identity;
mod integer;
mod ledger;
mod probe;
mod tables;
mod tiers;
mod views;

/// The extension module.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DEBUG_BUILD", cfg!(debug_assertions))?;
    budget::register(module)?;
    copies::register(module)?;
    cost::register(module)?;
    module.add_class::<ledger::PyLedger>()?;
    tables::register(module)?;
    Ok(())
}

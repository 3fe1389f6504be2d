//! Every decision about the KV-cache memory of a target model and its
//! speculative draft: budget math, page pools, the prefix tree and the ledger.
//!
//! This crate knows no Python and no device: it decides, the engine computes.
#![forbid(unsafe_code)]

mod blocks;
pub mod budget;
mod classes;
pub mod error;
pub mod event;
pub mod ids;
mod interned;
pub mod key;
pub mod ledger;
pub mod media;
mod pool;
mod prefix;
pub mod scope;
mod sequence;
mod side;
mod slab;
pub mod stats;
mod steps;
mod table;
pub mod tiers;
pub mod units;
pub mod window;

pub use error::LedgerError;
pub use ledger::{Ledger, LedgerConfig};
pub use prefix::EvictionPolicy;

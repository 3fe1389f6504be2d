//! Every decision about the KV-cache memory of a target model and its
//! speculative draft: budget math, page pools, the prefix tree and the ledger.
//!
//! This crate knows no Python and no device: it decides, the engine computes.
#![forbid(unsafe_code)]

pub mod budget;
pub mod units;

//! Memory that a ledger asks for at once, asked for before anything is built.

use crate::error::LedgerError;
use crate::ledger::LedgerConfig;
use crate::sequence::Sequence;
use crate::table::TableRow;

/// Bytes of a page's entry in the lists and tables of its class, side pages included.
const PAGE_BYTES: u64 = 64;

/// Checks that the system has the memory for the lists and tables of a ledger: a failed allocation would
/// end the process. The bytes are an estimate from above, short of what events and lower tiers take.
pub(super) fn check_memory(config: &LedgerConfig) -> Result<(), LedgerError> {
    let classes = config.num_pages.len() as u64;
    let pages: u64 = config.num_pages.iter().map(|&pages| u64::from(pages)).sum();
    let record = 4 * u64::from(config.tokens_per_block) + 16 + 4 * classes;
    let row = (size_of::<Sequence>() + 16) as u64 + classes * size_of::<TableRow>() as u64;
    let bytes = u64::from(config.records())
        .saturating_mul(record)
        .saturating_add(pages.saturating_mul(PAGE_BYTES))
        .saturating_add(u64::from(config.max_sequences).saturating_mul(row));
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut probe: Vec<u8> = Vec::new();
    probe
        .try_reserve_exact(size)
        .map_err(|_| LedgerError::Memory { bytes })
}

//! The calls that are measured, each a function of its own so that callgrind can find it.

use tandemkv_core::Ledger;
use tandemkv_core::ledger::{AdmitBatch, AdvanceBatch, Rows};

use crate::{Admission, Decode};

const MISUSE: &str = "a correct call";

/// `admit` in an open step.
///
/// # Panics
///
/// On misuse, as all functions of this module.
pub fn admit(ledger: &mut Ledger, step: u64, batch: &mut Admission<'_>) -> usize {
    let arguments = AdmitBatch {
        prompts: &batch.prompts,
        scope: &batch.scope,
        first: &batch.first,
        max_total: &batch.max_total,
        draft_from: None,
    };
    ledger
        .admit(step, &arguments, false, &mut batch.handle, &mut batch.hit)
        .expect(MISUSE)
}

/// Admits prompts, runs them whole and publishes them: one step.
#[inline(never)]
pub fn place(ledger: &mut Ledger, batch: &mut Admission<'_>) {
    let step = ledger.begin_step(0.0).expect(MISUSE);
    let admitted = admit(ledger, step, batch);
    assert_eq!(admitted, batch.prompts.len(), "all have room");
    drop(ledger.take_moves());
    ledger.complete_step(step).expect(MISUSE);
    let results = AdvanceBatch {
        handle: &batch.handle,
        tokens: &[],
        rows: Rows::Matrix(0),
        count: &batch.zeros,
        valid: None,
    };
    ledger.advance(step, &results).expect(MISUSE);
}

/// One decode step: room, then results.
#[inline(never)]
pub fn step(ledger: &mut Ledger, batch: &mut Decode) {
    let step = ledger.begin_step(0.0).expect(MISUSE);
    let grown = ledger.grow(step, &batch.handle, &batch.width, false, &mut batch.ok);
    assert_eq!(grown.expect(MISUSE), batch.handle.len(), "all have room");
    ledger.complete_step(step).expect(MISUSE);
    let results = AdvanceBatch {
        handle: &batch.handle,
        tokens: &batch.tokens,
        rows: Rows::Matrix(batch.columns),
        count: &batch.count,
        valid: None,
    };
    ledger.advance(step, &results).expect(MISUSE);
}

/// Ends sequences; what they published stays cached.
#[inline(never)]
pub fn release(ledger: &mut Ledger, batch: &Admission<'_>) {
    ledger.release(&batch.handle, &batch.publish).expect(MISUSE);
}

/// Writes the block table of a batch, `width` columns per row.
#[inline(never)]
pub fn table(ledger: &Ledger, handle: &[i64], width: usize, out: &mut [u32], used: &mut [u32]) {
    ledger.table(handle, width, out, used).expect(MISUSE);
}

/// Collects what changed in the tables since the last call.
#[inline(never)]
pub fn updates(ledger: &mut Ledger, out: &mut [[u32; 4]]) -> usize {
    ledger.updates(out).expect(MISUSE)
}

/// Begins a step in which every sequence of the batch gets its room, and returns the step.
pub fn begin_growth(ledger: &mut Ledger, batch: &mut Decode) -> u64 {
    let step = ledger.begin_step(0.0).expect(MISUSE);
    let grown = ledger.grow(step, &batch.handle, &batch.width, false, &mut batch.ok);
    assert_eq!(grown.expect(MISUSE), batch.handle.len(), "all have room");
    ledger.complete_step(step).expect(MISUSE);
    step
}

/// Ends a step with nothing accepted: lengths stay, and the room is given back.
pub fn undo_growth(ledger: &mut Ledger, step: u64, batch: &Decode) {
    let none = vec![0; batch.handle.len()];
    let valid: Vec<i32> = batch
        .handle
        .iter()
        .flat_map(|&handle| {
            let lengths = ledger.sequence(handle).expect(MISUSE);
            lengths.valid.map(u32::cast_signed)
        })
        .collect();
    let results = AdvanceBatch {
        handle: &batch.handle,
        tokens: &batch.tokens,
        rows: Rows::Matrix(batch.columns),
        count: &none,
        valid: Some(&valid),
    };
    ledger.advance(step, &results).expect(MISUSE);
}

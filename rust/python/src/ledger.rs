//! `tandemkv._core.Ledger`: the seam. Buffers in, buffers out, one lock.

use std::sync::{Mutex, MutexGuard};

use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};
use tandemkv_core::ids::Token;
use tandemkv_core::key::BlockKey;
use tandemkv_core::ledger::{AdvanceBatch, RetainBatch};
use tandemkv_core::window::Lifetime;
use tandemkv_core::{EvictionPolicy, Ledger, LedgerConfig, LedgerError};

use crate::arguments::{Requests, StepNumber, TokenRows, as_given};
use crate::buffers::{Input, Memory, Output, Tokens, disjoint};
use crate::cost::{LifetimeTuple, to_lifetime};
use crate::errors::{ledger_error, misuse};
use crate::events;
use crate::identity;
use crate::integer::{
    FROM_MINUS_ONE, FROM_ONE, FROM_ZERO, HANDLE, Integer, LEASE, MEDIA, PAGES, SCOPE,
};
use crate::{probe, tiers, views};

/// Tokens in one call from which the GIL is released: below that a call takes less than a
/// millisecond, and releasing costs more than it gives.
pub(crate) const DETACH_TOKENS: usize = 1 << 20;

/// The same for calls that hash tokens, at about 30 ns each.
const DETACH_HASHED_TOKENS: usize = 1 << 15;

/// The ledger behind one lock.
#[pyclass(name = "Ledger", module = "tandemkv._core", frozen)]
pub struct PyLedger(Mutex<Ledger>);

impl PyLedger {
    /// The keys that a function computes from tokens, without the GIL where they are many.
    fn hashed<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        scope: Integer,
        keys: impl FnOnce(&Ledger, &[Token], i32) -> Result<Vec<BlockKey>, LedgerError> + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let scope = scope.get(py, "scope", SCOPE)?;
        let tokens = Tokens::new(tokens, &"tokens", 1)?;
        let mut guard = self.lock(py)?;
        let (ledger, slice) = (&mut *guard, tokens.slice());
        let result = if slice.len() >= DETACH_HASHED_TOKENS {
            py.detach(move || keys(ledger, slice, scope))
        } else {
            keys(ledger, slice, scope)
        };
        drop(guard);
        let given = |_, position| tokens.original(position);
        let found = converted(py, result.map_err(|error| as_given(error, given)))?;
        events::keys(py, &found).map(Bound::into_any)
    }

    /// The ledger. The lock is never waited for while the GIL is held.
    pub(crate) fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Ledger>> {
        self.0.lock_py_attached(py).map_err(|_| {
            PyRuntimeError::new_err("the ledger is unusable: an earlier call broke an invariant")
        })
    }
}

pub(crate) fn converted<T>(py: Python<'_>, result: Result<T, LedgerError>) -> PyResult<T> {
    result.map_err(|error| ledger_error(py, &error))
}

#[pymethods]
impl PyLedger {
    #[new]
    #[pyo3(signature = (
        *, tokens_per_block, num_pages, max_sequences, max_seq_len, has_draft = false,
        extra_tokens = Integer(Ok(0)), reserve_tokens = Integer(Ok(0)), lookahead = Integer(Ok(0)),
        reuse = true, partial_reuse = true,
        same_stream = false, watermark_blocks = Integer(Ok(0)), policy = "lru", max_leased_blocks = Integer(Ok(0)),
        ttl_ms = Integer(Ok(0)),
        host_pages = None, disk_pages = None,
        lifetimes = None, max_step_tokens = Integer(Ok(0)), num_blocks = None,
        snapshot_interval = Integer(Ok(0)), events = Integer(Ok(0)), fingerprint = b"".as_slice(),
    ), text_signature = "(*, tokens_per_block, num_pages, max_sequences, max_seq_len, \
        has_draft=False, extra_tokens=0, reserve_tokens=0, lookahead=0, reuse=True, \
        partial_reuse=True, same_stream=False, watermark_blocks=0, policy='lru', \
        max_leased_blocks=0, ttl_ms=0, host_pages=None, disk_pages=None, lifetimes=None, \
        max_step_tokens=0, num_blocks=None, snapshot_interval=0, events=0, fingerprint=b'')")]
    // One keyword per field of the configuration; the booleans are independent switches.
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)]
    fn new(
        py: Python<'_>,
        tokens_per_block: Integer,
        num_pages: Vec<Integer>,
        max_sequences: Integer,
        max_seq_len: Integer,
        has_draft: bool,
        extra_tokens: Integer,
        reserve_tokens: Integer,
        lookahead: Integer,
        reuse: bool,
        partial_reuse: bool,
        same_stream: bool,
        watermark_blocks: Integer,
        policy: &str,
        max_leased_blocks: Integer,
        ttl_ms: Integer,
        host_pages: Option<Vec<Integer>>,
        disk_pages: Option<Vec<Integer>>,
        lifetimes: Option<Vec<LifetimeTuple>>,
        max_step_tokens: Integer,
        num_blocks: Option<Integer>,
        snapshot_interval: Integer,
        events: Integer,
        fingerprint: &[u8],
    ) -> PyResult<Self> {
        let events: u32 = events.get(py, "events", FROM_ZERO)?;
        let lifetimes = match lifetimes {
            None => vec![Lifetime::Full; num_pages.len()],
            Some(given) => given
                .into_iter()
                .map(|item| to_lifetime(py, item))
                .collect::<PyResult<_>>()?,
        };
        let tier = |pages: Option<Vec<Integer>>, argument| {
            let pages = pages.unwrap_or_default().into_iter();
            let pages = pages.map(|pages| pages.get(py, argument, FROM_ZERO));
            pages.collect::<PyResult<Vec<u32>>>()
        };
        let config = LedgerConfig {
            tokens_per_block: tokens_per_block.get(py, "tokens_per_block", FROM_ONE)?,
            num_pages: num_pages
                .into_iter()
                .map(|pages| pages.get(py, "num_pages", PAGES))
                .collect::<PyResult<_>>()?,
            max_sequences: max_sequences.get(py, "max_sequences", FROM_ONE)?,
            max_seq_len: max_seq_len.get(py, "max_seq_len", FROM_ONE)?,
            has_draft,
            extra_tokens: extra_tokens.get(py, "extra_tokens", FROM_ZERO)?,
            reserve_tokens: reserve_tokens.get(py, "reserve_tokens", FROM_ZERO)?,
            lookahead: lookahead.get(py, "lookahead", FROM_ZERO)?,
            reuse,
            partial_reuse,
            same_stream,
            watermark_blocks: watermark_blocks.get(py, "watermark_blocks", FROM_ZERO)?,
            policy: named_policy(py, policy)?,
            ttl_ms: ttl_ms.get(py, "ttl_ms", FROM_ZERO)?,
            host_pages: tier(host_pages, "host_pages")?,
            disk_pages: tier(disk_pages, "disk_pages")?,
            max_leased_blocks: max_leased_blocks.get(py, "max_leased_blocks", FROM_ZERO)?,
            lifetimes,
            max_step_tokens: max_step_tokens.get(py, "max_step_tokens", FROM_ZERO)?,
            num_blocks: num_blocks
                .map(|blocks| blocks.get(py, "num_blocks", FROM_ONE))
                .transpose()?,
            snapshot_interval: snapshot_interval.get(py, "snapshot_interval", FROM_ZERO)?,
        };
        // Touching the records of a large pool takes a while.
        let ledger = converted(py, py.detach(|| Ledger::new(config)))?
            .with_fingerprint(fingerprint)
            .with_events(events as usize);
        Ok(Self(Mutex::new(ledger)))
    }

    #[getter]
    fn tokens_per_block(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.lock(py)?.config().tokens_per_block)
    }

    #[getter]
    fn policy(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.lock(py)?.config().policy.name())
    }

    #[getter]
    fn num_classes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.num_classes())
    }

    #[getter]
    fn row_width(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.lock(py)?.config().row_width())
    }

    #[getter]
    fn max_sequences(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.lock(py)?.config().max_sequences)
    }

    #[pyo3(signature = (now = 0.0))]
    fn begin_step(&self, py: Python<'_>, now: f64) -> PyResult<u64> {
        converted(py, self.lock(py)?.begin_step(now))
    }

    fn complete_step(&self, py: Python<'_>, step: StepNumber) -> PyResult<()> {
        converted(py, self.lock(py)?.complete_step(step.0))
    }

    #[pyo3(signature = (
        step, prompts, scope, first, max_total, draft_from, handle, hit, stop_at_first = false
    ))]
    #[allow(clippy::too_many_arguments)]
    fn admit(
        &self,
        py: Python<'_>,
        step: StepNumber,
        prompts: &Bound<'_, PyAny>,
        scope: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        max_total: &Bound<'_, PyAny>,
        draft_from: Option<&Bound<'_, PyAny>>,
        handle: &Bound<'_, PyAny>,
        hit: &Bound<'_, PyAny>,
        stop_at_first: bool,
    ) -> PyResult<usize> {
        let requests = Requests::new(prompts, scope, first, max_total, draft_from)?;
        let mut handle = Output::<i64>::new(handle, "handle", 1)?;
        let mut hit = Output::<i32>::new(hit, "hit", 1)?;
        let outputs = [handle.region("handle"), hit.region("hit")];
        disjoint(py, &outputs, &requests.memory())?;

        let slices = requests.prompts.slices(py)?;
        let batch = requests.batch(&slices);
        let (handle, hit) = (handle.slice_mut(), hit.slice_mut());
        let mut guard = self.lock(py)?;
        let ledger = &mut *guard;
        let result = if slices.iter().map(|prompt| prompt.len()).sum::<usize>() >= DETACH_TOKENS {
            py.detach(|| ledger.admit(step.0, &batch, stop_at_first, handle, hit))
        } else {
            ledger.admit(step.0, &batch, stop_at_first, handle, hit)
        };
        let given = |item, position| requests.prompts.original(item, position);
        converted(py, result.map_err(|error| as_given(error, given)))
    }

    #[pyo3(signature = (step, handle, width, ok, stop_at_first = false))]
    fn grow(
        &self,
        py: Python<'_>,
        step: StepNumber,
        handle: &Bound<'_, PyAny>,
        width: &Bound<'_, PyAny>,
        ok: &Bound<'_, PyAny>,
        stop_at_first: bool,
    ) -> PyResult<usize> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let width = Input::<i32>::new(width, "width", 1)?;
        let mut ok = Output::<u8>::new(ok, "ok", 1)?;
        disjoint(
            py,
            &[ok.region("ok")],
            &[handle.region("handle"), width.region("width")],
        )?;
        let result = self.lock(py)?.grow(
            step.0,
            handle.slice(),
            width.slice(),
            stop_at_first,
            ok.slice_mut(),
        );
        converted(py, result)
    }

    #[pyo3(signature = (step, handle, tokens, count, valid = None))]
    fn advance(
        &self,
        py: Python<'_>,
        step: StepNumber,
        handle: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
        count: &Bound<'_, PyAny>,
        valid: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let tokens = Tokens::up_to(tokens, &"tokens", 1, 2)?;
        let count = Input::<i32>::new(count, "count", 1)?;
        let valid = valid
            .map(|value| Input::<i32>::new(value, "valid", 2))
            .transpose()?;
        let rows = TokenRows::new(
            py,
            "tokens",
            tokens.shape(),
            handle.slice().len(),
            count.slice(),
        )?;
        if let Some(valid) = &valid
            && valid.shape()[1] != 2
        {
            let message = format!(
                "valid has {} columns, must have 2: target and draft",
                valid.shape()[1]
            );
            return Err(misuse(py, "shape", &message));
        }
        let batch = AdvanceBatch {
            handle: handle.slice(),
            tokens: tokens.slice(),
            rows: rows.rows(),
            count: count.slice(),
            valid: valid.as_ref().map(Input::slice),
        };
        let mut guard = self.lock(py)?;
        let given = |item, position| tokens.original(rows.start(item) + position);
        let result = guard.advance(step.0, &batch);
        converted(py, result.map_err(|error| as_given(error, given)))
    }

    fn fork(
        &self,
        py: Python<'_>,
        step: StepNumber,
        handle: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let mut out = Output::<i64>::new(out, "out", 1)?;
        disjoint(py, &[out.region("out")], &[handle.region("handle")])?;
        let result = self.lock(py)?.fork(step.0, handle.slice(), out.slice_mut());
        converted(py, result)
    }

    #[pyo3(
        signature = (tokens, scope = Integer(Ok(0)), until = f64::INFINITY, draft_from = None),
        text_signature = "($self, tokens, scope=0, until=float('inf'), draft_from=None)"
    )]
    fn pin(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        scope: Integer,
        until: f64,
        draft_from: Option<Integer>,
    ) -> PyResult<(i64, u32)> {
        let (scope, draft_from) = identity_of(py, scope, draft_from)?;
        let tokens = Tokens::new(tokens, &"tokens", 1)?;
        let result = self.lock(py)?.pin(tokens.slice(), scope, draft_from, until);
        let given = |_, position| tokens.original(position);
        converted(py, result.map_err(|error| as_given(error, given)))
    }

    fn unpin(&self, py: Python<'_>, lease: Integer) -> PyResult<bool> {
        let lease = lease.get(py, "lease", LEASE)?;
        converted(py, self.lock(py)?.unpin(lease))
    }

    fn resize<'py>(&self, py: Python<'py>, num_pages: Vec<Integer>) -> PyResult<Bound<'py, PyAny>> {
        let sizes = num_pages
            .into_iter()
            .map(|pages| pages.get(py, "num_pages", PAGES))
            .collect::<PyResult<Vec<u32>>>()?;
        let mut guard = self.lock(py)?;
        let ledger = &mut *guard;
        // It may evict much, and touches new records.
        let moves = py.detach(move || ledger.resize(&sizes));
        drop(guard);
        let moves = converted(py, moves)?;
        let rows = moves
            .concat()
            .iter()
            .map(|number| number.cast_signed())
            .collect();
        let rows = PyArray1::from_vec(py, rows).reshape([moves.len(), 4])?;
        Ok(rows.into_any())
    }

    #[pyo3(signature = (scope, floor_blocks, ceiling_blocks = None))]
    fn set_quota(
        &self,
        py: Python<'_>,
        scope: Integer,
        floor_blocks: Integer,
        ceiling_blocks: Option<Integer>,
    ) -> PyResult<()> {
        let scope = scope.get(py, "scope", SCOPE)?;
        let floor = floor_blocks.get(py, "floor_blocks", FROM_ZERO)?;
        let ceiling = ceiling_blocks
            .map(|blocks| blocks.get(py, "ceiling_blocks", FROM_ZERO))
            .transpose()?;
        converted(py, self.lock(py)?.set_quota(scope, floor, ceiling))
    }

    fn quotas<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let quotas = self.lock(py)?.quotas();
        quotas.iter().map(|quota| views::quota(py, quota)).collect()
    }

    fn retain(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        start: &Bound<'_, PyAny>,
        end: &Bound<'_, PyAny>,
        priority: &Bound<'_, PyAny>,
        duration_ms: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let start = Input::<i64>::new(start, "start", 1)?;
        let end = Input::<i64>::new(end, "end", 1)?;
        let priority = Input::<i32>::new(priority, "priority", 1)?;
        let duration_ms = Input::<i64>::new(duration_ms, "duration_ms", 1)?;
        let batch = RetainBatch {
            handle: handle.slice(),
            start: start.slice(),
            end: end.slice(),
            priority: priority.slice(),
            duration_ms: duration_ms.slice(),
        };
        converted(py, self.lock(py)?.retain(&batch))
    }

    fn suspend(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        publish: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let publish = Input::<u8>::new(publish, "publish", 1)?;
        converted(py, self.lock(py)?.suspend(handle.slice(), publish.slice()))
    }

    fn resume(
        &self,
        py: Python<'_>,
        step: StepNumber,
        handle: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        ok: &Bound<'_, PyAny>,
        hit: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let first = Input::<i32>::new(first, "first", 1)?;
        let mut ok = Output::<u8>::new(ok, "ok", 1)?;
        let mut hit = Output::<i32>::new(hit, "hit", 1)?;
        disjoint(
            py,
            &[ok.region("ok"), hit.region("hit")],
            &[handle.region("handle"), first.region("first")],
        )?;
        let result = self.lock(py)?.resume(
            step.0,
            handle.slice(),
            first.slice(),
            ok.slice_mut(),
            hit.slice_mut(),
        );
        converted(py, result)
    }

    fn release(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        publish: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let publish = Input::<u8>::new(publish, "publish", 1)?;
        converted(py, self.lock(py)?.release(handle.slice(), publish.slice()))
    }

    #[pyo3(
        name = "match",
        signature = (tokens, scope = Integer(Ok(0)), draft_from = None),
        text_signature = "($self, tokens, scope=0, draft_from=None)"
    )]
    fn match_(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        scope: Integer,
        draft_from: Option<Integer>,
    ) -> PyResult<u32> {
        let (scope, draft_from) = identity_of(py, scope, draft_from)?;
        let tokens = Tokens::new(tokens, &"tokens", 1)?;
        let result = self
            .lock(py)?
            .match_tokens(tokens.slice(), scope, draft_from);
        let given = |_, position| tokens.original(position);
        converted(py, result.map_err(|error| as_given(error, given)))
    }

    #[pyo3(
        signature = (tokens, scope = Integer(Ok(0))),
        text_signature = "($self, tokens, scope=0)"
    )]
    fn keys<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        scope: Integer,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.hashed(py, tokens, scope, |ledger, tokens, scope| {
            ledger.keys(tokens, scope)
        })
    }

    fn block_keys<'py>(&self, py: Python<'py>, handle: Integer) -> PyResult<Bound<'py, PyAny>> {
        let handle = handle.get(py, "handle", HANDLE)?;
        let mut guard = self.lock(py)?;
        let ledger = &mut *guard;
        // How many have to be hashed is not known before.
        let keys = py.detach(|| ledger.block_keys(handle));
        drop(guard);
        let keys = converted(py, keys)?;
        events::keys(py, &keys).map(Bound::into_any)
    }

    #[pyo3(signature = (after = Integer(Ok(0))), text_signature = "($self, after=0)")]
    fn events<'py>(&self, py: Python<'py>, after: Integer) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let after = after.get(py, "after", "the number of an event, or 0")?;
        // Copied first: making Python objects may run code that asks the ledger.
        let (events, size): (Vec<_>, _) = {
            let ledger = self.lock(py)?;
            let events = converted(py, ledger.events(after))?.cloned().collect();
            (events, ledger.config().tokens_per_block)
        };
        let shown = events.iter().map(|event| events::event(py, event, size));
        shown.collect()
    }

    fn event_snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ((number, runs), below, size) = {
            let mut guard = self.lock(py)?;
            let ledger = &mut *guard;
            // It reads every cached token.
            let snapshot = converted(py, py.detach(move || ledger.event_snapshot()))?;
            let below = converted(py, guard.keys_below())?;
            (snapshot, below, guard.config().tokens_per_block)
        };
        events::snapshot(py, number, &runs, &below, size)
    }

    #[pyo3(signature = (adapter = None, salt = None))]
    fn intern_scope(
        &self,
        py: Python<'_>,
        adapter: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u32> {
        let scope = identity::scope(adapter, salt)?;
        Ok(self.lock(py)?.intern_scope(scope))
    }

    fn begin_trial(&self, py: Python<'_>) -> PyResult<()> {
        converted(py, self.lock(py)?.begin_trial())
    }

    fn end_trial(&self, py: Python<'_>) -> PyResult<()> {
        converted(py, self.lock(py)?.end_trial())
    }

    fn release_scope(&self, py: Python<'_>, scope: Integer) -> PyResult<()> {
        let scope = scope.get(py, "scope", SCOPE)?;
        converted(py, self.lock(py)?.release_scope(scope))
    }

    fn drop_scope(&self, py: Python<'_>, scope: Integer) -> PyResult<()> {
        let scope = scope.get(py, "scope", SCOPE)?;
        converted(py, self.lock(py)?.drop_scope(scope))
    }

    fn intern_media(
        &self,
        py: Python<'_>,
        digest: &Bound<'_, PyAny>,
        length: Integer,
    ) -> PyResult<i32> {
        let item = identity::media(digest, length)?;
        let token = converted(py, self.lock(py)?.intern_media(item))?;
        Ok(token.cast_signed())
    }

    fn release_media(&self, py: Python<'_>, reference: Integer) -> PyResult<()> {
        let reference: i32 = reference.get(py, "reference", MEDIA)?;
        converted(py, self.lock(py)?.release_media(reference.cast_unsigned()))
    }

    #[pyo3(signature = (prompts, scope, first, max_total, draft_from, answer, hit))]
    #[allow(clippy::too_many_arguments)]
    fn fits(
        &self,
        py: Python<'_>,
        prompts: &Bound<'_, PyAny>,
        scope: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        max_total: &Bound<'_, PyAny>,
        draft_from: Option<&Bound<'_, PyAny>>,
        answer: &Bound<'_, PyAny>,
        hit: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let requests = Requests::new(prompts, scope, first, max_total, draft_from)?;
        probe::fits(py, self, &requests, answer, hit)
    }

    #[pyo3(signature = (length, hit, first, max_total, answer, scope = None))]
    #[allow(clippy::too_many_arguments)]
    fn fits_blocks(
        &self,
        py: Python<'_>,
        length: &Bound<'_, PyAny>,
        hit: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        max_total: &Bound<'_, PyAny>,
        answer: &Bound<'_, PyAny>,
        scope: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        probe::fits_blocks(py, self, (length, hit, first, max_total), answer, scope)
    }

    fn reclaimable(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        probe::reclaimable(py, self, handle, pages)
    }

    fn victims(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        need: &Bound<'_, PyAny>,
        chosen: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        probe::victims(py, self, handle, need, chosen)
    }

    #[pyo3(
        signature = (tokens, scope = Integer(Ok(0)), draft_from = None),
        text_signature = "($self, tokens, scope=0, draft_from=None)"
    )]
    fn explain_match<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'_, PyAny>,
        scope: Integer,
        draft_from: Option<Integer>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (scope, draft_from) = identity_of(py, scope, draft_from)?;
        let tokens = Tokens::new(tokens, &"tokens", 1)?;
        let given = |_, position| tokens.original(position);
        let result = self
            .lock(py)?
            .explain_match(tokens.slice(), scope, draft_from);
        let report = converted(py, result.map_err(|error| as_given(error, given)))?;
        probe::explanation(py, &report).map(Bound::into_any)
    }

    #[pyo3(signature = (out, keys = None))]
    fn transfers(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        keys: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        tiers::transfers(py, self, out, keys)
    }

    fn pending_transfers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.pending_transfers())
    }

    fn complete_transfers(
        &self,
        py: Python<'_>,
        ids: &Bound<'_, PyAny>,
        ok: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        tiers::complete_transfers(py, self, ids, ok)
    }

    fn loading(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        tiers::loading(py, self, handle, out)
    }

    fn offload(&self, py: Python<'_>, blocks: Integer) -> PyResult<u32> {
        let blocks = blocks.get(py, "blocks", FROM_ZERO)?;
        Ok(self.lock(py)?.offload(blocks))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.lock(py)?.flush())
    }

    fn restore(
        &self,
        py: Python<'_>,
        tier: &str,
        class_index: Integer,
        keys: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let class_index = class_index.get(py, "class_index", FROM_ZERO)?;
        tiers::restore(py, self, tier, class_index, keys, pages)
    }

    fn adopt(
        &self,
        py: Python<'_>,
        class_index: Integer,
        keys: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let class_index = class_index.get(py, "class_index", FROM_ZERO)?;
        tiers::adopt(py, self, class_index, keys, pages)
    }

    #[pyo3(
        signature = (tokens, scope = Integer(Ok(0)), draft_valid = true),
        text_signature = "($self, tokens, scope=0, draft_valid=True)"
    )]
    fn tier_keys<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        scope: Integer,
        draft_valid: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.hashed(py, tokens, scope, |ledger, tokens, scope| {
            ledger.tier_keys(tokens, scope, draft_valid)
        })
    }

    fn tier_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        tiers::stats(py, self).map(Bound::into_any)
    }

    #[pyo3(
        signature = (tokens, scope = Integer(Ok(0)), draft_from = None),
        text_signature = "($self, tokens, scope=0, draft_from=None)"
    )]
    fn match_tiers(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        scope: Integer,
        draft_from: Option<Integer>,
    ) -> PyResult<(u32, u32, u32)> {
        let (scope, draft_from) = identity_of(py, scope, draft_from)?;
        let tokens = Tokens::new(tokens, &"tokens", 1)?;
        let result = self
            .lock(py)?
            .match_tiers(tokens.slice(), scope, draft_from);
        let given = |_, position| tokens.original(position);
        let found = converted(py, result.map_err(|error| as_given(error, given)))?;
        Ok((found.device, found.host, found.disk))
    }

    #[getter]
    fn pending_moves(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.pending_moves().len())
    }

    fn moves(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut out = records(out)?;
        let mut ledger = self.lock(py)?;
        let (records, required) = (out.unsigned_mut(), ledger.pending_moves().len());
        let len = records.len() / 4;
        if required > len {
            let error = LedgerError::BufferTooSmall {
                argument: "out",
                len,
                required,
            };
            return Err(ledger_error(py, &error));
        }
        for (record, copy) in records
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(ledger.take_moves())
        {
            *record = [
                copy.class,
                copy.source.get(),
                copy.destination.get(),
                copy.tokens,
            ];
        }
        Ok(required)
    }

    fn table(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        used: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let handle = Input::<i64>::new(handle, "handle", 1)?;
        let mut dst = Output::<i32>::new(dst, "dst", 3)?;
        let mut used = Output::<i32>::new(used, "used", 2)?;
        disjoint(
            py,
            &[dst.region("dst"), used.region("used")],
            &[handle.region("handle")],
        )?;
        let ledger = self.lock(py)?;
        let (classes, n) = (ledger.num_classes(), handle.slice().len());
        let width = dst.shape()[2];
        for (argument, shape) in [("dst", &dst.shape()[..2]), ("used", used.shape())] {
            if shape != [classes, n] {
                let message = format!(
                    "{argument} has shape {shape:?} in its first dimensions, must be [{classes}, {n}]"
                );
                return Err(misuse(py, "shape", &message));
            }
        }
        let result = ledger.table(
            handle.slice(),
            width,
            dst.unsigned_mut(),
            used.unsigned_mut(),
        );
        converted(py, result)
    }

    fn updates(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<usize> {
        let mut out = records(out)?;
        let records = out.unsigned_mut().as_chunks_mut::<4>().0;
        converted(py, self.lock(py)?.updates(records))
    }

    fn sequence<'py>(&self, py: Python<'py>, handle: Integer) -> PyResult<Bound<'py, PyAny>> {
        let handle = handle.get(py, "handle", HANDLE)?;
        let dump = converted(py, self.lock(py)?.sequence(handle))?;
        views::sequence(py, &dump, false).map(Bound::into_any)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.lock(py)?.stats();
        views::stats(py, &stats).map(Bound::into_any)
    }

    #[pyo3(signature = (detach_live = false))]
    fn reset_reuse_state(&self, py: Python<'_>, detach_live: bool) -> PyResult<()> {
        converted(py, self.lock(py)?.reset_reuse_state(detach_live))
    }

    fn digest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.lock(py)?.digest()))
    }

    fn dump<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let dump = self.lock(py)?.dump();
        views::dump(py, &dump).map(Bound::into_any)
    }

    fn validate(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.validate();
        Ok(())
    }
}

/// In which scope tokens are looked up, and from where on their draft KV is needed.
fn identity_of(
    py: Python<'_>,
    scope: Integer,
    draft_from: Option<Integer>,
) -> PyResult<(i32, Option<i32>)> {
    let scope = scope.get(py, "scope", FROM_MINUS_ONE)?;
    let draft_from = draft_from.map(|value| value.get(py, "draft_from", FROM_MINUS_ONE));
    Ok((scope, draft_from.transpose()?))
}

/// The eviction policy of that name.
fn named_policy(py: Python<'_>, name: &str) -> PyResult<EvictionPolicy> {
    let known = EvictionPolicy::NAMED;
    if let Some(&(_, policy)) = known.iter().find(|(known, _)| *known == name) {
        return Ok(policy);
    }
    let names: Vec<_> = known.iter().map(|(name, _)| format!("'{name}'")).collect();
    let message = format!("policy is '{name}', must be one of {}", names.join(", "));
    Err(misuse(py, "policy", &message))
}

/// An output of records of four numbers.
fn records(out: &Bound<'_, PyAny>) -> PyResult<Output<i32>> {
    let records = Output::<i32>::new(out, "out", 2)?;
    if records.shape()[1] != 4 {
        let message = format!("out has {} columns, must have 4", records.shape()[1]);
        return Err(misuse(out.py(), "shape", &message));
    }
    Ok(records)
}

//! What cache groups cost: plain integers in, plain integers out.
// A tuple that Python gives is always a new one.
#![allow(clippy::needless_pass_by_value)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tandemkv_core::budget::{
    BudgetError, Demand, Tier, TokenCost, Utilization, group_cost as core_group_cost,
};
use tandemkv_core::units::{Bytes, Tokens};
use tandemkv_core::window::{Lifetime, Window};

use crate::budget::from_budget;
use crate::integer::Integer;

/// `(name, tokens, sinks)`; the numbers are 0 where the rule has none.
pub type LifetimeTuple = (String, Integer, Integer);

/// Add the cost functions to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(resolve_lifetime, module)?)?;
    module.add_function(wrap_pyfunction!(window_blocks, module)?)?;
    module.add_function(wrap_pyfunction!(group_cost, module)?)?;
    module.add_function(wrap_pyfunction!(token_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(tokens_of_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(utilization, module)?)?;
    Ok(())
}

#[pyfunction]
fn resolve_lifetime(
    py: Python<'_>,
    lifetime: LifetimeTuple,
    max_seq_len: u64,
    lookahead: u64,
) -> PyResult<(&'static str, u64, u64)> {
    let resolved = to_lifetime(py, lifetime)?.resolved(max_seq_len, lookahead);
    Ok(match resolved {
        Lifetime::Full => ("full_attention", 0, 0),
        Lifetime::Window { tokens, sinks } => ("sliding_window", tokens, sinks),
        Lifetime::Chunk { tokens } => ("chunked_attention", tokens, 0),
        Lifetime::First { tokens } => ("cross_attention", tokens, 0),
        Lifetime::State => ("recurrent_state", 0, 0),
    })
}

#[pyfunction]
#[pyo3(signature = (lifetime, *, tokens_per_block, lookahead, tokens, ahead))]
fn window_blocks(
    py: Python<'_>,
    lifetime: LifetimeTuple,
    tokens_per_block: u64,
    lookahead: u64,
    tokens: u64,
    ahead: u64,
) -> PyResult<u64> {
    let window = Window::new(to_lifetime(py, lifetime)?, tokens_per_block, lookahead)
        .map_err(|error| from_budget(py, &error.into()))?;
    Ok(window.blocks(tokens, ahead))
}

/// Reserved, dummies, endpoints, margin, per sequence, sequences, per step.
type FixedTuple = (u64, u64, u64, u64, u64, u64, u64);
/// Page bytes, fixed pages, and per tier `(slope, intercept)`: device, then host and disk.
type GroupTuple = (u64, Option<FixedTuple>, (u64, u64), (u64, u64));

#[pyfunction]
#[pyo3(signature = (
    lifetime, bytes, *, tokens_per_block, cp_size, sequences, headroom, lookahead, step_tokens,
    dummies, endpoints, snapshot_interval, resume,
))]
// One keyword per term, so that a call reads like the cost.
#[allow(clippy::too_many_arguments)]
fn group_cost(
    py: Python<'_>,
    lifetime: LifetimeTuple,
    bytes: u64,
    tokens_per_block: u64,
    cp_size: u64,
    sequences: u64,
    headroom: u64,
    lookahead: u64,
    step_tokens: u64,
    dummies: u64,
    endpoints: u64,
    snapshot_interval: Option<u64>,
    resume: (u64, u64),
) -> PyResult<GroupTuple> {
    let demand = Demand {
        tokens_per_block,
        cp_size,
        sequences,
        headroom,
        lookahead,
        step_tokens,
        dummies,
        endpoints,
        snapshot_interval,
        resume: to_utilization(resume)?,
    };
    let lifetime = to_lifetime(py, lifetime)?;
    let price = || -> Result<GroupTuple, BudgetError> {
        let cost = core_group_cost(lifetime, Bytes(bytes), &demand)?;
        let fixed = cost.fixed.map(|pages| {
            (
                pages.reserved,
                pages.dummies,
                pages.endpoints,
                pages.margin,
                pages.per_sequence,
                pages.sequences,
                pages.per_step,
            )
        });
        let on = |tier| cost.on(tier).map(|cost| (cost.slope.0, cost.intercept.0));
        Ok((cost.page.0, fixed, on(Tier::Device)?, on(Tier::Host)?))
    };
    price().map_err(|error| from_budget(py, &error))
}

/// Bytes per token, bytes per token in flight, bytes per sequence, sequences, tokens in flight.
type TokenCostTuple = (u64, u64, u64, u64, u64);

#[pyfunction]
fn token_bytes(py: Python<'_>, cost: TokenCostTuple, tokens: u64) -> PyResult<u64> {
    let bytes = to_token_cost(cost).bytes(Tokens(tokens));
    bytes
        .map(|bytes| bytes.0)
        .map_err(|error| from_budget(py, &error))
}

#[pyfunction]
fn tokens_of_bytes(
    py: Python<'_>,
    cost: TokenCostTuple,
    budget_bytes: u64,
) -> PyResult<Option<u64>> {
    let tokens = to_token_cost(cost).tokens(Bytes(budget_bytes));
    tokens
        .map(|tokens| tokens.map(|tokens| tokens.0))
        .map_err(|error| from_budget(py, &error))
}

#[pyfunction]
fn utilization(py: Python<'_>, limit: (u64, u64), amount: u64) -> PyResult<(u64, u64)> {
    let limit = to_utilization(limit)?;
    let whole = limit
        .whole(amount)
        .map_err(|error| from_budget(py, &error))?;
    Ok((whole, limit.used(amount)))
}

pub fn to_lifetime(py: Python<'_>, lifetime: LifetimeTuple) -> PyResult<Lifetime> {
    let (name, tokens, sinks) = lifetime;
    let tokens: u64 = tokens.get(py, "lifetime tokens", "an integer from 0 on")?;
    let sinks: u64 = sinks.get(py, "lifetime sink tokens", "an integer from 0 on")?;
    let has_none = matches!(name.as_str(), "full_attention" | "recurrent_state");
    let has_no_sinks = matches!(name.as_str(), "chunked_attention" | "cross_attention");
    if (has_none && tokens > 0) || ((has_none || has_no_sinks) && sinks > 0) {
        return Err(PyValueError::new_err(format!(
            "lifetime ({name:?}, {tokens}, {sinks}): {name} has {}",
            if has_none {
                "no tokens"
            } else {
                "no sink tokens"
            }
        )));
    }
    Ok(match name.as_str() {
        "full_attention" => Lifetime::Full,
        "sliding_window" => Lifetime::Window { tokens, sinks },
        "chunked_attention" => Lifetime::Chunk { tokens },
        "cross_attention" => Lifetime::First { tokens },
        "recurrent_state" => Lifetime::State,
        other => {
            return Err(PyValueError::new_err(format!(
                "lifetime {other:?} is not one of full_attention, sliding_window, \
                 chunked_attention, cross_attention, recurrent_state"
            )));
        }
    })
}

fn to_utilization((numerator, denominator): (u64, u64)) -> PyResult<Utilization> {
    Utilization::new(numerator, denominator).ok_or_else(|| {
        PyValueError::new_err(format!(
            "a utilization of {numerator} / {denominator} is not above 0 and at most 1"
        ))
    })
}

fn to_token_cost(cost: TokenCostTuple) -> TokenCost {
    let (full, context, per_sequence, sequences, step_tokens) = cost;
    TokenCost {
        full: Bytes(full),
        context: Bytes(context),
        per_sequence: Bytes(per_sequence),
        sequences,
        step_tokens: Tokens(step_tokens),
    }
}

//! The budget functions: plain integers in, plain integers out.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict, PyType};
use tandemkv_core::budget::{
    BudgetError, Cost, GeometryError, Infeasible, KvDtype, Layer, LayerKind, NotSplit, PerSequence,
    RankDemand, StateBuffer, Tier, layer_state_bytes as core_layer_state_bytes,
    split_bytes as core_split_bytes, split_pages as core_split_pages,
};
use tandemkv_core::units::{Bytes, Pages, Tokens};

/// `(slope, intercept)` in bytes.
type CostPair = (u64, u64);

/// Add the budget functions to the extension module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(layer_bytes_per_token, module)?)?;
    module.add_function(wrap_pyfunction!(layer_state_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(cost_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(split_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(split_pages, module)?)?;
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (
    *, kind, kv_dtype, tp_size = 1, num_kv_heads = None, head_dim = None, v_head_dim = None,
    shared_kv = false, kv_lora_rank = None, qk_rope_head_dim = None, side_bytes = 0,
))]
// One keyword per field of a layer, so that a call reads like the layer.
#[allow(clippy::too_many_arguments)]
fn layer_bytes_per_token(
    py: Python<'_>,
    kind: &str,
    kv_dtype: &str,
    tp_size: u64,
    num_kv_heads: Option<u64>,
    head_dim: Option<u64>,
    v_head_dim: Option<u64>,
    shared_kv: bool,
    kv_lora_rank: Option<u64>,
    qk_rope_head_dim: Option<u64>,
    side_bytes: u64,
) -> PyResult<u64> {
    let need = |field: &'static str, value: Option<u64>| {
        value.ok_or_else(|| {
            let message = format!("a layer of kind {kind:?} needs {field}");
            geometry_error(py, &message, field, None::<u64>)
        })
    };
    let refuse = |field: &'static str, value: Option<u64>| {
        if value.is_none() {
            return Ok(());
        }
        let message = format!("a layer of kind {kind:?} has no {field}");
        Err(geometry_error(py, &message, field, value))
    };
    let kind = match kind {
        "attention" | "cross_attention" => {
            if shared_kv {
                refuse_shared_values(py, kind, v_head_dim)?;
            }
            refuse("kv_lora_rank", kv_lora_rank)?;
            refuse("qk_rope_head_dim", qk_rope_head_dim)?;
            let head_dim = need("head_dim", head_dim)?;
            LayerKind::Attention {
                num_kv_heads: need("num_kv_heads", num_kv_heads)?,
                head_dim,
                v_head_dim: (!shared_kv).then(|| v_head_dim.unwrap_or(head_dim)),
            }
        }
        "mla" => {
            refuse("num_kv_heads", num_kv_heads)?;
            refuse("head_dim", head_dim)?;
            refuse("v_head_dim", v_head_dim)?;
            if shared_kv {
                let message = format!("a layer of kind {kind:?} has no shared_kv");
                return Err(geometry_error(py, &message, "shared_kv", true));
            }
            LayerKind::Mla {
                kv_lora_rank: need("kv_lora_rank", kv_lora_rank)?,
                qk_rope_head_dim: need("qk_rope_head_dim", qk_rope_head_dim)?,
            }
        }
        other => {
            let message =
                format!("layer kind {other:?} is not one of attention, mla, cross_attention");
            return Err(geometry_error(py, &message, "kind", other));
        }
    };
    let dtype = KvDtype::parse(kv_dtype).map_err(|error| from_geometry(py, &error))?;
    let layer = Layer {
        kind,
        dtype,
        side_bytes_per_token: Bytes(side_bytes),
    };
    layer
        .bytes_per_token(tp_size)
        .map(|bytes| bytes.0)
        .map_err(|error| from_geometry(py, &error))
}

/// Values that are the keys have no size of their own.
fn refuse_shared_values(py: Python<'_>, kind: &str, v_head_dim: Option<u64>) -> PyResult<()> {
    if v_head_dim.is_none() {
        return Ok(());
    }
    let message = format!("a layer of kind {kind:?} with shared_kv has no v_head_dim");
    Err(geometry_error(py, &message, "v_head_dim", v_head_dim))
}

/// `(name, split_units, unit_elements, replicated_elements, dtype)`.
type StateTuple = (String, u64, u64, u64, String);

#[pyfunction]
#[pyo3(signature = (*, buffers, tp_size = 1))]
fn layer_state_bytes(py: Python<'_>, buffers: Vec<StateTuple>, tp_size: u64) -> PyResult<u64> {
    let buffers: Result<Vec<StateBuffer>, GeometryError> = buffers
        .into_iter()
        .map(
            |(name, split_units, unit_elements, replicated_elements, dtype)| {
                Ok(StateBuffer {
                    name,
                    split_units,
                    unit_elements,
                    replicated_elements,
                    dtype: KvDtype::parse(&dtype)?,
                })
            },
        )
        .collect();
    buffers
        .and_then(|buffers| core_layer_state_bytes(&buffers, tp_size))
        .map(|bytes| bytes.0)
        .map_err(|error| from_geometry(py, &error))
}

#[pyfunction]
fn cost_tokens(cost: CostPair, budget_bytes: u64) -> Option<u64> {
    to_cost(cost)
        .tokens(Bytes(budget_bytes))
        .map(|tokens| tokens.0)
}

#[pyfunction]
#[pyo3(signature = (budget_bytes, target, draft, tier))]
fn split_bytes(
    py: Python<'_>,
    budget_bytes: u64,
    target: CostPair,
    draft: CostPair,
    tier: &str,
) -> PyResult<(Option<&'static str>, u64, u64)> {
    let tier = to_tier(tier)?;
    core_split_bytes(Bytes(budget_bytes), to_cost(target), to_cost(draft), tier)
        .map(|split| {
            let reason = split.not_split.map(NotSplit::name);
            (reason, split.target.0, split.draft.0)
        })
        .map_err(|error| from_budget(py, &error))
}

/// Pages of the group, and per rank: pages alone, target, draft and slack bytes.
type PageSplitTuple = (Option<u64>, Vec<(Option<u64>, u64, u64, u64)>);

#[pyfunction]
#[pyo3(signature = (
    *, tier, tokens_per_block, budget_bytes, target, draft, bytes_per_sequence = None,
    max_batch_size = None, max_pages = None,
))]
// One keyword per column of the ranks; a list that Python gives is always a new vector.
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]
fn split_pages(
    py: Python<'_>,
    tier: &str,
    tokens_per_block: u64,
    budget_bytes: Vec<u64>,
    target: Vec<CostPair>,
    draft: Vec<CostPair>,
    bytes_per_sequence: Option<Vec<u64>>,
    max_batch_size: Option<u64>,
    max_pages: Option<u64>,
) -> PyResult<PageSplitTuple> {
    let tier = to_tier(tier)?;
    let count = budget_bytes.len();
    let sequences = bytes_per_sequence.as_ref().map_or(count, Vec::len);
    if target.len() != count || draft.len() != count || sequences != count {
        return Err(PyValueError::new_err(format!(
            "one entry per rank: {count} budgets, {} target costs, {} draft costs, \
             {sequences} sizes of a sequence",
            target.len(),
            draft.len(),
        )));
    }
    let ranks: Vec<RankDemand> = (0..count)
        .map(|rank| RankDemand {
            budget: Bytes(budget_bytes[rank]),
            target: to_cost(target[rank]),
            draft: to_cost(draft[rank]),
            per_sequence: bytes_per_sequence
                .as_ref()
                .zip(max_batch_size)
                .map(|(bytes, batch)| PerSequence {
                    bytes: Bytes(bytes[rank]),
                    batch,
                }),
        })
        .collect();
    let cap = max_pages.map(Pages);
    let split = core_split_pages(tier, Tokens(tokens_per_block), &ranks, cap)
        .map_err(|error| from_budget(py, &error))?;
    let plain = |pages: Option<Pages>| pages.map(|pages| pages.0);
    let ranks = split
        .ranks
        .iter()
        .map(|r| (plain(r.pages_alone), r.target.0, r.draft.0, r.slack.0))
        .collect();
    Ok((plain(split.pages), ranks))
}

pub(crate) fn to_cost((slope, intercept): CostPair) -> Cost {
    Cost {
        slope: Bytes(slope),
        intercept: Bytes(intercept),
    }
}

fn to_tier(name: &str) -> PyResult<Tier> {
    Tier::parse(name).ok_or_else(|| {
        PyValueError::new_err(format!("tier {name:?} is not one of device, host, disk"))
    })
}

/// `GeometryError(message, field=..., value=...)`.
fn geometry_error<'py>(
    py: Python<'py>,
    message: &str,
    field: &str,
    value: impl IntoPyObject<'py>,
) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let build = || {
        let kwargs = PyDict::new(py);
        kwargs.set_item("field", field)?;
        kwargs.set_item("value", value)?;
        let class = CLASS.import(py, "tandemkv.errors", "GeometryError")?;
        class.call((message,), Some(&kwargs))
    };
    build().map_or_else(|failure| failure, PyErr::from_value)
}

fn from_geometry(py: Python<'_>, error: &GeometryError) -> PyErr {
    let message = error.to_string();
    match error {
        GeometryError::UnknownDtype(name) => geometry_error(py, &message, "kv_dtype", name),
        GeometryError::Zero { field } => geometry_error(py, &message, field, 0),
        GeometryError::HeadsOverRanks { num_kv_heads, .. } => {
            geometry_error(py, &message, "num_kv_heads", *num_kv_heads)
        }
        GeometryError::StateOverRanks { split_units, .. } => {
            geometry_error(py, &message, "split_units", *split_units)
        }
        GeometryError::StateNvfp4(_) => geometry_error(py, &message, "dtype", "nvfp4"),
        GeometryError::Nvfp4Elements(_) => geometry_error(py, &message, "kv_dtype", "nvfp4"),
        GeometryError::Nvfp4OddHead { field, dim } => geometry_error(py, &message, field, *dim),
        GeometryError::Overflow => geometry_error(py, &message, "", None::<u64>),
    }
}

pub(crate) fn from_budget(py: Python<'_>, error: &BudgetError) -> PyErr {
    budget_error(py, error).unwrap_or_else(|failure| failure)
}

/// `BudgetError(message, **numbers)`; the numbers are there when the budget is too small.
fn budget_error(py: Python<'_>, error: &BudgetError) -> PyResult<PyErr> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "tandemkv.errors", "BudgetError")?;
    let instance = match error {
        BudgetError::Infeasible(numbers) => {
            let numbers: &Infeasible = numbers;
            let kwargs = [
                ("rank", Some(numbers.rank as u64)),
                ("budget_bytes", Some(numbers.budget.0)),
                ("target_fixed_bytes", Some(numbers.target_fixed.0)),
                ("draft_fixed_bytes", Some(numbers.draft_fixed.0)),
                ("target_page_bytes", Some(numbers.target_page.0)),
                ("draft_page_bytes", Some(numbers.draft_page.0)),
                ("required_pages", Some(numbers.required_pages.0)),
                ("required_bytes", Some(numbers.required.0)),
                ("shortfall_bytes", Some(numbers.shortfall.0)),
                ("largest_batch_size", numbers.largest_batch),
            ]
            .into_py_dict(py)?;
            kwargs.set_item("tier", numbers.tier.name())?;
            class.call((error.to_string(),), Some(&kwargs))?
        }
        other => class.call1((other.to_string(),))?,
    };
    Ok(PyErr::from_value(instance))
}

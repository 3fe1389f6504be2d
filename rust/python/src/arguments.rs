//! Arguments of the seam that are more than one array: steps, prompts, the tokens of a step.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tandemkv_core::LedgerError;
use tandemkv_core::ids::Token;
use tandemkv_core::ledger::{AdmitBatch, Rows};

use crate::buffers::{Input, Memory, Region, Tokens};
use crate::errors::misuse;

/// A step, as callers give it. What does not fit is no open step, like any other wrong number.
#[derive(Clone, Copy)]
pub struct StepNumber(pub u64);

impl<'py> FromPyObject<'_, 'py> for StepNumber {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let number = match value.extract::<i64>() {
            Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => {
                let message = format!("step is {}, must be a step of begin_step", value.repr()?);
                return Err(misuse(value.py(), "integer", &message));
            }
            number => number.ok().and_then(|number| u64::try_from(number).ok()),
        };
        number.map(Self).ok_or_else(|| {
            let message = format!("step {} is not open", *value);
            misuse(value.py(), "step_not_open", &message)
        })
    }
}

/// The prompts of one `admit`.
pub enum Prompts {
    Flat(Tokens, Input<i64>),
    /// With what keeps the memory alive: an iterator may hold nothing that it gave.
    Each {
        tokens: Vec<Tokens>,
        _kept: Vec<Py<PyAny>>,
    },
}

impl Prompts {
    pub fn new(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(pair) = value.cast::<PyTuple>() {
            if pair.len() != 2 {
                let message = format!(
                    "prompts is a tuple of {} items, must be (flat tokens, offsets) or a list of arrays",
                    pair.len()
                );
                return Err(misuse(value.py(), "shape", &message));
            }
            let flat = Tokens::new(&pair.get_item(0)?, &"prompts[0]", 1)?;
            let offsets = Input::new(&pair.get_item(1)?, "prompts[1]", 1)?;
            return Ok(Self::Flat(flat, offsets));
        }
        let Ok(prompts) = value.try_iter() else {
            let message = format!(
                "prompts is {}, must be (flat tokens, offsets) or a list of arrays",
                value.get_type().name()?
            );
            return Err(misuse(value.py(), "shape", &message));
        };
        // All of them first: an iterator may run code that frees what it gave before.
        let given = prompts.collect::<PyResult<Vec<_>>>()?;
        let mut each = Vec::with_capacity(given.len());
        for (item, prompt) in given.iter().enumerate() {
            each.push(Tokens::new(prompt, &format_args!("prompts[{item}]"), 1)?);
        }
        let kept = given.into_iter().map(Bound::unbind).collect();
        Ok(Self::Each {
            tokens: each,
            _kept: kept,
        })
    }

    pub fn slices(&self, py: Python<'_>) -> PyResult<Vec<&[Token]>> {
        let (flat, offsets) = match self {
            Self::Each { tokens: each, .. } => return Ok(each.iter().map(Tokens::slice).collect()),
            Self::Flat(flat, offsets) => (flat.slice(), offsets.slice()),
        };
        if offsets.is_empty() {
            let message = "prompts[1] (offsets) is empty, must hold one more item than prompts";
            return Err(misuse(py, "shape", message));
        }
        offsets
            .windows(2)
            .enumerate()
            .map(|(item, pair)| {
                let range = usize::try_from(pair[0])
                    .ok()
                    .zip(usize::try_from(pair[1]).ok());
                range
                    .and_then(|(from, to)| flat.get(from..to))
                    .ok_or_else(|| {
                        let message = format!(
                            "offsets[{item}..={}] are {} and {}, must be ascending in 0..={}",
                            item + 1,
                            pair[0],
                            pair[1],
                            flat.len()
                        );
                        misuse(py, "offsets", &message)
                    })
            })
            .collect()
    }

    /// The token that the core refused, as the caller gave it.
    pub fn original(&self, item: usize, position: usize) -> i64 {
        match self {
            Self::Each { tokens: each, .. } => each[item].original(position),
            Self::Flat(flat, offsets) => {
                let from = usize::try_from(offsets.slice()[item]).unwrap_or(0);
                flat.original(from + position)
            }
        }
    }

    pub fn memory(&self) -> Vec<Region> {
        match self {
            Self::Each { tokens: each, .. } => {
                each.iter().map(|tokens| tokens.region("prompts")).collect()
            }
            Self::Flat(flat, offsets) => vec![flat.region("prompts"), offsets.region("prompts")],
        }
    }
}

/// The requests of `admit` and `fits`.
pub struct Requests {
    pub prompts: Prompts,
    scope: Input<i32>,
    first: Input<i32>,
    max_total: Input<i64>,
    draft_from: Option<Input<i32>>,
}

impl Requests {
    pub fn new(
        prompts: &Bound<'_, PyAny>,
        scope: &Bound<'_, PyAny>,
        first: &Bound<'_, PyAny>,
        max_total: &Bound<'_, PyAny>,
        draft_from: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            prompts: Prompts::new(prompts)?,
            scope: Input::new(scope, "scope", 1)?,
            first: Input::new(first, "first", 1)?,
            max_total: Input::new(max_total, "max_total", 1)?,
            draft_from: draft_from
                .map(|value| Input::new(value, "draft_from", 1))
                .transpose()?,
        })
    }

    /// The same for the core, with `Prompts::slices`.
    pub fn batch<'a>(&'a self, prompts: &'a [&'a [Token]]) -> AdmitBatch<'a> {
        AdmitBatch {
            prompts,
            scope: self.scope.slice(),
            first: self.first.slice(),
            max_total: self.max_total.slice(),
            draft_from: self.draft_from.as_ref().map(Input::slice),
        }
    }

    pub fn memory(&self) -> Vec<Region> {
        let mut regions = self.prompts.memory();
        regions.push(self.scope.region("scope"));
        regions.push(self.first.region("first"));
        regions.push(self.max_total.region("max_total"));
        let draft_from = self.draft_from.as_ref();
        regions.extend(draft_from.map(|values| values.region("draft_from")));
        regions
    }
}

/// The error with a refused token as the caller gave it: the core sees 32 bits of it.
pub fn as_given(error: LedgerError, given: impl Fn(usize, usize) -> i64) -> LedgerError {
    match error {
        LedgerError::Token { item, position, .. } => {
            let value = given(item, position);
            LedgerError::Token {
                item,
                position,
                value,
            }
        }
        other => other,
    }
}

/// Where the numbers of each sequence start in what holds those of all: the tokens of `advance`, the nodes
/// of `path_moves`.
pub enum TokenRows {
    /// One row of so many tokens per sequence.
    Matrix(usize),
    /// One after the other, without gaps.
    Packed(Vec<usize>),
}

impl TokenRows {
    pub fn new(
        py: Python<'_>,
        argument: &str,
        shape: &[usize],
        handles: usize,
        count: &[i32],
    ) -> PyResult<Self> {
        if let [rows, columns] = *shape {
            if rows != handles {
                let message =
                    format!("{argument} has {rows} rows, expected one per handle: {handles}");
                return Err(misuse(py, "length_mismatch", &message));
            }
            return Ok(Self::Matrix(columns));
        }
        let mut total = 0;
        let starts = count
            .iter()
            .map(|&size| {
                // A negative count is refused by the core, which knows its name.
                let start = total;
                total += usize::try_from(size).unwrap_or(0);
                start
            })
            .collect();
        let len = shape[0];
        if total != len {
            let message = format!("{argument} holds {len}, but the counts add up to {total}");
            return Err(misuse(py, "length_mismatch", &message));
        }
        Ok(Self::Packed(starts))
    }

    /// Where the tokens of `item` start.
    pub fn start(&self, item: usize) -> usize {
        match self {
            Self::Matrix(columns) => item * columns,
            Self::Packed(starts) => starts[item],
        }
    }

    /// The same for the core.
    pub fn rows(&self) -> Rows<'_> {
        match self {
            Self::Matrix(columns) => Rows::Matrix(*columns),
            Self::Packed(starts) => Rows::Packed(starts),
        }
    }
}

//! Scopes and media as Python gives them.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use tandemkv_core::media::Media;
use tandemkv_core::scope::{Adapter, AdapterId, Salt, Scope};

use crate::errors::misuse;
use crate::integer::{FROM_ONE, Integer};

const WIDE: &str = "an integer of 64 bits";

/// Text as UTF-8; lone surrogates have no form there.
fn text(value: &Bound<'_, PyString>, argument: &str) -> PyResult<String> {
    value.to_cow().map(Into::into).map_err(|_| {
        let shown = value.repr().map(|repr| repr.to_string());
        let message = format!(
            "{argument} is {}, must be text that UTF-8 can hold",
            shown.unwrap_or_else(|_| "a string".to_owned())
        );
        misuse(value.py(), "scope_field", &message)
    })
}

fn wrong(value: &Bound<'_, PyAny>, argument: &str, supported: &str) -> PyErr {
    let kind = value.get_type();
    let name = kind.name().map(|name| name.to_string());
    let message = format!(
        "{argument} is of type {}, must be {supported}",
        name.unwrap_or_else(|_| "unknown".to_owned())
    );
    misuse(value.py(), "scope_field", &message)
}

fn adapter(value: &Bound<'_, PyAny>) -> PyResult<Adapter> {
    let supported = "None or a tuple (id, version)";
    let pair = value
        .cast::<PyTuple>()
        .ok()
        .filter(|pair| pair.len() == 2)
        .ok_or_else(|| wrong(value, "adapter", supported))?;
    let py = value.py();
    let id = pair.get_item(0)?;
    let id = if let Ok(name) = id.cast::<PyString>() {
        AdapterId::Name(text(name, "adapter[0]")?)
    } else {
        let number = id
            .extract::<Integer>()
            .unwrap_or_else(|never| match never {});
        AdapterId::Number(number.get(py, "adapter[0]", "a text or an integer of 64 bits")?)
    };
    let version = pair.get_item(1)?;
    let version = version
        .extract::<Integer>()
        .unwrap_or_else(|never| match never {});
    let version = version.get(py, "adapter[1] (version)", WIDE)?;
    Ok(Adapter { id, version })
}

fn salt(value: &Bound<'_, PyAny>) -> PyResult<Salt> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Salt::Bytes(bytes.as_bytes().to_vec()));
    }
    match value.cast::<PyString>() {
        Ok(value) => text(value, "salt").map(Salt::Text),
        Err(_) => Err(wrong(value, "salt", "None, bytes or str")),
    }
}

/// The typed fields of a scope.
pub fn scope(
    adapter_: Option<&Bound<'_, PyAny>>,
    salt_: Option<&Bound<'_, PyAny>>,
) -> PyResult<Scope> {
    Ok(Scope {
        adapter: adapter_.map(adapter).transpose()?,
        salt: salt_.map(salt).transpose()?,
    })
}

/// An item of media.
pub fn media(digest: &Bound<'_, PyAny>, length: Integer) -> PyResult<Media> {
    let py = digest.py();
    let length = length.get(py, "length", FROM_ONE)?;
    let bytes = digest
        .cast::<PyBytes>()
        .map_err(|_| wrong(digest, "digest", "32 bytes"))?
        .as_bytes();
    let digest = bytes.try_into().map_err(|_| {
        let message = format!("digest has {} bytes, must have 32", bytes.len());
        misuse(py, "digest", &message)
    })?;
    Ok(Media { digest, length })
}

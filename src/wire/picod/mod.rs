//! The dialect of PicoD (volcano-sh/agentcube): the bodies of `/api/*`, read and written.
//!
//! [`execute`] is a command and its answer, [`files`] what moves and lists files. As in PicoD, a
//! field that nobody knows is ignored and null is an absent one; a field that is given twice is
//! refused, since two readers would not take the same one.

use std::time::SystemTime;

use serde_json::value::RawValue;

use super::time::Rfc3339;
use super::value::{Reader, Scalar, string};

pub mod execute;
pub mod files;

/// What every message about a body begins with that is no object of the right kinds of values.
const INVALID: &str = "Invalid request body:";

/// The raw values of the fields of `names` in a body; none where a field is absent or null.
fn fields<'a, const N: usize>(
    body: &'a [u8],
    names: [&str; N],
) -> Result<[Option<&'a RawValue>; N], String> {
    super::fields::fields(body, names).map_err(|message| format!("{INVALID} {message}"))
}

/// Decodes a field's value; what stands in it goes to the functions of `reader`.
fn value(raw: &RawValue, reader: Reader<'_>) -> Result<Scalar, String> {
    super::fields::value(raw, reader).map_err(|message| format!("{INVALID} {message}"))
}

/// The text of an optional field, which goes to the system and so holds no NUL.
fn text(name: &str, raw: Option<&RawValue>) -> Result<Option<String>, String> {
    let Some(raw) = raw else { return Ok(None) };
    let value = value(raw, Reader::default())?;
    string(&value).map(Some).map_err(|message| invalid(name, &message))
}

fn invalid(name: &str, message: &str) -> String {
    format!("{INVALID} field '{name}': {message}")
}

/// A moment as Go writes it: RFC 3339 in UTC, the fraction without trailing zeros.
fn moment(time: SystemTime) -> String {
    let whole = Rfc3339(time).to_string();
    let digits = whole.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.');
    format!("{digits}Z")
}

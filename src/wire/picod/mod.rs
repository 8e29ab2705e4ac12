//! The dialect of PicoD (volcano-sh/agentcube): the bodies of `/api/*`, read and written.
//!
//! [`execute`] is a command and its answer, [`files`] what moves and lists files. As in PicoD, a
//! field that nobody knows is ignored and null is an absent one; a field that is given twice is
//! refused, since two readers would not take the same one.

use std::fmt;
use std::time::SystemTime;

use serde_core::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::syntax::{offset, without_place};
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
    let mut values = [None; N];
    read_fields(body, &names, &mut values)?;
    Ok(values.map(|value| value.filter(|value: &&RawValue| value.get() != "null")))
}

fn read_fields<'a>(
    body: &'a [u8],
    names: &[&str],
    values: &mut [Option<&'a RawValue>],
) -> Result<(), String> {
    // Otherwise the message would show the value, which may be a secret.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(format!("{INVALID} expected a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = FieldsReader { names, values }.deserialize(&mut json);
    read.and_then(|()| json.end()).map_err(|error| {
        let offset = offset(body, error.line(), error.column());
        format!("{INVALID} {} at byte {offset}", without_place(&error))
    })
}

struct FieldsReader<'n, 'a> {
    names: &'n [&'n str],
    values: &'n mut [Option<&'a RawValue>],
}

impl<'a> DeserializeSeed<'a> for FieldsReader<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for FieldsReader<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            // Unknown ones are not remembered: they may be as many as fit into a body.
            let Some(at) = self.names.iter().position(|name| *name == key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if self.values[at].replace(map.next_value()?).is_some() {
                return Err(A::Error::custom(format_args!("field '{key}' is given twice")));
            }
        }
        Ok(())
    }
}

/// Decodes a field's value; what stands in it goes to the functions of `reader`.
fn value(raw: &RawValue, reader: Reader<'_>) -> Result<Scalar, String> {
    let mut json = serde_json::Deserializer::from_slice(raw.get().as_bytes());
    reader.deserialize(&mut json).map_err(|error| format!("{INVALID} {}", without_place(&error)))
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

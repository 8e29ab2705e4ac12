//! Which raw values stand in the fields of a JSON body?
//!
//! For dialects in which a field that nobody knows is ignored and null is an absent one. A field
//! that is given twice is refused, since two readers would not take the same one. The messages are
//! fragments: each dialect has its own words to begin with.

use std::fmt;

use serde_core::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::syntax::{offset, without_place};
use super::value::{Reader, Scalar};

/// The raw values of the fields of `names` in a body; none where a field is absent or null.
pub(super) fn fields<'a, const N: usize>(
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
        return Err("expected a JSON object".to_owned());
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = FieldsReader { names, values }.deserialize(&mut json);
    read.and_then(|()| json.end()).map_err(|error| {
        let offset = offset(body, error.line(), error.column());
        format!("{} at byte {offset}", without_place(&error))
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
pub(super) fn value(raw: &RawValue, reader: Reader<'_>) -> Result<Scalar, String> {
    let mut json = serde_json::Deserializer::from_slice(raw.get().as_bytes());
    reader.deserialize(&mut json).map_err(|error| without_place(&error))
}

/// Hands each entry of a raw object to `entry`, in order and with its value raw.
pub(super) fn entries<'a>(
    raw: &'a RawValue,
    entry: &mut dyn FnMut(String, &'a RawValue),
) -> Result<(), String> {
    let mut json = serde_json::Deserializer::from_slice(raw.get().as_bytes());
    EntriesReader { entry }.deserialize(&mut json).map_err(|error| without_place(&error))
}

struct EntriesReader<'n, 'a> {
    entry: &'n mut dyn FnMut(String, &'a RawValue),
}

impl<'a> DeserializeSeed<'a> for EntriesReader<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for EntriesReader<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, value)) = map.next_entry()? {
            (self.entry)(key, value);
        }
        Ok(())
    }
}

//! JSON values as a request may hold them, decoded without building a tree.
//!
//! The loser was `serde_json::Value`: it keeps the last of two equal keys in silence, and a
//! request of small values grows to many times its size.

use std::fmt;

use serde_core::Deserialize;
use serde_core::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::quote::quoted;

/// A value without structure, or the kind of one with.
#[derive(Debug)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(String),
    Array,
    Object,
}

impl fmt::Display for Scalar {
    /// The value as a message shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Null => f.write_str("null"),
            Scalar::Bool(value) => value.fmt(f),
            Scalar::Unsigned(value) => value.fmt(f),
            Scalar::Negative(value) => value.fmt(f),
            Scalar::Float(value) => write!(f, "{value:?}"),
            Scalar::Text(value) => f.write_str(&quoted(value)),
            Scalar::Array => f.write_str("an array"),
            Scalar::Object => f.write_str("an object"),
        }
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        Reader::default().deserialize(deserializer)
    }
}

/// Reads any value to its end; what stands in an array or an object goes to a function, one item
/// or entry at a time, and is forgotten where there is none.
#[derive(Default)]
pub(super) struct Reader<'a> {
    pub(super) item: Option<&'a mut dyn FnMut(Scalar)>,
    pub(super) entry: Option<&'a mut dyn FnMut(String, Scalar)>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Scalar;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(u64::try_from(value).map_or(Scalar::Negative(value), Scalar::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Scalar, A::Error> {
        match self.item {
            Some(item) => {
                while let Some(value) = items.next_element()? {
                    item(value);
                }
            }
            None => while items.next_element::<IgnoredAny>()?.is_some() {},
        }
        Ok(Scalar::Array)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Scalar, A::Error> {
        match self.entry {
            Some(entry) => {
                while let Some((key, value)) = entries.next_entry()? {
                    entry(key, value);
                }
            }
            None => while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {},
        }
        Ok(Scalar::Object)
    }
}

/// Says that `value` is not what is `wanted`.
pub(super) fn wrong(value: &Scalar, wanted: &str) -> String {
    format!("invalid value {value}: expected {wanted}")
}

pub(super) fn text(value: &Scalar) -> Result<String, String> {
    match value {
        Scalar::Text(text) => Ok(text.clone()),
        other => Err(wrong(other, "a string")),
    }
}

/// A string that goes to the system, so without a NUL.
pub(super) fn string(value: &Scalar) -> Result<String, String> {
    let text = text(value)?;
    if text.contains('\0') { Err("the value holds a NUL byte".to_owned()) } else { Ok(text) }
}

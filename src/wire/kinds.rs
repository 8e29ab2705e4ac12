//! What each kind of field makes of a value.

use std::time::Duration;

use crate::spec::CAP_MAX_BYTES;

use super::size::parse_size;
use super::time::{Bare, parse_duration, seconds_from_f64};
use super::value::{Scalar, wrong};

pub(super) fn boolean(value: &Scalar) -> Result<bool, String> {
    match value {
        Scalar::Bool(value) => Ok(*value),
        other => Err(wrong(other, "true or false")),
    }
}

pub(super) fn one_of<T: Copy>(value: &Scalar, choices: &[(&str, T)]) -> Result<T, String> {
    let chosen = match value {
        Scalar::Text(text) => choices.iter().find(|(name, _)| name == text),
        _ => None,
    };
    chosen.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        wrong(value, &names.join(" or "))
    })
}

pub(super) fn count(value: &Scalar) -> Result<u64, String> {
    match value {
        Scalar::Unsigned(value) => Ok(*value),
        other => Err(wrong(other, "a whole number that is not negative")),
    }
}

pub(super) fn size(value: &Scalar) -> Result<u64, String> {
    match value {
        Scalar::Text(text) => parse_size(text).map_err(|error| error.to_string()),
        Scalar::Unsigned(value) => Ok(*value),
        other => Err(wrong(other, "a whole number of bytes, or a string like \"4M\"")),
    }
}

/// A size that a stream may be capped to; `instead` is what a message about zero adds.
pub(super) fn cap(value: &Scalar, instead: &str) -> Result<usize, String> {
    match size(value)? {
        0 => Err(format!("invalid size 0: the least is 1{instead}")),
        bytes if bytes > CAP_MAX_BYTES as u64 => {
            Err(format!("invalid size {bytes}: the most is {CAP_MAX_BYTES} bytes"))
        }
        bytes => Ok(usize::try_from(bytes).expect("at most CAP_MAX_BYTES")),
    }
}

pub(super) fn duration(value: &Scalar) -> Result<Duration, String> {
    let seconds = match value {
        Scalar::Text(text) => {
            return parse_duration(text, Bare::Refused).map_err(|error| error.to_string());
        }
        Scalar::Unsigned(seconds) => return Ok(Duration::from_secs(*seconds)),
        Scalar::Float(seconds) => *seconds,
        Scalar::Negative(seconds) => *seconds as f64,
        other => {
            return Err(wrong(other, "a number of seconds, or a string like \"1m30s\""));
        }
    };
    seconds_from_f64(seconds).map_err(|error| error.to_string())
}

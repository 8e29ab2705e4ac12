//! What the value of an option may be.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::client::transfer::JOBS_MAX;
use crate::quote::quoted;
use crate::serve::log::Format;
use crate::spec::{
    CAP_MAX_BYTES, DEFAULT_CAP_BYTES, KEEP, Keep, Leftovers, OVERFLOW, Overflow, Part,
};
use crate::wire::size::parse_size;
use crate::wire::time::{Bare, parse_duration};

/// A number of bytes above zero.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let bytes = limit_size(text)?;
    let bytes = usize::try_from(bytes).map_err(|_| format!("{bytes} bytes are too many"))?;
    if bytes == 0 { Err("the least is 1".to_owned()) } else { Ok(bytes) }
}

/// The cap of a stream.
pub(super) fn cap(text: &str) -> Result<usize, String> {
    match size(text)? {
        bytes if bytes > CAP_MAX_BYTES => Err(format!("the most is {CAP_MAX_BYTES} bytes")),
        bytes => Ok(bytes),
    }
}

/// The cap of a stream under `serve`, where 0 and less are the default, as in PicoD's own flag.
pub(super) fn server_cap(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(..=0_i64) => Ok(DEFAULT_CAP_BYTES),
        _ => cap(text),
    }
}

/// A number of bytes.
pub(super) fn limit_size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// A number above zero.
pub(super) fn limit_count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("the least is 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a whole number".to_owned()),
    }
}

/// A number of things at once, above zero.
pub(super) fn count(text: &str) -> Result<usize, String> {
    let count = limit_count(text)?;
    usize::try_from(count).map_err(|_| format!("{count} are too many"))
}

/// Permissions in octal digits.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    let is_octal = !text.is_empty() && text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let mode = if is_octal { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|mode| *mode <= 0o7777).ok_or_else(|| "expected octal digits up to 7777".to_owned())
}

/// Ranges that are moved at once.
pub(super) fn jobs(text: &str) -> Result<usize, String> {
    match count(text)? {
        jobs @ 1..=JOBS_MAX => Ok(jobs),
        _ => Err(format!("the most is {JOBS_MAX}")),
    }
}

/// A duration.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text, Bare::Seconds).map_err(|error| error.to_string())
}

/// A duration above zero.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration.is_zero() { Err("it must be above zero".to_owned()) } else { Ok(duration) }
}

pub(super) fn keep(text: &str) -> Result<Keep, String> {
    named(text, &KEEP)
}

pub(super) fn overflow(text: &str) -> Result<Overflow, String> {
    named(text, &OVERFLOW)
}

pub(super) fn leftovers(text: &str) -> Result<Leftovers, String> {
    named(text, &[("kill", Leftovers::Kill), ("leave", Leftovers::Leave)])
}

pub(super) fn log(text: &str) -> Result<Format, String> {
    named(text, &[("text", Format::Text), ("json", Format::Json), ("off", Format::Off)])
}

fn named<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let chosen = choices.iter().find(|(name, _)| *name == text);
    chosen.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let (last, others) = names.split_last().expect("there is a choice");
        format!("expected {} or {last}", others.join(", "))
    })
}

/// The limit of one stream: a size, a part to keep and what happens past it, separated by commas,
/// each at most once.
///
/// # Errors
/// Anything else; the message names the piece that is wrong.
pub fn part(text: &str) -> Result<Part, String> {
    fn store<T>(slot: &mut Option<T>, value: T, piece: &str) -> Result<(), String> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(format!("{} says again what was said before", quoted(piece))),
        }
    }
    let mut part = Part::default();
    for piece in text.split(',') {
        if let Ok(value) = keep(piece) {
            store(&mut part.keep, value, piece)?;
        } else if let Ok(value) = overflow(piece) {
            store(&mut part.overflow, value, piece)?;
        } else if piece.starts_with(|first: char| first.is_ascii_digit()) {
            store(&mut part.cap, cap(piece)?, piece)?;
        } else {
            return Err(format!(
                "{} is no size, part or overflow: expected something like 4M,stop or \
                 80K,head+tail",
                quoted(piece)
            ));
        }
    }
    Ok(part)
}

/// A variable and its value, any bytes.
pub(super) fn variable() -> impl TypedValueParser<Value = (OsString, OsString)> {
    OsStringValueParser::new().try_map(|text| {
        let at = text.as_bytes().iter().position(|byte| *byte == b'=');
        match at {
            None => Err("expected KEY=VALUE"),
            Some(0) => Err("the variable's name is empty"),
            Some(at) => {
                let mut key = text.into_vec();
                let value = key.split_off(at + 1);
                key.pop();
                Ok((OsString::from_vec(key), OsString::from_vec(value)))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_each_thing_once() {
        let part = |cap, keep, overflow| Ok(Part { cap, keep, overflow });
        let rows = [
            ("4M", part(Some(4 << 20), None, None)),
            ("4M,stop", part(Some(4 << 20), None, Some(Overflow::Stop))),
            ("80K,head+tail", part(Some(80 << 10), Some(Keep::HeadTail), None)),
            ("tail,discard,1", part(Some(1), Some(Keep::Tail), Some(Overflow::Discard))),
            ("1,2", Err("'2' says again what was said before".to_owned())),
        ];
        for (text, expected) in rows {
            assert_eq!(super::part(text), expected, "{text}");
        }
        for text in ["", "4M,", "stopp", "0", "4MB", "257M", "-1", "tail,head"] {
            assert!(super::part(text).is_err(), "{text}");
        }
    }
}

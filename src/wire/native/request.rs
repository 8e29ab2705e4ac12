//! A native request: bytes to a `Spec` and what its answer needs, or the reason why not.
//!
//! Everything is checked before anything starts. The first thing that is wrong is the answer; the
//! rest of the request is still read, so that its tag can be echoed.

use std::ops::Range;
use std::time::Duration;

use serde_core::de::DeserializeSeed;

use crate::spec::{DEFAULT_GRACE, Env, Keep, Leftovers, Limit, Outputs, Part, Spec, Stdin};
use crate::wire::base64;
use crate::wire::json_string::unescape_in_place;
use crate::wire::time::HumanDuration;

use super::fields::{Fields, FieldsReader};

pub use crate::wire::arguments::ARGUMENTS_MAX_BYTES;

/// What a request gets when it does not say otherwise, and the most it may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Cap of each stream in bytes.
    pub cap: usize,
    /// Caps above this are lowered to it: what the memory limit of this place allows a stream.
    pub cap_ceiling: Option<usize>,
    /// The timeout of a request without one.
    pub timeout: Duration,
    /// The longest timeout and grace.
    pub timeout_max: Duration,
}

/// A request that may be carried out.
#[derive(Debug)]
pub struct Request {
    /// What to run.
    pub spec: Spec,
    /// How its output is written into the answer.
    pub encoding: Encoding,
    /// Whether output is kept at all.
    pub capture: bool,
    /// Whether output goes out as it happens; then a cap that was not asked for is `usize::MAX`.
    pub stream: bool,
    /// Echoed in the answer.
    pub tag: Option<String>,
    /// Bytes a stream to which a larger cap was lowered.
    pub cap_lowered_to: Option<usize>,
}

/// How output bytes stand in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As text; what is not UTF-8 becomes U+FFFD.
    Utf8,
    /// Exactly, in base64.
    Base64,
}

/// A request that is not carried out; nothing of it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// `invalid_request` or `request_too_large`.
    pub code: &'static str,
    /// What is wrong, with the offending value, and the way out.
    pub message: String,
    /// The field that is wrong, where there is one.
    pub field: Option<String>,
    /// Where in the value, for bytes that are not JSON.
    pub offset: Option<usize>,
    /// The request's tag, where it could be read.
    pub tag: Option<String>,
    /// The bytes were no JSON, so the rest of their line means nothing either.
    pub syntax: bool,
}

impl Refusal {
    /// A refusal of well-formed JSON.
    pub fn new(field: Option<&str>, message: impl Into<String>) -> Refusal {
        Refusal {
            code: "invalid_request",
            message: message.into(),
            field: field.map(str::to_owned),
            offset: None,
            tag: None,
            syntax: false,
        }
    }

    /// A refusal of bytes that are not JSON.
    pub fn syntax(offset: usize, message: impl Into<String>) -> Refusal {
        Refusal { offset: Some(offset), syntax: true, ..Refusal::new(None, message) }
    }
}

/// Decodes one framed value. The bytes become the request's stdin where it has one, so that a
/// large stdin is held once.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn decode(bytes: Vec<u8>, bounds: &Bounds) -> Result<Request, Refusal> {
    let mut fields = Fields::default();
    let mut json = serde_json::Deserializer::from_slice(&bytes);
    let base = bytes.as_ptr().addr();
    let read = FieldsReader { fields: &mut fields, base }.deserialize(&mut json);
    if let Err(error) = read.and_then(|()| json.end()) {
        fields.refuse_json(&bytes, &error);
    }
    let tag = fields.tag.clone();
    fields.finish(bytes, bounds).map_err(|refusal| Refusal { tag, ..refusal })
}

impl Fields {
    /// Checks what only the whole request shows, and builds it.
    fn finish(mut self, bytes: Vec<u8>, bounds: &Bounds) -> Result<Request, Refusal> {
        self.check_together(bounds);
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        let stdin = match self.stdin {
            Some(range) => Stdin::Bytes(stdin(bytes, range, self.given.contains("stdin_base64"))?),
            None => Stdin::Null,
        };
        let mut lowered = None;
        let mut limit = |part: Part, keep: Keep| {
            let cap = if self.stream { usize::MAX } else { bounds.cap };
            let keep = if self.stream { Keep::Head } else { keep };
            let limit = part.or(self.both).limit(cap, keep);
            let held = !self.stream && !self.no_capture;
            let ceiling = bounds.cap_ceiling.filter(|ceiling| held && *ceiling < limit.cap);
            lowered = lowered.or(ceiling);
            Limit { cap: ceiling.unwrap_or(limit.cap), ..limit }
        };
        let stdout = limit(self.stdout, Keep::Head);
        let stderr = limit(self.stderr, Keep::HeadTail);
        let spec = Spec {
            argv: self.arguments.argv,
            cwd: self.cwd,
            env: Env { clear: self.clear_env, set: self.arguments.env },
            stdin,
            timeout: Some(self.timeout.unwrap_or(bounds.timeout)),
            grace: self.grace.unwrap_or(DEFAULT_GRACE),
            outputs: Outputs::Read,
            stdout,
            stderr,
            merge_stderr: self.merge_stderr,
            leftovers: if self.leave { Leftovers::Leave } else { Leftovers::Kill },
            rlimits: self.rlimits,
            new_session: false,
            die_with_parent: false,
        };
        Ok(Request {
            spec,
            encoding: if self.base64 { Encoding::Base64 } else { Encoding::Utf8 },
            capture: !self.no_capture,
            stream: self.stream,
            tag: self.tag,
            cap_lowered_to: lowered,
        })
    }

    fn check_together(&mut self, bounds: &Bounds) {
        let given = |field: &str| self.given.contains(field);
        let pairs = [
            ("cwd", "working_dir"),
            ("stdin", "stdin_base64"),
            ("merge_stderr", "stderr_limit"),
            ("capture", "stream"),
        ];
        let clash = pairs.into_iter().find(|(one, other)| match *one {
            "merge_stderr" => self.merge_stderr && given(other),
            "capture" => self.no_capture && self.stream,
            _ => given(one) && given(other),
        });
        let no_command = !given("command");
        if let Some((one, other)) = clash {
            self.refuse(other, format!("{other} and {one} exclude each other: leave one out"));
        }
        if no_command {
            self.refuse(
                "command",
                "the field command is missing: an array of strings, or a string",
            );
        }
        let longest = bounds.timeout_max;
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            self.refuse("timeout", "invalid timeout 0: it must be above zero");
        }
        for (field, value) in [("timeout", self.timeout), ("grace", self.grace)] {
            if let Some(value) = value.filter(|value| *value > longest) {
                let (value, longest) = (HumanDuration(value), HumanDuration(longest));
                self.refuse(field, format!("invalid {field} {value}: the longest is {longest}"));
            }
        }
        let (both, stream) = (self.both, self.stream);
        for (field, part) in [("stdout_limit", self.stdout), ("stderr_limit", self.stderr)] {
            let whole = part.or(both);
            let other = whole.keep.is_some_and(|keep| keep != Keep::Head);
            let field = if part.keep.is_some() { &format!("{field}.keep") } else { "keep" };
            if other && stream {
                self.refuse(field, "stream: true keeps the head: leave keep out");
            } else if whole.keeps_what_stop_cannot() {
                self.refuse(field, "overflow: stop keeps the head: leave keep out");
            }
        }
    }
}

/// Turns the framed bytes into the stdin that stands in them.
fn stdin(mut bytes: Vec<u8>, range: Range<usize>, base64: bool) -> Result<Vec<u8>, Refusal> {
    let field = if base64 { "stdin_base64" } else { "stdin" };
    bytes.truncate(range.end);
    bytes.drain(..range.start);
    let len = unescape_in_place(&mut bytes)
        .map_err(|error| Refusal::new(Some(field), error.to_string()))?;
    bytes.truncate(len);
    if base64 {
        base64::decode_in_place(&mut bytes)
            .map_err(|error| Refusal::new(Some(field), error.to_string()))?;
    }
    Ok(bytes)
}

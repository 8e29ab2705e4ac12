//! A native request: bytes to a `Spec` and what its answer needs, or the reason why not.
//!
//! Everything is checked before anything starts. The first thing that is wrong is the answer; the
//! rest of the request is still read, so that its tag can be echoed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde_core::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::quote::quoted;
use crate::spec::{DEFAULT_GRACE, Env, Keep, Leftovers, Limit, Overflow, Rlimits, Spec, Stdin};
use crate::wire::base64;
use crate::wire::json_string::unescape_in_place;
use crate::wire::time::HumanDuration;

use super::syntax::{no_object, offset, without_place};
use super::value::{
    Reader, Scalar, boolean, cap, count, duration, one_of, size, string, text, wrong,
};

/// Bytes that arguments and environment of one request may take, each string with its terminator
/// and its pointer: the kernel takes no more than three quarters of its default 8 MiB stack
/// (execve(2), "Limits on size of arguments and environment").
pub const ARGUMENTS_MAX_BYTES: usize = 6 << 20;

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

/// What was read of a request so far. A field that was refused counts as given.
#[derive(Default)]
struct Fields {
    refusal: Option<Refusal>,
    given: BTreeSet<String>,
    /// The key whose value is being read.
    current: Option<String>,
    arguments_bytes: usize,
    command: Vec<OsString>,
    cwd: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
    clear_env: bool,
    stdin: Option<Range<usize>>,
    timeout: Option<Duration>,
    grace: Option<Duration>,
    both: Part,
    stdout: Part,
    stderr: Part,
    merge_stderr: bool,
    no_capture: bool,
    base64: bool,
    leave: bool,
    rlimits: Rlimits,
    stream: bool,
    tag: Option<String>,
}

/// What was said of a stream's limit, or of both.
#[derive(Default, Clone, Copy)]
struct Part {
    cap: Option<usize>,
    keep: Option<Keep>,
    overflow: Option<Overflow>,
}

impl Part {
    fn or(self, general: Part) -> Part {
        Part {
            cap: self.cap.or(general.cap),
            keep: self.keep.or(general.keep),
            overflow: self.overflow.or(general.overflow),
        }
    }

    /// Takes the value of one of its three keys; `None` for another key.
    fn set(&mut self, key: &str, value: &Scalar) -> Option<Result<(), String>> {
        fn store<T>(slot: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
            value.map(|value| *slot = Some(value))
        }
        Some(match key {
            "max_output_size" => store(&mut self.cap, cap(value)),
            "keep" => store(&mut self.keep, one_of(value, &KEEP)),
            "overflow" => store(&mut self.overflow, one_of(value, &OVERFLOW)),
            _ => return None,
        })
    }
}

const KEEP: [(&str, Keep); 3] =
    [("head", Keep::Head), ("tail", Keep::Tail), ("head+tail", Keep::HeadTail)];
const OVERFLOW: [(&str, Overflow); 2] = [("discard", Overflow::Discard), ("stop", Overflow::Stop)];

/// Characters of a field's name that an answer shows.
const NAME_MAX: usize = 80;

/// Every field, for the message about one that is none of them.
const NAMES: &str = "command, cwd, working_dir, env, clear_env, stdin, stdin_base64, timeout, \
                     grace, max_output_size, keep, overflow, stdout_limit, stderr_limit, \
                     merge_stderr, capture, encoding, leftovers, limits, stream, tag";

impl Fields {
    fn refuse(&mut self, field: &str, message: impl Into<String>) {
        if self.refusal.is_none() {
            self.refusal = Some(Refusal::new(Some(&shown_name(field)), message));
        }
    }

    /// Takes note of what serde_json found wrong.
    fn refuse_json(&mut self, bytes: &[u8], error: &serde_json::Error) {
        // A number or a text that is right JSON and still means nothing (1e400, half a surrogate
        // pair) is a refused value; anything else breaks the stream.
        let Err(syntax) = serde_json::from_slice::<IgnoredAny>(bytes) else {
            let field = self.current.take();
            let message = no_object(bytes).unwrap_or_else(|| without_place(error));
            self.refusal.get_or_insert_with(|| Refusal::new(field.as_deref(), message));
            return;
        };
        // An error about the kind of a value shows the value.
        let error = if error.is_data() { &syntax } else { error };
        let offset = offset(bytes, error.line(), error.column());
        let message = format!("invalid JSON: {} at byte {offset}", without_place(error));
        self.refusal = Some(Refusal::syntax(offset, message));
    }

    fn read_entry<'de, A: MapAccess<'de>>(
        &mut self,
        key: &str,
        map: &mut A,
        base: usize,
    ) -> Result<(), A::Error> {
        match key {
            "command" => self.read_command(map),
            "env" => self.read_env(map),
            "limits" => self.read_limits(map),
            "stdout_limit" | "stderr_limit" => self.read_part(key, map),
            "stdin" | "stdin_base64" => self.read_stdin(key, map.next_value()?, base),
            _ => {
                let value: Scalar = map.next_value()?;
                if let Err(message) = self.set(key, &value) {
                    self.refuse(key, message);
                }
                Ok(())
            }
        }
    }

    /// Takes the value of a field without structure.
    fn set(&mut self, key: &str, value: &Scalar) -> Result<(), String> {
        match key {
            "cwd" | "working_dir" => self.cwd = Some(PathBuf::from(string(value)?)),
            "clear_env" => self.clear_env = boolean(value)?,
            "timeout" => self.timeout = Some(duration(value)?),
            "grace" => self.grace = Some(duration(value)?),
            "merge_stderr" => self.merge_stderr = boolean(value)?,
            "capture" => self.no_capture = !boolean(value)?,
            "encoding" => self.base64 = one_of(value, &[("utf-8", false), ("base64", true)])?,
            "leftovers" => self.leave = one_of(value, &[("kill", false), ("leave", true)])?,
            "stream" => self.stream = boolean(value)?,
            "tag" => self.tag = Some(text(value)?),
            _ => match self.both.set(key, value) {
                Some(result) => result?,
                None => {
                    return Err(format!("unknown field {}: the fields are {NAMES}", quoted(key)));
                }
            },
        }
        Ok(())
    }

    /// Counts a string towards [`ARGUMENTS_MAX_BYTES`]; whether it still fits.
    fn fits(&mut self, field: &str, len: usize) -> bool {
        self.arguments_bytes = self.arguments_bytes.saturating_add(len + 1 + size_of::<usize>());
        if self.arguments_bytes > ARGUMENTS_MAX_BYTES {
            let message = format!(
                "command and env take more than {ARGUMENTS_MAX_BYTES} bytes, which the kernel \
                 refuses (E2BIG): pass data through stdin or a file"
            );
            self.refuse(field, message);
        }
        self.arguments_bytes <= ARGUMENTS_MAX_BYTES
    }

    fn read_command<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let mut index = 0;
        let mut item = |value: Scalar| {
            let field = format!("command[{index}]");
            index += 1;
            match string(&value) {
                Ok(text) if self.fits("command", text.len()) => self.command.push(text.into()),
                Ok(_) => {}
                Err(message) => self.refuse(&field, message),
            }
        };
        let value = map.next_value_seed(Reader { item: Some(&mut item), entry: None })?;
        match value {
            Scalar::Array if index == 0 => self.refuse("command", "command is an empty array"),
            Scalar::Array => {}
            Scalar::Text(_) => match string(&value) {
                Ok(script) if self.fits("command", script.len()) => {
                    self.command = ["/bin/sh", "-c", &script].map(OsString::from).to_vec();
                    if script.is_empty() {
                        self.refuse("command", "command is an empty string");
                    }
                }
                Ok(_) => {}
                Err(message) => self.refuse("command", message),
            },
            other => self.refuse(
                "command",
                wrong(&other, "an array of strings, or a string for /bin/sh -c"),
            ),
        }
        if self.command.first().is_some_and(|program| program.is_empty()) {
            self.refuse("command[0]", "the program is an empty string");
        }
        Ok(())
    }

    fn read_env<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let mut keys = BTreeSet::new();
        let mut entry = |key: String, value: Scalar| {
            // Neither key nor value is shown: both may be secrets.
            let problem = if key.is_empty() {
                "a variable's name is empty"
            } else if key.contains('=') {
                "a variable's name holds '='"
            } else if key.contains('\0') {
                "a variable's name holds a NUL byte"
            } else if keys.contains(&key) {
                "a variable is given twice"
            } else {
                match value {
                    Scalar::Text(value) if value.contains('\0') => "a value holds a NUL byte",
                    Scalar::Text(value) => {
                        if self.fits("env", key.len() + 1 + value.len()) {
                            self.env.push((OsString::from(&key), value.into()));
                            keys.insert(key);
                        }
                        return;
                    }
                    _ => "a value is no string",
                }
            };
            self.refuse("env", problem);
        };
        let value = map.next_value_seed(Reader { item: None, entry: Some(&mut entry) })?;
        if !matches!(value, Scalar::Object) {
            self.refuse("env", "env must be an object of strings");
        }
        Ok(())
    }

    fn read_limits<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let mut rlimits = Rlimits::default();
        self.read_object("limits", map, |key, value| {
            let (slot, least, bytes) = match key {
                "memory" => (&mut rlimits.memory, 1, true),
                "processes" => (&mut rlimits.processes, 1, false),
                "open_files" => (&mut rlimits.open_files, 1, false),
                "file_size" => (&mut rlimits.file_size, 0, true),
                "cpu_seconds" => (&mut rlimits.cpu_seconds, 1, false),
                "core" => (&mut rlimits.core, 0, true),
                _ => return None,
            };
            let number = if bytes { size(value) } else { count(value) };
            Some(number.and_then(|number| {
                if number < least {
                    return Err(format!("invalid value {number}: the least is {least}"));
                }
                *slot = Some(number);
                Ok(())
            }))
        })?;
        self.rlimits = rlimits;
        Ok(())
    }

    fn read_part<'de, A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let mut part = Part::default();
        self.read_object(field, map, |key, value| part.set(key, value))?;
        *(if field == "stdout_limit" { &mut self.stdout } else { &mut self.stderr }) = part;
        Ok(())
    }

    /// Reads an object of known keys; `set` says `None` for one it does not know.
    fn read_object<'de, A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
        mut set: impl FnMut(&str, &Scalar) -> Option<Result<(), String>>,
    ) -> Result<(), A::Error> {
        let mut keys = BTreeSet::new();
        let mut entry = |key: String, value: Scalar| {
            let problem = match set(&key, &value) {
                None => format!("unknown field {}", quoted(&key)),
                Some(_) if keys.contains(&key) => "the field is given twice".to_owned(),
                Some(Err(message)) => message,
                Some(Ok(())) => {
                    keys.insert(key);
                    return;
                }
            };
            self.refuse(&format!("{field}.{key}"), problem);
        };
        let value = map.next_value_seed(Reader { item: None, entry: Some(&mut entry) })?;
        if !matches!(value, Scalar::Object) {
            self.refuse(field, wrong(&value, "an object"));
        }
        Ok(())
    }

    fn read_stdin<E>(&mut self, field: &str, raw: &RawValue, base: usize) -> Result<(), E> {
        let raw = raw.get();
        if raw.starts_with('"') {
            let start = raw.as_ptr().addr() - base + 1;
            self.stdin = Some(start..start + raw.len() - 2);
        } else {
            self.refuse(field, "the field must be a string");
        }
        Ok(())
    }

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
            let part = part.or(self.both);
            let overflow = part.overflow.unwrap_or(Overflow::Discard);
            let unlimited = self.stream && part.cap.is_none();
            let cap = if unlimited { usize::MAX } else { part.cap.unwrap_or(bounds.cap) };
            let held = !self.stream && !self.no_capture;
            let ceiling = bounds.cap_ceiling.filter(|ceiling| held && *ceiling < cap);
            lowered = lowered.or(ceiling);
            let plain = self.stream || overflow == Overflow::Stop;
            let keep = part.keep.unwrap_or(if plain { Keep::Head } else { keep });
            Limit { cap: ceiling.unwrap_or(cap), keep, overflow }
        };
        let stdout = limit(self.stdout, Keep::Head);
        let stderr = limit(self.stderr, Keep::HeadTail);
        let spec = Spec {
            argv: self.command,
            cwd: self.cwd,
            env: Env { clear: self.clear_env, set: self.env },
            stdin,
            timeout: Some(self.timeout.unwrap_or(bounds.timeout)),
            grace: self.grace.unwrap_or(DEFAULT_GRACE),
            stdout,
            stderr,
            merge_stderr: self.merge_stderr,
            leftovers: if self.leave { Leftovers::Leave } else { Leftovers::Kill },
            rlimits: self.rlimits,
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
            let Part { keep, overflow, .. } = part.or(both);
            let other = keep.is_some_and(|keep| keep != Keep::Head);
            let field = if part.keep.is_some() { &format!("{field}.keep") } else { "keep" };
            if other && stream {
                self.refuse(field, "stream: true keeps the head: leave keep out");
            } else if other && overflow == Some(Overflow::Stop) {
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

struct FieldsReader<'a> {
    fields: &'a mut Fields,
    /// Address of the first byte of the request.
    base: usize,
}

impl<'de> DeserializeSeed<'de> for FieldsReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldsReader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object: a request is {\"command\": ...}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { fields, base } = self;
        while let Some(key) = map.next_key::<String>()? {
            fields.current = Some(shown_name(&key));
            if fields.given.contains(&key) {
                fields.refuse(&key, "the field is given twice");
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            fields.read_entry(&key, &mut map, base)?;
            // A request of unknown keys must not grow what is remembered of it.
            if NAMES.split(", ").any(|name| name == key) {
                fields.given.insert(key);
            }
        }
        fields.current = None;
        Ok(())
    }
}

/// The name of a field as an answer shows it: a key may be as long as the request.
fn shown_name(field: &str) -> String {
    field.chars().take(NAME_MAX).collect()
}

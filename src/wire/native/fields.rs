//! What stands in a request, read field by field: each value checked alone, the first thing that is
//! wrong remembered.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde_core::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::quote::quoted;
use crate::spec::{KEEP, OVERFLOW, Part, Rlimits};
use crate::wire::arguments::Arguments;
use crate::wire::kinds::{boolean, cap, count, duration, one_of, size};
use crate::wire::syntax::{offset, without_place};
use crate::wire::value::{Reader, Scalar, string, text, wrong};

use super::request::Refusal;

/// What was read of a request so far. A field that was refused counts as given.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) refusal: Option<Refusal>,
    pub(super) given: BTreeSet<String>,
    /// The key whose value is being read.
    pub(super) current: Option<String>,
    pub(super) arguments: Arguments,
    pub(super) cwd: Option<PathBuf>,
    pub(super) clear_env: bool,
    pub(super) stdin: Option<Range<usize>>,
    pub(super) timeout: Option<Duration>,
    pub(super) grace: Option<Duration>,
    pub(super) both: Part,
    pub(super) stdout: Part,
    pub(super) stderr: Part,
    pub(super) merge_stderr: bool,
    pub(super) no_capture: bool,
    pub(super) base64: bool,
    pub(super) leave: bool,
    pub(super) rlimits: Rlimits,
    pub(super) stream: bool,
    pub(super) tag: Option<String>,
}

/// Takes the value of one of the three keys of a stream's limit; `None` for another key.
fn set_part(part: &mut Part, key: &str, value: &Scalar) -> Option<Result<(), String>> {
    fn store<T>(slot: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
        value.map(|value| *slot = Some(value))
    }
    Some(match key {
        "max_output_size" => store(&mut part.cap, cap(value, "; capture: false keeps nothing")),
        "keep" => store(&mut part.keep, one_of(value, &KEEP)),
        "overflow" => store(&mut part.overflow, one_of(value, &OVERFLOW)),
        _ => return None,
    })
}

/// Characters of a field's name that an answer shows.
const NAME_MAX: usize = 80;

/// Every field, for the message about one that is none of them.
const NAMES: &str = "command, cwd, working_dir, env, clear_env, stdin, stdin_base64, timeout, \
                     grace, max_output_size, keep, overflow, stdout_limit, stderr_limit, \
                     merge_stderr, capture, encoding, leftovers, limits, stream, tag";

impl Fields {
    pub(super) fn refuse(&mut self, field: &str, message: impl Into<String>) {
        if self.refusal.is_none() {
            self.refusal = Some(Refusal::new(Some(&shown_name(field)), message));
        }
    }

    /// Takes note of what serde_json found wrong.
    pub(super) fn refuse_json(&mut self, bytes: &[u8], error: &serde_json::Error) {
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
            _ => match set_part(&mut self.both, key, value) {
                Some(result) => result?,
                None => {
                    return Err(format!("unknown field {}: the fields are {NAMES}", quoted(key)));
                }
            },
        }
        Ok(())
    }

    fn read_command<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let mut index = 0;
        let mut item = |value: Scalar| {
            if let Err(message) = self.arguments.push(&value) {
                self.refuse(&format!("command[{index}]"), message);
            }
            index += 1;
        };
        let value = map.next_value_seed(Reader { item: Some(&mut item), entry: None })?;
        match value {
            Scalar::Array if index == 0 => self.refuse("command", "command is an empty array"),
            Scalar::Array => {}
            Scalar::Text(_) => {
                self.arguments.argv = ["/bin/sh", "-c"].map(OsString::from).to_vec();
                if let Err(message) = self.arguments.push(&value) {
                    self.refuse("command", message);
                } else if self.arguments.argv[2].is_empty() {
                    self.refuse("command", "command is an empty string");
                }
            }
            other => self.refuse(
                "command",
                wrong(&other, "an array of strings, or a string for /bin/sh -c"),
            ),
        }
        if self.arguments.argv.first().is_some_and(|program| program.is_empty()) {
            self.refuse("command[0]", "the program is an empty string");
        }
        Ok(())
    }

    fn read_env<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        let mut entry = |name: String, value: Scalar| {
            if let Err(message) = self.arguments.set(name, value) {
                self.refuse("env", message);
            }
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
        self.read_object(field, map, |key, value| set_part(&mut part, key, value))?;
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
}

pub(super) struct FieldsReader<'a> {
    pub(super) fields: &'a mut Fields,
    /// Address of the first byte of the request.
    pub(super) base: usize,
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

/// What is wrong with a value that is no object. It is not shown: a stdin that holds a bare newline
/// breaks its request, and its next line may be such a value.
fn no_object(bytes: &[u8]) -> Option<String> {
    let kind = match bytes.trim_ascii_start().first()? {
        b'{' => return None,
        b'[' => "an array",
        b'"' => "a string",
        b't' | b'f' => "true or false",
        b'n' => "null",
        _ => "a number",
    };
    Some(format!("invalid request: expected an object like {{\"command\": ...}}, found {kind}"))
}

//! `POST /api/execute`: which command a body asks for, and what is answered when it has ended.

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;

use crate::capture::Capture;
use crate::quote::quoted;
use crate::wire::arguments::Arguments;
use crate::wire::json_string::write_escaped;
use crate::wire::text::{Decoder, incomplete_suffix};
use crate::wire::time::{Bare, Seconds, parse_duration};
use crate::wire::value::{Reader, Scalar, wrong};

use super::{fields, invalid, moment, text, value};

/// How long a command may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// Nothing was said: the default of the server.
    Unset,
    /// Zero, or below: the command has timed out before it begins.
    AtOnce,
    /// This long, above zero.
    After(Duration),
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execute {
    /// Program and arguments, at least one, none with a NUL byte.
    pub argv: Vec<OsString>,
    /// How long it may run.
    pub timeout: Timeout,
    /// As it was sent, without NUL bytes; empty for the workspace itself.
    pub working_dir: String,
    /// Over the inherited environment: each name once, not empty, without `=`, no NUL byte.
    pub env: Vec<(OsString, OsString)>,
}

/// Decodes the body of a request.
///
/// # Errors
/// The message of the answer with status 400. It never shows what stands in `env`.
pub fn decode_execute(body: &[u8]) -> Result<Execute, String> {
    let names = ["command", "timeout", "working_dir", "env"];
    let [command, timeout, working_dir, env] = fields(body, names)?;
    let mut arguments = Arguments::default();
    read_command(command, &mut arguments)?;
    let timeout = parse_timeout(&text("timeout", timeout)?.unwrap_or_default())?;
    let working_dir = text("working_dir", working_dir)?.unwrap_or_default();
    read_env(env, &mut arguments)?;
    let Arguments { argv, env, .. } = arguments;
    Ok(Execute { argv, timeout, working_dir, env })
}

fn read_command(raw: Option<&RawValue>, arguments: &mut Arguments) -> Result<(), String> {
    const WANTED: &str = "an array of strings";
    let raw = raw.ok_or_else(|| invalid("command", &format!("missing, expected {WANTED}")))?;
    let mut read = Ok(());
    let mut item = |value: Scalar| {
        if read.is_ok() {
            read = arguments.push(&value);
        }
    };
    let value = value(raw, Reader { item: Some(&mut item), entry: None })?;
    if !matches!(value, Scalar::Array) {
        read = Err(wrong(&value, WANTED));
    }
    read.map_err(|message| invalid("command", &message))?;
    if arguments.argv.is_empty() { Err("command cannot be empty".to_owned()) } else { Ok(()) }
}

fn read_env(raw: Option<&RawValue>, arguments: &mut Arguments) -> Result<(), String> {
    let Some(raw) = raw else { return Ok(()) };
    let mut read = Ok(());
    let mut entry = |name: String, value: Scalar| {
        if read.is_ok() {
            read = arguments.set(name, value);
        }
    };
    if !matches!(value(raw, Reader { item: None, entry: Some(&mut entry) })?, Scalar::Object) {
        read = Err("expected an object of strings".to_owned());
    }
    read.map_err(|message| invalid("env", &message))
}

/// Reads a duration as Go does: like [`parse_duration`], with a sign.
fn parse_timeout(text: &str) -> Result<Timeout, String> {
    const PREFIX: &str = "Invalid timeout format:";
    if text.is_empty() {
        return Ok(Timeout::Unset);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match parse_duration(unsigned, Bare::Refused) {
        Ok(duration) if duration.is_zero() || text.starts_with('-') => Ok(Timeout::AtOnce),
        Ok(duration) => Ok(Timeout::After(duration)),
        Err(error) if unsigned.len() == text.len() => Err(format!("{PREFIX} {error}")),
        // What was parsed is not what was sent.
        Err(_) => Err(format!("{PREFIX} {}: expected a duration behind the sign", quoted(text))),
    }
}

/// What is answered when a command has ended, or could not start.
#[derive(Debug, Clone, Copy)]
pub struct ExecuteAnswer<'a> {
    /// The child's, or 124 at the timeout, -1 for a signal, 1 where it could not start.
    pub exit_code: i32,
    /// Standard output, of which the head was kept.
    pub stdout: &'a Capture,
    /// Standard error, of which the head was kept.
    pub stderr: &'a Capture,
    /// What runcap has to say: written behind stderr, outside its cap, each on a line of its own.
    pub notes: &'a [String],
    /// Bytes of standard output were dropped; a character that is cut at its end is left out.
    pub stdout_truncated: bool,
    /// Bytes of standard error were dropped; a character that is cut at its end is left out.
    pub stderr_truncated: bool,
    /// How long the command ran, by the monotonic clock; written in seconds.
    pub duration: Duration,
    /// When it began.
    pub start_time: SystemTime,
    /// When it ended.
    pub end_time: SystemTime,
}

/// Writes the answer. The text of the streams is decoded as it is written, never held.
///
/// # Errors
/// As the writer.
pub fn write_execute(out: &mut dyn Write, answer: &ExecuteAnswer<'_>) -> io::Result<()> {
    out.write_all(b"{\"stdout\":\"")?;
    write_head(out, answer.stdout, answer.stdout_truncated)?;
    out.write_all(b"\",\"stderr\":\"")?;
    let mut last = write_head(out, answer.stderr, answer.stderr_truncated)?;
    for note in answer.notes {
        if last.is_some_and(|last| last != b'\n') {
            write_escaped(out, "\n")?;
            last = Some(b'\n');
        }
        write_escaped(out, note)?;
        last = note.bytes().last().or(last);
    }
    write!(
        out,
        r#"","exit_code":{},"duration":{},"start_time":"{}","end_time":"{}""#,
        answer.exit_code,
        Seconds(answer.duration),
        moment(answer.start_time),
        moment(answer.end_time),
    )?;
    if answer.stdout_truncated {
        out.write_all(br#","stdout_truncated":true"#)?;
    }
    if answer.stderr_truncated {
        out.write_all(br#","stderr_truncated":true"#)?;
    }
    out.write_all(b"}")
}

/// Writes the text of what was kept of a stream; returns its last byte.
fn write_head(
    out: &mut dyn Write,
    capture: &Capture,
    is_truncated: bool,
) -> io::Result<Option<u8>> {
    let head = capture.head();
    let cut = if is_truncated { incomplete_suffix(head) } else { 0 };
    let head = &head[..head.len() - cut];
    let mut emit = |text: &str| write_escaped(out, text);
    let mut decoder = Decoder::new();
    decoder.feed(head, &mut emit)?;
    decoder.finish(&mut emit)?;
    Ok(head.last().copied())
}

/// The note about a command that ran into its timeout, as PicoD words it: whole seconds, rounded
/// half to even.
pub fn timeout_note(after: Duration) -> String {
    const HALF_NS: u32 = 500_000_000;
    let (seconds, rest_ns) = (after.as_secs(), after.subsec_nanos());
    let is_up = rest_ns > HALF_NS || rest_ns == HALF_NS && seconds % 2 == 1;
    format!("Command timed out after {} seconds", seconds.saturating_add(u64::from(is_up)))
}

/// The note about a stream of which `kept` bytes out of `received` were kept, because of the cap
/// of a stream or, with `budget`, of what all commands together may keep.
pub fn truncation_note(stream: &str, kept: u64, received: u64, budget: bool) -> String {
    let why = if budget { " (all of the server's output budget was in use)" } else { "" };
    format!("[runcap: {stream} truncated, kept {kept} of {received} bytes{why}]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Keep;
    use crate::wire::arguments::ARGUMENTS_MAX_BYTES;
    use std::time::UNIX_EPOCH;

    const TRUE: &str = r#""command":["true"]"#;

    #[test]
    fn timeouts_are_gos_durations() {
        let after = |milliseconds| Timeout::After(Duration::from_millis(milliseconds));
        let rows = [
            ("empty", "", Timeout::Unset),
            ("bare zero", "0", Timeout::AtOnce),
            ("zero", "0s", Timeout::AtOnce),
            ("signed zero", "-0", Timeout::AtOnce),
            ("negative", "-1h", Timeout::AtOnce),
            ("below a nanosecond", "0.1ns", Timeout::AtOnce),
            ("several units", "1h2m3.5s", after(3_723_500)),
            ("milliseconds", "500ms", after(500)),
            ("micro", "100000us", after(100)),
            ("micro sign", "100000\u{b5}s", after(100)),
            ("greek mu", "100000\u{3bc}s", after(100)),
            ("plus", "+5s", after(5_000)),
            ("fraction only", "-.5s", Timeout::AtOnce),
        ];
        for (name, text, expected) in rows {
            let body = format!("{{{TRUE},\"timeout\":\"{text}\"}}");
            let execute = decode_execute(body.as_bytes()).expect(name);
            assert_eq!(execute.timeout, expected, "{name}");
        }
        for text in ["10", "abc", "1 s", "1e3s", "5x", "-", "+", "--1s", "+-1s", " 1s", "1", "s"] {
            let body = format!("{{{TRUE},\"timeout\":\"{text}\"}}");
            let message = decode_execute(body.as_bytes()).expect_err(text);
            assert!(message.starts_with("Invalid timeout format: "), "{text}: {message}");
            assert!(message.contains(&format!("'{text}'")), "{text}: {message}");
        }
    }

    #[test]
    fn bodies_are_read() {
        let body = r#" {"env":{"A":"x y","B":""},"more":[{"command":1}],"more":1e999,"Command":[],
            "command":["sh","-c","a\u00e9"],"timeout":null,"working_dir":"../x"} "#;
        let execute = decode_execute(body.as_bytes()).expect("a right body");
        assert_eq!(execute.argv, ["sh", "-c", "aé"]);
        assert_eq!(execute.timeout, Timeout::Unset);
        assert_eq!(execute.working_dir, "../x");
        let env = [("A", "x y"), ("B", "")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(execute.env, env);
        let nulls = r#"{"command":["a"],"timeout":null,"working_dir":null,"env":null}"#;
        let bare = decode_execute(br#"{"command":["a"]}"#).expect("a right body");
        assert_eq!(decode_execute(nulls.as_bytes()), Ok(bare));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rows = [
            ("nothing", "", "expected a JSON object"),
            ("blank", " \n", "expected a JSON object"),
            ("an array", r#"["a secret"]"#, "expected a JSON object"),
            ("unclosed", "{", "at byte 0"),
            ("trailing", r#"{"command":["a"]}x"#, "trailing characters at byte 17"),
            ("no command", "{}", "field 'command': missing"),
            ("command null", r#"{"command":null}"#, "field 'command': missing"),
            ("command text", r#"{"command":"echo"}"#, "value 'echo': expected an array of strings"),
            ("command object", r#"{"command":{}}"#, "value an object: expected an array"),
            ("command empty", r#"{"command":[]}"#, "command cannot be empty"),
            ("number", r#"{"command":[1]}"#, "invalid value 1: expected a string"),
            ("null item", r#"{"command":["a",null]}"#, "invalid value null"),
            ("NUL", r#"{"command":["a\u0000"]}"#, "field 'command': the value holds a NUL byte"),
            ("surrogate", r#"{"command":["\ud800"]}"#, "Invalid request body:"),
            ("twice", r#"{"command":["a"],"command":["a"]}"#, "field 'command' is given twice"),
            ("null twice", r#"{"env":null,"\u0065nv":null}"#, "field 'env' is given twice"),
            ("timeout", r#"{"command":["a"],"timeout":5}"#, "field 'timeout': invalid value 5"),
            ("dir", r#"{"command":["a"],"working_dir":[]}"#, "field 'working_dir': invalid"),
            ("dir NUL", r#"{"command":["a"],"working_dir":"\u0000"}"#, "holds a NUL byte"),
            ("env text", r#"{"command":["a"],"env":"s3cret"}"#, "expected an object of strings"),
            ("env number", r#"{"command":["a"],"env":{"A":1}}"#, "a value is no string"),
            ("env no name", r#"{"command":["a"],"env":{"":"s3cret"}}"#, "name is empty"),
            ("env =", r#"{"command":["a"],"env":{"s3cret=":""}}"#, "name holds '='"),
            ("env NUL", r#"{"command":["a"],"env":{"A\u0000":""}}"#, "name holds a NUL byte"),
            ("value NUL", r#"{"command":["a"],"env":{"A":"\u0000"}}"#, "value holds a NUL byte"),
            ("env twice", r#"{"command":["a"],"env":{"A":"","A":""}}"#, "given twice"),
        ];
        for (name, body, expected) in rows {
            let message = decode_execute(body.as_bytes()).expect_err(name);
            assert!(message.contains(expected), "{name}: {message}");
            assert!(!message.contains("s3cret") && !message.contains("a secret"), "{name}");
        }
        let many = format!("{{\"command\":[{}\"\"]}}", "\"\",".repeat(ARGUMENTS_MAX_BYTES / 9));
        assert!(decode_execute(many.as_bytes()).expect_err("too many").contains("E2BIG"));
    }

    fn kept(cap: usize, bytes: &[u8]) -> Capture {
        let mut capture = Capture::new(cap, Keep::Head).expect("there is memory");
        capture.write_all(bytes).expect("a capture takes everything");
        capture
    }

    fn written(answer: &ExecuteAnswer<'_>) -> String {
        let mut out = Vec::new();
        write_execute(&mut out, answer).expect("a vector takes everything");
        String::from_utf8(out).expect("JSON is text")
    }

    #[test]
    fn answers_have_six_keys_and_flags_only_when_true() {
        let (stdout, stderr) = (kept(9, b"o\n\xFF"), kept(3, "a€\n".as_bytes()));
        let answer = ExecuteAnswer {
            exit_code: -1,
            stdout: &stdout,
            stderr: &stderr,
            notes: &[],
            stdout_truncated: false,
            stderr_truncated: true,
            duration: Duration::from_secs(2),
            start_time: UNIX_EPOCH + Duration::from_nanos(1_500_000_000),
            end_time: UNIX_EPOCH + Duration::from_secs(10),
        };
        let expected = concat!(
            r#"{"stdout":"o\n�","stderr":"a","exit_code":-1,"duration":2.000000,"#,
            r#""start_time":"1970-01-01T00:00:01.5Z","end_time":"1970-01-01T00:00:10Z","#,
            r#""stderr_truncated":true}"#
        );
        assert_eq!(written(&answer), expected);
        let notes = ["first".to_owned(), "second".to_owned()];
        let rows = [
            ("nothing before", &b""[..], "first\nsecond"),
            ("no newline before", b"x", "x\nfirst\nsecond"),
            ("newline before", b"x\n", "x\nfirst\nsecond"),
            ("incomplete, not cut", b"\xE2\x82", "\u{FFFD}\nfirst\nsecond"),
        ];
        for (name, bytes, expected) in rows {
            let stderr = kept(9, bytes);
            let answer =
                ExecuteAnswer { stderr: &stderr, notes: &notes, stderr_truncated: false, ..answer };
            let value: serde_json::Value = serde_json::from_str(&written(&answer)).expect(name);
            assert_eq!(value["stderr"], expected, "{name}");
            let keys = value.as_object().map(serde_json::Map::len);
            assert_eq!(keys, Some(6), "{name}");
        }
    }

    #[test]
    fn notes_say_what_happened() {
        let rows = [
            ("zero", 0, 0),
            ("half down", 500, 0),
            ("half up", 1_500, 2),
            ("half down again", 2_500, 2),
            ("above half", 2_501, 3),
            ("whole", 60_000, 60),
        ];
        for (name, milliseconds, seconds) in rows {
            let expected = format!("Command timed out after {seconds} seconds");
            assert_eq!(timeout_note(Duration::from_millis(milliseconds)), expected, "{name}");
        }
        let note = truncation_note("stdout", 10, 30, false);
        assert_eq!(note, "[runcap: stdout truncated, kept 10 of 30 bytes]");
        assert!(truncation_note("stderr", 0, 7, true).contains("output budget"));
    }
}

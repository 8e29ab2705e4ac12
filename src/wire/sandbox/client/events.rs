//! What does one line of a running command say?
//!
//! Nearly all bytes of an answer stand in the text of `stdout` and `stderr` events, so a line that
//! begins as every known server writes one is decoded where it stands, in one pass. All others are
//! cut into raw fields first. The loser was to do so always: one more pass over the text.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::outcome::Stream;
use crate::quote::quoted;
use crate::wire::fields::{entries, fields, value};
use crate::wire::json_string::unescape_to_quote;
use crate::wire::value::{Reader, Scalar, wrong};

/// Bytes of the longest line. Servers send what one read of a pipe gave, up to 64 KiB, of which
/// each byte can take six as an escape.
pub const EVENT_MAX_BYTES: usize = 1 << 20;

/// Bytes of `status` and `reason` that are kept.
pub const REASON_MAX_BYTES: usize = 4096;

/// One event of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// The command runs.
    Start {
        /// Its process, as the server sees it.
        pid: u64,
    },
    /// It wrote something.
    Output {
        /// Where.
        stream: Stream,
        /// What; may be empty, and hold anything that a terminal acts on.
        text: Cow<'a, str>,
    },
    /// What the stream gives from here on is not sent.
    Truncated {
        /// Which.
        stream: Stream,
    },
    /// Nothing happened for a while.
    Ping,
    /// It ended; no event follows.
    Exit(Ended),
    /// One that a newer server may send.
    Unknown,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Where it exited.
    pub exit_code: Option<i64>,
    /// The signal that it died of.
    pub signal: Option<i64>,
    /// It ran into its timeout.
    pub timed_out: bool,
    /// How long it ran; 0 where the server does not say.
    pub duration_ms: u64,
    /// How it ended in one word, where the server says so; at most [`REASON_MAX_BYTES`].
    pub status: Option<String>,
    /// What decided, where that was not the command; at most [`REASON_MAX_BYTES`].
    pub reason: Option<String>,
}

/// Reads one line without its newline. The text of an output stands in `line` afterwards; what is
/// left of the rest is of no use.
///
/// # Errors
/// One line, bounded and without a control character: not a JSON object, no known field of the
/// right type where one is needed, a field that is given twice, more than [`EVENT_MAX_BYTES`].
pub fn read_event(line: &mut [u8]) -> Result<Event<'_>, String> {
    const BEGINS: [(Stream, &[u8]); 2] = [
        (Stream::Stdout, br#"{"event":"stdout","data":""#),
        (Stream::Stderr, br#"{"event":"stderr","data":""#),
    ];
    if line.len() > EVENT_MAX_BYTES {
        return Err(invalid(format!("the line has over {EVENT_MAX_BYTES} bytes")));
    }
    let begin = BEGINS.iter().find(|(_, begin)| line.starts_with(begin));
    match begin {
        Some((stream, begin)) => read_output(*stream, &mut line[begin.len()..]),
        None => read_fields(line),
    }
    .map_err(invalid)
}

fn invalid(message: String) -> String {
    format!("invalid event: {message}")
}

/// Reads on after the quote that the text begins with.
fn read_output(stream: Stream, line: &mut [u8]) -> Result<Event<'_>, String> {
    let (length, quote) =
        unescape_to_quote(line).map_err(|error| format!("field 'data': {error}"))?;
    let (text, rest) = line.split_at_mut(quote);
    match rest {
        [] => return Err("field 'data': the string has no end".to_owned()),
        [_, rest @ ..] => read_rest(rest)?,
    }
    let text = str::from_utf8(&text[..length]);
    let text = text.map_err(|_| "field 'data': the text is not UTF-8".to_owned())?;
    Ok(Event::Output { stream, text: Cow::Borrowed(text) })
}

/// What stands behind the text: nothing, or fields that nobody knows.
fn read_rest(rest: &mut [u8]) -> Result<(), String> {
    if rest == b"}" {
        return Ok(());
    }
    let is_blank = |byte: &u8| b" \t\r\n".contains(byte);
    let blanks = rest.iter().take_while(|byte| is_blank(byte)).count();
    let rest = &mut rest[blanks..];
    match rest {
        [b'}', after @ ..] if after.iter().all(is_blank) => return Ok(()),
        // From here on it is an object of its own.
        [comma @ b',', ..] => *comma = b'{',
        _ => return Err("expected ',' or the last '}' after field 'data'".to_owned()),
    }
    let raw: &RawValue = serde_json::from_slice(rest)
        .map_err(|_| "expected fields and '}' after field 'data'".to_owned())?;
    let mut count = 0;
    let mut twice = None;
    entries(raw, &mut |name, _| {
        count += 1;
        twice = twice.or(["event", "data"].into_iter().find(|known| *known == name));
    })?;
    match twice {
        Some(name) => Err(format!("field '{name}' is given twice")),
        None if count == 0 => Err("expected a field after ',' behind field 'data'".to_owned()),
        None => Ok(()),
    }
}

fn read_fields(line: &[u8]) -> Result<Event<'_>, String> {
    let names = [
        "event",
        "data",
        "pid",
        "stream",
        "exit_code",
        "signal",
        "timed_out",
        "duration_ms",
        "status",
        "reason",
    ];
    let [event, data, pid, stream, exit_code, signal, timed_out, duration_ms, status, reason] =
        fields(line, names)?;
    let event = wanted("event", text("event", event)?)?;
    let output = |stream| {
        let text = wanted("data", text("data", data)?)?;
        Ok(Event::Output { stream, text: Cow::Owned(text) })
    };
    match event.as_str() {
        "start" => Ok(Event::Start { pid: wanted("pid", unsigned("pid", pid)?)? }),
        "stdout" => output(Stream::Stdout),
        "stderr" => output(Stream::Stderr),
        "truncated" => {
            let name = wanted("stream", text("stream", stream)?)?;
            let known = [Stream::Stdout, Stream::Stderr].into_iter();
            let stream = known.into_iter().find(|stream| stream.name() == name);
            let unknown = || format!("field 'stream': unknown stream {}", quoted(&name));
            Ok(Event::Truncated { stream: stream.ok_or_else(unknown)? })
        }
        "ping" => Ok(Event::Ping),
        "exit" => Ok(Event::Exit(Ended {
            exit_code: signed("exit_code", exit_code)?,
            signal: signed("signal", signal)?,
            timed_out: boolean("timed_out", timed_out)?.unwrap_or(false),
            duration_ms: unsigned("duration_ms", duration_ms)?.unwrap_or(0),
            status: text("status", status)?.map(cut),
            reason: text("reason", reason)?.map(cut),
        })),
        _ => Ok(Event::Unknown),
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(REASON_MAX_BYTES));
    text.shrink_to_fit();
    text
}

fn wanted<T>(name: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("no field '{name}'"))
}

fn text(name: &str, raw: Option<&RawValue>) -> Result<Option<String>, String> {
    let take = |scalar| match scalar {
        Scalar::Text(text) => Ok(text),
        other => Err(wrong(&other, "a string")),
    };
    read(name, raw, take)
}

fn boolean(name: &str, raw: Option<&RawValue>) -> Result<Option<bool>, String> {
    let take = |scalar| match scalar {
        Scalar::Bool(value) => Ok(value),
        other => Err(wrong(&other, "true or false")),
    };
    read(name, raw, take)
}

fn unsigned(name: &str, raw: Option<&RawValue>) -> Result<Option<u64>, String> {
    let take = |scalar| match scalar {
        Scalar::Unsigned(number) => Ok(number),
        other => Err(wrong(&other, "a whole number")),
    };
    read(name, raw, take)
}

fn signed(name: &str, raw: Option<&RawValue>) -> Result<Option<i64>, String> {
    let take = |scalar| {
        let number = match scalar {
            Scalar::Unsigned(number) => i64::try_from(number).ok(),
            Scalar::Negative(number) => Some(number),
            _ => None,
        };
        number.ok_or_else(|| wrong(&scalar, "an integer"))
    };
    read(name, raw, take)
}

fn read<T>(
    name: &str,
    raw: Option<&RawValue>,
    take: impl FnOnce(Scalar) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let Some(raw) = raw else { return Ok(None) };
    let taken = value(raw, Reader::default()).and_then(take);
    taken.map(Some).map_err(|message| format!("field '{name}': {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Event<'static>, String> {
        let mut line = line.as_bytes().to_vec();
        Ok(match read_event(&mut line)? {
            Event::Output { stream, text } => {
                Event::Output { stream, text: Cow::Owned(text.into_owned()) }
            }
            Event::Start { pid } => Event::Start { pid },
            Event::Truncated { stream } => Event::Truncated { stream },
            Event::Ping => Event::Ping,
            Event::Exit(ended) => Event::Exit(ended),
            Event::Unknown => Event::Unknown,
        })
    }

    fn output(stream: Stream, text: &str) -> Event<'static> {
        Event::Output { stream, text: Cow::Owned(text.to_owned()) }
    }

    #[test]
    fn events_are_read_however_they_are_written() {
        use Stream::{Stderr, Stdout};
        let bare = Ended {
            exit_code: None,
            signal: None,
            timed_out: false,
            duration_ms: 0,
            status: None,
            reason: None,
        };
        let full = Ended {
            exit_code: Some(-1),
            signal: Some(9),
            timed_out: true,
            duration_ms: u64::MAX,
            status: Some("timed_out".to_owned()),
            reason: Some("a \"b\"".to_owned()),
        };
        let rows = [
            (r#"{"event":"start","pid":7}"#, Event::Start { pid: 7 }),
            (r#"{"event":"stdout","data":""}"#, output(Stdout, "")),
            (
                r#"{"event":"stdout","data":"a\"é\u2028\ud83d\ude00\n"}"#,
                output(Stdout, "a\"é\u{2028}😀\n"),
            ),
            (r#"{"event":"stderr","data":"\\"}"#, output(Stderr, "\\")),
            (r#"{"event":"stdout","data":"a","seq":1,"x":{"data":2}}"#, output(Stdout, "a")),
            ("{\"event\":\"stdout\",\"data\":\"\\t\" , \"seq\":1 } \r", output(Stdout, "\t")),
            ("{\"event\":\"stdout\",\"data\":\"a\" }\r", output(Stdout, "a")),
            ("{\"event\":\"stderr\",\"data\":\"a\"}\r", output(Stderr, "a")),
            (r#"{"data":"a\n","event":"stdout"}"#, output(Stdout, "a\n")),
            (r#" { "event" : "stderr", "data" : "a\n" } "#, output(Stderr, "a\n")),
            (r#"{"event":"st\u0064out","data":"a"}"#, output(Stdout, "a")),
            (r#"{"event":"truncated","stream":"stderr"}"#, Event::Truncated { stream: Stderr }),
            (r#"{"event":"ping"}"#, Event::Ping),
            (r#"{"event":"exit","exit_code":null}"#, Event::Exit(bare)),
            (
                concat!(
                    r#"{"event":"exit","exit_code":-1,"signal":9,"timed_out":true,"duration_ms":"#,
                    r#"18446744073709551615,"status":"timed_out","reason":"a \"b\"","more":[1]}"#
                ),
                Event::Exit(full),
            ),
            (r#"{"event":"tick","data":[1e999],"pid":"x"}"#, Event::Unknown),
        ];
        for (line, expected) in rows {
            assert_eq!(read(line), Ok(expected), "{line}");
        }
        let long = format!(r#"{{"event":"exit","reason":"{}"}}"#, "€".repeat(9999));
        let Ok(Event::Exit(ended)) = read(&long) else { panic!("it is one") };
        let reason = ended.reason.expect("there is one");
        assert_eq!(reason, "€".repeat(REASON_MAX_BYTES / 3));
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let rows = [
            ("nothing", "", "expected a JSON object"),
            ("a list", "[]", "expected a JSON object"),
            ("cut", r#"{"event":"ping""#, "EOF while parsing"),
            ("more", r#"{"event":"ping"}{}"#, "trailing characters"),
            ("no event", "{}", "no field 'event'"),
            ("null", r#"{"event":null}"#, "no field 'event'"),
            ("number", r#"{"event":1}"#, "field 'event': invalid value 1: expected a string"),
            ("twice", r#"{"event":"ping","event":"ping"}"#, "field 'event' is given twice"),
            ("no pid", r#"{"event":"start"}"#, "no field 'pid'"),
            ("minus", r#"{"event":"start","pid":-1}"#, "field 'pid': invalid value -1"),
            ("half", r#"{"event":"start","pid":1.5}"#, "field 'pid': invalid value 1.5"),
            (
                "huge",
                r#"{"event":"exit","duration_ms":18446744073709551616}"#,
                "'duration_ms': inv",
            ),
            (
                "range",
                r#"{"event":"exit","signal":9223372036854775808}"#,
                "'signal': invalid value 9",
            ),
            ("infinite", r#"{"event":"exit","signal":1e999}"#, "'signal': number out of range"),
            (
                "text",
                r#"{"event":"exit","timed_out":"a\nb"}"#,
                r"'timed_out': invalid value 'a\nb'",
            ),
            ("status", r#"{"event":"exit","status":[]}"#, "'status': invalid value an array"),
            ("no data", r#"{"event":"stdout"}"#, "no field 'data'"),
            (
                "data",
                r#"{"event":"stdout","data":1}"#,
                "'data': invalid value 1: expected a string",
            ),
            ("data null", r#"{"event":"stderr","data":null}"#, "no field 'data'"),
            ("stream", r#"{"event":"truncated","stream":"x"}"#, "unknown stream 'x'"),
            ("data cut", r#"{"event":"stdout","data":"a"#, "'data': the string has no end"),
            ("escape", r#"{"event":"stdout","data":"\x"}"#, "'data': invalid string: bad escape"),
            ("half a pair", r#"{"event":"stdout","data":"\ud800"}"#, "lone surrogate escape"),
            ("bare", "{\"event\":\"stdout\",\"data\":\"\n\"}", "bare control character at byte 0"),
            ("no brace", r#"{"event":"stdout","data":"a""#, "expected ',' or"),
            ("no field", r#"{"event":"stdout","data":"a",}"#, "expected a field after ','"),
            ("no comma", r#"{"event":"stdout","data":"a""b":1}"#, "expected ',' or"),
            ("braces", r#"{"event":"stdout","data":"a"}}"#, "expected ',' or the last '}'"),
            ("blank, braces", r#"{"event":"stdout","data":"a" }}"#, "expected ',' or the last"),
            ("unclosed", r#"{"event":"stdout","data":"a","b":1"#, "expected fields and '}'"),
            ("data twice", r#"{"event":"stdout","data":"a","data":null}"#, "'data' is given twice"),
            ("kind twice", r#"{"event":"stdout","data":"","event":"a"}"#, "'event' is given twice"),
            ("escaped", r#"{"event":"stdout","data":"","\u0064ata":""}"#, "'data' is given twice"),
        ];
        for (name, line, expected) in rows {
            let message = read(line).expect_err(name);
            assert!(message.starts_with("invalid event: "), "{name}: {message}");
            assert!(message.contains(expected), "{name}: {message}");
        }
        for line in [&b"{\"event\":\"stdout\",\"data\":\"\xff\"}"[..], b"{\"event\":\"\xff\"}"] {
            assert!(read_event(&mut line.to_vec()).is_err(), "not UTF-8");
        }
        let deep =
            format!(r#"{{"event":"ping","x":{}{}}}"#, "[".repeat(99_999), "]".repeat(99_999));
        assert!(matches!(read(&deep), Ok(Event::Ping) | Err(_)), "no stack is used up");
        let with = |count: usize| format!(r#"{{"event":"stdout","data":"{}"}}"#, "a".repeat(count));
        let longest = with(EVENT_MAX_BYTES - with(0).len());
        assert!(read(&longest).is_ok());
        assert!(read(&(longest + " ")).expect_err("too long").contains("over 1048576 bytes"));
    }
}

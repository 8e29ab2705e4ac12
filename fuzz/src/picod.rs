//! PicoD's bodies, against serde_json's trees and texts that are built whole; what goes into a
//! header, against what may stand there.

use std::ffi::OsString;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use runcap::capture::Capture;
use runcap::spec::Keep;
use runcap::wire::http::target::{Plus, decode};
use runcap::wire::picod::execute::{
    Execute, ExecuteAnswer, Timeout, decode_execute, write_execute,
};
use runcap::wire::picod::files::{
    Entry, GoFileMode, Range, Upload, content_type, decode_upload, disposition, parse_mode, range,
    write_list_entry, write_uploaded,
};
use runcap::wire::{base64, text, time};
use serde_json::Value;

use super::{Numbers, is_a_message, keys_are_unique, pieces};

/// Are bodies read and written as any JSON library does, and headers safe?
pub fn picod(data: &[u8]) {
    agrees(data, &decode_execute(data).map(sorted), execute);
    agrees(data, &decode_upload(data), upload);
    secrets_stay_secret(data);
    answers_read_back(data);
    entries_read_back(data);
    names_are_safe(&String::from_utf8_lossy(data));
    ranges_are_within(data);
}

/// What was read is what `model` makes of serde_json's tree, where one object has no key twice.
fn agrees<T: PartialEq + std::fmt::Debug>(
    data: &[u8],
    read: &Result<T, String>,
    model: fn(&Value) -> Option<T>,
) {
    if let Err(message) = read {
        is_a_message(message);
    }
    // A field that nobody knows may hold what a tree cannot: 1e400, half a surrogate pair.
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    if keys_are_unique(data) {
        assert_eq!(read.as_ref().ok(), model(&value).as_ref());
    } else if let Ok(read) = read {
        assert_eq!(Some(read), model(&value).as_ref());
    }
}

/// A field that is not null.
fn field<'a>(body: &'a Value, name: &str) -> Option<&'a Value> {
    body.get(name).filter(|value| !value.is_null())
}

/// An optional text without NUL; none where it is something else.
fn optional<'a>(body: &'a Value, name: &str) -> Option<&'a str> {
    field(body, name).map_or(Some(""), Value::as_str).filter(|text| !text.contains('\0'))
}

fn execute(body: &Value) -> Option<Execute> {
    body.as_object()?;
    let string =
        |value: &Value| value.as_str().filter(|text| !text.contains('\0')).map(OsString::from);
    let argv: Vec<_> = field(body, "command")?.as_array()?.iter().map(string).collect();
    let argv = argv.into_iter().collect::<Option<Vec<_>>>().filter(|argv| !argv.is_empty())?;
    let mut env = Vec::new();
    if let Some(variables) = field(body, "env") {
        for (name, value) in variables.as_object()? {
            if name.is_empty() || name.contains(['=', '\0']) {
                return None;
            }
            env.push((name.into(), string(value)?));
        }
    }
    let timeout = timeout(optional(body, "timeout")?)?;
    Some(Execute { argv, timeout, working_dir: optional(body, "working_dir")?.to_owned(), env })
}

/// In the order of a tree.
fn sorted(mut execute: Execute) -> Execute {
    execute.env.sort();
    execute
}

fn timeout(text: &str) -> Option<Timeout> {
    let (is_negative, unsigned) = match text.as_bytes() {
        [] => return Some(Timeout::Unset),
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let duration = time::parse_duration(unsigned, time::Bare::Refused).ok()?;
    let is_over = is_negative || duration == Duration::ZERO;
    Some(if is_over { Timeout::AtOnce } else { Timeout::After(duration) })
}

fn upload(body: &Value) -> Option<Upload> {
    let path = optional(body, "path").filter(|path| !path.is_empty())?.to_owned();
    let mut content = field(body, "content")?.as_str()?.as_bytes().to_vec();
    base64::decode_in_place(&mut content).ok()?;
    let mode = optional(body, "mode")?;
    let mode = field(body, "mode").map(|_| {
        let is_octal = !mode.is_empty() && mode.bytes().all(|byte| (b'0'..b'8').contains(&byte));
        let digits = mode.trim_start_matches('0');
        if !is_octal || digits.len() > 3 {
            return 0o644;
        }
        digits.bytes().fold(0, |sum, digit| sum * 8 + u32::from(digit - b'0'))
    });
    Some(Upload { path, content, mode })
}

/// What stands in env or content is never part of a refusal, whatever else stands in the body.
fn secrets_stay_secret(data: &[u8]) {
    const CANARY: &str = "Xcanary7f3aX";
    let Ok(Value::Object(body)) = serde_json::from_slice(data) else { return };
    let named = |name: String, value: Value| Value::Object([(name, value)].into_iter().collect());
    let secrets = [
        ("env", CANARY.into()),
        ("env", vec![CANARY].into()),
        ("env", named(CANARY.to_owned(), 1.into())),
        ("env", named(format!("{CANARY}="), "".into())),
        ("env", named("A".to_owned(), format!("{CANARY}\0").into())),
        ("content", CANARY.into()),
        ("content", vec![CANARY].into()),
    ];
    for (field, secret) in secrets {
        let mut body = body.clone();
        body.insert(field.to_owned(), secret);
        let json = Value::Object(body).to_string();
        let refusals =
            [decode_execute(json.as_bytes()).err(), decode_upload(json.as_bytes()).err()];
        for message in refusals.into_iter().flatten() {
            // Another field may hold what the fuzzer copied from here.
            assert!(!message.contains(CANARY) || data.windows(7).any(|seen| seen == b"Xcanary"));
        }
    }
}

fn answers_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let caps = [numbers.byte(), numbers.byte()];
    let notes_count = usize::from(numbers.byte() % 4);
    let moment = |nanoseconds| UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    let (start_time, end_time) = (moment(numbers.number()), moment(numbers.number()));
    let duration = Duration::from_nanos(numbers.number());
    let exit_code = i32::from(numbers.byte()) - 1;
    let (for_stdout, for_stderr) = numbers.0.split_at(numbers.0.len() / 2);
    let kept = |cap: u8, bytes: &[u8]| {
        let mut capture = Capture::new(cap.into(), Keep::Head).expect("there is memory");
        for piece in pieces(bytes) {
            std::io::Write::write_all(&mut capture, piece).expect("never fails");
        }
        capture
    };
    let [stdout, stderr] = [kept(caps[0], for_stdout), kept(caps[1], for_stderr)];
    let notes = pieces(data).into_iter().take(notes_count);
    let notes: Vec<_> = notes.map(|note| String::from_utf8_lossy(note).into_owned()).collect();
    let answer = ExecuteAnswer {
        exit_code,
        stdout: &stdout,
        stderr: &stderr,
        notes: &notes,
        stdout_truncated: stdout.dropped() > 0,
        stderr_truncated: stderr.dropped() > 0,
        duration,
        start_time,
        end_time,
    };
    let mut out = Vec::new();
    write_execute(&mut out, &answer).expect("a vector takes everything");
    is_in_order(&out);
    let value: Value = serde_json::from_slice(&out).expect("an answer is JSON");
    let mut expected = shown(&stderr);
    for note in &notes {
        if !expected.is_empty() && !expected.ends_with('\n') {
            expected.push('\n');
        }
        expected += note;
    }
    assert_eq!(value["stdout"], shown(&stdout));
    assert_eq!(value["stderr"], expected);
    assert_eq!(value["exit_code"], exit_code);
    assert!(value["duration"].is_f64());
    for (name, capture) in [("stdout_truncated", &stdout), ("stderr_truncated", &stderr)] {
        let flag = (capture.dropped() > 0).then_some(true);
        assert_eq!(value.get(name).map(|flag| flag == &Value::Bool(true)), flag);
    }
    is_this_moment(&value["start_time"], start_time);
    is_this_moment(&value["end_time"], end_time);
}

/// The text of a stream, without a character that the cap cut.
fn shown(capture: &Capture) -> String {
    let head = capture.head();
    let cut = if capture.dropped() > 0 { text::incomplete_suffix(head) } else { 0 };
    String::from_utf8_lossy(&head[..head.len() - cut]).into_owned()
}

/// The six keys stand in their order; no text can hold a bare quote that would look like one.
fn is_in_order(answer: &[u8]) {
    let answer = std::str::from_utf8(answer).expect("JSON is text");
    let keys = ["stdout", "stderr", "exit_code", "duration", "start_time", "end_time"];
    let mut rest = answer.strip_prefix('{').expect("an object");
    for (index, key) in keys.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let (_, after) = rest.split_once(&format!("{comma}\"{key}\":")).expect("every key");
        rest = after;
    }
    let count =
        serde_json::from_str::<Value>(answer).expect("JSON").as_object().map(|map| map.len());
    let flags = rest.matches("_truncated\":true").count();
    assert_eq!(count, Some(keys.len() + flags));
}

/// RFC 3339 whose fraction, if there is one, does not end in a zero.
fn is_this_moment(value: &Value, moment: SystemTime) {
    let text = value.as_str().and_then(|text| text.strip_suffix('Z')).expect("a moment in UTC");
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    assert!(!fraction.ends_with('0') && !text.ends_with('.'));
    assert_eq!(format!("{seconds}.{fraction:0<9}Z"), time::Rfc3339(moment).to_string());
}

fn entries_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let st_mode = u32::from_le_bytes(std::array::from_fn(|_| numbers.byte()));
    let (size, is_dir) = (numbers.number(), numbers.flag());
    let modified = UNIX_EPOCH + Duration::from_nanos(numbers.number());
    let name = String::from_utf8_lossy(numbers.0);
    let entry = Entry { name: &name, size, st_mode, modified, is_dir };
    let mode = GoFileMode(st_mode).to_string();
    let (kind, permissions) = mode.split_at(mode.len() - 9);
    assert!((1..=5).contains(&kind.len()));
    for (place, letter) in permissions.bytes().enumerate() {
        let is_set = st_mode >> (8 - place) & 1 == 1;
        assert_eq!(letter, if is_set { b"rwx"[place % 3] } else { b'-' });
    }
    for (key, count) in [("path", 4), ("name", 5)] {
        let mut out = Vec::new();
        let written = match key {
            "path" => write_uploaded(&mut out, &entry),
            _ => write_list_entry(&mut out, &entry),
        };
        written.expect("a vector takes everything");
        let value: Value = serde_json::from_slice(&out).expect("an entry is JSON");
        assert_eq!(value.as_object().map(|entry| entry.len()), Some(count));
        assert_eq!(value[key], *name);
        assert_eq!(value["size"], size);
        assert_eq!(value["mode"], mode);
        assert_eq!(value.get("is_dir"), (key == "name").then_some(&Value::Bool(is_dir)));
        is_this_moment(&value["modified"], modified);
    }
    assert!(parse_mode(&name) <= 0o777);
}

/// What goes into a header is printable ASCII, and the name can be read from it.
fn names_are_safe(name: &str) {
    let is_printable = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    assert!(is_printable(content_type(name)));
    let value = disposition(name);
    assert!(is_printable(&value));
    let quoted = value.strip_prefix("attachment; filename=\"").expect("a plain name");
    let (plain, after) = quoted.split_once('"').expect("a closing quote");
    assert!(!plain.contains('\\'));
    if after.is_empty() {
        assert_eq!(plain, name);
    } else {
        let encoded = after.strip_prefix("; filename*=UTF-8''").expect("an extended name");
        assert!(!encoded.contains([';', '"', '\'', ' ', '*', '/']));
        let decoded = decode(encoded, Plus::Stays).expect("percent-encoded");
        assert_eq!(decoded, name.as_bytes());
    }
}

fn ranges_are_within(data: &[u8]) {
    let mut numbers = Numbers(data);
    let (size, first, last) = (numbers.number(), numbers.number(), numbers.number());
    let text = String::from_utf8_lossy(data);
    for size in [0, 1, 10, size] {
        for value in [text.as_ref(), &format!("bytes={text}")] {
            if let Range::Part { first, last } = range(Some(value), size) {
                assert!(first <= last && last < size);
            }
        }
        let expected = match (first, last) {
            _ if last < first => Range::Whole,
            _ if first >= size => Range::Unsatisfiable,
            _ => Range::Part { first, last: last.min(size - 1) },
        };
        assert_eq!(range(Some(&format!("bytes={first}-{last}")), size), expected);
        let suffix = match last {
            0 => Range::Unsatisfiable,
            _ if size == 0 => Range::Whole,
            _ => Range::Part { first: size - size.min(last), last: size - 1 },
        };
        assert_eq!(range(Some(&format!("bytes=-{last}")), size), suffix);
    }
}

//! Which properties hold for every input? One function a target, each panics where one does not.
//!
//! The tests of the main package include this file and call each function with its seeds, so it
//! names nothing but the library, `serde_json`, `tiny_http` and `std`.

// Public to the targets, but out of reach where a test includes the file.
#![allow(unreachable_pub)]

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use runcap::capture::Capture;
use runcap::cli::values;
use runcap::outcome::{Cancel, End, Exit, Outcome, Stream};
use runcap::spec::{CAP_MAX_BYTES, KEEP, Keep, Limit, OVERFLOW, Overflow, Part, Spec};
use runcap::wire::native::frame::{Framed, Framer};
use runcap::wire::native::request::{Bounds, Encoding, Refusal, Request};
use runcap::wire::native::response::{Answer, Output, write_answer, write_refusal};
use runcap::wire::{base64, json_string, native, size, text, time};
use serde_json::Value;

mod http_body;
mod http_head;
mod http_wire;
mod picod;
mod response;
mod sandbox;

pub use http_body::{chunks, multipart};
pub use http_head::{head, target};
pub use http_wire::serve;
pub use picod::picod;
pub use response::response;
pub use sandbox::sandbox;

/// Bytes to text, text to JSON and back, base64.
pub fn text(data: &[u8]) {
    decoding_does_not_depend_on_the_cuts(data);
    cut_characters_are_found(data);
    escaped_text_reads_back(&String::from_utf8_lossy(data));
    unescaping_agrees_with_serde_json(data);
    base64_reads_back(data);
    base64_is_strict(data);
}

/// Sizes, durations, moments, and limits as an option names them.
pub fn quantities(data: &[u8]) {
    let value = String::from_utf8_lossy(data);
    let _ = size::parse_size(&value).map_err(|error| is_a_message(&error.to_string()));
    for bare in [time::Bare::Seconds, time::Bare::Refused] {
        match time::parse_duration(&value, bare) {
            Ok(duration) => duration_reads_back(duration),
            Err(error) => is_a_message(&error.to_string()),
        }
    }
    match values::part(&value) {
        Ok(part) => part_reads_back(part),
        Err(error) => is_a_message(&error),
    }
    let mut bytes = [0; 12];
    let taken = data.len().min(bytes.len());
    bytes[..taken].copy_from_slice(&data[..taken]);
    let [a, b, c, d, e, f, g, h, nanoseconds @ ..] = bytes;
    let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let nanoseconds = u32::from_le_bytes(nanoseconds) % 1_000_000_000;
    numbers_read_back(number, nanoseconds);
}

/// Pieces of 0 to 15 bytes, as the data itself says, and one piece in which all the rest comes.
fn pieces(data: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut rest = data;
    for length in data.iter().take(256) {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(length % 16)));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

fn decode(pieces: &[&[u8]]) -> (String, bool) {
    let mut text = String::new();
    let mut emit = |piece: &str| {
        text.push_str(piece);
        Ok(())
    };
    let mut decoder = text::Decoder::new();
    for piece in pieces {
        decoder.feed(piece, &mut emit).expect("emit never fails");
        assert!(decoder.held() <= 3);
    }
    decoder.finish(&mut emit).expect("emit never fails");
    assert_eq!(decoder.held(), 0);
    (text, decoder.replaced())
}

fn decoding_does_not_depend_on_the_cuts(data: &[u8]) {
    let expected = String::from_utf8_lossy(data);
    let is_replaced = std::str::from_utf8(data).is_err();
    let single: Vec<&[u8]> = data.chunks(1).collect();
    for pieces in [vec![data], pieces(data), single] {
        let (text, replaced) = decode(&pieces);
        assert_eq!(text, expected);
        assert_eq!(replaced, is_replaced);
    }
}

fn cut_characters_are_found(data: &[u8]) {
    let suffix = text::incomplete_suffix(data);
    assert!(suffix <= 3 && suffix <= data.len());
    let prefix = text::continuation_prefix(data.iter().copied());
    assert!(prefix <= 3 && prefix <= data.len());
    let whole = String::from_utf8_lossy(data);
    for cut in 0..=whole.len().min(64) {
        let (head, tail) = whole.as_bytes().split_at(cut);
        let head = &head[..head.len() - text::incomplete_suffix(head)];
        let tail = &tail[text::continuation_prefix(tail.iter().copied())..];
        assert!(std::str::from_utf8(head).is_ok() && std::str::from_utf8(tail).is_ok());
        assert!(head.len() + tail.len() + 4 >= whole.len());
    }
}

fn escaped_text_reads_back(text: &str) {
    let mut out = Vec::new();
    json_string::write_string(&mut out, text).expect("a vector takes everything");
    let json = String::from_utf8(out).expect("JSON is text");
    let is_line_end = |character| matches!(character, '\u{85}' | '\u{2028}' | '\u{2029}');
    assert!(json.bytes().all(|byte| byte >= 0x20));
    assert!(!json.contains(is_line_end));
    assert_eq!(serde_json::from_str::<String>(&json).expect("a JSON string"), text);
    if !text.contains(is_line_end) {
        assert_eq!(json, serde_json::to_string(text).expect("text is JSON"));
    }
    let mut body = json.as_bytes()[1..json.len() - 1].to_vec();
    let length = json_string::unescape_in_place(&mut body).expect("written by us");
    assert_eq!(&body[..length], text.as_bytes());
}

fn unescaping_agrees_with_serde_json(data: &[u8]) {
    let mut body = data.to_vec();
    let ours = json_string::unescape_in_place(&mut body);
    if std::str::from_utf8(data).is_err() {
        return;
    }
    let quoted = [b"\"", data, b"\""].concat();
    match (ours, serde_json::from_slice::<String>(&quoted)) {
        (Ok(length), Ok(theirs)) => assert_eq!(&body[..length], theirs.as_bytes()),
        (Err(error), Err(_)) => {
            let (json_string::UnescapeError::LoneSurrogate { offset }
            | json_string::UnescapeError::Malformed { offset }) = error;
            assert!(offset < data.len());
            is_a_message(&error.to_string());
        }
        (ours, theirs) => panic!("{ours:?} here, {theirs:?} there"),
    }
}

fn encode(pieces: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = base64::Encoder::new();
    for piece in pieces {
        encoder.feed(piece, &mut out).expect("a vector takes everything");
    }
    encoder.finish(&mut out).expect("a vector takes everything");
    out
}

fn base64_reads_back(data: &[u8]) {
    let mut encoded = encode(&pieces(data));
    assert_eq!(encoded, encode(&[data]));
    base64::decode_in_place(&mut encoded).expect("written by us");
    assert_eq!(encoded, data);
}

fn base64_is_strict(data: &[u8]) {
    let mut decoded = data.to_vec();
    match base64::decode_in_place(&mut decoded) {
        Ok(()) => assert_eq!(encode(&[&decoded]), data),
        Err(error) => {
            assert!(error.offset <= data.len());
            is_a_message(&error.to_string());
        }
    }
}

fn numbers_read_back(number: u64, nanoseconds: u32) {
    assert_eq!(size::parse_size(&number.to_string()), Ok(number));
    for (shift, unit) in [(10, "K"), (20, "MiB"), (30, "g"), (40, "T")] {
        let count = number >> shift;
        assert_eq!(size::parse_size(&format!("{count}{unit}")), Ok(count << shift));
    }
    duration_reads_back(Duration::from_nanos(number >> 1));
    duration_reads_back(Duration::from_nanos(number >> (1 + number % 63)));
    // Shown whatever its length, read only up to the maximum.
    let shown = time::HumanDuration(Duration::new(number, nanoseconds)).to_string();
    let is_read = time::parse_duration(&shown, time::Bare::Refused).is_ok();
    assert_eq!(is_read, Duration::new(number, nanoseconds) <= time::DURATION_MAX);
    match time::seconds_from_f64(f64::from_bits(number)) {
        Ok(duration) => duration_reads_back(duration),
        Err(error) => is_a_message(&error.to_string()),
    }
    for seconds in [number, number % 300_000_000_000] {
        let since_epoch = Duration::new(seconds, nanoseconds);
        for moment in [UNIX_EPOCH.checked_add(since_epoch), UNIX_EPOCH.checked_sub(since_epoch)] {
            let Some(moment) = moment else { continue };
            assert_eq!(time::Rfc3339(moment).to_string().len(), 30);
        }
    }
}

fn duration_reads_back(duration: Duration) {
    assert!(duration <= time::DURATION_MAX);
    let shown = time::HumanDuration(duration).to_string();
    for bare in [time::Bare::Seconds, time::Bare::Refused] {
        assert_eq!(time::parse_duration(&shown, bare), Ok(duration));
    }
}

/// One line that a terminal can show, bounded, and no sentence.
/// A limit that was taken says something, holds no more than may be held, and reads back from its
/// own words in any order.
fn part_reads_back(part: Part) {
    fn name<T: PartialEq>(choices: &[(&str, T)], value: &T) -> String {
        let (name, _) = choices.iter().find(|(_, choice)| choice == value).expect("each is named");
        (*name).to_owned()
    }
    assert!(part.cap.is_none_or(|cap| (1..=CAP_MAX_BYTES).contains(&cap)));
    let keep = part.keep.map(|keep| name(&KEEP, &keep));
    let overflow = part.overflow.map(|overflow| name(&OVERFLOW, &overflow));
    let mut words: Vec<_> =
        [part.cap.map(|cap| cap.to_string()), keep, overflow].into_iter().flatten().collect();
    assert!(!words.is_empty());
    for _ in 0..words.len() {
        words.rotate_left(1);
        assert_eq!(values::part(&words.join(",")), Ok(part));
    }
}

fn is_a_message(message: &str) {
    assert!(message.chars().count() < 1_000 && !message.ends_with('.'));
    assert!(!message.chars().any(char::is_control));
}

/// What is kept of a stream, against a model that keeps all of it.
pub fn capture(data: &[u8]) {
    let [policy, low, high, steps @ ..] = data else { return };
    let keep = [Keep::Head, Keep::Tail, Keep::HeadTail][usize::from(policy % 3)];
    let cap = usize::from(u16::from_le_bytes([*low, *high]) % 700);
    let mut capture = Capture::new(cap, keep).expect("there is memory");
    let mut model = Vec::new();
    is_what_the_model_keeps(&capture, &model, cap);
    let mut rest = steps;
    while let [length, after @ ..] = rest {
        let (piece, after) = after.split_at(after.len().min(usize::from(*length)));
        if length % 4 == 3 && capture.room() == Some(0) {
            // What a discarded byte was does not matter, since it cannot be kept.
            capture.discard(u64::from(*length));
            model.resize(model.len() + usize::from(*length), 0);
        } else {
            assert_eq!(capture.write(piece).expect("never fails"), piece.len());
            model.extend_from_slice(piece);
        }
        is_what_the_model_keeps(&capture, &model, cap);
        rest = after;
    }
}

fn is_what_the_model_keeps(capture: &Capture, model: &[u8], cap: usize) {
    let tail_cap = match capture.keep() {
        Keep::Head => 0,
        Keep::Tail => cap,
        Keep::HeadTail => cap / 5,
    };
    let (head, rest) = model.split_at(model.len().min(cap - tail_cap));
    let tail = &rest[rest.len().saturating_sub(tail_cap)..];
    assert_eq!(capture.head(), head);
    let (older, newer) = capture.tail();
    assert_eq!([older, newer].concat(), tail);
    assert_eq!(capture.kept(), head.len() + tail.len());
    assert!(capture.kept() <= cap);
    assert_eq!(capture.received(), model.len() as u64);
    assert_eq!(capture.received(), capture.kept() as u64 + capture.dropped());
    let room = (tail_cap == 0).then(|| cap - head.len());
    assert_eq!(capture.room(), room);
}

/// Native requests and answers.
pub fn native(data: &[u8]) {
    let whole = frame(&[data]);
    let single: Vec<&[u8]> = data.chunks(1).collect();
    assert_eq!(frame(&pieces(data)), whole);
    assert_eq!(frame(&single), whole);
    if let (Framed::Complete(length), _) = whole {
        assert!(length <= data.len());
        decoding_is_strict(&data[..length]);
    }
    decoding_is_strict(data);
    answers_read_back(data);
}

/// What a framer finds, and whether it is too deep.
fn frame(pieces: &[&[u8]]) -> (Framed, bool) {
    let mut framer = Framer::new();
    for piece in pieces {
        match framer.scan(piece) {
            Framed::Incomplete => {}
            framed => return (framed, framer.too_deep()),
        }
    }
    (framer.finish(), framer.too_deep())
}

fn decoding_is_strict(data: &[u8]) {
    let hour = Duration::from_secs(3600);
    for cap_ceiling in [None, Some(1000)] {
        let bounds = Bounds { cap: 2000, cap_ceiling, timeout: hour, timeout_max: 24 * hour };
        let value = serde_json::from_slice::<Value>(data);
        match native::request::decode(data.to_vec(), &bounds) {
            Ok(request) => {
                is_within(&request, &bounds);
                assert!(value.is_ok_and(|value| value.is_object()));
                assert!(keys_are_unique(data));
            }
            Err(refusal) => {
                is_an_answer(&refusal);
                assert!(!refusal.syntax || value.is_err());
            }
        }
    }
    secrets_stay_secret(data);
}

fn is_within(request: &Request, bounds: &Bounds) {
    let Spec { argv, cwd, env, timeout, grace, stdout, stderr, .. } = &request.spec;
    let has_nul = |text: &std::ffi::OsStr| text.as_encoded_bytes().contains(&0);
    assert!(argv.first().is_some_and(|program| !program.is_empty()));
    assert!(!argv.iter().any(|argument| has_nul(argument)));
    assert!(!cwd.as_ref().is_some_and(|cwd| has_nul(cwd.as_os_str())));
    for (key, value) in &env.set {
        assert!(!key.is_empty() && !key.as_encoded_bytes().contains(&b'='));
        assert!(!has_nul(key) && !has_nul(value));
    }
    let names: BTreeSet<_> = env.set.iter().map(|(key, _)| key).collect();
    assert_eq!(names.len(), env.set.len());
    assert!(timeout.is_some_and(|timeout| !timeout.is_zero() && timeout <= bounds.timeout_max));
    assert!(*grace <= bounds.timeout_max);
    for limit in [stdout, stderr] {
        let is_unlimited = request.stream && limit.cap == usize::MAX;
        assert!(is_unlimited || (1..=CAP_MAX_BYTES).contains(&limit.cap));
        if let (false, true, Some(ceiling)) = (request.stream, request.capture, bounds.cap_ceiling)
        {
            assert!(limit.cap <= ceiling);
        }
        let keeps_head = request.stream || limit.overflow == Overflow::Stop;
        assert!(!keeps_head || limit.keep == Keep::Head);
    }
}

/// Whether no object in this right JSON has two equal keys.
fn keys_are_unique(json: &[u8]) -> bool {
    let mut objects: Vec<BTreeSet<String>> = Vec::new();
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'{' | b'[' => objects.push(BTreeSet::new()),
            b'}' | b']' => drop(objects.pop()),
            b'"' => {
                let mut end = at + 1;
                while json[end] != b'"' {
                    end += if json[end] == b'\\' { 2 } else { 1 };
                }
                if json[end + 1..].trim_ascii_start().first() == Some(&b':') {
                    let key = serde_json::from_slice(&json[at..=end]).expect("right JSON");
                    let object = objects.last_mut().expect("a key stands in an object");
                    if !object.insert(key) {
                        return false;
                    }
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    true
}

/// A refusal is a bounded answer on one line.
fn is_an_answer(refusal: &Refusal) {
    assert!(refusal.message.len() <= 2_000, "{}", refusal.message.len());
    assert!(!refusal.message.chars().any(char::is_control), "{:?}", refusal.message);
    assert!(refusal.field.as_ref().is_none_or(|field| field.len() <= 400));
    let mut line = Vec::new();
    write_refusal(&mut line, refusal).expect("a vector takes everything");
    let value = is_a_line_of_json(&line);
    assert_eq!(value["status"], "bad_request");
    assert_eq!(value["error"]["message"], *refusal.message);
    assert_eq!(value.get("tag").and_then(Value::as_str), refusal.tag.as_deref());
}

/// What stands in env or stdin is never part of a refusal, whatever else stands in the request.
fn secrets_stay_secret(data: &[u8]) {
    const CANARY: &str = "Xcanary7f3aX";
    let Ok(Value::Object(request)) = serde_json::from_slice(data) else { return };
    let secrets = [
        ("stdin", CANARY.into()),
        ("stdin", vec![CANARY].into()),
        ("stdin_base64", CANARY.into()),
        ("env", CANARY.into()),
        ("env", vec![CANARY].into()),
        ("env", Value::Object([(CANARY.to_owned(), 1.into())].into_iter().collect())),
        ("env", Value::Object([("=".to_owned(), CANARY.into())].into_iter().collect())),
    ];
    let hour = Duration::from_secs(3600);
    let bounds = Bounds { cap: 2000, cap_ceiling: None, timeout: hour, timeout_max: hour };
    for (field, secret) in secrets {
        let mut request = request.clone();
        request.insert(field.to_owned(), secret);
        let json = Value::Object(request).to_string();
        if let Err(refusal) = native::request::decode(json.into_bytes(), &bounds) {
            assert!(!refusal.message.contains(CANARY), "{}", refusal.message);
            assert!(!refusal.field.is_some_and(|field| field.contains(CANARY)));
        }
    }
}

/// The value of exactly one line, also for readers that split at other line ends.
fn is_a_line_of_json(line: &[u8]) -> Value {
    let text = std::str::from_utf8(line).expect("JSON is text");
    let body = text.strip_suffix('\n').expect("a line ends");
    let splits = |character: char| character < ' ' || "\u{85}\u{2028}\u{2029}".contains(character);
    assert!(!body.contains(splits));
    serde_json::from_str(body).expect("an answer is JSON")
}

/// Takes numbers from the front of fuzzed bytes; zeros when they are used up.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}

fn answers_read_back(data: &[u8]) {
    let mut numbers = Numbers(data);
    let outcome = outcome(&mut numbers);
    let encoding = if numbers.flag() { Encoding::Base64 } else { Encoding::Utf8 };
    let keeps = [Keep::Head, Keep::Tail, Keep::HeadTail];
    let mut limit = || {
        let (keep, cap) = (numbers.byte(), numbers.byte());
        let keep = keeps[usize::from(keep % 3)];
        Limit { cap: cap.into(), keep, overflow: Overflow::Discard }
    };
    let (stdout, stderr) = (limit(), limit());
    let (event, has_tag) = (numbers.flag(), numbers.flag());
    let rest = numbers.0;
    let filled = |limit: Limit, bytes: &[u8]| {
        let mut capture = Capture::new(limit.cap, limit.keep).expect("there is memory");
        for piece in pieces(bytes) {
            capture.write_all(piece).expect("never fails");
        }
        capture
    };
    let (for_stdout, for_stderr) = rest.split_at(rest.len() / 2);
    let captures = [filled(stdout, for_stdout), filled(stderr, for_stderr)];
    let tag = String::from_utf8_lossy(rest);
    let spec = spec(stdout, stderr);
    let answer = Answer {
        spec: &spec,
        outcome: &outcome,
        stdout: Output::Kept(&captures[0]),
        stderr: Output::Kept(&captures[1]),
        encoding,
        cap_lowered_to: event.then_some(stdout.cap),
        tag: has_tag.then_some(&tag),
        event,
    };
    let mut line = Vec::new();
    write_answer(&mut line, &answer).expect("a vector takes everything");
    let value = is_a_line_of_json(&line);
    assert!(keys_are_unique(line.trim_ascii_end()));
    assert_eq!(value.get("tag").and_then(Value::as_str), answer.tag);
    assert_eq!(value["exit_code"].is_null(), value["status"] != "exited");
    for (capture, name) in captures.iter().zip(["stdout", "stderr"]) {
        stream_reads_back(&value, name, capture, encoding);
    }
}

fn outcome(numbers: &mut Numbers<'_>) -> Outcome {
    let (end, leader, value) = (numbers.byte(), numbers.byte(), numbers.byte());
    let since_epoch = Duration::from_nanos(numbers.number());
    // An ended leader is always reaped; only one that could not be killed is not.
    let ends = [
        End::Finished,
        End::TimedOut,
        End::OutputLimit(Stream::Stdout),
        End::OutputLimit(Stream::Stderr),
        End::Canceled(Cancel::ReaderGone),
        End::Canceled(Cancel::Requested),
    ];
    let end = ends[usize::from(end) % ends.len()];
    let leaders = [Some(Exit::Code(value.into())), Some(Exit::Signal(value.into())), None];
    let choices = if end == End::Finished { 2 } else { 3 };
    Outcome {
        end,
        leader: leaders[usize::from(leader) % choices],
        stdout_incomplete: numbers.flag(),
        stderr_incomplete: numbers.flag(),
        left_running: numbers.flag(),
        killed_processes: numbers.number(),
        start_time: UNIX_EPOCH + since_epoch,
        duration: Duration::from_nanos(numbers.number()),
        cpu: Duration::from_nanos(numbers.number()),
        max_rss_bytes: numbers.number(),
    }
}

fn spec(stdout: Limit, stderr: Limit) -> Spec {
    let timeout = Some(Duration::from_secs(1));
    Spec { stderr, ..Spec::new(vec!["true".into()], timeout, stdout) }
}

fn stream_reads_back(answer: &Value, name: &str, capture: &Capture, encoding: Encoding) {
    let key = |suffix: &str| answer.get(format!("{name}{suffix}"));
    let number = |suffix| key(suffix).map(|number| number.as_u64().expect("a count"));
    let (older, newer) = capture.tail();
    let tail = [older, newer].concat();
    let kept = [capture.head(), &tail].concat();
    let dropped = number("_dropped_bytes").unwrap_or(0);
    assert_eq!(number("_bytes"), Some(capture.received()));
    assert_eq!(dropped > 0, capture.dropped() > 0);
    assert_eq!(key("_truncated").is_some(), dropped > 0);
    let shown = match encoding {
        Encoding::Base64 => {
            let mut bytes =
                key("_base64").and_then(Value::as_str).expect("text").as_bytes().to_vec();
            base64::decode_in_place(&mut bytes).expect("written by us");
            assert_eq!(bytes, kept);
            kept.len()
        }
        Encoding::Utf8 => {
            let text = key("").and_then(Value::as_str).expect("text");
            let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if dropped == 0 {
                assert_eq!(text, lossy(&kept));
                assert_eq!(key("_replaced").is_some(), std::str::from_utf8(&kept).is_err());
                kept.len()
            } else {
                // What the gap tore is left out and counted as dropped.
                let head = &capture.head()
                    [..capture.head().len() - text::incomplete_suffix(capture.head())];
                let tail = &tail[text::continuation_prefix(tail.iter().copied())..];
                let gap = match capture.keep() {
                    Keep::HeadTail => format!("\n[runcap: {dropped} bytes dropped]\n"),
                    _ => String::new(),
                };
                assert_eq!(text, lossy(head) + &gap + &lossy(tail));
                assert_eq!(number("_gap_at"), Some(head.len() as u64));
                head.len() + tail.len()
            }
        }
    };
    assert_eq!(shown as u64 + dropped, capture.received());
}

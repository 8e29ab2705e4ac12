//! Which properties hold for every input? One function a target, each panics where one does not.
//!
//! The tests of the main package include this file and call each function with its seeds, so it
//! names nothing but the library, `serde_json` and `std`.

// Public to the targets, but out of reach where a test includes the file.
#![allow(unreachable_pub)]

use std::time::{Duration, UNIX_EPOCH};

use runcap::wire::{base64, json_string, size, text, time};

/// Bytes to text, text to JSON and back, base64.
pub fn text(data: &[u8]) {
    decoding_does_not_depend_on_the_cuts(data);
    cut_characters_are_found(data);
    escaped_text_reads_back(&String::from_utf8_lossy(data));
    unescaping_agrees_with_serde_json(data);
    base64_reads_back(data);
    base64_is_strict(data);
}

/// Sizes, durations and moments.
pub fn quantities(data: &[u8]) {
    let value = String::from_utf8_lossy(data);
    let _ = size::parse_size(&value).map_err(|error| is_a_message(&error.to_string()));
    for bare in [time::Bare::Seconds, time::Bare::Refused] {
        match time::parse_duration(&value, bare) {
            Ok(duration) => duration_reads_back(duration),
            Err(error) => is_a_message(&error.to_string()),
        }
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
    let mut body = json[1..json.len() - 1].as_bytes().to_vec();
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
fn is_a_message(message: &str) {
    assert!(message.chars().count() < 1_000 && !message.ends_with('.'));
    assert!(!message.chars().any(char::is_control));
}

//! `/v1/exec`: live output against a loop that copies a pipe to a socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Figure, Goal};
use crate::serve::Server;
use crate::tools::{alternate, helper, median, milliseconds};

/// A line of a log, and how it stands in a JSON string.
const LINE: &str =
    "2026-11-30T12:00:00Z INFO request finished method=GET path=/v1/files/list status=200\n";
const OUTPUT_BYTES: u64 = 1_000_000_000;

/// A gigabyte of lines through `/v1/exec` to a client that reads, against a loop that copies the
/// bytes that then stand on the wire from a pipe to a socket.
pub(crate) fn flood() -> Vec<Figure> {
    let ours = Server::runcap();
    let raw = {
        let escaped = LINE.replace('\n', "\\n");
        let bytes = (OUTPUT_BYTES * escaped.len() as u64 / LINE.len() as u64).to_string();
        let mut command = Command::new(helper());
        command.args(["raw-pipe", helper(), "produce-lines", &escaped, &bytes]);
        Server::start(&mut command)
    };
    let bytes = OUTPUT_BYTES.to_string();
    let body = serde_json::json!({ "cmd": [helper(), "produce-lines", LINE, bytes] });
    let pairs = alternate(
        7,
        || milliseconds(flood_over(&ours, &body.to_string())),
        || milliseconds(flood_over(&raw, "")),
    );
    let peak = ours.peak_rss_bytes();
    vec![
        // As a goal 0.5 of the bytes a second is 1 / 0.5 of the time.
        Figure::pairs("1 GB of lines, ms", "raw pipe to socket", Goal::Ratio(2.0), pairs),
        Figure::alone("VmHWM, bytes", peak, Goal::Value(f64::from(16 << 20))),
    ]
}

/// Time until a whole answer was read; it lasts up to the end of the connection.
fn flood_over(server: &Server, body: &str) -> Duration {
    let mut stream = server.connect();
    let head = "POST /v1/exec HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let start = Instant::now();
    stream.write_all(request.as_bytes()).expect("it reads");
    let (mut buffer, mut count) = (vec![0; 1 << 20], 0);
    loop {
        match stream.read(&mut buffer).expect("it answers") {
            0 => break,
            more => count += more as u64,
        }
    }
    assert!(count >= OUTPUT_BYTES, "cut after {count} bytes");
    start.elapsed()
}

/// From a command's first byte to its event at the client.
pub(crate) fn first_event() -> Vec<Figure> {
    let ours = Server::runcap();
    let body = serde_json::json!({ "cmd": [helper(), "now"] }).to_string();
    let head = "POST /v1/exec HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let mut stream = ours.connect();
    let mut delays = vec![];
    for _ in 0..200 {
        stream.write_all(request.as_bytes()).expect("it reads");
        let (mut buffer, mut have, mut delay) = ([0; 8192], 0, None);
        while !buffer[..have].ends_with(b"\r\n0\r\n\r\n") {
            have += match stream.read(&mut buffer[have..]).expect("it answers") {
                0 => panic!("cut after {have} bytes"),
                count => count,
            };
            let text = String::from_utf8_lossy(&buffer[..have]);
            let said = text.split("\"stdout\",\"data\":\"").nth(1);
            let said = said.and_then(|said| said.split_once('\\'));
            if let Some((said, _)) = said.filter(|_| delay.is_none()) {
                let now = std::time::UNIX_EPOCH.elapsed().expect("it is past").as_nanos();
                let then: u128 = said.parse().expect("a number");
                delay = Some(now.saturating_sub(then) as f64 / 1e6);
            }
        }
        delays.push(delay.expect("the command's line came"));
    }
    let median = median(&delays);
    let worst = delays.iter().copied().fold(0.0, f64::max);
    vec![
        Figure::alone("first byte to its event, median, ms", median, Goal::Value(5.0)),
        Figure::alone("the same, worst of 200, ms", worst, Goal::None),
    ]
}

const ROUNDS_AT_ONCE: usize = 1000;
const CLIENTS_AT_ONCE: usize = 18;

/// As many commands at once as the published client has connections, over and over, each with text
/// of its own on both streams, of which every byte is compared.
pub(crate) fn at_once() -> Vec<Figure> {
    const LINES: usize = 50;
    let ours = Server::runcap();
    let start = Instant::now();
    thread::scope(|scope| {
        for client in 0..CLIENTS_AT_ONCE {
            let ours = &ours;
            scope.spawn(move || {
                let mut stream = ours.connect();
                for round in 0..ROUNDS_AT_ONCE {
                    // Characters of three bytes, cut wherever the writes cut them.
                    let word = format!("{client}.{round}.€€€");
                    let lines = LINES.to_string();
                    let body =
                        serde_json::json!({ "cmd": [helper(), "both-streams", word, lines] });
                    let texts = texts_of(&events_over(&mut stream, &body.to_string()));
                    for (index, text) in texts.iter().enumerate() {
                        let line = |line| format!("{index} {word} {line}\n");
                        let expected: String = (0..LINES).map(line).collect();
                        assert_eq!(*text, expected, "stream {index} of {word}");
                    }
                }
            });
        }
    });
    let commands = (CLIENTS_AT_ONCE * ROUNDS_AT_ONCE) as f64;
    vec![
        Figure::alone("commands of which every byte was right", commands, Goal::None),
        Figure::alone("a command, ms", milliseconds(start.elapsed()) / commands, Goal::None),
    ]
}

/// The events of one command, a line each.
fn events_over(stream: &mut TcpStream, body: &str) -> Vec<u8> {
    let head = "POST /v1/exec HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut bytes = vec![];
    while !bytes.ends_with(b"\r\n0\r\n\r\n") {
        let mut buffer = [0; 16384];
        match stream.read(&mut buffer).expect("it answers") {
            0 => panic!("cut after {} bytes", bytes.len()),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let (mut rest, mut body) = (&bytes[at..], vec![]);
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").expect("a size line");
        let size = std::str::from_utf8(&rest[..end]).expect("it is text");
        let size = usize::from_str_radix(size, 16).expect("a size");
        body.extend_from_slice(&rest[end + 2..][..size]);
        rest = &rest[end + 2 + size + 2..];
        if size == 0 {
            return body;
        }
    }
}

/// The texts of both streams of a command that ended well.
fn texts_of(events: &[u8]) -> [String; 2] {
    let mut texts = [String::new(), String::new()];
    let mut last = serde_json::Value::Null;
    for line in events.split_inclusive(|byte| *byte == b'\n') {
        last = serde_json::from_slice(line).expect("an event is JSON");
        let data = last["data"].as_str().unwrap_or_default();
        match last["event"].as_str() {
            Some("stdout") => texts[0] += data,
            Some("stderr") => texts[1] += data,
            _ => {}
        }
    }
    assert_eq!((&last["event"], &last["exit_code"]), (&"exit".into(), &0.into()));
    texts
}

//! Servers that a client must not trust: whatever they send, it ends soon, with one line, and
//! without much memory.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::client_run::{client, done, one_line};
use crate::support::{Value, answer, json, number};

/// The most that a client may ever have resident, whatever servers do.
const RSS_MAX_BYTES: u64 = 16 << 20;

/// Seconds after which a client is taken for one that does not end.
const LIMIT_SECONDS: u64 = 60;

/// What a server says to a request, and then closes the connection.
#[derive(Clone, Default)]
struct Said {
    bytes: Vec<u8>,
    /// Said again for as long as the client listens, if it is not empty.
    again: Vec<u8>,
}

/// Exactly these bytes.
fn bytes(bytes: impl AsRef<[u8]>) -> Said {
    Said { bytes: bytes.as_ref().to_vec(), again: Vec::new() }
}

/// These bytes, and then others without end.
fn endless(begin: impl AsRef<[u8]>, again: impl AsRef<[u8]>) -> Said {
    let again = again.as_ref();
    Said { bytes: begin.as_ref().to_vec(), again: again.repeat((64 << 10) / again.len()) }
}

/// A success whose length is told.
fn ok(body: impl AsRef<[u8]>) -> Said {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    bytes([head.as_bytes(), body].concat())
}

/// A success that ends with the connection.
fn until_close(body: impl AsRef<[u8]>) -> Said {
    bytes([b"HTTP/1.1 200 OK\r\n\r\n", body.as_ref()].concat())
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A server that says to each request what `says` wants; everything it was asked, in order.
struct Hostile {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Hostile {
    /// `says` is given the method and the target. Its `/health` is as it should be.
    fn new(says: impl Fn(&str) -> Said + Send + Sync + 'static) -> Hostile {
        Hostile::with_health(ok(r#"{"status":"ok","protocol":3}"#), says)
    }

    fn with_health(health: Said, says: impl Fn(&str) -> Said + Send + Sync + 'static) -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (notes, says) = (Arc::clone(&asked), Arc::new(says));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, health) = (stream.expect("a connection"), health.clone());
                let (notes, says) = (Arc::clone(&notes), Arc::clone(&says));
                thread::spawn(move || {
                    let Some(request) = read_request(&stream) else { return };
                    notes.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
                    let said = if request == "GET /health" { health } else { says(&request) };
                    say(stream, &said);
                });
            }
        });
        Hostile { address, asked }
    }

    fn always(said: Said) -> Hostile {
        Hostile::new(move |_| said.clone())
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads a request to its last byte, so that closing is no reset; its method and target.
fn read_request(mut stream: &TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("heads are text");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length = length.map_or(0, |length| length.parse().expect("a number"));
    std::io::copy(&mut stream.take(length), &mut std::io::sink()).ok()?;
    head.split(" HTTP/1.1").next().map(str::to_owned)
}

fn say(mut stream: TcpStream, said: &Said) {
    let mut sent = stream.write_all(&said.bytes);
    while sent.is_ok() && !said.again.is_empty() {
        sent = stream.write_all(&said.again);
    }
}

/// Runs a client under `runcap json`, which tells how it ended and what it had resident.
fn watched(url: &str, args: &[&str]) -> Value {
    let command = [&[env!("CARGO_BIN_EXE_runcap"), "client", "--url", url], args].concat();
    answer(json!({ "command": command, "timeout": LIMIT_SECONDS }))
}

/// Asserts that a client ended by itself within its bounds; its exit code and stderr.
#[track_caller]
fn assert_bounded(what: &str, url: &str, args: &[&str]) -> (i64, String) {
    let answer = watched(url, args);
    let (peak, stderr) = (number(&answer, "max_rss_bytes"), answer["stderr"].as_str());
    let stderr = stderr.expect("text").to_owned();
    assert_eq!(answer["status"], "exited", "{what}: {stderr}");
    assert!(!stderr.contains("panicked"), "{what}: {stderr}");
    println!("{what}: {} KiB: {}", peak >> 10, stderr.trim_end());
    assert!(peak <= RSS_MAX_BYTES, "{what}: {peak} bytes were resident");
    (answer["exit_code"].as_i64().expect("it exited"), stderr)
}

/// Asserts that a client fails on one line, within its bounds.
#[track_caller]
fn assert_fails(what: &str, url: &str, args: &[&str], expected: &str) {
    let (code, stderr) = assert_bounded(what, url, args);
    let line = one_line(what, &stderr);
    assert!(line.contains(expected), "{what}: {line:?} has {expected:?}");
    assert!(line.len() < 2048, "{what}: {} bytes", line.len());
    assert_eq!(code, 125, "{what}: {line}");
}

/// Heads and bodies that no request has an answer in.
fn broken_answers() -> Vec<(&'static str, Said, &'static str)> {
    let chunk = format!("{CHUNKED}10000\r\n{}\r\n", "a".repeat(0x10000));
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef";
    let both =
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{";
    let no_server = "no server of this kind: ";
    let long_error = "HTTP/1.1 500 Oh\r\nContent-Length: 99999999999999\r\n\r\n";
    vec![
        ("nothing", bytes(""), "the connection broke: "),
        ("half a head", bytes("HTTP/1.1 200 OK\r\nA: b\r\n"), "the connection broke: "),
        ("half a body", bytes(short), "the connection broke: "),
        ("another protocol", bytes("SSH-2.0-OpenSSH_9.6\r\n\r\n"), no_server),
        ("another version", bytes("HTTP/2.0 200 OK\r\n\r\n"), no_server),
        ("NUL", bytes("HTTP/1.1 200 OK\r\nA: \0\x1b[31m\r\n\r\n"), no_server),
        ("status line", endless("HTTP/1.1 200 ", "a"), no_server),
        ("headers", endless("HTTP/1.1 200 OK\r\n", "A: b\r\n"), no_server),
        ("header", endless("HTTP/1.1 200 OK\r\nA: ", "b"), no_server),
        ("blank lines", endless("", "\r\n"), no_server),
        ("interim answers", endless("", "HTTP/1.1 100 Continue\r\n\r\n"), "over 8 interim answers"),
        ("another one", bytes("HTTP/1.1 101 Switching\r\n\r\n"), no_server),
        ("two lengths", bytes(two), no_server),
        ("length and chunks", bytes(both), no_server),
        ("size of a chunk", endless(CHUNKED, "0"), "invalid chunked body"),
        ("extension", endless(format!("{CHUNKED}5;a="), "b"), "invalid chunked body"),
        ("trailers", endless(format!("{CHUNKED}0\r\n"), "a: b\r\n"), "invalid chunked body"),
        ("no size", bytes(format!("{CHUNKED}x\r\n")), "invalid chunked body"),
        ("cut chunk", bytes(format!("{CHUNKED}5\r\n  ")), "the connection broke: "),
        ("one chunk", endless(chunk, format!("10000\r\n{}\r\n", "a".repeat(0x10000))), ""),
        ("body", endless("HTTP/1.1 200 OK\r\n\r\n", "a"), ""),
        ("error", endless(long_error, "e"), "eee… (status 500)"),
        ("escapes", bytes("HTTP/1.1 500 Oh\r\n\r\n\x1b[2Ja\nb\0"), r"\u{1b}[2Ja\nb\0 (status 500)"),
        ("silent error", bytes("HTTP/1.1 500 Oh\r\n\r\n"), "the server answered 500"),
    ]
}

#[test]
fn broken_answers_end_every_action() {
    let home = tempfile::tempdir().expect("a directory");
    let at = |name: &str| home.path().join(name).into_os_string().into_string().expect("text");
    fs::write(at("small"), "x").expect("room");
    fs::write(at("large"), vec![b'x'; 3 << 20]).expect("room");
    let (small, large, target) = (at("small"), at("large"), at("target"));
    let actions: [&[&str]; 5] = [
        &["run", "--", "true"],
        &["get", "f", &target],
        &["put", &small, "f"],
        &["put", &large, "f"],
        &["ls"],
    ];
    for (name, said, expected) in broken_answers() {
        let server = Hostile::always(said);
        for action in actions {
            let what = format!("{name}, {} {}", action[0], action[1..].first().unwrap_or(&""));
            // A server that took a file need not say more, whatever it says.
            let is_success = action[0] == "put" && name == "half a body";
            let expected = if is_success { "the connection broke" } else { expected };
            assert_fails(&what, &server.url(), action, expected);
        }
    }
    assert_eq!(fs::read_dir(home.path()).expect("it is there").count(), 2, "nothing is left");
}

#[test]
fn an_older_protocol_is_refused_with_both_numbers() {
    let rows = [
        ("2", r#"{"status":"ok","protocol":2}"#, "speaks protocol 2, this client needs 3 or newer"),
        ("none", r#"{"status":"ok"}"#, "speaks protocol 1, this client needs 3 or newer"),
        ("text", r#"{"protocol":"\u001b3"}"#, "field 'protocol': invalid value"),
        ("no JSON", "<html>\n", "invalid answer of /health: expected a JSON object"),
    ];
    for (name, health, expected) in rows {
        let server = Hostile::with_health(ok(health), |_| ok(""));
        assert_fails(name, &server.url(), &["run", "--", "true"], expected);
        assert_eq!(server.asked(), ["GET /health"], "{name}: nothing else is asked for");
    }
    let newer = Hostile::with_health(ok(r#"{"protocol":4}"#), |_| ok(r#"{"entries":[]}"#));
    done(client(&newer.url(), &["ls"])).assert_silent("a newer one");
}

#[test]
fn redirects_are_not_followed() {
    let elsewhere = Hostile::always(ok("{}"));
    for status in [301, 302, 303, 307, 308] {
        let to = elsewhere.url();
        let redirect = move |path: &str| {
            bytes(format!(
                "HTTP/1.1 {status} Go\r\nLocation: {to}{path}\r\nContent-Length: 0\r\n\r\n"
            ))
        };
        let here = Hostile::new({
            let redirect = redirect.clone();
            move |_| redirect("/v1/exec")
        });
        let expected = format!("redirects are not followed (status {status})");
        assert_fails("run", &here.url(), &["run", "--", "true"], &expected);
        assert_eq!(here.asked(), ["GET /health", "POST /v1/exec"]);
        let health = Hostile::with_health(redirect("/health"), |_| ok(""));
        assert_fails("health", &health.url(), &["ls"], &expected);
        assert_eq!(health.asked(), ["GET /health"]);
    }
    assert_eq!(elsewhere.asked(), [""; 0]);
}

const EXIT: &str = r#"{"event":"exit","exit_code":0,"signal":null,"timed_out":false}"#;

#[test]
fn a_command_without_its_end_is_an_error() {
    let start = r#"{"event":"start","pid":5}"#;
    let event = |text: &str| format!("{start}\n{text}\n");
    let broke = "the connection broke: ";
    let long_line = format!(r#"{{"event":"stdout","data":"{}"#, "a".repeat(100));
    let lying =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{start}\n{EXIT}\n", start.len() + 9);
    let rows = [
        ("no exit", until_close(event("")), broke),
        ("no exit, told length", ok(event("")), broke),
        ("no exit, chunks", bytes(format!("{CHUNKED}1a\r\n{start}\n\r\n0\r\n\r\n")), broke),
        ("half an exit", until_close(format!("{start}\n{}", &EXIT[..20])), broke),
        ("an exit without its line", until_close(format!("{start}\n{EXIT}")), broke),
        ("a length that is too short", bytes(lying), broke),
        ("endless event", endless(until_close(&long_line).bytes, "a"), "a line of over 1048576"),
        ("no JSON", ok("hello\n"), "invalid event: "),
        ("no event", ok("{}\n"), "invalid event: no field 'event'"),
        ("no data", ok(event(r#"{"event":"stdout"}"#)), "invalid event: no field 'data'"),
        ("bytes", ok(b"{\"event\":\"stdout\",\"data\":\"\xff\"}\n"), "the text is not UTF-8"),
        ("nested", endless(until_close("{\"a\":").bytes, "["), "a line of over 1048576"),
        ("stream", ok(event(r#"{"event":"truncated","stream":"\u001b"}"#)), "unknown stream"),
        ("huge", ok(event(r#"{"event":"exit","exit_code":1e99}"#)), "field 'exit_code': "),
    ];
    for (name, said, expected) in rows {
        let server = Hostile::always(said);
        for args in [&["run", "--", "true"][..], &["run", "--capture", "--json", "--", "true"]] {
            let what = format!("{name}, {} words", args.len());
            assert_fails(&what, &server.url(), args, expected);
        }
        assert_eq!(server.asked().len(), 4, "{name}: a command is never started twice");
    }
}

#[test]
fn what_a_server_says_of_an_end_is_an_exit_code_and_no_control_character() {
    let exit = |rest: &str| format!("{{\"event\":\"exit\",{rest}}}\n");
    let odd = r#""exit_code":0,"reason":"\u001b[2J\u0000\n\u009b""#;
    let rows = [
        ("limit", exit(r#""exit_code":null,"signal":9,"status":"output_limit""#), 123, ""),
        ("timeout", exit(r#""exit_code":0,"timed_out":true"#), 124, ""),
        ("canceled", exit(r#""signal":9,"status":"canceled""#), 125, ""),
        ("neither", exit(r#""exit_code":null,"signal":null"#), 125, ""),
        ("large code", exit(r#""exit_code":-1"#), 125, ""),
        ("larger code", exit(r#""exit_code":256"#), 125, ""),
        ("large signal", exit(r#""signal":99999999999999"#), 125, ""),
        ("largest signal", exit(r#""signal":2147483647"#), 125, ""),
        ("negative signal", exit(r#""signal":-9223372036854775808"#), 125, ""),
        ("odd reason", exit(odd), 0, r"runcap: \u{1b}[2J\0\n\u{9b}"),
        (
            "cut",
            format!("{}{EXIT}\n", r#"{"event":"truncated","stream":"stdout"}"#.to_owned() + "\n"),
            0,
            "runcap: stdout: the server cut the rest of it",
        ),
        (
            "unknown events",
            format!("{}{EXIT}\nmore", "{\"event\":\"new\",\"data\":[]}\n\n".repeat(9)),
            0,
            "",
        ),
    ];
    for (name, events, code, said) in rows {
        let server = Hostile::always(ok(events));
        let (found, stderr) = assert_bounded(name, &server.url(), &["run", "--", "true"]);
        assert_eq!((found, stderr.trim_end()), (code, said), "{name}");
        let quiet = done(client(&server.url(), &["--quiet", "run", "--", "true"]));
        assert_eq!((quiet.code.map(i64::from), &*quiet.stderr), (Some(code), ""), "{name}");
    }
}

fn entry(name: &str) -> String {
    format!(r#"{{"name":"{name}","path":"/x","type":"file","size":1}}"#)
}

#[test]
fn listings_that_lie_are_refused() {
    let page = |name: &str, rest: &str| ok(format!(r#"{{"entries":[{}]{rest}}}"#, entry(name)));
    let next = page("a", r#","truncated":true,"next":"a""#);
    let name = |name: &'static str| (name, page(name, ""), "invalid listing: invalid name ");
    let rows = [
        name("../x"),
        name("a/b"),
        name("a\\u0000b"),
        name(".."),
        name(""),
        ("next for ever", next.clone(), "its pages do not go on after 'a'"),
        ("no next", page("a", r#","truncated":true"#), "it is truncated and has no 'next'"),
        ("odd next", page("a", r#","next":"\u001b/""#), "invalid name "),
        ("endless name", endless(until_close("{\"entries\":[{\"name\":\"").bytes, "n"), "131072"),
        (
            "endless entries",
            endless(until_close("{\"entries\":[").bytes, entry("a") + ","),
            "50000",
        ),
        ("cut", until_close("{\"entries\":["), "invalid listing: "),
        ("short", bytes("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), "the connection broke"),
    ];
    for (name, said, expected) in rows {
        assert_fails(name, &Hostile::always(said).url(), &["ls"], expected);
    }
    // A number that nobody asked for changes nothing.
    for total in ["0", "-1", "99999999999999999999", "\"\\u001b\""] {
        let server = Hostile::always(page("a", &format!(",\"total\":{total}")));
        let listed = done(client(&server.url(), &["ls", "-l"]));
        listed.assert_silent(total);
        assert_eq!(listed.stdout, b"----------            1 - a\n");
    }
}

#[test]
fn files_that_are_not_what_was_told_are_not_taken() {
    const MIB: usize = 1 << 20;
    let stat =
        |size: &str| ok(format!(r#"{{"name":"f","path":"/f","type":"file","size":{size}}}"#));
    let range = |length: usize| ok(vec![b'x'; length]);
    let chunks = |length: usize| {
        bytes(format!("{CHUNKED}{length:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(length)))
    };
    let three = || stat("3145728");
    let changed = "'f' changed while it was moved: try again";
    let endless_range = endless(until_close("").bytes, "x");
    let rows = [
        ("a longer range", three(), range(MIB + 1), changed),
        ("a shorter range", three(), range(MIB - 1), changed),
        ("an empty range", three(), range(0), changed),
        ("the whole file", three(), range(3 * MIB), changed),
        ("longer chunks", three(), chunks(MIB + 1), changed),
        ("shorter chunks", three(), chunks(MIB - 1), changed),
        ("until the end, shorter", three(), until_close(vec![b'x'; MIB - 1]), changed),
        ("endless", three(), endless_range.clone(), changed),
        ("no range", three(), bytes("HTTP/1.1 204 No\r\n\r\n"), changed),
        ("the largest size", stat("18446744073709551615"), range(9), changed),
        ("until the end", stat("0"), until_close("x"), "a file of which no length is told"),
        ("no size", stat("-1"), range(9), "field 'size': invalid value -1"),
        ("another name", ok(entry("../f")), range(1), "invalid name '../f'"),
        ("no entry", ok("[]"), range(1), "invalid entry: "),
        ("endless entry", endless(until_close("").bytes, " "), range(1), "over 65536 bytes"),
    ];
    for (name, stat, range, expected) in rows {
        let home = tempfile::tempdir().expect("a directory");
        let target = home.path().join("f");
        fs::write(&target, "old").expect("room");
        let server =
            Hostile::new(
                move |request| {
                    if request.contains("/stat?") { stat.clone() } else { range.clone() }
                },
            );
        let target = target.to_str().expect("text");
        assert_fails(name, &server.url(), &["get", "f", target], expected);
        assert_eq!(fs::read(target).expect("it is there"), b"old", "{name}");
        assert_eq!(fs::read_dir(home.path()).expect("it is there").count(), 1, "{name}");
    }
}

#[test]
fn a_token_that_a_server_says_back_is_not_shown() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("token");
    fs::write(&file, "CANARY-7f3a9c").expect("room");
    let text = r#"{"error":"X-Sandbox-Token: CANARY-7f3a9c is wrong"}"#;
    let head = format!("HTTP/1.1 400 Bad\r\nContent-Length: {}\r\n\r\n", text.len());
    let server = Hostile::always(bytes(format!("{head}{text}")));
    let args = ["--token-file", file.to_str().expect("text"), "ls"];
    assert_fails("said back", &server.url(), &args, "X-Sandbox-Token: [token] is wrong");
}

#[test]
fn pages_that_go_round_end() {
    let page = |name: &str| ok(format!(r#"{{"entries":[],"truncated":true,"next":"{name}"}}"#));
    let server = Hostile::new(
        move |request| {
            if request.ends_with("after=b") { page("a") } else { page("b") }
        },
    );
    assert_fails("round", &server.url(), &["ls"], "its pages do not go on after 'a'");
}

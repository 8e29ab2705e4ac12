//! Where does an answer end? One that breaks off must never look complete, what follows it on the
//! same connection must never be read as a part of it, and a part of it that is ready must not
//! wait for the rest.

use std::time::{Duration, Instant};

use crate::http::Server;
use crate::support::{assert_took, wait_until};

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// What every broken reader of the routes declares.
const DECLARED: usize = 1 << 20;

#[test]
fn answers_from_32_kib_up_say_their_length_and_are_not_chunked() {
    let server = Server::routes(&[]);
    let mut client = server.connect();
    for bytes in [0, 1, 32_767, 32_768, 32_769, 65_536, 5_000_000] {
        client.send(&[&*get(&format!("/big?bytes={bytes}"), ""), HEALTH].concat());
        let answer = client.answer();
        assert_eq!(answer.header("content-length"), Some(&*bytes.to_string()));
        assert_eq!(answer.header("transfer-encoding"), None);
        assert!(answer.body == vec![b'x'; bytes], "{bytes}");
        assert_eq!(client.answer().text(), "ok", "{bytes}");
    }
}

#[test]
fn a_reader_that_fails_ends_early_or_panics_midway_never_looks_complete() {
    let server = Server::routes(&[]);
    for path in ["/fails", "/short", "/reader-panics"] {
        for bytes in [0, 1, 40_000, DECLARED - 1] {
            let mut client = server.connect();
            // The second request tells whether the connection is used again.
            client.send(&[&*get(&format!("{path}?bytes={bytes}"), ""), HEALTH].concat());
            let head = client.head();
            let (rest, _) = client.rest();
            if bytes < 60_000 {
                // Nothing had left when the reader failed, so the truth could still be told.
                assert_eq!((head.status, head.closes()), (500, true), "{path} {bytes}");
                assert_eq!(head.header("content-length"), Some(&*rest.len().to_string()));
                continue;
            }
            assert_eq!(head.header("content-length"), Some(&*DECLARED.to_string()), "{path}");
            assert!(rest.len() <= bytes, "{path} {bytes}: {}", rest.len());
            assert!(rest.iter().all(|byte| *byte == b'x'), "{path} {bytes}: another answer");
        }
    }
    server.assert_alive();
    assert_eq!(server.log().matches("the answer was cut").count(), 2, "{}", server.log());
}

#[test]
fn a_reader_that_goes_on_is_held_to_what_it_declares() {
    let server = Server::routes(&[]);
    for bytes in [1, 5, 32_768, 100_000] {
        let mut client = server.connect();
        client.send(&[&*get(&format!("/long?bytes={bytes}"), ""), HEALTH].concat());
        assert!(client.answer().body == vec![b'x'; bytes], "{bytes}");
        // The next answer begins where this one ends.
        assert_eq!(client.answer().status, 200, "{bytes}");
    }
    server.assert_alive();
}

#[test]
fn k6_panics_cost_a_500_or_a_cut_and_no_thread() {
    let server = Server::routes(&[]);
    server.assert_alive();
    wait_until("the first connection is over", || server.resources().1 == 1);
    let before = server.resources();
    for _ in 0..50 {
        for path in
            ["/panic", "/reader-panics?bytes=9", "/live?events=1&pause_ms=0&bytes=3&end=panic"]
        {
            let mut client = server.connect();
            client.send(&[&*get(path, ""), HEALTH].concat());
            if !path.starts_with("/live") {
                let answer = client.answer();
                assert_eq!((answer.status, answer.closes()), (500, true));
                client.assert_closed();
            } else {
                assert_eq!(client.head().status, 200);
                let (rest, _) = client.rest();
                assert!(rest.len() < 20 && !rest.ends_with(b"0\r\n\r\n"), "{rest:?}");
            }
        }
    }
    wait_until("nothing is left", || server.resources() == before);
    server.assert_alive();
}

#[test]
fn a_live_event_leaves_at_once() {
    let server = Server::routes(&[]);
    for version in ["1.1", "1.0"] {
        let mut client = server.connect();
        let path = "/live?events=5&pause_ms=150&bytes=7";
        client.send(format!("GET {path} HTTP/{version}\r\nHost: x\r\n\r\n").as_bytes());
        client.head();
        // Behind a chunk's data come CR LF and the next size line.
        let size = if version == "1.1" { "7\r\nxxxxxxx\r\n" } else { "xxxxxxx" };
        let times = [(); 5].map(|()| {
            assert_eq!(String::from_utf8_lossy(&client.exactly(size.len())), size);
            Instant::now()
        });
        // Each is written 150 ms after the one before it. Held back, they come together.
        let apart = times[4] - times[0];
        assert!(apart >= Duration::from_millis(300), "HTTP/{version}: {apart:?}");
    }
}

#[test]
fn a_live_answer_that_fails_midway_never_looks_complete() {
    let server = Server::routes(&[]);
    for end in ["error", "panic"] {
        let path = format!("/live?events=3&pause_ms=0&bytes=5&end={end}");
        let mut client = server.connect();
        client.send(&[&*get(&path, ""), HEALTH].concat());
        assert_eq!(client.head().header("transfer-encoding"), Some("chunked"), "{end}");
        let (rest, _) = client.rest();
        let rest = String::from_utf8(rest).expect("text");
        assert!("5\r\nxxxxx\r\n".repeat(3).starts_with(&rest), "{end}: {rest:?}");

        // Up to the connection's end: only a reset tells that it is none of the answer.
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        client.head();
        let (rest, is_orderly) = client.rest();
        assert!(rest.len() <= 15, "{end}");
        assert!(!is_orderly, "{end}: it looks complete");
    }
    server.assert_alive();
}

#[test]
fn a_live_answer_to_http_1_0_lasts_until_the_end_of_the_connection() {
    let server = Server::routes(&[]);
    let mut client = server.connect();
    client.send(b"GET /live?events=3&pause_ms=0&bytes=5 HTTP/1.0\r\n\r\n");
    client.send(HEALTH);
    let head = client.head();
    assert_eq!((head.status, head.closes()), (200, true));
    assert_eq!(head.header("transfer-encoding"), None);
    assert_eq!(head.header("content-length"), None);
    assert_eq!(client.rest(), (vec![b'x'; 15], true));
}

#[test]
fn small_flushes_do_not_wait_for_an_acknowledgement() {
    // Head and event are two small packets: with Nagle's algorithm the second one is held until
    // the client has acknowledged the first, which it puts off for 40 ms.
    let server = Server::routes(&[]);
    let mut client = server.connect();
    let mut times: Vec<_> = (0..41)
        .map(|_| {
            let start = Instant::now();
            client.send(&get("/live?events=2&pause_ms=0&bytes=1", ""));
            assert_eq!(client.answer().text(), "xx");
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    eprintln!("median {:?}", times[20]);
    assert!(times[20] < Duration::from_millis(20), "{times:?}");
}

#[test]
fn hs8_answers_without_a_body_are_followed_by_the_right_next_one() {
    // Each row: a request whose answer has no body, its status, and the length it tells.
    let rows: [(&str, &str, u16, Option<&str>); 7] = [
        ("HEAD", "/health", 200, Some("2")),
        ("HEAD", "/nosuch", 404, Some("18")),
        ("HEAD", "/big?bytes=100000", 200, Some("100000")),
        ("HEAD", "/live?events=3&pause_ms=0&bytes=5", 200, None),
        ("GET", "/204", 204, None),
        ("HEAD", "/204", 204, None),
        ("GET", "/304", 304, None),
    ];
    let server = Server::routes(&[]);
    for (method, path, status, length) in rows {
        let mut client = server.connect();
        let first = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.send(&[first.as_bytes(), HEALTH].concat());
        let head = client.head();
        assert_eq!((head.status, head.closes()), (status, false), "{method} {path}");
        assert_eq!(head.header("content-length"), length, "{method} {path}");
        assert_eq!(client.answer().text(), "ok", "{method} {path}");
        client.end_writing();
        client.assert_closed();
    }
}

#[test]
fn hs8_head_then_get_of_runcap_itself() {
    let server = Server::start(&[]);
    for (path, status) in [("/health", 200), ("/nosuch", 404)] {
        let mut client = server.connect();
        let both = ["HEAD", "GET"]
            .map(|method| format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        client.send(both.concat().as_bytes());
        let head = client.head();
        let answer = client.answer();
        assert_eq!((head.status, answer.status), (status, status), "{path}");
        assert_eq!(head.header("content-type"), answer.header("content-type"), "{path}");
        assert!(head.header("content-length").is_some(), "{path}");
        client.end_writing();
        client.assert_closed();
    }
}

#[test]
fn http_1_0_and_connection_close_end_the_connection_and_say_so() {
    let rows = [
        ("HTTP/1.0", "GET /health HTTP/1.0\r\n\r\n"),
        ("HTTP/1.0 keep-alive", "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
        ("close", "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        ("CLOSE", "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: a, CLOSE\r\n\r\n"),
        ("HEAD", "HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        ("204", "GET /204 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        (
            "live",
            "GET /live?events=1&pause_ms=0&bytes=1 HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n",
        ),
        ("HTTP/1.0 HEAD", "HEAD /live?events=1&pause_ms=0&bytes=1 HTTP/1.0\r\n\r\n"),
    ];
    let server = Server::routes(&[]);
    for (name, request) in rows {
        let mut client = server.connect();
        let start = Instant::now();
        client.send(&[request.as_bytes(), HEALTH].concat());
        let is_bodiless = request.starts_with("HEAD") || name == "204";
        let answer = if is_bodiless { client.head() } else { client.answer() };
        assert!(answer.closes(), "{name}: {answer:?}");
        client.assert_closed();
        assert_took(start.elapsed(), Duration::ZERO);
    }
}

#[test]
fn answers_that_cannot_be_framed_are_a_500() {
    let server = Server::routes(&[]);
    for path in ["/no-length", "/bad-header", "/live-bad-header"] {
        let mut client = server.connect();
        client.send(&[&*get(path, ""), HEALTH].concat());
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes()), (500, true), "{path}");
        assert_eq!(answer.header("injected"), None, "{path}");
        client.assert_closed();
    }
    server.assert_alive();
}

#[test]
fn an_answer_has_one_framing_and_one_of_each_header_that_matters() {
    let server = Server::routes(&[]);
    // A client of tiny_http could ask it for another framing by `TE`.
    for lines in ["", "TE: identity\r\n", "TE: chunked\r\n", "TE: chunked;q=0\r\n"] {
        for path in ["/health", "/big?bytes=70000", "/live?events=1&pause_ms=0&bytes=1"] {
            let answer = server.ask(&get(path, lines));
            let is_live = path.starts_with("/live");
            assert_eq!(answer.header("transfer-encoding").is_some(), is_live, "{path} {lines}");
            assert_eq!(answer.header("content-length").is_none(), is_live, "{path} {lines}");
            for name in ["content-length", "transfer-encoding", "server", "date", "connection"] {
                let count = answer.headers.iter().filter(|(other, _)| other == name).count();
                assert!(count <= 1, "{path}: {answer:?}");
            }
            assert_eq!(answer.header("server"), Some("runcap"));
        }
    }
}

fn get(path: &str, lines: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").into_bytes()
}

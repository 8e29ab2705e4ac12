//! What `runcap serve` says: the shape of answers that no route gives, and its log.

use std::time::{Duration, Instant};

use crate::http::{Answer, Server};
use crate::serve_front::{request, serve};
use crate::support::{Value, json, keys, wait_until};

#[test]
fn a_target_is_taken_as_it_was_sent() {
    // Nothing is cleaned up or decoded before the route is looked up: what another reader of the
    // path could take for something else is nothing here.
    let rows = [
        ("GET /health", 200),
        ("GET /health?x=1", 200),
        ("GET /health?", 200),
        ("GET http://localhost/health", 200),
        ("GET HTTP://127.0.0.1:9/health?x", 200),
        ("OPTIONS *", 200),
        ("GET //health", 404),
        ("GET /health/", 404),
        ("GET /%68ealth", 404),
        ("GET /./health", 404),
        ("GET /x/../health", 404),
        ("GET /Health", 404),
        ("GET /health%00", 404),
        ("GET /health;x", 404),
        ("GET /", 404),
        ("GET http://localhost", 404),
        ("POST /health", 404),
        ("TRACE /health", 404),
        ("BREW /health", 404),
        ("get /health", 404),
        ("OPTIONS /health", 404),
        ("GET health", 400),
        ("GET *", 400),
        ("GET /health#x", 400),
        ("GET https://localhost/health", 400),
        ("GET http:///health", 400),
        ("GET http://a@localhost/health", 400),
        ("CONNECT localhost:1", 501),
        ("CONNECT /health", 501),
    ];
    let server = Server::start(&[]);
    for (line, status) in rows {
        let answer = server.ask(&request(line, &[]));
        assert_eq!(answer.status, status, "{line}: {answer:?}");
        if status == 404 {
            assert_eq!(answer.text(), "404 page not found", "{line}");
        }
    }
    let answer = server.ask(&request("BREW /v1/x?y", &[]));
    assert_eq!((answer.status, body(&answer)), (404, json!({ "error": "no route: BREW /v1/x" })));
}

#[test]
fn what_is_refused_before_any_route_says_why_in_json() {
    // Request, status: the body is {"error": why, "code": status}, and the connection ends.
    let long = format!("GET /{}", "a".repeat(40 << 10));
    let many = ["x: y"; 101];
    let rows: [(&str, &str, &[&str], u16); 10] = [
        ("no version", "GET", &[], 400),
        ("two Hosts", "GET /", &["Host: localhost"], 400),
        ("bad length", "POST /", &["Content-Length: +5"], 400),
        ("length and chunks", "POST /", &["Content-Length: 5", "Transfer-Encoding: chunked"], 400),
        ("expectation", "POST /", &["Expect: miracles"], 417),
        ("long target", &long, &[], 431),
        ("many headers", "GET /", &many, 431),
        ("coding", "POST /", &["Transfer-Encoding: gzip, chunked"], 501),
        ("tunnel", "CONNECT a:1", &[], 501),
        ("version", "GET / HTTP/2.0\r\nA: b\r\n\r\nGET /", &[], 505),
    ];
    let server = Server::start(&[]);
    for (name, line, headers, status) in rows {
        let mut client = server.connect();
        client.send(&request(line, headers));
        let answer = client.answer();
        assert_eq!(answer.status, status, "{name}: {answer:?}");
        let body = body(&answer);
        assert_eq!((keys(&body), &body["code"]), (vec!["code", "error"], &json!(status)), "{name}");
        assert!(body["error"].as_str().is_some_and(|why| why.len() > 10), "{name}: {body}");
        assert!(answer.closes(), "{name}");
        client.assert_closed();
    }
}

#[test]
fn a_head_that_does_not_end_is_answered_408() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send(b"GET /health HTTP/1.1\r\nHost: loc");
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (408, true));
    assert_eq!(body(&answer), json!({ "error": "the head took longer than 10s", "code": 408 }));
    client.assert_closed();
}

#[test]
fn a_body_over_the_limit_is_refused_in_the_words_of_its_dialect() {
    // The default of 32 MiB and --max-body-size: one byte over is too much, and no byte of the
    // body was sent.
    for (args, max) in [(&[][..], 33_554_432_u64), (&["--max-body-size", "1K"], 1024)] {
        let server = Server::start(args);
        for over in [max + 1, u64::MAX] {
            let length = format!("Content-Length: {over}");
            let answer = server.ask(&request("POST /api/execute", &[&length]));
            let detail = format!("maximum allowed size is {max} bytes");
            let expected = json!({ "error": "request body too large", "detail": detail });
            assert_eq!((answer.status, body(&answer)), (413, expected), "{over}");
            let answer = server.ask(&request("POST /v1/x", &[&length]));
            assert_eq!((answer.status, keys(&body(&answer))), (413, vec!["error"]), "{over}");
        }
        let length = format!("Content-Length: {max}");
        let mut client = server.connect();
        client.send(&request("POST /api/nowhere", &[&length]));
        assert_eq!(client.answer().status, 404, "exactly {max} bytes are none too many");
    }
    // A length that no number holds is refused before there is a path.
    let length = ["Content-Length: 18446744073709551616"];
    let answer = Server::start(&[]).ask(&request("POST /api/x", &length));
    assert_eq!((answer.status, &body(&answer)["error"]), (413, &json!("request body too large")));
}

#[test]
fn the_sandbox_dialect_takes_no_chunks() {
    let server = Server::start(&[]);
    let answer = server.ask(&request("POST /v1/exec", &["Transfer-Encoding: chunked"]));
    let error = "chunked request bodies not supported; send Content-Length";
    assert_eq!((answer.status, body(&answer)), (411, json!({ "error": error })));
    let chunked = [&request("POST /api/x", &["Transfer-Encoding: chunked"])[..], b"0\r\n\r\n"];
    assert_eq!(server.ask(&chunked.concat()).status, 404, "the other one does");
}

#[test]
fn a_request_is_one_line_of_text() {
    // Time, method, path without query, status, ms, bytes of the body, as the client saw them.
    let server = Server::start(&[]);
    let rows = [
        ("GET /health?secret=canary", "GET /health 200"),
        ("HEAD /health", "HEAD /health 200"),
        ("POST /v1/x?canary", "POST /v1/x 404"),
        ("GET http://localhost/a%20b?canary", "GET /a%20b 404"),
        ("OPTIONS *", "OPTIONS * 200"),
    ];
    for (index, (line, expected)) in rows.into_iter().enumerate() {
        let start = Instant::now();
        let mut client = server.connect();
        client.send(&request(line, &["Connection: close"]));
        let is_head = line.starts_with("HEAD");
        let sent = if is_head { client.head().body.len() } else { client.answer().body.len() };
        let lines = lines_when(&server, index + 1);
        let elapsed = start.elapsed();
        let (time, rest) = lines[index].split_once(' ').expect("a time");
        assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 30, "{time}");
        let rest = rest.strip_prefix(expected).unwrap_or_else(|| panic!("{expected}: {rest}"));
        let (ms, bytes) = rest.trim_start().split_once("ms ").expect("two fields");
        assert_eq!(bytes, format!("{sent}B"), "{expected}");
        assert_plausible(ms.parse().expect("a number"), elapsed);
    }
}

#[test]
fn a_request_is_one_object_of_json() {
    let server = Server::start(&["--log", "json"]);
    let start = Instant::now();
    let answer = server.ask(&request("GET /health?canary", &[]));
    server.ask(b"canary\r\n\r\n");
    let lines = lines_when(&server, 2);
    let elapsed = start.elapsed();
    let entry: Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!(keys(&entry), ["bytes", "method", "ms", "path", "status", "time"]);
    assert_eq!((&entry["method"], &entry["path"]), (&json!("GET"), &json!("/health")));
    assert_eq!((&entry["status"], &entry["bytes"]), (&json!(200), &json!(answer.body.len())));
    assert_plausible(entry["ms"].as_f64().expect("a number"), elapsed);
    let refused: Value = serde_json::from_str(&lines[1]).expect("JSON");
    assert_eq!(keys(&refused), ["bytes", "ms", "reason", "status", "time"]);
    assert_eq!((&refused["status"], &refused["reason"]), (&json!(400), &json!("request line")));
}

#[test]
fn log_off_is_silent() {
    let server = Server::start(&["--log", "off"]);
    for request in [request("GET /health", &[]), request("GET /x", &[]), b"x\r\n\r\n".to_vec()] {
        // Its line would have to be there before the connection ends.
        let mut client = server.connect();
        client.send(&request);
        client.answer();
        client.end_writing();
        client.assert_closed();
    }
    assert_eq!(server.log().lines().count(), 1, "{}", server.log());
}

#[test]
fn ls4_no_client_forges_a_line() {
    // Each request gives one line of visible characters, whatever is in it: line ends, escape
    // sequences, quotes and text that looks like a line; methods and paths are cut.
    let method = "M".repeat(10 << 10);
    let long_path = format!("GET /{}", "p".repeat(20 << 10));
    let rows: [(&str, &str, &str); 12] = [
        (
            "encoded line end",
            "GET /x%0a2026-01-01%20INFO%20forged",
            "/x%0a2026-01-01%20INFO%20forged",
        ),
        ("encoded escape", "GET /%1b[2J%0d", "GET /%1b[2J%0d 404"),
        ("quotes", "GET /a\"b'c\\d", "GET /a\"b'c\\d 404"),
        ("UTF-8", "GET /é\u{202e}", "GET /%C3%A9%E2%80%AE 404"),
        ("escape", "GET /\u{1b}[2J", "GET / 400"),
        ("carriage return", "GET /a\rb", "GET /a 400"),
        ("line end", "GET /a\nGET /forged", "GET /a 400"),
        ("tab", "GET /a\tb", "GET /a 400"),
        ("NUL", "GET /a\0b", "GET /a 400"),
        ("long method", &format!("{method} /x"), &format!(" {} /x 404", &method[..32])),
        ("long path", &long_path, &format!(" {} 404", &long_path[..4 + 512])),
        ("a method like a line", "GET-200-0.1ms /x", "GET-200-0.1ms /x 404"),
    ];
    for args in [&[][..], &["--log", "json"]] {
        let server = Server::start(args);
        for (index, (name, line, expected)) in rows.iter().enumerate() {
            let header = b"X: \x80\xff canary\tcanary\r\n\r\n";
            let mut hostile = request(line, &[]);
            hostile.truncate(hostile.len() - 2);
            server.ask(&[&hostile, &header[..]].concat());
            let lines = lines_when(&server, index + 1);
            assert_eq!(lines.len(), index + 1, "{name}: one line, {lines:?}");
            let visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            assert!(lines[index].bytes().all(visible), "{name}: {:?}", lines[index]);
            assert!(lines[index].len() < 4096, "{name}: {} bytes", lines[index].len());
            if args.is_empty() {
                assert!(lines[index].contains(expected), "{name}: {:?}", lines[index]);
            } else {
                serde_json::from_str::<Value>(&lines[index]).expect("JSON");
            }
        }
        assert!(!server.log().contains("canary"), "no header");
    }
}

#[test]
fn ls4_nothing_that_may_be_a_secret_is_logged() {
    // A canary in every place but the path of a request, well formed or not: what a client is told
    // about its request is more than what the log shows.
    let at = |line: &str, headers: &[&str], body: &str| {
        [request(line, headers), body.as_bytes().to_vec()].concat()
    };
    let rows = [
        at("GET /api/x", &["Authorization: Bearer canary"], ""),
        at("GET /api/x", &["Authorization: canary canary"], ""),
        at("GET /v1/x", &["X-Sandbox-Token: canary"], ""),
        at("GET /api/x?token=canary", &["Cookie: canary", "canary: x"], ""),
        at("GET /api/x?token=canary#", &[], ""),
        at("GET https://canary/x", &[], ""),
        at("GET http://canary/x?canary", &[], ""),
        at("CONNECT canary:1", &[], ""),
        at("GET /api/x?to ken=canary", &[], ""),
        at("POST /api/x", &["Content-Length: canary"], ""),
        at("POST /api/x", &["Content-Length: 1", "Content-Length: canary"], ""),
        at("POST /api/x", &["Transfer-Encoding: canary"], ""),
        at("POST /api/x", &["Transfer-Encoding: canary, chunked"], ""),
        at("POST /api/x", &["Expect: canary"], ""),
        at("GET /api/x", &["Host: canary"], ""),
        at("GET /api/x", &["Authorization canary"], ""),
        at("GET /api/x", &["Authorization: canary\u{1}"], ""),
        at("POST /api/x", &["Content-Length: 6"], "canary"),
        at("POST /api/x", &["Transfer-Encoding: chunked"], "6\r\ncanary\r\n0\r\n\r\n"),
        at("POST /api/x", &["Transfer-Encoding: chunked"], "canary"),
        b"Authorization: Bearer canary\r\n\r\n".to_vec(),
        b"{\"token\":\"canary\"}\r\n\r\n".to_vec(),
        b"GET / canary\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: canary canary\r\n\r\n".to_vec(),
    ];
    for log in ["text", "json"] {
        let mut command = serve(&["--listen", "127.0.0.1:0", "--log", log]);
        command.env("RUNCAP_TOKEN", "canary-of-the-server");
        let server = Server::of(command);
        for (index, row) in rows.iter().enumerate() {
            let shown = String::from_utf8_lossy(row).into_owned();
            assert!(server.ask(row).status >= 400, "{shown}");
            let lines = lines_when(&server, index + 1);
            assert!(!lines[index].contains("canary"), "{shown:?}: {:?}", lines[index]);
        }
        assert!(!server.log().contains("canary"), "{}", server.log());
    }
}

/// Lines for answers, as soon as there are `count`.
#[track_caller]
fn lines_when(server: &Server, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    wait_until("the line is written", || {
        let log = server.log();
        // A line is whole once it ends.
        let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let entries = whole.filter(|line| !line.starts_with("runcap: "));
        lines = entries.map(|line| line.trim_end_matches('\n').to_owned()).collect();
        lines.len() >= count
    });
    lines
}

/// The server cannot have needed longer than its client waited.
#[track_caller]
fn assert_plausible(ms: f64, elapsed: Duration) {
    assert!(ms > 0.0 && ms <= elapsed.as_secs_f64() * 1e3, "{ms} ms of {elapsed:?}");
}

#[track_caller]
fn body(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    serde_json::from_str(answer.text()).expect("JSON")
}

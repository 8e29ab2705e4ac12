//! What is the next byte after this request? Requests that lie about where they end, or do not say
//! it in the one way that everybody understands. Behind most of them stands a request for
//! `/smuggled` that nobody must ever take for one.

mod conversations;
mod sequence;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::http::{Answer, Client, Server};
use crate::support::{assert_took, wait_until};

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
const SMUGGLED: &[u8] = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A server that takes any length a header can say, so that what decides is what it does then.
const NO_LIMIT: &[&str] = &["512", "18446744073709551615"];

#[test]
fn hs4_who_says_the_length_twice_or_in_no_known_way_is_refused_and_not_read_on() {
    // Each row: lines in a POST's head, and the status of its only answer.
    let rows: [(&str, &[u8], u16); 24] = [
        ("te_and_cl", b"Transfer-Encoding: chunked\r\nContent-Length: 5", 400),
        ("cl_and_te", b"Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
        ("cl_and_te_in_other_case", b"content-LENGTH: 5\r\ntransfer-ENCODING: CHUNKED", 400),
        ("te_identity", b"Transfer-Encoding: identity", 400),
        ("te_xchunked", b"Transfer-Encoding: xchunked", 400),
        ("te_chunked_identity", b"Transfer-Encoding: chunked, identity", 400),
        ("te_chunked_twice", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        ("te_gzip_chunked", b"Transfer-Encoding: gzip, chunked", 501),
        ("te_empty", b"Transfer-Encoding:", 400),
        ("te_vertical_tab", b"Transfer-Encoding: \x0bchunked", 400),
        ("te_space_before_colon", b"Transfer-Encoding : chunked", 400),
        ("te_folded", b"Transfer-Encoding:\r\n chunked", 400),
        ("two_cl", b"Content-Length: 5\r\nContent-Length: 6", 400),
        ("two_cl_equal", b"Content-Length: 5\r\nContent-Length: 5", 400),
        ("cl_plus_5", b"Content-Length: +5", 400),
        ("cl_minus_1", b"Content-Length: -1", 400),
        ("cl_list", b"Content-Length: 5, 5", 400),
        ("cl_word", b"Content-Length: x", 400),
        ("cl_hex", b"Content-Length: 0x5", 400),
        ("cl_empty", b"Content-Length:", 400),
        ("cl_two_numbers", b"Content-Length: 5 5", 400),
        ("cl_space_before_colon", b"Content-Length : 5", 400),
        ("cl_folded", b"Content-Length:\r\n 5", 400),
        ("cl_past_2_64", b"Content-Length: 18446744073709551616", 413),
    ];
    for server in both() {
        for (name, lines, status) in rows {
            assert_refused(&server, name, &post("/echo", lines, b"0\r\n\r\n"), status);
        }
        server.assert_alive();
        assert!(!server.log().contains("smuggled"), "{}", server.log());
    }
}

#[test]
fn heads_that_can_be_read_in_two_ways_are_refused_and_not_read_on() {
    // Each row: a request line, lines after it, and the status of the only answer.
    let rows: [(&str, &[u8], &[u8], u16); 26] = [
        ("bare_lf", b"GET /health HTTP/1.1\nHost: localhost\n\n", b"", 400),
        ("lf_in_header", b"GET /health HTTP/1.1\r\nHost: x\nFoo: y", b"", 400),
        ("bare_cr", b"GET /health HTTP/1.1\r\nHost: x\rFoo: y", b"", 400),
        ("obs_fold", b"GET /health HTTP/1.1", b"A: b\r\n folded", 400),
        ("obs_fold_like_a_header", b"GET /health HTTP/1.1", b"A: b\r\n c: d", 400),
        ("obs_fold_first", b"GET /health HTTP/1.1\r\n X: y", b"", 400),
        ("control_byte", b"GET /health HTTP/1.1", b"A: \x01", 400),
        ("control_byte_nul", b"GET /health HTTP/1.1", b"A: \0", 400),
        ("control_byte_del", b"GET /health HTTP/1.1", b"A: \x7f", 400),
        ("method_g_at_t", b"G@T /health HTTP/1.1", b"", 400),
        ("method_empty", b" /health HTTP/1.1", b"", 400),
        ("method_not_ascii", b"G\xc3\x89T /health HTTP/1.1", b"", 400),
        ("version_junk", b"GET /health HTTP/1.1 junk", b"", 400),
        ("version_junk_space", b"GET /health HTTP/1.1 ", b"", 400),
        ("version_lower", b"GET /health http/1.1", b"", 400),
        ("version_absent", b"GET /health", b"", 400),
        ("two_spaces", b"GET  /health HTTP/1.1", b"", 400),
        ("name_empty", b"GET /health HTTP/1.1", b": v", 400),
        ("name_not_ascii", b"GET /health HTTP/1.1", b"\xc3\xa9: v", 400),
        ("name_with_space", b"GET /health HTTP/1.1", b"A B: v", 400),
        ("no_colon", b"GET /health HTTP/1.1", b"A", 400),
        ("two_hosts", b"GET /health HTTP/1.1", b"Host: localhost", 400),
        ("t3_http_2", b"GET /health HTTP/2.0", b"", 505),
        ("t3_preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n", b"", 505),
        ("connect", b"CONNECT localhost:1 HTTP/1.1", b"", 501),
        ("t8_expect_banana", b"GET /health HTTP/1.1", b"Expect: banana", 417),
    ];
    for server in both() {
        for (name, start, lines, status) in rows {
            let end = if lines.is_empty() { "\r\n" } else { "\r\n\r\n" };
            let request = [start, b"\r\nHost: localhost\r\n", lines, end.as_bytes()].concat();
            assert_refused(&server, name, &request, status);
        }
        server.assert_alive();
        assert!(!server.log().contains("smuggled"), "{}", server.log());
    }
}

#[test]
fn what_reads_in_one_way_only_is_answered_and_read_on() {
    // Each row: a whole request and its answer; the next request is answered right after it.
    let rows: [(&str, Vec<u8>, &str); 13] = [
        ("longer_than_cl", post("/echo", b"Content-Length: 2", b"hi"), "hi"),
        ("cl_with_spaces", post("/echo", b"Content-Length: \t 2 \t ", b"hi"), "hi"),
        ("cl_with_zeros", post("/echo", b"Content-Length: 002", b"hi"), "hi"),
        ("no_body", post("/count", b"A: b", b""), "0"),
        ("cl_0", post("/count", b"Content-Length: 0", b""), "0"),
        ("leading_crlf", [b"\r\n\r\n", HEALTH].concat(), "ok"),
        ("chunked_upper_case", post("/echo", b"Transfer-Encoding: CHUNKED", b"0\r\n\r\n"), ""),
        ("connection_upgrade", upgrade(b"GET /health HTTP/1.1", b""), "ok"),
        (
            "connection_upgrade_with_body",
            upgrade(b"POST /echo HTTP/1.1\r\nContent-Length: 2", b"hi"),
            "hi",
        ),
        ("part_read_is_all", post("/some?bytes=2", b"Content-Length: 2", b"hi"), "Ok(())"),
        (
            "all_chunks_read_but_not_the_end",
            post("/some?bytes=2", b"Transfer-Encoding: chunked", b"2\r\nhi\r\n0\r\n\r\n"),
            "Ok(())",
        ),
        ("value_not_ascii", post("/headers", b"X: \xc3\xa9", b""), "Host: localhost\nX: ??\n"),
        ("tab_in_value", post("/headers", b"X: a\tb", b""), "Host: localhost\nX: a\tb\n"),
    ];
    let server = Server::routes(&[]);
    for (name, request, expected) in rows {
        let mut client = server.connect();
        client.send(&[&request, HEALTH].concat());
        let answer = client.answer();
        assert_eq!((answer.status, answer.text()), (200, expected), "{name}");
        assert!(!answer.closes(), "{name}");
        assert_eq!(client.answer().text(), "ok", "{name}");
        client.end_writing();
        client.assert_closed();
    }
}

#[test]
fn a_body_that_no_handler_read_is_never_the_next_request() {
    let chunk = |data: &[u8]| {
        let size = format!("{:x}\r\n", data.len());
        [size.as_bytes(), data, b"\r\n0\r\n\r\n"].concat()
    };
    let length = format!("Content-Length: {}", SMUGGLED.len());
    let (length, chunked) = (length.as_bytes(), &b"Transfer-Encoding: chunked"[..]);
    let rows: [(&str, Vec<u8>, u16); 7] = [
        ("cl_not_read", post("/ignore", length, SMUGGLED), 200),
        ("chunked_not_read", post("/ignore", chunked, &chunk(SMUGGLED)), 200),
        ("cl_partly_read", post("/some?bytes=3", length, SMUGGLED), 200),
        ("chunked_partly_read", post("/some?bytes=3", chunked, &chunk(SMUGGLED)), 200),
        ("hs6_cl_refused", post("/forbidden", length, SMUGGLED), 403),
        ("hs6_chunked_refused", post("/no-chunks", chunked, &chunk(SMUGGLED)), 411),
        ("hs6_no_such_route", post("/nosuch", length, SMUGGLED), 404),
    ];
    let server = Server::routes(&[]);
    for (name, request, status) in &rows {
        assert_refused(&server, name, request, *status);
    }
    let served = Server::start(&[]);
    assert_refused(&served, "hs6_served", &post("/nosuch", length, SMUGGLED), 404);
    for server in [server, served] {
        server.assert_alive();
        assert!(!server.log().contains("smuggled"), "{}", server.log());
    }
}

#[test]
fn bodies_that_are_cut_are_never_taken_for_whole() {
    // Each row: what comes before the client's FIN. No byte of an answer may come back.
    let rows: [(&str, &[u8], &[u8]); 9] = [
        ("cl_cut_by_fin", b"Content-Length: 10", b"hello"),
        ("cl_cut_before_its_first_byte", b"Content-Length: 10", b""),
        ("chunked_cut_inside_a_chunk", CHUNKED, b"a\r\nhello"),
        ("chunked_cut_between_chunks", CHUNKED, b"5\r\nhello\r\n"),
        ("chunked_cut_before_its_first_byte", CHUNKED, b""),
        ("chunked_cut_in_a_size_line", CHUNKED, b"5\r\nhello\r\n0"),
        ("chunked_cut_after_the_data", CHUNKED, b"5\r\nhello\r"),
        ("hs5_missing_last_crlf", CHUNKED, b"5\r\nhello\r\n0\r\n"),
        ("chunked_cut_in_a_trailer", CHUNKED, b"5\r\nhello\r\n0\r\nA: b\r\n"),
    ];
    let server = Server::routes(&[]);
    for (name, line, body) in rows {
        for path in ["/echo", "/count", "/half", "/some?bytes=8"] {
            let mut client = server.connect();
            client.send(&post(path, line, body));
            client.end_writing();
            let (rest, is_orderly) = client.rest();
            assert_eq!(String::from_utf8_lossy(&rest), "", "{name} {path}");
            assert!(is_orderly, "{name} {path}");
        }
    }
    server.assert_alive();
}

#[test]
fn hs5_chunks_are_read_to_the_byte() {
    // Each row: a chunked body and its data.
    let rows: [(&str, &[u8], &[u8]); 8] = [
        ("holds an end", b"7\r\nA0\r\n\r\nB\r\n0\r\n\r\n", b"A0\r\n\r\nB"),
        ("chunk_extension", b"7;a=b;c\r\nA0\r\n\r\nB\r\n0;d\r\n\r\n", b"A0\r\n\r\nB"),
        ("chunk_extension_quoted", b"2;a=\"b;c\"\r\nhi\r\n0\r\n\r\n", b"hi"),
        ("trailers", b"2\r\nhi\r\n0\r\nA: b\r\nContent-Length: 9\r\n\r\n", b"hi"),
        ("upper case", b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        ("lower case", b"a\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        ("zeros before", b"0000000000000002\r\nhi\r\n00\r\n\r\n", b"hi"),
        ("many", b"1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", b"hi"),
    ];
    let server = Server::routes(&[]);
    for (name, body, expected) in rows {
        let mut client = server.connect();
        client.send(&[&*post("/echo", CHUNKED, body), HEALTH].concat());
        let answer = client.answer();
        assert_eq!((answer.status, &*answer.body), (200, expected), "{name}");
        assert_eq!(client.answer().text(), "ok", "{name}");
    }
}

#[test]
fn hs5_chunks_that_can_be_read_in_two_ways_are_refused_and_not_read_on() {
    let long = b"0".repeat(1_000_000);
    let trailer = [b"2\r\nhi\r\n0\r\nA: ", &*b"b".repeat(1_000_000)].concat();
    let rows: [(&str, &[u8]); 15] = [
        ("size_plus_5", b"+5\r\nhello\r\n0\r\n\r\n"),
        ("size_minus", b"-5\r\nhello\r\n0\r\n\r\n"),
        ("size_0x", b"0x5\r\nhello\r\n0\r\n\r\n"),
        ("size_empty", b"\r\nhello\r\n0\r\n\r\n"),
        ("size_with_extension_only", b";a\r\n0\r\n\r\n"),
        ("size_after_space", b" 5\r\nhello\r\n0\r\n\r\n"),
        ("size_word", b"five\r\nhello\r\n0\r\n\r\n"),
        ("size_2_64", b"10000000000000000\r\nhello\r\n0\r\n\r\n"),
        ("size_of_a_million_digits", &long),
        ("bare_lf", b"5\nhello\n0\n\n"),
        ("bare_lf_after_extension", b"5;a\nhello\r\n0\r\n\r\n"),
        ("data_longer_than_its_size", b"4\r\nhello\r\n0\r\n\r\n"),
        ("trailer_without_colon", b"0\r\nA\r\n\r\n"),
        ("trailer_folded", b"0\r\nA: b\r\n c\r\n\r\n"),
        ("trailer_of_a_million_bytes", &trailer),
    ];
    let server = Server::routes(&[]);
    let before = server.peak_rss_bytes();
    for (name, body) in rows {
        for path in ["/echo", "/half"] {
            assert_refused(&server, name, &post(path, CHUNKED, body), 400);
        }
    }
    server.assert_alive();
    assert!(!server.log().contains("smuggled"), "{}", server.log());
    assert_flat(&server, before);
}

#[test]
fn hs2_heads_without_end_are_refused_readably_and_take_no_memory() {
    let letters = [b'a'; 64 << 10];
    let headers = (0..4096).map(|number| format!("X-{number:04}: 1\r\n")).collect::<String>();
    let get = &b"GET / HTTP/1.1\r\nHost: localhost\r\n"[..];
    // Each row: how it begins, and what then comes again and again.
    let rows: [(&str, &[u8], &[u8], usize); 4] = [
        ("endless header", &[get, b"X: "].concat(), &letters, 200 << 20),
        ("endless name", get, &letters, 1 << 20),
        ("a million headers", get, headers.as_bytes(), 250 * headers.len()),
        ("1 MiB request line", b"GET /", &letters, 1 << 20),
    ];
    for server in both() {
        let before = server.peak_rss_bytes();
        for (name, start, again, total) in rows {
            let mut client = server.connect();
            client.send(start);
            client.send_until_refused(again, total / again.len());
            let answer = client.answer();
            assert_eq!((answer.status, answer.closes()), (431, true), "{name}");
            assert_eq!(client.rest().0, b"", "{name}");
        }
        server.assert_alive();
        assert_flat(&server, before);
    }
}

#[test]
fn a_body_of_the_longest_length_is_read_and_one_byte_more_is_413() {
    let server = Server::routes(&["512", "10"]);
    let fitting = [
        post("/echo", b"Content-Length: 10", b"0123456789"),
        post("/echo", CHUNKED, b"5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"),
    ];
    for request in fitting {
        let answer = server.ask(&request);
        assert_eq!((answer.status, answer.text(), answer.closes()), (200, "0123456789", false));
    }
    for path in ["/echo", "/half", "/count"] {
        let request = post(path, b"Content-Length: 11", b"0123456789a");
        assert_refused(&server, "cl", &request, 413);
        let request = post(path, CHUNKED, b"5\r\n01234\r\n6\r\n56789a\r\n0\r\n\r\n");
        assert_refused(&server, "chunked", &request, 413);
    }
}

#[test]
fn k1_k2_hs3_a_length_alone_takes_no_memory_and_ends_nothing() {
    let lengths = ["107374182400", "70368744177664", "9223372036854775807", "9223372036854775808"];
    let lengths = [&lengths[..], &["18446744073709551615", "18446744073709551616"]].concat();
    // Each row: a route that reads nothing, or little, and its status.
    let rows = [("/ignore", 200), ("/health", 200), ("/204", 204), ("/big?bytes=70000", 200)];
    let more = [("/forbidden", 403), ("/panic", 500), ("/nosuch", 404), ("/some?bytes=2", 200)];
    let mut server = Server::routes(NO_LIMIT);
    let mut served = Server::start(&[]);
    let (before, served_before) = (server.peak_rss_bytes(), served.peak_rss_bytes());
    for length in lengths {
        let line = format!("Content-Length: {length}");
        for (path, status) in [rows, more].concat() {
            let is_beyond = length == "18446744073709551616";
            let status = if is_beyond { 413 } else { status };
            assert_refused(&server, length, &post(path, line.as_bytes(), b"{}"), status);
        }
        assert_refused(&served, length, &post("/health", line.as_bytes(), b"{}"), 413);
        // The client leaves in the middle of what a handler reads into memory as it comes.
        let mut client = server.connect();
        client.send(&post("/echo", line.as_bytes(), b"{}"));
        client.reset();
    }
    for (server, before) in [(&mut server, before), (&mut served, served_before)] {
        server.assert_alive();
        assert_flat(server, before);
        assert!(server.stop().success());
    }
}

#[test]
fn t3_clients_of_http_2_leave_nothing_behind() {
    let server = Server::routes(&[]);
    server.assert_alive();
    wait_until("the first connection is over", || server.resources().1 == 1);
    let before = server.resources();
    let mut clients = Vec::new();
    for request in [&b"GET / HTTP/2.0\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        for _ in 0..25 {
            let mut client = server.connect();
            client.send(request);
            let answer = client.answer();
            assert_eq!((answer.status, answer.closes()), (505, true));
            client.assert_closed();
            clients.push(client);
        }
    }
    drop(clients);
    wait_until("nothing is left", || server.resources() == before);
    server.assert_alive();
}

#[test]
fn t4_a_body_that_stalls_or_trickles_ends_with_408_and_is_freed() {
    // POST with a body that does not come, each on a connection of its own: 408 after 30 s.
    let rows: [(&str, &[u8], &[u8], &str); 5] = [
        ("never", b"Content-Length: 100", b"", ""),
        ("half", b"Content-Length: 100000", &[b'x'; 500], ""),
        ("chunk", CHUNKED, b"5\r\nhel", ""),
        ("asked for", b"Content-Length: 9\r\nExpect: 100-continue", b"", "100 Continue"),
        ("trickle", b"Content-Length: 100000", b"x", "drops"),
    ];
    let server = Server::routes(&[]);
    server.assert_alive();
    wait_until("the first connection is over", || server.resources().1 == 1);
    let before = server.resources();
    std::thread::scope(|scope| {
        for (name, line, body, special) in rows {
            let mut client = server.connect();
            scope.spawn(move || {
                let start = Instant::now();
                client.send(&post("/half", line, body));
                if special == "100 Continue" {
                    assert_eq!(client.head().status, 100, "{name}");
                }
                let (answer, elapsed) = match special {
                    "drops" => trickle(&mut client),
                    _ => (client.answer(), start.elapsed()),
                };
                assert_eq!((answer.status, answer.closes()), (408, true), "{name}");
                assert_took(elapsed, Duration::from_secs(30));
                client.assert_closed();
            });
        }
        // What waits is in nobody's way.
        server.assert_alive();
    });
    wait_until("nothing is left", || server.resources() == before);
}

#[test]
fn t5_who_is_refused_need_not_send_the_body_first() {
    // Each row: 5000 bytes are announced, none is sent.
    let routes = Server::routes(&["512", "1000"]);
    let served = Server::start(&[]);
    let rows = [
        (&routes, "/forbidden", "5000", 403),
        (&routes, "/echo", "5000", 413),
        (&routes, "/nosuch", "1000", 404),
        (&routes, "/ignore", "1000", 200),
        (&served, "/nosuch", "5000", 404),
        (&served, "/nosuch", "99999999999", 413),
    ];
    for (server, path, length, status) in rows {
        let line = format!("Content-Length: {length}");
        // Any of them that held a thread or a lock would hold up the others.
        let mut clients: Vec<_> = (0..8).map(|_| server.connect()).collect();
        let start = Instant::now();
        for client in &mut clients {
            client.send(&post(path, line.as_bytes(), b""));
        }
        for client in &mut clients {
            assert_eq!(client.answer().status, status, "{path}");
            client.assert_closed();
        }
        assert_took(start.elapsed(), Duration::ZERO);
        server.assert_alive();
    }
}

#[test]
fn t6_300_mb_that_nobody_reads_lose_no_answer_and_take_no_memory() {
    let server = Server::routes(&[]);
    let before = server.peak_rss_bytes();
    let mebibyte = vec![b'x'; 1 << 20];
    for (path, status) in [("/ignore", 200), ("/forbidden", 403)] {
        let mut client = server.connect();
        client.send(&post(path, b"Content-Length: 314572800", b""));
        client.send_until_refused(&mebibyte, 300);
        assert_eq!(client.answer().status, status);
        let (rest, _) = client.rest();
        assert_eq!(rest, b"");
    }
    server.assert_alive();
    assert_flat(&server, before);
}

#[test]
fn hs6_a_refusal_reaches_a_client_that_sends_50_mib_before_it_looks() {
    let routes = Server::routes(&["512", "1000000"]);
    let served = Server::start(&[]);
    let rows = [
        (&routes, "/forbidden", "Content-Length: 52428800", 403),
        (&routes, "/echo", "Content-Length: 52428800", 413),
        (&routes, "/no-chunks", "Transfer-Encoding: chunked", 411),
        (&served, "/nosuch", "Content-Length: 52428800", 413),
    ];
    // In chunks it is one that ends in time too.
    let mebibyte = SMUGGLED.repeat((1 << 20) / SMUGGLED.len() + 1);
    for (server, path, line, status) in rows {
        let mut client = server.connect();
        client.send(&post(path, line.as_bytes(), b""));
        let taken = client.send_until_refused(&mebibyte[..1 << 20], 50);
        assert_eq!(taken, 50 << 20, "{path}");
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes()), (status, true), "{path}");
        client.assert_closed();
    }
    for server in [routes, served] {
        assert!(!server.log().contains("smuggled"), "{}", server.log());
    }
}

#[test]
fn t8_hs7_who_waits_to_be_told_to_go_on_is_told_at_once() {
    let expecting = |path, line: &str| {
        let lines = format!("{line}\r\nExpect: 100-continue");
        post(path, lines.as_bytes(), b"")
    };
    let server = Server::routes(&["512", "1000"]);
    // Each row: the head, the body that is sent after 100, and the answer.
    let wanted = [
        (expecting("/echo", "Content-Length: 5"), &b"hello"[..], "hello"),
        (expecting("/echo", "Transfer-Encoding: chunked"), b"2\r\nhi\r\n0\r\n\r\n", "hi"),
        (expecting("/some?bytes=2", "Content-Length: 2"), b"hi", "Ok(())"),
    ];
    for (head, body, expected) in wanted {
        let start = Instant::now();
        let mut client = server.connect();
        client.send(&head);
        let expected_100 = b"HTTP/1.1 100 Continue\r\n\r\n";
        assert_eq!(client.exactly(expected_100.len()), expected_100);
        client.send(body);
        let answer = client.answer();
        assert_eq!((answer.status, answer.text()), (200, expected));
        client.send(HEALTH);
        assert_eq!(client.answer().text(), "ok");
        assert_took(start.elapsed(), Duration::ZERO);
    }
    // Each row: a final answer without a look at the body, hence without 100.
    let unread = [
        (expecting("/forbidden", "Content-Length: 5"), 403, true),
        (expecting("/echo", "Content-Length: 5000"), 413, true),
        (expecting("/no-chunks", "Transfer-Encoding: chunked"), 411, true),
        (expecting("/ignore", "Content-Length: 5"), 200, true),
        (expecting("/echo", "Content-Length: 0"), 200, false),
        (post("/echo", b"Content-Length: 2\r\nExpect: 100-continue", b"hi"), 200, false),
        (
            b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi".into(),
            200,
            true,
        ),
    ];
    for (head, status, closes) in unread {
        let start = Instant::now();
        let answer = server.ask(&head);
        assert_eq!((answer.status, answer.closes()), (status, closes));
        assert_took(start.elapsed(), Duration::ZERO);
    }
}

const CHUNKED: &[u8] = b"Transfer-Encoding: chunked";

/// The routes of the helper, and runcap's own.
fn both() -> [Server; 2] {
    [Server::routes(&[]), Server::start(&[])]
}

fn post(path: &str, lines: &[u8], body: &[u8]) -> Vec<u8> {
    let start = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n");
    [start.as_bytes(), lines, b"\r\n\r\n", body].concat()
}

fn upgrade(start: &[u8], body: &[u8]) -> Vec<u8> {
    let lines = b"\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    [start, lines, body].concat()
}

/// Asserts that `request`, with another one right behind it, gets one answer that says it is the
/// last, and then an orderly end.
#[track_caller]
fn assert_refused(server: &Server, name: &str, request: &[u8], status: u16) {
    let mut client = server.connect();
    client.send(&[request, SMUGGLED].concat());
    let answer = match status {
        204 => client.head(),
        _ => client.answer(),
    };
    assert_eq!((answer.status, answer.closes()), (status, true), "{name}: {answer:?}");
    client.assert_closed();
}

/// Asserts that the server's memory has hardly grown since it was `before`.
#[track_caller]
fn assert_flat(server: &Server, before: u64) {
    let peak = server.peak_rss_bytes();
    let grown = peak.saturating_sub(before);
    eprintln!("VmHWM {} KiB, {} KiB more than at first", peak >> 10, grown >> 10);
    assert!(grown < 4 << 20, "it has grown by {grown} bytes");
}

/// Sends a byte every half second until the answer comes, and says when that was.
fn trickle(client: &mut Client) -> (Answer, Duration) {
    let start = Instant::now();
    let mut other = Client::new(client.stream.try_clone().expect("a descriptor"));
    let (answered, is_answered) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let pause = Duration::from_millis(500);
            while is_answered.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                other.send(b"x");
            }
        });
        let answer = client.answer();
        drop(answered);
        (answer, start.elapsed())
    })
}

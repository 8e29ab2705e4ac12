//! Floods: clients that open, send and hold whatever they can. Memory, threads and descriptors stay
//! bounded, and the server answers.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Client, Server, Watched, many_files, unread_bytes, wait_within};
use crate::support::{assert_took, slack, wait_until};

const MIB: usize = 1 << 20;
const GET: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Heads over 8 KiB that there is room for.
const LARGE_HEADS: usize = 64;

/// The deadline of a head, and the longest wait for a client that does not read.
const HEAD_TIME: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(30);

#[test]
fn m1_a_request_line_without_end_costs_nothing() {
    // 512 MiB of `a` and no newline: 431, or a closed connection; 24 MiB at most.
    let watched = Watched::new(Server::start(&[]));
    assert_refused(&watched, b"", b"a", 512 * MIB, 431);
    watched.assert_unharmed();
}

#[test]
fn m2_headers_without_end_cost_nothing() {
    // 64 MiB of `x: y` lines: 431, or a closed connection; 24 MiB at most.
    let watched = Watched::new(Server::start(&[]));
    assert_refused(&watched, b"GET / HTTP/1.1\r\nHost: x\r\n", b"x: y\r\n", 64 * MIB, 431);
    watched.assert_unharmed();
}

#[test]
fn m3_pipelined_requests_whose_answers_nobody_reads_are_not_queued() {
    // Four clients pipeline up to 1 GiB of GETs each and read nothing: the server stops reading
    // them when their answers find no room, so each gets rid of what sockets hold and no more.
    let watched = Watched::new(Server::start(&["--log", "off"]));
    let block = GET.repeat(1000);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = watched.server.connect();
                let wait = Some(Duration::from_secs(1));
                client.stream.set_write_timeout(wait).expect("a socket");
                let most = 1024 * MIB / block.len();
                let sent = client.send_until_refused(&block, most);
                assert!(sent < 256 * MIB, "the server took {sent} bytes and answered nobody");
                watched.server.assert_alive();
            });
        }
    });
    watched.assert_unharmed();
}

#[test]
fn m3_pipelined_requests_are_all_answered_in_order() {
    // 50,000 GETs and HEADs sent as fast as the socket takes them, read by another thread: as many
    // answers, each whole; flat memory.
    const COUNT: usize = 50_000;
    let watched = Watched::new(Server::start(&["--log", "off"]));
    let mut client = watched.server.connect();
    let mut writer = client.stream.try_clone().expect("a descriptor");
    thread::scope(|scope| {
        scope.spawn(move || {
            let block = GET.repeat(100);
            (0..COUNT / 100).for_each(|_| writer.write_all(&block).expect("the server reads"));
        });
        for _ in 0..COUNT {
            assert_eq!(client.answer().status, 200);
        }
    });
    drop(client);
    watched.assert_unharmed();
}

#[test]
fn m4_a_chunk_size_line_without_end_costs_nothing() {
    // 256 MiB of `0` where the size of a chunk stands: 400, or a closed connection.
    let watched = Watched::new(Server::routes(&[]));
    let head = b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_refused(&watched, head, b"0", 256 * MIB, 400);
    watched.assert_unharmed();
}

#[test]
fn m5_no_client_makes_the_server_hold_a_live_answer() {
    // A live answer of 500 MiB, to clients that know no chunks or want none: it is streamed.
    let path = "/live?events=8000&bytes=65536&pause_ms=0";
    let rows = [
        ("HTTP/1.0", format!("GET {path} HTTP/1.0\r\n\r\n")),
        ("TE: identity", format!("GET {path} HTTP/1.1\r\nHost: x\r\nTE: identity\r\n\r\n")),
    ];
    for (name, request) in rows {
        let watched = Watched::new(Server::routes(&[]));
        let mut client = watched.server.connect();
        client.send(request.as_bytes());
        let head = client.head();
        assert_eq!(head.status, 200, "{name}");
        let body_bytes = match head.header("transfer-encoding") {
            Some(_) => client.count_chunked(),
            None => client.count_rest(),
        };
        assert_eq!(body_bytes, 8000 * 65536, "{name}");
        drop(client);
        watched.assert_unharmed();
    }
}

#[test]
fn t1_slow_heads_are_answered_408_by_the_deadline() {
    // 500 clients that send a byte a second: every one gets 408 and FIN 10 s after its first byte,
    // others are answered meanwhile, and nothing of them is left.
    many_files();
    let watched = Watched::new(Server::start(&[]));
    let start = Instant::now();
    let mut clients: Vec<Client> = (0..500).map(|_| watched.server.connect()).collect();
    let head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: aaaaaaaaaaaaaaaaaaaa";
    for (second, byte) in head.iter().enumerate() {
        if start.elapsed() >= HEAD_TIME {
            break;
        }
        // A client may be over its deadline while the last of the others send.
        clients.iter_mut().for_each(|client| drop(client.stream.write(&[*byte])));
        watched.server.assert_alive();
        let next = Duration::from_secs(second as u64 + 1);
        thread::sleep(next.saturating_sub(start.elapsed()));
    }
    for client in &mut clients {
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes()), (408, true), "{answer:?}");
        client.assert_closed();
    }
    assert_took(start.elapsed(), HEAD_TIME);
    println!("500 slow heads: {} KiB at most", watched.server.peak_rss_bytes() >> 10);
    drop(clients);
    watched.assert_unharmed();
}

#[test]
fn t1_the_largest_heads_of_all_connections_fit_into_memory() {
    // 512 heads of 32 KiB but for one byte: 64 of them have their place, the others get 503 at
    // once, and short heads are answered. Then the byte comes, and the 64 are answered.
    many_files();
    for (name, head) in heads("GET /health", "", 32 << 10) {
        let watched = Watched::new(Server::start(&["--max-connections", "513"]));
        let (most, last) = head.split_at(head.len() - 1);
        let mut clients = hold(&watched, 512, most);
        watched.server.assert_alive();
        let mut answered = 0;
        for client in &mut clients {
            // Who was refused may have been closed as well.
            let _ = client.stream.write(last);
            match client.answer().status {
                200 | 404 => answered += 1,
                status => assert_eq!(status, 503, "{name}"),
            }
        }
        assert_eq!(answered, LARGE_HEADS, "{name}");
        drop(clients);
        watched.assert_unharmed_called(name);
    }
}

#[test]
fn t1_heads_of_which_the_body_never_comes_fit_into_memory() {
    // 512 complete heads, each for a handler that waits for 5 bytes. Of 8 KiB all wait, of 32 KiB
    // 64 do, and the others get 503 at once. Then the 5 bytes come.
    many_files();
    for (kib, waiting) in [(8, 512), (32, LARGE_HEADS)] {
        let (name, head) = heads("POST /count", "Content-Length: 5\r\n", kib << 10)[1].clone();
        let watched = Watched::new(Server::routes(&["513"]));
        let mut clients = hold(&watched, 512, &head);
        watched.server.assert_alive();
        let mut answered = 0;
        for client in &mut clients {
            let _ = client.stream.write(b"12345");
            let answer = client.answer();
            match answer.status {
                200 => assert_eq!(answer.text(), "5"),
                status => assert_eq!(status, 503, "{kib} KiB, {name}"),
            }
            answered += usize::from(answer.status == 200);
        }
        assert_eq!(answered, waiting, "{kib} KiB, {name}");
        drop(clients);
        watched.assert_unharmed_called(&format!("{kib} KiB, {name}"));
    }
}

#[test]
fn t2_no_burst_of_clients_waits_for_another_connection_to_end() {
    // 8, 16 and 64 kept connections at once, each with 20 requests: each answer within a second.
    let watched = Watched::new(Server::start(&["--log", "off"]));
    for count in [8, 16, 64] {
        let begin = Barrier::new(count);
        let burst = || {
            begin.wait();
            let mut client = watched.server.connect();
            let waits = (0..20).map(|_| {
                let start = Instant::now();
                client.send(GET);
                assert_eq!(client.answer().status, 200);
                start.elapsed()
            });
            (waits.max().expect("some"), client)
        };
        // All connections stay until every client was answered, so none can have waited for an end.
        let clients: Vec<(Duration, Client)> = thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(burst)).collect();
            threads.into_iter().map(|client| client.join().expect("answers")).collect()
        });
        let slowest = clients.iter().map(|(slowest, _)| slowest).max().expect("some");
        let most = Duration::from_millis(500) + slack();
        assert!(*slowest < most, "one of {count} clients waited {slowest:?}");
    }
    watched.assert_unharmed();
}

#[test]
fn t7_hs10_clients_that_never_read_are_cut_at_the_stall_limit() {
    // Answers of 10 MB that nobody reads, 2 of them and as many as there may be connections: freed
    // 30 s later; others are answered meanwhile, where there is no room at once with 503.
    many_files();
    let rows = [("2", 2, "512"), ("all", 512, "512"), ("all of 2", 2, "2")];
    thread::scope(|scope| {
        for (name, count, connections) in rows {
            scope.spawn(move || {
                let watched = Watched::new(Server::routes(&[connections]));
                let request = b"GET /long?bytes=10000000 HTTP/1.1\r\nHost: localhost\r\n\r\n";
                let clients = hold(&watched, count, request);
                let start = Instant::now();
                let is_full = connections.parse() == Ok(count);
                if is_full {
                    let answer = watched.server.connect().answer();
                    assert_eq!(answer.status, 503, "{name}");
                    assert!(start.elapsed() < Duration::from_millis(500) + slack(), "{name}");
                } else {
                    watched.server.assert_alive();
                }
                wait_within(STALL + slack(), "all are cut", || {
                    watched.server.resources() == watched.before
                });
                // They stopped taking bytes a little before they were all seen to.
                assert!(start.elapsed() > STALL - Duration::from_secs(5), "{name}: too early");
                let said = watched.server.log();
                assert_eq!(said.matches("read too slowly").count(), count, "{name}");
                drop(clients);
                watched.assert_unharmed_called(name);
            });
        }
    });
}

#[test]
fn hs11_idle_connections_keep_nobody_from_being_answered() {
    // 400 connections that say nothing: health within a second; they leave, and nothing is left.
    many_files();
    let watched = Watched::new(Server::start(&[]));
    let clients = hold(&watched, 400, b"");
    watched.server.assert_alive();
    drop(clients);
    watched.assert_unharmed();
}

#[test]
fn hs11_past_the_budget_a_client_is_told_so_at_once() {
    // 8 connections are all: the next are told 503 with Retry-After and an end that is no reset,
    // also when their request, or 1 MiB of a body, was on its way.
    let watched = Watched::new(Server::start(&["--max-connections", "8"]));
    let mut held = hold(&watched, 8, b"");
    let long = [&b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"[..], &[0; MIB]];
    let rows = [("silent", vec![]), ("asks", GET.to_vec()), ("sends a body", long.concat())];
    for (name, request) in rows {
        for _ in 0..20 {
            let start = Instant::now();
            let mut client = watched.server.connect();
            client.send(&request);
            let answer = client.answer();
            assert!(start.elapsed() < Duration::from_millis(500) + slack(), "{name}");
            assert_eq!((answer.status, answer.closes()), (503, true), "{name}: {answer:?}");
            assert_eq!(answer.header("retry-after"), Some("1"), "{name}");
            client.assert_closed();
        }
    }
    // A place that is free again is given to the next.
    drop(held.pop());
    wait_until("there is room", || watched.server.ask(GET).status == 200);
    drop(held);
    watched.assert_unharmed();
}

#[test]
fn hs11_who_comes_right_after_one_has_left_is_served() {
    // One connection is all, and 400 clients come one after the other, each as soon as the one
    // before has left: they are served, but for a few where the machine is busy.
    let watched = Watched::new(Server::start(&["--max-connections", "1"]));
    let refused = (0..400).filter(|_| watched.server.ask(GET).status == 503).count();
    assert!(refused <= 20, "{refused} of 400 were refused");
    watched.assert_unharmed();
}

#[test]
fn hs11_clients_that_were_turned_away_cannot_hold_up_accepting() {
    // One connection is all. Eight more are turned away and send without end; as soon as the first
    // has left another is answered, while the eight still send.
    let watched = Watched::new(Server::start(&["--max-connections", "1"]));
    let first = hold(&watched, 1, b"");
    let mut others: Vec<Client> = (0..8).map(|_| watched.server.connect()).collect();
    others.iter_mut().for_each(|client| assert_eq!(client.answer().status, 503));
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        for other in &others {
            let (mut stream, sent) = (&other.stream, &sent);
            scope.spawn(move || {
                while let Ok(count) = stream.write(&[0; 256 << 10]) {
                    sent.fetch_add(count, Ordering::Relaxed);
                }
            });
        }
        // More than the sockets hold.
        wait_until("they send", || sent.load(Ordering::Relaxed) > 64 * MIB);
        let start = Instant::now();
        drop(first);
        wait_until("there is room", || watched.server.ask(GET).status == 200);
        let elapsed = start.elapsed();
        let before_end = sent.load(Ordering::Relaxed);
        wait_until("they still send", || sent.load(Ordering::Relaxed) > before_end);
        for other in &others {
            other.stream.shutdown(Shutdown::Both).expect("a connection");
        }
        assert!(elapsed < Duration::from_millis(500) + slack(), "it took {elapsed:?}");
    });
    drop(others);
    watched.assert_unharmed();
}

/// Sends `block` until there are `bytes`, or the server has had enough; what can be read then is
/// the refusal.
#[track_caller]
fn assert_refused(watched: &Watched, start: &[u8], block: &[u8], bytes: usize, status: u16) {
    let mut client = watched.server.connect();
    client.send(start);
    let block = block.repeat(MIB / block.len());
    let sent = client.send_until_refused(&block, bytes / block.len());
    watched.server.assert_alive();
    match client.try_status() {
        Some(answered) => assert_eq!(answered, status),
        None => assert!(sent < bytes, "all of it was taken and nothing answered"),
    }
}

/// So many connections that have each sent `bytes`, which the server has read.
fn hold(watched: &Watched, count: usize, bytes: &[u8]) -> Vec<Client> {
    let server = &watched.server;
    let clients: Vec<Client> = (0..count)
        .map(|_| {
            let mut client = Client::new(TcpStream::connect(server.address).expect("a connection"));
            client.send(bytes);
            client
        })
        .collect();
    wait_until("all is read", || unread_bytes(server) == 0);
    clients
}

/// Heads of exactly so many bytes, in the layouts that could cost most to keep.
fn heads(start: &str, more: &str, bytes: usize) -> [(&'static str, Vec<u8>); 3] {
    let head = |path: &str, headers: &str| {
        let lines = format!("Host: localhost\r\n{more}{headers}");
        format!("{start}{path} HTTP/1.1\r\n{lines}\r\n").into_bytes()
    };
    let room = bytes - head("", "").len();
    let line = |bytes: usize| format!("X: {}\r\n", "v".repeat(bytes - 5));
    let (each, more) = (room / 97, room % 97);
    [
        ("path", head(&format!("/{}", "p".repeat(room - 1)), "")),
        ("one header", head("", &line(room))),
        ("many headers", head("", &(line(each).repeat(96) + &line(each + more)))),
    ]
}

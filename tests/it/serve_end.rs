//! How `runcap serve` ends: on a signal, when nobody comes any more, and not because nobody reads
//! what it says.

use std::io::pipe;
use std::net::TcpStream;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::http::{Client, Server};
use crate::serve_front::{UnixServer, over_unix, request, serve, serve_at};
use crate::support::{Signal, after, assert_took, send, slack, stat, through, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// What every ending signal does alike, and its number.
const ENDING: [(Signal, i32); 4] =
    [(Signal::TERM, 15), (Signal::INT, 2), (Signal::QUIT, 3), (Signal::HUP, 1)];

#[test]
fn sd4_an_idle_server_ends_with_0_at_once() {
    for (signal, _) in ENDING {
        let mut server = deaf_to_nothing();
        let (status, elapsed) = end(&mut server, &[signal]);
        assert_eq!(status.code(), Some(0), "{signal:?}");
        assert_took(elapsed, Duration::ZERO);
        assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
    }
}

#[test]
fn sd4_idle_connections_are_closed_and_not_waited_for() {
    // One that was answered, one that never said anything: both see an orderly end.
    let mut server = Server::start(&[]);
    let (mut answered, mut silent) = (server.connect(), server.connect());
    answered.send(&request("GET /health", &[]));
    assert!(!answered.answer().closes());
    wait_until("both are accepted", || server.resources().1 == 4);
    let (status, elapsed) = end(&mut server, &[Signal::TERM]);
    assert_eq!(status.code(), Some(0));
    assert_took(elapsed, Duration::ZERO);
    answered.assert_closed();
    silent.assert_closed();
}

#[test]
fn sd4_a_request_under_way_is_answered_and_a_new_one_is_not_taken() {
    // TERM while a body is on its way: who connects now is refused, the body may still come, its
    // answer says that the connection ends, and the server ends with 0.
    let mut server = Server::routes(&[]);
    let mut client = server.connect();
    client.send(&request("POST /echo", &["Content-Length: 5", "Expect: 100-continue"]));
    assert_eq!(client.head().status, 100, "its handler reads");
    send(server.pid(), Signal::TERM);
    wait_until_closed(&mut server);
    client.send(b"hello");
    let answer = client.answer();
    assert_eq!((answer.status, answer.text(), answer.closes()), (200, "hello", true));
    client.assert_closed();
    assert_eq!(server.child.wait().expect("a child").code(), Some(0));
}

#[test]
fn sd4_a_head_under_way_is_answered_and_says_that_the_connection_ends() {
    // TERM within the head: whatever the answer, a route's or a refusal, it closes.
    for (start, rest, status) in [
        ("GET /health HTTP/1.1\r\nHost: loc", "alhost\r\n\r\n", 200),
        ("GET /nowhere HTTP/1.1\r\nHost: loc", "alhost\r\n\r\n", 404),
        ("GET /api/x HTTP/1.1\r\nHost: loc", "alhost\r\nOrigin: null\r\n\r\n", 403),
        ("GET /health HTTP/1.1\r\nHost: loc", "alhost\r\nx\r\n\r\n", 400),
    ] {
        let mut server = Server::start(&[]);
        let mut client = server.connect();
        client.send(start.as_bytes());
        wait_until_read(&server, &client);
        send(server.pid(), Signal::TERM);
        wait_until_closed(&mut server);
        client.send(rest.as_bytes());
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes()), (status, true), "{rest:?}");
        client.assert_closed();
        assert_eq!(server.child.wait().expect("a child").code(), Some(0), "{rest:?}");
    }
}

#[test]
fn sd4_a_request_that_was_not_accepted_yet_is_answered() {
    // Stopped, so that requests and signal wait for it together: what has come is answered.
    let mut server = Server::start(&[]);
    send(server.pid(), Signal::STOP);
    wait_until("it is stopped", || stat(server.pid()).is_some_and(|stat| stat.state == 'T'));
    let mut clients = [server.connect(), server.connect(), server.connect()];
    clients.iter_mut().for_each(|client| client.send(&request("GET /health", &[])));
    send(server.pid(), Signal::TERM);
    send(server.pid(), Signal::CONT);
    for client in &mut clients {
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes()), (200, true));
    }
    assert_eq!(server.child.wait().expect("a child").code(), Some(0));
}

#[test]
fn sd4_a_client_that_was_answered_does_not_hold_the_end_up() {
    // It was told 404 before its body, which it never sends; and it does not hang up either.
    let mut server = Server::start(&[]);
    let mut client = server.connect();
    client.send(&request("POST /api/x", &["Content-Length: 100"]));
    assert_eq!(client.answer().status, 404);
    let (status, elapsed) = end(&mut server, &[Signal::TERM]);
    assert_eq!(status.code(), Some(0), "everybody was answered");
    assert!(elapsed < SECOND + slack(), "{elapsed:?}");
}

#[test]
fn sd4_a_head_that_never_ends_is_waited_for_a_moment() {
    // Half a head is nobody's request: the server ends in order.
    let mut server = Server::start(&[]);
    let _client = half_a_head(&server);
    let (status, elapsed) = end(&mut server, &[Signal::TERM]);
    assert_eq!(status.code(), Some(0), "every request that had come was answered");
    assert!(elapsed < SECOND + slack(), "{elapsed:?}");
}

#[test]
fn sd4_a_body_that_never_comes_is_waited_for_at_most_five_seconds() {
    let mut server = Server::routes(&[]);
    let mut client = server.connect();
    client.send(&request("POST /echo", &["Content-Length: 5", "Expect: 100-continue"]));
    assert_eq!(client.head().status, 100, "its handler reads");
    let (status, elapsed) = end(&mut server, &[Signal::TERM]);
    assert_ne!(status.code(), Some(0), "it was not answered");
    assert!(elapsed < 5 * SECOND + slack(), "{elapsed:?}");
}

#[test]
fn sd4_a_second_signal_ends_it_at_once() {
    // With half a head under way, whatever the signals are: the code is that of the first.
    for (signal, number) in ENDING {
        let mut server = deaf_to_nothing();
        let _client = half_a_head(&server);
        send(server.pid(), signal);
        wait_until_closed(&mut server);
        let (status, elapsed) = end(&mut server, &[Signal::TERM]);
        assert_eq!(status.code(), Some(128 + number), "{signal:?}");
        assert_took(elapsed, Duration::ZERO);
    }
}

#[test]
fn sd4_a_signal_that_was_ignored_at_the_start_ends_nothing() {
    // As under nohup: HUP and INT come in the middle of a request, whose answer does not close.
    let mut server = Server::of(after("trap '' HUP INT", &serve(&["--listen", "127.0.0.1:0"])));
    let mut client = half_a_head(&server);
    send(server.pid(), Signal::HUP);
    send(server.pid(), Signal::INT);
    client.send(b"alhost\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (200, false));
    server.assert_alive();
    assert_eq!(end(&mut server, &[Signal::TERM]).0.code(), Some(0));
}

#[test]
fn idle_exit_ends_a_server_that_nobody_comes_to() {
    let start = Instant::now();
    let mut server = Server::start(&["--idle-exit", "1s"]);
    let listening = Instant::now();
    assert_eq!(server.child.wait().expect("a child").code(), Some(0));
    assert!(start.elapsed() >= SECOND);
    assert_took(listening.elapsed() + slack() / 2, SECOND);
}

#[test]
fn idle_exit_counts_from_the_end_of_the_last_connection() {
    // A connection is open for 1.7 s: the end comes a second after that, and not a second after
    // some moment at which the server happened to look.
    let mut server = Server::start(&["--idle-exit", "1s"]);
    let mut client = server.connect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1700) {
        client.send(&request("GET /health", &[]));
        assert_eq!(client.answer().status, 200, "open for longer than the time");
        std::thread::sleep(Duration::from_millis(100));
    }
    let closed = Instant::now();
    drop(client);
    assert_eq!(server.child.wait().expect("a child").code(), Some(0));
    assert_took(closed.elapsed(), SECOND);
}

#[test]
fn sd6_a_server_that_cannot_speak_still_serves() {
    // Its stderr is closed, full, a pipe that nobody holds, or one that is full and nobody reads.
    let (reader, broken) = pipe().expect("descriptors");
    drop(reader);
    let (_reader, stuck) = pipe().expect("descriptors");
    rustix::pipe::fcntl_setpipe_size(&stuck, 16 << 10).expect("a small pipe");
    let (_master, terminal) = terminal();
    let rows = [
        ("a terminal that nobody reads", ":", terminal.into()),
        ("closed", "exec 2>&-", Stdio::null()),
        ("full", "exec 2>/dev/full", Stdio::null()),
        ("broken", ":", broken.into()),
        ("not read", ":", stuck.into()),
    ];
    for (name, redirect, stderr) in rows {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let mut command = after(redirect, &serve_at(&path));
        command.stderr(stderr);
        let mut server = UnixServer::of(command, &path);
        let start = Instant::now();
        // More lines than the pipe holds.
        for _ in 0..600 {
            let answer = over_unix(&path, &request("GET /health", &["Connection: close"]));
            assert!(answer.starts_with("HTTP/1.1 200 "), "{name}: {answer}");
        }
        assert!(start.elapsed() < 5 * SECOND + slack(), "{name}: {:?}", start.elapsed());
        assert_eq!(server.stop(), Some(0), "{name}");
    }
}

/// A terminal whose other end nobody reads.
fn terminal() -> (std::os::fd::OwnedFd, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let path = std::path::Path::new(name.to_str().expect("text"));
    let slave = std::fs::File::options().read(true).write(true).open(path);
    (master, slave.expect("it can be opened"))
}

#[test]
fn sd6_what_was_not_logged_is_counted_when_somebody_reads_again() {
    const COUNT: usize = 7000;
    let (mut reader, stderr) = pipe().expect("descriptors");
    rustix::pipe::fcntl_setpipe_size(&stderr, 16 << 10).expect("a small pipe");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let mut command = serve_at(&path);
    command.stderr(stderr);
    let mut server = UnixServer::of(command, &path);
    let ask = || over_unix(&path, &request("GET /health", &["Connection: close"]));
    // More than the pipe and the log's own room hold.
    (0..COUNT).for_each(|_| assert!(ask().starts_with("HTTP/1.1 200 ")));
    let reading = std::thread::spawn(move || {
        let mut log = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut log).map(|_| log)
    });
    // One that comes now finds room in the end.
    ask();
    assert_eq!(server.stop(), Some(0));
    drop(server);
    let log = reading.join().expect("it ends").expect("lines");
    let log = String::from_utf8(log).expect("text");
    let dropped: usize = log
        .lines()
        .filter_map(|line| line.strip_prefix("runcap: ")?.split_once(" lines of the log were "))
        .map(|(count, _)| count.parse::<usize>().expect("a number"))
        .sum();
    let written = log.lines().filter(|line| line.contains(" GET /health 200 ")).count();
    assert!(dropped > 0, "{log}");
    assert_eq!(written + dropped, COUNT + 1, "every answer is a line or counted");
}

/// A server that ignores no signal, whatever the tests were started under: shells start what they
/// do not wait for with INT and QUIT ignored.
fn deaf_to_nothing() -> Server {
    let command = serve(&["--listen", "127.0.0.1:0"]);
    Server::of(through(&["env", "--default-signal"], &command))
}

/// Sends signals and waits: how the server ended, and how long that took.
fn end(server: &mut Server, signals: &[Signal]) -> (ExitStatus, Duration) {
    let start = Instant::now();
    signals.iter().for_each(|signal| send(server.pid(), *signal));
    let mut status = None;
    wait_until("the server ends", || {
        status = server.child.try_wait().expect("a child");
        status.is_some()
    });
    (status.expect("it has ended"), start.elapsed())
}

/// Waits until nobody is accepted any more, which is not yet the server's end.
fn wait_until_closed(server: &mut Server) {
    wait_until("nobody is accepted", || TcpStream::connect(server.address).is_err());
    assert_eq!(server.child.try_wait().expect("a child"), None, "it has not ended");
}

/// A client in the middle of a head that the server has begun to read.
fn half_a_head(server: &Server) -> Client {
    let mut client = server.connect();
    client.send(b"GET /health HTTP/1.1\r\nHost: loc");
    wait_until_read(server, &client);
    client
}

/// Waits until the server has read what the client sent (tcp(7): rx_queue of its socket is 0).
fn wait_until_read(server: &Server, client: &Client) {
    let port = |port: u16| format!(":{port:04X}");
    let own = port(client.stream.local_addr().expect("an address").port());
    let servers = port(server.address.port());
    wait_until("the server reads", || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc is mounted");
        let accepted = server.resources().1 >= 2;
        accepted
            && table.lines().any(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                fields[1].ends_with(&servers)
                    && fields[2].ends_with(&own)
                    && fields[4].ends_with(":00000000")
            })
    });
}

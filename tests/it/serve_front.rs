//! `runcap serve` as its user starts it: where it listens, what it refuses to begin with, and the
//! limits that it is given.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use runcap::wire::time::{Bare, parse_duration};

use crate::http::Server;
use crate::support::{
    Signal, Value, after, assert_took, installed, json, keys, not_here, runcap, send, through,
    wait_until,
};

#[test]
fn health_says_who_answers() {
    // GET /health: exactly these keys, and the two spellings of the uptime agree.
    let server = Server::start(&[]);
    let answer = server.ask(&request("GET /health", &[]));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let health: Value = serde_json::from_str(answer.text()).expect("JSON");
    assert_eq!(keys(&health), ["protocol", "service", "status", "uptime", "uptime_ms", "version"]);
    assert_eq!((&health["status"], &health["service"]), (&json!("ok"), &json!("PicoD")));
    assert_eq!(health["protocol"].as_u64(), Some(3));
    assert_eq!(health["version"], env!("CARGO_PKG_VERSION"));
    let uptime = health["uptime"].as_str().expect("text");
    let uptime = parse_duration(uptime, Bare::Refused).expect("a Go duration");
    assert_eq!(health["uptime_ms"].as_u64().map(u128::from), Some(uptime.as_millis()));
}

#[test]
fn head_of_health_is_that_of_get_without_the_body() {
    // HEAD and at once GET on one connection: the second answer begins where the first head ends.
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.send(&[request("HEAD /health", &[]), request("GET /health", &[])].concat());
    let (head, get) = (client.head(), client.answer());
    assert_eq!((head.status, get.status), (200, 200));
    let length: usize = head.header("content-length").expect("as of GET").parse().expect("digits");
    assert!(length.abs_diff(get.body.len()) < 20, "{length} for {}", get.body.len());
    assert_eq!(head.header("content-type"), get.header("content-type"));
}

#[test]
fn an_address_in_use_is_refused_and_named() {
    // Somebody listens: exit 125 and one line that names the address. The default is one of them.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it has one").to_string();
    // Where another program has that port, it is taken all the same.
    let _taken_default = TcpListener::bind("127.0.0.1:8080");
    for (name, args, address) in
        [("given", &["--listen", &address][..], &*address), ("default", &[], "127.0.0.1:8080")]
    {
        let message = refusal(serve(args));
        let expected = format!("runcap: cannot listen on {address}: Address already in use");
        assert!(message.starts_with(&expected), "{name}: {message}");
        assert_eq!(message.lines().count(), 1, "{name}: {message}");
    }
}

#[test]
fn port_0_is_a_port_of_its_own_for_each_server() {
    let servers = [Server::start(&[]), Server::start(&[])];
    assert_ne!(servers[0].address, servers[1].address);
    servers.iter().for_each(Server::assert_alive);
}

#[test]
fn an_ipv6_address_is_served() {
    if TcpListener::bind("[::1]:0").is_err() {
        return not_here("no IPv6");
    }
    let server = Server::of(serve(&["--listen", "[::1]:0"]));
    assert!(server.address.is_ipv6(), "{}", server.address);
    server.assert_alive();
}

#[test]
fn a_bad_address_is_refused_with_a_hint() {
    let long = format!("unix:/tmp/{}", "a".repeat(120));
    let hint = "expected an address and a port such as 127.0.0.1:8080 or [::1]:8080, or unix:PATH";
    let rows = [
        ("empty", "", hint),
        ("port only", "8080", hint),
        ("no host", ":8080", hint),
        ("no port", "127.0.0.1", hint),
        ("a name", "localhost:8080", hint),
        ("port too large", "127.0.0.1:65536", hint),
        ("no brackets", "::1:x", hint),
        ("a URL", "http://127.0.0.1:8080", hint),
        ("white space", " 127.0.0.1:0", hint),
        ("negative port", "127.0.0.1:-1", hint),
        ("no path", "unix:", "expected a path after 'unix:'"),
        ("path too long", &long, "cannot listen on unix:/tmp/aaa"),
        ("no such directory", "unix:/nonexistent/x", "No such file or directory"),
        ("not of this machine", "192.0.2.1:0", "cannot listen on 192.0.2.1:0"),
    ];
    for (name, address, expected) in rows {
        let message = refusal(serve(&["--no-auth", &format!("--listen={address}")]));
        assert!(message.contains(expected), "{name}: {message}");
    }
}

#[test]
fn a_unix_socket_is_its_owners_whatever_the_umask() {
    // umask 0 would make it everybody's, umask 0777 nobody's: it is 0600 with both, answers, and
    // looks at no Host. At the end it is gone.
    for umask in ["0", "0777"] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let mut command = after(&format!("umask {umask}"), &serve_at(&path));
        command.stderr(Stdio::null());
        let mut server = UnixServer::of(command, &path);
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "umask {umask}");
        let answer = over_unix(&path, &request_to("evil.example", "GET /health"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(server.stop(), Some(0));
        assert!(!path.exists(), "umask {umask}: the socket is left behind");
    }
}

#[test]
fn a_stale_unix_socket_is_replaced() {
    // A server that was killed leaves its path; the next one takes it over.
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let mut killed = UnixServer::of(serve_at(&path), &path);
    killed.0.kill().expect("it runs");
    killed.0.wait().expect("a child");
    assert!(path.exists(), "nobody tidied up");
    let _next = UnixServer::of(serve_at(&path), &path);
    assert!(over_unix(&path, &request("GET /health", &[])).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_unix_path_in_use_is_refused_and_left_alone() {
    // A server that answers, one whose queue is full so that connecting to it would block, and a
    // file with something in it.
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let _server = UnixServer::of(serve_at(&at("server")), &at("server"));
    let full = UnixListener::bind(at("full")).expect("a socket");
    let _queue = fill_queue(&full, &at("full"));
    fs::write(at("file"), "precious").expect("a file");
    let rows = [
        ("server", "is in use by another server"),
        ("full", "is in use by another server"),
        ("file", "is there and is no socket: name another path or remove it"),
    ];
    for (name, expected) in rows {
        let message = refusal(serve_at(&at(name)));
        assert!(message.contains(expected), "{name}: {message}");
        assert!(message.contains(&format!("{}", at(name).display())), "{name}: {message}");
    }
    assert!(over_unix(&at("server"), &request("GET /health", &[])).starts_with("HTTP/1.1 200 "));
    assert_eq!(fs::read_to_string(at("file")).expect("a file"), "precious");
    assert!(at("full").exists());
}

#[test]
fn a_unix_path_that_somebody_replaced_is_not_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let mut server = UnixServer::of(serve_at(&path), &path);
    fs::remove_file(&path).expect("it is there");
    let _other = UnixListener::bind(&path).expect("a socket");
    assert_eq!(server.stop(), Some(0));
    assert!(UnixStream::connect(&path).is_ok(), "the other's socket was removed");
}

#[test]
fn sd5_no_descriptor_outlives_an_exec() {
    // Listener, accepted connections and one that the caller left open: every descriptor above 2
    // is closed on exec.
    let server = Server::of(after("exec 9</dev/null", &serve(&["--listen", "127.0.0.1:0"])));
    let mut clients = [server.connect(), server.connect()];
    clients.iter_mut().for_each(|client| {
        client.send(&request("GET /health", &[]));
        assert_eq!(client.answer().status, 200);
    });
    let infos = fs::read_dir(format!("/proc/{}/fdinfo", server.pid())).expect("root sees them");
    let mut seen = Vec::new();
    for info in infos {
        let path = info.expect("an entry").path();
        let fd: u32 = path.file_name().and_then(|fd| fd.to_str()?.parse().ok()).expect("digits");
        let text = fs::read_to_string(&path).expect("it is open");
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
        let flags = u32::from_str_radix(flags.trim(), 8).expect("octal");
        assert!(fd <= 2 || flags & 0o2_000_000 != 0, "{fd} is inherited: {flags:o}");
        seen.push(fd);
    }
    assert!(seen.contains(&9), "the caller's is still there: {seen:?}");
    assert!(seen.len() >= 3 + 1 + 1 + 2, "listener and two connections: {seen:?}");
}

#[test]
fn sd5_the_same_port_can_be_had_again_at_once() {
    // A connection that the server closed first is in TIME_WAIT, another one was cut by its end,
    // and the next server listens at the same port without a wait.
    let mut server = Server::start(&[]);
    let address = server.address;
    let mut closed = server.connect();
    closed.send(&request("GET /health", &["Connection: close"]));
    assert!(closed.answer().closes());
    closed.assert_closed();
    let mut kept = server.connect();
    kept.send(&request("GET /health", &[]));
    assert_eq!(kept.answer().status, 200);
    assert_eq!(server.stop().code(), Some(0));
    drop(closed);
    wait_until("a connection lingers in TIME_WAIT", || has_time_wait(address));
    let next = Server::of(serve(&["--listen", &address.to_string()]));
    assert!(has_time_wait(address), "it was there all the time");
    next.assert_alive();
}

#[test]
fn beyond_loopback_a_token_is_asked_for() {
    // Without one: 125 and the way out. With one, or told that it is meant so, it serves.
    for address in ["0.0.0.0:0", "[::]:0"] {
        if address.starts_with('[') && TcpListener::bind(address).is_err() {
            not_here("no IPv6");
            continue;
        }
        let message = refusal(serve(&["--listen", address]));
        let way_out = "give clients a token (--token-file or RUNCAP_TOKEN), or say --no-auth";
        assert!(message.contains(way_out), "{message}");
        let open = Server::of(serve(&["--listen", address, "--no-auth"]));
        assert_eq!(open.ask(&request("GET /api/x", &[])).status, 404);
        let mut guarded = serve(&["--listen", address]);
        guarded.env("RUNCAP_TOKEN", "s3cret");
        let guarded = Server::of(guarded);
        assert_eq!(guarded.ask(&request("GET /api/x", &[])).status, 401);
    }
}

#[test]
fn connections_past_the_limit_get_503() {
    // --max-connections 2: the third is told so in a whole answer, and gets in once another left.
    let server = Server::start(&["--max-connections", "2"]);
    let mut clients = [server.connect(), server.connect()];
    for client in &mut clients {
        client.send(&request("GET /health", &[]));
        assert_eq!(client.answer().status, 200);
    }
    let mut third = server.connect();
    let answer = third.answer();
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    let body: Value = serde_json::from_str(answer.text()).expect("JSON");
    assert_eq!(body, json!({ "error": "no room for another connection", "code": 503 }));
    assert!(answer.closes());
    third.assert_closed();
    let [first, mut second] = clients;
    drop(first);
    wait_until("a place is free", || server.ask(&request("GET /health", &[])).status == 200);
    second.send(&request("GET /health", &[]));
    assert_eq!(second.answer().status, 200);
}

#[test]
fn open_files_lower_commands_and_connections() {
    // RLIMIT_NOFILE to commands and connections, as DESIGN's table has it; the number of
    // connections that are then served is counted.
    if !installed("prlimit") {
        return;
    }
    let limited = |files: u32, args: &[&str]| {
        let command = serve(&[&["--listen", "127.0.0.1:0"], args].concat());
        Server::of(through(&["prlimit", &format!("--nofile={files}:{files}")], &command))
    };
    let rows = [
        (140, 18, "18 commands and 18 connections"),
        (1024, 352, "128 commands and 352 connections"),
    ];
    for (files, connections, expected) in rows {
        let server = limited(files, &[]);
        let expected = format!("runcap: {files} open files (ulimit -n) carry {expected} at once\n");
        assert!(server.log().starts_with(&expected), "{}", server.log());
        let mut held: Vec<_> = (0..connections).map(|_| server.connect()).collect();
        for client in &mut held {
            client.send(&request("GET /health", &[]));
            assert_eq!(client.answer().status, 200, "of {files} files");
        }
        assert_eq!(server.connect().answer().status, 503, "one more, of {files} files");
    }
    let enough = limited(4096, &[]);
    assert_eq!(enough.log().lines().count(), 1, "nothing to say: {}", enough.log());
    let few = limited(140, &["--max-commands", "1", "--max-connections", "1"]);
    assert_eq!(few.log().lines().count(), 1, "nothing to say: {}", few.log());
}

#[test]
fn keep_alive_says_how_long_a_connection_may_lie_idle() {
    // --keep-alive 1s: closed in an orderly way a second after the answer, and not before.
    let server = Server::start(&["--keep-alive", "1s"]);
    let mut client = server.connect();
    client.send(&request("GET /health", &[]));
    let sent = Instant::now();
    assert!(!client.answer().closes());
    let answered = Instant::now();
    client.assert_closed();
    assert!(sent.elapsed() >= Duration::from_secs(1), "after {:?}", sent.elapsed());
    assert_took(answered.elapsed() + Duration::from_millis(100), Duration::from_secs(1));
}

#[test]
fn times_without_end_are_taken() {
    // Longer than any clock runs: no panic, no overflow, it serves.
    let server = Server::start(&["--keep-alive", "2000000h", "--idle-exit", "2000000h"]);
    let mut client = server.connect();
    for _ in 0..2 {
        client.send(&request("GET /health", &[]));
        assert_eq!(client.answer().status, 200);
    }
}

#[test]
fn a_limit_that_is_none_is_refused() {
    // Nothing, zero, below zero, and no number: exit 125, and the message names flag and value.
    let counts = ["", "0", "-1", "x", "1.5", "18446744073709551616"];
    let sizes = ["", "0", "-1", "x", "1MB", "1.5", "99999999999999999999"];
    let times = ["", "0", "0s", "-1s", "x", "1e3s", "1 s", "9999999999999h"];
    let flags: [(&str, &[&str]); 6] = [
        ("--max-connections", &counts),
        ("--max-commands", &counts),
        ("--max-body-size", &sizes),
        ("--keep-alive", &times),
        ("--idle-exit", &times),
        ("--log", &["", "Text", "none", "json,text"]),
    ];
    for (flag, values) in flags {
        for value in values {
            let message = refusal(serve(&["--listen=127.0.0.1:0", &format!("{flag}={value}")]));
            assert!(message.contains(flag), "{flag}={value}: {message}");
            assert!(message.contains(&format!("'{value}'")), "{flag}={value}: {message}");
        }
    }
}

/// `runcap serve ARGS`, not yet started, without a token of the caller's.
pub fn serve(args: &[&str]) -> Command {
    let mut command = runcap();
    command.arg("serve").args(args).env_remove("RUNCAP_TOKEN");
    command
}

/// `runcap serve` on a unix socket; what it says is nobody's business.
pub fn serve_at(path: &Path) -> Command {
    let mut command = serve(&["--listen", &format!("unix:{}", path.display())]);
    command.stderr(Stdio::null());
    command
}

/// A request without a body, to localhost.
pub fn request(line: &str, headers: &[&str]) -> Vec<u8> {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").into_bytes()
}

/// A request that names `host`.
pub fn request_to(host: &str, line: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

/// What a command that must not begin to serve says on stderr; it ends with 125.
#[track_caller]
pub fn refusal(mut command: Command) -> String {
    let (file, path) = tempfile::NamedTempFile::new().expect("a file").into_parts();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    let mut process = UnixServer(command.spawn().expect("the program starts"));
    let mut status = None;
    wait_until("the program ends", || {
        status = process.0.try_wait().expect("a child");
        status.is_some()
    });
    let message = fs::read_to_string(&path).expect("the file is there");
    assert_eq!(status.and_then(|status| status.code()), Some(125), "{message}");
    message
}

/// A process, mostly a server on a unix socket, that is killed when it is dropped.
pub struct UnixServer(pub Child);

impl UnixServer {
    /// Waits until somebody listens at `path`.
    pub fn of(mut command: Command, path: &Path) -> UnixServer {
        let mut server = UnixServer(command.spawn().expect("the program starts"));
        wait_until("the server listens", || {
            assert_eq!(server.0.try_wait().expect("a child"), None, "it has ended");
            UnixStream::connect(path).is_ok()
        });
        server
    }

    /// Sends TERM; the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        send(self.0.id(), Signal::TERM);
        self.0.wait().expect("a child").code()
    }
}

impl Drop for UnixServer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The answer to one request over a unix socket, up to the connection's end.
pub fn over_unix(path: &Path, request: &[u8]) -> String {
    let stream = UnixStream::connect(path).expect("the server accepts");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    std::io::Write::write_all(&mut &stream, request).expect("the server reads");
    stream.shutdown(std::net::Shutdown::Write).expect("a connection");
    std::io::read_to_string(&stream).expect("the server answers")
}

/// Connections that wait to be accepted, as many as the queue of `listener` takes.
fn fill_queue(listener: &UnixListener, path: &Path) -> Vec<rustix::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    rustix::net::listen(listener, 0).expect("a shorter queue");
    let address = SocketAddrUnix::new(path).expect("a short path");
    let mut queue = Vec::new();
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.expect("a socket");
        match rustix::net::connect(&socket, &address) {
            Ok(()) => queue.push(socket),
            Err(rustix::io::Errno::AGAIN) => return queue,
            Err(error) => panic!("a queue takes connections until it is full: {error}"),
        }
    }
}

/// Whether the kernel remembers a closed connection of that local address (tcp(7), state 06).
fn has_time_wait(address: SocketAddr) -> bool {
    let port = format!(":{:04X}", address.port());
    fs::read_to_string("/proc/net/tcp").expect("/proc is mounted").lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| local.ends_with(&port));
        local && fields.nth(1) == Some("06")
    })
}

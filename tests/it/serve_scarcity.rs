//! A server that is out of something (descriptors, threads, room for its log), and clients that
//! leave in the middle: it says so, and goes on as soon as it can.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::http::{Client, Server, Watched};
use crate::support::{
    after, all_processes, children, installed, not_here, runcap, stat, through, wait_until,
};

const GET: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn k3_k4_out_of_descriptors_the_server_begins_with_an_error_or_works() {
    // nofile of 5 to 40, 64 and 65, and more connections than that: exit code 125 and a line that
    // names the cause, or a server that answers once they have left. Never a panic.
    if !installed("prlimit") {
        return;
    }
    let mut started = 0;
    for files in (5..=40).chain([64, 65]) {
        let server = match Server::try_of(limited_to(files)) {
            Ok(server) => server,
            Err((status, said)) => {
                assert_eq!(status.code(), Some(125), "{files}: {said}");
                assert!(said.contains("(os error 24)"), "{files}: {said}");
                assert!(files < 20, "{files} are enough to begin: {said}");
                continue;
            }
        };
        started += 1;
        let clients = connections(&server, 100);
        wait_until("some are told", || server.log().contains(" 503 "));
        drop(clients);
        wait_until("it works again", || asks(&server) == Some(200));
        assert!(!server.log().contains("panicked"), "{files}: {}", server.log());
    }
    assert!(started >= 23, "{started} started");
}

#[test]
fn rx2_out_of_descriptors_accepting_rests() {
    // nofile 32 and 16, 64 idle connections: under 10 % of a processor meanwhile; they leave, and
    // it answers. With 16 it is out of descriptors and says so once.
    if !installed("prlimit") {
        return;
    }
    thread::scope(|scope| {
        for files in [32, 16] {
            scope.spawn(move || {
                let server = Server::of(limited_to(files));
                let clients = connections(&server, 64);
                let complaint = "connections cannot be accepted now: ";
                wait_until("it is out of something", || {
                    server.log().contains(if files == 16 { complaint } else { " 503 " })
                });
                let ticks = || stat(server.pid()).expect("it lives").cpu_ticks;
                let before = ticks();
                // The time over which its share is measured.
                thread::sleep(Duration::from_secs(2));
                let used = ticks() - before;
                assert!(used < 20, "{files}: {used} hundredths of a second in two");
                drop(clients);
                wait_until("it works again", || asks(&server) == Some(200));
                let complaints = server.log().matches(complaint).count();
                assert!(complaints <= 20, "{complaints}: {}", server.log());
            });
        }
    });
}

#[test]
fn k5_rx1_out_of_threads_the_server_answers_503_and_lives() {
    // A user who may have 20 threads, 50 clients that ask: the first are served, the others get 503
    // at once; when they have left, all is as before.
    if !rustix::process::geteuid().is_root() {
        return not_here("only root becomes another user");
    }
    if !installed("setpriv") || !installed("prlimit") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("runcap");
    // Another process writes it: see support::executable.
    let mut copy = Command::new("sh");
    copy.args(["-c", r#"chmod 755 "${2%/*}" && cp "$1" "$2" && chmod 755 "$2""#, "sh"]);
    copy.arg(env!("CARGO_BIN_EXE_runcap")).arg(&program);
    assert!(copy.status().expect("a shell").success());
    let mut serve = Command::new(&program);
    serve.args(["serve", "--listen", "127.0.0.1:0"]);
    // A user that has no other process.
    let user = (60_000..).find(|user| !has_processes(*user)).expect("one of them").to_string();
    let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
    let as_user = ["setpriv", &user, &group, "--clear-groups", "prlimit", "--nproc=20"];
    let watched = Watched::new(Server::of(through(&as_user, &serve)));
    let mut clients = connections(&watched.server, 50);
    let mut statuses = Vec::new();
    for client in &mut clients {
        // Who is turned away may have been closed already.
        let _ = client.stream.write(GET);
        statuses.push(client.answer().status);
    }
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    // Two threads are the server's own.
    assert_eq!((count(200), count(503)), (18, 32), "{statuses:?}");
    assert_eq!(watched.server.ask(GET).status, 503);
    drop(clients);
    wait_until("it works again", || asks(&watched.server) == Some(200));
    watched.assert_unharmed();
    assert!(!watched.server.log().contains("panicked"), "{}", watched.server.log());
}

#[test]
fn k7_clients_that_ask_and_reset_hurt_nobody() {
    // 300 times a whole request and a reset at once: no panic, nothing left.
    let watched = Watched::new(Server::start(&[]));
    for _ in 0..300 {
        let mut client = watched.server.connect();
        client.send(GET);
        client.reset();
    }
    watched.assert_unharmed();
    assert!(!watched.server.log().contains("panicked"), "{}", watched.server.log());
}

#[test]
fn k8_connections_that_are_reset_before_they_are_accepted_hurt_nobody() {
    // While the server is stopped, 500 connect and reset; and 500 more while it runs.
    let watched = Watched::new(Server::start(&[]));
    crate::support::send(watched.server.pid(), crate::support::Signal::STOP);
    (0..500).for_each(|_| watched.server.connect().reset());
    crate::support::send(watched.server.pid(), crate::support::Signal::CONT);
    (0..500).for_each(|_| watched.server.connect().reset());
    watched.assert_unharmed();
}

#[test]
fn hs11_ten_thousand_connections_dropped_in_every_state_leave_nothing() {
    // Each of these, then FIN or RST, 10,000 in all: descriptors and threads are as before.
    let states: [(&str, &[u8], usize); 8] = [
        ("nothing sent", b"", 0),
        ("half a request line", b"GET /hea", 0),
        ("half a head", b"GET /health HTTP/1.1\r\nHost: loc", 0),
        ("half a body", b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345", 0),
        (
            "half a chunk",
            b"POST /half HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n1",
            0,
        ),
        ("answer half read", b"GET /big?bytes=200000 HTTP/1.1\r\nHost: x\r\n\r\n", 1000),
        ("live answer half read", LIVE, 1000),
        ("pipelined", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHo", 20),
    ];
    let watched = Watched::new(Server::routes(&[]));
    thread::scope(|scope| {
        for part in states.chunks(4) {
            let watched = &watched;
            scope.spawn(move || {
                for (index, (name, sent, read)) in part.iter().cycle().take(5000).enumerate() {
                    let mut client = watched.server.connect();
                    let gone = || panic!("{name}: the server is gone");
                    client.stream.write_all(sent).unwrap_or_else(|_| gone());
                    client.stream.read_exact(&mut vec![0; *read]).unwrap_or_else(|_| gone());
                    if index / 4 % 2 == 0 {
                        client.reset();
                    }
                }
            });
        }
    });
    watched.assert_unharmed_called("10,000 connections");
}

const LIVE: &[u8] = b"GET /live?events=100&bytes=2000&pause_ms=0 HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn rx4_children_that_the_server_never_started_are_reaped() {
    // A process that becomes the server has a child; that child leaves an orphan: no zombie stays.
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let server = Server::of(after(&format!("{{ ({wait}; sleep 0.05 &) & }}"), &serve()));
    assert_eq!(children(server.pid()).len(), 1);
    std::fs::write(&go, b"").expect("a file");
    wait_until("all are reaped", || children(server.pid()).is_empty());
    server.assert_alive();
}

#[test]
fn rx5_a_log_that_may_not_grow_kills_no_server() {
    // ulimit -f 1, the log in a file: SIGXFSZ at the first line that does not fit, 100 answers.
    let server = Server::of(after("ulimit -f 1", &serve()));
    let mut client = server.connect();
    for _ in 0..100 {
        client.send(GET);
        assert_eq!(client.answer().status, 200);
    }
    let log = server.log();
    assert!((300..=1024).contains(&log.len()), "it was cut at the limit: {} bytes", log.len());
}

#[test]
fn ls_a_log_that_nobody_reads_holds_no_answer_up() {
    // stderr is a pipe that nobody reads while 3,000 requests are answered; when somebody reads
    // again, the log says how many lines are missing, exactly. And a reader that is gone is none.
    const COUNT: usize = 7000;
    let (reader, writer) = std::io::pipe().expect("descriptors");
    let mut command = serve();
    let child = command.stdin(Stdio::null()).stderr(writer).spawn().expect("the program starts");
    // Its end of the pipe is here too.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut said = String::new();
    reader.read_line(&mut said).expect("text");
    let address = said.trim_end().split("http://").nth(1).expect("where it listens").parse();
    let server = Server::at(child, address.expect("an address"));
    let mut client = server.connect();
    let mut ask = || {
        client.send(GET);
        assert_eq!(client.answer().status, 200);
    };
    (0..COUNT).for_each(|_| ask());

    let (sender, lines) = mpsc::channel();
    let read_on = move || {
        let mut lines = reader.lines().map_while(Result::ok);
        while lines.next().is_some_and(|line| sender.send(line).is_ok()) {}
    };
    let reading = thread::spawn(read_on);
    let next = || lines.recv_timeout(Duration::from_secs(10)).expect("a line");
    // What was written before stands in the pipe; as soon as there is room the next line comes.
    assert!(next().contains("GET /health 200"));
    ask();
    let mut kept = 1;
    let note = loop {
        match next() {
            line if line.starts_with("runcap: ") => break line,
            line => assert!(line.contains("GET /health 200"), "{line}"),
        }
        kept += 1;
    };
    let number = note.strip_prefix("runcap: ").and_then(|note| note.split(' ').next());
    let dropped: usize = number.and_then(|number| number.parse().ok()).expect("a number");
    assert_eq!(note, format!("runcap: {dropped} lines of the log were dropped: nobody read"));
    assert!(dropped > 0, "the pipe took all");
    // A line comes after its answer, so the last of them may have found room already.
    for _ in 0..COUNT + 1 - kept - dropped {
        assert!(next().contains("GET /health 200"));
    }
    // The next line finds nobody who takes it, and then there is no reader at all.
    drop(lines);
    wait_until("the reader is gone", || {
        ask();
        reading.is_finished()
    });
    (0..10).for_each(|_| ask());
}

/// `runcap serve` on a free port, not yet started.
fn serve() -> Command {
    let mut command = runcap();
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    command
}

/// `runcap serve` that may have so many files open.
fn limited_to(files: u32) -> Command {
    through(&["prlimit", &format!("--nofile={files}:{files}")], &serve())
}

/// Connections of which the server has perhaps accepted some.
fn connections(server: &Server, count: usize) -> Vec<Client> {
    let connect = || TcpStream::connect(server.address).expect("the kernel accepts");
    (0..count).map(|_| Client::new(connect())).collect()
}

/// The status of an answer on a connection of its own, if there is one within a second.
fn asks(server: &Server) -> Option<u16> {
    let mut client = server.connect();
    client.stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket");
    client.send(GET);
    client.try_status()
}

/// Whether any process belongs to that user.
fn has_processes(user: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    all_processes().into_iter().any(|pid| {
        std::fs::metadata(format!("/proc/{pid}/stat")).is_ok_and(|found| found.uid() == user)
    })
}

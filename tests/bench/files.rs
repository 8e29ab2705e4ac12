//! Files and lists of the sandbox dialect.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::report::{Figure, Goal};
use crate::serve::{Server, answer_length};
use crate::tools::{alternate, helper, ms, runcap};

/// A file that is moved in ranges, and a range of it.
const MOVED_BYTES: usize = 1 << 30;
const RANGE_BYTES: usize = 1 << 20;

/// Rounds of moving it, each some tenths of a second.
const MOVES: usize = 7;

/// Which way a file goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Down,
    Up,
}

/// 1 GiB in ranges of 1 MiB over kept connections, as sandbox clients move files, against a loop
/// that does the same with pread and pwrite of 64 KiB; and what it takes in memory.
pub(crate) fn ranges(way: Way, connections: usize) -> Vec<Figure> {
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let home = home.expect("a directory");
    let file = |name: &str| home.path().join(name).into_os_string().into_string().expect("text");
    // Both read the same file, and each writes its own.
    let raw_name = if way == Way::Down { "ours" } else { "raw" };
    if way == Way::Down {
        std::fs::write(file("ours"), vec![b'x'; MOVED_BYTES]).expect("room for it");
    }
    let mut serve = Command::new(runcap());
    serve.args(["serve", "--max-file-size", "2G", "--workspace", &file(""), "--listen"]);
    let ours = Server::start(&mut serve);
    let raw = Server::start(Command::new(helper()).args(["raw-ranges", &file(raw_name)]));
    let before = ours.peak_rss_bytes();
    let move_new = |server: &Server, name: &str| {
        if way == Way::Up {
            // What an old file's pages cost depends on where they happen to lie.
            let _ = fs::remove_file(file(name));
        }
        move_file(server, way, connections)
    };
    let times = alternate(MOVES, || move_new(&ours, "ours"), || move_new(&raw, "raw"));
    let grown = ours.peak_rss_bytes() - before;
    // As a goal 0.9 of the bytes a second is 1 / 0.9 of the time.
    let goal = Goal::Ratio(1.0 / 0.9);
    vec![
        Figure::pairs("1 GiB in 1 MiB ranges, ms", "raw std::net loop", goal, times),
        Figure::alone("VmHWM growth, bytes", grown, Goal::Value(f64::from(16 << 20))),
    ]
}

/// Moves the whole file, each connection its share of the ranges; milliseconds.
fn move_file(server: &Server, way: Way, connections: usize) -> f64 {
    let begin = Barrier::new(connections + 1);
    thread::scope(|scope| {
        for connection in 0..connections {
            let begin = &begin;
            let mut stream = server.connect();
            scope.spawn(move || {
                let mut buffer = vec![b'x'; RANGE_BYTES + 4096];
                begin.wait();
                for number in (connection..MOVED_BYTES / RANGE_BYTES).step_by(connections) {
                    move_range(&mut stream, way, number * RANGE_BYTES, &mut buffer);
                }
                begin.wait();
            });
        }
        begin.wait();
        ms(|| {
            begin.wait();
        })
    })
}

fn move_range(stream: &mut TcpStream, way: Way, offset: usize, buffer: &mut [u8]) {
    let target = format!("path=ours&offset={offset}&length={RANGE_BYTES}");
    let host = "HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    let head = match way {
        Way::Down => format!("GET /v1/files/read?{target} {host}\r\n"),
        Way::Up => {
            format!("PUT /v1/files/write?{target} {host}Content-Length: {RANGE_BYTES}\r\n\r\n")
        }
    };
    stream.write_all(head.as_bytes()).expect("it reads");
    if way == Way::Up {
        stream.write_all(&buffer[..RANGE_BYTES]).expect("it reads");
    }
    let (mut have, mut length) = (0, None);
    while length.is_none_or(|length| have < length) {
        have += match stream.read(&mut buffer[have..]).expect("it answers") {
            0 => panic!("cut after {have} bytes"),
            count => count,
        };
        length = length.or_else(|| answer_length(&buffer[..have]));
    }
    assert!(buffer.starts_with(b"HTTP/1.1 200 "), "the range was moved");
    assert!(way == Way::Up || have > RANGE_BYTES, "it came whole");
}

/// Entries of the directory that is listed.
const LISTED: usize = 1_000_000;

/// Each of both takes seconds.
const LIST_ROUNDS: usize = 7;

/// How long the directory is left alone before it is listed, as most directories are.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// The most that a list may add to the server's memory.
const LIST_GOAL_BYTES: f64 = (16 << 20) as f64;

/// All pages of a directory of a million files over one connection, against what lists and orders
/// as much of each file.
pub(crate) fn list(limit: Option<usize>, goal: f64) -> Vec<Figure> {
    // In memory, where both are alike; a disk would be measured as well.
    let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let home = home.expect("a directory");
    let directory = home.path().join("many");
    fs::create_dir(&directory).expect("it is new");
    for number in 0..LISTED {
        fs::write(directory.join(format!("file-{number:06}")), "").expect("room");
    }
    thread::sleep(LEFT_ALONE);
    let server = Server::runcap_in(home.path());
    let before = server.peak_rss_bytes();
    let script = format!("ls -lU --time-style=+%s {} | sort > /dev/null", directory.display());
    let raw = alternate(
        LIST_ROUNDS,
        || ms(|| list_all(&server, limit)),
        || {
            let mut sort = Command::new("sh");
            let sort = sort.args(["-c", &script]).env("LC_ALL", "C");
            ms(|| assert!(sort.status().expect("sh starts").success()))
        },
    );
    let grown = server.peak_rss_bytes() - before;
    vec![
        Figure::pairs("1,000,000 entries, ms", "ls -lU | sort", Goal::Ratio(goal), raw),
        Figure::alone("VmHWM growth, bytes", grown, Goal::Value(LIST_GOAL_BYTES)),
    ]
}

fn list_all(server: &Server, limit: Option<usize>) {
    let mut stream = BufReader::with_capacity(256 << 10, server.connect());
    let (mut pages, mut after) = (0, String::new());
    let limit_text = limit.map_or(String::new(), |limit| format!("&limit={limit}"));
    loop {
        let query = format!("path=many{limit_text}&after={after}");
        let request = format!("GET /v1/files/list?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).expect("it reads");
        pages += 1;
        let end = end_of_page(&mut stream);
        let (_, next) = end.rsplit_once("\"next\":").expect("where the list goes on");
        match next.trim_end_matches('}') {
            "null" => break,
            next => next.trim_matches('"').clone_into(&mut after),
        }
    }
    assert_eq!(pages, LISTED.div_ceil(limit.unwrap_or(10_000)));
}

/// The last bytes of a chunked answer, which are text.
fn end_of_page(stream: &mut BufReader<TcpStream>) -> String {
    let (mut line, mut end, mut chunk) = (String::new(), Vec::new(), Vec::new());
    stream.read_line(&mut line).expect("it answers");
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).expect("a head");
    }
    loop {
        line.clear();
        stream.read_line(&mut line).expect("a chunk");
        let size = usize::from_str_radix(line.trim_end(), 16).expect("a size");
        chunk.resize(size + 2, 0);
        stream.read_exact(&mut chunk).expect("a chunk");
        if size == 0 {
            return String::from_utf8(end).expect("JSON is text");
        }
        end.extend_from_slice(&chunk[size.saturating_sub(200)..size]);
        end.drain(..end.len().saturating_sub(200));
    }
}

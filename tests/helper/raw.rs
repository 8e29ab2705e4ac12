//! The least that can be called an HTTP server: what runcap's is measured against.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;

/// Answers every head with 200 and so many bytes, a thread a connection, until it is killed. Each
/// write is of `piece` bytes at most.
pub(crate) fn serve(bytes: usize, piece: usize, address: &str) {
    let listener = TcpListener::bind(address).expect("the port is free");
    for stream in listener.incoming() {
        let stream = stream.expect("a connection");
        thread::spawn(move || answer_all(stream, bytes, piece));
    }
}

/// Runs a program for every connection and copies what it prints to the client, 64 KiB at a time,
/// until it is killed. What the client sends is not looked at.
pub(crate) fn serve_pipe(program: &str, args: &[String], address: &str) {
    let listener = TcpListener::bind(address).expect("the port is free");
    let mut buffer = vec![0; 64 << 10];
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        if stream.read(&mut buffer).expect("a request") == 0 {
            continue;
        }
        let mut command = Command::new(program);
        let mut child =
            command.args(args).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut pipe = child.stdout.take().expect("stdout is piped");
        loop {
            let count = pipe.read(&mut buffer).expect("a pipe");
            if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        child.wait().expect("a child");
    }
}

fn answer_all(mut stream: TcpStream, bytes: usize, piece: usize) {
    stream.set_nodelay(true).expect("a socket");
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + bytes, b'x');
    let mut buffer = [0; 4096];
    let mut have = 0;
    loop {
        match stream.read(&mut buffer[have..]) {
            Ok(0) | Err(_) => return,
            Ok(count) => have += count,
        }
        if buffer[..have].ends_with(b"\r\n\r\n") {
            have = 0;
            if answer.chunks(piece).any(|piece| stream.write_all(piece).is_err()) {
                return;
            }
        }
    }
}

/// Bytes of one read of a file or of a body.
const PIECE_BYTES: usize = 64 << 10;

/// Sends and takes ranges of the file at `path`, a thread a connection, until it is killed: GET and
/// PUT whose target ends in `&offset=N&length=N`.
pub(crate) fn serve_ranges(path: &str, address: &str) {
    let listener = TcpListener::bind(address).expect("the port is free");
    for stream in listener.incoming() {
        let stream = stream.expect("a connection");
        let path = path.to_owned();
        thread::spawn(move || move_ranges(stream, &path));
    }
}

/// Ends when the client does.
fn move_ranges(mut stream: TcpStream, path: &str) -> Option<()> {
    stream.set_nodelay(true).expect("a socket");
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("the file can be opened");
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let mut have = 0;
        let end = loop {
            let count = stream.read(&mut buffer[have..]).ok().filter(|count| *count > 0)?;
            have += count;
            if let Some(end) = buffer[..have].windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = std::str::from_utf8(&buffer[..end]).expect("heads are text");
        let (mut at, mut left) = (number_after(head, "offset="), number_after(head, "length="));
        if head.starts_with("GET") {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n").ok()?;
            while left > 0 {
                let count = file.read_at(&mut buffer, at).expect("it can be read") as u64;
                let count = count.min(left);
                stream.write_all(&buffer[..usize::try_from(count).expect("a few")]).ok()?;
                (at, left) = (at + count, left - count);
            }
            continue;
        }
        let mut piece = end..have;
        loop {
            file.write_all_at(&buffer[piece.clone()], at).expect("there is room");
            (at, left) = (at + piece.len() as u64, left - piece.len() as u64);
            if left == 0 {
                break;
            }
            piece = 0..stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").ok()?;
    }
}

fn number_after(head: &str, key: &str) -> u64 {
    let rest = head.split(key).nth(1).expect("it is asked with it");
    let digits = rest.split(|character: char| !character.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).expect("a number")
}

//! The least that can be called an HTTP server: what runcap's is measured against.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
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

//! A path that takes its time.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes under way in one direction of one connection: about the largest window that Linux gives a
/// connection by itself (tcp_rmem).
const WINDOW_BYTES: usize = 6 << 20;

const PIECE_BYTES: usize = 64 << 10;

/// Passes connections on to `target`, and every byte so many milliseconds late in each direction,
/// until it is killed.
pub(crate) fn delay(delay_ms: u64, target: &str, address: &str) {
    let listener = TcpListener::bind(address).expect("the port is free");
    let delay = Duration::from_millis(delay_ms);
    for stream in listener.incoming() {
        let client = stream.expect("a connection");
        let Ok(server) = TcpStream::connect(target) else { continue };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
        }
        let again = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        pass_on(again(&client), again(&server), delay);
        pass_on(server, client, delay);
    }
}

/// What is under way.
#[derive(Default)]
struct Pieces {
    /// When each is due; an empty one is the end.
    queue: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
}

#[derive(Default)]
struct Path {
    pieces: Mutex<Pieces>,
    changed: Condvar,
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let path = Arc::new(Path::default());
    let far = Arc::clone(&path);
    thread::spawn(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let count = from.read(&mut piece).unwrap_or(0);
            piece.truncate(count);
            let mut pieces = path.pieces.lock().expect("nobody panics");
            while pieces.bytes > WINDOW_BYTES {
                pieces = path.changed.wait(pieces).expect("nobody panics");
            }
            pieces.queue.push_back((Instant::now() + delay, piece));
            pieces.bytes += count;
            path.changed.notify_all();
            if count == 0 {
                return;
            }
        }
    });
    thread::spawn(move || {
        loop {
            let mut pieces = far.pieces.lock().expect("nobody panics");
            let (due, piece) = loop {
                match pieces.queue.pop_front() {
                    Some(piece) => break piece,
                    None => pieces = far.changed.wait(pieces).expect("nobody panics"),
                }
            };
            drop(pieces);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let is_over = piece.is_empty() || to.write_all(&piece).is_err();
            far.pieces.lock().expect("nobody panics").bytes -= piece.len();
            far.changed.notify_all();
            if is_over {
                // Whoever reads from the other side learns it from the next read.
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
    });
}

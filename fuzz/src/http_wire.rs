//! A connection's bytes over a real socket: which requests are answered, and how, must be what the
//! parsers say about the same bytes as a whole.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use runcap::serve::transport::{
    BodyRule, Entry, Head, Limits, Listener, Reply, Service, serve as serve_connections,
};
use runcap::wire::http::chunks::{Chunks, Step};
use runcap::wire::http::head::{Framing, Scan, parse_request};
use tiny_http::{Response, ResponseBox};

use super::pieces;

/// Longest body that the server takes; a fuzzer reaches it.
const BODY_MAX_BYTES: u64 = 1000;

/// One answer: its status and body, where that is what the service says.
type Due = (u16, Option<Vec<u8>>);

/// What is the next byte after this request?
pub fn serve(data: &[u8]) {
    let due = due(data);
    let mut stream = TcpStream::connect(server()).expect("the server accepts");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    stream.set_nodelay(true).expect("a socket");
    for piece in pieces(data) {
        // The server may have ended the connection already, which is its right after an error.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).expect("the server ends the connection in an orderly way");
    assert_eq!(answered(&answers), due, "{}", String::from_utf8_lossy(&answers));
}

/// The answers that `data` must get.
fn due(data: &[u8]) -> Vec<Due> {
    let (mut rest, mut due) = (data, Vec::new());
    loop {
        let end = match Scan::new().look(rest) {
            Ok(None) => return due,
            Ok(Some(end)) => end,
            Err(refused) => {
                due.push((refused.status, None));
                return due;
            }
        };
        let (head, after) = rest.split_at(end);
        let head = match parse_request(head) {
            Ok(head) => head,
            Err(refused) => {
                due.push((refused.status, None));
                return due;
            }
        };
        let (answer, taken) = match body(head.framing, after) {
            // The client has left in the middle of it.
            Body::Cut => return due,
            Body::Refused(status) => ((status, None), None),
            Body::Whole(body, taken) => ((200, Some(body)), Some(taken)),
        };
        let (status, body) = answer;
        // An answer to HEAD has no body to compare.
        due.push((status, body.filter(|_| head.method != "HEAD")));
        match taken {
            Some(taken) if !head.close => rest = &after[taken..],
            _ => return due,
        }
    }
}

enum Body {
    /// Its data, and the bytes that it took.
    Whole(Vec<u8>, usize),
    Cut,
    Refused(u16),
}

fn body(framing: Framing, after: &[u8]) -> Body {
    match framing {
        Framing::None => Body::Whole(vec![], 0),
        Framing::Length(length) if length > BODY_MAX_BYTES => Body::Refused(413),
        Framing::Length(length) => {
            let length = usize::try_from(length).expect("it was just looked at");
            match after.get(..length) {
                Some(body) => Body::Whole(body.to_vec(), length),
                None => Body::Cut,
            }
        }
        Framing::Chunked => chunked(after),
    }
}

fn chunked(after: &[u8]) -> Body {
    let (mut chunks, mut taken, mut data) = (Chunks::new(), 0, Vec::new());
    loop {
        match chunks.step(&after[taken..]) {
            Ok(Step::Framing(count)) => taken += count,
            Ok(Step::Data(count)) => {
                let room = usize::try_from(BODY_MAX_BYTES).expect("small") - data.len();
                if room == 0 {
                    return Body::Refused(413);
                }
                let count = count.min(room);
                data.extend_from_slice(&after[taken..taken + count]);
                chunks.took(count);
                taken += count;
            }
            Ok(Step::More) => return Body::Cut,
            Ok(Step::End) => return Body::Whole(data, taken),
            Err(_) => return Body::Refused(400),
        }
    }
}

/// The answers in what the server has sent, each framed to the byte.
fn answered(mut bytes: &[u8]) -> Vec<Due> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head") + 4;
        let (head, rest) = bytes.split_at(end);
        let head = std::str::from_utf8(head).expect("heads are text");
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        let status = status.and_then(|status| status.parse().ok()).expect("a status");
        let header = |name| head.lines().find_map(|line: &str| line.strip_prefix(name));
        // What an answer to HEAD has is said by a header of this service's own.
        let length = match header("Content-Length: ") {
            Some(_) if header("Without-Body: ").is_some() => 0,
            Some(length) => length.parse().expect("a number"),
            None => 0,
        };
        let (body, rest) = rest.split_at_checked(length).expect("a whole body");
        bytes = rest;
        // Whether a body that was sent at once is asked for depends on which came first.
        if status == 100 {
            continue;
        }
        let is_shown = status == 200 && header("Without-Body: ").is_none();
        answers.push((status, is_shown.then(|| body.to_vec())));
    }
    answers
}

/// The address of a server of this process.
fn server() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address"));
        let listener = listener.expect("a free port");
        let address = listener.address().expect("it is TCP");
        let limits =
            Limits { connections: 64, keep_alive: Duration::from_secs(75), idle_exit: None };
        thread::spawn(move || serve_connections(listener, limits, None, Arc::new(Echo)));
        address
    })
}

/// Sends bodies back.
struct Echo;

impl Service for Echo {
    fn admit(&self, _: &Head<'_>) -> Result<BodyRule, ResponseBox> {
        Ok(BodyRule { max_bytes: BODY_MAX_BYTES, chunked: true })
    }

    fn answer<'a>(&'a self, head: &'a Head<'a>, body: &mut dyn Read) -> Reply<'a> {
        let mut bytes = Vec::new();
        // A body that fails is answered by the server itself.
        let _ = body.read_to_end(&mut bytes);
        let response = Response::from_data(bytes);
        match head.method {
            tiny_http::Method::Head => {
                let mark = tiny_http::Header::from_bytes("Without-Body", "yes").expect("ASCII");
                response.with_header(mark).boxed().into()
            }
            _ => response.boxed().into(),
        }
    }

    fn refuse(&self, _: Option<&str>, status: u16, reason: &str) -> ResponseBox {
        Response::from_string(reason).with_status_code(status).boxed()
    }

    fn log(&self, _: &Entry<'_>) {}

    fn complain(&self, what: fmt::Arguments<'_>) {
        panic!("{what}");
    }
}

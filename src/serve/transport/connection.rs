//! One connection: its requests in order, one at a time, until nobody can be certain what its next
//! byte is.

use std::cell::OnceCell;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tiny_http::{Header, Method};

use crate::run::told_to_end;
use crate::wire::http::head::{Framing, Refused, RequestHead, Scan, Version, parse_request};

use super::accept::Shared;
use super::answer::{Answer, Sent, fault};
use super::body::{Body, Failure};
use super::input::{Input, READ_BYTES};
use super::places::{Place, Places};
use super::socket::Socket;
use super::{
    BodyRule, Entry, HEAD_TIME_MAX, Head, LARGE_HEADS_MAX, LINGER_AT_END_MAX, LINGER_MAX,
    LINGER_MAX_BYTES, Reply, SMALL_HEAD_MAX_BYTES, Service,
};

/// One connection, as the thread that accepts sees it too.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    /// It waits for the first byte of a request.
    is_idle: AtomicBool,
}

impl Connection {
    pub(super) fn new(socket: Socket) -> Connection {
        Connection { socket, is_idle: AtomicBool::new(false) }
    }

    /// Ends the wait for another request. The server must have been told to end before, so that a
    /// connection which is not idle yet will not be.
    pub(super) fn end_if_idle(&self) {
        if self.is_idle.load(Ordering::SeqCst) {
            self.socket.end_reading();
        }
    }
}

/// Reads from a client that was turned away before others get their turn.
const DRAINED_READS: usize = 16;

/// What came of waiting for a head.
enum Next<'a> {
    /// With its place, if it is a large one.
    Head(RequestHead, Option<Place<'a>>),
    Refused(Refused),
    /// The client has left, was silent, or the server ends.
    Over,
}

/// What becomes of a connection after an answer.
enum After {
    /// The next byte is the next request's.
    GoesOn,
    /// Nothing more is answered. Whether all that the client has sent was read.
    Close { is_drained: bool },
    /// As `Close`, and its orderly end would be a lie.
    Reset,
}

/// Answers the requests of one client.
pub(super) fn serve<S: Service>(connection: &Connection, shared: &Shared<S>) {
    let socket = &connection.socket;
    let mut input = Input::new(socket);
    for idle_max in [HEAD_TIME_MAX, shared.keep_alive] {
        if socket.set_idle_max(idle_max).is_err() {
            return;
        }
        loop {
            match carry_out_next(&mut input, connection, shared) {
                None => return,
                Some(After::GoesOn) if idle_max == shared.keep_alive => {}
                Some(After::GoesOn) => break,
                Some(After::Close { is_drained }) => return close(&input, is_drained),
                Some(After::Reset) => return socket.reset_when_closed(true),
            }
        }
    }
}

/// Waits for a request and answers it; `None` when none comes.
fn carry_out_next<S: Service>(
    input: &mut Input<'_>,
    connection: &Connection,
    shared: &Shared<S>,
) -> Option<After> {
    while input.unread().starts_with(b"\r\n") {
        input.consume(2);
    }
    if input.unread().is_empty() && !wait_for_request(input, connection) {
        return None;
    }
    let start = Instant::now();
    match read_head(input, start, &shared.large_heads) {
        Next::Over => None,
        Next::Refused(Refused { status, reason }) => {
            let service = &*shared.service;
            let answer = Answer::new(input.socket, true, false);
            let request = request_of(input.unread());
            let path = request.map(|(_, path)| path);
            let sent = answer.whole(service.refuse(path, status, &reason));
            service.log(&entry(request, start, &sent, Some(&reason)));
            Some(After::Close { is_drained: false })
        }
        Next::Head(head, _place) => Some(carry_out(input, head, start, shared)),
    }
}

/// Method and path of a request whose head is refused, as far as they can be read: the error has
/// the shape that its client expects.
fn request_of(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|byte| byte.is_ascii_control()).next()?;
    let mut words = str::from_utf8(line).ok()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let path = target.split('?').next().filter(|path| path.starts_with('/'))?;
    Some((method, path))
}

/// Waits for a request's first byte; false when none comes.
fn wait_for_request(input: &mut Input<'_>, connection: &Connection) -> bool {
    connection.is_idle.store(true, Ordering::SeqCst);
    // Told to end before this connection was idle: nobody will end its wait, and what has come
    // before is all that is answered.
    let came = loop {
        let read = if told_to_end().is_some() { Socket::read_now } else { Socket::read };
        if !matches!(input.fill(read), Ok(1..)) {
            break false;
        }
        // An empty line too many behind a request begins no new one (RFC 9112, section 2.2).
        while input.unread().starts_with(b"\r\n") {
            input.consume(2);
        }
        if !input.unread().is_empty() {
            break true;
        }
    };
    connection.is_idle.store(false, Ordering::SeqCst);
    came
}

/// Reads the head of a request whose first byte came at `start`.
fn read_head<'a>(input: &mut Input<'_>, start: Instant, large_heads: &'a Places) -> Next<'a> {
    let refused = |status, reason| Next::Refused(Refused { status, reason });
    let (mut scan, mut place) = (Scan::new(), None);
    loop {
        match scan.look(input.unread()) {
            Ok(Some(length)) => {
                let head = match parse_request(&input.unread()[..length]) {
                    Ok(head) => head,
                    Err(refused) => return Next::Refused(refused),
                };
                input.consume(length);
                return Next::Head(head, place);
            }
            Ok(None) => {}
            Err(refused) => return Next::Refused(refused),
        }
        if input.unread().len() >= SMALL_HEAD_MAX_BYTES && place.is_none() {
            place = large_heads.take(LARGE_HEADS_MAX);
            if place.is_none() {
                let most = SMALL_HEAD_MAX_BYTES;
                return refused(503, format!("no room for another head over {most} bytes"));
            }
        }
        let left = HEAD_TIME_MAX.saturating_sub(start.elapsed());
        // A server that ends waits a moment for the rest: half a head is nobody's request.
        let is_ending = told_to_end().is_some();
        match input.socket.wait_readable(left.min(LINGER_AT_END_MAX)) {
            Ok(true) => {}
            Ok(false) if is_ending => return Next::Over,
            Ok(false) if left.is_zero() => {
                return refused(408, format!("the head took longer than {HEAD_TIME_MAX:?}"));
            }
            Ok(false) => {}
            Err(_) => return Next::Over,
        }
        match input.fill(Socket::read_now) {
            Ok(1..) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Half a head of a client that left is nobody's request.
            Ok(_) | Err(_) => return Next::Over,
        }
    }
}

/// Answers one request.
fn carry_out<S: Service>(
    input: &mut Input<'_>,
    request: RequestHead,
    start: Instant,
    shared: &Shared<S>,
) -> After {
    let (service, socket) = (&*shared.service, input.socket);
    let (version, framing) = (request.version, request.framing);
    let expects_continue = request.expects_continue;
    // A server that ends takes no further request from anybody.
    let close = request.close || told_to_end().is_some();
    let head = head(request, socket);
    let log = |sent: &Sent, reason: Option<&str>| {
        let request = Some((head.method.as_str(), head.target.path.as_str()));
        let note = head.note.get().map(String::as_str);
        service.log(&Entry { note, ..entry(request, start, sent, reason) });
    };
    let refuse = |status, reason: &str| service.refuse(Some(&head.target.path), status, reason);
    let is_head = head.method == Method::Head;
    let rule = service.admit(&head).and_then(|rule| {
        check(rule, framing).map(|()| rule).map_err(|(status, reason)| refuse(status, &reason))
    });
    let rule = match rule {
        Ok(rule) => rule,
        Err(answer) => {
            let is_drained = matches!(framing, Framing::None | Framing::Length(0));
            let close = close || !is_drained;
            let sent = Answer::new(socket, close, is_head).whole(answer);
            log(&sent, Some("refused before its body"));
            return after(close, &sent, is_drained);
        }
    };
    let mut body = Body::new(input, framing, rule.max_bytes, expects_continue);
    // A handler that panics ends one connection, not the server.
    let reply = catch_unwind(AssertUnwindSafe(|| service.answer(&head, &mut body)));
    let failed = |status, reason: &str| (Reply::Whole(refuse(status, reason)), reason.to_owned());
    let (reply, reason) = match (reply, body.failure()) {
        (_, Some(Failure::Gone)) => {
            log(&Sent::nothing(), Some("the body broke off"));
            return After::Close { is_drained: true };
        }
        (_, Some(Failure::Refused(status, reason))) => failed(*status, reason),
        (Err(_), None) => failed(500, "the handler panicked"),
        (Ok(reply), None) => match fault(&reply) {
            Some(reason) => failed(500, reason),
            None => (reply, String::new()),
        },
    };
    let is_drained = body.is_at_end();
    // The request may have taken long.
    let close = close || !is_drained || !reason.is_empty() || told_to_end().is_some();
    let answer = Answer::new(socket, close, is_head).with_large_buffers(&shared.large_buffers);
    let sent = match reply {
        Reply::Whole(response) => answer.whole(response),
        Reply::Live(live) => answer.live(live, version == Version::Http11),
    };
    let sent = match sent.is_unsent && !sent.whole {
        true => {
            let reason = "the answer could not be read";
            let instead = Answer::new(socket, true, is_head).whole(refuse(500, reason));
            Sent { whole: false, reason: Some(reason), ..instead }
        }
        false => sent,
    };
    log(&sent, Some(reason.as_str()).filter(|reason| !reason.is_empty()));
    after(close, &sent, is_drained)
}

fn after(close: bool, sent: &Sent, is_drained: bool) -> After {
    match sent.whole && !close {
        true => After::GoesOn,
        false if sent.wants_reset => After::Reset,
        false => After::Close { is_drained },
    }
}

fn check(rule: BodyRule, framing: Framing) -> Result<(), (u16, String)> {
    match framing {
        Framing::Length(length) if length > rule.max_bytes => {
            Err((413, format!("the body has {length} bytes, the most is {}", rule.max_bytes)))
        }
        Framing::Chunked if !rule.chunked => {
            Err((411, "chunked request bodies not supported; send Content-Length".to_owned()))
        }
        _ => Ok(()),
    }
}

fn head<'a>(request: RequestHead, socket: &'a Socket) -> Head<'a> {
    let method = match request.method.parse() {
        Ok(method) => method,
        Err(()) => unreachable!("a token is ASCII"),
    };
    // Both are ASCII; the parser has seen to it.
    let headers = request.headers.into_iter();
    let headers = headers.filter_map(|(name, value)| Header::from_bytes(name, value).ok());
    let length = match request.framing {
        Framing::None => Some(0),
        Framing::Length(length) => Some(length),
        Framing::Chunked => None,
    };
    Head {
        method,
        headers: headers.collect(),
        target: request.target,
        host: request.host,
        length,
        note: OnceCell::new(),
        client: Some(socket.as_fd()),
    }
}

/// What the log is told of an answer.
fn entry<'a>(
    request: Option<(&'a str, &'a str)>,
    start: Instant,
    sent: &Sent,
    reason: Option<&'a str>,
) -> Entry<'a> {
    let (status, sent_bytes, duration) = (sent.status, sent.body_bytes, start.elapsed());
    let reason = reason.map(without_value).or(sent.reason);
    Entry { request, status, duration, sent_bytes, reason, note: None }
}

/// What the log may show of a reason: messages quote the value that they are about, which may be a
/// query or a header with a secret in it. The client, whose value it is, gets the whole of it.
fn without_value(reason: &str) -> &str {
    reason.split_once(" '").map_or(reason, |(what, _)| what)
}

/// Closes a connection so that its last answer arrives: a close with bytes of the client unread
/// resets it, and what is under way is lost (RFC 9112, section 9.6).
fn close(input: &Input<'_>, is_drained: bool) {
    let socket = input.socket;
    socket.end_writing();
    if is_drained && input.unread().is_empty() && !has_bytes(socket) {
        return;
    }
    let (mut until, mut left) = (Instant::now() + LINGER_MAX, LINGER_MAX_BYTES);
    // Small, since every connection may be at this at once, and not in the frame of those that
    // wait for a request.
    let mut scratch = vec![0; READ_BYTES];
    let mut is_ending = false;
    while left > 0 {
        match socket.read_now(&mut scratch) {
            Ok(0) => return,
            Ok(count) => left = left.saturating_sub(count as u64),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
        // This client has its answer, and those that wait for theirs need the time.
        if !is_ending && told_to_end().is_some() {
            is_ending = true;
            until = until.min(Instant::now() + LINGER_AT_END_MAX);
        }
        let wait = until.saturating_duration_since(Instant::now());
        let came = socket.wait_readable(wait.min(LINGER_AT_END_MAX));
        if came.is_err() || wait.is_zero() {
            return;
        }
    }
}

fn has_bytes(socket: &Socket) -> bool {
    socket.wait_readable(Duration::ZERO).unwrap_or(false)
}

/// Answers 503 without reading or waiting, for the thread that accepts.
pub(super) fn turn_away<S: Service>(socket: &Socket, service: &S, reason: &str) {
    let start = Instant::now();
    let sent = Answer::without_waiting(socket).whole(service.refuse(None, 503, reason));
    socket.end_writing();
    service.log(&entry(None, start, &sent, Some(reason)));
}

/// Throws away some of what a client that was turned away has sent, never for long, since one that
/// sends without end must not keep the thread that accepts; false once it has left.
pub(super) fn drain(socket: &Socket) -> bool {
    let mut scratch = [0; READ_BYTES];
    for _ in 0..DRAINED_READS {
        match socket.read_now(&mut scratch) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}

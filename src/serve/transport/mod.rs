//! Connections that one request cannot hurt: accepts, reads heads and bodies, writes answers.
//!
//! tiny_http's own `Server` is the loser here. Measured with 0.12.0: one header
//! (`Content-Length: 107374182400` and a handler that does not read) aborts the process; a line
//! without end, many headers, a chunk-size line and pipelined requests take memory without limit
//! (64 MiB of headers: 1155 MiB); it has no timeout anywhere, so two clients that do not read stop
//! a server of two workers; out of descriptors or threads its accept thread ends and tells nobody;
//! a body that is cut or not read becomes a complete one or the next request; a pool of workers
//! left 60 of 64 connections without an answer. It has no way to be handed a connection, so its
//! vocabulary (`Method`, `Header`, `Response`) and its writing of answers are all that is used. A
//! test shows a stock `Server` dying of one header: the day it fails, this folder can go.
//!
//! Here a connection is a thread from a fixed budget (`accept`). Heads are read under an absolute
//! deadline and parsed by `wire::http` (`connection`), bodies through a reader that knows their
//! end, their limit and a least rate (`body`), answers are counted against what they declare
//! (`answer`). A connection lives on only while it is certain what its next byte is.

mod accept;
mod answer;
mod body;
mod connection;
mod input;
mod listener;
pub(super) mod places;
mod socket;

use std::cell::OnceCell;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tiny_http::{Header, Method, ResponseBox};

use crate::wire::http::target::Target;

pub use accept::{Ended, serve};
pub use listener::{Listen, Listener};

/// Time from the first byte of a request to the end of its head, and what a new connection has
/// for its first.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest single wait for the next bytes of a body, or for room for those of an answer.
pub const STALL_MAX: Duration = Duration::from_secs(30);

/// Least average rate of a body and of an answer after [`STALL_MAX`], counted over the time that
/// was spent waiting for the client, bytes a second.
pub const RATE_MIN: u64 = 1 << 10;

/// How long a connection that is closed by this side goes on reading, so that its last answer is
/// not lost in a reset, and at most how many bytes.
pub const LINGER_MAX: Duration = Duration::from_secs(5);
/// See [`LINGER_MAX`].
pub const LINGER_MAX_BYTES: u64 = 64 << 20;

/// See [`LINGER_MAX`]: what is left of it once the server is told to end.
pub const LINGER_AT_END_MAX: Duration = Duration::from_millis(250);

/// Longest head that every connection has room for, bytes; a longer one needs one of
/// [`LARGE_HEADS_MAX`] places until it is answered, so that heads of all connections at once do not
/// take 32 KiB each.
pub const SMALL_HEAD_MAX_BYTES: usize = 8 << 10;
/// See [`SMALL_HEAD_MAX_BYTES`].
pub const LARGE_HEADS_MAX: usize = 64;

/// Answers that are put together in a large buffer, which is faster; what is read by nobody keeps
/// its buffer, so further ones get a small one.
pub const LARGE_BUFFERS_MAX: usize = 48;

/// Connections that were refused for want of room and whose answer is on its way.
pub const TURNED_AWAY_MAX: usize = 16;

/// How long accepting rests when the process is out of descriptors or memory.
pub const ACCEPT_REST: Duration = Duration::from_millis(50);

/// How long a connection past the budget waits for one of the others to end before it is refused.
pub const PLACE_WAIT: Duration = Duration::from_millis(10);

/// Time from the signal that ends the server to its end, whatever connections do.
pub const SHUTDOWN_MAX: Duration = Duration::from_millis(4500);

/// Connections the kernel holds until they are accepted (listen(2); net.core.somaxconn may lower
/// it).
const BACKLOG: i32 = 1024;

/// Stack of a connection's thread; handlers keep their buffers on the heap.
const THREAD_STACK_BYTES: usize = 256 << 10;

/// One request, without its body.
#[derive(Debug)]
pub struct Head<'a> {
    /// What is asked for.
    pub method: Method,
    /// On what.
    pub target: Target,
    /// The authority that the client addressed, if it said so.
    pub host: Option<String>,
    /// All header lines, in order; bytes of a value that are no ASCII stand as `?`.
    pub headers: Vec<Header>,
    /// Bytes of the body; `None` when it comes in chunks.
    pub length: Option<u64>,
    /// What the log says of the request beside the rest; a handler may set it once.
    pub note: OnceCell<String>,
    /// The client's connection, to see when it is gone; absent where the transport has none.
    pub client: Option<BorrowedFd<'a>>,
}

impl Head<'_> {
    /// The value of the first header line called `name`, in any case.
    pub fn header(&self, name: &'static str) -> Option<&str> {
        let found = self.headers.iter().find(|header| header.field.equiv(name));
        found.map(|header| header.value.as_str())
    }

    /// Has the log say so.
    pub fn note(&self, note: String) {
        // The first one stands.
        let _ = self.note.set(note);
    }
}

/// Which bodies a request may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyRule {
    /// Longest body, bytes.
    pub max_bytes: u64,
    /// Whether it may come in chunks.
    pub chunked: bool,
}

/// What a handler answers.
pub enum Reply<'a> {
    /// An answer of known length.
    Whole(ResponseBox),
    /// An answer that is written while it comes into being.
    Live(Live<'a>),
}

impl From<ResponseBox> for Reply<'_> {
    fn from(response: ResponseBox) -> Self {
        Reply::Whole(response)
    }
}

/// Writes a body; what it wrote stands on the wire after each flush, the first of which sends the
/// head too. An error cuts the answer, so that it never looks complete.
pub type WriteBody<'a> = Box<dyn FnOnce(&mut (dyn Write + Send)) -> Result<(), Unwritten> + 'a>;

/// Why a body was not written to its end.
pub enum Unwritten {
    /// The answer is cut where it stands.
    Cut(io::Error),
    /// Another answer is right, which is sent as long as nothing of this one was flushed; else this
    /// one is cut.
    Instead(ResponseBox),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Unwritten {
        Unwritten::Cut(error)
    }
}

/// An answer whose length nobody knows yet.
pub struct Live<'a> {
    /// Its status.
    pub status: u16,
    /// Its headers; those that frame it are added.
    pub headers: Vec<Header>,
    /// Its body.
    pub write: WriteBody<'a>,
}

/// Who answers the requests.
pub trait Service: Send + Sync + 'static {
    /// Which body the request may have, or why it is not let in; asked before any of the body is
    /// read.
    ///
    /// # Errors
    /// The answer to one that is not let in.
    fn admit(&self, head: &Head<'_>) -> Result<BodyRule, ResponseBox>;

    /// Answers one request. A body that breaks off, is too slow or too long is a read error, and
    /// then what this returns is not sent.
    fn answer<'a>(&'a self, head: &'a Head<'a>, body: &mut dyn Read) -> Reply<'a>;

    /// The answer to a request that no handler sees; `path` is absent when it has none that can be
    /// read.
    fn refuse(&self, path: Option<&str>, status: u16, reason: &str) -> ResponseBox;

    /// Hears of every answer.
    fn log(&self, entry: &Entry<'_>);

    /// Hears what is wrong with the server itself.
    fn complain(&self, what: std::fmt::Arguments<'_>);
}

/// One answer, for the log.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The request's method and path, as far as it could be read.
    pub request: Option<(&'a str, &'a str)>,
    /// Status of the answer.
    pub status: u16,
    /// From the request's first byte to the answer's last.
    pub duration: Duration,
    /// Bytes of the answer's body that were handed to the kernel.
    pub sent_bytes: u64,
    /// Why the request was refused or its answer cut.
    pub reason: Option<&'a str>,
    /// What its handler wants to be said.
    pub note: Option<&'a str>,
}

/// Limits of one server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// How long a connection may lie idle between requests.
    pub keep_alive: Duration,
    /// The server ends when it had no connection for so long.
    pub idle_exit: Option<Duration>,
}

/// Whether only this machine can reach `address`.
pub(super) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

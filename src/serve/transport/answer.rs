//! Writes answers. What an answer declares is what is sent: one whose reader fails or ends early is
//! a 500 as long as nothing of it has left, and else is cut, and the connection with it, so that it
//! never looks complete. What a reader has beyond what was declared is not sent.
//!
//! Heads are tiny_http's `raw_print`; the framing that it cannot say (`Connection`, chunks, nothing
//! at all for 1xx and 204) is put into what it printed. Bodies are not: it sends all that a reader
//! has, and copies through 8 KiB on the stack of every connection.

use std::any::Any;
use std::io::{self, ErrorKind, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tiny_http::{HTTPVersion, Header, Response, ResponseBox, StatusCode};

use crate::sys::alloc::BUFFER_BYTES;

use super::places::{Place, Places};
use super::socket::{Pace, Socket};
use super::{LARGE_BUFFERS_MAX, Live, Reply, Unwritten};

/// Bytes of a buffer that an answer is put together in, with its head and its framing, before they
/// are sent: of a large one, into which all that one read of a command's output becomes fits, and
/// of a small one.
const LARGE_BUFFER_BYTES: usize = BUFFER_BYTES;
const SMALL_BUFFER_BYTES: usize = 8 << 10;

/// What a head rarely exceeds.
const HEAD_BYTES: usize = 512;

/// Longest size line of a chunk: eight hex digits and CRLF.
const SIZE_LINE_BYTES: usize = 10;

/// What follows the data of the last chunk: CRLF, and the chunk of nothing.
const TAIL_BYTES: usize = 7;

/// What became of an answer.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) status: u16,
    pub(super) body_bytes: u64,
    /// Everything that was declared has been handed to the kernel, and the connection can go on.
    pub(super) whole: bool,
    pub(super) reason: Option<&'static str>,
    /// No byte of it has left, so another answer can take its place.
    pub(super) is_unsent: bool,
    /// It lasts up to the connection's end, so that only a reset tells that it was cut.
    pub(super) wants_reset: bool,
}

impl Sent {
    pub(super) fn nothing() -> Sent {
        Sent {
            status: 0,
            body_bytes: 0,
            whole: false,
            reason: None,
            is_unsent: true,
            wants_reset: false,
        }
    }
}

/// Why `reply` cannot be sent.
pub(super) fn fault(reply: &Reply<'_>) -> Option<&'static str> {
    let is_bad = |header: &Header| {
        let (name, value) = (header.field.as_str().as_bytes(), header.value.as_bytes());
        let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
        name.is_empty()
            || name.iter().any(|byte| !byte.is_ascii_graphic() || *byte == b':')
            || value.iter().any(is_control)
    };
    let headers = match reply {
        Reply::Whole(response) if response.data_length().is_none() => {
            return Some("the answer has no known length");
        }
        Reply::Whole(response) => response.headers(),
        Reply::Live(live) => &live.headers,
    };
    headers.iter().any(is_bad).then_some("the answer has a header that would break its head")
}

/// The way one answer takes to its client.
pub(super) struct Answer<'a> {
    socket: &'a Socket,
    pace: Pace,
    waits: bool,
    close: bool,
    is_head: bool,
    large_buffers: Option<&'a Places>,
    /// Why some bytes could not be sent, so that no later ones may be.
    cut: Option<ErrorKind>,
}

impl<'a> Answer<'a> {
    /// With `close` the connection ends after it, and it says so. `is_head` leaves its body out.
    pub(super) fn new(socket: &'a Socket, close: bool, is_head: bool) -> Answer<'a> {
        let (pace, large_buffers) = (Pace::default(), None);
        Answer { socket, pace, waits: true, close, is_head, large_buffers, cut: None }
    }

    /// The last answer of a connection, for a thread that must not wait: what there is no room for
    /// is lost.
    pub(super) fn without_waiting(socket: &'a Socket) -> Answer<'a> {
        Answer { waits: false, ..Answer::new(socket, true, false) }
    }

    /// May use a large buffer if one is free.
    pub(super) fn with_large_buffers(self, large_buffers: &'a Places) -> Answer<'a> {
        Answer { large_buffers: Some(large_buffers), ..self }
    }

    /// Bytes of a buffer for an answer of so many, and the place to hold meanwhile.
    fn buffer(&self, bytes: usize) -> (usize, Option<Place<'a>>) {
        let is_long = bytes > SMALL_BUFFER_BYTES;
        let places = self.large_buffers.filter(|_| is_long);
        match places.and_then(|places| places.take(LARGE_BUFFERS_MAX)) {
            Some(place) => (LARGE_BUFFER_BYTES, Some(place)),
            None => (SMALL_BUFFER_BYTES, None),
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if let Some(kind) = self.cut {
            return Err(kind.into());
        }
        while !bytes.is_empty() {
            let sent = match self.waits {
                true => self.pace.write(self.socket, bytes),
                false => self.socket.write_now(bytes),
            };
            let count = sent.inspect_err(|error| self.cut = Some(error.kind()))?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Sends an answer of known length.
    pub(super) fn whole(mut self, response: ResponseBox) -> Sent {
        let status = response.status_code().0;
        // 1xx and 204 have no length, and that of a 304 would be another answer's (RFC 9110,
        // section 8.6).
        let is_bodiless = matches!(status, 100..=199 | 204 | 304);
        let declared = response.data_length().unwrap_or(0);
        let length = (!is_bodiless).then_some(declared);
        let body_length = if self.is_head || is_bodiless { 0 } else { declared };
        let lines = if self.close { "Connection: close\r\n" } else { "" };
        let mut progress = Progress { body_bytes: 0, is_unsent: true };
        let sent = catch_unwind(AssertUnwindSafe(|| {
            let head = print_head(status, response.headers().to_vec(), length, lines)?;
            self.send_body(head, response.into_reader(), body_length, &mut progress)
        }));
        let (reason, Progress { body_bytes, is_unsent }) = (reason(&sent), progress);
        Sent { status, body_bytes, whole: reason.is_none(), reason, is_unsent, wants_reset: false }
    }

    /// Sends `head` and `left` bytes of `reader`. A small body leaves with its head, in one packet,
    /// and nothing leaves before the first piece of the body is there.
    fn send_body(
        &mut self,
        head: Vec<u8>,
        mut reader: impl Read,
        mut left: usize,
        progress: &mut Progress,
    ) -> io::Result<()> {
        let (capacity, _place) = self.buffer(left);
        let mut start = head.len();
        let mut buffer = Vec::with_capacity(capacity.max(start));
        buffer.extend_from_slice(&head);
        loop {
            let count = left.min(capacity.saturating_sub(start));
            buffer.resize(start + count, 0);
            reader.read_exact(&mut buffer[start..])?;
            progress.is_unsent = false;
            self.send(&buffer)?;
            progress.body_bytes += count as u64;
            left -= count;
            if left == 0 {
                return Ok(());
            }
            start = 0;
        }
    }

    /// Sends an answer as it comes into being: in chunks, or up to the connection's end.
    pub(super) fn live(mut self, live: Live<'_>, is_chunked: bool) -> Sent {
        let lines = match (is_chunked, self.close) {
            (true, false) => "Transfer-Encoding: chunked\r\n",
            (true, true) => "Transfer-Encoding: chunked\r\nConnection: close\r\n",
            (false, _) => "Connection: close\r\n",
        };
        let (status, is_head) = (live.status, self.is_head);
        let (capacity, place) = self.buffer(usize::MAX);
        let mut buffer = Vec::with_capacity(capacity);
        buffer.resize(SIZE_LINE_BYTES, 0);
        let mut instead = None;
        let mut chunks = ChunkWriter {
            answer: &mut self,
            capacity,
            is_chunked,
            head: None,
            buffer,
            sent_bytes: 0,
        };
        let sent = catch_unwind(AssertUnwindSafe(|| {
            chunks.head = Some(print_head(status, live.headers, None, lines)?);
            if is_head {
                return chunks.send(b"");
            }
            match (live.write)(&mut chunks) {
                Ok(()) => chunks.end(),
                Err(Unwritten::Cut(error)) => Err(error),
                Err(Unwritten::Instead(response)) => {
                    instead = Some(response).filter(|_| chunks.head.is_some());
                    Err(ErrorKind::Other.into())
                }
            }
        }));
        if let Some(response) = instead {
            drop(place);
            return self.whole(response);
        }
        let reason = reason(&sent);
        let (body_bytes, whole) = (chunks.sent_bytes, reason.is_none() && is_chunked);
        let is_unsent = chunks.head.is_some();
        if reason.is_none() && !is_chunked {
            self.socket.reset_when_closed(false);
        }
        let wants_reset = reason.is_some() && !is_chunked && !is_unsent;
        Sent { status, body_bytes, whole, reason, is_unsent, wants_reset }
    }
}

/// Why an answer did not arrive whole.
fn reason(sent: &Result<io::Result<()>, Box<dyn Any + Send>>) -> Option<&'static str> {
    match sent {
        Ok(Ok(())) => None,
        Ok(Err(error)) if error.kind() == ErrorKind::TimedOut => Some("read too slowly"),
        Ok(Err(_)) => Some("the answer was cut"),
        Err(_) => Some("writing the answer panicked"),
    }
}

/// How far an answer has come.
struct Progress {
    body_bytes: u64,
    is_unsent: bool,
}

/// A head with that Content-Length, if any, and `lines` behind the others.
fn print_head(
    status: u16,
    headers: Vec<Header>,
    length: Option<usize>,
    lines: &str,
) -> io::Result<Vec<u8>> {
    // It would frame an answer without a length itself, by another line at the same place.
    let printed_length = Some(length.unwrap_or(0));
    let mut response =
        Response::new(StatusCode(status), headers, io::empty(), printed_length, None)
            .with_chunked_threshold(usize::MAX);
    response.add_header(Header::from_bytes("Server", "runcap").expect("both are ASCII"));
    let mut head = Vec::with_capacity(HEAD_BYTES);
    response.raw_print(&mut head, HTTPVersion(1, 1), &[], true, None)?;
    // The length is the last line, and a blank one follows.
    head.truncate(head.len() - 2);
    if length.is_none() {
        let end = head.windows(LENGTH.len()).rposition(|bytes| bytes == LENGTH);
        head.truncate(end.expect("it was printed"));
    }
    head.extend_from_slice(lines.as_bytes());
    head.extend_from_slice(b"\r\n");
    Ok(head)
}

/// What the line of a head begins with that tells its length.
const LENGTH: &[u8] = b"Content-Length:";

/// Puts together what is written until it is flushed, and sends it as one chunk.
struct ChunkWriter<'a, 'b> {
    answer: &'a mut Answer<'b>,
    /// Of the buffer, bytes.
    capacity: usize,
    is_chunked: bool,
    /// Until it is sent, with the first chunk.
    head: Option<Vec<u8>>,
    /// Room for a size line, then data.
    buffer: Vec<u8>,
    sent_bytes: u64,
}

impl ChunkWriter<'_, '_> {
    /// Sends what there is, and `tail` behind it; the first time behind the head, in one packet.
    fn send(&mut self, tail: &[u8]) -> io::Result<()> {
        let data = self.buffer.len() - SIZE_LINE_BYTES;
        let mut start = SIZE_LINE_BYTES;
        // A chunk of nothing would be the end.
        if self.is_chunked && data > 0 {
            let line = format!("{data:x}\r\n");
            start -= line.len();
            self.buffer[start..SIZE_LINE_BYTES].copy_from_slice(line.as_bytes());
            self.buffer.extend_from_slice(b"\r\n");
        }
        self.buffer.extend_from_slice(tail);
        match self.head.take() {
            Some(mut head) => {
                if !self.is_chunked {
                    // Such an answer lasts up to the connection's end, so every end but the right
                    // one must be an error, that of this process too.
                    self.answer.socket.reset_when_closed(true);
                }
                head.extend_from_slice(&self.buffer[start..]);
                self.answer.send(&head)?;
            }
            None => self.answer.send(&self.buffer[start..])?,
        }
        self.sent_bytes += data as u64;
        self.buffer.truncate(SIZE_LINE_BYTES);
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.send(if self.is_chunked { b"0\r\n\r\n" } else { b"" })
    }
}

impl Write for ChunkWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.capacity.saturating_sub(TAIL_BYTES + self.buffer.len());
        let count = room.min(bytes.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if count == room {
            self.send(b"")?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send(b"")
    }
}

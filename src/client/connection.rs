//! One connection to a server: a request, its answer, the next request.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Address, Error, Server, one_line};
use crate::wire::http::chunks::{Chunks, Step};
use crate::wire::http::head::Scan;
use crate::wire::http::response::{ResponseFraming, ResponseHead, parse_response};
use crate::wire::sandbox::client::answers::read_error;

/// How long connecting to one address may take.
pub const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How long a server may be silent. One that runs a command says something every 15 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(70);

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Interim answers (1xx) before the answer.
const INTERIM_MAX: usize = 8;

/// Bytes of an answer that is held: an error, or one entry.
const SMALL_MAX_BYTES: u64 = 64 << 10;

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Bytes of a file that are read and sent at once.
const PIECE_BYTES: usize = 128 << 10;

/// What goes with a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Content<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// So many bytes of a file from an offset on.
    Range(&'a File, u64, u64),
}

impl Content<'_> {
    fn length(self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Range(_, _, length) => length,
        }
    }
}

/// A connection that carries one request after the other.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<TcpStream>,
    /// What came and was not looked at yet begins at `start`.
    unread: Vec<u8>,
    start: usize,
    /// The next byte is the next answer's.
    is_clean: bool,
    /// When what is waited for must be there to its last byte.
    deadline: Option<Instant>,
}

/// Ends whatever a connection waits for, and does not keep it open.
#[derive(Debug)]
pub(super) struct Closer(Weak<TcpStream>);

impl Closer {
    pub(super) fn close(&self) {
        // It may be closed already.
        let _ = self.0.upgrade().map(|stream| stream.shutdown(Shutdown::Both));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Connection {
    pub(super) fn open(address: &Address) -> Result<Connection, Error> {
        let connect = |tried: String, source: io::Error| Error::Connect(tried, source);
        let stream = match address {
            // What is used of it does not care which kind of stream it is.
            Address::Unix(path) => UnixStream::connect(path)
                .map(|stream| TcpStream::from(OwnedFd::from(stream)))
                .map_err(|error| connect(address.to_string(), error))?,
            Address::Tcp(host, port) => {
                let name = host.trim_start_matches('[').trim_end_matches(']');
                let found = (name, *port).to_socket_addrs();
                let found = found.map_err(|error| connect(address.to_string(), error))?;
                let (mut tried, mut last) = (Vec::new(), ErrorKind::NotFound.into());
                let stream = found.take(ADDRESSES_MAX).find_map(|address| {
                    tried.push(address.to_string());
                    TcpStream::connect_timeout(&address, CONNECT_MAX)
                        .inspect_err(|error| {
                            last = error
                                .raw_os_error()
                                .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
                        })
                        .ok()
                });
                let stream = stream.ok_or_else(|| connect(tried.join(", "), last))?;
                // A head and the range of a file behind it are two writes.
                let _ = stream.set_nodelay(true);
                stream
            }
        };
        let limits = [
            stream.set_read_timeout(Some(SILENCE_MAX)),
            stream.set_write_timeout(Some(SILENCE_MAX)),
        ];
        limits.into_iter().collect::<io::Result<()>>().map_err(Error::Connection)?;
        let stream = Arc::new(stream);
        Ok(Connection { stream, unread: Vec::new(), start: 0, is_clean: true, deadline: None })
    }

    /// What another thread can end it by.
    pub(super) fn closer(&self) -> Closer {
        Closer(Arc::downgrade(&self.stream))
    }

    /// Whether another request may be sent.
    pub(super) fn is_clean(&self) -> bool {
        self.is_clean
    }

    /// Sends a request and reads the head of its answer, which is one of success.
    pub(super) fn ask(
        &mut self,
        server: &Server,
        method: &str,
        target: &str,
        content: Option<Content<'_>>,
    ) -> Result<Answer<'_>, Error> {
        self.is_clean = false;
        self.deadline = None;
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: ");
        match &server.address {
            Address::Tcp(host, port) => head.push_str(&format!("{host}:{port}\r\n")),
            Address::Unix(_) => head.push_str("localhost\r\n"),
        }
        if let Some(token) = &server.token {
            head.push_str(&format!("X-Sandbox-Token: {}\r\n", token.as_str()));
        }
        if let Some(content) = content {
            head.push_str(&format!("Content-Length: {}\r\n", content.length()));
        }
        head.push_str("\r\n");
        let head = match self.send(&head, content) {
            Ok(()) => self.head()?,
            // A server may refuse what it has not read to its end, and then close: its answer says
            // more than the error that sending ends with.
            Err(error @ Error::Connection(_)) => self.head().map_err(|_| error)?,
            Err(error) => return Err(error),
        };
        self.deadline = None;
        self.stream.set_read_timeout(Some(SILENCE_MAX)).map_err(Error::Connection)?;
        let rest = match head.framing {
            ResponseFraming::None | ResponseFraming::Length(0) => Rest::End,
            ResponseFraming::Length(length) => Rest::Length(length),
            ResponseFraming::Chunked => Rest::Chunked(Chunks::new()),
            ResponseFraming::UntilClose => Rest::UntilClose,
        };
        let mut answer = Answer { connection: self, head, rest };
        match answer.head.status {
            200..=299 => {
                answer.note_end();
                Ok(answer)
            }
            status => Err(answer.refusal(status, server)),
        }
    }

    fn send(&mut self, head: &str, content: Option<Content<'_>>) -> Result<(), Error> {
        let mut stream = &*self.stream;
        match content {
            None => stream.write_all(head.as_bytes()).map_err(Error::Connection),
            Some(Content::Bytes(bytes)) => {
                let mut whole = head.as_bytes().to_vec();
                whole.extend_from_slice(&bytes[..bytes.len().min(PIECE_BYTES)]);
                let rest = &bytes[bytes.len().min(PIECE_BYTES)..];
                stream
                    .write_all(&whole)
                    .and_then(|()| stream.write_all(rest))
                    .map_err(Error::Connection)
            }
            Some(Content::Range(file, mut offset, mut left)) => {
                stream.write_all(head.as_bytes()).map_err(Error::Connection)?;
                let mut piece = vec![0; PIECE_BYTES];
                while left > 0 {
                    let most =
                        usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
                    match file.read_at(&mut piece[..most], offset) {
                        Ok(0) => return Err(Error::Changed(String::new())),
                        Ok(count) => {
                            stream.write_all(&piece[..count]).map_err(Error::Connection)?;
                            (offset, left) = (offset + count as u64, left - count as u64);
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(Error::Local("".into(), error)),
                    }
                }
                Ok(())
            }
        }
    }

    /// Reads the head of the answer, past interim ones.
    fn head(&mut self) -> Result<ResponseHead, Error> {
        let mut interim = 0;
        self.deadline = Some(Instant::now() + SILENCE_MAX);
        loop {
            let mut scan = Scan::new();
            let length = loop {
                match scan.look(&self.unread[self.start..]) {
                    Ok(Some(length)) => break length,
                    Ok(None) => {}
                    Err(refused) => return Err(Error::Invalid(one_line(&refused.reason))),
                }
                if self.fill()? == 0 {
                    return Err(Error::Connection(ErrorKind::UnexpectedEof.into()));
                }
            };
            let head = parse_response(&self.unread[self.start..self.start + length]);
            let head = head.map_err(Error::Invalid)?;
            self.start += length;
            if head.status >= 200 {
                return Ok(head);
            }
            interim += 1;
            if interim > INTERIM_MAX {
                return Err(Error::Invalid(format!("over {INTERIM_MAX} interim answers")));
            }
        }
    }

    /// Reads more behind what is there; 0 is the connection's end.
    fn fill(&mut self) -> Result<usize, Error> {
        self.unread.drain(..self.start);
        self.start = 0;
        let have = self.unread.len();
        self.unread.resize(have + READ_BYTES, 0);
        let read = read(&self.stream, self.deadline, &mut self.unread[have..]);
        self.unread.truncate(have + *read.as_ref().unwrap_or(&0));
        read.map_err(Error::Connection)
    }
}

/// Reads what comes next; before `deadline`, if there is one.
fn read(mut stream: &TcpStream, deadline: Option<Instant>, buffer: &mut [u8]) -> io::Result<usize> {
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::WouldBlock.into());
        }
        stream.set_read_timeout(Some(left))?;
    }
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// What of a body is still to come.
#[derive(Debug)]
enum Rest {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
    End,
}

/// An answer whose body is read as it comes. One that breaks off is an error, and so is one that
/// ends in another way than it said.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    connection: &'a mut Connection,
    head: ResponseHead,
    rest: Rest,
}

impl Answer<'_> {
    /// Bytes of the body, where that was said.
    pub(super) fn length(&self) -> Option<u64> {
        match self.head.framing {
            ResponseFraming::Length(length) => Some(length),
            ResponseFraming::None => Some(0),
            ResponseFraming::Chunked | ResponseFraming::UntilClose => None,
        }
    }

    /// The whole body of a small answer.
    pub(super) fn small(mut self) -> Result<Vec<u8>, Error> {
        self.connection.deadline = Some(Instant::now() + SILENCE_MAX);
        let mut body = Vec::new();
        (&mut self).take(SMALL_MAX_BYTES + 1).read_to_end(&mut body).map_err(Error::Connection)?;
        if body.len() as u64 > SMALL_MAX_BYTES {
            return Err(Error::Invalid(format!("an answer of over {SMALL_MAX_BYTES} bytes")));
        }
        Ok(body)
    }

    /// Reads to the end of an answer that says nothing, so that the connection goes on.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.connection.deadline = Some(Instant::now() + SILENCE_MAX);
        let mut rest = (&mut self).take(SMALL_MAX_BYTES + 1);
        let count = io::copy(&mut rest, &mut io::sink()).map_err(Error::Connection)?;
        match count {
            0..=SMALL_MAX_BYTES => Ok(()),
            _ => Err(Error::Invalid(format!("an answer of over {SMALL_MAX_BYTES} bytes"))),
        }
    }

    /// What an answer says that is none of success. Redirects are not followed.
    fn refusal(&mut self, status: u16, server: &Server) -> Error {
        self.connection.deadline = Some(Instant::now() + SILENCE_MAX);
        let mut body = Vec::new();
        // As far as it comes: the status is known already.
        let _ = self.take(SMALL_MAX_BYTES).read_to_end(&mut body);
        match status {
            300..=399 => Error::Refused(status, "redirects are not followed".to_owned()),
            // Some say what they were asked with.
            _ => Error::Refused(status, server.hide(read_error(&body))),
        }
    }

    fn note_end(&mut self) {
        if matches!(self.rest, Rest::End) {
            self.connection.is_clean = !self.head.close;
        }
    }

    /// Bytes of data that come next, at least one; `None` at the end.
    fn next_data(&mut self) -> io::Result<Option<u64>> {
        loop {
            let connection = &mut *self.connection;
            let step = match &mut self.rest {
                Rest::End => return Ok(None),
                Rest::Length(left) => return Ok(Some(*left)),
                Rest::UntilClose => return Ok(Some(u64::MAX)),
                Rest::Chunked(chunks) if chunks.data_left() > 0 => {
                    return Ok(Some(chunks.data_left()));
                }
                Rest::Chunked(chunks) => chunks.step(&connection.unread[connection.start..]),
            };
            match step {
                Ok(Step::Framing(count)) => connection.start += count,
                Ok(Step::Data(count)) => return Ok(Some(count as u64)),
                Ok(Step::End) => {
                    self.rest = Rest::End;
                    self.note_end();
                }
                Ok(Step::More) => match connection.fill() {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(Error::Connection(error)) => return Err(error),
                    Err(other) => return Err(io::Error::other(other)),
                },
                Err(error) => return Err(io::Error::other(error.to_string())),
            }
        }
    }
}

impl Read for Answer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let Some(next) = self.next_data()? else { return Ok(0) };
        let most = usize::try_from(next).unwrap_or(usize::MAX).min(buffer.len());
        let connection = &mut *self.connection;
        let unread = connection.unread.len() - connection.start;
        let count = if unread > 0 {
            let count = unread.min(most);
            let from = connection.start;
            buffer[..count].copy_from_slice(&connection.unread[from..from + count]);
            connection.start += count;
            count
        } else {
            read(&connection.stream, connection.deadline, &mut buffer[..most])?
        };
        match &mut self.rest {
            Rest::UntilClose if count == 0 => self.rest = Rest::End,
            _ if count == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Rest::Length(left) => {
                *left -= count as u64;
                if *left == 0 {
                    self.rest = Rest::End;
                    self.note_end();
                }
            }
            Rest::Chunked(chunks) => chunks.took(count),
            Rest::UntilClose | Rest::End => {}
        }
        Ok(count)
    }
}

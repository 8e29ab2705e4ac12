//! The body of one request: a reader that knows where it ends, how long it may be and how slow.
//!
//! A body that is cut, malformed, too long or too slow is a read error and is remembered, so that
//! no handler can take half of one for the whole, whatever it does with the error.

use std::io::{self, ErrorKind, Read};

use crate::wire::http::chunks::{Chunks, Step};
use crate::wire::http::head::Framing;

use super::input::Input;
use super::socket::Pace;

/// Why a body could not be read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The client has left in the middle of it.
    Gone,
    /// With the status of the answer.
    Refused(u16, String),
}

/// Reads of fewer bytes go through the connection's buffer.
const DIRECT_READ_MIN_BYTES: usize = 4 << 10;

enum Rest {
    Length(u64),
    Chunked(Chunks),
    End,
}

pub(super) struct Body<'a, 'b> {
    input: &'a mut Input<'b>,
    rest: Rest,
    /// Bytes that may still come.
    left_max: u64,
    max_bytes: u64,
    /// The client waits to be told that its body is wanted.
    wants_continue: bool,
    pace: Pace,
    failure: Option<Failure>,
}

impl<'a, 'b> Body<'a, 'b> {
    pub(super) fn new(
        input: &'a mut Input<'b>,
        framing: Framing,
        max_bytes: u64,
        expects_continue: bool,
    ) -> Body<'a, 'b> {
        let rest = match framing {
            Framing::None | Framing::Length(0) => Rest::End,
            Framing::Length(length) => Rest::Length(length),
            Framing::Chunked => Rest::Chunked(Chunks::new()),
        };
        let wants_continue = expects_continue && !matches!(rest, Rest::End);
        let (left_max, pace) = (max_bytes, Pace::default());
        Body { input, rest, left_max, max_bytes, wants_continue, pace, failure: None }
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether the next byte of the connection is the next request's. The end of a chunked body
    /// that a handler has read all data of is looked for in what has come already.
    pub(super) fn is_at_end(&mut self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        while let Rest::Chunked(chunks) = &mut self.rest {
            match chunks.step(self.input.unread()) {
                Ok(Step::Framing(count)) => self.input.consume(count),
                Ok(Step::End) => self.rest = Rest::End,
                Ok(Step::Data(_) | Step::More) | Err(_) => return false,
            }
        }
        matches!(self.rest, Rest::End)
    }

    fn fail(&mut self, failure: Failure) -> io::Error {
        let error = match &failure {
            Failure::Gone => io::Error::new(ErrorKind::UnexpectedEof, "the body broke off"),
            Failure::Refused(_, reason) => io::Error::other(reason.clone()),
        };
        self.failure = Some(failure);
        error
    }

    /// What became of a read from the client, where 0 is its end before that of the body.
    fn checked(&mut self, read: io::Result<usize>) -> io::Result<usize> {
        match read {
            Ok(0) => Err(self.fail(Failure::Gone)),
            Ok(count) => Ok(count),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                let reason = "the body came too slowly".to_owned();
                Err(self.fail(Failure::Refused(408, reason)))
            }
            Err(_) => Err(self.fail(Failure::Gone)),
        }
    }

    fn say_continue(&mut self) -> io::Result<()> {
        // Who sent some of the body already does not wait (RFC 9110, section 10.1.1).
        if std::mem::take(&mut self.wants_continue) && self.input.unread().is_empty() {
            let mut rest = &b"HTTP/1.1 100 Continue\r\n\r\n"[..];
            while !rest.is_empty() {
                match Pace::default().write(self.input.socket, rest) {
                    Ok(count) => rest = &rest[count..],
                    Err(_) => return Err(self.fail(Failure::Gone)),
                }
            }
        }
        Ok(())
    }

    /// Reads at most `buffer.len()` bytes of data, which the caller knows to come next.
    fn read_data(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.input.unread().is_empty() {
            if buffer.len() >= DIRECT_READ_MIN_BYTES {
                let read = self.pace.read(self.input.socket, buffer);
                return self.checked(read);
            }
            let read = self.input.fill(|socket, buffer| self.pace.read(socket, buffer));
            self.checked(read)?;
        }
        Ok(self.input.take(buffer))
    }

    /// Data bytes that come next, at least one; `None` at the end of the body.
    fn next_data(&mut self) -> io::Result<Option<u64>> {
        loop {
            let step = match &mut self.rest {
                Rest::End => return Ok(None),
                Rest::Length(left) => return Ok(Some(*left)),
                Rest::Chunked(chunks) if chunks.data_left() > 0 => {
                    return Ok(Some(chunks.data_left()));
                }
                Rest::Chunked(chunks) => chunks.step(self.input.unread()),
            };
            match step {
                Ok(Step::Framing(count)) => self.input.consume(count),
                Ok(Step::Data(count)) => return Ok(Some(count as u64)),
                Ok(Step::End) => self.rest = Rest::End,
                Ok(Step::More) => {
                    let read = self.input.fill(|socket, buffer| self.pace.read(socket, buffer));
                    self.checked(read)?;
                }
                Err(error) => return Err(self.fail(Failure::Refused(400, error.to_string()))),
            }
        }
    }
}

impl Read for Body<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.failure.is_some() {
            return Err(io::Error::other("the body has failed before"));
        }
        self.say_continue()?;
        let Some(next) = self.next_data()? else { return Ok(0) };
        if self.left_max == 0 {
            let reason = format!("the body has more than {} bytes", self.max_bytes);
            return Err(self.fail(Failure::Refused(413, reason)));
        }
        let most = next.min(self.left_max).min(buffer.len() as u64);
        let most = usize::try_from(most).expect("no more than the buffer's length");
        let count = self.read_data(&mut buffer[..most])?;
        self.left_max -= count as u64;
        self.pace.earn(count);
        match &mut self.rest {
            Rest::Length(left) => {
                *left -= count as u64;
                if *left == 0 {
                    self.rest = Rest::End;
                }
            }
            Rest::Chunked(chunks) => chunks.took(count),
            Rest::End => {}
        }
        Ok(count)
    }
}

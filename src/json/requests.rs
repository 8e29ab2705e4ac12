//! Requests out of a stream of bytes, one at a time, each bounded.

use std::io::{self, Read};

use crate::wire::native::DEPTH_MAX;
use crate::wire::native::frame::{Framed, Framer};
use crate::wire::native::request::Refusal;

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Values read from a stream, one at a time; what was read beyond one waits for the next.
pub(super) struct Requests<R> {
    source: R,
    /// Bytes read and not used, from `start` on.
    buffer: Vec<u8>,
    max_bytes: usize,
    /// Everything up to the next newline is to be thrown away.
    skipping: bool,
    at_end: bool,
}

pub(super) enum Next {
    /// The bytes of one value.
    Value(Vec<u8>),
    /// Bytes that are no request.
    Refused(Refusal),
    /// Bytes that are no request, and nothing after them can be one.
    LastRefused(Refusal),
}

impl<R: Read> Requests<R> {
    pub(super) fn new(source: R, max_bytes: usize) -> Requests<R> {
        Requests { source, buffer: Vec::new(), max_bytes, skipping: false, at_end: false }
    }

    /// Throws the rest of the line away before the next value.
    pub(super) fn skip_line(&mut self) {
        self.skipping = true;
    }

    /// The next value; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Next>> {
        if !self.find_value()? {
            return Ok(None);
        }
        let mut framer = Framer::new();
        loop {
            let scanned = framer.scanned();
            let mut framed = framer.scan(&self.buffer[scanned..]);
            if framed == Framed::Incomplete && self.buffer.len() > self.max_bytes {
                framed = Framed::Complete(self.buffer.len());
            }
            if framed == Framed::Incomplete && !self.read()? {
                framed = framer.finish();
            }
            match framed {
                Framed::Incomplete => {}
                Framed::Complete(len) if len > self.max_bytes => {
                    let message = format!(
                        "the request is larger than {} bytes: raise --max-request-size, or pass \
                         data through a file",
                        self.max_bytes
                    );
                    let refusal = Refusal::new(None, message);
                    let code = "request_too_large";
                    return Ok(Some(Next::LastRefused(Refusal { code, ..refusal })));
                }
                Framed::Complete(len) => return Ok(Some(self.take(len, framer.too_deep()))),
                Framed::Broken(broken) => {
                    let message = format!("{} at byte {}", broken.what, broken.offset);
                    self.drop_front(broken.offset);
                    let refusal = Refusal::syntax(broken.offset, message);
                    return Ok(Some(Next::Refused(refusal)));
                }
            }
        }
    }

    fn take(&mut self, len: usize, too_deep: bool) -> Next {
        let rest = self.buffer.split_off(len);
        let value = std::mem::replace(&mut self.buffer, rest);
        if too_deep {
            let message = format!("the request is nested deeper than {DEPTH_MAX} levels");
            return Next::Refused(Refusal::new(None, message));
        }
        Next::Value(value)
    }

    /// Reads until a value begins at the front of the buffer; false at the end.
    fn find_value(&mut self) -> io::Result<bool> {
        loop {
            if self.skipping {
                let newline = self.buffer.iter().position(|byte| *byte == b'\n');
                self.skipping = newline.is_none();
                self.drop_front(newline.map_or(self.buffer.len(), |at| at + 1));
            }
            if !self.skipping {
                let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
                let blanks = self.buffer.iter().take_while(|byte| blank(byte)).count();
                self.drop_front(blanks);
            }
            if !self.buffer.is_empty() {
                return Ok(true);
            }
            if !self.read()? {
                return Ok(false);
            }
        }
    }

    fn drop_front(&mut self, count: usize) {
        self.buffer.drain(..count);
    }

    /// Reads once; false at the end.
    fn read(&mut self) -> io::Result<bool> {
        if self.at_end {
            return Ok(false);
        }
        let len = self.buffer.len();
        self.buffer.try_reserve(READ_BYTES)?;
        self.buffer.resize(len + READ_BYTES, 0);
        let read = loop {
            match self.source.read(&mut self.buffer[len..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(len + *read.as_ref().unwrap_or(&0));
        self.at_end = read? == 0;
        Ok(!self.at_end)
    }
}

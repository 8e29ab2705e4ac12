//! A command on the server, whose output is passed on as it comes.

use std::io::{self, Read};

use super::connection::{Answer, Connection, Content};
use super::{Error, Server};
use crate::outcome::Stream;
use crate::wire::sandbox::client::events::{EVENT_MAX_BYTES, Ended, Event, read_event};
use crate::wire::sandbox::client::request::{ExecRequest, write_exec};

/// Bytes of both streams that are kept at most.
pub const CAPTURE_MAX_BYTES: usize = 64 << 20;

/// Bytes of stdin that a command should be given: they are part of one request, which the server
/// holds whole.
pub const STDIN_MAX_BYTES: u64 = 16 << 20;

/// Bytes of one read of events.
const READ_BYTES: usize = 64 << 10;

/// How a command went.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub ended: Ended,
    /// What it wrote, where that was captured; else empty.
    pub stdout: String,
    /// The same of descriptor 2.
    pub stderr: String,
    /// The streams of which the server cut the rest.
    pub truncated: Vec<Stream>,
}

/// Runs a command and gives each piece of its output to `output`, in the order of their arrival.
/// With `capture_output` it is also kept, at most [`CAPTURE_MAX_BYTES`] over both streams; without
/// it nothing is.
///
/// # Errors
/// `Refused` when it could not be started, `TooLarge` when more would have to be kept, `Output`
/// when `output` failed: in both cases the connection is closed, and the server ends the command.
/// `Connection` when the answer broke off before the command's end.
pub fn run(
    server: &Server,
    request: &ExecRequest<'_>,
    capture_output: bool,
    output: &mut dyn FnMut(Stream, &str) -> io::Result<()>,
) -> Result<Ran, Error> {
    let mut body = Vec::new();
    write_exec(&mut body, request).map_err(|error| Error::Unspeakable(error.to_string()))?;
    let mut connection = Connection::open(&server.address)?;
    let answer = connection.ask(server, "POST", "/v1/exec", Some(Content::Bytes(&body)))?;
    drop(body);
    let mut kept = [String::new(), String::new()];
    let mut truncated = Vec::new();
    let mut lines = Lines { answer, buffer: Vec::new(), start: 0, seen: 0 };
    loop {
        let line = lines.next()?;
        match read_event(line).map_err(Error::Invalid)? {
            Event::Output { stream, text } => {
                if capture_output {
                    let room = CAPTURE_MAX_BYTES - kept[0].len() - kept[1].len();
                    if text.len() > room {
                        return Err(Error::TooLarge(
                            CAPTURE_MAX_BYTES as u64,
                            "the command printed more: leave --capture off, or redirect it to a \
                             file there and get that",
                        ));
                    }
                    kept[stream as usize].push_str(&text);
                }
                output(stream, &text).map_err(Error::Output)?;
            }
            Event::Truncated { stream } if !truncated.contains(&stream) => truncated.push(stream),
            Event::Exit(ended) => {
                let [stdout, stderr] = kept;
                return Ok(Ran { ended, stdout, stderr, truncated });
            }
            Event::Start { .. } | Event::Truncated { .. } | Event::Ping | Event::Unknown => {}
        }
    }
}

/// The lines of an answer.
struct Lines<'a> {
    answer: Answer<'a>,
    /// What came and was not taken begins at `start`; no line ends before `seen`.
    buffer: Vec<u8>,
    start: usize,
    seen: usize,
}

impl Lines<'_> {
    /// The next line, without its end.
    fn next(&mut self) -> Result<&mut [u8], Error> {
        loop {
            let found = self.buffer[self.seen..].iter().position(|byte| *byte == b'\n');
            if let Some(at) = found {
                let line = self.start..self.seen + at;
                (self.start, self.seen) = (line.end + 1, line.end + 1);
                if !line.is_empty() {
                    return Ok(&mut self.buffer[line]);
                }
                continue;
            }
            self.buffer.drain(..self.start);
            (self.start, self.seen) = (0, self.buffer.len());
            if self.seen > EVENT_MAX_BYTES {
                return Err(Error::Invalid(format!("a line of over {EVENT_MAX_BYTES} bytes")));
            }
            self.buffer.resize(self.seen + READ_BYTES, 0);
            let read = self.answer.read(&mut self.buffer[self.seen..]);
            self.buffer.truncate(self.seen + *read.as_ref().unwrap_or(&0));
            if read.map_err(Error::Connection)? == 0 {
                // Without its last event nobody knows how the command ended.
                return Err(Error::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

//! `runcap json`: requests on stdin, answers on stdout, one after the other.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use crate::capture::Capture;
use crate::live::Events;
use crate::outcome::{Cancel, EXIT_FAILURE, End, Outcome, Stage, StartError, Stream};
use crate::run::{self, Control, Sink, Sinks};
use crate::spec::{Limit, Overflow};
use crate::sys;
use crate::wire::native::DEPTH_MAX;
use crate::wire::native::frame::{Framed, Framer};
use crate::wire::native::request::{Bounds, Refusal, Request, decode};
use crate::wire::native::response::{
    Answer, Output, write_answer, write_refusal, write_start_error,
};

/// Bytes of one read from stdin.
const READ_BYTES: usize = 64 << 10;

/// Bytes of an answer that are put together before they are written.
const ANSWER_BUFFER_BYTES: usize = 16 << 10;

/// Syntax errors in a row after which stdin is taken for something else than requests.
pub const SYNTAX_ERRORS_MAX: usize = 100;

/// What `runcap json` may be told on its command line.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Cap of a stream in bytes, where the request says nothing.
    pub cap: usize,
    /// Timeout where the request says nothing.
    pub default_timeout: Duration,
    /// Longest timeout and grace.
    pub timeout_max: Duration,
    /// Bytes of one request.
    pub request_max_bytes: usize,
}

/// Answers every request on stdin and returns runcap's exit code: 0 when each was carried out, 1
/// when one was refused or there was none, 125 when stdin or stdout failed.
pub fn serve_stdin(options: &Options) -> u8 {
    match try_serve(options) {
        Ok(all_carried_out) => u8::from(!all_carried_out),
        Err(error) => {
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "runcap: {error}");
            EXIT_FAILURE
        }
    }
}

fn try_serve(options: &Options) -> Result<bool, Failure> {
    run::prepare_process().map_err(Failure::Prepare)?;
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(Failure::Stdin)?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(Failure::Stdout)?);
    let ceiling = sys::cgroup::memory_limit(Path::new("/sys/fs/cgroup"));
    let bounds = Bounds {
        cap: options.cap,
        // Both streams together may take half of the limit.
        cap_ceiling: ceiling.map(|limit| usize::try_from(limit / 4).unwrap_or(usize::MAX).max(1)),
        timeout: options.default_timeout,
        timeout_max: options.timeout_max,
    };
    let mut requests = Requests::new(stdin, options.request_max_bytes);
    let (mut answered, mut refused, mut syntax_errors) = (false, false, 0);
    while let Some(next) = requests.next().map_err(Failure::Stdin)? {
        answered = true;
        let (request, last) = match next {
            Next::Value(bytes) => (decode(bytes, &bounds), false),
            Next::Refused(refusal) => (Err(refusal), false),
            Next::LastRefused(refusal) => (Err(refusal), true),
        };
        match request {
            Ok(request) => {
                syntax_errors = 0;
                carry_out(request, &stdout)?;
            }
            Err(mut refusal) => {
                refused = true;
                syntax_errors = if refusal.syntax { syntax_errors + 1 } else { 0 };
                let give_up = syntax_errors >= SYNTAX_ERRORS_MAX;
                if give_up {
                    refusal.message.push_str(&format!(
                        "; that were {SYNTAX_ERRORS_MAX} syntax errors in a row, so the rest of \
                         the input is not read"
                    ));
                }
                if refusal.syntax {
                    requests.skip_line();
                }
                write_out(&stdout, |out| write_refusal(out, &refusal))?;
                if last || give_up {
                    return Ok(false);
                }
            }
        }
    }
    if !answered {
        let refusal = Refusal::new(None, "stdin holds no request");
        write_out(&stdout, |out| write_refusal(out, &refusal))?;
    }
    Ok(answered && !refused)
}

/// What ends `runcap json` early.
#[derive(Debug)]
enum Failure {
    Prepare(io::Error),
    Stdin(io::Error),
    Stdout(io::Error),
    ReaderGone,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Prepare(error) => {
                write!(f, "cannot keep inherited descriptors from commands: {error}")
            }
            Failure::Stdin(error) => write!(f, "cannot read requests from stdin: {error}"),
            Failure::Stdout(error) => write!(f, "cannot write answers to stdout: {error}"),
            Failure::ReaderGone => f.write_str("the reader of stdout is gone"),
        }
    }
}

fn write_out(
    stdout: &File,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(ANSWER_BUFFER_BYTES, stdout);
    write(&mut out).and_then(|()| out.flush()).map_err(Failure::Stdout)
}

/// Runs one request and writes its answer.
fn carry_out(request: Request, stdout: &File) -> Result<(), Failure> {
    let outcome = if request.stream {
        carry_out_live(&request, stdout)?
    } else if request.capture {
        let (out, err) = (request.spec.stdout, request.spec.stderr);
        match captures(&request, out, err) {
            Ok((mut out, mut err)) => {
                let outcome = run_with(&request, stdout, &mut out, &mut err);
                answer(&request, stdout, outcome, Output::Kept(&out), Output::Kept(&err))?
            }
            Err(error) => answer_start_error(&request, stdout, &error)?,
        }
    } else {
        let mut out = Counter::new(request.spec.stdout);
        let mut err = Counter::new(request.spec.stderr);
        let outcome = run_with(&request, stdout, &mut out, &mut err);
        answer(&request, stdout, outcome, out.output(), err.output())?
    };
    match outcome {
        Some(End::Canceled(Cancel::ReaderGone)) => Err(Failure::ReaderGone),
        _ => Ok(()),
    }
}

fn carry_out_live(request: &Request, stdout: &File) -> Result<Option<End>, Failure> {
    let events = Events::new(stdout, request.encoding);
    let mut out = events.sink(Stream::Stdout, request.spec.stdout.cap);
    let mut err = events.sink(Stream::Stderr, request.spec.stderr.cap);
    let sinks = Sinks { stdout: &mut out, stderr: &mut err };
    let control =
        Control { stop: None, reader: Some(stdout.as_fd()), observer: Some(&mut &events) };
    let outcome = run::run(&request.spec, sinks, control);
    out.finish().and_then(|()| err.finish()).map_err(Failure::Stdout)?;
    let output = |sink: &crate::live::EventSink<'_, '_>| Output::Sent {
        received: sink.received(),
        sent: sink.sent(),
        replaced: sink.replaced(),
    };
    answer(request, stdout, outcome, output(&out), output(&err))
}

fn captures(
    request: &Request,
    stdout: Limit,
    stderr: Limit,
) -> Result<(Capture, Capture), StartError> {
    let capture = |cap: usize, keep| {
        Capture::new(cap, keep).map_err(|_| StartError {
            stage: Stage::Resources,
            subject: request.spec.argv[0].clone(),
            source: io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("no memory to keep {cap} bytes of output: lower max_output_size"),
            ),
        })
    };
    let unused = request.spec.merge_stderr;
    let err_cap = if unused { 0 } else { stderr.cap };
    Ok((capture(stdout.cap, stdout.keep)?, capture(err_cap, stderr.keep)?))
}

fn run_with(
    request: &Request,
    stdout: &File,
    out: &mut dyn Sink,
    err: &mut dyn Sink,
) -> Result<Outcome, StartError> {
    let control = Control { stop: None, reader: Some(stdout.as_fd()), observer: None };
    run::run(&request.spec, Sinks { stdout: out, stderr: err }, control)
}

/// Writes the answer and returns why the command ended, if it was started.
fn answer(
    request: &Request,
    stdout: &File,
    outcome: Result<Outcome, StartError>,
    out: Output<'_>,
    err: Output<'_>,
) -> Result<Option<End>, Failure> {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return answer_start_error(request, stdout, &error),
    };
    let answer = Answer {
        spec: &request.spec,
        outcome: &outcome,
        stdout: out,
        stderr: err,
        encoding: request.encoding,
        cap_lowered_to: request.cap_lowered_to,
        tag: request.tag.as_deref(),
        event: request.stream,
    };
    write_out(stdout, |out| write_answer(out, &answer))?;
    Ok(Some(outcome.end))
}

fn answer_start_error(
    request: &Request,
    stdout: &File,
    error: &StartError,
) -> Result<Option<End>, Failure> {
    let (tag, live) = (request.tag.as_deref(), request.stream);
    write_out(stdout, |out| write_start_error(out, error, request.encoding, tag, live))?;
    Ok(None)
}

/// A sink that keeps nothing. With `overflow: stop` the cap still bounds what may come.
struct Counter {
    received: u64,
    room: usize,
}

impl Counter {
    fn new(limit: Limit) -> Counter {
        let room = if limit.overflow == Overflow::Stop { limit.cap } else { 0 };
        Counter { received: 0, room }
    }

    fn output(&self) -> Output<'static> {
        Output::Sent { received: self.received, sent: 0, replaced: false }
    }
}

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.received += bytes.len() as u64;
        self.room = self.room.saturating_sub(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Counter {
    fn room(&self) -> Option<usize> {
        Some(self.room)
    }

    fn discard(&mut self, count: u64) {
        self.received += count;
    }
}

/// Values read from a stream, one at a time; what was read beyond one waits for the next.
struct Requests<R> {
    source: R,
    /// Bytes read and not used, from `start` on.
    buffer: Vec<u8>,
    max_bytes: usize,
    /// Everything up to the next newline is to be thrown away.
    skipping: bool,
    at_end: bool,
}

enum Next {
    /// The bytes of one value.
    Value(Vec<u8>),
    /// Bytes that are no request.
    Refused(Refusal),
    /// Bytes that are no request, and nothing after them can be one.
    LastRefused(Refusal),
}

impl<R: Read> Requests<R> {
    fn new(source: R, max_bytes: usize) -> Requests<R> {
        Requests { source, buffer: Vec::new(), max_bytes, skipping: false, at_end: false }
    }

    /// Throws the rest of the line away before the next value.
    fn skip_line(&mut self) {
        self.skipping = true;
    }

    /// The next value; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Next>> {
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

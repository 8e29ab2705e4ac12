//! `runcap json`: requests on stdin, answers on stdout, one after the other.

mod requests;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::capture::Capture;
use crate::live::{EventSink, Events};
use crate::outcome::{
    Cancel, EXIT_FAILURE, End, Outcome, Stage, StartError, Stream, exit_code_of_signal,
};
use crate::run::{self, Concurrency, Control, EndSignals, Inheritance, Observer, Sink, Sinks};
use crate::say;
use crate::spec::{Limit, Overflow};
use crate::sys;
use crate::sys::poll::{Interest, PollFd, poll};
use crate::wire::native::request::{Bounds, Refusal, Request, decode};
use crate::wire::native::response::{
    Answer, Output, write_answer, write_refusal, write_start_error,
};
use requests::{Next, Requests};

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
    /// Commands are killed when runcap dies, however that happens.
    pub die_with_parent: bool,
}

/// Answers every request on stdin and returns runcap's exit code: 0 when each was carried out, 1
/// when one was refused or there was none, 125 when stdin or stdout failed, 128+n when signal n
/// told runcap to end; then the running command was ended and answered first.
pub fn serve_stdin(options: &Options) -> u8 {
    let result = try_serve(options);
    let kept = run::kept_streams();
    if kept > 0 {
        say(format_args!("{kept} output streams of processes that were left running are closed"));
    }
    match result {
        Ok(all_carried_out) => match run::told_to_end() {
            Some(signal) => exit_code_of_signal(signal),
            None => u8::from(!all_carried_out),
        },
        Err(error) => {
            say(format_args!("{error}"));
            EXIT_FAILURE
        }
    }
}

fn try_serve(options: &Options) -> Result<bool, Failure> {
    run::prepare_process(Concurrency::OneAtATime, Inheritance::Withheld)
        .map_err(Failure::Prepare)?;
    let end = run::watch_ending_signals().map_err(Failure::Prepare)?;
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(Failure::Stdin)?);
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(Failure::Stdout)?);
    let bounds = Bounds {
        cap: options.cap,
        cap_ceiling: sys::cgroup::stream_cap_ceiling(),
        timeout: options.default_timeout,
        timeout_max: options.timeout_max,
    };
    let front = Front { stdout, end };
    let source = Stdin { file: stdin, end };
    let mut requests = Requests::new(source, options.request_max_bytes);
    let (mut answered, mut refused, mut syntax_errors) = (false, false, 0);
    while let Some(next) = requests.next().map_err(Failure::Stdin)? {
        // Told to end in the middle of a request: half of one is not worth an answer.
        if run::told_to_end().is_some() {
            break;
        }
        answered = true;
        let (request, last) = match next {
            Next::Value(bytes) => (decode(bytes, &bounds), false),
            Next::Refused(refusal) => (Err(refusal), false),
            Next::LastRefused(refusal) => (Err(refusal), true),
        };
        match request {
            Ok(mut request) => {
                syntax_errors = 0;
                request.spec.die_with_parent = options.die_with_parent;
                front.carry_out(request)?;
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
                front.write(|out| write_refusal(out, &refusal))?;
                if last || give_up {
                    return Ok(false);
                }
            }
        }
    }
    if !answered && run::told_to_end().is_none() {
        let refusal = Refusal::new(None, "stdin holds no request");
        front.write(|out| write_refusal(out, &refusal))?;
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
                write!(f, "cannot put this process in order for running commands: {error}")
            }
            Failure::Stdin(error) => write!(f, "cannot read requests from stdin: {error}"),
            Failure::Stdout(error) => write!(f, "cannot write answers to stdout: {error}"),
            Failure::ReaderGone => f.write_str("the reader of stdout is gone"),
        }
    }
}

/// Where answers go, and what ends the command that runs.
struct Front {
    stdout: File,
    end: EndSignals,
}

impl Front {
    fn write(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let mut out = BufWriter::with_capacity(ANSWER_BUFFER_BYTES, &self.stdout);
        write(&mut out).and_then(|()| out.flush()).map_err(Failure::Stdout)
    }

    /// Runs one request and writes its answer.
    fn carry_out(&self, request: Request) -> Result<(), Failure> {
        let end = if request.stream {
            self.carry_out_live(&request)?
        } else if request.capture {
            self.carry_out_captured(&request)?
        } else {
            let mut out = Counter::new(request.spec.stdout);
            let mut err = Counter::new(request.spec.stderr);
            let outcome = self.run(&request, &mut out, &mut err, None);
            self.answer(&request, outcome, out.output(), err.output())?
        };
        match end {
            Some(End::Canceled(Cancel::ReaderGone)) => Err(Failure::ReaderGone),
            _ => Ok(()),
        }
    }

    fn carry_out_captured(&self, request: &Request) -> Result<Option<End>, Failure> {
        let spec = &request.spec;
        let stderr_cap = if spec.merge_stderr { 0 } else { spec.stderr.cap };
        let captures = Capture::new(spec.stdout.cap, spec.stdout.keep).and_then(|stdout| {
            Capture::new(stderr_cap, spec.stderr.keep).map(|stderr| (stdout, stderr))
        });
        let Ok((mut out, mut err)) = captures else {
            let text = "no memory to keep that much output: lower max_output_size";
            let source = io::Error::new(io::ErrorKind::OutOfMemory, text);
            let (stage, subject) = (Stage::Resources, spec.argv[0].clone());
            return self.answer_start_error(request, &StartError { stage, subject, source });
        };
        let outcome = self.run(request, &mut out, &mut err, None);
        self.answer(request, outcome, Output::Kept(&out), Output::Kept(&err))
    }

    fn carry_out_live(&self, request: &Request) -> Result<Option<End>, Failure> {
        let mut stdout = BufWriter::with_capacity(ANSWER_BUFFER_BYTES, &self.stdout);
        let fd = Some(self.stdout.as_fd());
        let events = Events::new(&mut stdout, fd, request.encoding);
        let mut out = events.sink(Stream::Stdout, request.spec.stdout.cap);
        let mut err = events.sink(Stream::Stderr, request.spec.stderr.cap);
        let outcome = self.run(request, &mut out, &mut err, Some(&events));
        out.finish().and_then(|()| err.finish()).map_err(Failure::Stdout)?;
        let output = |sink: &EventSink<'_, '_>| Output::Sent {
            received: sink.received(),
            sent: sink.sent(),
            replaced: sink.replaced(),
        };
        self.answer(request, outcome, output(&out), output(&err))
    }

    fn run<'a>(
        &'a self,
        request: &Request,
        stdout: &'a mut dyn Sink,
        stderr: &'a mut dyn Sink,
        observer: Option<&'a dyn Observer>,
    ) -> Result<Outcome, StartError> {
        let control = Control {
            end: Some(self.end),
            reader: Some(self.stdout.as_fd()),
            observer,
            ..Control::none()
        };
        run::run(&request.spec, Sinks { stdout, stderr }, control)
    }

    /// Writes the answer and returns why the command ended, if it was started.
    fn answer(
        &self,
        request: &Request,
        outcome: Result<Outcome, StartError>,
        stdout: Output<'_>,
        stderr: Output<'_>,
    ) -> Result<Option<End>, Failure> {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.answer_start_error(request, &error),
        };
        let answer = Answer {
            spec: &request.spec,
            outcome: &outcome,
            stdout,
            stderr,
            encoding: request.encoding,
            cap_lowered_to: request.cap_lowered_to,
            tag: request.tag.as_deref(),
            event: request.stream,
        };
        self.write(|out| write_answer(out, &answer))?;
        Ok(Some(outcome.end))
    }

    fn answer_start_error(
        &self,
        request: &Request,
        error: &StartError,
    ) -> Result<Option<End>, Failure> {
        let (tag, live) = (request.tag.as_deref(), request.stream);
        self.write(|out| write_start_error(out, error, request.encoding, tag, live))?;
        Ok(None)
    }
}

/// Standard input, which ends when runcap is told to end.
struct Stdin {
    file: File,
    end: EndSignals,
}

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut fds = [
            PollFd::new(Some(self.file.as_fd()), Interest::Read),
            PollFd::new(Some(self.end.stop()), Interest::Read),
        ];
        while !fds.iter().any(PollFd::ready) {
            poll(&mut fds, None)?;
        }
        if fds[1].ready() { Ok(0) } else { self.file.read(buffer) }
    }
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

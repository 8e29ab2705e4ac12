//! `runcap run`: one command at a prompt.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::capture::Capture;
use crate::mirror::{Mirror, Patience, PatientWriter};
use crate::outcome::{Cancel, EXIT_FAILURE, End, Outcome, StartError, Stream, exit_code_of_signal};
use crate::run::{
    self, Concurrency, Control, EndSignals, GiveUp, Inheritance, Sinks, Terminal, told_to_end,
};
use crate::say;
use crate::spec::{Keep, Limit, Outputs, Spec};
use crate::sys;
use crate::wire::native::request::Encoding;
use crate::wire::native::response::{Answer, Output, write_answer, write_start_error};
use crate::wire::time::HumanDuration;

use super::options::Options;

/// Time between a signal that is passed on and KILL, unless `--grace` says otherwise.
const FORWARD_GRACE: Duration = Duration::from_secs(10);

/// Bytes of an answer that are put together before they are written.
const ANSWER_BUFFER_BYTES: usize = 16 << 10;

/// Why there is no outcome to tell.
enum Failure {
    /// Nothing was started.
    Start(StartError),
    /// runcap itself failed, or was called wrongly.
    Own(String),
}

/// Runs the command and returns runcap's exit code.
pub(super) fn main(options: &Options) -> u8 {
    let (message, code) = match try_main(options) {
        Ok(code) => return code,
        Err(Failure::Start(error)) => (error.to_string(), error.exit_code()),
        Err(Failure::Own(message)) => (message, EXIT_FAILURE),
    };
    if !options.quiet {
        say(format_args!("{message}"));
    }
    code
}

fn try_main(options: &Options) -> Result<u8, Failure> {
    run::prepare_process(Concurrency::OneAtATime, Inheritance::PassedOn)
        .map_err(own("cannot get ready"))?;
    // Before signals are watched, so that they end a runcap that waits for a FIFO's writer.
    let mut spec = options.spec().map_err(Failure::Own)?;
    let end = run::watch_ending_signals().map_err(own("cannot watch signals"))?;
    // A command whose output runcap passes on has no business with the terminal, where it would be
    // in the background and stop.
    spec.new_session = options.reads_output() && sys::terminal::controlling().is_some();
    let terminal = match options.reads_output() {
        true => None,
        false => Terminal::of_this_process().map_err(own("cannot watch the terminal"))?,
    };
    // A deadline past the end of the clock is no deadline.
    let deadline = spec.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let command = Command { spec, end, deadline, quiet: options.quiet };
    let control = Control {
        end: Some(end),
        forward_grace: Some(options.grace.unwrap_or(FORWARD_GRACE)),
        terminal: terminal.as_ref(),
        ..Control::none()
    };
    if options.json {
        command.answer(control)
    } else if options.reads_output() {
        command.mirror(control)
    } else {
        command.inherit(control)
    }
}

fn own(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Own(format!("{what}: {error}"))
}

/// The command, and what is to be known when it has ended.
struct Command {
    spec: Spec,
    end: EndSignals,
    deadline: Option<Instant>,
    quiet: bool,
}

impl Command {
    /// Runs the command with runcap's own descriptors.
    fn inherit(&self, control: Control<'_>) -> Result<u8, Failure> {
        let (mut stdout, mut stderr) = (capture(0, Keep::Head)?, capture(0, Keep::Head)?);
        let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
        let outcome = run::run(&self.spec, sinks, control).map_err(Failure::Start)?;
        self.say(&self.lines(&outcome));
        Ok(outcome.exit_code(told_to_end()))
    }

    /// Runs the command and prints the answer of `runcap json`.
    fn answer(mut self, control: Control<'_>) -> Result<u8, Failure> {
        let stdout = own_stdout()?;
        let cap_lowered_to = self.lower_caps();
        let spec = &self.spec;
        let mut out = capture(spec.stdout.cap, spec.stdout.keep)?;
        let stderr_cap = if spec.merge_stderr { 0 } else { spec.stderr.cap };
        let mut err = capture(stderr_cap, spec.stderr.keep)?;
        let sinks = Sinks { stdout: &mut out, stderr: &mut err };
        let outcome = run::run(spec, sinks, Control { reader: Some(stdout.as_fd()), ..control });
        let writer = PatientWriter::new(&stdout, self.patience());
        let mut writer = BufWriter::with_capacity(ANSWER_BUFFER_BYTES, writer);
        let written = match &outcome {
            Ok(outcome) => {
                let answer = Answer {
                    spec,
                    outcome,
                    stdout: Output::Kept(&out),
                    stderr: Output::Kept(&err),
                    encoding: Encoding::Utf8,
                    cap_lowered_to,
                    tag: None,
                    event: false,
                };
                write_answer(&mut writer, &answer)
            }
            Err(error) => write_start_error(&mut writer, error, Encoding::Utf8, None, false),
        };
        let written = written.and_then(|()| writer.flush());
        // What is still in the buffer would be written once more when it is dropped.
        let _ = writer.into_parts();
        if run::kept_streams() > 0 {
            self.say(&[STREAMS_CLOSED.to_owned()]);
        }
        match (written, outcome) {
            (Ok(()), Ok(outcome)) => Ok(outcome.exit_code(told_to_end())),
            (Ok(()), Err(error)) => Ok(error.exit_code()),
            (Err(error), outcome) => {
                self.exit_code_of_broken(error, Stream::Stdout, outcome.ok().as_ref())
            }
        }
    }

    /// Lowers the caps to what the memory limit of the control group allows, and says to what.
    fn lower_caps(&mut self) -> Option<usize> {
        let ceiling = sys::cgroup::stream_cap_ceiling()?;
        let (stdout, stderr) = (&mut self.spec.stdout.cap, &mut self.spec.stderr.cap);
        let is_lowered = *stdout > ceiling || (!self.spec.merge_stderr && *stderr > ceiling);
        (*stdout, *stderr) = ((*stdout).min(ceiling), (*stderr).min(ceiling));
        is_lowered.then_some(ceiling)
    }

    /// Runs the command and passes its output on, up to the limits.
    fn mirror(&self, control: Control<'_>) -> Result<u8, Failure> {
        let stdout = own_stdout()?;
        let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(own("cannot use stderr"))?;
        let stderr = File::from(stderr);
        let give_up = GiveUp::new().map_err(own("cannot get ready"))?;
        let mirror = |out, limit: Limit| {
            Mirror::new(out, limit, &give_up).map_err(|_| out_of_memory(limit.cap))
        };
        let mut mirrors = [mirror(&stdout, self.spec.stdout)?, mirror(&stderr, self.spec.stderr)?];
        let [out, err] = &mut mirrors;
        let sinks = Sinks { stdout: out, stderr: err };
        let control = Control { give_up: Some(&give_up), ..control };
        let outcome = run::run(&self.spec, sinks, control).map_err(Failure::Start)?;
        let streams = [Stream::Stdout, Stream::Stderr];
        let finished = mirrors.each_mut().map(|mirror| mirror.finish(self.patience()));
        for (finished, stream) in finished.into_iter().zip(streams) {
            if let Err(error) = finished {
                return self.exit_code_of_broken(error, stream, Some(&outcome));
            }
        }
        let summaries = mirrors.iter().zip(streams).filter_map(|(mirror, stream)| {
            Some(format!("{}: {}", stream.name(), mirror.summary()?))
        });
        let lines: Vec<_> = summaries.chain(self.lines(&outcome)).collect();
        if !lines.is_empty() && !self.quiet && mirrors[1].is_in_a_line() {
            // Nobody may be there to read it, as with the lines themselves.
            let _ = io::stderr().write_all(b"\n");
        }
        self.say(&lines);
        Ok(outcome.exit_code(told_to_end()))
    }

    /// The exit code of a runcap that could not write all it had to `stream`.
    fn exit_code_of_broken(
        &self,
        error: io::Error,
        stream: Stream,
        outcome: Option<&Outcome>,
    ) -> Result<u8, Failure> {
        if error.kind() == ErrorKind::BrokenPipe {
            // Nobody reads on: nothing is said, as if SIGPIPE had ended runcap.
            return Ok(exit_code_of_signal(sys::signal::PIPE));
        }
        let message = format!("cannot write to {}: {error}", stream.name());
        let made_to_end = match outcome {
            _ if error.kind() != ErrorKind::TimedOut => None,
            // Why the command was made to end is what the exit code says.
            Some(outcome) if outcome.end != End::Finished => Some(outcome.exit_code(told_to_end())),
            _ => told_to_end().map(exit_code_of_signal),
        };
        let Some(code) = made_to_end else { return Err(Failure::Own(message)) };
        self.say(&[message]);
        self.say(&outcome.map_or(Vec::new(), |outcome| self.lines(outcome)));
        Ok(code)
    }

    /// When a reader that does not read is given up.
    fn patience(&self) -> Patience<'_> {
        Patience { sign: self.end.stop(), deadline: self.deadline }
    }

    /// What the exit code alone does not say.
    fn lines(&self, outcome: &Outcome) -> Vec<String> {
        let mut lines = Vec::new();
        match outcome.end {
            End::TimedOut => {
                let timeout = HumanDuration(self.spec.timeout.unwrap_or_default());
                lines.push(format!("timed out after {timeout}"));
            }
            End::OutputLimit(stream) => {
                lines.push(format!("{}: stopped at its limit", stream.name()));
            }
            End::Finished | End::Canceled(Cancel::Requested | Cancel::ReaderGone) => {}
        }
        let left = match outcome.end {
            _ if !outcome.left_running => None,
            End::Finished if run::kept_streams() > 0 => Some(STREAMS_CLOSED),
            // Without limits that is what was asked for.
            End::Finished if self.spec.outputs != Outputs::Read => None,
            End::Finished => Some("processes were left running"),
            _ => Some("a process could not be killed"),
        };
        lines.extend(left.map(str::to_owned));
        lines
    }

    fn say(&self, lines: &[String]) {
        if !self.quiet {
            lines.iter().for_each(|line| say(format_args!("{line}")));
        }
    }
}

const STREAMS_CLOSED: &str = "processes were left running, and their output is closed";

fn capture(cap: usize, keep: Keep) -> Result<Capture, Failure> {
    Capture::new(cap, keep).map_err(|_| out_of_memory(cap))
}

fn out_of_memory(cap: usize) -> Failure {
    Failure::Own(format!("no memory for {cap} bytes of output: lower the limit"))
}

fn own_stdout() -> Result<File, Failure> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(own("cannot use stdout"))?;
    Ok(File::from(stdout))
}

//! How a command ended: the only home of the exit codes 123 to 127 and 128+n.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

use crate::quote::quoted;
use crate::sys::signal::{PIPE as SIGPIPE, TERM as SIGTERM};

/// What is known of a command that was started.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Why the command ended: exactly one truth.
    pub end: End,
    /// How the leader ended; `None` when KILL did not end it in time.
    pub leader: Option<Exit>,
    /// End of standard output was not reached: more may have been written than was received.
    pub stdout_incomplete: bool,
    /// End of standard error was not reached.
    pub stderr_incomplete: bool,
    /// Processes of the command were alive when the answer was made.
    pub left_running: bool,
    /// Processes besides the leader that were killed.
    pub killed_processes: u64,
    /// Wall clock at the start.
    pub start_time: SystemTime,
    /// From the start until nothing more of it was waited for, by the monotonic clock; who reads
    /// its output slowly does not count.
    pub duration: Duration,
    /// User and system time of the leader and the children it waited for (wait4(2)).
    pub cpu: Duration,
    /// Largest resident set of those, bytes (wait4(2)); never below runcap's own at the spawn,
    /// since the kernel counts from there.
    pub max_rss_bytes: u64,
}

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The leader ended by itself, or by a signal that was not runcap's.
    Finished,
    /// The deadline came first.
    TimedOut,
    /// A stream passed its cap under `overflow: stop`.
    OutputLimit(Stream),
    /// Somebody asked for the end, or the reader of the output is gone.
    Canceled(Cancel),
}

/// Who canceled a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// The reader of the answer is gone.
    ReaderGone,
    /// runcap was asked to stop.
    Requested,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl Stream {
    /// The name used in every dialect.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// It died of this signal.
    Signal(i32),
}

/// A command that could not be started. Nothing of it ran.
#[derive(Debug)]
pub struct StartError {
    /// What could not be had.
    pub stage: Stage,
    /// The directory or program, as it was called.
    pub subject: OsString,
    /// The system's reason.
    pub source: io::Error,
}

/// What kept a command from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The working directory.
    Cwd,
    /// The program: no such file.
    NotFound,
    /// The program: there, and not to be executed.
    NotExecutable,
    /// The program's interpreter or loader: no such file.
    Interpreter,
    /// Arguments and environment are larger than the kernel takes.
    Arguments,
    /// Pipes, threads, memory or the process itself.
    Resources,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StartError { stage, subject, source } = self;
        let subject = quoted(&subject.to_string_lossy());
        match stage {
            Stage::Cwd => write!(f, "cannot enter the working directory {subject}: {source}"),
            Stage::NotFound => write!(f, "program {subject} not found: {source}"),
            Stage::NotExecutable => write!(f, "cannot execute {subject}: {source}"),
            Stage::Interpreter => write!(
                f,
                "cannot execute {subject}: {source}; the file is there, so its interpreter (the \
                 path after #!, or the dynamic loader) may be missing"
            ),
            Stage::Arguments => write!(
                f,
                "cannot execute {subject}: {source}; arguments and environment are too large \
                 (E2BIG), pass data through stdin or a file"
            ),
            Stage::Resources => write!(f, "cannot start {subject}: {source}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Exit code of runcap when a command was stopped at its output limit.
pub const EXIT_OUTPUT_LIMIT: u8 = 123;
/// Exit code of runcap when a command timed out, as timeout(1).
pub const EXIT_TIMED_OUT: u8 = 124;
/// Exit code of runcap when runcap itself failed or was called wrongly, as timeout(1).
pub const EXIT_FAILURE: u8 = 125;
/// Exit code of runcap when a program could not be executed, as POSIX shells.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// Exit code of runcap when a program was not found, as POSIX shells.
pub const EXIT_NOT_FOUND: u8 = 127;

impl Outcome {
    /// How it ended, in one word: the `status` of an answer.
    pub fn status_name(&self) -> &'static str {
        match (self.end, self.leader) {
            (End::Finished, Some(Exit::Signal(_))) => "signaled",
            (End::Finished, _) => "exited",
            (End::TimedOut, _) => "timed_out",
            (End::OutputLimit(_), _) => "output_limit",
            (End::Canceled(_), _) => "canceled",
        }
    }

    /// The exit code of a runcap that ran this one command; `told` is the signal that told runcap
    /// to end, if one did.
    pub fn exit_code(&self, told: Option<i32>) -> u8 {
        match (self.end, self.leader) {
            (End::TimedOut, _) => EXIT_TIMED_OUT,
            (End::OutputLimit(_), _) => EXIT_OUTPUT_LIMIT,
            (End::Canceled(Cancel::Requested), _) => exit_code_of_signal(told.unwrap_or(SIGTERM)),
            (End::Canceled(Cancel::ReaderGone), _) => exit_code_of_signal(SIGPIPE),
            (End::Finished, Some(Exit::Code(code))) => u8::try_from(code).unwrap_or(u8::MAX),
            (End::Finished, Some(Exit::Signal(signal))) => exit_code_of_signal(signal),
            // Somebody else took the status.
            (End::Finished, None) => EXIT_FAILURE,
        }
    }
}

impl StartError {
    /// The exit code of a runcap that was to run this one command.
    pub fn exit_code(&self) -> u8 {
        match self.stage {
            Stage::NotFound => EXIT_NOT_FOUND,
            Stage::NotExecutable | Stage::Interpreter | Stage::Arguments => EXIT_NOT_EXECUTABLE,
            Stage::Cwd | Stage::Resources => EXIT_FAILURE,
        }
    }
}

/// Exit code of runcap when the command died of `signal`, or runcap was told to end by it.
pub fn exit_code_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The name of a signal: `SIGKILL`, `SIGRTMIN+3`, `signal 32`.
pub fn signal_name(signal: i32) -> String {
    crate::sys::signal::name(signal)
}

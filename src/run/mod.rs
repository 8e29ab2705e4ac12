//! Runs one `Spec` to its `Outcome`: the only code that spawns or signals.
//!
//! Threads copy each pipe (`copy`); a poll loop on the caller's thread (`supervise`) enforces the
//! deadline and kills the process group; the leader is reaped last, so its number and its group's
//! cannot belong to anybody else while they are signalled.

mod copy;
mod leader;
mod spawn;
mod supervise;

use std::io::{self, PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Stdio;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant, SystemTime};

pub use copy::Sink;
pub use spawn::DEFAULT_PATH;

use crate::outcome::{Exit, Outcome, Stage, StartError, Stream};
use crate::spec::{Spec, Stdin};
use crate::sys;
use copy::{Shared, State};
use leader::Leader;

/// How long after the leader's end the ends of its streams are waited for: what a short-lived
/// background process still writes is taken, one that holds the pipe does not hold runcap.
pub const DRAIN: Duration = Duration::from_millis(250);

/// How long a process that was sent KILL is waited for: one stuck in the kernel (state D) is
/// reported instead.
pub const KILL_WAIT: Duration = Duration::from_millis(750);

/// Stack of a copy or feeder thread; its buffers are on the heap.
const THREAD_STACK_BYTES: usize = 128 << 10;

/// Where the command's output goes. With `merge_stderr` everything is written to `stdout`.
pub struct Sinks<'a> {
    /// Sink of descriptor 1.
    pub stdout: &'a mut dyn Sink,
    /// Sink of descriptor 2.
    pub stderr: &'a mut dyn Sink,
}

/// Who may end a command early, and who wants to hear of it.
pub struct Control<'a> {
    /// Readable once the command must end.
    pub stop: Option<BorrowedFd<'a>>,
    /// Where the answer goes: the command is canceled when its reader is gone (POLLERR, POLLHUP).
    pub reader: Option<BorrowedFd<'a>>,
    /// Told the leader's pid before any output is passed on, and then again and again.
    pub observer: Option<&'a mut dyn Observer>,
}

/// Hears of a command while it runs, on the thread that runs it; so it must never block.
pub trait Observer {
    /// The command was started.
    fn started(&mut self, pid: u32);

    /// Called about every [`TICK`] while the command runs.
    fn tick(&mut self);
}

/// Time between two calls of [`Observer::tick`].
pub const TICK: Duration = Duration::from_secs(1);

/// Puts this process in order for running commands; call it once, before the first.
///
/// Descriptors that it inherited beyond 0, 1 and 2 become close-on-exec, signals that it inherited
/// as ignored get their default back (except SIGPIPE), and a write past RLIMIT_FSIZE becomes an
/// error.
///
/// # Errors
/// When inherited descriptors cannot be kept from the commands.
pub fn prepare_process() -> io::Result<()> {
    sys::signal::restore_defaults();
    sys::signal::survive_file_size_limit();
    sys::signal::keep_descriptors_from_children()
}

/// Runs `spec` to its end and returns how it ended.
///
/// Returns within timeout + grace + [`DRAIN`] + 100 ms and the kernel's own teardown, whatever the
/// command does; a leader that KILL does not end costs [`KILL_WAIT`] more. A sink that blocks holds
/// up the return, never the deadline.
///
/// # Errors
/// When the command could not be started; then nothing of it ran.
pub fn run(spec: &Spec, sinks: Sinks<'_>, control: Control<'_>) -> Result<Outcome, StartError> {
    let plan = spawn::plan(spec)?;
    let shared = Shared::new().map_err(|source| resources(spec, source))?;
    let (stdio, ours) = pipes(spec).map_err(|source| resources(spec, source))?;
    let (start_time, start) = (SystemTime::now(), Instant::now());
    // Borrowed again for as long as the threads live, which is shorter than the caller's loan.
    let sinks = Sinks { stdout: &mut *sinks.stdout, stderr: &mut *sinks.stderr };
    let (end, leader) = thread::scope(|scope| {
        let mut control = control;
        let threads = Threads::start(scope, spec, sinks, &shared)
            .map_err(|source| resources(spec, source))?;
        let mut leader = Leader::new(plan.start(stdio)?);
        if let Some(observer) = &mut control.observer {
            observer.started(leader.pid());
        }
        threads.hand_over(ours);
        let end = supervise::supervise(spec, &mut leader, &shared, control, start);
        shared.stop();
        Ok((end, leader))
    })?;
    let reaped = leader.reap();
    Ok(Outcome {
        end,
        leader: reaped.map(|reaped| match reaped.status {
            Ok(code) => Exit::Code(code),
            Err(signal) => Exit::Signal(signal),
        }),
        stdout_incomplete: shared.state(Stream::Stdout) != State::Ended,
        stderr_incomplete: shared.state(Stream::Stderr) != State::Ended,
        left_running: false,
        killed_processes: 0,
        start_time,
        duration: start.elapsed(),
        cpu: reaped.map_or(Duration::ZERO, |reaped| reaped.cpu),
        max_rss_bytes: reaped.map_or(0, |reaped| reaped.max_rss_bytes),
    })
}

fn resources(spec: &Spec, source: io::Error) -> StartError {
    StartError { stage: Stage::Resources, subject: spec.argv[0].clone(), source }
}

/// runcap's ends of the command's pipes, each `None` where there is no pipe.
struct Ours {
    stdin: Option<PipeWriter>,
    stdout: PipeReader,
    stderr: Option<PipeReader>,
}

/// The command's three descriptors, and our ends of them.
fn pipes(spec: &Spec) -> io::Result<([Stdio; 3], Ours)> {
    let (stdin, feed) = match spec.stdin {
        Stdin::Null => (Stdio::null(), None),
        Stdin::Bytes(_) => {
            let (child, ours) = pipe()?;
            sys::pipe::set_nonblocking(ours.as_fd())?;
            (Stdio::from(child), Some(ours))
        }
    };
    let (stdout, child_stdout) = pipe()?;
    sys::pipe::set_nonblocking(stdout.as_fd())?;
    let (stderr, child_stderr) = if spec.merge_stderr {
        (None, child_stdout.try_clone()?)
    } else {
        let (ours, child) = pipe()?;
        sys::pipe::set_nonblocking(ours.as_fd())?;
        (Some(ours), child)
    };
    let stdio = [stdin, Stdio::from(child_stdout), Stdio::from(child_stderr)];
    Ok((stdio, Ours { stdin: feed, stdout, stderr }))
}

/// The threads of one command. They exist before it does, so that a thread that cannot be had is
/// a clean refusal, and wait for their pipe; without one they end.
struct Threads {
    feeder: Option<Sender<PipeWriter>>,
    stdout: Sender<PipeReader>,
    stderr: Option<Sender<PipeReader>>,
}

impl Threads {
    fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        spec: &'env Spec,
        sinks: Sinks<'env>,
        shared: &'env Shared,
    ) -> io::Result<Threads> {
        let feeder = match &spec.stdin {
            Stdin::Null => None,
            Stdin::Bytes(bytes) => {
                Some(thread_with(scope, |pipe| copy::feed(pipe, bytes, shared))?)
            }
        };
        let copier = |stream, sink, overflow| {
            thread_with(scope, move |pipe| {
                shared.set_state(stream, copy::copy(pipe, sink, overflow, shared));
            })
        };
        let stdout = copier(Stream::Stdout, sinks.stdout, spec.stdout.overflow)?;
        let stderr = if spec.merge_stderr {
            shared.set_state(Stream::Stderr, State::Ended);
            None
        } else {
            Some(copier(Stream::Stderr, sinks.stderr, spec.stderr.overflow)?)
        };
        Ok(Threads { feeder, stdout, stderr })
    }

    /// Gives every thread its pipe.
    fn hand_over(self, ours: Ours) {
        const ALIVE: &str = "the thread waits for its pipe";
        if let (Some(thread), Some(pipe)) = (self.feeder, ours.stdin) {
            thread.send(pipe).expect(ALIVE);
        }
        self.stdout.send(ours.stdout).expect(ALIVE);
        if let (Some(thread), Some(pipe)) = (self.stderr, ours.stderr) {
            thread.send(pipe).expect(ALIVE);
        }
    }
}

/// A thread that waits for one pipe and works on it.
fn thread_with<'scope, P: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce(P) + Send + 'scope,
) -> io::Result<Sender<P>> {
    let (sender, pipe) = channel();
    let wait_and_work = move || {
        if let Ok(pipe) = pipe.recv() {
            work(pipe);
        }
    };
    thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn_scoped(scope, wait_and_work)?;
    Ok(sender)
}

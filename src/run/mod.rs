//! Runs one `Spec` to its `Outcome`: the only code that spawns or signals.
//!
//! Threads copy each pipe (`copy`); a poll loop on the caller's thread (`supervise`) enforces the
//! deadline and kills the process group; the leader is reaped last, so its number and its group's
//! cannot belong to anybody else while they are signalled.

mod copy;
mod keeper;
mod leader;
mod members;
mod registry;
mod spawn;
mod supervise;
mod sweep;
mod terminal;
mod threads;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

pub use copy::Sink;
pub use keeper::{KEPT_STREAMS_MAX, kept_streams};
pub use spawn::DEFAULT_PATH;
pub use terminal::Terminal;

use crate::outcome::{End, Exit, Outcome, Stage, StartError, Stream};
use crate::spec::{Leftovers, Spec};
use crate::sys;
use crate::sys::poll::Event;
use copy::{Shared, State};
use leader::Leader;
use supervise::Ended;
use terminal::recover;
use threads::{Threads, pipes};

/// How long after the leader's end the ends of its streams are waited for: what a short-lived
/// background process still writes is taken, one that holds the pipe does not hold runcap.
pub const DRAIN: Duration = Duration::from_millis(250);

/// How long a process that was sent KILL is waited for: one stuck in the kernel (state D) is
/// reported instead.
pub const KILL_WAIT: Duration = Duration::from_millis(750);

/// From TERM to KILL of a command whose client is gone: nobody waits for what it still has to say,
/// and its place is wanted.
pub const CLIENT_GONE_GRACE: Duration = Duration::from_millis(50);

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
    /// Who may tell this process to end.
    pub end: Option<EndSignals>,
    /// Who may tell this one command to end, as at a deadline.
    pub stop: Option<&'a Stop>,
    /// The grace of the spec is cut to this when this process was told to end.
    pub end_grace_max: Option<Duration>,
    /// Instead of the grace of the spec, when this process was told to end; the command then gets
    /// the signal that this process got.
    pub forward_grace: Option<Duration>,
    /// The terminal that the command shares with this process.
    pub terminal: Option<&'a Terminal>,
    /// Made readable when the command was made to end, or its deadline or a signal came while its
    /// output was still being passed on: a sink whose reader does not read gives up.
    pub give_up: Option<&'a GiveUp>,
    /// Where the answer goes: the command is canceled when its reader is gone (POLLERR, POLLHUP).
    pub reader: Option<BorrowedFd<'a>>,
    /// The connection of a client that waits for the answer: the command is canceled as soon as
    /// the peer has closed it, or half of it (POLLRDHUP), with a grace of [`CLIENT_GONE_GRACE`] at
    /// most.
    pub client: Option<BorrowedFd<'a>>,
    /// Told the leader's pid before any output is passed on, and then again and again.
    pub observer: Option<&'a dyn Observer>,
}

impl Control<'_> {
    /// Nobody: the command ends by itself or at its deadline.
    pub fn none() -> Control<'static> {
        Control {
            end: None,
            stop: None,
            end_grace_max: None,
            forward_grace: None,
            terminal: None,
            give_up: None,
            reader: None,
            client: None,
            observer: None,
        }
    }
}

/// Hears of a command while it runs, on the thread that runs it; so it must never block.
pub trait Observer {
    /// The command was started.
    fn started(&self, pid: u32);

    /// Called about every [`TICK`] while the command runs.
    fn tick(&self);
}

/// Time between two calls of [`Observer::tick`].
pub const TICK: Duration = Duration::from_secs(1);

/// How a process runs commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// Never two at once: an orphan that comes is the running command's.
    OneAtATime,
    /// Any number at once.
    Many,
}

/// What commands get of what this process inherited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inheritance {
    /// Nothing: descriptors beyond 0, 1 and 2 are closed in them, ignored signals get their default
    /// action back.
    Withheld,
    /// Those descriptors, and HUP, INT and QUIT ignored where they were: a command then finds what
    /// it would find without runcap.
    PassedOn,
}

/// Puts this process in order for running commands and nothing else; call it once, before the
/// first.
///
/// What it inherited is withheld from commands or passed on, a write past RLIMIT_FSIZE becomes an
/// error, and the process becomes a subreaper: orphans come to it, and it reaps every child that is
/// not a command's leader. Children that it has already are never signalled.
///
/// # Errors
/// When inherited descriptors cannot be kept from the commands.
pub fn prepare_process(concurrency: Concurrency, inheritance: Inheritance) -> io::Result<()> {
    sys::signal::restore_defaults(inheritance == Inheritance::PassedOn);
    sys::signal::survive_file_size_limit();
    if inheritance == Inheritance::Withheld {
        sys::signal::keep_descriptors_from_children()?;
    }
    // Without it (before Linux 3.4) orphans go to PID 1, and only the group is left to go by.
    let _ = sys::process::become_subreaper();
    registry::take_over(concurrency == Concurrency::OneAtATime);
    // As PID 1 it gets the whole container's orphans, at any time.
    if std::process::id() == 1 || registry::has_others() {
        keeper::reap_from_now_on();
    }
    Ok(())
}

/// Tells sinks that what they cannot write now is not worth a wait.
#[derive(Debug)]
pub struct GiveUp(Event);

impl GiveUp {
    /// Nobody gives up yet.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> io::Result<GiveUp> {
        Ok(GiveUp(Event::new()?))
    }

    /// Readable for good once sinks must give up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Tells one command to end. It takes no descriptor of its own: it wakes the command by one that
/// the command has anyway.
#[derive(Debug, Default)]
pub struct Stop {
    is_told: AtomicBool,
    wake: Mutex<Option<Arc<Event>>>,
}

impl Stop {
    /// Tells it, for good, also before it has begun.
    pub fn tell(&self) {
        self.is_told.store(true, Ordering::SeqCst);
        if let Some(wake) = &*self.wake() {
            wake.notify();
        }
    }

    fn is_told(&self) -> bool {
        self.is_told.load(Ordering::SeqCst)
    }

    /// Has `event` notified when it is told; nobody from now on if that is `None`.
    fn attach(&self, event: Option<&Arc<Event>>) {
        *self.wake() = event.cloned();
        if let Some(event) = event.filter(|_| self.is_told()) {
            event.notify();
        }
    }

    fn wake(&self) -> MutexGuard<'_, Option<Arc<Event>>> {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptors that end what runs when runcap is told to end.
#[derive(Debug, Clone, Copy)]
pub struct EndSignals {
    stop: &'static Event,
    kill: &'static Event,
}

impl EndSignals {
    /// Readable from the first signal on: the command ends as at a deadline.
    pub fn stop(&self) -> BorrowedFd<'static> {
        self.stop.as_fd()
    }

    /// Readable from the second signal on: the command ends without grace.
    pub fn kill(&self) -> BorrowedFd<'static> {
        self.kill.as_fd()
    }
}

/// Takes TERM, INT, HUP and QUIT, so that they end what runs and not this process, up to a third
/// one; call it once.
/// Those that the caller had this process ignore stay ignored.
///
/// # Errors
/// Out of descriptors.
pub fn watch_ending_signals() -> io::Result<EndSignals> {
    // Handlers may run until the process ends, so what they notify lives as long.
    let stop = Box::leak(Box::new(Event::new()?));
    let kill = Box::leak(Box::new(Event::new()?));
    sys::signal::watch_ending(stop, kill);
    Ok(EndSignals { stop, kill })
}

/// Has this process's commands end as if TERM had told it to; nothing more if it was told already.
pub fn tell_to_end() {
    sys::signal::tell_to_end(sys::signal::TERM);
}

/// The signal that told this process to end, if one did.
pub fn told_to_end() -> Option<i32> {
    sys::signal::told_to_end()
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
    // A deadline past the end of the clock is no deadline.
    let deadline = spec.timeout.and_then(|timeout| start.checked_add(timeout));
    // Borrowed again for as long as the threads live, which is shorter than the caller's loan.
    let sinks = Sinks { stdout: &mut *sinks.stdout, stderr: &mut *sinks.stderr };
    let terminal = control.terminal;
    let (ended, duration, leader, held) = thread::scope(|scope| {
        let threads = Threads::start(scope, spec, sinks, &shared)
            .map_err(|source| resources(spec, source))?;
        let foreground = control.terminal.and_then(Terminal::foreground_at_start);
        let started = plan.start(stdio, foreground);
        // The child may have taken it before it failed to execute the program.
        let mut leader = Leader::new(started.inspect_err(|_| recover(terminal, &[]))?);
        if let Some(observer) = control.observer {
            observer.started(leader.pid());
        }
        threads.hand_over(ours);
        let (give_up, end_signals) = (control.give_up, control.end);
        let ended = supervise::supervise(spec, &mut leader, &shared, control, deadline);
        let duration = start.elapsed();
        if let Some(terminal) = terminal {
            terminal.take_back(leader.pid());
        }
        shared.stop();
        // A command that ended by itself leaves all the time there is to those who read.
        let in_time = || supervise::wait_for_sinks(&shared, end_signals, deadline);
        if let Some(give_up) = give_up.filter(|_| ended.end != End::Finished || !in_time()) {
            give_up.0.notify();
        }
        Ok((ended, duration, leader, threads.join()))
    })?;
    let Ended { end, living, killed } = ended;
    // A copy that was held up (by its sink, or for want of a CPU) may see only now that the cap
    // was passed; the answer must not call an output whole that was cut.
    let end = match (end, supervise::overflowed(&shared)) {
        (End::Finished, Some(stream)) => End::OutputLimit(stream),
        (end, _) => end,
    };
    let all_reaped = sweep::reap(&leader);
    let reaped = leader.reap();
    recover(terminal, &living);
    if !living.is_empty() || !all_reaped || reaped.is_none() {
        keeper::reap_from_now_on();
        registry::leave_running(&living);
    }
    if !living.is_empty() && spec.leftovers == Leftovers::Leave {
        keeper::drain(held);
    }
    Ok(Outcome {
        end,
        leader: reaped.map(|reaped| match reaped.status {
            Ok(code) => Exit::Code(code),
            Err(signal) => Exit::Signal(signal),
        }),
        stdout_incomplete: shared.state(Stream::Stdout) != State::Ended,
        stderr_incomplete: shared.state(Stream::Stderr) != State::Ended,
        left_running: !living.is_empty(),
        killed_processes: killed,
        start_time,
        duration,
        cpu: reaped.map_or(Duration::ZERO, |reaped| reaped.cpu),
        max_rss_bytes: reaped.map_or(0, |reaped| reaped.max_rss_bytes),
    })
}

/// How many children of this process no command accounts for: the look that a command pays at its
/// end. Public for the benchmark that measures it.
#[doc(hidden)]
pub fn count_strays() -> usize {
    registry::strays().len()
}

fn resources(spec: &Spec, source: io::Error) -> StartError {
    StartError { stage: Stage::Resources, subject: spec.argv[0].clone(), source }
}

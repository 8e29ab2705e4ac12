//! `POST /v1/exec`: runs one command and sends what it prints while it runs.
//!
//! Each read of a pipe is one event, written to the client before the next read: a slow reader
//! slows the command down, and the server holds nothing for it.

use std::cell::Cell;
use std::io::{Read, Write};
use std::time::Duration;

use crate::live::Events;
use crate::outcome::{End, Exit, Outcome, Stage, StartError, Stream};
use crate::quote::quoted;
use crate::run::{self, Control, Observer, Sinks};
use crate::serve::State;
use crate::serve::body::{NO_MEMORY, read_whole};
use crate::serve::command::{Directory, cannot_enter, log_note, start_error};
use crate::serve::reply::{self, Dialect};
use crate::serve::transport::places::Place;
use crate::serve::transport::{Head, Live, Reply, Unwritten};
use crate::spec::{DEFAULT_GRACE, Env, Keep, Leftovers, Spec, Stdin};
use crate::wire::native::request::Encoding;
use crate::wire::native::response::reason;
use crate::wire::sandbox::exec::{Exec, decode_exec};
use crate::wire::sandbox::process::{self, write_exit};

use super::{Refusal, processes};

/// Runs one command to its end, or starts it in the background if the request says so.
pub(in crate::serve) fn exec<'a>(
    state: &'a State,
    head: &'a Head<'a>,
    body: &mut dyn Read,
) -> Reply<'a> {
    let Some(held) = read_whole(state, head, body) else { return no_memory() };
    let request = match decode_exec(&held.bytes) {
        Ok(request) => request,
        Err(message) => return Refusal::new(400, message).answer().into(),
    };
    // What was decoded is held instead.
    let shares = held.into_shares();
    if request.background {
        return processes::start_decoded(state, head, request, shares);
    }
    let Some(place) = state.commands.take() else {
        return state.commands.busy(Dialect::Sandbox).into();
    };
    let command = match Job::new(state, request, Some(state.settings.timeout_max)) {
        Ok(command) => command,
        Err(refusal) => return refusal.answer().into(),
    };
    let headers = vec![
        reply::header("Content-Type", "application/x-ndjson"),
        reply::header("X-Accel-Buffering", "no"),
    ];
    let write = move |out: &mut (dyn Write + Send)| {
        let _shares = shares;
        run_live(state, head, command, place, out)
    };
    Reply::Live(Live { status: 200, headers, write: Box::new(write) })
}

pub(super) fn no_memory() -> Reply<'static> {
    Refusal::new(503, NO_MEMORY).answer().into()
}

/// A command that a request asks for.
pub(super) struct Job {
    pub(super) spec: Spec,
    /// Until the command is in it.
    pub(super) directory: Directory,
    pub(super) program: String,
    /// As it was sent.
    pub(super) cwd: String,
    pub(super) tag: Option<String>,
}

impl Job {
    /// `timeout` is that of a request that says none.
    pub(super) fn new(
        state: &State,
        request: Exec,
        timeout: Option<Duration>,
    ) -> Result<Job, Refusal> {
        let longest = state.settings.timeout_max;
        let program = request.argv[0].to_string_lossy().into_owned();
        let cwd = request.cwd.as_deref().unwrap_or("");
        let inside = state.root.with_shown(cwd.as_bytes(), |path| state.root.enter(path));
        let directory = inside.map(Directory).map_err(|error| {
            let why = cannot_enter(cwd, &error);
            Refusal::new(400, format!("failed to spawn {}: {why}", quoted(&program)))
        })?;
        let limit = request.limit.limit(usize::MAX, Keep::Head);
        let timeout = request.timeout.map(|timeout| timeout.min(longest)).or(timeout);
        let spec = Spec {
            cwd: Some(directory.path()),
            env: Env { clear: false, set: request.env },
            stdin: request.stdin.map_or(Stdin::Null, Stdin::Bytes),
            grace: request.grace.unwrap_or(DEFAULT_GRACE).min(longest),
            leftovers: Leftovers::Leave,
            ..Spec::new(request.argv, timeout, limit)
        };
        Ok(Job { spec, directory, program, cwd: cwd.to_owned(), tag: request.tag })
    }
}

/// The answer to a command that could not be started.
pub(super) fn not_started(program: &str, cwd: &str, error: &StartError) -> Refusal {
    let status = if error.stage == Stage::Resources { 503 } else { 400 };
    let why = start_error(error, cwd);
    Refusal::new(status, format!("failed to spawn {}: {why}", quoted(program)))
}

fn run_live(
    state: &State,
    head: &Head<'_>,
    command: Job,
    place: Place<'_>,
    out: &mut (dyn Write + Send),
) -> Result<(), Unwritten> {
    let Job { spec, directory, program, cwd, tag } = command;
    let events = Events::new(out, head.client, Encoding::Utf8);
    let mut stdout = events.sink(Stream::Stdout, spec.stdout.cap);
    let mut stderr = events.sink(Stream::Stderr, spec.stderr.cap);
    let observer = Start { events: &events, directory: Cell::new(Some(directory)) };
    let sinks = Sinks { stdout: &mut stdout, stderr: &mut stderr };
    let control =
        Control { client: head.client, observer: Some(&observer), ..state.commands.control() };
    let result = run::run(&spec, sinks, control);
    // Before the last event is sent, since the next command may come at once.
    drop(place);
    let streams = [&stdout, &stderr].map(|sink| (sink.sent(), sink.received()));
    head.note(log_note(result.as_ref().ok(), Some(streams), &program, tag.as_deref()));
    let outcome =
        result.map_err(|error| Unwritten::Instead(not_started(&program, &cwd, &error).answer()))?;
    stdout.finish()?;
    stderr.finish()?;
    let reason = reason(&spec, &outcome);
    let exit = process::Exit {
        exit_code: exit_code(&outcome),
        signal: outcome.leader.and_then(|exit| match exit {
            Exit::Code(_) => None,
            Exit::Signal(signal) => Some(signal),
        }),
        timed_out: outcome.end == End::TimedOut,
        duration: outcome.duration,
        status: outcome.status_name(),
        reason: reason.as_deref(),
        left_running: outcome.left_running,
        killed_processes: outcome.killed_processes,
    };
    events.send_own(|out| write_exit(out, &exit))?;
    Ok(())
}

/// The exit code of a command that has one of its own.
pub(super) fn exit_code(outcome: &Outcome) -> Option<i32> {
    match outcome.leader {
        Some(Exit::Code(code)) => Some(code),
        Some(Exit::Signal(_)) | None => None,
    }
}

/// Sends the first event, and pings.
struct Start<'e, 'a> {
    events: &'e Events<'a>,
    /// Until the command is in it: open files are scarce.
    directory: Cell<Option<Directory>>,
}

impl Observer for Start<'_, '_> {
    fn started(&self, pid: u32) {
        drop(self.directory.take());
        self.events.started(pid);
    }

    fn tick(&self) {
        self.events.tick();
    }
}

//! `runcap serve`: an HTTP server that clients which exist already speak to.
//!
//! [`transport`] gives requests and takes answers, [`auth`] says who is let in, [`routes`] is the
//! API: `picod` and [`sandbox`] are its two dialects, which decode a request, have it carried out
//! and encode what came of it; their files are below the [`root`]. [`log`] writes a line for each
//! answer.

pub mod auth;
mod body;
pub mod budget;
mod command;
pub mod content;
pub mod log;
mod picod;
pub mod reply;
pub mod root;
pub mod routes;
pub mod sandbox;
pub mod transport;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::outcome::{EXIT_FAILURE, exit_code_of_signal};
use crate::run::{self, Concurrency, EndSignals, Inheritance};
use crate::say;
use crate::sys;
use crate::token::Token;
use auth::Guard;
use budget::Budget;
use command::Commands;
use log::{Format, Log};
use root::Root;
use transport::places::Places;
use transport::{Ended, Limits, Listen, Listener};

/// Descriptors that neither connections nor commands are counted with.
pub const DESCRIPTORS_SET_ASIDE: u64 = 32;

/// Descriptors of one command: its pidfd, three pipes of its own and one that is being made.
pub const DESCRIPTORS_OF_A_COMMAND: u64 = 5;

/// What `runcap serve` may be told on its command line.
#[derive(Debug)]
pub struct Options {
    /// Where connections come from.
    pub listen: Listen,
    /// What all paths of clients are below of.
    pub workspace: PathBuf,
    /// What clients must know; `None` lets everybody in.
    pub token: Option<Token>,
    /// Everybody who reaches the server may use it.
    pub no_auth: bool,
    /// What handlers go by.
    pub settings: Settings,
    /// Connections at once.
    pub connections_max: usize,
    /// How long a connection may lie idle.
    pub keep_alive: Duration,
    /// The server ends when it had no connection for so long.
    pub idle_exit: Option<Duration>,
    /// What a line of the log looks like.
    pub log: Format,
}

/// What handlers go by.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes kept of each stream of a command.
    pub cap: usize,
    /// Timeout where a request says nothing.
    pub default_timeout: Duration,
    /// Longest timeout; a longer one is cut to it.
    pub timeout_max: Duration,
    /// Commands at once.
    pub commands_max: usize,
    /// Bytes of a JSON or multipart body.
    pub body_max_bytes: u64,
    /// Bytes of a file that is written raw: of a body, and of the file that it becomes.
    pub file_max_bytes: u64,
    /// Captured bytes of all commands together, beyond what each stream has for nothing; `None` is
    /// a quarter of the memory.
    pub output_budget: Option<u64>,
}

/// What handlers know.
#[derive(Debug)]
pub struct State {
    /// Who is let in.
    pub guard: Guard,
    /// What all paths of clients are below of.
    root: Root,
    settings: Settings,
    commands: Arc<Commands>,
    output_budget: Arc<Budget>,
    /// For bodies that are held.
    body_budget: Arc<Budget>,
    /// For bodies that are not.
    large_buffers: Places,
    start: Instant,
    log: Arc<Log>,
}

impl State {
    /// The state of a server that begins now.
    pub fn new(
        guard: Guard,
        root: Root,
        settings: Settings,
        end: Option<EndSignals>,
        log: Log,
    ) -> State {
        let log = Arc::new(log);
        let quarter = sys::cgroup::memory_max().map_or(QUARTER_UNKNOWN_BYTES, |bytes| bytes / 4);
        State {
            guard,
            root,
            settings,
            commands: Arc::new(Commands::new(settings.commands_max, end, Arc::clone(&log))),
            output_budget: Budget::new(settings.output_budget.unwrap_or(quarter)),
            body_budget: Budget::new(quarter),
            large_buffers: Places::default(),
            start: Instant::now(),
            log,
        }
    }
}

/// How long processes in the background are waited for once nothing else is left of the server.
pub const PROCESSES_END_MAX: Duration = Duration::from_secs(2);

/// A quarter of the memory where neither the control group nor /proc tells how much there is.
const QUARTER_UNKNOWN_BYTES: u64 = 64 << 20;

/// Serves until a signal says so, and returns runcap's exit code: 0 when every request that had
/// come was answered, 128+n when signal n left no time for that, 125 when it could not begin.
pub fn serve(options: Options) -> u8 {
    match try_serve(options) {
        Ok(Ended::Answered) => 0,
        Ok(Ended::CutShort) => {
            // Nobody waits for the threads that write them.
            root::abandon_all();
            run::told_to_end().map_or(EXIT_FAILURE, exit_code_of_signal)
        }
        Err(error) => {
            say(format_args!("{error}"));
            EXIT_FAILURE
        }
    }
}

fn try_serve(options: Options) -> Result<Ended, Failure> {
    let root = Root::open(&options.workspace)
        .map_err(|error| Failure::Workspace(options.workspace.clone(), error))?;
    // Before the first command and the first thread.
    sys::secret::hide_memory();
    sys::alloc::give_back_large_blocks();
    run::prepare_process(Concurrency::Many, Inheritance::Withheld).map_err(Failure::Prepare)?;
    let end = run::watch_ending_signals().map_err(Failure::Prepare)?;
    let listener = Listener::bind(&options.listen)
        .map_err(|error| Failure::Listen(options.listen.clone(), error))?;
    let is_open = options.token.is_none() && !options.no_auth;
    if is_open && listener.address().is_some() && !listener.is_loopback() {
        return Err(Failure::Open);
    }
    let files = sys::rlimit::open_files_max();
    // A server that listens and can accept nobody would look alive.
    let spare = (0..=DESCRIPTORS_OF_A_COMMAND).map(|_| listener.as_fd().try_clone_to_owned());
    if let Err(error) = spare.collect::<io::Result<Vec<OwnedFd>>>() {
        return Err(Failure::Descriptors(files, error));
    }
    let mut settings = options.settings;
    let wanted = Capacity { commands: settings.commands_max, connections: options.connections_max };
    let mut budget = wanted.within(files);
    if budget != wanted {
        say(format_args!(
            "{files} open files (ulimit -n) carry {} commands and {} connections at once",
            budget.commands, budget.connections
        ));
    }
    let space = sys::rlimit::address_space_max();
    let carried = connections_within(space);
    if carried < budget.connections {
        budget.connections = carried;
        say(format_args!("{space} bytes of address space (ulimit -v) carry {carried} connections"));
    }
    let foreign_hosts = options.token.is_some() || !listener.is_loopback();
    let guard = Guard { token: options.token, foreign_hosts };
    settings.commands_max = budget.commands;
    let log = Log::new(options.log).map_err(Failure::Prepare)?;
    let state = Arc::new(State::new(guard, root, settings, Some(end), log));
    say(format_args!("listening on {listener}"));
    let limits = Limits {
        connections: budget.connections,
        keep_alive: options.keep_alive,
        idle_exit: options.idle_exit,
    };
    let ended = transport::serve(listener, limits, Some(end), Arc::clone(&state));
    // Nobody came for a while: what runs in the background ends as at a signal.
    run::tell_to_end();
    state.commands.processes.wait_for_all(PROCESSES_END_MAX);
    state.log.flush();
    Ok(ended)
}

/// How much a server takes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Capacity {
    commands: usize,
    connections: usize,
}

impl Capacity {
    /// Lowered to what so many open files carry: connections first, down to the number of
    /// commands, then both; never below 2.
    fn within(self, open_files: u64) -> Capacity {
        let files = open_files.saturating_sub(DESCRIPTORS_SET_ASIDE);
        let (commands, connections) = (self.commands as u64, self.connections as u64);
        let even = files / (DESCRIPTORS_OF_A_COMMAND + 1);
        let beside = files.saturating_sub(connections) / DESCRIPTORS_OF_A_COMMAND;
        let commands = commands.min(beside.max(even));
        let connections =
            connections.min(files.saturating_sub(commands * DESCRIPTORS_OF_A_COMMAND));
        let least_2 = |count: u64, wanted: usize| {
            wanted.min(usize::try_from(count).unwrap_or(usize::MAX).max(2))
        };
        Capacity {
            commands: least_2(commands, self.commands),
            connections: least_2(connections, self.connections),
        }
    }
}

/// Connections that so much address space carries, never below 2. A thread that finds none for its
/// signal stack ends the process, so it must not come to that.
fn connections_within(address_space: u64) -> usize {
    let space = address_space.saturating_sub(ADDRESS_SPACE_SET_ASIDE);
    usize::try_from(space / ADDRESS_SPACE_OF_A_CONNECTION).unwrap_or(usize::MAX).max(2)
}

/// Address space that no connection is counted with, bytes: the program, and output that is kept.
const ADDRESS_SPACE_SET_ASIDE: u64 = 32 << 20;

/// Address space of a connection, bytes: its thread's stacks with their guards, a head, buffers.
const ADDRESS_SPACE_OF_A_CONNECTION: u64 = 512 << 10;

/// Why a server could not begin.
#[derive(Debug)]
enum Failure {
    Workspace(PathBuf, io::Error),
    Prepare(io::Error),
    Listen(Listen, io::Error),
    /// With the limit on open files.
    Descriptors(u64, io::Error),
    Open,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Workspace(path, error) => {
                write!(f, "cannot use the workspace {}: {error}", path.display())
            }
            Failure::Prepare(error) => {
                write!(f, "cannot put this process in order for running commands: {error}")
            }
            Failure::Listen(listen, error) => write!(f, "cannot listen on {listen}: {error}"),
            Failure::Descriptors(files, error) => write!(
                f,
                "{files} open files (ulimit -n) do not carry one connection and one command: \
                 {error}"
            ),
            Failure::Open => f.write_str(
                "anybody who reaches this address could run commands: give clients a token \
                 (--token-file or RUNCAP_TOKEN), or say --no-auth",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Capacity;

    #[test]
    fn open_files_bound_commands_and_connections() {
        let budget = |commands, connections| Capacity { commands, connections };
        let rows = [
            ("plenty", budget(128, 512), 1 << 20, budget(128, 512)),
            ("just enough", budget(128, 512), 32 + 5 * 128 + 512, budget(128, 512)),
            ("one less", budget(128, 512), 31 + 5 * 128 + 512, budget(128, 511)),
            ("usual", budget(128, 512), 1024, budget(128, 352)),
            ("few", budget(128, 512), 140, budget(18, 18)),
            ("hardly any", budget(128, 512), 16, budget(2, 2)),
            ("few connections wanted", budget(128, 10), 140, budget(19, 10)),
            ("one command wanted", budget(1, 512), 140, budget(1, 103)),
            ("one of each wanted", budget(1, 1), 16, budget(1, 1)),
        ];
        for (name, wanted, files, expected) in rows {
            assert_eq!(wanted.within(files), expected, "{name}");
        }
    }
}

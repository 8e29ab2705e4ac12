//! What to run, and within which bounds.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes kept of one stream unless the caller says otherwise: 10 MiB.
pub const DEFAULT_CAP_BYTES: usize = 10 << 20;

/// The largest cap a request may ask for: 256 MiB a stream.
pub const CAP_MAX_BYTES: usize = 256 << 20;

/// Time between TERM and KILL unless the caller says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_millis(500);

/// One command and everything that bounds it. There is no `Default`: whoever runs a command
/// says its limits.
#[derive(Debug)]
pub struct Spec {
    /// The program and its arguments; the first is the program. Never empty, no NUL inside.
    ///
    /// A program without a slash is looked up in the child's own `PATH`; a relative one is taken
    /// from the child's working directory.
    pub argv: Vec<OsString>,
    /// The child's working directory; `None` is runcap's own.
    pub cwd: Option<PathBuf>,
    /// The child's environment.
    pub env: Env,
    /// What the child finds on descriptor 0.
    pub stdin: Stdin,
    /// When the command is ended, counted from its start; `None` is never.
    pub timeout: Option<Duration>,
    /// Time between TERM and KILL once the command must end; zero is KILL at once.
    pub grace: Duration,
    /// What the child finds on descriptors 1 and 2.
    pub outputs: Outputs,
    /// Bounds of standard output.
    pub stdout: Limit,
    /// Bounds of standard error; unused with `merge_stderr`.
    pub stderr: Limit,
    /// Standard error goes into standard output's pipe, in true order.
    pub merge_stderr: bool,
    /// What happens to processes that outlive the leader of a command that ended by itself.
    pub leftovers: Leftovers,
    /// Resource limits set on the child, see setrlimit(2).
    pub rlimits: Rlimits,
    /// The leader begins a session of its own, without a terminal.
    pub new_session: bool,
    /// The leader is killed when the thread that runs it dies, SIGKILL of runcap included.
    pub die_with_parent: bool,
}

impl Spec {
    /// `argv` within `timeout` and, for each stream, `limit`. Everything else as a command expects
    /// that nobody asked anything special for: inherited directory and environment, no stdin, what
    /// it leaves behind is killed.
    pub fn new(argv: Vec<OsString>, timeout: Option<Duration>, limit: Limit) -> Spec {
        Spec {
            argv,
            cwd: None,
            env: Env::default(),
            stdin: Stdin::Null,
            timeout,
            grace: DEFAULT_GRACE,
            outputs: Outputs::Read,
            stdout: limit,
            stderr: limit,
            merge_stderr: false,
            leftovers: Leftovers::Kill,
            rlimits: Rlimits::default(),
            new_session: false,
            die_with_parent: false,
        }
    }
}

/// The child's environment: `set` over what runcap inherited, or over nothing.
#[derive(Debug, Default)]
pub struct Env {
    /// Start from an empty environment.
    pub clear: bool,
    /// Variables to set. No key is empty or holds `=`; no NUL anywhere.
    pub set: Vec<(OsString, OsString)>,
}

/// What the child finds on descriptor 0.
#[derive(Debug)]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// A pipe that is fed these bytes while output is read, then closed.
    Bytes(Vec<u8>),
    /// This file, from where it stands.
    File(std::fs::File),
    /// runcap's own.
    Inherit,
}

/// What the child finds on descriptors 1 and 2. Unless they are read no limit applies to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// Pipes, of which runcap reads the other ends.
    Read,
    /// runcap's own.
    Inherit,
    /// `/dev/null`.
    Null,
}

/// How much of one stream is kept, which part, and what happens past it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Raw bytes kept at most.
    pub cap: usize,
    /// Which part is kept.
    pub keep: Keep,
    /// What the first byte past the cap does.
    pub overflow: Overflow,
}

/// What was said of a stream's limit, or of both streams'.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The cap, 1 to [`CAP_MAX_BYTES`].
    pub cap: Option<usize>,
    /// Which part is kept.
    pub keep: Option<Keep>,
    /// What the first byte past the cap does.
    pub overflow: Option<Overflow>,
}

impl Part {
    /// What is said here, or else in `general`.
    pub fn or(self, general: Part) -> Part {
        Part {
            cap: self.cap.or(general.cap),
            keep: self.keep.or(general.keep),
            overflow: self.overflow.or(general.overflow),
        }
    }

    /// Whether it asks for a part that a stopped stream cannot keep: its end is not known.
    pub fn keeps_what_stop_cannot(&self) -> bool {
        let other = self.keep.is_some_and(|keep| keep != Keep::Head);
        other && self.overflow == Some(Overflow::Stop)
    }

    /// The limit, with `cap` and `keep` where nothing is said; a stopped stream keeps its head.
    pub fn limit(self, cap: usize, keep: Keep) -> Limit {
        let overflow = self.overflow.unwrap_or(Overflow::Discard);
        let keep = if overflow == Overflow::Stop { Keep::Head } else { keep };
        Limit { cap: self.cap.unwrap_or(cap), keep: self.keep.unwrap_or(keep), overflow }
    }
}

/// Which part of a stream is kept once it passes its cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The first bytes.
    Head,
    /// The last bytes.
    Tail,
    /// The first four fifths and the last fifth of the cap (the fifth rounded down).
    HeadTail,
}

/// What the first byte past the cap does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// The stream is drained and counted; the command notices nothing.
    Discard,
    /// The command is killed at once, without grace.
    Stop,
}

/// Every [`Keep`] by the name it has in every dialect.
pub const KEEP: [(&str, Keep); 3] =
    [("head", Keep::Head), ("tail", Keep::Tail), ("head+tail", Keep::HeadTail)];

/// Every [`Overflow`] by the name it has in every dialect.
pub const OVERFLOW: [(&str, Overflow); 2] =
    [("discard", Overflow::Discard), ("stop", Overflow::Stop)];

/// What happens to processes of the command that outlive its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// They are killed and counted.
    Kill,
    /// They live on.
    Leave,
}

/// Resource limits of the command. Each is an upper bound: it is lowered to the hard limit that
/// runcap itself has, never raised above it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Rlimits {
    /// Address space of each process, bytes (RLIMIT_AS).
    pub memory: Option<u64>,
    /// Processes of the command's user (RLIMIT_NPROC); does not hold root.
    pub processes: Option<u64>,
    /// Open descriptors of each process (RLIMIT_NOFILE).
    pub open_files: Option<u64>,
    /// Size of a file a process may write, bytes (RLIMIT_FSIZE).
    pub file_size: Option<u64>,
    /// CPU seconds of each process (RLIMIT_CPU): SIGXCPU there, SIGKILL one second later.
    pub cpu_seconds: Option<u64>,
    /// Size of a core file, bytes (RLIMIT_CORE).
    pub core: Option<u64>,
}

impl Rlimits {
    /// Whether any limit is set.
    pub fn any(&self) -> bool {
        *self != Rlimits::default()
    }
}

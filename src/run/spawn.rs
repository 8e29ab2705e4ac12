//! From a `Spec` to a running leader in its own process group, or to the stage that failed.
//!
//! The only place that starts a process. std's `Command` uses posix_spawn (vfork-like: no copy of
//! the page tables, so its cost does not grow with runcap's memory) as long as the program is a
//! path and nothing has to run between fork and exec. So the program is looked up here, in the
//! child's own `PATH`, and only limits, `die_with_parent`, a new session and handing over a
//! terminal take the fork path. The loser was a fork of our own for everything: measured, 50 times
//! slower with 1 GB touched.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::outcome::{Stage, StartError};
use crate::spec::{Env, Spec};
use crate::sys::{self, errno};

use super::registry::{self, Started};

/// Where a program is looked up when the child has no `PATH`: what musl's execvp takes.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

/// How long a program that somebody still writes to (ETXTBSY) is tried again. Such a writer is
/// usually another thread's child between its fork and its exec.
const BUSY_WINDOW: Duration = Duration::from_millis(50);

/// Pause between two tries on a busy program.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// A command whose program and working directory were found, ready to be started.
pub(super) struct Plan<'a> {
    spec: &'a Spec,
    program: PathBuf,
}

/// Finds the working directory and the program.
///
/// # Errors
/// Stage `Cwd`, `NotFound` or `NotExecutable`, with the name that the caller gave.
pub(super) fn plan(spec: &Spec) -> Result<Plan<'_>, StartError> {
    check_cwd(spec)?;
    let name = spec.argv.first().ok_or_else(|| StartError {
        stage: Stage::NotFound,
        subject: OsString::new(),
        source: ErrorKind::InvalidInput.into(),
    })?;
    let program = find_program(spec, name).map_err(|source| program_error(name, source))?;
    Ok(Plan { spec, program })
}

impl Plan<'_> {
    /// Starts the leader with these three descriptors, in the foreground of the terminal
    /// `foreground` if that is given; the three are closed here when it has them.
    ///
    /// # Errors
    /// Any stage; nothing of the command ran.
    pub(super) fn start(
        &self,
        stdio: [Stdio; 3],
        foreground: Option<RawFd>,
    ) -> Result<Started, StartError> {
        let spec = self.spec;
        let [stdin, stdout, stderr] = stdio;
        let mut command = Command::new(&self.program);
        command.arg0(&spec.argv[0]).args(&spec.argv[1..]);
        // A session's leader leads a group too, and the leader of a group cannot begin a session.
        if !spec.new_session {
            command.process_group(0);
        }
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        if let Some(cwd) = &spec.cwd {
            command.current_dir(cwd);
        }
        if spec.env.clear {
            command.env_clear();
        }
        command.envs(spec.env.set.iter().map(|(key, value)| (key, value)));
        if sys::exec::needs_code(spec, foreground) {
            let env = whole_env(&spec.env);
            sys::exec::exec_in_child(&mut command, &self.program, env, spec, foreground)
                .map_err(|source| self.error(source))?;
        }
        spawn_when_not_busy(&mut command).map_err(|source| self.error(source))
    }

    /// What went wrong, told from the system's answer and from what stands on disk now.
    fn error(&self, source: io::Error) -> StartError {
        // posix_spawn gives one errno for all it does, so the directory is looked at again.
        if let Err(error) = check_cwd(self.spec) {
            return error;
        }
        if source.kind() == ErrorKind::NotFound && from_child(self.spec, &self.program).exists() {
            let subject = self.program.clone().into_os_string();
            return StartError { stage: Stage::Interpreter, subject, source };
        }
        program_error(&self.spec.argv[0], source)
    }
}

fn spawn_when_not_busy(command: &mut Command) -> io::Result<Started> {
    let start = Instant::now();
    loop {
        // The `Child` is let go: the leader is observed and reaped by number, reaped last.
        match registry::start(|| command.spawn().map(|child| child.id())) {
            Ok(started) => return Ok(started),
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy
                    && start.elapsed() < BUSY_WINDOW =>
            {
                std::thread::sleep(BUSY_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
}

fn check_cwd(spec: &Spec) -> Result<(), StartError> {
    let Some(cwd) = &spec.cwd else { return Ok(()) };
    let entered = std::fs::metadata(cwd).and_then(|found| match found.is_dir() {
        true => sys::exec::may_execute(cwd),
        false => Err(io::Error::from_raw_os_error(errno::ENOTDIR)),
    });
    let subject = || cwd.clone().into_os_string();
    entered.map_err(|source| StartError { stage: Stage::Cwd, subject: subject(), source })
}

/// The program as the child will execute it: with a slash as it is (relative to the child's
/// working directory), else the first executable file of that name in the child's `PATH`.
fn find_program(spec: &Spec, name: &OsStr) -> io::Result<PathBuf> {
    let not_found = io::Error::from_raw_os_error(errno::ENOENT);
    if name.is_empty() {
        return Err(not_found);
    }
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let mut error = not_found;
    for directory in child_path(&spec.env).as_bytes().split(|byte| *byte == b':') {
        // An empty entry is the working directory (POSIX, "PATH"): the child's, never runcap's.
        let directory = if directory.is_empty() { b"." } else { directory };
        let candidate = Path::new(OsStr::from_bytes(directory)).join(name);
        match executable(&from_child(spec, &candidate)) {
            Ok(()) => return Ok(candidate),
            // As execvp(3): a file that may not be executed is remembered, the search goes on.
            Err(denied) if denied.kind() == ErrorKind::PermissionDenied => error = denied,
            Err(_) => {}
        }
    }
    Err(error)
}

fn executable(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path)?.is_file() {
        sys::exec::may_execute(path)
    } else {
        Err(io::Error::from_raw_os_error(errno::EACCES))
    }
}

/// `path` as runcap reaches what the child means by it.
fn from_child<'a>(spec: &Spec, path: &'a Path) -> Cow<'a, Path> {
    match &spec.cwd {
        Some(cwd) if path.is_relative() => cwd.join(path).into(),
        _ => path.into(),
    }
}

fn child_path(env: &Env) -> OsString {
    let set = env.set.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone());
    let inherited = || if env.clear { None } else { std::env::var_os("PATH") };
    set.or_else(inherited).unwrap_or_else(|| DEFAULT_PATH.into())
}

/// The child's environment, variable by variable.
fn whole_env(env: &Env) -> Vec<(OsString, OsString)> {
    let inherited = std::env::vars_os().filter(|_| !env.clear);
    // A map, so that the last value of a variable wins, as in std's `Command`.
    let mut all = BTreeMap::new();
    all.extend(inherited.chain(env.set.iter().cloned()));
    all.into_iter().collect()
}

/// The stage that an error of the spawn itself belongs to.
fn program_error(name: &OsStr, source: io::Error) -> StartError {
    const RESOURCES: [i32; 4] = [errno::EAGAIN, errno::ENOMEM, errno::EMFILE, errno::ENFILE];
    let stage = match source.raw_os_error() {
        Some(errno::ENOENT) => Stage::NotFound,
        Some(errno::E2BIG) => Stage::Arguments,
        Some(code) if !RESOURCES.contains(&code) => Stage::NotExecutable,
        _ => Stage::Resources,
    };
    StartError { stage, subject: name.to_owned(), source }
}

//! Before and between fork and exec: may this be executed, and what the child does to itself.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

use super::{rlimit, terminal};
use crate::spec::Spec;

/// Whether runcap may execute the file, or enter the directory, at `path`.
///
/// # Errors
/// As faccessat(2): ENOENT, ENOTDIR, EACCES.
pub(crate) fn may_execute(path: &Path) -> io::Result<()> {
    let path = c_string(path.as_os_str().to_owned())?;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    let result =
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    super::check(result).map(drop)
}

/// Whether `spec`, or handing a terminal over, needs code of ours in the child.
pub(crate) fn needs_code(spec: &Spec, foreground: Option<RawFd>) -> bool {
    spec.rlimits.any() || spec.die_with_parent || spec.new_session || foreground.is_some()
}

/// Makes the child of `command` begin a session, take the foreground of the terminal `foreground`,
/// set its limits, tie its life to that of the calling thread (PR_SET_PDEATHSIG(2const)), each
/// where it is asked for, and execute `program` itself.
///
/// This takes std's fork path, since posix_spawn has no place for any of it. There std would call
/// execvp, which hands a script without `#!` to a shell under glibc and not under musl; with an
/// execve of our own it fails the same way everywhere.
///
/// # Errors
/// A NUL in an argument, a variable or the program.
pub(crate) fn exec_in_child(
    command: &mut Command,
    program: &Path,
    env: Vec<(OsString, OsString)>,
    spec: &Spec,
    foreground: Option<RawFd>,
) -> io::Result<()> {
    let env = env.into_iter().map(|(mut variable, value)| {
        variable.push("=");
        variable.push(value);
        variable
    });
    let image = Image {
        program: c_string(program.as_os_str().to_owned())?,
        argv: CStrings::new(spec.argv.iter().cloned())?,
        env: CStrings::new(env)?,
        limits: rlimit::Settings::new(&spec.rlimits),
        new_session: spec.new_session,
        foreground,
        die_with: spec.die_with_parent.then(|| std::process::id() as libc::pid_t),
    };
    // SAFETY: between fork and exec `become_image` makes only async-signal-safe calls and
    // allocates nothing; all it uses was built above.
    unsafe { command.pre_exec(move || Err(image.become_image())) };
    Ok(())
}

/// All that the child needs once it is forked.
struct Image {
    program: CString,
    argv: CStrings,
    env: CStrings,
    limits: rlimit::Settings,
    new_session: bool,
    foreground: Option<RawFd>,
    die_with: Option<libc::pid_t>,
}

impl Image {
    /// Does what was asked for and executes the program; returns only with the reason why not.
    fn become_image(&self) -> io::Error {
        match self.prepare() {
            Ok(()) => self.execute(),
            Err(error) => error,
        }
    }

    fn prepare(&self) -> io::Result<()> {
        if self.new_session {
            // SAFETY: setsid takes nothing.
            super::check(unsafe { libc::setsid() })?;
        }
        if let Some(terminal) = self.foreground {
            // SAFETY: getpid takes nothing and cannot fail.
            let group = unsafe { libc::getpid() };
            // The terminal may have hung up or moved on: no reason not to run.
            let _ = terminal::set_foreground_raw(terminal, group);
        }
        self.limits.apply()?;
        if let Some(parent) = self.die_with {
            let signal = libc::SIGKILL as libc::c_ulong;
            // SAFETY: PR_SET_PDEATHSIG takes one number.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
            // A parent that died before the call above sends nothing any more.
            // SAFETY: getppid takes nothing and cannot fail.
            if unsafe { libc::getppid() } != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    }

    fn execute(&self) -> io::Error {
        // SAFETY: a path and two null-terminated arrays of NUL-terminated strings, all alive.
        unsafe {
            libc::execve(self.program.as_ptr(), self.argv.pointers(), self.env.pointers());
        }
        io::Error::last_os_error()
    }
}

/// Strings and the null-terminated array of pointers to them that execve(2) wants.
struct CStrings {
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

// SAFETY: the pointers lead into heap blocks that `_strings` owns and that never change again.
unsafe impl Send for CStrings {}
// SAFETY: as above: nothing is written through a shared reference.
unsafe impl Sync for CStrings {}

impl CStrings {
    fn new(strings: impl Iterator<Item = OsString>) -> io::Result<CStrings> {
        let strings = strings.map(c_string).collect::<io::Result<Vec<_>>>()?;
        let ends = std::iter::once(ptr::null());
        let pointers = strings.iter().map(|string| string.as_ptr()).chain(ends).collect();
        Ok(CStrings { _strings: strings, pointers })
    }

    fn pointers(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

fn c_string(string: OsString) -> io::Result<CString> {
    CString::new(string.into_vec()).map_err(io::Error::from)
}

//! Before and between fork and exec: may this be executed, and resource limits of the child.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

use crate::spec::Rlimits;

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

/// Makes `command` set `limits` on the child and execute `program` itself.
///
/// This takes std's fork path, since posix_spawn has no place for limits. There std would call
/// execvp, which hands a script without `#!` to a shell under glibc and not under musl; with an
/// execve of our own it fails the same way everywhere.
///
/// # Errors
/// A NUL in an argument, a variable or the program.
pub(crate) fn limit_child(
    command: &mut Command,
    program: &Path,
    argv: &[OsString],
    env: Vec<(OsString, OsString)>,
    limits: &Rlimits,
) -> io::Result<()> {
    let env = env.into_iter().map(|(mut variable, value)| {
        variable.push("=");
        variable.push(value);
        variable
    });
    let image = Image {
        program: c_string(program.as_os_str().to_owned())?,
        argv: CStrings::new(argv.iter().cloned())?,
        env: CStrings::new(env)?,
        limits: settings(limits),
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
    limits: Vec<(Resource, libc::rlimit)>,
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

impl Image {
    /// Sets the limits and executes the program; returns only with the reason why not.
    fn become_image(&self) -> io::Error {
        for (resource, limit) in &self.limits {
            // SAFETY: prlimit on pid 0 (ourselves) reads `limit` and writes nothing back.
            if unsafe { libc::prlimit(0, *resource, limit, ptr::null_mut()) } == -1 {
                return io::Error::last_os_error();
            }
        }
        // SAFETY: a path and two null-terminated arrays of NUL-terminated strings, all alive.
        unsafe {
            libc::execve(self.program.as_ptr(), self.argv.pointers(), self.env.pointers());
        }
        io::Error::last_os_error()
    }
}

/// The limits to set: never above the hard limit that runcap itself has, so setting cannot fail.
fn settings(limits: &Rlimits) -> Vec<(Resource, libc::rlimit)> {
    let wanted = [
        (libc::RLIMIT_AS, limits.memory, 0),
        (libc::RLIMIT_NPROC, limits.processes, 0),
        (libc::RLIMIT_NOFILE, limits.open_files, 0),
        (libc::RLIMIT_FSIZE, limits.file_size, 0),
        // The kernel looks at the hard limit first: equal limits would skip SIGXCPU.
        (libc::RLIMIT_CPU, limits.cpu_seconds, 1),
        (libc::RLIMIT_CORE, limits.core, 0),
    ];
    let mut settings = Vec::new();
    for (resource, value, hard_above) in wanted {
        let Some(value) = value else { continue };
        let own = hard_limit(resource);
        let value = libc::rlim_t::from(value);
        settings.push((
            resource,
            libc::rlimit {
                rlim_cur: value.min(own),
                rlim_max: value.saturating_add(hard_above).min(own),
            },
        ));
    }
    settings
}

fn hard_limit(resource: Resource) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: prlimit on pid 0 with a null new limit only writes `limit`, which outlives the call.
    unsafe { libc::prlimit(0, resource, ptr::null(), &mut limit) };
    limit.rlim_max
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

//! Resource limits: those of the child, and the one that marks a command's processes.

use std::io;
use std::ptr;

use super::feature::{Feature, allowed};
use crate::spec::Rlimits;

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// Limits ready to be set, which then needs no memory and cannot fail.
pub(super) struct Settings(Vec<(Resource, libc::rlimit)>);

impl Settings {
    /// `limits`, each lowered to the hard limit that runcap itself has.
    pub(super) fn new(limits: &Rlimits) -> Settings {
        let wanted = [
            (libc::RLIMIT_AS, limits.memory, 0),
            (libc::RLIMIT_NPROC, limits.processes, 0),
            (libc::RLIMIT_NOFILE, limits.open_files, 0),
            (libc::RLIMIT_FSIZE, limits.file_size, 0),
            // The kernel looks at the hard limit first: equal limits would skip SIGXCPU.
            (libc::RLIMIT_CPU, limits.cpu_seconds, 1),
            (libc::RLIMIT_CORE, limits.core, 0),
        ];
        let settings = wanted.into_iter().filter_map(|(resource, value, hard_above)| {
            let (value, own) = (value?, get(resource).rlim_max);
            let limit = libc::rlimit {
                rlim_cur: value.min(own),
                rlim_max: value.saturating_add(hard_above).min(own),
            };
            Some((resource, limit))
        });
        Settings(settings.collect())
    }

    /// Sets the limits on the calling process; async-signal-safe.
    pub(super) fn apply(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|(resource, limit)| set(*resource, limit))
    }
}

fn get(resource: Resource) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: prlimit on pid 0 (ourselves) with a null new limit only writes `limit`, which
    // outlives the call.
    unsafe { libc::prlimit(0, resource, ptr::null(), &mut limit) };
    limit
}

fn set(resource: Resource, limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: prlimit on pid 0 (ourselves) reads `limit` and writes nothing back.
    super::check(unsafe { libc::prlimit(0, resource, limit, ptr::null_mut()) }).map(drop)
}

/// Descriptors that this process may have open: the soft RLIMIT_NOFILE.
pub(crate) fn open_files_max() -> u64 {
    get(libc::RLIMIT_NOFILE).rlim_cur
}

/// Bytes of address space that this process may have: the soft RLIMIT_AS.
pub(crate) fn address_space_max() -> u64 {
    get(libc::RLIMIT_AS).rlim_cur
}

/// The least mark: as a time, 142 years of uninterrupted real-time computing, which no process
/// meets, so the limit itself changes nothing.
pub(crate) const MARK_FIRST: u64 = 1 << 52;

/// The first number past all marks.
const MARK_END: u64 = 1 << 53;

/// Whether a soft RLIMIT_RTTIME is a mark.
fn is_mark(soft: u64) -> bool {
    (MARK_FIRST..MARK_END).contains(&soft)
}

/// What the mark can do here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MarkUse {
    /// Commands can be marked.
    Works,
    /// runcap carries the mark of a runcap above it, and leaves it on its own commands.
    Nested,
    /// A finite limit is in the way, or the kernel does not show the limit.
    Unavailable,
}

/// Finds out what the mark can do here.
pub(crate) fn mark_use() -> MarkUse {
    let own = get(libc::RLIMIT_RTTIME);
    if is_mark(own.rlim_cur) {
        return MarkUse::Nested;
    }
    // A finite soft limit is somebody's wish for the commands too, and not to be loosened.
    let free = own.rlim_cur == libc::RLIM_INFINITY && own.rlim_max >= MARK_END;
    if !allowed(Feature::Mark) || !free {
        return MarkUse::Unavailable;
    }
    let shown = with_mark(MARK_FIRST, || mark_of(std::process::id()));
    if shown == Some(MARK_FIRST) { MarkUse::Works } else { MarkUse::Unavailable }
}

/// Runs `spawn` with `mark` on this process, so that a child it starts inherits it. The caller
/// holds the lock under which all children are started.
pub(crate) fn with_mark<T>(mark: u64, spawn: impl FnOnce() -> T) -> T {
    let own = get(libc::RLIMIT_RTTIME);
    // Neither call can fail: the soft limit stays at or below the hard one, which was looked at.
    let _ = set(libc::RLIMIT_RTTIME, &libc::rlimit { rlim_cur: mark, ..own });
    let result = spawn();
    let _ = set(libc::RLIMIT_RTTIME, &own);
    result
}

/// The mark on process `pid`, if it has one (/proc/PID/limits, proc_pid_limits(5)).
pub(crate) fn mark_of(pid: u32) -> Option<u64> {
    let text = super::proc::read(&format!("/proc/{pid}/limits")).ok()?;
    let text = str::from_utf8(&text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    let soft = line.split_whitespace().next()?.parse().ok()?;
    is_mark(soft).then_some(soft)
}

//! Processes: a descriptor for one, signals to one and to a group, how one ended.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::feature::{Feature, allowed};

/// A descriptor that becomes readable when process `pid` ends; close-on-exec by itself.
///
/// # Errors
/// As pidfd_open(2): ENOSYS before Linux 5.3, EPERM under some sandboxes, out of descriptors.
pub(crate) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    if !allowed(Feature::Pidfd) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let none: libc::c_uint = 0;
    // SAFETY: pidfd_open takes a pid and a flag word, both plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, none) };
    let fd = super::check(fd as libc::c_int)?;
    // SAFETY: the call above returned a descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends `signal` to the process that `pidfd` stands for, and to no other that has its number now.
///
/// # Errors
/// As pidfd_send_signal(2): ESRCH when it is gone, EPERM.
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let none: libc::c_uint = 0;
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is borrowed, hence open; a null siginfo asks for kill(2)'s own.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, none)
    };
    super::check(result as libc::c_int).map(drop)
}

/// Makes orphans among this process's descendants its own children (PR_SET_CHILD_SUBREAPER).
///
/// # Errors
/// As prctl(2): EINVAL before Linux 3.4.
pub(crate) fn become_subreaper() -> io::Result<()> {
    let on: libc::c_ulong = 1;
    // SAFETY: PR_SET_CHILD_SUBREAPER takes one number.
    super::check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, on) }).map(drop)
}

/// Sends `signal` to every process of group `group`.
///
/// # Errors
/// As kill(2): ESRCH when the group is empty, EPERM when none may be signalled.
pub(crate) fn kill_group(group: u32, signal: i32) -> io::Result<()> {
    let group = libc::pid_t::try_from(group).expect("the kernel's pids fit pid_t");
    assert!(group > 1, "kill(-1) would reach every process");
    // SAFETY: kill takes two plain numbers.
    super::check(unsafe { libc::kill(-group, signal) })?;
    Ok(())
}

/// Sends `signal` to every process of this process's own group, itself included.
pub(crate) fn signal_own_group(signal: i32) {
    // SAFETY: kill takes two plain numbers; 0 is this process's own group, which is not empty.
    unsafe { libc::kill(0, signal) };
}

/// Whether group `group` has a process, zombie or not.
pub(crate) fn group_exists(group: u32) -> bool {
    let group = libc::pid_t::try_from(group).expect("the kernel's pids fit pid_t");
    // SAFETY: kill takes two plain numbers, and signal 0 asks only.
    let asked = super::check(unsafe { libc::kill(-group, 0) });
    group > 1 && asked.map_or_else(|error| error.raw_os_error() != Some(libc::ESRCH), |_| true)
}

/// The process group of `pid`, zombie or not.
///
/// # Errors
/// As getpgid(2): ESRCH.
pub(crate) fn group_of(pid: u32) -> io::Result<u32> {
    let pid = libc::pid_t::try_from(pid).expect("the kernel's pids fit pid_t");
    // SAFETY: getpgid takes a plain number.
    let group = super::check(unsafe { libc::getpgid(pid) })?;
    Ok(u32::try_from(group).expect("a group's number is a pid"))
}

/// Sends `signal` to process `pid`.
///
/// # Errors
/// As kill(2).
pub(crate) fn kill(pid: u32, signal: i32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).expect("the kernel's pids fit pid_t");
    assert!(pid > 0, "kill(0) would reach runcap's own group");
    // SAFETY: kill takes two plain numbers.
    super::check(unsafe { libc::kill(pid, signal) })?;
    Ok(())
}

/// Whether child `pid` has ended; it stays a zombie, so its number cannot be given away.
///
/// # Errors
/// As waitid(2): ECHILD when it is no child of ours or was reaped by somebody else.
pub(crate) fn has_ended(pid: u32) -> io::Result<bool> {
    // SAFETY: an all-zero siginfo_t is a valid value of that plain C struct.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is a siginfo_t of ours that outlives the call.
    super::check(unsafe { libc::waitid(libc::P_PID, pid, &mut info, options) })?;
    // SAFETY: after a successful waitid si_pid is set: 0 when no child was ready, else its pid.
    Ok(unsafe { info.si_pid() } != 0)
}

/// The signal by which child `pid` has stopped since this was last asked; it is not reaped.
pub(crate) fn has_stopped(pid: u32) -> Option<i32> {
    // SAFETY: an all-zero siginfo_t is a valid value of that plain C struct.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WSTOPPED | libc::WNOHANG;
    // SAFETY: `info` is a siginfo_t of ours that outlives the call.
    let asked = unsafe { libc::waitid(libc::P_PID, pid, &mut info, options) };
    // SAFETY: after a successful waitid si_pid is set: 0 when no child had stopped, else its pid.
    let stopped = asked == 0 && unsafe { info.si_pid() } != 0;
    // SAFETY: for a stopped child si_status is the signal.
    stopped.then(|| unsafe { info.si_status() })
}

/// How a child ended and what it used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reaped {
    /// Exit code, or the signal it died of.
    pub(crate) status: Result<i32, i32>,
    /// User and system time of the child and the children it waited for.
    pub(crate) cpu: Duration,
    /// Largest resident set, bytes.
    pub(crate) max_rss_bytes: u64,
}

/// Reaps child `pid` if it has ended.
///
/// # Errors
/// As wait4(2).
pub(crate) fn reap(pid: u32) -> io::Result<Option<Reaped>> {
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain C struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `status` and `usage` are ours and outlive the call.
    let result = unsafe { libc::wait4(pid as libc::pid_t, &mut status, libc::WNOHANG, &mut usage) };
    if super::check(result)? == 0 {
        return Ok(None);
    }
    let status = if libc::WIFSIGNALED(status) {
        Err(libc::WTERMSIG(status))
    } else {
        Ok(libc::WEXITSTATUS(status))
    };
    Ok(Some(Reaped {
        status,
        cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
        max_rss_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    }))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u32::try_from(time.tv_usec).unwrap_or(0);
    Duration::new(seconds, 0) + Duration::from_micros(micros.into())
}

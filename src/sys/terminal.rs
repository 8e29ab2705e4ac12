//! The controlling terminal and whose it is at the moment.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

/// The controlling terminal of this process, if it has one.
pub(crate) fn controlling() -> Option<File> {
    File::options().read(true).write(true).open("/dev/tty").ok()
}

/// This process's own group.
pub(crate) fn own_group() -> u32 {
    // SAFETY: getpgrp takes nothing and cannot fail.
    u32::try_from(unsafe { libc::getpgrp() }).expect("a group's number is a pid")
}

/// The foreground group of the terminal behind `fd`.
///
/// # Errors
/// As tcgetpgrp(3): ENOTTY when it is not this process's controlling terminal.
pub(crate) fn foreground(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the descriptor is borrowed, hence open.
    let group = super::check(unsafe { libc::tcgetpgrp(fd.as_raw_fd()) })?;
    // A terminal whose foreground group is gone says a number that is no group's.
    Ok(u32::try_from(group).unwrap_or(0))
}

/// Makes `group` the foreground group of the controlling terminal behind `fd`.
///
/// From the background that would stop this process by SIGTTOU, so the signal is blocked meanwhile;
/// ignored it would stay so across an exec.
///
/// # Errors
/// As tcsetpgrp(3).
pub(crate) fn set_foreground(fd: BorrowedFd<'_>, group: u32) -> io::Result<()> {
    let group = libc::pid_t::try_from(group).expect("the kernel's pids fit pid_t");
    set_foreground_raw(fd.as_raw_fd(), group)
}

/// As [`set_foreground`]; async-signal-safe.
pub(super) fn set_foreground_raw(fd: RawFd, group: libc::pid_t) -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset writes the whole set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set was initialised above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGTTOU) };
    // SAFETY: the new mask was initialised above; the old one is written.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), old.as_mut_ptr()) };
    // SAFETY: tcsetpgrp takes two numbers; a descriptor that is no terminal is an error.
    let result = super::check(unsafe { libc::tcsetpgrp(fd, group) }).map(drop);
    // SAFETY: the old mask was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), ptr::null_mut()) };
    result
}

//! Pipes beyond std: our own end without blocking, and throwing away what stands in one.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::feature::{Feature, allowed};

/// Makes `fd`'s open file description non-blocking.
///
/// Only for our own end of a pipe that we made: the two ends of a pipe are two descriptions, so
/// the child's end keeps blocking.
///
/// # Errors
/// As fcntl(2).
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: F_GETFL takes no argument and the descriptor is borrowed, hence open.
    let flags = super::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: F_SETFL takes one int and the descriptor is borrowed, hence open.
    super::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

/// Moves at most `len` bytes from `pipe` to `null` without copying them to user space; 0 is end of
/// file.
///
/// # Errors
/// As splice(2): WouldBlock when the pipe is empty, EINVAL where `null` cannot be spliced to.
pub(crate) fn splice(pipe: BorrowedFd<'_>, null: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    if !allowed(Feature::Splice) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    // SAFETY: both descriptors are borrowed, hence open; null offsets mean "where it stands".
    let moved = unsafe {
        libc::splice(
            pipe.as_raw_fd(),
            std::ptr::null_mut(),
            null.as_raw_fd(),
            std::ptr::null_mut(),
            len,
            libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE,
        )
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

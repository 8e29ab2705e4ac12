//! Sockets beyond std.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Lets `listener` hold `count` connections that are not yet accepted; std asks for 128.
///
/// # Errors
/// As listen(2).
pub(crate) fn set_backlog(listener: BorrowedFd<'_>, count: i32) -> io::Result<()> {
    // SAFETY: listen takes two plain numbers, and the descriptor is borrowed, hence open.
    super::check(unsafe { libc::listen(listener.as_raw_fd(), count) }).map(drop)
}

/// Makes close(2), or the end of this process, end a TCP connection by a reset instead of an
/// orderly end (socket(7), SO_LINGER), or no more.
///
/// # Errors
/// As setsockopt(2).
pub(crate) fn reset_when_closed(socket: BorrowedFd<'_>, resets: bool) -> io::Result<()> {
    let linger = libc::linger { l_onoff: resets.into(), l_linger: 0 };
    // SAFETY: the kernel reads a linger of the length that is given with it, and the descriptor is
    // borrowed, hence open.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    super::check(set).map(drop)
}

/// Does `create` with every file it makes readable and writable by its owner alone.
///
/// The mask is the whole process's: call it while this process has one thread.
pub(crate) fn owner_only<T>(create: impl FnOnce() -> T) -> T {
    // SAFETY: umask takes a plain number and cannot fail.
    let before = unsafe { libc::umask(0o177) };
    let created = create();
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    created
}

/// Reads what has come to `socket`, without waiting; 0 is the peer's end.
///
/// # Errors
/// As recv(2): WouldBlock when nothing has come.
pub(crate) fn receive_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: at most `length` bytes are written to `buffer`, which is borrowed for that.
    let count = unsafe { libc::recv(socket.as_raw_fd(), start, length, libc::MSG_DONTWAIT) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Sends what there is room for, without waiting and without SIGPIPE.
///
/// # Errors
/// As send(2): WouldBlock when there is no room.
pub(crate) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (start, length) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: `length` bytes are read from `bytes`, which is borrowed for that.
    let count = unsafe { libc::send(socket.as_raw_fd(), start, length, flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

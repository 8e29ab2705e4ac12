//! Waiting for descriptors: poll with a nanosecond timeout, and a descriptor to wake a waiter.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// One descriptor to wait for.
#[repr(transparent)]
pub(crate) struct PollFd(libc::pollfd);

/// What to wait for. Errors and hang-ups are always reported.
#[derive(Clone, Copy)]
pub(crate) enum Interest {
    /// Bytes, or end of file.
    Read,
    /// Room to write.
    Write,
    /// Nothing but errors and hang-ups.
    Gone,
    /// That the peer of a socket will send nothing more: it has closed its end, or half of it.
    PeerGone,
}

impl PollFd {
    /// Waits for `interest` on `fd`; without a descriptor the entry is never ready.
    ///
    /// The caller keeps the descriptor open while it polls: a closed number is reported as an
    /// error condition by the kernel, never as undefined behaviour.
    pub(crate) fn new(fd: Option<BorrowedFd<'_>>, interest: Interest) -> PollFd {
        let events = match interest {
            Interest::Read => libc::POLLIN,
            Interest::Write => libc::POLLOUT,
            Interest::Gone => 0,
            Interest::PeerGone => libc::POLLRDHUP,
        };
        PollFd(libc::pollfd { fd: fd.map_or(-1, |fd| fd.as_raw_fd()), events, revents: 0 })
    }

    /// Whether anything was reported: what was asked for, an error or a hang-up.
    pub(crate) fn ready(&self) -> bool {
        self.0.revents != 0
    }
}

/// Waits until one of `fds` is ready or `timeout` is over; `None` waits without limit.
///
/// An interrupting signal ends the wait early with nothing ready.
///
/// # Errors
/// As poll(2), except EINTR.
pub(crate) fn poll(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        // 68 years at most: they fit every libc's time_t, and then the caller looks again.
        tv_sec: i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).into(),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), |timeout| timeout as *const _);
    // SAFETY: `PollFd` is a transparent pollfd, so pointer and length describe `fds` exactly;
    // `timeout` is null or points to a timespec that lives to the end of this function.
    let result =
        unsafe { libc::ppoll(fds.as_mut_ptr().cast(), fds.len() as _, timeout, std::ptr::null()) };
    match super::check(result) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            fds.iter_mut().for_each(|fd| fd.0.revents = 0);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A descriptor that becomes readable when it is notified, and stays so until it is cleared.
#[derive(Debug)]
pub(crate) struct Event(File);

impl Event {
    /// A fresh, silent event.
    ///
    /// # Errors
    /// As eventfd(2): out of descriptors or memory.
    pub(crate) fn new() -> io::Result<Event> {
        // SAFETY: eventfd takes two plain numbers.
        let fd = super::check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the call above returned a descriptor that nobody else has.
        Ok(Event(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the event readable.
    pub(crate) fn notify(&self) {
        // The only failure is EAGAIN at a count of 2^64 - 2, and then it is readable already.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Makes the event silent again.
    pub(crate) fn clear(&self) {
        self.take();
    }

    /// Makes the event silent again; whether it was readable.
    pub(crate) fn take(&self) -> bool {
        // EAGAIN says that it was silent already.
        io::Read::read(&mut &self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

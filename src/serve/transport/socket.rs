//! One connection's bytes: reads and writes that wait as long as they are told, and no longer.

use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::sys::poll::{Interest, PollFd, poll};
use crate::sys::socket::{receive_now, reset_when_closed, send_now};

use super::{RATE_MIN, STALL_MAX};

/// A connected stream socket.
///
/// A unix stream is carried by std's TCP type too: what is used of it (recv, send, poll, shutdown
/// and two options of sockets) does not care, or fails harmlessly.
#[derive(Debug)]
pub(super) struct Socket(TcpStream);

impl Socket {
    pub(super) fn tcp(stream: TcpStream) -> Socket {
        // Small writes on a kept connection cost 44 ms each otherwise, waiting for a delayed ACK.
        // A peer that is gone already is noticed by the first read.
        let _ = stream.set_nodelay(true);
        Socket(stream)
    }

    pub(super) fn unix(stream: UnixStream) -> Socket {
        Socket(TcpStream::from(OwnedFd::from(stream)))
    }

    /// Reads the next bytes, however long they take, up to the time of
    /// [`set_idle_max`](Self::set_idle_max). One call, and so one wake of this thread: where a poll
    /// comes before each read, tiny requests take a fifth longer.
    ///
    /// # Errors
    /// WouldBlock when the time is over; as recv(2).
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| (&self.0).read(buffer))
    }

    /// How long [`read`](Self::read) waits.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub(super) fn set_idle_max(&self, idle: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(idle))
    }

    /// Reads what has come, without waiting.
    ///
    /// # Errors
    /// WouldBlock when nothing has; as recv(2).
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        retry(|| receive_now(self.as_fd(), buffer))
    }

    /// Writes what there is room for, without waiting.
    ///
    /// # Errors
    /// WouldBlock when there is none; as send(2).
    pub(super) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        retry(|| send_now(self.as_fd(), bytes))
    }

    /// Waits until something can be read, or the client is gone; false when `wait` is over.
    ///
    /// # Errors
    /// As poll(2).
    pub(super) fn wait_readable(&self, wait: Duration) -> io::Result<bool> {
        self.wait(Interest::Read, wait)
    }

    fn wait(&self, interest: Interest, wait: Duration) -> io::Result<bool> {
        let end = Instant::now() + wait;
        loop {
            let mut fds = [PollFd::new(Some(self.as_fd()), interest)];
            let left = end.saturating_duration_since(Instant::now());
            poll(&mut fds, Some(left))?;
            if fds[0].ready() || left.is_zero() {
                return Ok(fds[0].ready());
            }
        }
    }

    /// Says that nothing more will be written.
    pub(super) fn end_writing(&self) {
        // The peer may be gone, which is as good.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Makes the connection's end an error for the peer, which throws away what it has not taken,
    /// or an orderly end again. A unix socket knows no such end.
    pub(super) fn reset_when_closed(&self, resets: bool) {
        let _ = reset_when_closed(self.as_fd(), resets);
    }

    /// Ends the wait of a thread that reads, and takes no further bytes: what has come before is
    /// still read.
    pub(super) fn end_reading(&self) {
        let _ = self.0.shutdown(Shutdown::Read);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// How long a client may be waited for: [`STALL_MAX`] at once, and no more in all than its bytes
/// have earned at [`RATE_MIN`]. What frames a body earns nothing.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waited: Duration,
    moved_bytes: u64,
}

impl Pace {
    /// Takes note of data that was read.
    pub(super) fn earn(&mut self, bytes: usize) {
        self.moved_bytes += bytes as u64;
    }

    /// Reads some bytes, of which the caller says what is data; 0 is the client's end.
    ///
    /// # Errors
    /// TimedOut when the client is too slow; as recv(2).
    pub(super) fn read(&mut self, socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
        self.at_pace(socket, Interest::Read, || socket.read_now(buffer))
    }

    /// Writes some of `bytes`.
    ///
    /// # Errors
    /// TimedOut when the client is too slow; as send(2).
    pub(super) fn write(&mut self, socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        let count = self.at_pace(socket, Interest::Write, || socket.write_now(bytes))?;
        self.earn(count);
        Ok(count)
    }

    fn at_pace(
        &mut self,
        socket: &Socket,
        interest: Interest,
        mut call: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match call() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            let earned = STALL_MAX + Duration::from_secs(self.moved_bytes / RATE_MIN);
            let start = Instant::now();
            let came = socket.wait(interest, STALL_MAX.min(earned.saturating_sub(self.waited)))?;
            self.waited += start.elapsed();
            if !came {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

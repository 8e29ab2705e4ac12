//! Output passed on as it comes, up to a cap; a tail that is kept follows at the end.

use std::collections::TryReserveError;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::capture::Capture;
use crate::run::{GiveUp, Sink};
use crate::spec::{Keep, Limit};
use crate::sys::poll::{Interest, PollFd, poll};

/// Bytes of one write. A pipe that is reported writable has room for them (pipe(7), PIPE_BUF), so
/// the write does not block although the descriptor, which others share, stays blocking.
const WRITE_BYTES: usize = 4096;

/// How long a reader that takes nothing is waited for once the command was made to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Passes one stream on to a descriptor of runcap's own.
pub struct Mirror<'a> {
    out: &'a File,
    give_up: &'a GiveUp,
    /// Bytes that may still be passed on; `None` is any number.
    left: Option<usize>,
    /// The end of the stream, where it is kept.
    tail: Option<Capture>,
    received: u64,
    passed_on: u64,
    error: Option<io::Error>,
}

impl<'a> Mirror<'a> {
    /// Passes on to `out` what `limit` keeps; a cap of `usize::MAX` is none.
    ///
    /// # Errors
    /// When there is no memory for the tail.
    pub fn new(
        out: &'a File,
        limit: Limit,
        give_up: &'a GiveUp,
    ) -> Result<Mirror<'a>, TryReserveError> {
        let tail_cap = match limit.keep {
            _ if limit.cap == usize::MAX => 0,
            Keep::Head => 0,
            Keep::Tail => limit.cap,
            Keep::HeadTail => limit.cap / 5,
        };
        let tail = if tail_cap > 0 { Some(Capture::new(tail_cap, Keep::Tail)?) } else { None };
        let left = (limit.cap != usize::MAX).then_some(limit.cap - tail_cap);
        Ok(Mirror { out, give_up, left, tail, received: 0, passed_on: 0, error: None })
    }

    /// Passes the tail on, once the stream has ended.
    ///
    /// # Errors
    /// As write(2); EPIPE when the reader is gone.
    pub fn finish(&mut self) -> io::Result<()> {
        let Some(tail) = self.tail.take() else { return Ok(()) };
        let (older, newer) = tail.tail();
        write_patiently(self.out, older, self.give_up)?;
        write_patiently(self.out, newer, self.give_up)?;
        self.passed_on += tail.kept() as u64;
        Ok(())
    }

    /// What kept the stream from being passed on.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// What was kept, in words; `None` when that is everything. Call it after
    /// [`Mirror::finish`].
    pub fn summary(&self, limit: Limit) -> Option<String> {
        let (received, kept) = (self.received, self.passed_on);
        if received == kept {
            return None;
        }
        let tail = (limit.cap / 5) as u64;
        Some(match limit.keep {
            Keep::Head => format!("kept the first {kept} of {received} bytes"),
            Keep::Tail => format!("kept the last {kept} of {received} bytes"),
            Keep::HeadTail if tail == 0 => format!("kept the first {kept} of {received} bytes"),
            Keep::HeadTail => {
                let head = kept.saturating_sub(tail);
                format!("kept the first {head} and the last {tail} of {received} bytes")
            }
        })
    }
}

impl Write for Mirror<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (head, rest) = bytes.split_at(bytes.len().min(self.left.unwrap_or(usize::MAX)));
        self.received += bytes.len() as u64;
        if let Err(error) = write_patiently(self.out, head, self.give_up) {
            let kind = error.kind();
            self.error.get_or_insert(error);
            return Err(kind.into());
        }
        self.left = self.left.map(|left| left - head.len());
        self.passed_on += head.len() as u64;
        if let Some(tail) = &mut self.tail {
            tail.write_all(rest)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Mirror<'_> {
    fn room(&self) -> Option<usize> {
        self.left.filter(|_| self.tail.is_none())
    }

    fn discard(&mut self, count: u64) {
        self.received += count;
    }
}

/// Writes `bytes` to `out`, waiting for its reader; once `give_up` says so, only as long as the
/// reader goes on reading.
fn write_patiently(mut out: &File, mut bytes: &[u8], give_up: &GiveUp) -> io::Result<()> {
    let mut patience = None;
    while !bytes.is_empty() {
        let mut fds = [
            PollFd::new(Some(out.as_fd()), Interest::Write),
            PollFd::new(Some(give_up.fd()).filter(|_| patience.is_none()), Interest::Read),
        ];
        poll(&mut fds, patience)?;
        if !fds[0].ready() {
            if patience.is_some() {
                let reason = "its reader does not read, and the command was made to end";
                return Err(io::Error::new(ErrorKind::TimedOut, reason));
            }
            patience = fds[1].ready().then_some(PATIENCE);
            continue;
        }
        match out.write(&bytes[..bytes.len().min(WRITE_BYTES)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

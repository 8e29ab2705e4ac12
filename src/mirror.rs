//! Output passed on as it comes, up to a cap; a tail that is kept follows at the end.

use std::collections::TryReserveError;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::capture::Capture;
use crate::run::{GiveUp, Sink};
use crate::spec::{Keep, Limit};
use crate::sys::poll::{Interest, PollFd, poll};

/// Bytes of one write. A pipe that is reported writable has room for them (pipe(7), PIPE_BUF), so
/// the write does not block although the descriptor, which others share, stays blocking.
const WRITE_BYTES: usize = 4096;

/// How long a reader that takes nothing is waited for once runcap is to end.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Passes one stream on to a descriptor of runcap's own.
pub struct Mirror<'a> {
    out: &'a File,
    give_up: &'a GiveUp,
    limit: Limit,
    /// Bytes that may still be passed on; `None` is any number.
    left: Option<usize>,
    /// The end of the stream, where it is kept.
    tail: Option<Capture>,
    received: u64,
    passed_on: u64,
    last_byte: Option<u8>,
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
        Ok(Mirror {
            out,
            give_up,
            limit,
            left,
            tail,
            received: 0,
            passed_on: 0,
            last_byte: None,
            error: None,
        })
    }

    /// Passes the tail on, once the stream has ended.
    ///
    /// # Errors
    /// What kept any of the stream from being passed on: EPIPE when the reader is gone, `TimedOut`
    /// when it did not read.
    pub fn finish(&mut self, patience: Patience<'_>) -> io::Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let Some(tail) = self.tail.take() else { return Ok(()) };
        let (older, newer) = tail.tail();
        self.pass_on(older, &patience)?;
        self.pass_on(newer, &patience)
    }

    /// Whether what was passed on ends in the middle of a line.
    pub fn is_in_a_line(&self) -> bool {
        self.last_byte.is_some_and(|byte| byte != b'\n')
    }

    fn pass_on(&mut self, bytes: &[u8], patience: &Patience<'_>) -> io::Result<()> {
        write_patiently(self.out, bytes, patience)?;
        self.passed_on += bytes.len() as u64;
        self.last_byte = bytes.last().copied().or(self.last_byte);
        Ok(())
    }

    /// What was kept, in words; `None` when that is everything. Call it after
    /// [`Mirror::finish`].
    pub fn summary(&self) -> Option<String> {
        let (received, kept, limit) = (self.received, self.passed_on, self.limit);
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
        let patience = Patience { sign: self.give_up.fd(), deadline: None };
        if let Err(error) = self.pass_on(head, &patience) {
            let kind = error.kind();
            self.error.get_or_insert(error);
            return Err(kind.into());
        }
        self.left = self.left.map(|left| left - head.len());
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

/// When a reader that does not read is given up: never, as long as nobody is in a hurry.
#[derive(Debug, Clone, Copy)]
pub struct Patience<'a> {
    /// Readable once runcap is to end.
    pub sign: BorrowedFd<'a>,
    /// When that is so all the same.
    pub deadline: Option<Instant>,
}

/// Writes to a descriptor whose reader may not read.
#[derive(Debug)]
pub struct PatientWriter<'a> {
    out: &'a File,
    patience: Patience<'a>,
}

impl<'a> PatientWriter<'a> {
    /// Writes to `out`; gives its reader up with an error of kind `TimedOut`.
    pub fn new(out: &'a File, patience: Patience<'a>) -> PatientWriter<'a> {
        PatientWriter { out, patience }
    }
}

impl Write for PatientWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_patiently(self.out, bytes, &self.patience)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes `bytes` to `out`, waiting for its reader; once runcap is to end, only as long as the
/// reader goes on reading.
fn write_patiently(mut out: &File, mut bytes: &[u8], patience: &Patience<'_>) -> io::Result<()> {
    let mut hurried = false;
    while !bytes.is_empty() {
        let last = Instant::now() + LAST_WAIT;
        loop {
            let until = if hurried { Some(last) } else { patience.deadline };
            let sign = Some(patience.sign).filter(|_| !hurried);
            let mut fds = [
                PollFd::new(Some(out.as_fd()), Interest::Write),
                PollFd::new(sign, Interest::Read),
            ];
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            poll(&mut fds, left)?;
            if fds[0].ready() {
                break;
            }
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            if hurried && is_over {
                return Err(io::Error::new(ErrorKind::TimedOut, "its reader does not read"));
            }
            hurried = hurried || is_over || fds[1].ready();
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

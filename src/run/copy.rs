//! One thread a pipe: copies what the command writes into a sink until its end, past the cap
//! without keeping it.
//!
//! The loser was one thread that polls both pipes: measured, it wins on one process that writes to
//! both streams and loses on two, and a sink that blocks would hold up the other stream.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use crate::capture::Capture;
use crate::outcome::Stream;
use crate::spec::Overflow;
use crate::sys;
use crate::sys::poll::{Event, Interest, PollFd};

/// Bytes of one read, and of the scratch buffer of a stream.
const READ_BYTES: usize = 64 << 10;

/// Bytes of one splice.
const SPLICE_BYTES: usize = 1 << 20;

/// Bytes taken from a stream after the copies were told to stop: what can stand in a pipe
/// (pipe(7), the default of /proc/sys/fs/pipe-max-size). More than that is still being written.
const LAST_BYTES: usize = 1 << 20;

/// Where a stream's bytes go.
///
/// `Write` is the only way in for bytes; what a sink has no [`room`](Sink::room) for is counted
/// through [`discard`](Sink::discard).
pub trait Sink: Write + Send {
    /// Bytes that still matter to it: `None` is any number, `Some(0)` none, for good.
    fn room(&self) -> Option<usize>;

    /// Counts bytes that were thrown away unseen; called only at `Some(0)`.
    fn discard(&mut self, count: u64);
}

impl Sink for Capture {
    fn room(&self) -> Option<usize> {
        Capture::room(self)
    }

    fn discard(&mut self, count: u64) {
        Capture::discard(self, count);
    }
}

/// How a copy ended, or that it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Still copying.
    Copying,
    /// Every byte was seen.
    Ended,
    /// Told to stop before the end of the stream.
    Stopped,
    /// The first byte past the cap came under `Overflow::Stop`.
    Overflowed,
    /// The sink took no more.
    SinkFailed,
}

/// What the threads of one command and its poll loop tell each other.
pub(super) struct Shared {
    /// Readable when a copy has ended, or somebody wants the poll loop to look around.
    pub(super) ended: Arc<Event>,
    /// Readable for good once the copies and the feeder must stop.
    pub(super) stop: Event,
    stopping: AtomicBool,
    states: [AtomicU8; 2],
}

impl Shared {
    pub(super) fn new() -> io::Result<Shared> {
        Ok(Shared {
            ended: Arc::new(Event::new()?),
            stop: Event::new()?,
            stopping: AtomicBool::new(false),
            states: [const { AtomicU8::new(State::Copying as u8) }; 2],
        })
    }

    pub(super) fn state(&self, stream: Stream) -> State {
        match self.states[stream as usize].load(Ordering::Acquire) {
            0 => State::Copying,
            1 => State::Ended,
            2 => State::Stopped,
            3 => State::Overflowed,
            _ => State::SinkFailed,
        }
    }

    pub(super) fn set_state(&self, stream: Stream, state: State) {
        self.states[stream as usize].store(state as u8, Ordering::Release);
        self.ended.notify();
    }

    /// Makes copies and feeder end soon: each copy takes what stands in its pipe and no more.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stop.notify();
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until `fd` is ready for `interest`, or the copies must stop.
    fn wait(&self, fd: std::os::fd::BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        let stop = PollFd::new(Some(self.stop.as_fd()), Interest::Read);
        sys::poll::poll(&mut [PollFd::new(Some(fd), interest), stop], None)
    }
}

/// Copies `pipe` into `sink` until the end of the stream, the stop or the first overflow, and
/// reports as the state of `stream` how that ended.
pub(super) fn copy(
    pipe: &PipeReader,
    sink: &mut dyn Sink,
    overflow: Overflow,
    shared: &Shared,
    stream: Stream,
) -> State {
    let state = copy_into(pipe, sink, overflow, shared);
    shared.set_state(stream, state);
    if state == State::SinkFailed {
        // The command is told to end, and must not block on its output meanwhile.
        copy_into(pipe, &mut io::sink(), Overflow::Discard, shared);
    }
    state
}

/// Where output goes that nobody reads.
impl Sink for io::Sink {
    fn room(&self) -> Option<usize> {
        Some(0)
    }

    fn discard(&mut self, _: u64) {}
}

fn copy_into(pipe: &PipeReader, sink: &mut dyn Sink, overflow: Overflow, shared: &Shared) -> State {
    let mut pipe = Source { pipe, scratch: vec![0; READ_BYTES], splice: true };
    let mut left_after_stop = LAST_BYTES;
    loop {
        let result = match (sink.room(), overflow) {
            (Some(0), Overflow::Discard) => pipe.throw_away(sink),
            (Some(room), Overflow::Stop) => match pipe.pass(sink, room.saturating_add(1)) {
                Ok(count) if count > room => return State::Overflowed,
                result => result,
            },
            _ => pipe.pass(sink, READ_BYTES),
        };
        match result {
            Ok(0) => return State::Ended,
            Ok(count) if shared.stopping() => match left_after_stop.checked_sub(count) {
                Some(left) => left_after_stop = left,
                None => return State::Stopped,
            },
            Ok(_) => {}
            Err(Failure::Pipe(error)) => match error.kind() {
                ErrorKind::WouldBlock if shared.stopping() => return State::Stopped,
                ErrorKind::WouldBlock => {
                    // A poll that fails (out of kernel memory) costs a turn and loses nothing.
                    let _ = shared.wait(pipe.pipe.as_fd(), Interest::Read);
                }
                ErrorKind::Interrupted => {}
                _ => return State::Stopped,
            },
            Err(Failure::Sink) => return State::SinkFailed,
        }
    }
}

enum Failure {
    Pipe(io::Error),
    Sink,
}

struct Source<'a> {
    pipe: &'a PipeReader,
    scratch: Vec<u8>,
    /// Whether splice to /dev/null has worked so far.
    splice: bool,
}

impl Source<'_> {
    /// Reads at most `most` bytes and writes them to `sink`.
    fn pass(&mut self, sink: &mut dyn Sink, most: usize) -> Result<usize, Failure> {
        let scratch = &mut self.scratch[..most.min(READ_BYTES)];
        let count = self.pipe.read(scratch).map_err(Failure::Pipe)?;
        sink.write_all(&scratch[..count]).map_err(|_| Failure::Sink)?;
        Ok(count)
    }

    /// Throws away what stands in the pipe, counting it.
    fn throw_away(&mut self, sink: &mut dyn Sink) -> Result<usize, Failure> {
        if let (true, Some(null)) = (self.splice, null()) {
            match sys::pipe::splice(self.pipe.as_fd(), null.as_fd(), SPLICE_BYTES) {
                Err(error) if !splice_works(&error) => self.splice = false,
                result => {
                    let count = result.map_err(Failure::Pipe)?;
                    sink.discard(count as u64);
                    return Ok(count);
                }
            }
        }
        self.pass(sink, READ_BYTES)
    }
}

/// Whether `error` is of this moment and not of this kernel.
fn splice_works(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// /dev/null for the whole process; `None` where it cannot be opened for writing.
fn null() -> Option<&'static File> {
    static NULL: OnceLock<Option<File>> = OnceLock::new();
    NULL.get_or_init(|| File::options().write(true).open("/dev/null").ok()).as_ref()
}

/// Writes `bytes` to the command's stdin until all are taken, nobody reads any more, or the stop.
pub(super) fn feed(pipe: std::io::PipeWriter, mut bytes: &[u8], shared: &Shared) {
    while !bytes.is_empty() && !shared.stopping() {
        match (&pipe).write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if shared.wait(pipe.as_fd(), Interest::Write).is_err() {
                    return;
                }
            }
            // EPIPE: the command does not read its stdin, which is its own affair.
            Err(_) => return,
        }
    }
}

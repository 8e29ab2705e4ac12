//! Output as events while the command runs: each read goes out as one event, none is held back.
//!
//! A slow reader slows the command down, through the pipe; nothing is queued.

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::outcome::Stream;
use crate::run::{Observer, Sink};
use crate::sys::poll::{Interest, PollFd, poll};
use crate::wire::event;
use crate::wire::native::request::Encoding;
use crate::wire::text::Decoder;

/// Silence after which a ping is sent.
pub const PING_AFTER: Duration = Duration::from_secs(15);

/// Where the events of one command go.
pub struct Events<'a> {
    out: Mutex<Out<'a>>,
    /// The descriptor under `out`, to ask whether a write would block.
    fd: Option<BorrowedFd<'a>>,
    encoding: Encoding,
}

struct Out<'a> {
    writer: &'a mut (dyn Write + Send),
    /// The leader's pid as long as the start event has not been sent.
    start: Option<u32>,
    last: Instant,
}

impl<'a> Events<'a> {
    /// Events that are written to `out`, which is flushed after each. `fd` is where they go: while
    /// nothing more can be written there, nobody waits to write a ping.
    pub fn new(
        out: &'a mut (dyn Write + Send),
        fd: Option<BorrowedFd<'a>>,
        encoding: Encoding,
    ) -> Events<'a> {
        let out = Out { writer: out, start: None, last: Instant::now() };
        Events { out: Mutex::new(out), fd, encoding }
    }

    /// Sends one more event, of the caller's own.
    ///
    /// # Errors
    /// When the reader is gone.
    pub fn send_own(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        self.send(self.lock(), write)
    }

    /// A sink whose bytes go out as events of `stream`, the first `cap` of them.
    pub fn sink(&self, stream: Stream, cap: usize) -> EventSink<'_, 'a> {
        EventSink {
            events: self,
            stream,
            cap,
            decoder: Decoder::new(),
            received: 0,
            sent: 0,
            cut: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Out<'a>> {
        // A thread that died while it wrote left half an event, and its command is ended anyway.
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one event, after the start event.
    fn send(
        &self,
        mut out: MutexGuard<'_, Out<'a>>,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(pid) = out.start.take() {
            event::write_start(&mut out.writer, pid)?;
        }
        write(&mut out.writer)?;
        out.writer.flush()?;
        out.last = Instant::now();
        Ok(())
    }

    /// Sends one short event if that does not block, and says nothing if it would.
    fn send_if_free(
        &self,
        wanted: impl FnOnce(&Out<'_>) -> bool,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) {
        let Ok(out) = self.out.try_lock() else { return };
        let mut fds = [PollFd::new(self.fd, Interest::Write)];
        let polled = poll(&mut fds, Some(Duration::ZERO)).is_ok();
        let free = self.fd.is_none() || (polled && fds[0].ready());
        if free && wanted(&out) {
            // A reader that is gone is noticed by the poll loop and by the next event.
            let _ = self.send(out, write);
        }
    }
}

impl Observer for Events<'_> {
    fn started(&self, pid: u32) {
        self.lock().start = Some(pid);
        self.send_if_free(|_| true, |_| Ok(()));
    }

    fn tick(&self) {
        self.send_if_free(|out| out.last.elapsed() >= PING_AFTER, event::write_ping);
    }
}

/// One stream's way into [`Events`].
pub struct EventSink<'e, 'a> {
    events: &'e Events<'a>,
    stream: Stream,
    cap: usize,
    decoder: Decoder,
    received: u64,
    sent: u64,
    /// The cap was passed, and the reader was told.
    cut: bool,
}

impl EventSink<'_, '_> {
    /// Sends what was held back as no whole character, once the stream has ended.
    ///
    /// # Errors
    /// When the reader is gone.
    pub fn finish(&mut self) -> io::Result<()> {
        if self.cut || self.decoder.held() == 0 {
            return Ok(());
        }
        let (stream, decoder) = (self.stream, &mut self.decoder);
        let out = self.events.lock();
        self.events.send(out, |out| event::write_text(out, stream, decoder, b"", true))
    }

    /// Tells the reader, once, that the rest is only counted.
    fn say_truncated(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.cut, true) {
            return Ok(());
        }
        let stream = self.stream;
        self.events.send(self.events.lock(), |out| event::write_truncated(out, stream))
    }

    /// Bytes received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of those that were sent; a character that the cap cut was not.
    pub fn sent(&self) -> u64 {
        let held = if self.cut { self.decoder.held() } else { 0 };
        self.sent - held as u64
    }

    /// Whether U+FFFD was sent in place of bytes that were not UTF-8.
    pub fn replaced(&self) -> bool {
        self.decoder.replaced()
    }
}

impl Write for EventSink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = Sink::room(self).unwrap_or(usize::MAX);
        let (kept, rest) = bytes.split_at(bytes.len().min(room));
        self.received += bytes.len() as u64;
        self.sent += kept.len() as u64;
        let (stream, decoder, encoding) = (self.stream, &mut self.decoder, self.events.encoding);
        if !kept.is_empty() {
            self.events.send(self.events.lock(), |out| match encoding {
                Encoding::Utf8 => event::write_text(out, stream, decoder, kept, false),
                Encoding::Base64 => event::write_base64(out, stream, kept),
            })?;
        }
        if !rest.is_empty() {
            self.say_truncated()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for EventSink<'_, '_> {
    fn room(&self) -> Option<usize> {
        let unlimited = self.cap == usize::MAX;
        let left = self.cap.saturating_sub(usize::try_from(self.sent).unwrap_or(usize::MAX));
        (!unlimited).then_some(left)
    }

    fn discard(&mut self, count: u64) {
        self.received += count;
        if count > 0 {
            // A reader that is gone is noticed by the poll loop.
            let _ = self.say_truncated();
        }
    }
}

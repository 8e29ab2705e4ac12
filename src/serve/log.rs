//! One line for each answer, on stderr, that nobody can forge and that never holds the server up.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::wire::json_string::write_string;
use crate::wire::time::Rfc3339;

use super::transport::Entry;

/// Bytes of lines that wait to be written; what comes on top is dropped and counted.
pub const QUEUE_MAX_BYTES: usize = 256 << 10;

/// How long the end of the server waits for its last lines to be read.
pub const FLUSH_MAX: Duration = Duration::from_millis(250);

const THREAD_STACK_BYTES: usize = 64 << 10;

/// What a line rarely exceeds.
const LINE_BYTES: usize = 256;

/// Longest line: PIPE_BUF (pipe(7)).
#[cfg(test)]
const LINE_MAX_BYTES: usize = 4096;

/// Bytes of a method, a path and a reason that a line shows. With every one of them escaped a line
/// has room.
const METHOD_SHOWN_MAX_BYTES: usize = 32;
const PATH_SHOWN_MAX_BYTES: usize = 512;
const REASON_SHOWN_MAX_BYTES: usize = 256;

/// What a line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Fields separated by spaces, what was wrong in parentheses.
    Text,
    /// One JSON object.
    Json,
    /// No lines for answers.
    Off,
}

/// Writes lines to stderr through a thread of its own, so that nobody who has a line to say waits
/// for who reads it. A line that there is no room for is dropped and counted.
///
/// The loser was a poll before each write: a terminal is writable as soon as it takes one byte, and
/// a pipe may be filled by somebody else in between.
#[derive(Debug)]
pub struct Log {
    format: Format,
    queue: Arc<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    dropped: u64,
    /// The thread is writing what it has taken.
    is_writing: bool,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // What a thread that died was doing is one line, there or not.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, waiting: MutexGuard<'a, Waiting>) -> MutexGuard<'a, Waiting> {
        self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines as they come, several at once where several have come.
    fn write_on(&self) {
        let mut waiting = self.waiting();
        loop {
            while waiting.lines.is_empty() && waiting.dropped == 0 {
                waiting = self.wait(waiting);
            }
            let mut lines = std::mem::take(&mut waiting.lines);
            let dropped = std::mem::take(&mut waiting.dropped);
            waiting.is_writing = true;
            drop(waiting);
            if dropped > 0 {
                let note =
                    format!("runcap: {dropped} lines of the log were dropped: nobody read\n");
                lines.extend_from_slice(note.as_bytes());
            }
            // Nobody may be there to read it, or the disk is full: there is nobody to tell.
            let _ = io::stderr().write_all(&lines);
            waiting = self.waiting();
            waiting.is_writing = false;
            self.changed.notify_all();
        }
    }
}

impl Log {
    /// A log of that format.
    ///
    /// # Errors
    /// Out of threads.
    pub fn new(format: Format) -> io::Result<Log> {
        let queue = Arc::new(Queue::default());
        let writer = Arc::clone(&queue);
        thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(move || writer.write_on())?;
        Ok(Log { format, queue })
    }

    /// Writes the line of one answer.
    pub fn entry(&self, entry: &Entry<'_>) {
        let mut line = Vec::with_capacity(LINE_BYTES);
        match self.format {
            Format::Text => text(&mut line, entry),
            Format::Json => json(&mut line, entry),
            Format::Off => return,
        }
        .expect("a vector takes everything");
        self.push(&line);
    }

    /// Writes the line of a process that nobody waited for.
    pub fn process(&self, id: &str, duration: Duration, note: &str) {
        let (time, ms) = (Rfc3339(SystemTime::now()), Milliseconds(duration));
        let note = cut(note, REASON_SHOWN_MAX_BYTES);
        let line = match self.format {
            Format::Text => format!("{time} process {id} {ms}ms ({})\n", Shown(note)),
            Format::Json => {
                let mut line = Vec::new();
                write_string(&mut line, note).expect("a vector takes everything");
                let note = String::from_utf8_lossy(&line);
                let process = format!("\"process\":\"{id}\",\"note\":{note},\"ms\":{ms}");
                format!("{{\"time\":\"{time}\",{process}}}\n")
            }
            Format::Off => return,
        };
        self.push(line.as_bytes());
    }

    /// Writes a line of runcap's own, whatever the format.
    pub fn line(&self, what: fmt::Arguments<'_>) {
        self.push(format!("runcap: {what}\n").as_bytes());
    }

    fn push(&self, line: &[u8]) {
        let mut waiting = self.queue.waiting();
        if waiting.lines.len() + line.len() > QUEUE_MAX_BYTES {
            waiting.dropped += 1;
            return;
        }
        waiting.lines.extend_from_slice(line);
        if !waiting.is_writing {
            self.queue.changed.notify_all();
        }
    }

    /// Waits until everything was written, at most [`FLUSH_MAX`].
    pub fn flush(&self) {
        let until = Instant::now() + FLUSH_MAX;
        let mut waiting = self.queue.waiting();
        while waiting.is_writing || !waiting.lines.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.queue.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn text(line: &mut dyn io::Write, entry: &Entry<'_>) -> io::Result<()> {
    let Entry { request, status, duration, sent_bytes, reason, note } = entry;
    let (method, path) = request.unwrap_or(("-", "-"));
    write!(
        line,
        "{} {} {} {status} {}ms {sent_bytes}B",
        Rfc3339(SystemTime::now()),
        Shown(cut(method, METHOD_SHOWN_MAX_BYTES)),
        Shown(cut(path, PATH_SHOWN_MAX_BYTES)),
        Milliseconds(*duration)
    )?;
    for text in [note, reason].into_iter().flatten() {
        write!(line, " ({})", Shown(cut(text, REASON_SHOWN_MAX_BYTES)))?;
    }
    line.write_all(b"\n")
}

fn json(line: &mut dyn io::Write, entry: &Entry<'_>) -> io::Result<()> {
    let Entry { request, status, duration, sent_bytes, reason, note } = entry;
    write!(line, "{{\"time\":\"{}\"", Rfc3339(SystemTime::now()))?;
    let fields = [
        ("method", request.map(|(method, _)| method), METHOD_SHOWN_MAX_BYTES),
        ("path", request.map(|(_, path)| path), PATH_SHOWN_MAX_BYTES),
        ("note", *note, REASON_SHOWN_MAX_BYTES),
        ("reason", *reason, REASON_SHOWN_MAX_BYTES),
    ];
    for (key, value, max_bytes) in fields {
        if let Some(value) = value {
            write!(line, ",\"{key}\":")?;
            write_string(line, cut(value, max_bytes))?;
        }
    }
    let ms = Milliseconds(*duration);
    writeln!(line, ",\"status\":{status},\"ms\":{ms},\"bytes\":{sent_bytes}}}")
}

fn cut(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// Text of a client's as a line shows it: everything that a terminal acts on or hides is escaped.
struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return f.write_str(self.0);
        }
        self.0.chars().try_for_each(|character| match character {
            ' '..='~' => f.write_char(character),
            _ => write!(f, "{}", character.escape_default()),
        })
    }
}

/// A duration as milliseconds with three decimals.
struct Milliseconds(Duration);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{}.{:03}", micros / 1000, micros % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ls4_a_line_is_one_short_line_whatever_a_client_sends() {
        let hostile = "\n\u{1b}[2J\u{202e}\"\\".repeat(1000);
        let entry = Entry {
            request: Some((&hostile, &hostile)),
            status: 200,
            duration: Duration::from_micros(1500),
            sent_bytes: 7,
            reason: Some(&hostile),
            note: Some(&hostile),
        };
        for write in [text, json] {
            let mut line = Vec::new();
            write(&mut line, &entry).unwrap();
            assert!(line.len() < LINE_MAX_BYTES, "{} bytes", line.len());
            assert_eq!(line.iter().filter(|byte| byte.is_ascii_control()).count(), 1);
            assert!(line.ends_with(b"\n"));
        }
    }
}

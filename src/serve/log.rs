//! One line for each answer, on stderr, that nobody can forge and that never holds the server up.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::sys::poll::{Interest, PollFd, poll};
use crate::wire::json_string::write_string;
use crate::wire::time::Rfc3339;

use super::transport::Entry;

/// What a line rarely exceeds.
const LINE_BYTES: usize = 256;

/// Longest line: PIPE_BUF (pipe(7)), so that it is written whole or not at all.
#[cfg(test)]
const LINE_MAX_BYTES: usize = 4096;

/// Bytes of a method, a path and a reason that a line shows. With every one of them escaped a line
/// has room.
const METHOD_SHOWN_MAX_BYTES: usize = 32;
const PATH_SHOWN_MAX_BYTES: usize = 1024;
const REASON_SHOWN_MAX_BYTES: usize = 256;

/// What a line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Fields separated by spaces, the request quoted.
    Text,
    /// One JSON object.
    Json,
    /// No lines for answers.
    Off,
}

/// Writes lines to stderr. One that cannot be written at once, since nobody reads, is dropped and
/// counted: the next that can be says how many there were.
#[derive(Debug)]
pub struct Log {
    format: Format,
    /// Whether a write to stderr can wait for a reader.
    may_wait: bool,
    dropped: Mutex<u64>,
}

impl Log {
    /// A log of that format.
    pub fn new(format: Format) -> Log {
        let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        let kind = stderr.and_then(|stderr| stderr.metadata());
        let may_wait = !kind.is_ok_and(|kind| kind.file_type().is_file());
        Log { format, may_wait, dropped: Mutex::new(0) }
    }

    /// Writes the line of one answer.
    pub fn entry(&self, entry: &Entry<'_>) {
        // Not on the stack: room for the longest line there is a page more for every connection.
        let mut line = Vec::with_capacity(LINE_BYTES);
        match self.format {
            Format::Text => text(&mut line, entry),
            Format::Json => json(&mut line, entry),
            Format::Off => return,
        }
        .expect("a vector takes everything");
        self.write(&line);
    }

    /// Writes a line of runcap's own, whatever the format.
    pub fn line(&self, what: fmt::Arguments<'_>) {
        self.write(format!("runcap: {what}\n").as_bytes());
    }

    fn write(&self, line: &[u8]) {
        if !self.may_wait {
            // A file takes a line in one write, or is full, and then there is nobody to tell.
            let _ = io::stderr().write_all(line);
            return;
        }
        // One at a time: what there is room for must still be there when it is written.
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        if *dropped > 0 {
            let note = format!("runcap: {dropped} lines of the log were dropped: nobody read\n");
            if !write_now(note.as_bytes()) {
                *dropped += 1;
                return;
            }
            *dropped = 0;
        }
        *dropped += u64::from(!write_now(line));
    }
}

/// Writes to stderr if that is possible without waiting. A pipe that is writable takes PIPE_BUF
/// bytes at once (pipe(7)).
fn write_now(line: &[u8]) -> bool {
    let mut stderr = io::stderr();
    let mut fds = [PollFd::new(Some(stderr.as_fd()), Interest::Write)];
    let is_ready = poll(&mut fds, Some(Duration::ZERO)).is_ok() && fds[0].ready();
    is_ready && stderr.write_all(line).is_ok()
}

fn text(line: &mut dyn io::Write, entry: &Entry<'_>) -> io::Result<()> {
    let Entry { request, status, duration, sent_bytes, reason } = entry;
    let (method, path) = request.unwrap_or(("-", "-"));
    write!(
        line,
        "{} {} {} {status} {}ms {sent_bytes}B",
        Rfc3339(SystemTime::now()),
        Shown(cut(method, METHOD_SHOWN_MAX_BYTES)),
        Shown(cut(path, PATH_SHOWN_MAX_BYTES)),
        Milliseconds(*duration)
    )?;
    if let Some(reason) = reason {
        write!(line, " ({})", Shown(cut(reason, REASON_SHOWN_MAX_BYTES)))?;
    }
    line.write_all(b"\n")
}

fn json(line: &mut dyn io::Write, entry: &Entry<'_>) -> io::Result<()> {
    let Entry { request, status, duration, sent_bytes, reason } = entry;
    write!(line, "{{\"time\":\"{}\"", Rfc3339(SystemTime::now()))?;
    let fields = [
        ("method", request.map(|(method, _)| method), METHOD_SHOWN_MAX_BYTES),
        ("path", request.map(|(_, path)| path), PATH_SHOWN_MAX_BYTES),
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

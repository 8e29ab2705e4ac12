//! The sandbox dialect (Hugging Face's sandbox-server): what stands below `/v1/`.

pub(super) mod exec;
pub(super) mod files;
pub mod listing;
pub mod processes;

use std::io::ErrorKind;

use std::io::{self, Write};

use tiny_http::ResponseBox;

use super::reply::{self, Dialect};
use super::root::RootError;
use super::transport::Head;
use crate::quote::quoted;
use crate::sys::errno;
use crate::sys::files::Stat;
use crate::wire::http::target::BadEncoding;
use crate::wire::sandbox::files::{Entry, Kind, write_entry};

/// A status, and the message of its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    status: u16,
    message: String,
}

impl Refusal {
    fn new(status: u16, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }

    /// What is said of a path that cannot be used.
    fn of(error: &RootError, path: &[u8]) -> Refusal {
        let status = match error {
            RootError::Escapes | RootError::NotRegular | RootError::Invalid(_) => 400,
            RootError::Permission => 403,
            RootError::NotFound => 404,
            RootError::NotADirectory | RootError::IsADirectory => 409,
            RootError::TooLarge => 413,
            RootError::Io(error) if error.kind() == ErrorKind::ExecutableFileBusy => 409,
            RootError::Io(error) if is_scarce(error) => 503,
            RootError::Io(_) => 500,
            RootError::Full => 507,
        };
        Refusal::new(status, format!("{error}: {}", quoted(&String::from_utf8_lossy(path))))
    }

    pub(super) fn answer(&self) -> ResponseBox {
        let answer = reply::error(Dialect::Sandbox, self.status, &self.message);
        match self.status {
            503 => answer.with_header(reply::header("Retry-After", "1")),
            _ => answer,
        }
    }
}

/// Whether an error says that the server is out of something now.
fn is_scarce(error: &io::Error) -> bool {
    let scarce = [errno::EMFILE, errno::ENFILE, errno::ENOMEM];
    error.raw_os_error().is_some_and(|number| scarce.contains(&number))
}

impl From<BadEncoding> for Refusal {
    fn from(error: BadEncoding) -> Refusal {
        Refusal::new(400, error.to_string())
    }
}

/// The path that a request is about.
fn path_of(head: &Head<'_>) -> Result<Vec<u8>, Refusal> {
    let path = head.target.query_value("path")?.filter(|path| !path.is_empty());
    path.ok_or_else(|| Refusal::new(400, "missing 'path' query parameter"))
}

/// A number of the query. One that cannot be read counts as absent.
fn number_of(head: &Head<'_>, name: &str) -> Result<Option<u64>, Refusal> {
    let text = head.target.query_value(name)?.unwrap_or_default();
    // `parse` would take a sign.
    let is_number = text.iter().all(u8::is_ascii_digit);
    let text = str::from_utf8(&text).ok().filter(|_| is_number);
    Ok(text.and_then(|text| text.parse().ok()))
}

/// Writes what is told of a file.
fn write_entry_of(out: &mut dyn Write, name: &str, path: &str, found: &Stat) -> io::Result<()> {
    let entry = Entry {
        name,
        path,
        kind: kind(found),
        size: found.size,
        mtime_ms: found.mtime.and_then(milliseconds),
        st_mode: found.st_mode,
    };
    write_entry(out, &entry)
}

fn kind(found: &Stat) -> Kind {
    match found {
        _ if found.is_dir() => Kind::Directory,
        _ if found.is_symlink() => Kind::Symlink,
        _ => Kind::File,
    }
}

/// Rounded down, also before 1970; `None` for what is out of all bounds.
fn milliseconds((seconds, nanoseconds): (i64, u32)) -> Option<i64> {
    seconds.checked_mul(1000)?.checked_add(i64::from(nanoseconds / 1_000_000))
}

//! PicoD's files: uploads, downloads and lists below the workspace.

mod download;
mod upload;

use std::io::{Read, Write};
use std::time::{Duration, SystemTime};

use tiny_http::ResponseBox;

use crate::serve::State;
use crate::serve::reply::{self, Dialect};
use crate::serve::root::{LISTED_MAX, Page, RootError};
use crate::serve::transport::{Head, Live, Reply};
use crate::wire::http::target::{BadEncoding, Plus, decode};
use crate::wire::json_string::write_string;
use crate::wire::picod::files::{Entry, write_list_entry};

/// Entries of a list without `limit`; a larger directory is answered 413.
const UNPAGED_MAX: usize = LISTED_MAX;

/// A status, and the message of its answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal(u16, String);

impl Refusal {
    fn new(status: u16, message: &str) -> Refusal {
        Refusal(status, message.to_owned())
    }

    /// What PicoD says of a path that cannot be used; `what` of `File` or `Directory` was asked
    /// for.
    fn of(error: &RootError, what: &str) -> Refusal {
        match error {
            RootError::NotFound => Refusal(404, format!("{what} not found")),
            RootError::NotADirectory if what == "File" => Refusal(404, "File not found".to_owned()),
            RootError::NotADirectory => Refusal::new(400, "Path is a file, not a directory"),
            RootError::IsADirectory => Refusal::new(400, "Path is a directory, not a file"),
            RootError::NotRegular => Refusal::new(400, "Path is not a regular file"),
            RootError::Permission => Refusal(403, error.to_string()),
            RootError::TooLarge => Refusal(413, error.to_string()),
            RootError::Full => Refusal(507, error.to_string()),
            RootError::Escapes | RootError::Invalid(_) => {
                Refusal(400, format!("Invalid path: {error}"))
            }
            RootError::Io(_) => Refusal(500, error.to_string()),
        }
    }

    fn answer(&self) -> ResponseBox {
        reply::error(Dialect::Picod, self.0, &self.1)
    }
}

impl From<BadEncoding> for Refusal {
    fn from(error: BadEncoding) -> Refusal {
        Refusal(400, error.to_string())
    }
}

/// POST /api/files: stores a file, sent as JSON or as a form.
pub(in crate::serve) fn upload(state: &State, head: &Head<'_>, body: &mut dyn Read) -> ResponseBox {
    upload::upload(state, head, body).unwrap_or_else(|refusal| refusal.answer())
}

/// GET /api/files/{path}: sends a file or a range of it. `path` is as it was sent.
pub(in crate::serve) fn download(state: &State, head: &Head<'_>, path: &str) -> ResponseBox {
    let found = decode(path, Plus::Stays).map_err(Refusal::from);
    let sent = found.and_then(|path| download::download(state, head, &path));
    sent.unwrap_or_else(|refusal| refusal.answer())
}

/// GET /api/files?path=: tells what is in a directory, all of it or a page.
pub(in crate::serve) fn list<'a>(state: &'a State, head: &Head<'_>) -> Reply<'a> {
    match page(state, head) {
        Ok((page, is_paged)) => Reply::Live(Live {
            status: 200,
            headers: vec![reply::header("Content-Type", "application/json")],
            write: Box::new(move |out| Ok(write_page(out, page, is_paged)?)),
        }),
        Err(refusal) => refusal.answer().into(),
    }
}

/// The page that is asked for, and whether pages were asked for at all.
fn page<'a>(state: &'a State, head: &Head<'_>) -> Result<(Page<'a>, bool), Refusal> {
    let path = head.target.query_value("path")?.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| Refusal::new(400, "Missing 'path' query parameter"))?;
    let limit = match head.target.query_value("limit")? {
        Some(text) => {
            let limit = str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
            let wrong = || Refusal(400, format!("Invalid limit: expected 1 to {LISTED_MAX}"));
            Some(limit.filter(|limit| (1..=LISTED_MAX).contains(limit)).ok_or_else(wrong)?)
        }
        None => None,
    };
    let after = head.target.query_value("after")?.unwrap_or_default();
    let page = state
        .root
        .with_shown(&path, |path| state.root.list(path, &after, limit.unwrap_or(UNPAGED_MAX)));
    let page = page.map_err(|error| Refusal::of(&error, "Directory"))?;
    if limit.is_none() && page.is_cut() {
        let message = format!(
            "the directory has over {UNPAGED_MAX} entries: ask for pages of it with limit and after"
        );
        return Err(Refusal(413, message));
    }
    Ok((page, limit.is_some()))
}

fn write_page(
    out: &mut (dyn Write + Send),
    mut page: Page<'_>,
    is_paged: bool,
) -> std::io::Result<()> {
    out.write_all(b"{\"files\":[")?;
    let mut is_first = true;
    while let Some((name, found)) = page.next_entry()? {
        if !std::mem::take(&mut is_first) {
            out.write_all(b",")?;
        }
        let entry = Entry {
            name: &name.shown,
            size: found.size,
            st_mode: found.st_mode,
            modified: found.mtime.and_then(moment).unwrap_or(SystemTime::UNIX_EPOCH),
            is_dir: found.is_dir(),
        };
        write_list_entry(&mut &mut *out, &entry)?;
    }
    out.write_all(b"]")?;
    let next = page.end();
    if is_paged {
        write!(out, ",\"truncated\":{},\"next\":", next.is_some())?;
        match next {
            Some(next) => write_string(&mut &mut *out, &next)?,
            None => out.write_all(b"null")?,
        }
    }
    out.write_all(b"}")
}

/// Seconds since 1970, and nanoseconds after them; `None` for what is out of all bounds.
fn moment((seconds, nanoseconds): (i64, u32)) -> Option<SystemTime> {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let second = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance)?,
        false => SystemTime::UNIX_EPOCH.checked_add(distance)?,
    };
    second.checked_add(Duration::from_nanos(nanoseconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_a_status_and_a_text() {
        let io = || RootError::Io(std::io::Error::other("odd"));
        let invalid = || RootError::Invalid("why".to_owned());
        let out = "Invalid path: the path leads out of the workspace";
        let rows = [
            (RootError::Escapes, "File", 400, out),
            (RootError::NotFound, "File", 404, "File not found"),
            (RootError::NotFound, "Directory", 404, "Directory not found"),
            (RootError::NotADirectory, "File", 404, "File not found"),
            (RootError::NotADirectory, "Directory", 400, "Path is a file, not a directory"),
            (RootError::IsADirectory, "File", 400, "Path is a directory, not a file"),
            (RootError::NotRegular, "File", 400, "Path is not a regular file"),
            (RootError::Permission, "File", 403, "permission denied"),
            (RootError::Full, "File", 507, "no space left on device"),
            (RootError::TooLarge, "File", 413, "file too large"),
            (invalid(), "File", 400, "Invalid path: why"),
            (io(), "File", 500, "odd"),
        ];
        for (error, what, status, message) in rows {
            let expected = Refusal::new(status, message);
            assert_eq!(Refusal::of(&error, what), expected, "{error:?} {what}");
        }
    }
}

//! The sandbox dialect's files, but for lists.

use std::fs::{File, Permissions};
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};

use tiny_http::{Response, ResponseBox, StatusCode};

use super::{Refusal, number_of, path_of, write_entry_of};
use crate::quote::quoted;
use crate::serve::State;
use crate::serve::body::{Unpoured, pour};
use crate::serve::content::{Unread, read_small};
use crate::serve::reply;
use crate::serve::root::{Inside, NotRemoved, Obstacle, Parents, RootError, shown_path};
use crate::serve::transport::Head;
use crate::sys::files::{self, Stat};

/// GET /v1/files/read: sends a file or a range of it.
pub(in crate::serve) fn read(state: &State, head: &Head<'_>) -> ResponseBox {
    try_read(state, head).unwrap_or_else(|refusal| refusal.answer())
}

/// PUT /v1/files/write: stores a file, or a range of one.
pub(in crate::serve) fn write(state: &State, head: &Head<'_>, body: &mut dyn Read) -> ResponseBox {
    try_write(state, head, body).unwrap_or_else(|refusal| refusal.answer())
}

/// GET /v1/files/stat: says what stands at a path.
pub(in crate::serve) fn stat(state: &State, head: &Head<'_>) -> ResponseBox {
    try_stat(state, head).unwrap_or_else(|refusal| refusal.answer())
}

/// DELETE /v1/files/delete: removes what stands at a path.
pub(in crate::serve) fn delete(state: &State, head: &Head<'_>) -> ResponseBox {
    try_delete(state, head).unwrap_or_else(|refusal| refusal.answer())
}

/// POST /v1/files/mkdir: makes a directory and its parents.
pub(in crate::serve) fn make_directory(state: &State, head: &Head<'_>) -> ResponseBox {
    try_make_directory(state, head).unwrap_or_else(|refusal| refusal.answer())
}

fn try_read(state: &State, head: &Head<'_>) -> Result<ResponseBox, Refusal> {
    let path = path_of(head)?;
    let offset = number_of(head, "offset")?.unwrap_or(0);
    let length = number_of(head, "length")?.unwrap_or(u64::MAX);
    let of_path = |error: RootError| Refusal::of(&error, &path);
    let found = |path: &Inside| state.root.open_file(path).map_err(absent);
    let mut file = state.root.with_shown(&path, found).map_err(of_path)?;
    let told = file.metadata().map_err(|error| of_path(error.into()))?.len();
    let end = offset.saturating_add(length);
    let small = read_small(&mut file, told, end).map_err(|unread| match unread {
        Unread::TooLong(message) => Refusal::new(413, message),
        Unread::Failed(error) => of_path(error),
    })?;
    let size = small.as_ref().map_or(told, |bytes| bytes.len() as u64);
    let (first, end) = (offset.min(size), end.min(size));
    // A file that has shrunk meanwhile ends before that, and then the answer is cut.
    let length = usize::try_from(end - first).map_err(|_| of_path(RootError::TooLarge))?;
    let content: Box<dyn Read + Send> = match small {
        Some(bytes) => {
            let mut bytes = Cursor::new(bytes);
            bytes.set_position(first);
            Box::new(bytes)
        }
        None => {
            file.seek(SeekFrom::Start(first)).map_err(|error| of_path(error.into()))?;
            Box::new(file)
        }
    };
    let headers = vec![reply::header("Content-Type", "application/octet-stream")];
    Ok(Response::new(StatusCode(200), headers, content, Some(length), None))
}

/// What a client asks for that only wants to know whether there is something: below a file there
/// is nothing.
fn absent(error: RootError) -> RootError {
    match error {
        RootError::NotADirectory => RootError::NotFound,
        other => other,
    }
}

fn try_write(state: &State, head: &Head<'_>, body: &mut dyn Read) -> Result<ResponseBox, Refusal> {
    let path = path_of(head)?;
    let parents = match flag_of(head, "mkdir")? {
        Some(false) => Parents::Required,
        Some(true) | None => Parents::Made,
    };
    let (mode, offset) = (mode_of(head)?, bytes_of(head, "offset")?);
    let truncate_to = bytes_of(head, "truncate_to")?;
    let of_path = |error: RootError| Refusal::of(&error, &path);
    let inside = state.root.place(&path).map_err(of_path)?;
    let size = match offset {
        // The new content is all there is of the file, so there is nothing to cut off.
        None => {
            let replacement = state.root.replace_below(&inside, mode, parents);
            let mut replacement = replacement.map_err(of_path)?;
            store(state, body, |bytes| replacement.write_all(bytes)).map_err(of_path)?;
            replacement.commit().map_err(of_path)?.len()
        }
        Some(offset) => {
            let range = Range { offset, mode, truncate_to };
            range.require_within(head.length, state.settings.file_max_bytes)?;
            let file = state.root.open_to_change(&inside, mode, parents).map_err(of_path)?;
            range.write(state, file, body).map_err(of_path)?
        }
    };
    let shown = reply::string(&shown_path(&inside));
    Ok(reply::json(200, format!("{{\"path\":{shown},\"size\":{size}}}")))
}

/// Stores a body to its end. One that breaks off is an error, and so is one that cannot be stored.
fn store(
    state: &State,
    body: &mut dyn Read,
    take: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), RootError> {
    pour(state, body, take).map_err(|unpoured| match unpoured {
        Unpoured::Body(error) | Unpoured::Taker(error) => error.into(),
    })
}

/// What is to be written into a file that keeps the rest.
#[derive(Debug, Clone, Copy)]
struct Range {
    offset: u64,
    mode: Option<u32>,
    truncate_to: Option<u64>,
}

impl Range {
    /// Refuses a file of over `max_bytes`, holes counted: every reader would have to read them.
    fn require_within(&self, length: Option<u64>, max_bytes: u64) -> Result<(), Refusal> {
        // No file has more, whatever was said.
        let max_bytes = max_bytes.min(i64::MAX.cast_unsigned());
        let end = self.offset.checked_add(length.unwrap_or(0));
        if end.is_none_or(|end| end > max_bytes) || self.truncate_to > Some(max_bytes) {
            let message = format!("the file would have over {max_bytes} bytes (--max-file-size)");
            return Err(Refusal::new(413, message));
        }
        Ok(())
    }

    /// Writes the body, whose length was checked, into `file`, and returns what its size is then.
    fn write(&self, state: &State, file: File, body: &mut dyn Read) -> Result<u64, RootError> {
        let mut at = self.offset;
        store(state, body, |bytes| {
            file.write_all_at(bytes, at)?;
            at += bytes.len() as u64;
            Ok(())
        })?;
        if let Some(length) = self.truncate_to {
            file.set_len(length)?;
        }
        // After the content: writing takes set-user-ID away.
        if let Some(mode) = self.mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        let size = file.metadata()?.len();
        files::close(file.into())?;
        Ok(size)
    }
}

fn try_stat(state: &State, head: &Head<'_>) -> Result<ResponseBox, Refusal> {
    let path = path_of(head)?;
    let found = |path: &Inside| {
        let found = state.root.metadata(path).map_err(absent)?;
        Ok((found, shown_path(path)))
    };
    let found = state.root.with_shown(&path, found);
    let (found, shown) = found.map_err(|error| Refusal::of(&error, &path))?;
    // The root has no name of its own.
    let name = shown.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/");
    let mut text = Vec::new();
    write_entry_of(&mut text, name, &shown, &Stat::from(&found))
        .expect("a vector takes everything");
    Ok(reply::json_bytes(200, text))
}

fn try_delete(state: &State, head: &Head<'_>) -> Result<ResponseBox, Refusal> {
    let path = path_of(head)?;
    let recursive = flag_of(head, "recursive")?.unwrap_or(false);
    let removed = state.root.with_shown(&path, |path| {
        match state.root.remove(path, recursive) {
            // Also tried as it is shown.
            Err(NotRemoved { obstacle: Obstacle::Other(error), path: missing })
                if missing == path.as_bytes() =>
            {
                Err(absent(error))
            }
            removed => Ok(removed.map(|()| shown_path(path))),
        }
    });
    let removed = removed.map_err(|error| Refusal::of(&error, &path))?;
    let shown = reply::string(&removed.map_err(|error| not_removed(&error))?);
    Ok(reply::json(200, format!("{{\"deleted\":{shown}}}")))
}

fn not_removed(error: &NotRemoved) -> Refusal {
    let path = quoted(&String::from_utf8_lossy(&error.path));
    match &error.obstacle {
        Obstacle::NotEmpty => Refusal::new(
            400,
            format!("directory not empty: {path}; recursive=1 removes it with all that is in it"),
        ),
        Obstacle::Refilled => {
            Refusal::new(409, format!("directory not empty: {path}; something goes on filling it"))
        }
        Obstacle::MountPoint => Refusal::new(409, format!("in use or a mount point: {path}")),
        Obstacle::TooDeep => Refusal::new(
            409,
            format!("too many levels of directories: {path}; remove those further down first"),
        ),
        Obstacle::Other(why) => Refusal::of(why, &error.path),
    }
}

fn try_make_directory(state: &State, head: &Head<'_>) -> Result<ResponseBox, Refusal> {
    let path = path_of(head)?;
    let inside = state.root.place(&path);
    let made = inside.and_then(|inside| state.root.create_directories(&inside).map(|_| inside));
    let inside = made.map_err(|error| Refusal::of(&error, &path))?;
    let shown = reply::string(&shown_path(&inside));
    Ok(reply::json(200, format!("{{\"created\":{shown}}}")))
}

/// A yes or no of the query. What is neither counts as absent.
fn flag_of(head: &Head<'_>, name: &str) -> Result<Option<bool>, Refusal> {
    Ok(match head.target.query_value(name)?.as_deref() {
        Some(b"1" | b"true") => Some(true),
        Some(b"0" | b"false") => Some(false),
        _ => None,
    })
}

/// The mode of a file, in octal digits. What is none counts as absent.
fn mode_of(head: &Head<'_>) -> Result<Option<u32>, Refusal> {
    let text = head.target.query_value("mode")?.unwrap_or_default();
    // `from_str_radix` would take a sign.
    let is_octal = text.iter().all(|digit| matches!(digit, b'0'..=b'7'));
    let text = str::from_utf8(&text).ok().filter(|_| is_octal);
    let mode = text.and_then(|text| u32::from_str_radix(text, 8).ok());
    Ok(mode.filter(|mode| *mode <= 0o7777))
}

/// A number of bytes that says what becomes of a file. One that cannot be read is refused: taken
/// as absent, a range would replace the whole file.
fn bytes_of(head: &Head<'_>, name: &str) -> Result<Option<u64>, Refusal> {
    let text = head.target.query_value(name)?.filter(|text| !text.is_empty());
    match (number_of(head, name)?, text) {
        (None, Some(text)) => {
            let shown = quoted(&String::from_utf8_lossy(&text));
            Err(Refusal::new(400, format!("invalid {name} {shown}: expected a number of bytes")))
        }
        (number, _) => Ok(number),
    }
}

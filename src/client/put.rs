//! A file of this machine, to the server.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::connection::{Connection, Content};
use super::progress::Progress;
use super::transfer::{RANGE_BYTES, again, for_each_range};
use super::{Error, Server};
use crate::sys::files::flags;
use crate::wire::http::target::{Component, encode};
use crate::wire::sandbox::ranges::{Range, ranges};

/// Bytes of a file that is sent whole, which replaces the old one in one step; a larger one goes in
/// ranges.
pub const WHOLE_MAX_BYTES: u64 = 2 << 20;

/// Stores the file at `local` as `path`, `jobs` ranges at once, with `mode` if one is given.
///
/// # Errors
/// `Changed` when its size is another at the end than at the start; then the file on the server is
/// not complete, and neither is it after any other error of a file of over [`WHOLE_MAX_BYTES`].
/// Such a file is written into the old one; a new one that is not complete is too short.
pub fn put(
    server: &Server,
    local: &Path,
    path: &[u8],
    mode: Option<u32>,
    jobs: usize,
    is_shown: bool,
) -> Result<(), Error> {
    let failed = |error| Error::Local(local.to_owned(), error);
    let file = File::options().read(true).custom_flags(flags::O_NOCTTY).open(local);
    let file = file.map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(failed(ErrorKind::IsADirectory.into()));
    }
    // Like stdin: a pipe, and what tells no size, as files in /proc do.
    if !found.is_file() || found.len() == 0 {
        let sent = put_from(server, &mut &file, path, mode, is_shown);
        return sent.map_err(|error| match error {
            Error::Local(_, error) => failed(error),
            error => error,
        });
    }
    let place = Place { server, path, mode };
    let progress = Progress::new(Some(found.len()), is_shown);
    let changed = || Error::Changed(local.to_string_lossy().into_owned());
    let named = |error| match error {
        Error::Changed(_) => changed(),
        Error::Local(_, error) => failed(error),
        error => error,
    };
    if found.len() <= WHOLE_MAX_BYTES {
        let content = Content::Range(&file, 0, found.len());
        again(server, &mut None, |connection| place.write(connection, None, content))
            .map_err(named)?;
    } else {
        let send = |connection: &mut Connection, range: Range| {
            let content = Content::Range(&file, range.offset, range.length);
            place.write(connection, Some(range), content)?;
            progress.add(range.length);
            Ok(())
        };
        // The range that ends the file goes when all others are there: before that, a new file is
        // shorter than it should be.
        let last = ranges(found.len(), RANGE_BYTES).last();
        let rest = for_each_range(server, found.len(), jobs, |connection, range| {
            if Some(range) == last { Ok(()) } else { send(connection, range) }
        });
        rest.and_then(|()| match last {
            Some(last) => again(server, &mut None, |connection| send(connection, last)),
            None => Ok(()),
        })
        .map_err(named)?;
    }
    let now: Metadata = file.metadata().map_err(failed)?;
    if now.len() == found.len() { Ok(()) } else { Err(changed()) }
}

/// Stores what `from` gives, to its end, as `path`.
///
/// # Errors
/// As [`put`]; `Local` when it cannot be read.
pub fn put_from(
    server: &Server,
    from: &mut dyn Read,
    path: &[u8],
    mode: Option<u32>,
    is_shown: bool,
) -> Result<(), Error> {
    let place = Place { server, path, mode };
    let progress = Progress::new(None, is_shown);
    let mut connection = None;
    // The last one must be known as such: it cuts the file.
    let mut piece = next_piece(from)?;
    let mut offset = 0;
    loop {
        let length = piece.len() as u64;
        let following = if length < RANGE_BYTES.get() { Vec::new() } else { next_piece(from)? };
        let is_last = following.is_empty();
        let range = Range { offset, length, total: is_last.then_some(offset + length) };
        let range = Some(range).filter(|_| offset > 0 || !is_last);
        again(server, &mut connection, |connection| {
            place.write(connection, range, Content::Bytes(&piece))
        })?;
        progress.add(length);
        if is_last {
            return Ok(());
        }
        offset += length;
        piece = following;
    }
}

/// The next [`RANGE_BYTES`], fewer at the end.
fn next_piece(from: &mut dyn Read) -> Result<Vec<u8>, Error> {
    let mut piece = Vec::new();
    let read = from.take(RANGE_BYTES.get()).read_to_end(&mut piece);
    read.map_err(|error| Error::Local("stdin".into(), error))?;
    Ok(piece)
}

/// Where a file goes.
struct Place<'a> {
    server: &'a Server,
    path: &'a [u8],
    mode: Option<u32>,
}

impl Place<'_> {
    /// Writes the whole file, or one range of it.
    fn write(
        &self,
        connection: &mut Connection,
        range: Option<Range>,
        content: Content<'_>,
    ) -> Result<(), Error> {
        let mut target = format!("/v1/files/write?path={}", encode(self.path, Component::Query));
        if let Some(mode) = self.mode {
            target.push_str(&format!("&mode={mode:o}"));
        }
        if let Some(Range { offset, total, .. }) = range {
            target.push_str(&format!("&offset={offset}"));
            if let Some(total) = total {
                target.push_str(&format!("&truncate_to={total}"));
            }
        }
        connection.ask(self.server, "PUT", &target, Some(content))?.finish()
    }
}

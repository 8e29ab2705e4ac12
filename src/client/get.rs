//! A file of the server, to here.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use super::connection::Connection;
use super::local::LocalFile;
use super::progress::Progress;
use super::transfer::{again, for_each_range};
use super::{Error, Server};
use crate::wire::http::target::{Component, encode};
use crate::wire::sandbox::client::entries::{RemoteEntry, RemoteKind, read_entry};
use crate::wire::sandbox::ranges::Range;

/// Bytes that are read from a connection and written at once.
const PIECE_BYTES: usize = 128 << 10;

/// Bytes of the largest file whose size is told as 0, like those in /proc: servers read it before
/// they send it (sandbox dialect, `GET /v1/files/read`).
const UNSIZED_MAX_BYTES: u64 = 16 << 20;

/// Bytes of the largest file that [`read`] holds.
pub const READ_MAX_BYTES: u64 = 512 << 20;

/// Fetches the file at `path` to `local`, `jobs` ranges at once, 1 to 64. It stands there when it
/// is complete, and not before; with `mode`, or else that of the file that stood there.
///
/// # Errors
/// `Changed` when it is another at the end than at the start. Nothing is left then.
pub fn get(
    server: &Server,
    path: &[u8],
    local: &Path,
    mode: Option<u32>,
    jobs: usize,
    is_shown: bool,
) -> Result<(), Error> {
    let target = LocalFile::begin(local)?;
    let failed = |error| Error::Local(local.to_owned(), error);
    let found = stat(server, path)?;
    let progress = Progress::new(Some(found.size).filter(|_| tells_size(&found)), is_shown);
    if !tells_size(&found) {
        again(server, &mut None, |connection| {
            let mut at = 0;
            // What an answer that broke off left.
            target.file().set_len(0).map_err(failed)?;
            whole(server, connection, path, &found, &mut |bytes| {
                target.file().write_all_at(bytes, at).map_err(failed)?;
                at += bytes.len() as u64;
                progress.add(bytes.len() as u64);
                Ok(())
            })
        })?;
        return target.commit(mode);
    }
    for_each_range(server, found.size, jobs, |connection, range| {
        fetch(server, connection, path, range, &mut |offset, bytes| {
            target.file().write_all_at(bytes, offset).map_err(failed)
        })?;
        progress.add(range.length);
        Ok(())
    })?;
    require_same(server, path, &found)?;
    target.commit(mode)
}

/// Fetches the file at `path` and writes it to `out` as it comes.
///
/// # Errors
/// `Output` when that cannot be written; `Connection` when the file broke off.
pub fn get_to(
    server: &Server,
    path: &[u8],
    out: &mut dyn Write,
    is_shown: bool,
) -> Result<(), Error> {
    let found = stat(server, path)?;
    let progress = Progress::new(Some(found.size).filter(|_| tells_size(&found)), is_shown);
    let mut connection = Connection::open(&server.address)?;
    whole(server, &mut connection, path, &found, &mut |bytes| {
        progress.add(bytes.len() as u64);
        out.write_all(bytes).map_err(Error::Output)
    })?;
    out.flush().map_err(Error::Output)?;
    match tells_size(&found) && progress.bytes() != found.size {
        true => Err(Error::Changed(String::from_utf8_lossy(path).into_owned())),
        false => Ok(()),
    }
}

/// All of a file of at most [`READ_MAX_BYTES`].
///
/// # Errors
/// `TooLarge` for a larger one: [`chunks`] gives it piece by piece.
pub fn read(server: &Server, path: &[u8]) -> Result<Vec<u8>, Error> {
    let too_large =
        || Error::TooLarge(READ_MAX_BYTES, "the file is larger: take it piece by piece (chunks)");
    let mut content = Vec::new();
    let found = stat(server, path)?;
    if tells_size(&found) && found.size > READ_MAX_BYTES {
        return Err(too_large());
    }
    let mut connection = Connection::open(&server.address)?;
    whole(server, &mut connection, path, &found, &mut |bytes| {
        if (content.len() + bytes.len()) as u64 > READ_MAX_BYTES {
            return Err(too_large());
        }
        content.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(content)
}

/// What stands at `path`; a link is told of itself.
///
/// # Errors
/// `Refused` with 404 where nothing is.
pub fn stat(server: &Server, path: &[u8]) -> Result<RemoteEntry, Error> {
    let target = format!("/v1/files/stat?path={}", encode(path, Component::Query));
    let body = again(server, &mut None, |connection| {
        connection.ask(server, "GET", &target, None)?.small()
    })?;
    read_entry(&body).map_err(Error::Invalid)
}

/// Whether an entry tells the size of what is read from it. One of a file like those in /proc is 0,
/// and that of a link is its own.
fn tells_size(found: &RemoteEntry) -> bool {
    found.size > 0 && found.kind != RemoteKind::Symlink
}

fn require_same(server: &Server, path: &[u8], found: &RemoteEntry) -> Result<(), Error> {
    let now = stat(server, path)?;
    match (now.size, now.mtime_ms) == (found.size, found.mtime_ms) {
        true => Ok(()),
        false => Err(Error::Changed(String::from_utf8_lossy(path).into_owned())),
    }
}

/// Reads a whole file in one answer.
fn whole(
    server: &Server,
    connection: &mut Connection,
    path: &[u8],
    found: &RemoteEntry,
    take: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let is_unsized = found.size == 0 && found.kind == RemoteKind::File;
    let most = if is_unsized { UNSIZED_MAX_BYTES } else { u64::MAX };
    let target = format!("/v1/files/read?path={}", encode(path, Component::Query));
    let mut answer = connection.ask(server, "GET", &target, None)?;
    match answer.length() {
        Some(length) if length <= most => {}
        Some(_) => return Err(Error::TooLarge(most, "no file of which the size is 0 has more")),
        // One that ends with the connection cannot be told from one that was cut.
        None => return Err(Error::Invalid("a file of which no length is told".to_owned())),
    }
    pour(&mut answer, take)
}

fn pour(
    answer: &mut dyn Read,
    take: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match answer.read(&mut piece).map_err(Error::Connection)? {
            0 => return Ok(()),
            count => take(&piece[..count])?,
        }
    }
}

/// What takes bytes and where they belong.
type TakeAt<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), Error>;

/// Reads one range, which comes whole or not at all.
fn fetch(
    server: &Server,
    connection: &mut Connection,
    path: &[u8],
    range: Range,
    take: TakeAt<'_>,
) -> Result<(), Error> {
    let Range { offset, length, .. } = range;
    let path_encoded = encode(path, Component::Query);
    let target = format!("/v1/files/read?path={path_encoded}&offset={offset}&length={length}");
    let mut answer = connection.ask(server, "GET", &target, None)?;
    let changed = || Error::Changed(String::from_utf8_lossy(path).into_owned());
    if answer.length().is_some_and(|told| told != length) {
        return Err(changed());
    }
    let mut at = offset;
    pour(&mut answer, &mut |bytes| {
        if bytes.len() as u64 > offset + length - at {
            return Err(changed());
        }
        take(at, bytes)?;
        at += bytes.len() as u64;
        Ok(())
    })?;
    if at == offset + length { Ok(()) } else { Err(changed()) }
}

/// The pieces of a file as they come, in no order: the offset of each, and its bytes.
///
/// At most `jobs` of them, of 1 MiB each, are held beyond the one that was taken.
#[derive(Debug)]
pub struct Pieces {
    /// `None` is the end of a whole file.
    receiver: Receiver<Option<Result<Piece, Error>>>,
    is_over: bool,
}

/// The offset of a piece, and its bytes.
type Piece = (u64, Vec<u8>);

impl Iterator for Pieces {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        // A thread that died has not said that the file is whole.
        let broken = || Some(Err(Error::Connection(io::ErrorKind::UnexpectedEof.into())));
        let next = self.receiver.recv().unwrap_or_else(|_| broken());
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Fetches the file at `path` in pieces, `jobs` at once, 1 to 64. An error is the last item. A
/// caller that stops taking them ends it.
///
/// # Errors
/// `Refused` when there is no such file; `Local` when there is no thread to fetch with.
pub fn chunks(server: &Arc<Server>, path: &[u8], jobs: usize) -> Result<Pieces, Error> {
    let found = stat(server, path)?;
    let (sender, receiver) = sync_channel(0);
    let (server, path) = (Arc::clone(server), path.to_vec());
    let fetch_all = move || {
        let send = |offset, bytes| {
            let gone = |_| Error::Output(io::ErrorKind::BrokenPipe.into());
            sender.send(Some(Ok((offset, bytes)))).map_err(gone)
        };
        let done = match tells_size(&found) {
            true => for_each_range(&server, found.size, jobs, |connection, range| {
                let mut bytes = Vec::new();
                fetch(&server, connection, &path, range, &mut |_, piece| {
                    bytes.extend_from_slice(piece);
                    Ok(())
                })?;
                send(range.offset, bytes)
            })
            .and_then(|()| require_same(&server, &path, &found)),
            false => Connection::open(&server.address).and_then(|mut connection| {
                let mut at = 0;
                whole(&server, &mut connection, &path, &found, &mut |piece| {
                    send(at, piece.to_vec())?;
                    at += piece.len() as u64;
                    Ok(())
                })
            }),
        };
        // Nobody may be there to take it.
        let _ = sender.send(done.err().map(Err));
    };
    let started = thread::Builder::new().spawn(fetch_all);
    started.map_err(|error| Error::Local("".into(), error))?;
    Ok(Pieces { receiver, is_over: false })
}

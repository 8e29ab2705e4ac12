//! What is in a directory: a page of its names, in memory that does not grow with the directory.
//!
//! The kernel gives names in no order, so a page is a scan of the whole directory. Each scan keeps
//! the names that come first after the page's cursor, as many as fit in a batch ([`names`]); a page
//! of more names than that is several scans, and what is left of a batch at the end of a page is
//! kept for the next one ([`kept`]), if the directory is then the same to a proof.
//!
//! A page of all its names at once is the loser: 50,000 of 255 bytes are 13 MB for each client that
//! reads slowly. So is a scan for each page: a million names in pages of 10,000 are 100 scans.

mod kept;
mod names;

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};

use super::shown::name_as_shown;
use super::{Name, RootError, c_string};
use crate::sys::files::{self, Entries, Stat};
use kept::{Ahead, Cursor, Large, Stamp, id_of};
use names::{Names, Room, Selection};

pub(super) use kept::Kept;

/// Names of the longest page.
pub const LISTED_MAX: usize = 50_000;

/// Names read ahead of a list, bytes with what they take in memory; so large are at most
/// [`kept::LARGE_BATCHES_MAX`] at once.
const BATCH_MAX_BYTES: usize = 4 << 20;

/// As [`BATCH_MAX_BYTES`], for any number of lists at once.
const SMALL_BATCH_MAX_BYTES: usize = 128 << 10;

/// Bytes of entries that are read from the kernel at once.
const READ_BYTES: usize = 32 << 10;

/// A part of a directory: names that come one after the other in the order of their bytes.
#[derive(Debug)]
pub struct Page<'a> {
    kept: &'a Kept,
    directory: File,
    /// Names that may still be told.
    left: usize,
    /// The name before the first of `batch`.
    after: Vec<u8>,
    batch: Batch,
}

/// Names in memory.
#[derive(Debug, Default)]
struct Batch {
    names: Names,
    /// The next of them.
    at: usize,
    /// Names from that one on that the directory had at the scan.
    following: usize,
    /// What proves later that the directory is the same; absent if nothing can.
    stamp: Option<Stamp>,
    large: Option<Large>,
}

impl<'a> Page<'a> {
    /// The first `limit` names after `after`, at most [`LISTED_MAX`]. It is a name as it is shown,
    /// or any bytes.
    pub(super) fn read(
        kept: &'a Kept,
        directory: OwnedFd,
        after: &[u8],
        limit: usize,
    ) -> Result<Page<'a>, RootError> {
        let directory = File::from(directory);
        let left = limit.min(LISTED_MAX);
        let (after, ahead) = begin(kept, &directory, after)?;
        let batch = ahead.map(Batch::from).unwrap_or_default();
        let is_ahead = batch.stamp.is_some();
        let mut page = Page { kept, directory, left, after, batch };
        if !is_ahead {
            page.scan()?;
        }
        Ok(page)
    }

    /// Whether more names follow than the page may still tell.
    pub fn is_cut(&self) -> bool {
        self.batch.following > self.left
    }

    /// The next entry, a link being told of itself. What has gone since counts, but is left out;
    /// what cannot be looked at is told with its type alone.
    ///
    /// # Errors
    /// When the directory cannot be read any further.
    pub(in crate::serve) fn next_entry(&mut self) -> io::Result<Option<(Name, Stat)>> {
        while self.left > 0 && self.batch.following > 0 {
            let Some((name, kind)) = self.batch.names.get(self.batch.at) else {
                self.after = self.last().to_vec();
                self.scan()?;
                continue;
            };
            self.left -= 1;
            self.batch.at += 1;
            self.batch.following -= 1;
            let stat = match files::stat_at(self.directory.as_fd(), name) {
                Ok(stat) => stat,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                // One odd entry must not hide all others.
                Err(_) => Stat::of_kind(kind),
            };
            return Ok(Some((Name::new(name.to_bytes()), stat)));
        }
        Ok(None)
    }

    /// Ends the page: where the next one goes on, as it is shown; `None` if nothing follows.
    pub fn end(self) -> Option<String> {
        if self.batch.following == 0 {
            return None;
        }
        let last = self.last().to_vec();
        let shown = Name::new(&last).shown;
        let directory = self.directory.metadata().ok()?;
        self.kept.put(Cursor { directory: id_of(&directory), last, ahead: self.batch.ahead() });
        Some(shown)
    }

    /// The last name that was told, or was to be.
    fn last(&self) -> &[u8] {
        let last = self.batch.at.checked_sub(1).and_then(|last| self.batch.names.get(last));
        last.map_or(&self.after, |(name, _)| name.to_bytes())
    }

    /// Reads the next batch, after `after`.
    fn scan(&mut self) -> io::Result<()> {
        // The old names go before there are new ones.
        let large = std::mem::take(&mut self.batch).large.or_else(|| self.kept.large());
        let stamp = Stamp::of(&self.directory.metadata()?);
        // Whether later changes will show.
        let is_provable = stamp.is_settled() && files::tells_changes(self.directory.as_fd())?;
        let stamp = Some(stamp).filter(|_| is_provable && large.is_some());
        let room = Room {
            bytes: if large.is_some() { BATCH_MAX_BYTES } else { SMALL_BATCH_MAX_BYTES },
            // What cannot be used later is not read ahead.
            names: if stamp.is_some() { usize::MAX } else { self.left },
        };
        let mut selection = Selection::new(&self.after, room);
        self.directory.seek(SeekFrom::Start(0))?;
        let mut entries = Entries::new(READ_BYTES);
        loop {
            match entries.next(self.directory.as_fd()) {
                Ok(Some((name, kind))) => selection.offer(name.to_bytes(), kind),
                Ok(None) => break,
                // It was removed, and had to be empty for that.
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        let (names, following) = selection.end();
        self.batch = Batch { names, at: 0, following, stamp, large };
        // A small directory gives others the room for a large one.
        if !self.is_cut() && self.batch.names.bytes() <= SMALL_BATCH_MAX_BYTES {
            self.batch.large = None;
        }
        Ok(())
    }
}

impl From<Ahead> for Batch {
    fn from(ahead: Ahead) -> Batch {
        let Ahead { names, at, following, stamp, large } = ahead;
        Batch { names, at, following, stamp: Some(stamp), large: Some(large) }
    }
}

impl Batch {
    /// What is worth keeping.
    fn ahead(self) -> Option<Ahead> {
        let Batch { names, at, following, .. } = self;
        let (stamp, large) = self.stamp.zip(self.large).filter(|_| at < names.len())?;
        Some(Ahead { names, at, following, stamp, large })
    }
}

/// The bytes of the name that `after` shows, and the names that were read ahead after it.
///
/// A name that is no UTF-8 may be shown as another one is spelt. Where a page has just ended at one
/// of the two, that one is meant; else the one that is spelt so, if there is any.
fn begin(
    kept: &Kept,
    directory: &File,
    after: &[u8],
) -> Result<(Vec<u8>, Option<Ahead>), RootError> {
    if after.is_empty() {
        return Ok((Vec::new(), None));
    }
    let raw = name_as_shown(after);
    let found = directory.metadata()?;
    if let Some(cursor) = kept.take(id_of(&found), [Some(after), raw.as_deref()]) {
        let ahead = cursor.ahead.filter(|ahead| ahead.stamp == Stamp::of(&found));
        return Ok((cursor.last, ahead));
    }
    let is_spelt_so =
        || c_string(after).is_ok_and(|name| files::stat_at(directory.as_fd(), &name).is_ok());
    Ok((raw.filter(|_| !is_spelt_so()).unwrap_or_else(|| after.to_vec()), None))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::serve::root::{Inside, Root};

    /// The names of a page, and where the next one goes on.
    fn told(mut page: Page<'_>) -> (Vec<String>, Option<String>) {
        let mut names = Vec::new();
        while let Some((name, _)) = page.next_entry().expect("it can be read") {
            names.push(name.shown);
        }
        (names, page.end())
    }

    /// A directory of four files that nothing has changed for a while, and its root.
    fn settled() -> (tempfile::TempDir, Root, Inside) {
        let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let home = home.expect("a directory");
        for name in ["a", "b", "c", "d"] {
            fs::write(home.path().join(name), "").expect("room");
        }
        let root = Root::open(home.path()).expect("it is one");
        while !Stamp::of(&home.path().metadata().expect("it is there")).is_settled() {
            thread::sleep(Duration::from_millis(20));
        }
        let inside = root.inside(b"").expect("the root");
        (home, root, inside)
    }

    #[test]
    fn what_was_read_ahead_is_used_while_the_directory_is_the_same() {
        let (home, root, inside) = settled();
        let list = |after: &str, limit| root.list(&inside, after.as_bytes(), limit).expect("it is");
        let page = list("", 1);
        let is_provable = page.batch.stamp.is_some();
        assert_eq!(told(page), (vec!["a".into()], Some("a".into())));
        let page = list("a", 2);
        // Only what was read before has a name in front of the first.
        assert_eq!(page.batch.at, usize::from(is_provable));
        assert_eq!(told(page), (vec!["b".into(), "c".into()], Some("c".into())));
        fs::write(home.path().join("e"), "").expect("room");
        let page = list("c", 1);
        assert_eq!((page.batch.at, page.batch.stamp), (0, None), "it changes");
        assert_eq!(told(page), (vec!["d".into()], Some("d".into())));
        let page = list("d", 1);
        assert_eq!(page.batch.at, 0, "nothing was read ahead");
        assert_eq!(told(page), (vec!["e".into()], None));
    }

    #[test]
    fn nothing_is_read_ahead_where_times_prove_nothing() {
        // /proc was made long ago, and processes come and go.
        let root = Root::open(Path::new("/proc")).expect("Linux has it");
        let inside = root.inside(b"").expect("the root");
        let page = root.list(&inside, b"", 1).expect("it can be read");
        assert!(page.is_cut() && page.batch.stamp.is_none());
    }
}

//! What is in a directory: a page of its names, in memory for that page only.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{Name, RootError, c_string};
use crate::sys::files::{self, flags};

/// Names of the longest page.
pub const LISTED_MAX: usize = 50_000;

/// A part of a directory.
#[derive(Debug)]
pub struct Page {
    directory: OwnedFd,
    /// In the order of the bytes that are shown.
    pub names: Vec<Name>,
    /// Whether more names follow.
    pub is_cut: bool,
}

impl Page {
    /// The first `limit` names after `after`, at most [`LISTED_MAX`].
    pub(super) fn read(directory: OwnedFd, after: &[u8], limit: usize) -> Result<Page, RootError> {
        let limit = limit.min(LISTED_MAX);
        // One more tells whether the page is cut.
        let kept = limit + 1;
        // Sorted once for so many names, and not for each.
        let slack = (kept / 4).max(64);
        let mut names: Vec<Name> = Vec::new();
        let mut last: Option<Name> = None;
        files::for_each_name(directory.as_fd(), &mut |raw| {
            let name = Name::new(raw);
            let is_past = last.as_ref().is_some_and(|last| name > *last);
            if is_past || (!after.is_empty() && name.shown.as_bytes() <= after) {
                return;
            }
            names.push(name);
            if names.len() >= kept + slack {
                names.sort_unstable();
                names.truncate(kept);
                last = names.last().cloned();
            }
        })?;
        names.sort_unstable();
        let is_cut = names.len() > limit;
        names.truncate(limit);
        Ok(Page { directory, names, is_cut })
    }

    /// What an entry is, a link being told of itself; `None` if it has gone since.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn metadata(&self, name: &Name) -> io::Result<Option<Metadata>> {
        let only = flags::O_PATH | flags::O_NOFOLLOW;
        match files::open_at(self.directory.as_fd(), &c_string(name.as_bytes())?, only, 0) {
            Ok(found) => File::from(found).metadata().map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

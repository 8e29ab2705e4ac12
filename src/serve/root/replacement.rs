//! A file's new content, which takes the place of the old one when it is complete, and not before.
//!
//! Writing into the file itself was the loser: an upload that breaks off, or a full disk, leaves
//! half of the new content and nothing of the old, and readers see every state between.

use std::ffi::CString;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{RootError, Target};
use crate::sys::errno;
use crate::sys::files::{self, flags};

/// Mode of a file that is new and was given none.
pub const NEW_FILE_MODE: u32 = 0o644;

/// What names of files that are not complete begin with.
pub const TEMPORARY_PREFIX: &str = ".runcap-";

/// How many names are tried before it is somebody's intent that they are taken.
const NAMES_MAX: usize = 8;

/// A new content in a file of its own beside its target, which nobody else may read (0600) and
/// nobody can guess the name of. Dropped before [`Replacement::commit`], it is removed.
#[derive(Debug)]
pub struct Replacement {
    /// Until it is closed.
    file: Option<File>,
    temporary: Arc<Temporary>,
    aim: Option<Aim>,
    is_placed: bool,
}

/// A file that is not complete.
#[derive(Debug)]
struct Temporary {
    home: OwnedFd,
    name: CString,
}

/// Those of all threads, so that a process which ends under them leaves none behind.
static UNFINISHED: Mutex<Vec<Arc<Temporary>>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<Arc<Temporary>>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every file that is not complete, for a process that ends without waiting for the threads
/// that write them; their commits fail from now on.
pub fn abandon_all() {
    unfinished().drain(..).for_each(|temporary| temporary.remove());
}

impl Temporary {
    fn remove(&self) {
        // Whoever removed it before, it is gone, and nobody waits for an answer here.
        let _ = files::unlink(self.home.as_fd(), &self.name);
    }
}

#[derive(Debug)]
struct Aim {
    directory: OwnedFd,
    name: CString,
    old: Option<Metadata>,
    mode: Option<u32>,
}

impl Replacement {
    /// A file in `home` that has no place yet.
    pub(super) fn begin(home: OwnedFd) -> Result<Replacement, RootError> {
        let new = flags::O_WRONLY | flags::O_CREAT | flags::O_EXCL | flags::O_NOFOLLOW;
        let mut tries = 0;
        let (file, name) = loop {
            let name = files::unguessable_name(TEMPORARY_PREFIX)?;
            match files::open_at(home.as_fd(), &name, new, 0o600) {
                Err(error) if super::is(&error, errno::EEXIST) && tries < NAMES_MAX => tries += 1,
                opened => break (File::from(opened?), name),
            }
        };
        let temporary = Arc::new(Temporary { home, name });
        unfinished().push(Arc::clone(&temporary));
        Ok(Replacement { file: Some(file), temporary, aim: None, is_placed: false })
    }

    pub(super) fn aim(&mut self, target: Target, mode: Option<u32>) {
        let Target { directory, name, old } = target;
        self.aim = Some(Aim { directory, name, old, mode });
    }

    /// Whether it would replace something if it were committed now.
    pub fn has_place(&self) -> bool {
        self.aim.is_some()
    }

    /// Sets the mode that the file gets, in place of the one that was said before.
    pub fn set_mode(&mut self, mode: u32) {
        if let Some(aim) = &mut self.aim {
            aim.mode = Some(mode);
        }
    }

    /// Puts the content in the place of the old file, in one step: readers see the one or the
    /// other. Says what the file is now.
    ///
    /// The old file's mode is kept unless another was asked for, and its owner where the server may
    /// give files away. Other names of the old file (hard links) keep the old content.
    ///
    /// # Errors
    /// `Full` and `Io` when not all of it could be stored; `IsADirectory` when one has taken the
    /// place; `NotFound` when the directory has gone; `Invalid` without a place or for one on
    /// another file system. The old file is as it was then.
    pub fn commit(mut self) -> Result<Metadata, RootError> {
        let (Some(aim), Some(file)) = (self.aim.take(), self.file.take()) else {
            return Err(RootError::Invalid("the content has no place to go to".to_owned()));
        };
        let old_mode = aim.old.as_ref().map(|old| take_owner(&file, old));
        let mode = aim.mode.or(old_mode).unwrap_or(NEW_FILE_MODE);
        file.set_permissions(Permissions::from_mode(mode))?;
        let made = file.metadata()?;
        files::close(file.into())?;
        let Temporary { home, name } = &*self.temporary;
        let (from, to) = ((home.as_fd(), &**name), (aim.directory.as_fd(), &*aim.name));
        match files::rename(from, to) {
            Err(error) if super::is(&error, errno::EXDEV) => {
                let reason = "the path is on another file system: send it before the content";
                Err(RootError::Invalid(reason.to_owned()))
            }
            renamed => {
                renamed?;
                self.is_placed = true;
                Ok(made)
            }
        }
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(0), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_placed {
            self.temporary.remove();
        }
        unfinished().retain(|other| !Arc::ptr_eq(other, &self.temporary));
    }
}

/// Gives the file to the owner of the old one, and says which mode it may have.
fn take_owner(file: &File, old: &Metadata) -> u32 {
    let mode = old.mode() & 0o7777;
    let owner = |found: &Metadata| (found.uid(), found.gid());
    let is_same = file.metadata().is_ok_and(|new| owner(&new) == owner(old));
    match is_same || fchown(file, Some(old.uid()), Some(old.gid())).is_ok() {
        true => mode,
        // Nobody else's program may become one that runs as this user.
        false => mode & 0o777,
    }
}

//! A file of this machine that is not there until it is complete.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Error;
use crate::sys::files::{flags, unguessable_name};

/// What names of files that are not complete begin with.
const TEMPORARY_PREFIX: &str = ".runcap-";

/// Mode of a new file, from which the umask takes.
const NEW_FILE_MODE: u32 = 0o666;

/// The files of this process that are not complete.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what is not complete, for a process that ends now.
pub fn abandon() {
    let mut paths = unfinished();
    for path in paths.drain(..) {
        // Whoever removed it before, it is gone.
        let _ = fs::remove_file(path);
    }
    // Nobody begins another one.
    std::mem::forget(paths);
}

/// A new file beside its place, which nobody else may read (0600) and nobody can guess the name of.
/// Dropped before [`LocalFile::commit`], it is removed.
#[derive(Debug)]
pub(super) struct LocalFile {
    file: Option<File>,
    temporary: PathBuf,
    place: PathBuf,
}

impl LocalFile {
    /// Begins the file that is to stand at `place`. A link there is replaced and not followed.
    pub(super) fn begin(place: &Path) -> Result<LocalFile, Error> {
        let failed = |error| Error::Local(place.to_owned(), error);
        let refused = |what| Err(failed(io::Error::other(what)));
        // What stands there, and for a link what that leads to, if anything.
        let found = [fs::symlink_metadata(place), fs::metadata(place)].map(Result::ok);
        let is_odd = |found: &fs::Metadata| !(found.is_file() || found.is_dir());
        match &found {
            [Some(itself), _] if itself.is_dir() => {
                return refused("it is a directory, give the name of a file");
            }
            [Some(_), Some(led_to)] if is_odd(led_to) => {
                return refused("it is no file: give - and redirect stdout to it");
            }
            _ => {}
        }
        let name = unguessable_name(TEMPORARY_PREFIX).map_err(failed)?;
        let temporary = place.with_file_name(OsStr::from_bytes(name.to_bytes()));
        // Both under the lock, so that no moment is left in which it could stay.
        let mut paths = unfinished();
        let opened = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(flags::O_NOFOLLOW)
            .open(&temporary);
        let file = opened.map_err(failed)?;
        paths.push(temporary.clone());
        drop(paths);
        Ok(LocalFile { file: Some(file), temporary, place: place.to_owned() })
    }

    /// The file, for positioned writes.
    pub(super) fn file(&self) -> &File {
        self.file.as_ref().expect("it is there until it is committed")
    }

    /// Gives it its mode and its place, in one step. Without a mode it keeps that of the file that
    /// stands there, and a new one gets what files get.
    pub(super) fn commit(mut self, mode: Option<u32>) -> Result<(), Error> {
        let failed = |error| Error::Local(self.place.clone(), error);
        let file = self.file.take().expect("it is committed once");
        let old = fs::symlink_metadata(&self.place).ok().filter(fs::Metadata::is_file);
        let old_mode = old.map(|old| old.permissions().mode() & 0o777);
        let mode = mode.or(old_mode).unwrap_or_else(|| NEW_FILE_MODE & !umask());
        file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        crate::sys::files::close(file.into()).map_err(failed)?;
        fs::rename(&self.temporary, &self.place).map_err(failed)?;
        forget(&self.temporary);
        Ok(())
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        let was_unfinished = unfinished().contains(&self.temporary);
        if was_unfinished {
            let _ = fs::remove_file(&self.temporary);
            forget(&self.temporary);
        }
    }
}

fn forget(path: &Path) {
    unfinished().retain(|other| other != path);
}

/// What is taken from the mode of new files (proc(5)), without changing it for a moment as umask(2)
/// would.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}
